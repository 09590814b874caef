"""What a cache keeps, and what it does not let others see."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from regard.models.families.gpt2 import gpt2
from regard.nn.cache import Cache

from ..models.checkpoint_equality import assert_close, random_weights


def draw(tokens: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    k, v = (torch.randn(3, 2, tokens, 5, generator=generator) for _ in range(2))
    return k, v


@pytest.mark.parametrize("memory", [None, 0, 1, 50, 1000])
def test_grows_as_if_concatenated(memory: int | None) -> None:
    cache, keys, values = Cache(memory_length=memory), [], []
    for seed, tokens in enumerate([7, 1, 1, 130, 1, 64, 3]):
        cache = cache.next()
        k, v = draw(tokens, seed)
        actual = cache.extend("x", k, v)
        keys, values = [torch.cat([*keys, k], 2)], [torch.cat([*values, v], 2)]
        assert torch.equal(actual[0], keys[0]) and torch.equal(actual[1], values[0])
        if memory is not None:
            keys, values = ([x[0][:, :, max(x[0].shape[2] - memory, 0) :]] for x in (keys, values))


def test_a_memory_does_not_grow_without_end() -> None:
    cache = Cache(memory_length=20)
    for seed in range(500):
        cache.extend("x", *draw(1, seed))
    assert cache.entries["x"].keys.buffer.shape[2] <= 2 * (20 + 64)


def test_two_continuations_of_one_cache() -> None:
    shared = Cache()
    k, v = draw(4)
    shared.extend("x", k, v)
    shared.extend("x", *draw(1, 1))
    a, b = shared.next(), shared.next()
    first, other = draw(2, 2), draw(2, 3)
    actual = a.extend("x", *first)[0]
    b.extend("x", *other)
    assert torch.equal(actual[:, :, 5:], first[0])
    assert torch.equal(a.entries["x"].tensors()[0][:, :, 5:], first[0])
    assert torch.equal(b.entries["x"].tensors()[0][:, :, 5:], other[0])
    assert shared.entries["x"].tensors()[0].shape[2] == 5


def test_gradients_flow_through_it() -> None:
    cache, (k, v), (k2, v2) = Cache(), draw(3), draw(2, 1)
    k.requires_grad_()
    cache.extend("x", k, v)
    cache.extend("x", k2, v2)[0].sum().backward()
    assert torch.equal(k.grad, torch.ones_like(k))


def test_a_memory_lets_no_gradient_through() -> None:
    cache, (k, v), (k2, v2) = Cache(memory_length=9), draw(3), draw(2, 1)
    k.requires_grad_()
    k2.requires_grad_()
    cache.extend("x", k, v)[0].sum().backward()
    cache.extend("x", k2, v2)[0].sum().backward()
    assert torch.equal(k.grad, torch.ones_like(k)) and torch.equal(k2.grad, torch.ones_like(k2))


@pytest.mark.parametrize("memory", [None, 4])
def test_rows_are_selected(memory: int | None) -> None:
    cache = Cache(9, torch.tensor([2, 0, 1]), memory_length=memory)
    k, v = draw(9)
    cache.extend("x", k, v)
    cache.put("pair", (k, v))
    cache.put("shared", "the same for all")
    rows = torch.tensor([2, 2, 0, 1])
    selected = cache.select(rows)
    expected = k[rows] if memory is None else k[rows][:, :, -memory:]
    assert torch.equal(selected.entries["x"].tensors()[0], expected)
    assert torch.equal(selected.get("pair")[1], v[rows]) and selected.get("shared") == "the same for all"
    assert selected.padding.tolist() == [1, 1, 2, 0] and selected.memory_length == memory
    k2, v2 = (x[rows] for x in draw(1, 1))
    assert torch.equal(selected.extend("x", k2, v2)[0], torch.cat([expected, k2], 2))


def test_real_keys() -> None:
    assert Cache().real_keys(3) is None
    assert Cache(padding=torch.tensor([0, 2])).real_keys(3).tolist() == [[True, True, True], [False, False, True]]


@pytest.mark.parametrize("cuts", [[1, 2], [5], [3, 4, 10], list(range(1, 12))])
def test_a_text_in_pieces(cuts: list[int]) -> None:
    model = random_weights(gpt2(layers=2, dim=12, heads=3, vocabulary=23, positions=40).build())
    tokens = torch.randint(0, 23, (2, 12), generator=torch.Generator().manual_seed(0))
    cache, pieces = None, []
    with torch.no_grad():
        for piece in tokens.tensor_split(cuts, 1):
            out = model(tokens=piece, cache=cache)
            cache = out.cache
            pieces.append(out.logits)
        assert_close(torch.cat(pieces, 1), model(tokens=tokens).logits, "logits", 1e-5)
