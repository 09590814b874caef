"""A run survives being written, and its table lands between the markers."""

from pathlib import Path

import pytest

from regard import RegardError
from regard.bench.cpu import COMPARISONS
from regard.bench.result import CHINESE, Result, Row, insert, markdown, table

ROWS = (
    Row("causal", "H8 N2048 D64", "time", 0.1, "SDPA", 0.2, goal=0.95),
    Row("additive (tanh)", "H1 N2048 D64", "memory", 2e8, "eager", 1e9, goal=20),
    Row("look: top 8, map 256 × 256", "H2 N32768 D64", "time", 3.0),
)
RESULT = Result("a CPU", "2026-01-02T03:04:05+00:00", 2, False, {"torch": "2.13.0"}, ROWS, ("Left out: nothing.",))


def test_goals() -> None:
    assert [row.met for row in ROWS] == [True, False, None]


def test_written_is_read(tmp_path: Path) -> None:
    RESULT.write(tmp_path / "cpu.json")
    assert Result.read(tmp_path / "cpu.json") == RESULT


def test_table_says_what_was_met_and_left_out() -> None:
    text = table(RESULT)
    assert "≥ 0.95×, met" in text
    assert "≥ 20×, not met" in text
    assert text.endswith("Left out: nothing.")


@pytest.mark.parametrize(("language", "verdict"), [("en", "not met"), ("zh", "未达到")])
def test_page_gets_the_table_in_its_language(language: str, verdict: str) -> None:
    page = "before\n<!-- bench:cpu -->\nold\n<!-- /bench:cpu -->\nafter\n"
    new = insert(page, markdown(RESULT, language))
    assert new.startswith("before\n<!-- bench:cpu -->\na CPU")
    assert new.endswith("|\n<!-- /bench:cpu -->\nafter\n")
    assert verdict in new and "old" not in new
    assert insert(new, markdown(RESULT, language)) == new


def test_page_without_markers_is_refused() -> None:
    with pytest.raises(RegardError, match="no markers"):
        insert("page", "table")


def test_every_work_has_a_chinese_name() -> None:
    assert {comparison.work for comparison in COMPARISONS} <= set(CHINESE)
