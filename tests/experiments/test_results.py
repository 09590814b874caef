"""Saved results: the folder that is read, and the order."""

from pathlib import Path
from typing import Any

import pytest

from regard.experiments import (
    Bilingual,
    Subclaim,
    Verdict,
    figure_path,
    find_results_folder,
    list_experiments,
    published_result,
    published_verdict,
    read_results,
    results,
)
from regard.experiments.results import load_verdict, publish_results


def test_results_are_read_by_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, experiment_factory: Any, run: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(results, "REPOSITORY_FOLDER", tmp_path / "docs")
    monkeypatch.setattr(results, "PUBLISHED_FOLDER", tmp_path / "none")
    assert find_results_folder() is None and read_results(tmp_path / "none") == []
    run(experiment_factory("late", 9), tmp_path / "docs")
    run(experiment_factory("early", 3), tmp_path / "docs")
    assert find_results_folder() == tmp_path / "docs"
    assert [result["name"] for result in read_results(tmp_path / "docs")] == ["early", "late"]
    assert figure_path(tmp_path / "docs", "late", "zh").exists()
    run(experiment_factory(), tmp_path / "experiments")
    assert find_results_folder() == results.DEFAULT_FOLDER


def test_package_ships_the_verdicts_of_the_repository() -> None:
    for result in read_results(results.REPOSITORY_FOLDER):
        assert published_verdict(result["name"]) == load_verdict(result["verdict"]), result["name"]
    assert published_verdict("nothing-like-it") is None and published_result("nothing-like-it") is None
    assert all(published_verdict(experiment.CLAIM.name) for experiment in list_experiments())


def test_published_results_are_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, experiment_factory: Any, run: Any, text: Bilingual
) -> None:
    verdict = Verdict("holds", text, text, (Subclaim("first", text, True, text, value=2.0, bound=1.0, core=True),))
    run(experiment_factory(verdict=lambda numbers: verdict), tmp_path / "kept")
    run(experiment_factory(verdict=lambda numbers: verdict), tmp_path / "kept/full", size="full")
    assert len(publish_results(tmp_path / "kept", tmp_path / "package")) == 2
    monkeypatch.setattr(results, "PUBLISHED_FOLDER", tmp_path / "package")
    assert published_verdict("made") == verdict
    assert results.read_full_size_results(tmp_path / "package")["made"]["numbers"] == {}
