"""Scores and positions against pairwise formulas and against other implementations."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
from transformers.models.t5.modeling_t5 import T5Attention

import regard as rg
from regard.attention.parts.mask import PairGrid

from .. import pairwise_reference
from ..random_calls import RandomCalls

BACKENDS = ["reference", "blockwise", "edges"]


def assert_close(actual: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(actual, want, rtol=1e-11, atol=1e-11)


def everything(queries: int, keys: int) -> rg.Mask:
    """Every pair as a graph, so that the edges backend can run it too."""
    return rg.Edges(torch.cartesian_prod(torch.arange(keys), torch.arange(queries)).mT.contiguous())


def random_leaves(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def assert_same_gradients(actual: Tensor, want: Tensor, leaves: list[Tensor]) -> None:
    """Assert equal outputs and equal gradients of every leaf."""
    assert_close(actual, want)
    flow = torch.randn_like(want)
    for a, b in zip(
        torch.autograd.grad(actual, leaves, flow),
        torch.autograd.grad(want, leaves, flow, retain_graph=True),
        strict=True,
    ):
        assert_close(a, b)


@pytest.mark.parametrize("number", range(120))
def test_every_score_and_position_against_the_pairwise_reference(number: int) -> None:
    """Pair by pair from the definitions; the reference itself is under test."""
    draw = RandomCalls(f"by hand {number}")
    case = draw.case(*draw.rng.choice([(1, 1), (4, 4), (3, 6), (6, 3), (1, 7)]), torch.float64, plain=True)
    grid = PairGrid(case.q.shape[2], case.k.shape[2], *case.q.shape[:2])
    mask = case.mask or rg.Everything()
    pairs = mask.permits(*grid.indices(), grid).expand(*case.q.shape[:3], grid.keys)
    want = pairwise_reference.attend(
        pairwise_reference.weights(case.score, case.position, pairs, case.q, case.k), case.v
    )
    for backend in ("reference", "auto"):
        assert_close(rg.attend(case.q, case.k, case.v, **case.parts(), mask=mask, backend=backend), want)


def relative_shift(x: Tensor) -> Tensor:
    """Transformer-XL's trick: pad a column, fold, drop a row; row r moves left by queries − 1 − r."""
    batch, heads, queries, keys = x.shape
    padded = torch.cat([x.new_zeros(batch, heads, queries, 1), x], dim=-1)
    return padded.view(batch, heads, keys + 1, queries)[:, :, 1:].reshape(batch, heads, queries, keys)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("queries", "memory"), [(1, 0), (7, 0), (7, 5), (1, 9), (53, 11)])
def test_transformer_xl_is_the_original_formula(queries: int, memory: int, backend: str) -> None:
    """The original: distances klen − 1 … 0 in a row, the shift, a causal mask that lets memory be seen."""
    keys, heads, dim = queries + memory, 3, 6
    q, k, v, r, u, w = random_leaves(
        (2, heads, queries, dim),
        (2, heads, keys, dim),
        (2, heads, keys, 4),
        (heads, keys, dim),
        (heads, dim),
        (heads, dim),
    )
    content = torch.einsum("bhid,bhjd->bhij", q + u[:, None], k)
    by_distance = torch.einsum("bhid,hjd->bhij", q + w[:, None], r)  # r[:, j] stands for distance keys − 1 − j
    score = (content + relative_shift(by_distance)) / math.sqrt(dim)
    later = torch.ones(queries, keys, dtype=torch.bool).triu(1 + memory)
    want = score.masked_fill(later, -torch.inf).softmax(-1) @ v

    position = rg.TransformerXL(r.flip(1), u, w)
    causal = rg.Edges((~later).mT.nonzero().mT.contiguous()) if backend == "edges" else rg.Causal()
    actual = rg.attend(q, k, v, position=position, mask=causal, backend=backend)
    assert_same_gradients(actual, want, [q, k, v, r, u, w])


