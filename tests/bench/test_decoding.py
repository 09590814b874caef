"""The benchmark of decoding: what it times generates the same tokens, and its page is that of the stored results."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import decoding


def test_rows_are_measured_after_the_tokens_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "PROMPT", 40)
    monkeypatch.setattr(decoding, "NEW", 4)
    rows = {row["name"]: row for row in decoding.measure("tiny", batch=2, rounds=1)}
    assert rows["Regard, int8"]["bytes"] < rows["Regard, static"]["bytes"] and rows["Regard, int8"]["key_error"] > 0
    assert len(rows) == 8 and rows["Regard, paged"]["key_error"] == 0


def test_other_tokens_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    generate = {"transformers, eager": lambda new: torch.zeros(1), "Regard, paged": lambda new: torch.ones(1)}
    with pytest.raises(SystemExit, match="Regard, paged generates other tokens"):
        decoding.check_tokens(generate)


def test_the_pages_have_the_stored_results() -> None:
    """`python benchmarks/decoding.py --write` writes both."""
    stored = json.loads(decoding.RESULTS.read_text("utf8"))
    for language, path in decoding.PAGES.items():
        assert decoding.MARKS[0] + decoding.write_table(stored, language) + decoding.MARKS[1] in path.read_text("utf8")
