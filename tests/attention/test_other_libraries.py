"""Equality with torch's attention and `MultiheadAttention`, PyG's graph layers, and their mask conventions."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch_geometric.nn import GATConv, GATv2Conv, TransformerConv

import regard as rg

BACKENDS = ["reference", "blockwise", "auto"]


def assert_same(actual: Tensor, want: Tensor, leaves: list[Tensor], tolerance: float = 1e-10) -> None:
    """Assert equal outputs and equal gradients of every leaf."""
    torch.testing.assert_close(actual, want, rtol=tolerance, atol=tolerance)
    flow = torch.randn_like(want)
    mine, theirs = (torch.autograd.grad(x, leaves, flow, retain_graph=True) for x in (actual, want))
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def random_leaves(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("backend", [*BACKENDS, "sdpa"])
@pytest.mark.parametrize(("queries", "keys", "value_dim"), [(1, 1, 8), (7, 7, 8), (7, 13, 8), (13, 7, 5), (53, 53, 16)])
def test_sdpa(queries: int, keys: int, value_dim: int, backend: str) -> None:
    q, k, v = random_leaves((2, 3, queries, 8), (2, 3, keys, 8), (2, 3, keys, value_dim))
    assert_same(rg.attend(q, k, v, backend=backend), scaled_dot_product_attention(q, k, v), [q, k, v])


@pytest.mark.parametrize("backend", [*BACKENDS, "sdpa"])
def test_sdpa_with_a_scale(backend: str) -> None:
    q, k, v = random_leaves((2, 3, 7, 8), (2, 3, 9, 8), (2, 3, 9, 8))
    actual = rg.attend(q, k, v, score=rg.Dot(scale=0.123), backend=backend)
    assert_same(actual, scaled_dot_product_attention(q, k, v, scale=0.123), [q, k, v])


@pytest.mark.parametrize("backend", [*BACKENDS, "sdpa"])
@pytest.mark.parametrize("tokens", [1, 2, 53])
def test_sdpa_causal(tokens: int, backend: str) -> None:
    q, k, v = random_leaves(*[(2, 3, tokens, 8)] * 3)
    actual = rg.attend(q, k, v, mask=rg.Causal(), backend=backend)
    assert_same(actual, scaled_dot_product_attention(q, k, v, is_causal=True), [q, k, v])


@pytest.mark.parametrize("backend", [*BACKENDS, "sdpa"])
@pytest.mark.parametrize("kv_heads", [1, 2, 3, 6])
def test_sdpa_with_grouped_heads(kv_heads: int, backend: str) -> None:
    q, k, v = random_leaves((2, 6, 7, 8), (2, kv_heads, 9, 8), (2, kv_heads, 9, 8))
    assert_same(rg.attend(q, k, v, backend=backend), scaled_dot_product_attention(q, k, v, enable_gqa=True), [q, k, v])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "shape", [(7, 9), (1, 9), (3, 7, 9), (2, 1, 7, 9), (2, 3, 7, 9), (2, 3, 1, 9), (2, 1, 1, 9)], ids=str
)
def test_sdpa_with_a_boolean_mask(shape: tuple[int, ...], backend: str) -> None:
    q, k, v = random_leaves((2, 3, 7, 8), (2, 3, 9, 8), (2, 3, 9, 8))
    allowed = torch.rand(shape) < 0.5
    allowed[..., 0] = True
    actual = rg.attend(q, k, v, mask=rg.Pairs(allowed), backend=backend)
    assert_same(actual, scaled_dot_product_attention(q, k, v, attn_mask=allowed), [q, k, v])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("queries", "keys"), [(5, 9), (9, 5), (7, 7)])
def test_sdpa_causal_from_the_start(queries: int, keys: int, backend: str) -> None:
    """torch's is_causal counts from the first key; ours from the last."""
    q, k, v = random_leaves((2, 3, queries, 8), (2, 3, keys, 8), (2, 3, keys, 8))
    actual = rg.attend(q, k, v, mask=rg.causal_from_start(queries, keys), backend=backend)
    assert_same(actual, scaled_dot_product_attention(q, k, v, is_causal=True), [q, k, v])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("lowest", [-math.inf, torch.finfo(torch.float64).min])
