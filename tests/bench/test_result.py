"""Results round-trip through JSON, and their table replaces the text between the markers."""

from pathlib import Path

import pytest

from regard import RegardError
from regard.bench.cpu import COMPARISONS
from regard.bench.result import CHINESE, BenchmarkResult, BenchmarkRow, format_markdown, format_table, replace_section

ROWS = (
    BenchmarkRow("causal", "H8 N2048 D64", "time", 0.1, "SDPA", 0.2, goal=0.95),
    BenchmarkRow("additive (tanh)", "H1 N2048 D64", "memory", 2e8, "eager", 1e9, goal=20),
    BenchmarkRow("look: top 8, map 256 × 256", "H2 N32768 D64", "time", 3.0),
)
RESULT = BenchmarkResult(
    "a CPU", "2026-01-02T03:04:05+00:00", 2, False, {"torch": "2.13.0"}, ROWS, ("Left out: nothing.",)
)


def test_goals() -> None:
    assert [row.met for row in ROWS] == [True, False, None]


def test_result_round_trips(tmp_path: Path) -> None:
    RESULT.write(tmp_path / "cpu.json")
    assert BenchmarkResult.read(tmp_path / "cpu.json") == RESULT


def test_table_has_goals_and_notes() -> None:
    text = format_table(RESULT)
    assert "≥ 0.95×, met" in text
    assert "≥ 20×, not met" in text
    assert text.endswith("Left out: nothing.")


@pytest.mark.parametrize(("language", "verdict"), [("en", "not met"), ("zh", "未达到")])
def test_page_gets_the_table_in_its_language(language: str, verdict: str) -> None:
    page = "before\n<!-- bench:cpu -->\nold\n<!-- /bench:cpu -->\nafter\n"
    new = replace_section(page, format_markdown(RESULT, language))
    assert new.startswith("before\n<!-- bench:cpu -->\na CPU")
    assert new.endswith("|\n<!-- /bench:cpu -->\nafter\n")
    assert verdict in new and "old" not in new
    assert replace_section(new, format_markdown(RESULT, language)) == new


def test_page_without_markers_is_refused() -> None:
    with pytest.raises(RegardError, match="no markers"):
        replace_section("page", "table")


def test_every_workload_has_a_chinese_name() -> None:
    assert {comparison.workload for comparison in COMPARISONS} <= set(CHINESE)
