"""Saved results: the folder that is read, and the order."""

from pathlib import Path
from typing import Any

import pytest

from regard.experiments import figure_path, find_results_folder, read_results, results


def test_results_are_read_by_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, experiment_factory: Any, run: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(results, "REPOSITORY_FOLDER", tmp_path / "docs")
    assert find_results_folder() is None and read_results(tmp_path / "none") == []
    run(experiment_factory("late", 9), tmp_path / "docs")
    run(experiment_factory("early", 3), tmp_path / "docs")
    assert find_results_folder() == tmp_path / "docs"
    assert [result["name"] for result in read_results(tmp_path / "docs")] == ["early", "late"]
    assert figure_path(tmp_path / "docs", "late", "zh").exists()
    run(experiment_factory(), tmp_path / "experiments")
    assert find_results_folder() == results.DEFAULT_FOLDER
