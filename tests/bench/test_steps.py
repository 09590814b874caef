"""The steps of whole models compare the same function, and say what was measured; times are for a GPU."""

from dataclasses import replace

import pytest
import torch

from regard.bench import steps
from regard.bench.measure import WrongNumbers
from regard.bench.result import table
from regard.bench.steps import MODELS, Model, Side

TRANSLATOR = next(model for model in MODELS if model.peer == "nn.Transformer")
TOOK = {"Regard": 4.0, "nn.Transformer": 8.0, "nn.Transformer, compiled": 7.0, "Regard, recorded": 2.0}
GRAPHED = "nn.Transformer, compiled, CUDA graphs"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is timed: each way takes what `TOOK` says."""
    ways = steps.ways
    monkeypatch.setattr(steps, "on_gpu", lambda side: side)
    monkeypatch.setattr(steps, "clean", lambda: None)
    monkeypatch.setattr(steps, "measured", lambda name: (TOOK.get(name, 3.0), 1e9))
    monkeypatch.setattr(steps, "ways", lambda *given: [(name, lambda n=name: n) for name, _ in ways(*given)])


def small(model: Model) -> Model:
    return replace(model, sizes=model.small)


def test_the_goal_stands_beside_the_better_of_eager_and_compiled(clock: None) -> None:
    rows, words = steps.steps_of(small(TRANSLATOR), quick=False, tell=lambda _: None)
    assert {row.against: (row.better, row.goal) for row in rows if row.measure == "time"} == {
        "nn.Transformer": (4.0, None),
        "nn.Transformer, compiled": (3.5, TRANSLATOR.goal),
        GRAPHED: (1.5, None),
    }
    assert "Regard, recorded 2 s" in words and GRAPHED in words


def test_a_quick_run_has_no_goal(clock: None) -> None:
    rows, _ = steps.steps_of(small(TRANSLATOR), quick=True, tell=lambda _: None)
    assert rows and all(row.goal is None for row in rows)


def test_other_numbers_are_not_measured(clock: None) -> None:
    def wrong(**sizes: int) -> tuple[Side, Side]:
        ours, theirs = TRANSLATOR.sides(**sizes)
        return ours, replace(theirs, loss=lambda model, batch: 1.01 * theirs.loss(model, batch))

    with pytest.raises(WrongNumbers, match="the loss is"):
        steps.steps_of(replace(small(TRANSLATOR), sides=wrong), quick=True, tell=lambda _: None)


def test_a_step_learns() -> None:
    """The plain step of either side lowers its loss."""
    torch.manual_seed(0)
    for side in TRANSLATOR.sides(pairs=6, words=29, width=16):
        once = steps.update(replace(side, module=side.module.train()), side.module)
        first, *_, last = (float(once(side.batch).detach()) for _ in range(5))
        assert last < first


@pytest.mark.gpu
def test_quick_run() -> None:
    result = steps.run(quick=True, only="translator")
    assert [row.cells()[2] for row in result.rows] == ["time", "memory"]
    assert "translator" in table(result)
