"""Experiments compute as they do for a user, and a small experiment for tests of the framework."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from regard.experiments import Bilingual, Claim, Criterion, Verdict, judge, run_experiment
from regard.experiments.parameters import NO_SETTINGS, Settings, count, resolve_settings
from regard.experiments.toolkit.figures import subplots

TEXT = Bilingual("five < six & “seven”", "五 < 六")


@pytest.fixture(autouse=True)
def disable_interpreted_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU no kernel is interpreted, which would take minutes."""
    if not torch.cuda.is_available():
        for method in ("linformer", "nystrom", "performer"):
            monkeypatch.setattr(f"regard.attention.backends.approximate.{method}.fits_kernels", lambda call: False)


def make_experiment(name: str = "made", number: int = 99, **changes: Any) -> Any:
    calls: list[int] = []
    parameters = (count("factor", TEXT, 1, 10, 2),)

    def measure(size: Any, seed: int, progress: Any, settings: Settings = NO_SETTINGS) -> dict[str, Any]:
        calls.append(seed)
        progress(0.5, "half")
        factor = resolve_settings(parameters, size, settings)["factor"]
        return {"value": factor * seed, "times": {1: 0.5}}

    def draw(numbers: dict[str, Any], language: Any) -> Any:
        with subplots(language, 1) as (figure, axes):
            axes[0].set_title("图" if language == "zh" else "figure")
            return figure

    def verdict(numbers: dict[str, Any]) -> Verdict:
        assert "1" in numbers["times"], "the verdict is computed from the numbers as they are saved"
        return judge(claim, {"large": (numbers["value"], Bilingual.same(str(numbers["value"])))}, TEXT, TEXT)

    claim = Claim(number, name, TEXT, TEXT, TEXT, (Criterion("large", TEXT, ">=", 6),))
    attributes = {
        "CLAIM": claim,
        "PARAMETERS": parameters,
        "measure": measure,
        "verdict": verdict,
        "draw": draw,
        "calls": calls,
    }
    return SimpleNamespace(**(attributes | changes))


@pytest.fixture
def experiment_factory() -> Callable[..., Any]:
    """Makes an experiment whose `calls` are the seeds that it was measured with."""
    return make_experiment


@pytest.fixture
def run() -> Callable[..., dict[str, Any]]:
    """Runs an experiment at toy size."""

    def run_toy(experiment: Any, out: Path, seed: int = 3, **options: Any) -> dict[str, Any]:
        return run_experiment(experiment, out, **{"size": "toy", "seed": seed} | options)

    return run_toy


@pytest.fixture
def text() -> Bilingual:
    """The text of every field of a made experiment."""
    return TEXT
