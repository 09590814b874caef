"""The driver of the recipes, and the pages it writes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from regard.train.recipes import find_recipe

HERE = Path(__file__).parents[2]
sys.path.insert(0, str(HERE / "benchmarks"))
tasks, task_pages, readme = (pytest.importorskip(name) for name in ("tasks", "task_pages", "readme"))


def run(recipe: str, seed: int, dev: dict, test: dict | None = None) -> dict:
    provenance = {"device": "CPU", "date": "2026-01-01", "versions": {"torch": "2"}, "steps": 10, "seconds": 5.0}
    return {
        "recipe": recipe,
        "seed": seed,
        "parameters": 2_500_000,
        "settings": {},
        "dev": dev,
        "test": test or {},
        **provenance,
    }


def test_a_job_is_parsed() -> None:
    job = tasks.Job.read("cora:0-2,7:dropout=0.5,choose=accuracy")
    assert job.row.recipe == "cora" and job.seeds == (0, 1, 2, 7)
    assert job.settings == {"dropout": "0.5", "choose": "accuracy"}
    assert tasks.Job.read("ewt").seeds == (0, 1, 2)
    with pytest.raises(SystemExit, match="no row 'nothing'"):
        tasks.Job.read("nothing:0")


def test_every_row_has_its_recipe_and_both_names() -> None:
    for row in tasks.ROWS:
        assert find_recipe(row.recipe).task
        assert row.recipe in task_pages.CHINESE


def test_a_row_has_the_mean_on_test_and_whether_it_meets_the_goal() -> None:
    fsdd = [run("fsdd", n, {"accuracy": 0.5}, {"accuracy": accuracy}) for n, accuracy in enumerate((0.98, 1.0))]
    lm = [run("shakespeare-char", 0, {"loss": 1.46})]
    text = task_pages.table([*fsdd, *lm], tasks.ROWS)
    assert "≥ 98.7, met | **99.00 ± 1.41** | 2 | 2.50M | 10 | 5 s |" in text
    assert "≤ 1.455, not met | **1.4600** | 1 |" in text
    assert len(text.splitlines()) == 4


def test_generated_pages_are_current() -> None:
    """`python benchmarks/readme.py` was run after the last measurement."""
    for path, text in readme.pages().items():
        assert path.read_text("utf8") == text, f"{path.name} is out of date: run python benchmarks/readme.py"