@pytest.mark.parametrize("backend", BACKENDS)
def test_transformer_xl_in_both_directions(backend: str) -> None:
    """With `zero` in the middle of the table, distances of either sign have entries of their own."""
    q, k, v, r, u, w = random_leaves((1, 2, 7, 4), (1, 2, 7, 4), (1, 2, 7, 4), (2, 13, 4), (2, 4), (2, 4))
    distance = torch.arange(7)[:, None] - torch.arange(7) + 6
    content = torch.einsum("bhid,bhjd->bhij", q + u[:, None], k)
    score = (content + torch.einsum("bhid,hijd->bhij", q + w[:, None], r[:, distance])) / 2
    actual = rg.attend(q, k, v, position=rg.TransformerXL(r, u, w, zero=6), mask=everything(7, 7), backend=backend)
    assert_same_gradients(actual, score.softmax(-1) @ v, [q, k, v, r, u, w])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("queries", "keys"), [(7, 7), (3, 9), (9, 3), (1, 5)])
@pytest.mark.parametrize("reach", [0, 2, 4])
def test_shaw_with_clipping(queries: int, keys: int, reach: int, backend: str) -> None:
    """Shaw et al.: a vector for each distance from −reach to reach, those beyond clipped to the ends."""
    q, k, v, table = random_leaves((2, 2, queries, 6), (2, 2, keys, 6), (2, 2, keys, 5), (2, 2 * reach + 1, 6))
    rows = []
    for row in range(queries):
        i = row + keys - queries
        beside = torch.stack(
            [k[:, :, j] + table[:, min(max(i - j, -reach), reach) + reach] for j in range(keys)], dim=2
        )
        rows.append((q[:, :, row, None] * beside).sum(-1) / math.sqrt(6))
    want = torch.stack(rows, dim=2).softmax(-1) @ v
    actual = rg.attend(q, k, v, position=rg.Shaw(table, zero=reach), mask=everything(queries, keys), backend=backend)
    assert_same_gradients(actual, want, [q, k, v, table])


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "far"), [(32, 128), (32, 20), (8, 16), (4, 9), (9, 50), (64, 1000)])
def test_t5_buckets(bidirectional: bool, buckets: int, far: int) -> None:
    """j − i from −1500 to 1500 in the buckets of transformers' T5."""
    relative = torch.arange(-1500, 1501)
    part = rg.T5Bias(torch.zeros(1, buckets), bidirectional, far)
    want = T5Attention._relative_position_bucket(relative, bidirectional, buckets, far)
    assert torch.equal(part.bucket(relative), want)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("queries", "keys"), [(7, 7), (5, 60), (60, 5)])
def test_t5_bias(queries: int, keys: int, bidirectional: bool, backend: str) -> None:
    q, k, v, table = random_leaves((1, 2, queries, 4), (1, 2, keys, 4), (1, 2, keys, 3), (2, 32))
    relative = torch.arange(keys) - (torch.arange(queries)[:, None] + keys - queries)
    bias = table[:, T5Attention._relative_position_bucket(relative, bidirectional, 32, 128)]
    want = (q @ k.mT + bias).softmax(-1) @ v
    position = rg.T5Bias(table, bidirectional)
    actual = rg.attend(
        q, k, v, score=rg.Dot(scale=1.0), position=position, mask=everything(queries, keys), backend=backend
    )
    assert_same_gradients(actual, want, [q, k, v, table])


@pytest.mark.parametrize("heads", [1, 4, 8, 12, 25])
def test_alibi_slopes_of_bloom(heads: int) -> None:
    """transformers' Bloom adds slope · j, which a softmax over the past cannot tell from −slope · (i − j)."""
    keys = 9
    alibi = build_alibi_tensor(torch.ones(1, keys), heads, torch.float64).view(1, heads, 1, keys)
    q, k, v = random_leaves((1, heads, keys, 4), (1, heads, keys, 4), (1, heads, keys, 3))
    later = torch.ones(keys, keys, dtype=torch.bool).triu(1)
    want = (q @ k.mT / 2 + alibi).masked_fill(later, -torch.inf).softmax(-1) @ v
    for backend in ("reference", "blockwise"):
        actual = rg.attend(q, k, v, position=rg.Alibi(), mask=rg.Causal(), backend=backend)
        torch.testing.assert_close(actual, want, rtol=1e-6, atol=1e-6)  # Bloom's slopes are made in float32


