"""Every kind of cache generates the tokens of the dynamic one, in every family that generates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import regard as rg
from regard.errors import BadInput
from regard.models.families.bart import bart
from regard.models.families.gemma import gemma2
from regard.models.families.gpt2 import gpt2
from regard.models.families.gpt_oss import gpt_oss
from regard.models.families.llama import llama
from regard.models.families.t5 import t5
from regard.nn.cache import Cache
from regard.nn.caches.config import CacheConfig

from ..checkpoint_equality import random_weights

GROUPED: dict[str, Any] = {"dim": 24, "heads": 4, "kv_heads": 2, "hidden": 29, "vocabulary": 41, "layers": 2}
FAMILIES: dict[str, Any] = {
    "gpt2": gpt2(layers=2, dim=24, heads=3, vocabulary=41, positions=64),
    "llama": llama(**GROUPED),
    "gemma2": gemma2(**GROUPED, head_dim=8, window=5, layer_types=("sliding_attention", "full_attention")),
    "gpt_oss": gpt_oss(**{**GROUPED, "layers": 3}, head_dim=8, window=4, experts=3, active=2),
    "t5": t5(layers=2, dim=24, heads=3, head_dim=7, hidden=29, vocabulary=41),
    "bart": bart(layers=2, dim=24, heads=3, hidden=29, vocabulary=41, positions=64),
}
DECODERS = ("gpt2", "llama", "gemma2", "gpt_oss")
EXACT = ("static", "paged", "sliding", CacheConfig("paged", sliding=True, block=2), CacheConfig("static", sliding=True))


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {name: random_weights(config.build()) for name, config in FAMILIES.items()}


def make_inputs() -> dict[str, Any]:
    """Rows of different length."""
    tokens = torch.randint(3, 41, (3, 11), generator=torch.Generator().manual_seed(5))
    return {"tokens": tokens, "lengths": torch.tensor([11, 2, 7]), "max_new": 12, "end": ()}


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", FAMILIES)
def test_tokens_are_those_of_the_dynamic_cache(models: dict[str, Any], name: str, beams: int) -> None:
    inputs = {**make_inputs(), "beams": beams}
    expected = models[name].generate(**inputs)
    assert torch.equal(models[name].generate(**inputs, cache="dynamic"), expected)
    for cache in EXACT:
        assert torch.equal(models[name].generate(**inputs, cache=cache), expected), cache


BY_PLACE = {
    "chunks": rg.Causal() & rg.Chunked(5),
    "chunks and a window": rg.Causal() & rg.Chunked(5) & rg.Window(3),
    "first tokens": rg.Causal() & (rg.Window(2) | rg.Global(2)),
    "a prefix": rg.Causal() & (rg.Window(2) | rg.Prefix(3)),
    "blocks": rg.Causal() & rg.NearBlocks(3, 0),
}
"""Masks that depend on where i and j are, not on i − j alone."""


@pytest.mark.parametrize("name", BY_PLACE)
def test_masks_by_place_count_from_the_first_token(name: str) -> None:
    """Rows of different length have the tokens that each has alone, however their keys are kept."""
    plain = llama(**GROUPED)
    config = replace(plain, stack=replace(plain.stack, parts=replace(plain.stack.parts, mask=BY_PLACE[name])))
    model, inputs = random_weights(config.build()), make_inputs()
    rows = [
        model.generate(tokens=inputs["tokens"][n : n + 1, :length], max_new=12, end=(), cache=False)[0, length:]
        for n, length in enumerate(inputs["lengths"].tolist())
    ]
    for cache in ("dynamic", *EXACT):
        made = model.generate(**inputs, cache=cache)
        for n, (length, alone) in enumerate(zip(inputs["lengths"].tolist(), rows, strict=True)):
            assert torch.equal(made[n, length : length + 12], alone), (cache, n)


def test_a_sliding_cache_holds_a_chunk() -> None:
    """A whole one at most, and as many more where rows have padding before them."""
    mask = rg.Causal() & rg.Chunked(5)
    cache = Cache(config=CacheConfig(sliding=True))
    assert [cache.most_cached(mask, tokens) for tokens in (4, 5, 6, 14, 15)] == [4, 0, 1, 4, 0]
    padded = Cache(config=CacheConfig(sliding=True), padding=torch.tensor([0, 3]))
    assert [padded.most_cached(mask, tokens) for tokens in (4, 5, 6)] == [8, 4, 5]
    both = rg.Causal() & rg.Window(2) & rg.Chunked(5)
    assert [cache.most_cached(both, tokens) for tokens in (9, 10, 13)] == [4, 0, 3]


@pytest.mark.parametrize("kind", ["int8", "fp8"])
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_of_quantized_caches(models: dict[str, Any], name: str, kind: str) -> None:
    """The logits of each step are near those of the dynamic cache, in the mean: experts are chosen by thresholds."""
    model, inputs = models[name], make_inputs()
    whole = model.generate(**{**inputs, "lengths": None})
    steps = whole[:, -11:] if name in DECODERS else whole[:, 1:]
    first = {"tokens": inputs["tokens"], **({} if name in DECODERS else {"targets": whole[:, :1]})}
    logits = []
    with torch.no_grad():
        for config in (CacheConfig(), CacheConfig(kind)):
            output, steps_logits = model(**first, cache=Cache(config=config)), []
            for column in steps.split(1, dim=1):
                output = model(**{"tokens" if name in DECODERS else "targets": column}, cache=output.cache)
                steps_logits.append(output.logits)
            logits.append(torch.cat(steps_logits, 1))
    error = float((logits[1] - logits[0]).abs().mean() / logits[0].abs().mean())
    assert 0 < error < {"int8": 0.02, "fp8": 0.1}[kind]


@pytest.mark.parametrize("cache", ["dynamic", "paged", "int8"])
def test_a_prefix_is_continued(models: dict[str, Any], cache: str) -> None:
    model = models["llama"]
    tokens = torch.randint(3, 41, (4, 9), generator=torch.Generator().manual_seed(6))
    tokens[:, :6] = tokens[:1, :6]
    with torch.no_grad():
        prefix = model(tokens=tokens[:1, :6], cache=Cache(config=cache)).cache
    expected = model.generate(tokens=tokens, max_new=8)[:, 6:]
    for _ in range(2):  # the prefix stays as it was
        actual = model.generate(tokens=tokens[:, 6:], max_new=8, cache=prefix)
        assert actual.shape == expected.shape
        if cache != "int8":
            assert torch.equal(actual, expected)
    assert prefix.length == 6 and prefix.plan().tokens == 6


def test_the_memory_of_a_shared_prefix(models: dict[str, Any]) -> None:
    """Pages: a prefix once for all rows; other caches: once for each."""
    model, rows = models["llama"], torch.zeros(8, dtype=torch.long)
    prompt = torch.randint(3, 41, (1, 48), generator=torch.Generator().manual_seed(7))
    sizes = {}
    for kind in ("dynamic", "paged"):
        with torch.no_grad():
            prefix = model(tokens=prompt, cache=Cache(config=kind)).cache
            sizes[kind] = model(tokens=prompt[0, :8, None], cache=prefix.select(rows)).cache.plan()
    page = 2 * 16 * 6 * 4  # kv_heads · block · head_dim · bytes
    assert (
        sizes["paged"].bytes == 2 * 2 * (3 + 8) * page
    )  # keys and values of two layers: three pages, one for each row
    assert sizes["dynamic"].bytes >= sizes["paged"].in_full == 2 * 2 * 8 * 49 * 2 * 6 * 4


def test_windows_bound_the_memory(models: dict[str, Any]) -> None:
    tokens = torch.randint(3, 41, (2, 50), generator=torch.Generator().manual_seed(8))
    with torch.no_grad():
        cache = models["gpt_oss"](tokens=tokens, cache=Cache(config=CacheConfig(sliding=True))).cache
    held = [entry.end - entry.start for name, entry in cache.entries.items() if name.endswith("self")]
    assert held == [3, 50, 3]


def test_bad_caches_are_refused(models: dict[str, Any]) -> None:
    model, tokens = models["llama"], torch.ones(3, 4, dtype=torch.long)
    with pytest.raises(BadInput, match="cache is 'int4'; it must be True, False, 'dynamic'"):
        model.generate(tokens=tokens, cache="int4")
    with pytest.raises(BadInput, match="cache is float; it must be"):
        model.generate(tokens=tokens, cache=0.5)
    with pytest.raises(BadInput, match="room for 5 tokens, and these are 6"):
        model.generate(tokens=tokens, max_new=8, cache=CacheConfig("static", tokens=5))
    with torch.no_grad():
        prefix = model(tokens=tokens[:2]).cache
    with pytest.raises(BadInput, match="The cache has 2 rows, and tokens has 3"):
        model.generate(tokens=tokens, cache=prefix)
    with pytest.raises(BadInput, match="lengths belong to the first call"):
        model.generate(tokens=tokens[:2], lengths=torch.tensor([4, 2]), cache=prefix)
    assert rg.nn.CacheConfig is CacheConfig
