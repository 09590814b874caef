"""Training steps of whole models: both sides compute the same loss, and each variant is reported; times need a GPU."""

from dataclasses import replace

import pytest
import torch

from regard.bench import train_steps
from regard.bench.measure import WrongNumbers
from regard.bench.result import format_table
from regard.bench.train_steps import MODELS, ModelComparison, TrainableModel

TRANSLATOR = next(model for model in MODELS if model.peer == "nn.Transformer")
SECONDS = {"Regard": 4.0, "nn.Transformer": 8.0, "nn.Transformer, compiled": 7.0, "Regard, CUDA graph": 2.0}
GRAPHED = "nn.Transformer, compiled, CUDA graphs"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is timed: the seconds of each variant are those in `SECONDS`."""
    variants = train_steps.step_variants
    monkeypatch.setattr(train_steps, "to_gpu", lambda side: side)
    monkeypatch.setattr(train_steps, "reset_compiler", lambda: None)
    monkeypatch.setattr(train_steps, "measure_step", lambda name: (SECONDS.get(name, 3.0), 1e9))
    monkeypatch.setattr(
        train_steps, "step_variants", lambda *given: [(name, lambda n=name: n) for name, _ in variants(*given)]
    )


def small(model: ModelComparison) -> ModelComparison:
    return replace(model, sizes=model.small_sizes)


def test_the_goal_stands_beside_the_better_of_eager_and_compiled(clock: None) -> None:
    rows, description = train_steps.compare_steps(small(TRANSLATOR), quick=False, report=lambda _: None)
    assert {row.against: (row.better, row.goal) for row in rows if row.measure == "time"} == {
        "nn.Transformer": (4.0, None),
        "nn.Transformer, compiled": (3.5, TRANSLATOR.goal),
        GRAPHED: (1.5, None),
    }
    assert "Regard, CUDA graph 2 s" in description and GRAPHED in description


def test_a_quick_run_has_no_goal(clock: None) -> None:
    rows, _ = train_steps.compare_steps(small(TRANSLATOR), quick=True, report=lambda _: None)
    assert rows and all(row.goal is None for row in rows)


def test_other_numbers_are_not_measured(clock: None) -> None:
    def wrong(**sizes: int) -> tuple[TrainableModel, TrainableModel]:
        ours, theirs = TRANSLATOR.make_models(**sizes)
        return ours, replace(theirs, loss=lambda model, batch: 1.01 * theirs.loss(model, batch))

    with pytest.raises(WrongNumbers, match="the loss is"):
        train_steps.compare_steps(replace(small(TRANSLATOR), make_models=wrong), quick=True, report=lambda _: None)


def test_a_step_learns() -> None:
    """The plain step of either side lowers its loss."""
    torch.manual_seed(0)
    for side in TRANSLATOR.make_models(pairs=6, words=29, width=16):
        once = train_steps.make_update(replace(side, module=side.module.train()), side.module)
        first, *_, last = (float(once(side.batch).detach()) for _ in range(5))
        assert last < first


@pytest.mark.gpu
def test_quick_run() -> None:
    result = train_steps.run(quick=True, only="translator")
    assert [row.cells()[2] for row in result.rows] == ["time", "memory"]
    assert "translator" in format_table(result)
