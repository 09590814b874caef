"""The page of sharded attention: generated from the results, whose values and bytes are right."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
sharding_page = pytest.importorskip("sharding_page")


@pytest.fixture(scope="module")
def result() -> dict:
    return json.loads((BENCHMARKS / "results" / "sharding.json").read_text("utf8"))


@pytest.mark.parametrize("language", ["en", "zh"])
def test_page_is_up_to_date(result: dict, language: str) -> None:
    text = sharding_page.PAGES[language].read_text("utf8")
    assert text == sharding_page.page(result, language), "run python benchmarks/sharding.py --write"
    assert sharding_page.FIGURE.is_file() and text.count("\n## ") == 4 + ("gpu" in result)


def test_results_are_complete_and_right(result: dict) -> None:
    assert sum(row["calls"] for row in result["calls"]) >= 500
    assert all(row["greatest error"] < 1e-9 and row["same bits twice"] for row in result["calls"])
    assert all(row["bytes equal the plan's"] for row in result["calls"])
    assert all(row["bytes equal the plan's"] for run in result["gloo"] for row in run["rows"])
    assert all(row["greatest difference"] < 1e-5 for run in result["torch"] for row in run["rows"])
    sizes = {(row["tokens"], row["mask"].split(",")[0].split(" ")[0]) for row in result["predictions"]}
    assert {
        (n, mask) for n in (1_000_000, 10_000_000) for mask in ("causal", "documents", "Longformer", "BigBird")
    } <= sizes


def test_results_on_a_gpu_are_right(result: dict) -> None:
    found = result["gpu"]
    assert found["calls"] >= 40 and "errors" not in found
    for row in found["rows"]:
        assert row["same bits"] and row["same bits on all ranks"]
        assert row["greatest share of the allowed error"] <= 1 and row["beyond what is allowed"] == 0


@pytest.mark.parametrize("language", ["en", "zh"])
def test_page_tells_of_a_gpu_where_one_was_measured(language: str) -> None:
    facts = {"date": "2026-01-02", "device": "A GPU", "versions": {"torch": "2", "triton": "3"}, "ranks": 2, "calls": 9}
    row = {"dtype": "bfloat16", "calls": 9, "tensors": 51, "same bits": True, "same bits on all ranks": False}
    row |= {"greatest share of the allowed error": 1.4321, "beyond what is allowed": 2, "in one process too": 1}
    found = facts | {"calls by kernels": {"triton": 7, "blockwise": 2}, "rows": [row]}
    text = sharding_page.page({"gpu": found}, language)
    no = sharding_page.WORDS[language]["no"]
    assert f"| bfloat16 | 9 | 51 | 1.4 | 2 | 1 | {no} |" in text and text.count("\n## ") == 1 and "A GPU" in text
    assert "\n## " not in sharding_page.page({}, language)


@pytest.mark.parametrize(("mask", "fewer"), [("causal window of 4096", 50), ("documents of 8000", 12)])
def test_windows_and_documents_receive_many_times_less(result: dict, mask: str, fewer: int) -> None:
    """Over 16 ranks and 262,144 tokens, beside an all-gather, in balance."""
    size = {"tokens": 262_144, "ranks": 16, "mask": mask}
    row = next(row for row in result["predictions"] if size.items() <= row.items())
    methods = {one["method"]: one for one in row["methods"]}
    ours = sharding_page.best(row["methods"])
    assert methods["all-gather"]["received"] > fewer * ours["received"] and ours["balance"] <= 1.1


def test_the_training_run_on_a_long_sequence_equals_one_process() -> None:
    found = json.loads((BENCHMARKS / "results" / "long_training.json").read_text("utf8"))
    assert found["tokens"] == 131_072 and [run["ranks"] for run in found["runs"]] == [1, 2, 4]
    assert all(run["greatest difference of a loss"] < 1e-6 for run in found["runs"])
    assert all(run["greatest difference of a weight"] < 1e-4 for run in found["runs"])
    memory = {run["ranks"]: max(run["allocated by a rank, MB"]) for run in found["runs"]}
    assert memory[2] < 0.52 * memory[1] and memory[4] < 0.27 * memory[1]
    returned = {run["ranks"]: max(run["freed blocks given back"]["resident of a rank, MB"]) for run in found["runs"]}
    assert all(returned[ranks] < 1.05 * memory[ranks] for ranks in memory)


def test_the_graph_over_processes_equals_one_in_a_part_of_its_memory() -> None:
    found = json.loads((BENCHMARKS / "results" / "graph_shards.json").read_text("utf8"))
    assert found["edges"] == 20_000_000 and found["read"]["edges"] == 100_000_000
    for model in ("gat", "gatv2"):
        rows = {row["ranks"]: row for row in found["rows"] if row["model"] == model}
        assert all(max(rows[ranks]["difference"].values()) < 1e-5 for ranks in (2, 4))
        memory = {ranks: max(row["allocated by a rank (MB)"]) for ranks, row in rows.items()}
        assert memory[2] < 0.55 * memory[1] and memory[4] < 0.3 * memory[1]
