"""Long texts: pooled maps equal the pooled weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import regard as rg
from regard.lab.api import long
from regard.lab.lab import Lab
from regard.lab.server.jobs import Job
from regard.lab.server.wire import pack

LINE = "The owl sat in the oak.\n猫坐在垫子上。\n"
POEM = f"{LINE}The more he saw the less he spoke.\n{LINE}"


def long_ask(model: str, **more: Any) -> dict[str, Any]:
    return {"model": model, "input": {"text": POEM}, **more}


@pytest.mark.parametrize("model", ["recall", "llama"])
def test_a_long_map_is_the_pooled_weights(lab: Lab, model: str) -> None:
    told = long.run(lab, long_ask(model), Job())
    count = told["tokens"]
    assert told["offsets"].shape == (count, 2) and int(told["offsets"][-1, 1]) <= len(POEM)
    whole = long.map(lab, long_ask(model, shape=[16, 16], head=1), Job())
    assert whole["visited"] == whole["of"] == count and whole["map"].shape == (16, 16)
    torch.testing.assert_close(whole["map"].sum(-1), torch.ones(16, dtype=whole["map"].dtype))
    part = long.map(lab, long_ask(model, shape=[8, 8], head=1, rows=[40, 48], keys=[10, 18]), Job())
    every = long.capture(lab, long_ask(model), Job()).attention(0).weights(1)
    torch.testing.assert_close(part["map"], every[40:48, 10:18])
    row = long.row(lab, long_ask(model, head=1, query=50, top=5), Job())
    best = every[50].topk(5)
    torch.testing.assert_close(row["weights"], best.values[best.values > 0])


def test_a_hundred_thousand_characters_are_looked_at(lab: Lab) -> None:
    text = (long.sample(lab, {"characters": 60_000}, Job())["text"] * 2)[:100_000]
    body = {"model": "recall", "input": {"text": text}}
    assert long.run(lab, body, Job())["tokens"] == 100_000
    region = {"rows": [99_000, 99_256], "keys": [39_000, 39_256], "shape": [256, 256]}
    tile = long.map(lab, body | region, Job())
    assert tile["map"].shape == (256, 256) and len(pack(tile)) < 1_000_000
    with pytest.raises(rg.BadInput, match="200,001 characters"):
        long.run(lab, {"model": "recall", "input": {"text": "a" * 200_001}}, Job())


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"rows": [5, 5]}, "rows"),
        ({"keys": [0, 10**9]}, "keys"),
        ({"shape": [0, 4]}, "shape"),
        ({"shape": [4, 4096]}, "512"),
    ],
)
def test_regions_that_are_not_there(lab: Lab, more: dict[str, Any], words: str) -> None:
    with pytest.raises(rg.BadInput, match=words):
        long.map(lab, long_ask("recall", **more), Job())
