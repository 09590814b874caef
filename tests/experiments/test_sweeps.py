"""Sweeps: points, figures, files."""

from pathlib import Path
from typing import Any

import pytest

from regard.errors import BadInput
from regard.experiments import find_experiment
from regard.experiments.results import PUBLISHED_FOLDER, REPOSITORY_FOLDER
from regard.experiments.sweeps import (
    SWEEPS,
    Sweep,
    publish_sweeps,
    read_sweep,
    run_sweep,
    save_sweep,
    save_sweep_figures,
)


def test_verdict_turns_where_the_value_crosses_the_threshold(tmp_path: Path, experiment_factory: Any) -> None:
    experiment = experiment_factory()
    sweep = run_sweep(experiment, Sweep("factor", (1, 2, 3), {}, "toy"), seed=3)
    assert [point["kind"] for point in sweep["points"]] == ["fails", "holds", "holds"]
    assert [point["subclaims"][0]["value"] for point in sweep["points"]] == [3, 6, 9]
    save_sweep(sweep, tmp_path)
    save_sweep_figures(experiment, sweep, tmp_path)
    assert read_sweep(tmp_path, "made") == sweep and read_sweep(tmp_path, "other") is None
    assert {path.name for path in (tmp_path / "sweeps").iterdir()} == {"made.json", "made.en.png", "made.zh.png"}
    assert [path.name for path in publish_sweeps(tmp_path, tmp_path / "package")] == ["made.json"]
    assert read_sweep(tmp_path / "package", "made") == sweep


def test_wrong_sweeps_are_refused_before_measuring(experiment_factory: Any) -> None:
    experiment = experiment_factory()
    with pytest.raises(BadInput, match=r"has no parameter 'size'\. It has: factor"):
        run_sweep(experiment, Sweep("size", (1,), {}, "toy"))
    with pytest.raises(BadInput, match="factor is 11"):
        run_sweep(experiment, Sweep("factor", (1, 11), {}, "toy"))
    assert experiment.calls == []


def test_published_sweeps_are_those_of_the_repository() -> None:
    names = {path.stem for path in (PUBLISHED_FOLDER / "sweeps").glob("*.json")}
    assert len(names) >= 4 and names <= set(SWEEPS)
    for name in names:
        sweep, claim = read_sweep(PUBLISHED_FOLDER, name), find_experiment(name).CLAIM
        assert sweep is not None and sweep == read_sweep(REPOSITORY_FOLDER, name)
        assert sweep["parameter"] == SWEEPS[name].parameter and tuple(sweep["values"]) == SWEEPS[name].values
        for point in sweep["points"]:
            assert [part["name"] for part in point["subclaims"]] == [part.name for part in claim.criteria]
