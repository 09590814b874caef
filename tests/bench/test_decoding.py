"""The benchmark of decoding: what it times generates the same tokens, and its page is that of the stored results."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import decoding


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(decoding.SETUPS, "cpu", replace(decoding.SETUPS["cpu"], prompt=40, new=4))


@pytest.mark.parametrize(
    ("size", "cache", "kinds"), [("tiny", "static", 8), ("tiny, window 128", "dynamic, sliding", 7)]
)
def test_rows_are_measured_after_the_tokens_are_compared(short: None, size: str, cache: str, kinds: int) -> None:
    rows = {row["name"]: row for row in decoding.measure("cpu", size, [2], rounds=1)}
    last = ", sliding" if "window" in size else ""
    held, exact = rows[f"Regard, int8{last}"], rows[f"Regard, paged{last}"]
    assert held["bytes"] < rows[f"Regard, {cache}"]["bytes"] and held["key_error"] > 0
    assert len(rows) == kinds and exact["key_error"] == 0


def test_other_tokens_end_the_run(short: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "same_but_for_ties", lambda theirs, tokens, expected: False)
    with pytest.raises(decoding.WrongTokens, match=r"Regard, paged.* generate other tokens than transformers"):
        list(decoding.measure("cpu", "tiny", [1], rounds=1))


def test_tokens_may_part_only_where_logits_tie(short: None, tmp_path: Path) -> None:
    theirs, _ = decoding.make_models(decoding.SETUPS["cpu"], "tiny", tmp_path, "cpu")
    prompt = torch.arange(3, 9)[None]
    wanted = theirs.generate(input_ids=prompt, max_new_tokens=2, do_sample=False, pad_token_id=0)
    other = wanted.clone()
    other[0, 6] = (wanted[0, 6] + 1) % 4096
    assert decoding.same_but_for_ties(theirs, wanted, wanted)
    assert not decoding.same_but_for_ties(theirs, other, wanted)


def test_the_pages_have_the_stored_results() -> None:
    """`python benchmarks/decoding.py --write` writes both."""
    for device, setup in decoding.SETUPS.items():
        if not (decoding.RESULTS / setup.result).exists():
            continue
        stored = json.loads((decoding.RESULTS / setup.result).read_text("utf8"))
        for language, path in decoding.PAGES.items():
            table = decoding.write_table(stored, language)
            marked = f"<!-- decoding:{device} -->\n{table}<!-- /decoding:{device} -->\n"
            assert marked in path.read_text("utf8")