def test_sdpa_with_an_added_mask(lowest: float, backend: str) -> None:
    q, k, v = random_leaves((2, 3, 7, 8), (2, 3, 9, 8), (2, 3, 9, 8))
    added = torch.zeros(2, 1, 7, 9, dtype=torch.float64).masked_fill(torch.rand(2, 1, 7, 9) < 0.4, lowest)
    added[..., 3] = 0.0
    want = scaled_dot_product_attention(q, k, v, attn_mask=added)
    assert_same(rg.attend(q, k, v, mask=rg.from_additive(added), backend=backend), want, [q, k, v])
    assert_same(rg.attend(q, k, v, mask=rg.from_hugging_face(added), backend=backend), want, [q, k, v])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool, torch.float32, torch.uint8], ids=str)
def test_hugging_face_padding(dtype: torch.dtype) -> None:
    q, k, v = random_leaves((2, 3, 7, 8), (2, 3, 9, 8), (2, 3, 9, 8))
    real = torch.tensor([[0] * 3 + [1] * 6, [1] * 9])
    want = scaled_dot_product_attention(q, k, v, attn_mask=real.bool()[:, None, None, :])
    assert_same(rg.attend(q, k, v, mask=rg.from_hugging_face(real.to(dtype))), want, [q, k, v])
    four = real.bool()[:, None, None, :].expand(2, 1, 7, 9)
    assert_same(rg.attend(q, k, v, mask=rg.from_hugging_face(four)), want, [q, k, v])


class Module:
    """torch's nn.MultiheadAttention and the same weights around `attend`."""

    def __init__(self, dim: int = 12, heads: int = 3):
        self.heads = heads
        self.theirs = torch.nn.MultiheadAttention(dim, heads, batch_first=True, dtype=torch.float64)
        torch.nn.init.normal_(self.theirs.in_proj_bias)
        torch.nn.init.normal_(self.theirs.out_proj.bias)

    def ours(self, q: Tensor, k: Tensor, v: Tensor, mask: rg.Mask | None, backend: str) -> Tensor:
        w, b = self.theirs.in_proj_weight.chunk(3), self.theirs.in_proj_bias.chunk(3)
        q, k, v = (
            (x @ w.mT + b).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for x, w, b in zip((q, k, v), w, b, strict=True)
        )
        mixed = rg.attend(q, k, v, mask=mask, backend=backend)
        return self.theirs.out_proj(mixed.transpose(1, 2).flatten(2))

    def same(self, mask: rg.Mask | None, backend: str, queries: int = 7, keys: int = 9, **options: Tensor) -> None:
        q, k, v = random_leaves((2, queries, 12), (2, keys, 12), (2, keys, 12))
        want = self.theirs(q, k, v, need_weights=False, **options)[0]
        assert_same(self.ours(q, k, v, mask, backend), want, [q, k, v, *self.theirs.parameters()])


