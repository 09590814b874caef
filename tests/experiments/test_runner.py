"""Running experiments: saved results, their reuse, and parallel runs."""

import json
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.errors import BadInput, Missing
from regard.experiments import Bilingual, Claim, Criterion, Verdict, find_experiment, run_experiments, runner
from regard.experiments.toolkit.figures import line_style, subplots
from regard.plots.figures import save_figure


def test_saved_result_is_complete(tmp_path: Path, experiment_factory: Any, run: Any, text: Bilingual) -> None:
    result = run(experiment_factory(), tmp_path)
    assert result == json.loads((tmp_path / "made.json").read_text(encoding="utf-8"))
    saved_text = {"en": text.en, "zh": text.zh}
    figures = {"en": "6", "zh": "6"}
    subclaim = {
        "name": "large",
        "text": saved_text,
        "holds": True,
        "figures": figures,
        "value": 6.0,
        "bound": 6,
        "core": False,
    }
    assert result["verdict"] == {"kind": "holds", "key": saved_text, "why": saved_text, "subclaims": [subclaim]}
    assert result["claim"]["criteria"][0]["text"]["zh"] == text.zh and result["settings"] == {}
    assert (result["seed"], result["size"]) == (3, "toy")
    assert result["versions"]["torch"] == torch.__version__
    assert {"date", "seconds", "devices"} <= set(result)
    assert {path.name for path in tmp_path.iterdir()} == {"made.json", "made.en.png", "made.zh.png"}


def test_result_is_reused_until_something_changes(
    tmp_path: Path, experiment_factory: Any, run: Any, text: Bilingual
) -> None:
    experiment = experiment_factory()
    first = run(experiment, tmp_path)
    assert run(experiment, tmp_path) == first
    assert experiment.calls == [3]
    run(experiment, tmp_path, seed=4)
    run(experiment, tmp_path, seed=4, again=True)
    assert experiment.calls == [3, 4, 4]
    stricter = experiment_factory(CLAIM=Claim(99, "made", text, text, text, (Criterion("large", text, ">=", 7),)))
    run(stricter, tmp_path, seed=4)
    assert stricter.calls == [4]


def test_missing_figure_is_redrawn_without_measuring(tmp_path: Path, experiment_factory: Any, run: Any) -> None:
    experiment = experiment_factory()
    run(experiment, tmp_path)
    (tmp_path / "made.zh.png").unlink()
    run(experiment, tmp_path)
    assert (tmp_path / "made.zh.png").exists()
    assert experiment.calls == [3]


def test_reused_result_gets_a_fresh_verdict(tmp_path: Path, experiment_factory: Any, run: Any, text: Bilingual) -> None:
    run(experiment_factory(), tmp_path)
    limited = experiment_factory(verdict=lambda numbers: Verdict("limited", text, text))
    assert run(limited, tmp_path)["verdict"]["kind"] == "limited"
    assert '"limited"' in (tmp_path / "made.json").read_text(encoding="utf-8")
    assert not limited.calls
    other = experiment_factory(
        verdict=lambda numbers: Verdict("holds", text, text if numbers["value"] else numbers["newer"])
    )
    (tmp_path / "made.json").write_text((tmp_path / "made.json").read_text("utf-8").replace('"value": 6', '"value": 0'))
    run(other, tmp_path)
    assert other.calls == [3]


def test_truncated_result_is_measured_again(tmp_path: Path, experiment_factory: Any, run: Any) -> None:
    experiment = experiment_factory()
    run(experiment, tmp_path)
    (tmp_path / "made.json").write_text('{"claim": ', encoding="utf-8")
    run(experiment, tmp_path)
    assert experiment.calls == [3, 3]


@pytest.mark.parametrize("value", [float("nan"), torch.ones(2)])
def test_numbers_must_be_json(value: Any, tmp_path: Path, experiment_factory: Any, run: Any) -> None:
    with pytest.raises(BadInput, match="numbers of made"):
        run(experiment_factory(measure=lambda size, seed, progress, settings: {"value": value}), tmp_path)
    assert not list(tmp_path.iterdir())


