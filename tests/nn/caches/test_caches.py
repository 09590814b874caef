"""Caches of every kind read back what was appended: equal, or within the error that they state."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import regard as rg
from regard.errors import BadInput, Unsupported
from regard.nn.cache import Cache
from regard.nn.caches.buffers import KeyValueBuffers
from regard.nn.caches.config import CacheConfig
from regard.nn.caches.pages import PagedBuffer, PagePool
from regard.nn.caches.quantized import QuantizedBuffer

PIECES = [7, 1, 1, 40, 1, 16, 3]


def draw(tokens: int, seed: int = 0, batch: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    k, v = (torch.randn(batch, 2, tokens, 5, generator=generator) for _ in range(2))
    return k, v


def extend(cache: Cache, k: Tensor, v: Tensor, mask: rg.Mask | None = None) -> tuple[Cache, Tensor, Tensor]:
    """The next cache after a call of one layer."""
    cache = cache.next()
    keys, values = cache.extend("x", k, v, mask)
    cache.length += k.shape[2]
    return cache, keys, values


@pytest.mark.parametrize("kind", ["static", "paged"])
@pytest.mark.parametrize("block", [1, 4, 64])
def test_exact_kinds_read_what_was_appended(kind: str, block: int) -> None:
    config = CacheConfig("static", tokens=100) if kind == "static" else CacheConfig("paged", block=block)
    cache, whole = Cache(config=config), []
    for seed, tokens in enumerate(PIECES):
        k, v = draw(tokens, seed)
        cache, keys, values = extend(cache, k, v)
        whole.append((k, v))
        for actual, expected in ((keys, [k for k, _ in whole]), (values, [v for _, v in whole])):
            assert torch.equal(actual, torch.cat(expected, 2))
    assert cache.plan().key_error == cache.plan().value_error == 0


@pytest.mark.parametrize("kind", ["dynamic", "static", "paged", "int8", "fp8"])
def test_two_continuations_of_one_cache(kind: str) -> None:
    shared = Cache(config=CacheConfig(kind, tokens=20 if kind == "static" else None))
    shared, *_ = extend(shared, *draw(5))
    (a, first, _), (b, other, _) = (extend(shared, *draw(2, seed)) for seed in (1, 2))
    a, again, _ = extend(a, *draw(1, 3))
    assert torch.equal(again[:, :, :7], first) and not torch.equal(first[:, :, 5:], other[:, :, 5:])
    assert torch.equal(first[:, :, :5], other[:, :, :5])
    b, tail, _ = extend(b, *draw(1, 4))
    assert torch.equal(tail[:, :, :7], other)


@pytest.mark.parametrize("kind", ["dynamic", "static", "paged", "int8", "fp8"])
def test_rows_are_selected(kind: str) -> None:
    cache = Cache(padding=torch.tensor([2, 0, 1]), config=CacheConfig(kind, tokens=20 if kind == "static" else None))
    cache, *_ = extend(cache, *draw(9))
    rows = torch.tensor([2, 2, 0, 1])
    before = cache.entries["x"].tensors()[0]
    selected = cache.select(rows)
    assert torch.equal(selected.entries["x"].tensors()[0], before[rows])
    k, v = draw(1, 1, batch=4)
    _, keys, _ = extend(selected, k, v)
    assert torch.equal(keys[:, :, :9], before[rows]) and torch.allclose(keys[:, :, 9:], k, atol=0.2)
    assert torch.equal(cache.entries["x"].tensors()[0], before)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["int8", "fp8"]),
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.lists(st.integers(1, 40), min_size=1, max_size=4),
    st.integers(0, 10**6),
)
def test_codes_err_no_more_than_stated(kind: str, dtype: torch.dtype, pieces: list[int], seed: int) -> None:
    """Every number within its own bound; the output of attention within the bound that follows for it.

    With ε = scale · max Σ |q| · error of k, every score errs by at most ε, every weight by a factor within e^(±2ε), and
    the output by (e^(2ε) − 1) · max |v| + error of v.
    """
    generator = torch.Generator().manual_seed(seed)
    stretch = torch.exp(2 * torch.randn(2, 2, 1, 6, generator=generator))
    cache, whole = Cache(config=kind), []
    for tokens in pieces:
        k, v = (torch.randn(2, 2, tokens, 6, generator=generator) for _ in range(2))
        whole.append(((k * stretch).to(dtype), v.to(dtype)))
        cache, *_ = extend(cache, *whole[-1])
    entry = cache.entries["x"]
    k, v = (torch.cat([pair[n] for pair in whole], 2).double() for n in (0, 1))
    keys, values = (x.double() for x in entry.tensors())
    key_errors, value_errors = (x.errors(entry.start, entry.end).double() for x in (entry.keys, entry.values))
    assert bool(((keys - k).abs() <= key_errors).all()) and bool(((values - v).abs() <= value_errors).all())
    assert cache.plan().key_error == pytest.approx(float(key_errors.max()))
    q = torch.randn(2, 2, 3, 6, generator=generator).double()
    exact, actual = (rg.attend(q, x, y) for x, y in ((k, v), (keys, values)))
    epsilon = 6**-0.5 * (q.abs() @ key_errors.transpose(2, 3)).amax(-1, keepdim=True)
    bound = torch.expm1(2 * epsilon) * v.abs().amax() + value_errors.amax()
    assert bool(((actual - exact).abs() <= bound + 1e-12).all())


def test_channels_of_keys_have_scales() -> None:
    """A large channel leaves the digits of the others alone."""
    k = draw(64)[0]
    k[..., 2] *= 16
    by_token, by_channel = (QuantizedBuffer.allocate(k, "int8", chosen) for chosen in (False, True))
    other = [0, 1, 3, 4]
    errors = [(x.read(0, 64) - k)[..., other].abs().mean() for x in (by_token, by_channel)]
    assert errors[1] < errors[0] / 4


def test_a_code_is_a_byte() -> None:
    k, v = (torch.randn(1, 2, 100, 64) for _ in range(2))
    sizes = {}
    for kind in ("dynamic", "int8", "fp8"):
        cache, *_ = extend(Cache(config=kind), k, v)
        sizes[kind] = cache.plan().bytes
    assert sizes["int8"] == sizes["fp8"] == sizes["dynamic"] * (64 + 4) / (64 * 4)


def test_pages_are_freed_and_used_again() -> None:
    pool = PagePool(torch.zeros(1, 2, 1, 5), block=4)
    x = draw(10)[0]
    first = PagedBuffer.allocate(pool, x, None)
    assert pool.used_pages == 3 * 3
    pages = set(first.pages())
    del first
    assert pool.used_pages == 0
    second = PagedBuffer.allocate(pool, x, None)
    assert set(second.pages()) == pages and torch.equal(second.read(0, 10), x)


def test_rows_take_the_pages_of_their_own_tokens() -> None:
    padding = torch.tensor([0, 9, 4])
    pool = PagePool(torch.zeros(1, 2, 1, 5), block=4)
    x = draw(12)[0]
    buffer = PagedBuffer.allocate(pool, x, padding)
    assert [sum(page > 0 for page in row) for row in buffer.table] == [3, 1, 2]
    for b, empty in enumerate([0, 8, 4]):  # whole pages of padding
        assert (
            torch.equal(buffer.read(0, 12)[b, :, empty:], x[b, :, empty:])
            and not buffer.read(0, 12)[b, :, :empty].any()
        )


def test_a_prefix_is_shared() -> None:
    """Eight sequences after 32 common tokens: the prefix lies there once, each has pages of its own after it."""
    cache = Cache(config=CacheConfig("paged", block=4))
    cache, *_ = extend(cache, *draw(32, batch=1))
    page = 2 * 4 * 5 * 4  # kv_heads · block · head_dim · bytes
    assert cache.plan().bytes == 2 * 8 * page
    many = cache.select(torch.zeros(8, dtype=torch.long))
    assert many.plan().bytes == cache.plan().bytes
    many, keys, _ = extend(many, *draw(1, 1, batch=8))
    assert many.plan().bytes == 2 * (8 + 8) * page and many.plan().in_full == 2 * 8 * 33 * 2 * 5 * 4
    assert len({tuple(row) for row in keys[:, 0, 32].tolist()}) == 8
    many, *_ = extend(many, *draw(3, 2, batch=8))
    assert many.plan().bytes == 2 * (8 + 8) * page
    pool = many.entries["x"].keys.pool
    del many
    assert pool.used_pages == 2 * 8


def test_a_page_is_copied_when_another_has_written_into_it() -> None:
    cache = Cache(config=CacheConfig("paged", block=4))
    cache, *_ = extend(cache, *draw(6, batch=1))
    many = cache.select(torch.zeros(3, dtype=torch.long))
    k, v = draw(1, 1, batch=3)
    many, keys, _ = extend(many, k, v)
    assert torch.equal(keys[:, :, 6:], k)
    assert many.entries["x"].keys.pool.used_pages == 2 * (1 + 3)  # keys and values: a common page, three second ones


@pytest.mark.parametrize("kind", ["dynamic", "paged", "int8"])
def test_a_sliding_cache_holds_the_window(kind: str) -> None:
    mask = rg.Causal() & rg.Window(before=6)
    config = CacheConfig(kind, sliding=True, block=4)
    cache, whole, held = Cache(config=config), Cache(config=CacheConfig(kind)), []
    for seed in range(120):
        k, v = draw(50 if seed == 0 else 1, seed)
        cache, keys, values = extend(cache, k, v, mask)
        whole, all_keys, all_values = extend(whole, k, v, mask)
        kept = 50 if seed == 0 else 7
        assert torch.equal(keys, all_keys[:, :, -kept:]) and torch.equal(values, all_values[:, :, -kept:])
        if seed in (0, 1, 119):
            q, *tensors = (x.double() for x in (draw(k.shape[2], seed + 1000)[0], keys, values, all_keys, all_values))
            actual, expected = (rg.attend(q, *tensors[n : n + 2], mask=mask) for n in (0, 2))
            assert torch.allclose(actual, expected, rtol=0, atol=1e-14)
        held.append(cache.plan().bytes)
    assert cache.plan().tokens == 6 and max(held[1:]) <= held[1] * 2 < whole.plan().bytes


@pytest.mark.parametrize(
    "mask", [rg.Causal(), rg.Window(3) | rg.Global(2), rg.Causal() & rg.Blocks(torch.ones(9, 9) > 0, 1)]
)
def test_masks_that_look_back_keep_all(mask: rg.Mask) -> None:
    assert Cache(config=CacheConfig(sliding=True)).most_cached(mask, 9) is None


def test_a_static_cache_has_one_buffer() -> None:
    cache = Cache(config=CacheConfig("static", tokens=12))
    cache, *_ = extend(cache, *draw(5))
    buffer = cache.entries["x"].keys.buffer
    for seed in range(7):
        cache, *_ = extend(cache, *draw(1, seed))
    assert cache.entries["x"].keys.buffer is buffer
    with pytest.raises(BadInput, match="room for 12 tokens, and these are 13"):
        extend(cache, *draw(1))


@pytest.mark.parametrize("kind", ["static", "paged", "int8", "fp8"])
def test_gradients_are_refused(kind: str) -> None:
    cache = Cache(config=CacheConfig(kind, tokens=20 if kind == "static" else None))
    k, v = draw(3)
    with torch.no_grad():
        cache, *_ = extend(cache, k, v)
    with pytest.raises(Unsupported, match="keeps no gradients"):
        extend(cache, k.requires_grad_(), v)


def test_bad_settings_are_refused() -> None:
    for settings_, message in (
        ({"kind": "int4"}, "kind is 'int4'; it must be one of"),
        ({"kind": "paged", "block": 0}, "block is 0; it must be a whole number"),
        ({"kind": "paged", "tokens": 5}, "A paged cache grows; leave out tokens=5"),
    ):
        with pytest.raises(BadInput, match=message):
            CacheConfig(**settings_)
    with pytest.raises(BadInput, match="A static cache needs its size"):
        Cache(config="static").extend("x", *draw(2))


def test_a_mask_of_the_call_is_refused_by_a_sliding_cache() -> None:
    stack = rg.nn.StackConfig(dim=8, layers=1, heads=2, mask="Causal() & Window(3)").build()
    with pytest.raises(Unsupported, match="A sliding cache drops keys"):
        stack(torch.randn(1, 4, 8), mask=rg.Causal(), cache=Cache(config=CacheConfig(sliding=True)))


def test_entries_are_of_one_type() -> None:
    for kind in ("dynamic", "paged", "int8", "fp8"):
        cache, *_ = extend(Cache(config=kind), *draw(2))
        assert isinstance(cache.entries["x"], KeyValueBuffers) and str(cache.plan()).startswith("cache")