def test_a_type_has_a_bias_exactly_or_does_not() -> None:
    grid = PairGrid(40, 60, 1, 8)
    q, k = torch.zeros(1, 8, 40, 2), torch.zeros(1, 8, 60, 2)
    i, j = grid.indices()
    bias = torch.as_tensor(rg.Alibi().score_bias(q, k, 1.0, i - j))
    assert rg.Alibi().exact_in(torch.bfloat16, grid) and torch.equal(bias.bfloat16().float(), bias)
    for heads, keys in ((12, 60), (8, 600)):  # slopes that are no powers of two; distances of more digits
        assert not rg.Alibi().exact_in(torch.bfloat16, PairGrid(40, keys, 1, heads))
    assert rg.Alibi().exact_in(torch.float16, PairGrid(40, 600, 1, 8))
    assert not rg.Alibi(torch.rand(8)).exact_in(torch.bfloat16, grid)
    for table in (torch.zeros(8, 9, dtype=torch.bfloat16), torch.zeros(8, 9)):
        assert rg.Bias(table, 4).exact_in(torch.bfloat16, grid) == (table.dtype == torch.bfloat16)
        assert rg.T5Bias(table).exact_in(torch.bfloat16, grid) == (table.dtype == torch.bfloat16)


def test_alibi_slopes_of_the_paper() -> None:
    """Eight heads: ½, ¼, … 1/256; others as the paper interpolates."""
    q, k = torch.zeros(1, 8, 1, 1, dtype=torch.float64), torch.zeros(1, 8, 2, 1, dtype=torch.float64)
    view = rg.look(q, k, position=rg.Alibi(), weights=True)
    assert_close(
        view.weights[0, :, 0, 1] / view.weights[0, :, 0, 0],
        torch.exp2(-torch.arange(1.0, 9.0, dtype=torch.float64)).exp(),
    )


def test_alibi_reaches_both_ways() -> None:
    q, k, v, slopes = random_leaves((1, 2, 5, 4), (1, 2, 8, 4), (1, 2, 8, 3), (2,))
    distance = (torch.arange(5)[:, None] + 3 - torch.arange(8)).abs()
    want = (q @ k.mT / 2 - slopes[:, None, None] * distance).softmax(-1) @ v
    for backend in BACKENDS:
        actual = rg.attend(q, k, v, position=rg.Alibi(slopes), mask=everything(5, 8), backend=backend)
        assert_same_gradients(actual, want, [q, k, v, slopes])


@pytest.mark.parametrize("zero", [0, 3, 6, -4, 20])
@pytest.mark.parametrize("backend", BACKENDS)
def test_bias_table_and_its_ends(zero: int, backend: str) -> None:
    q, k, v, table = random_leaves((2, 2, 5, 4), (2, 2, 8, 4), (2, 2, 8, 3), (2, 7))
    index = (torch.arange(5)[:, None] + 3 - torch.arange(8) + zero).clamp(0, 6)
    want = (q @ k.mT / 2 + table[:, index]).softmax(-1) @ v
    actual = rg.attend(q, k, v, position=rg.Bias(table, zero), mask=everything(5, 8), backend=backend)
    assert_same_gradients(actual, want, [q, k, v, table])


def llama_angles(places: Tensor, dim: int, base: float) -> tuple[Tensor, Tensor]:
    """cos and sin as transformers' Llama makes them, `[1, tokens, dim]`."""
    inverse = 1.0 / base ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angle = torch.cat([places[:, None] * inverse] * 2, dim=-1)[None]
    return angle.cos(), angle.sin()


@pytest.mark.parametrize("backend", ["reference", "blockwise", "sdpa", "edges"])
@pytest.mark.parametrize("base", [10000.0, 500.0])
@pytest.mark.parametrize("dim", [None, 4])
def test_rotary_of_llama(base: float, dim: int | None, backend: str) -> None:
    """transformers' apply_rotary_pos_emb, halves layout; with `dim` the rest of each head is left alone."""
    q, k, v = random_leaves((2, 3, 9, 8), (2, 3, 9, 8), (2, 3, 9, 5))
    n = dim or 8
    cos, sin = llama_angles(torch.arange(9, dtype=torch.float64), n, base)
    turned_q, turned_k = apply_rotary_pos_emb(q[..., :n], k[..., :n], cos, sin)
    turned_q, turned_k = torch.cat([turned_q, q[..., n:]], -1), torch.cat([turned_k, k[..., n:]], -1)
    want = (turned_q @ turned_k.mT / math.sqrt(8)).softmax(-1) @ v
    mask = everything(9, 9) if backend == "edges" else None
    assert_same_gradients(
        rg.attend(q, k, v, position=rg.Rotary(base, dim), mask=mask, backend=backend), want, [q, k, v]
    )


