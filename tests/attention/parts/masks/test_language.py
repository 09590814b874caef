"""Chunks, prefixes and trees of drafts: their laws, beside transformers' masks, in layers and at explicit places."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers.masking_utils import chunked_causal_mask_function

import regard as rg
from regard.attention.parts.mask import ALL, NONE, PairGrid, Tiling
from regard.attention.parts.tiles import tile_states

HEADS, DIM = 2, 8


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("padding", [(0, 0), (0, 3)])
def test_chunks_are_those_of_transformers(padding: tuple[int, int]) -> None:
    """Rows that are padded on the left count from their first token."""
    left, tokens = torch.tensor(padding), 13
    theirs = chunked_causal_mask_function(4, left)
    index = [torch.arange(n).view(shape) for n, shape in ((2, (2, 1, 1)), (tokens, (1, -1, 1)), (tokens, (1, 1, -1)))]
    want = theirs(index[0], 0, index[1], index[2])
    places = rg.Places(torch.arange(tokens) - left[:, None])
    mask = places.place(rg.Causal() & rg.Chunked(4))
    grid = PairGrid(tokens, tokens, batch=2)
    assert torch.equal(mask.permits(*grid.indices(), grid)[:, 0], want)


@pytest.mark.parametrize("text", ["Causal() & Chunked(4)", "Causal() & Chunked(4) & Window(2)"])
def test_decoding_with_chunks_is_no_cache(text: str) -> None:
    config = rg.nn.StackConfig(dim=16, layers=2, heads=2, mask=text, position=rg.Rotary())
    stack, x, cache, rows = rg.nn.Stack(config).eval(), torch.randn(2, 11, 16), rg.nn.Cache(), []
    assert config.causal
    for n in range(11):
        rows.append(stack(x[:, n : n + 1], cache=cache))
        cache.length += 1
    assert torch.allclose(torch.cat(rows, 1), stack(x), atol=1e-5)


def test_a_prefix_is_read_both_ways_and_the_rest_forward() -> None:
    q, k, v, lengths = (
        numbers(2, HEADS, 9, DIM),
        numbers(2, HEADS, 9, DIM),
        numbers(2, HEADS, 9, 3),
        torch.tensor([4, 0]),
    )
    mask = rg.Causal() | rg.Prefix(lengths)
    actual = rg.attend(q, k, v, mask=mask)
    first = rg.attend(q[:1, :, :4], k[:1, :, :4], v[:1, :, :4])
    torch.testing.assert_close(actual[:1, :, :4], first)
    torch.testing.assert_close(actual[1:], rg.attend(q[1:], k[1:], v[1:], mask=rg.Causal()))
    (grad,) = torch.autograd.grad(actual[0, :, :6].sum(), k)
    assert bool((grad[0, :, 6:] == 0).all()), "the future leaks"
    allowed = mask.dense(9, 9)
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
    torch.testing.assert_close(actual, want)


PARENTS = [(-1, 0, 0, 1, 1, 2, -1, 6), (-1, 0, 1, 1, 3, 4, 5, 2)]


def path(parents: tuple[int, ...], node: int) -> list[int]:
    return [*path(parents, parents[node]), node] if node >= 0 else []


@pytest.mark.parametrize("backend", ["reference", "blockwise", "auto"])
@pytest.mark.parametrize("batched", [False, True])
def test_a_node_is_as_the_last_token_of_its_draft(batched: bool, backend: str) -> None:
    """The tree in one call, with places by depth, beside the way from the text to each node in a call of its own."""
    text, nodes, batch = 5, len(PARENTS[0]), 2
    q, k, v = numbers(batch, HEADS, nodes, DIM), numbers(batch, HEADS, text + nodes, DIM), numbers(batch, HEADS, 13, 3)
    trees = PARENTS if batched else PARENTS[:1] * 2
    depth = torch.tensor([[len(path(parents, node)) for node in range(nodes)] for parents in trees])
    places = rg.Places(torch.cat([torch.arange(text).expand(batch, -1), text - 1 + depth], 1))
    mask = rg.Tree(torch.tensor(trees) if batched else trees[0])
    parts = {"position": rg.Rotary(), "places": places, "backend": backend}
    tree = rg.attend(q, k, v, mask=mask, **parts)
    torch.testing.assert_close(rg.attend(q, k, v, mask=mask & rg.Causal(), **parts), tree)
    for b, parents in enumerate(trees):
        for node in range(nodes):
            keys = [*range(text), *(text + n for n in path(parents, node))]
            alone = rg.attend(
                q[b : b + 1, :, node : node + 1], k[b : b + 1, :, keys], v[b : b + 1, :, keys], position=rg.Rotary()
            )
            torch.testing.assert_close(tree[b : b + 1, :, node : node + 1], alone)


def test_a_prompt_and_its_tree_in_one_call() -> None:
    """Rows before the tree do not see it."""
    x = numbers(1, HEADS, 11, DIM)
    whole = rg.attend(x, x, x, mask=rg.Causal() & rg.Tree((-1, 0, 0)))
    torch.testing.assert_close(whole[:, :, :8], rg.attend(x[:, :, :8], x[:, :, :8], x[:, :, :8], mask=rg.Causal()))


def test_a_changed_tree_is_another_tree() -> None:
    parents = torch.tensor([-1, 0, 1])
    mask, x = rg.Tree(parents), numbers(1, 1, 3, 4)
    before = rg.attend(x, x, x, mask=mask)
    parents[2] = -1
    assert not torch.equal(rg.attend(x, x, x, mask=mask), before)
    assert mask.dense(3, 3)[2].tolist() == [False, False, True]


def test_tiles_of_long_sequences() -> None:
    """A tree at the end of 100,000 tokens and chunks of 8,192: states without a look at the pairs."""
    tiling = Tiling(PairGrid(64, 100_000), 64, 128)
    states = tile_states(rg.Tree((-1,) * 64), tiling)[0, 0, 0]
    assert bool((states[: (100_000 - 64) // 128] == ALL).all()) and int(states[-1]) not in (ALL, NONE)
    tiling = Tiling(PairGrid(65_536, 65_536), 128, 128)
    states = tile_states(rg.Chunked(8192), tiling)[0, 0]
    assert int((states == ALL).sum()) == 8 * 64**2 and int((states == NONE).sum()) == 512**2 - 8 * 64**2


@pytest.mark.parametrize(
    "mask", [rg.Causal() & rg.Chunked(3), rg.Causal() | rg.Prefix(4), rg.Tree((-1, 0, 0, 1))], ids=repr
)
def test_look_watch_plan_and_pictures(mask: rg.Mask) -> None:
    x = numbers(1, HEADS, 9, DIM)
    view = rg.look(x, x, mask=mask, weights=True)
    torch.testing.assert_close(view.weights @ x, rg.attend(x, x, x, mask=mask))
    assert bool((view.weights[..., ~mask.dense(9, 9)] == 0).all())
    assert rg.plan(x, x, x, mask=mask).backend and mask.plot(9, 9).axes and mask.formula
    stack = rg.nn.Stack(rg.nn.StackConfig(dim=16, layers=1, heads=2, mask=repr(mask)))
    with rg.watch(stack, weights=True) as views:
        stack(torch.randn(1, 9, 16))
    (seen,) = views.values()
    assert bool((seen.weights[..., ~mask.dense(9, 9)] == 0).all())


@pytest.mark.parametrize("name", ["tree", "prefix"])
def test_compiled(name: str) -> None:
    x = torch.randn(2, HEADS, 9, DIM)
    make, numbers = {
        "tree": (lambda t: rg.Causal() & rg.Tree(t), torch.tensor([[-1, 0, 1], [-1, -1, 0]])),
        "prefix": (lambda t: rg.Causal() | rg.Prefix(t), torch.tensor([3, 0])),
    }[name]
    compiled = torch.compile(lambda x, t: rg.attend(x, x, x, mask=make(t), backend="blockwise"), backend="aot_eager")
    torch.testing.assert_close(compiled(x, numbers), rg.attend(x, x, x, mask=make(numbers)))


def test_causal_is_known() -> None:
    assert rg.Chunked(1).causal and not rg.Chunked(2).causal and (rg.Causal() & rg.Chunked(2)).causal
    assert rg.Prefix(0).causal and not (rg.Causal() | rg.Prefix(1)).causal and (rg.Causal() | rg.Prefix(0)).causal
    assert not rg.Tree((-1,)).causal and (rg.Causal() & rg.Tree((-1,))).causal


X = torch.zeros(2, 1, 4, 4)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: rg.Chunked(0), "Chunked's size is 0"),
        (lambda: rg.Chunked(2.5), "Chunked's size is 2.5"),  # type: ignore[arg-type]
        (lambda: rg.Prefix(-1), "Prefix's lengths is -1"),
        (lambda: rg.Prefix(torch.ones(2)), "Prefix's lengths are torch.float32"),
        (lambda: rg.Prefix(torch.ones(2, 2, dtype=torch.int64)), r"Prefix's lengths has shape \[2, 2\]"),
        (lambda: rg.attend(X, X, X, mask=rg.Prefix(torch.tensor([1, 2, 3]))), "the batch is 2"),
        (lambda: rg.Tree((0,)), "0 for node 0"),
        (lambda: rg.Tree((-1, 0, 2)), "2 for node 2; a parent is an earlier node"),
        (lambda: rg.Tree((-2,)), "-2 for node 0"),
        (lambda: rg.Tree(torch.ones(2)), "Tree's parents are torch.float32"),
        (lambda: rg.attend(X, X, X, mask=rg.Tree((-1,) * 5)), "5 nodes, which are the last keys; there are 4"),
        (lambda: rg.attend(X, X, X, mask=rg.Tree(torch.tensor([[-1]] * 3))), "the batch is 2"),
        (lambda: rg.attend(X, X, X, mask=rg.Tree(torch.tensor([-1, 5]))), "5 for node 1"),
    ],
)
def test_refusals(call, words: str) -> None:
    with pytest.raises(rg.BadInput, match=words):
        call()
