"""The pages of benchmarks have the stored results of everyday and random calls."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import everyday


@pytest.mark.parametrize("language", everyday.PAGES)
def test_the_pages_have_the_stored_results(language: str) -> None:
    """`python benchmarks/everyday.py --write` writes both."""
    page = everyday.PAGES[language].read_text(encoding="utf-8")
    for (first, last), table in everyday.make_tables(language).items():
        assert first + table + last in page
