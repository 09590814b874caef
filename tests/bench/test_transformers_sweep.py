"""The sweep over transformers' families, run small, and its page."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import tiny_models
import transformers_sweep as sweep
from transformers_page import PAGES, write_page

ALL = {"dynamic": "equal", "dynamic sliding": "equal", "static": "equal", "static sliding": "equal"}
PLAIN = {"dynamic": "equal", "static": "equal"}
EQUAL = {
    "gemma2": ALL,
    "gpt_oss": ALL,
    "qwen2_moe": PLAIN,
    "bigbird_pegasus": PLAIN,
    "doge": ALL,
    "deepseek_v32": PLAIN,
    "deepseek_v4": {"dynamic": "equal", "dynamic sliding": "equal"},
    "minimax_m3_vl_text": PLAIN,
    "t5": PLAIN,
    "vit": {},
    "siglip_vision_model": {},
    "wav2vec2": {},
    "whisper": PLAIN,
}


@pytest.mark.parametrize("family", EQUAL)
def test_a_family_is_equal(family: str) -> None:
    row = sweep.try_family(tiny_models.list_families()[family])
    assert row.status == "equal" and row.weights in ("equal", ""), row
    assert row.caches == EQUAL[family]


@pytest.mark.parametrize(("family", "status"), [("bloom", "own"), ("resnet", "none")])
def test_a_family_without_our_attention_is_named(family: str, status: str) -> None:
    assert sweep.try_family(tiny_models.list_families()[family]).status == status


def test_a_family_whose_attention_does_not_show_is_unclear(monkeypatch: pytest.MonkeyPatch) -> None:
    bert = tiny_models.list_families()["bert"]
    monkeypatch.setattr(sweep.integration, "attend", lambda q, k, v, **parts: v * 0)  # noise on zeros is none
    assert sweep.try_family(bert).status == "unclear"


def test_a_family_that_cannot_be_built_says_why() -> None:
    row = sweep.try_family(tiny_models.list_families()["dinat"])
    assert row.status == "untried" and row.reason


def test_the_pages_are_those_of_the_stored_results() -> None:
    """`python benchmarks/transformers_sweep.py --write` writes both."""
    stored = json.loads(sweep.RESULTS.read_text("utf8"))
    rows = list(sweep.load_rows().values())
    assert not [row.family for row in rows if row.status == "differs"]
    assert {row.kind for row in rows} == {"text", "vision", "speech"}
    for language, path in PAGES.items():
        assert path.read_text("utf8") == write_page(list(map(asdict, rows)), language, stored["transformers"])