def test_rotary_keeps_its_angles_far_away() -> None:
    """At place 100,000 a float32 call is as good as near the start: angles are not made in float32."""
    tokens = 100_000
    q, k = torch.randn(1, 1, 1, 64), torch.randn(1, 1, tokens, 64)
    want = rg.look(q.double(), k.double(), position=rg.Rotary()).lse
    actual = rg.look(q, k, position=rg.Rotary()).lse
    assert (actual - want).abs().max() < 1e-4


POSITIONS: dict[str, Callable[[], rg.Position]] = {
    "Rotary": lambda: rg.Rotary(),
    "Rotary, in part": lambda: rg.Rotary(dim=2),
    "Alibi": lambda: rg.Alibi(),
    "Bias": lambda: rg.Bias(torch.randn(2, 21, dtype=torch.float64), zero=10),
    "T5Bias": lambda: rg.T5Bias(torch.randn(2, 32, dtype=torch.float64), max_distance=40),
    "Shaw": lambda: rg.Shaw(torch.randn(2, 9, 4, dtype=torch.float64), zero=4),
    "TransformerXL": lambda: rg.TransformerXL(
        *(torch.randn(s, dtype=torch.float64) for s in [(2, 25, 4), (2, 4), (2, 4)]), zero=12
    ),
}


@pytest.mark.parametrize("name", POSITIONS)
@pytest.mark.parametrize("backend", ["reference", "blockwise"])
def test_relative_positions_are_shift_invariant(name: str, backend: str) -> None:
    """Seven more keys in front, which no query attends to, move every position by seven and change nothing."""
    position = POSITIONS[name]()
    q, k, v = (x.detach() for x in random_leaves((2, 2, 9, 4), (2, 2, 9, 4), (2, 2, 9, 3)))
    alone = rg.attend(q, k, v, position=position, backend=backend)
    front = lambda x: torch.cat([torch.randn(2, 2, 7, x.shape[-1], dtype=x.dtype), x], dim=2)  # noqa: E731
    last = rg.Pairs((torch.arange(16) >= 7)[None, :])
    assert_close(rg.attend(q, front(k), front(v), position=position, mask=last, backend=backend), alone)


@pytest.mark.parametrize("name", POSITIONS)
def test_positions_print_and_compare(name: str) -> None:
    torch.manual_seed(3)
    one = POSITIONS[name]()
    torch.manual_seed(3)
    two = POSITIONS[name]()
    assert one == two and hash(one) == hash(two) and one.formula
    assert repr(one).startswith(type(one).__name__ + "(")
    assert name == "Rotary" or one != rg.Rotary()


def test_parts_without_tensors_print_as_the_line_that_makes_them() -> None:
    for part in (
        rg.Dot(),
        rg.Dot(scale=0.5),
        rg.Cosine(),
        rg.Cosine(scale=2.0),
        rg.Rotary(),
        rg.Rotary(500.0, 8),
        rg.Alibi(),
        rg.Exact(),
    ):
        assert eval(repr(part), vars(rg)) == part and part.formula


def test_parts_with_tensors_print_and_compare() -> None:
    weight = torch.randn(2, 4)
    for make in (rg.Additive, lambda w: rg.Bilinear(w[None]), lambda w: rg.Cosine(w[0])):
        assert make(weight) == make(weight.clone()) and hash(make(weight)) == hash(make(weight.clone()))
        assert make(weight) != make(weight + 1) and make(weight).formula
    assert rg.Additive(weight) != rg.Additive(weight, activation="leaky_relu")
    assert "[2, 4]" in repr(rg.Additive(weight)) and "leaky_relu" in repr(rg.Additive(weight, "leaky_relu"))


def test_cosine_of_a_zero_vector_is_zero() -> None:
    """Cosine of a zero query or key is 0, its gradient finite."""
    q, k, v = random_leaves((1, 1, 3, 4), (1, 1, 5, 4), (1, 1, 5, 2))
    with torch.no_grad():
        q[0, 0, 1], k[0, 0, 2] = 0, 0
    for backend in ("reference", "blockwise", "sdpa"):
        actual = rg.attend(q, k, v, score=rg.Cosine(3.0), backend=backend)
        assert_close(actual[0, 0, 1], v[0, 0].mean(0))
        assert all(bool(g.isfinite().all()) for g in torch.autograd.grad(actual.sum(), [q, k, v]))
