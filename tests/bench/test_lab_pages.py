"""The table of the lab's pages: complete, and generated from the results."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
lab_pages = pytest.importorskip("lab_pages")


def test_every_page_is_measured_and_has_a_click_and_names() -> None:
    result = json.loads(lab_pages.RESULTS.read_text("utf8"))
    assert list(result["pages"]) == list(lab_pages.PAGES)
    assert set(lab_pages.CLICKS) == set(lab_pages.NAMES) == set(lab_pages.PAGES)
    for one in result["pages"].values():
        assert one["first_picture_fastest_ms"] <= one["first_picture_ms"] and one["files_bytes"] < 120_000
        assert one["changes"] >= 5 and one["change_fastest_ms"] <= one["change_ms"]
    assert {"device", "cores", "date", "load_average", "versions"} <= set(result)


def test_the_documentation_has_the_kept_numbers() -> None:
    for path, text in lab_pages.pages().items():
        assert path.read_text("utf8") == text, "run python benchmarks/lab_pages.py --write"
