"""The page of every kind of label: generated from the results, and complete in both languages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
labels, label_page = (pytest.importorskip(name) for name in ("labels", "label_page"))


def test_every_comparison_has_a_row_and_chinese_names() -> None:
    assert set(labels.COMPARISONS) == set(label_page.ROWS)
    measured = label_page.load("labels")["rows"]
    assert set(measured) <= set(label_page.ROWS)
    others = {side for sides in measured.values() for side in sides if not side.startswith("regard")}
    assert others <= set(label_page.SIDES)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_page_is_up_to_date(language: str) -> None:
    """`python benchmarks/labels.py --write` was run after the last measurement."""
    text = label_page.PAGES[language].read_text("utf8")
    assert text == label_page.page(language), "run python benchmarks/labels.py --write"
    for name in label_page.load("labels")["rows"]:
        assert label_page.ROWS[name][0 if language == "en" else 1] in text