@pytest.mark.parametrize("backend", BACKENDS)
def test_multihead_attention(backend: str) -> None:
    Module().same(None, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("floating", [False, True])
def test_multihead_attention_with_padding(floating: bool, backend: str) -> None:
    padding = torch.tensor([[False] * 6 + [True] * 3, [True] * 2 + [False] * 7])
    if floating:
        padding = torch.zeros(2, 9, dtype=torch.float64).masked_fill(padding, -torch.inf)
    Module().same(rg.from_key_padding(padding), backend, key_padding_mask=padding)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("floating", [False, True])
@pytest.mark.parametrize("each", [False, True])
def test_multihead_attention_with_a_mask(floating: bool, each: bool, backend: str) -> None:
    drop = torch.rand(6, 7, 9) < 0.5 if each else torch.rand(7, 9) < 0.5
    drop[..., 4] = False
    if floating:
        drop = torch.zeros(drop.shape, dtype=torch.float64).masked_fill(drop, -torch.inf)
    Module().same(rg.from_attn_mask(drop, heads=3 if each else None), backend, attn_mask=drop)


@pytest.mark.parametrize("backend", BACKENDS)
def test_multihead_attention_with_both(backend: str) -> None:
    padding = torch.tensor([[False] * 6 + [True] * 3, [False] * 9])
    later = torch.ones(9, 9, dtype=torch.bool).triu(1)
    mask = rg.from_key_padding(padding) & rg.Causal()
    Module().same(mask, backend, queries=9, keys=9, key_padding_mask=padding, attn_mask=later)


def random_graph(nodes: tuple[int, int], edges: int, loops: bool = False) -> Tensor:
    """Distinct directed edges from `nodes[0]` sources to `nodes[1]` targets, in random order."""
    pairs = torch.randperm(nodes[0] * nodes[1])[:edges]
    graph = torch.stack([pairs // nodes[1], pairs % nodes[1]])
    graph = graph if loops or nodes[0] != nodes[1] else graph[:, graph[0] != graph[1]]
    return torch.cat([graph, torch.arange(nodes[0]).repeat(2, 1)], dim=1).unique(dim=1) if loops else graph


GRAPHS = {
    "sparse": ((12, 12), 30, False),
    "with self-loops": ((12, 12), 30, True),
    "dense": ((9, 9), 60, False),
    "bipartite": ((7, 11), 25, False),
    "more sources": ((20, 4), 30, False),
    "one edge": ((5, 5), 1, True),
}
GRAPH_BACKENDS = ["edges", "blockwise", "reference", "auto"]


def per_head(x: Tensor, heads: int) -> Tensor:
    """x `[nodes, heads · d]` as `[1, heads, nodes, d]`."""
    return x.unflatten(-1, (heads, -1)).transpose(0, 1)[None]


def per_node(x: Tensor) -> Tensor:
    """`[1, heads, nodes, d]` as `[nodes, heads · d]`."""
    return x[0].transpose(0, 1).flatten(1)


def sides(nodes: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Features of sources and of targets; the same tensor where they are the same nodes."""
    source = torch.randn(nodes[0], 10, dtype=torch.float64, requires_grad=True)
    return source, source if nodes[0] == nodes[1] else torch.randn(
        nodes[1], 10, dtype=torch.float64, requires_grad=True
    )


@pytest.mark.parametrize("backend", GRAPH_BACKENDS)
@pytest.mark.parametrize("name", GRAPHS)
def test_gat(name: str, backend: str) -> None:
    """GAT is Additive over one number a head: what the target has and what the source has."""
    nodes, count, loops = GRAPHS[name]
    edges = random_graph(nodes, count, loops)
    layer = GATConv((10, 10), 4, heads=3, add_self_loops=False, bias=False).double()
    source, target = sides(nodes)
    want = layer((source, target), edges)
    weights = (layer.lin, layer.lin) if layer.lin is not None else (layer.lin_src, layer.lin_dst)
    sent, received = weights[0](source), weights[1](target)
    q = (per_head(received, 3) * layer.att_dst[0][:, None]).sum(-1, keepdim=True)
    k = (per_head(sent, 3) * layer.att_src[0][:, None]).sum(-1, keepdim=True)
    score = rg.Additive(torch.ones(3, 1, dtype=torch.float64), activation="leaky_relu")
    actual = rg.attend(q, k, per_head(sent, 3), score=score, mask=rg.Edges(edges), backend=backend)
    assert_same(per_node(actual), want, [*{source, target}, *layer.parameters()])


@pytest.mark.parametrize("backend", GRAPH_BACKENDS)
@pytest.mark.parametrize("name", GRAPHS)
def test_gat_v2(name: str, backend: str) -> None:
    """GATv2 is Additive over the whole head."""
    nodes, count, loops = GRAPHS[name]
    edges = random_graph(nodes, count, loops)
    layer = GATv2Conv((10, 10), 4, heads=3, add_self_loops=False, bias=False).double()
    source, target = sides(nodes)
    want = layer((source, target), edges)
    sent, received = per_head(layer.lin_l(source), 3), per_head(layer.lin_r(target), 3)
    score = rg.Additive(layer.att[0], activation="leaky_relu")
    actual = rg.attend(received, sent, sent, score=score, mask=rg.Edges(edges), backend=backend)
    assert_same(per_node(actual), want, [*{source, target}, *layer.parameters()])


@pytest.mark.parametrize("backend", GRAPH_BACKENDS)
@pytest.mark.parametrize("name", GRAPHS)
def test_transformer_conv(name: str, backend: str) -> None:
    nodes, count, loops = GRAPHS[name]
    edges = random_graph(nodes, count, loops)
    layer = TransformerConv((10, 10), 4, heads=3, root_weight=False).double()
    source, target = sides(nodes)
    want = layer((source, target), edges)
    q, k, v = (per_head(x, 3) for x in (layer.lin_query(target), layer.lin_key(source), layer.lin_value(source)))
    actual = rg.attend(q, k, v, mask=rg.Edges(edges), backend=backend)
    used = [weight for part in (layer.lin_query, layer.lin_key, layer.lin_value) for weight in part.parameters()]
    assert_same(per_node(actual), want, [*{source, target}, *used])


@pytest.mark.parametrize("backend", GRAPH_BACKENDS)
def test_an_edge_listed_twice_is_one_edge(backend: str) -> None:
    edges = random_graph((12, 12), 30)
    twice = torch.cat([edges, edges[:, ::2], edges[:, :3]], dim=1)[
        :, torch.randperm(edges.shape[1] + len(edges[0, ::2]) + 3)
    ]
    q, k, v = random_leaves(*[(2, 3, 12, 4)] * 3)
    once = rg.attend(q, k, v, mask=rg.Edges(edges), backend=backend)
    assert_same(rg.attend(q, k, v, mask=rg.Edges(twice), backend=backend), once, [q, k, v])


@pytest.mark.parametrize("backend", GRAPH_BACKENDS)
def test_isolated_nodes_give_zeros(backend: str) -> None:
    edges = torch.tensor([[0, 1, 5], [2, 2, 5]])
    q, k, v = random_leaves(*[(1, 2, 7, 4)] * 3)
    actual = rg.attend(q, k, v, mask=rg.Edges(edges), backend=backend)
    alone = [0, 1, 3, 4, 6]
    assert not actual[:, :, alone].any()
    torch.testing.assert_close(actual[:, :, 5], v[:, :, 5])
    of_q, of_k, of_v = torch.autograd.grad(actual.sum(), [q, k, v])
    assert not of_q[:, :, alone].any() and not of_k[:, :, [2, 3, 4, 6]].any() and not of_v[:, :, [2, 3, 4, 6]].any()


@pytest.mark.parametrize("backend", GRAPH_BACKENDS)
def test_edges_have_a_direction(backend: str) -> None:
    """0 → 1: node 1 attends to node 0 and takes its value."""
    q, k, v = random_leaves(*[(1, 1, 2, 3)] * 3)
    actual = rg.attend(q, k, v, mask=rg.Edges(torch.tensor([[0], [1]])), backend=backend)
    torch.testing.assert_close(actual[0, 0, 1], v[0, 0, 0])
    assert not actual[0, 0, 0].any()


@pytest.mark.parametrize("score", ["Dot", "Additive"])
def test_graphs_in_batches_and_groups(score: str) -> None:
    """One graph for the whole batch, heads that share keys, queries and keys that differ."""
    edges = random_graph((11, 7), 30)
    q, k, v = random_leaves((3, 4, 7, 5), (3, 2, 11, 5), (3, 2, 11, 6))
    part = rg.Dot() if score == "Dot" else rg.Additive(torch.randn(4, 5, dtype=torch.float64))
    pairs = torch.zeros(7, 11, dtype=torch.bool)
    pairs[edges[1], edges[0]] = True
    want = rg.attend(q, k, v, score=part, mask=rg.Pairs(pairs), backend="reference")
    assert_same(rg.attend(q, k, v, score=part, mask=rg.Edges(edges), backend="edges"), want, [q, k, v])