def test_failing_experiment_does_not_stop_the_others(tmp_path: Path, experiment_factory: Any) -> None:
    def refuse(size: str, seed: int, progress: Any, settings: Any) -> dict[str, Any]:
        raise Missing("pip install something")

    done, errors = run_experiments(
        [experiment_factory("first", 1, measure=refuse), experiment_factory()], tmp_path, size="toy", seed=0
    )
    assert [result["name"] for result in done] == ["made"]
    assert list(errors) == ["first"]


def test_parallel_run_gives_the_same_numbers(tmp_path: Path) -> None:
    selected = [find_experiment(name) for name in ("heads", "soft-dictionary")]
    parallel, _ = run_experiments(selected, tmp_path / "two", size="toy", seed=0, jobs=2)
    sequential, _ = run_experiments(selected, tmp_path / "one", size="toy", seed=0)
    assert [result["name"] for result in parallel] == ["heads", "soft-dictionary"]
    for first, second in zip(parallel, sequential, strict=True):
        assert {**first["numbers"], "times": None} == {**second["numbers"], "times": None}


def test_timed_experiment_runs_first_and_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, experiment_factory: Any
) -> None:
    class Pool:
        def __init__(self, *how: Any) -> None:
            self.timed = timed.calls.copy()

        def __enter__(self) -> Any:
            assert self.timed == [0], "measured before there is a pool"
            return self

        def __exit__(self, *error: Any) -> None: ...

        def submit(self, work: Any, name: str, **how: Any) -> Future[Any]:
            names.append(name)
            done: Future[Any] = Future()
            done.set_result(Missing("not here"))
            return done

    timed, names = experiment_factory("timed", 50, TIMED=True), []
    monkeypatch.setattr(runner, "ProcessPoolExecutor", Pool)
    chosen = [experiment_factory("first", 1), timed, experiment_factory("last", 99)]
    results, errors = run_experiments(chosen, tmp_path, size="toy", seed=0, jobs=2)
    assert [result["name"] for result in results] == ["timed"]
    assert names == list(errors) == ["first", "last"]


def test_measuring_uses_one_thread_and_full_float32_and_restores_both(
    tmp_path: Path, experiment_factory: Any, run: Any
) -> None:
    seen: list[tuple[int, bool]] = []

    def measure(size: str, seed: int, progress: Any, settings: Any) -> dict[str, Any]:
        seen.append((torch.get_num_threads(), torch.backends.cudnn.allow_tf32))
        return {"value": 1, "times": {1: 0.5}}

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        run(experiment_factory(measure=measure), tmp_path)
        assert seen == [(1, False)] and torch.get_num_threads() == 2 and torch.backends.cudnn.allow_tf32
    finally:
        torch.set_num_threads(before)


def test_saved_figures_are_small(tmp_path: Path, experiment_factory: Any, run: Any) -> None:
    from PIL import Image, ImageChops

    def draw(numbers: dict[str, Any], language: Any) -> Any:
        with subplots(language, 2) as (figure, axes):
            axes[0].imshow(torch.arange(400.0).reshape(20, 20).numpy(), cmap="viridis")
            for n in range(7):
                axes[1].plot([0, 1], [n, n + 1], label=str(n), **line_style(n))
            axes[1].legend()
            return figure

    run(experiment_factory(draw=draw), tmp_path)
    save_figure(draw({}, "en"), tmp_path / "all.png")
    with Image.open(tmp_path / "made.en.png") as small, Image.open(tmp_path / "all.png") as whole:
        assert small.mode == "P" and small.size == whole.size
        off = ImageChops.difference(small.convert("RGB"), whole.convert("RGB"))
    assert max(largest for _, largest in off.getextrema()) <= 16, "the palette is close to the drawn colours"
    assert (tmp_path / "made.en.png").stat().st_size < 0.6 * (tmp_path / "all.png").stat().st_size
