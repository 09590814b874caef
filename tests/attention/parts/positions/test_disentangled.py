"""Disentangled attention beside DeBERTa-v2's own code, and what it goes together with."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import DebertaV2Config
from transformers.models.deberta_v2.modeling_deberta_v2 import DisentangledSelfAttention, build_relative_position

import regard as rg
from regard.attention.parts.positions.disentangled import distance_entries
from regard.nn.parts.parse import parse_position

HEADS, DIM, TOKENS = 3, 8, 29


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("buckets, max_distance", [(256, 512), (4, 8), (3, 7), (2, 5), (64, 1000), (100, 4096)])
def test_entries_are_those_of_deberta(buckets: int, max_distance: int) -> None:
    tokens = torch.zeros(1, min(2 * max_distance, 1200), 1)
    want = (build_relative_position(tokens, tokens, buckets, max_distance)[0] + buckets).clamp(0, 2 * buckets - 1)
    place = torch.arange(tokens.shape[1])
    assert torch.equal(distance_entries(place[:, None] - place, 2 * buckets, max_distance), want)


def deberta(terms: tuple[str, ...], buckets: int, dim: int) -> DisentangledSelfAttention:
    config = DebertaV2Config(
        hidden_size=dim,
        num_attention_heads=HEADS,
        relative_attention=True,
        position_buckets=buckets,
        max_relative_positions=20,
        pos_att_type=list(terms),
        share_att_key=True,
        attention_probs_dropout_prob=0.0,
        hidden_dropout_prob=0.0,
    )
    return DisentangledSelfAttention(config).double().eval()


@pytest.mark.parametrize("terms", [("c2p", "p2c"), ("c2p",), ("p2c",)], ids="+".join)
@pytest.mark.parametrize("buckets", [8, -1], ids=["log", "each"])
def test_a_layer_is_debertas(terms: tuple[str, ...], buckets: int) -> None:
    """Outputs and all gradients, padding too, of a layer that projects one embedding of the distances."""
    dim, half = HEADS * {1: 8, 2: 12}[len(terms)], 8 if buckets > 0 else 20  # whose root is exact in float32 too
    theirs = deberta(terms, buckets, dim)
    spec = rg.nn.LearnedDisentangled(half, 20 if buckets > 0 else None, dim=dim, norm_eps=1e-7, terms=terms)  # type: ignore[arg-type]
    ours = rg.nn.MultiHeadAttention(dim, HEADS, position=spec).double().eval()
    for name, other in (("q", theirs.query_proj), ("k", theirs.key_proj), ("v", theirs.value_proj)):
        getattr(ours, name).load_state_dict(other.state_dict())
    ours.out.load_state_dict({"weight": torch.eye(dim).double(), "bias": torch.zeros(dim).double()})
    x, lengths = numbers(2, TOKENS, dim), torch.tensor([TOKENS, 17])
    real = torch.arange(TOKENS) < lengths[:, None]
    embedding = torch.nn.functional.layer_norm(ours.position.weight, (dim,), eps=1e-7)
    want, _ = theirs(x, (real[:, None, None] & real[:, None, :, None]), rel_embeddings=embedding)
    actual = ours(x, lengths=lengths)
    torch.testing.assert_close(actual[real], want[real], rtol=1e-11, atol=1e-11)
    flow = torch.randn_like(want) * real[..., None]
    projections = [(ours.q, theirs.query_proj), (ours.k, theirs.key_proj), (ours.v, theirs.value_proj)]
    leaves = [x, ours.position.weight, *(p for own, _ in projections for p in own.parameters())]
    other = [x, ours.position.weight, *(p for _, own in projections for p in own.parameters())]
    for a, b in zip(torch.autograd.grad(actual, leaves, flow), torch.autograd.grad(want, other, flow), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def make_part(max_distance: int | None = 30) -> rg.Disentangled:
    return rg.Disentangled(numbers(HEADS, 12, DIM), numbers(HEADS, 12, DIM), max_distance)


@pytest.mark.parametrize("max_distance", [None, 30])
def test_relative_positions_shift(max_distance: int | None) -> None:
    """The last queries over all keys are the last rows of the whole."""
    q, k, v, part = (
        numbers(1, HEADS, 9, DIM),
        numbers(1, HEADS, 9, DIM),
        numbers(1, HEADS, 9, 4),
        make_part(max_distance),
    )
    whole = rg.attend(q, k, v, position=part, mask=rg.Causal())
    last = rg.attend(q[:, :, 6:], k, v, position=part, mask=rg.Causal())
    torch.testing.assert_close(last, whole[:, :, 6:])
    places = rg.Places(torch.arange(100, 109))
    torch.testing.assert_close(rg.attend(q, k, v, position=part, mask=rg.Causal(), places=places), whole)


def test_long_sequences_run_in_blocks() -> None:
    """More keys than a chunk has rows, shared keys, a cap, and look."""
    q, k, v = numbers(1, 4, 150, DIM), numbers(1, 2, 700, DIM), numbers(1, 2, 700, 3)
    part = rg.Disentangled(numbers(4, 40, DIM), numbers(4, 40, DIM), 300)
    parts = {"score": rg.Dot(cap=3.0), "position": part, "mask": rg.Window(400, 50)}
    leaves = [q, k, v, part.keys, part.queries]
    grads = []
    for backend in ("reference", "blockwise"):
        output = rg.attend(q, k, v, **parts, backend=backend)
        grads.append([output, *torch.autograd.grad(output.sin().sum(), leaves)])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    view = rg.look(q, k, **parts, weights=True)
    torch.testing.assert_close(view.weights @ v.repeat_interleave(2, 1), grads[0][0])


def test_compiled() -> None:
    q, k, v, part = numbers(1, HEADS, 9, DIM), numbers(1, HEADS, 9, DIM), numbers(1, HEADS, 9, 4), make_part()

    def f(keys: Tensor, queries: Tensor) -> Tensor:
        return rg.attend(q, k, v, position=rg.Disentangled(keys, queries, 30), backend="blockwise")

    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    want, actual = f(part.keys, part.queries), compiled(part.keys, part.queries)
    torch.testing.assert_close(actual, want)
    leaves = [q, k, v, part.keys, part.queries]
    for a, b in zip(torch.autograd.grad(actual.sum(), leaves), torch.autograd.grad(want.sum(), leaves), strict=True):
        torch.testing.assert_close(a, b)


def test_stacks_watch_and_edit() -> None:
    spec = "Disentangled(8, max_distance=20, dim=24, norm_eps=1e-7)"
    assert parse_position(spec) == rg.nn.LearnedDisentangled(8, 20, 24, 1e-7)
    stack = rg.nn.Stack(rg.nn.StackConfig(dim=24, layers=2, heads=HEADS, kv_heads=1, position=spec)).eval()
    x = torch.randn(2, 7, 24)
    whole = stack(x)
    with rg.watch(stack, weights=True) as views:
        assert torch.allclose(stack(x), whole, atol=1e-6)
    assert len(views) == 2 and all(view.weights.shape == (2, HEADS, 7, 7) for view in views.values())
    with rg.edit(stack, {name: {1: view.weights[:, 1]} for name, view in views.items()}):
        assert torch.allclose(stack(x), whole, atol=1e-5)
    tables = rg.nn.Stack(rg.nn.StackConfig(dim=24, layers=2, heads=HEADS, position="Disentangled(8, None)"))
    assert tables.position.keys.shape == tables.position.queries.shape == (HEADS, 16, 8)
    tables(x).sum().backward()
    assert float(tables.position.keys.grad.abs().sum()) > 0


def test_a_cache_is_no_cache() -> None:
    config = rg.nn.StackConfig(dim=24, layers=2, heads=HEADS, mask="Causal()", position="Disentangled(8, 20, dim=24)")
    stack, x = rg.nn.Stack(config).eval(), torch.randn(1, 11, 24)
    whole, cache, rows = stack(x), rg.nn.Cache(), []
    for n in range(11):
        rows.append(stack(x[:, n : n + 1], cache=cache))
        cache.length += 1
    assert torch.allclose(torch.cat(rows, 1), whole, atol=1e-5)


def test_along_the_edges_of_a_graph() -> None:
    q, k, v = numbers(2, HEADS, 5, DIM), numbers(2, HEADS, 5, DIM), numbers(2, HEADS, 5, 4)
    graph = rg.Edges(torch.tensor([[0, 1, 4, 2], [1, 2, 3, 3]]))
    for position in (make_part(), rg.Disentangled(keys=numbers(HEADS, 12, DIM))):
        parts = {"position": position, "mask": graph}
        actual, wanted = (rg.attend(q, k, v, **parts, backend=name) for name in ("edges", "reference"))
        torch.testing.assert_close(actual, wanted)
        assert bool((actual[:, :, 0] == 0).all())


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: rg.Disentangled(), "neither keys nor queries"),
        (lambda: rg.Disentangled(torch.zeros(2, 7, 4)), "n must be even"),
        (lambda: rg.Disentangled(torch.zeros(2, 8)), r"\[heads, n, d\]"),
        (lambda: rg.Disentangled(torch.zeros(2, 8, 4), torch.zeros(2, 6, 4)), "the same number of entries"),
        (lambda: rg.Disentangled(torch.zeros(2, 16, 4), max_distance=5), "above n / 4"),
        (lambda: rg.Disentangled(torch.zeros(2, 16, 4), max_distance=-1), "max_distance is -1"),
        (lambda: rg.Disentangled(torch.zeros(2, 2, 4), max_distance=9), "at least 4 entries"),
        (lambda: rg.nn.LearnedDisentangled(8, terms=()), "neither keys nor queries"),
    ],
)
def test_refusals(make, words: str) -> None:
    with pytest.raises(rg.BadInput, match=words):
        make()
