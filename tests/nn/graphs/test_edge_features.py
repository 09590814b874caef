"""Edges with numbers and types in graph attention, against torch_geometric's layers with their weights."""

import pytest
import torch
from torch import nn
from torch_geometric.nn import GATConv, GATv2Conv, TransformerConv

import regard as rg
from regard.errors import BadInput
from regard.nn.graphs.attention import FeaturedEdges, GraphAttention

NODES, DIM_IN, HEADS, HEAD_DIM, TYPES = 13, 5, 3, 4, 3
GAT_NAMES = {
    "lin.weight": "value.weight",
    "att_src": "source",
    "att_dst": "target",
    "att_edge": "edge",
    "att": "weight",
    "lin_l.weight": "key.weight",
    "lin_l.bias": "key.bias",
    "lin_r.weight": "query.weight",
    "lin_r.bias": "query.bias",
    "lin_edge.weight": "edge_key.weight",
    "bias": "bias",
}
DOT_NAMES = {
    **{f"lin_{name}.{field}": f"{name}.{field}" for name in ("key", "query", "value") for field in ("weight", "bias")},
    "lin_edge.weight": "edge_key.weight",
    "lin_skip.weight": "residual.weight",
    "lin_skip.bias": "bias",
}


def some_edges(generator, twice=False):
    """Edges to all nodes but the last two, in random order; three of them twice where requested."""
    edges = torch.randint(0, NODES, (2, 40), generator=generator)
    edges[1] %= NODES - 2
    edges = edges.unique(dim=1)
    edges = edges[:, torch.randperm(edges.shape[1], generator=generator)]
    return torch.cat([edges, edges[:, :3]], dim=1) if twice else edges


def copy_weights(theirs, mine, names):
    for parameter in theirs.parameters():
        nn.init.normal_(parameter)
    state = {names[name]: value for name, value in theirs.state_dict().items()}
    shapes = mine.state_dict()
    mine.load_state_dict({name: value.reshape(shapes[name].shape) for name, value in state.items()})


def assert_same(theirs, mine, names, edges, edge_dim):
    """Outputs and the gradients of nodes, features and every weight."""
    results = []
    for layer in (theirs, mine):
        generator = torch.Generator().manual_seed(1)
        nodes = torch.randn(NODES, DIM_IN, generator=generator, dtype=torch.float64).requires_grad_()
        features = torch.randn(edges.shape[1], edge_dim, generator=generator, dtype=torch.float64).requires_grad_()
        y = layer(nodes, edges, features)
        y.backward(torch.sin(torch.arange(y.numel(), dtype=torch.float64)).reshape(y.shape))
        weights = {name: x.grad for name, x in layer.named_parameters()}
        if layer is theirs:
            weights = {names[name]: x for name, x in weights.items()}
        results.append({"y": y, "nodes": nodes.grad, "features": features.grad, **weights})
    wanted, actual = results
    assert actual.keys() == wanted.keys()
    for name, x in wanted.items():
        torch.testing.assert_close(actual[name], x.reshape(actual[name].shape), rtol=1e-9, atol=1e-11, msg=name)


@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice"])
@pytest.mark.parametrize("merge", ["concat", "mean"])
def test_dot_products_as_in_transformer_conv(merge, twice, generator):
    concat = merge == "concat"
    theirs = TransformerConv(DIM_IN, HEAD_DIM, HEADS, concat=concat, edge_dim=2).double()
    dim = HEADS * HEAD_DIM if concat else HEAD_DIM
    mine = GraphAttention(
        DIM_IN, dim, HEADS, version="dot", merge=merge, residual=True, self_loops=False, edge_dim=2
    ).double()
    copy_weights(theirs, mine, DOT_NAMES)
    assert_same(theirs, mine, DOT_NAMES, some_edges(generator, twice), 2)


@pytest.mark.parametrize("self_loops", [True, False])
@pytest.mark.parametrize("version", [1, 2])
def test_vectors_of_edges_as_in_gat(version, self_loops, generator):
    """Every edge once: keys are nodes, and edges have features of their own."""
    theirs = (GATConv, GATv2Conv)[version - 1](
        DIM_IN, HEAD_DIM, HEADS, add_self_loops=self_loops, edge_dim=2, fill_value="mean"
    ).double()
    mine = GraphAttention(DIM_IN, HEADS * HEAD_DIM, HEADS, version=version, self_loops=self_loops, edge_dim=2).double()
    copy_weights(theirs, mine, GAT_NAMES)
    assert_same(theirs, mine, GAT_NAMES, some_edges(generator), 2)


@pytest.mark.parametrize("version", [1, 2, "dot"])
def test_a_type_is_a_feature_that_is_one(version, generator):
    """A table by type equals a linear map of one-hot features, in outputs and gradients."""
    edges = some_edges(generator)
    types = torch.randint(TYPES, (edges.shape[1],), generator=generator)
    options = {"version": version, "self_loops": False}
    by_type = GraphAttention(DIM_IN, HEADS * HEAD_DIM, HEADS, edge_types=TYPES, **options).double()
    by_features = GraphAttention(DIM_IN, HEADS * HEAD_DIM, HEADS, edge_dim=TYPES, **options).double()
    state = dict(by_type.state_dict())
    state["edge_key.weight"] = state.pop("type_key.weight").mT
    by_features.load_state_dict(state)
    nodes = torch.randn(NODES, DIM_IN, generator=generator, dtype=torch.float64)
    y, wanted = by_type(nodes, edges, types=types), by_features(nodes, edges, nn.functional.one_hot(types).double())
    torch.testing.assert_close(y, wanted)
    y.square().sum().backward()
    wanted.square().sum().backward()
    torch.testing.assert_close(by_type.type_key.weight.grad, by_features.edge_key.weight.grad.mT)


def test_types_and_numbers_together(generator):
    """Self-loops have a type of their own; an edge of another type gives another output."""
    layer = GraphAttention(DIM_IN, 6, 2, version=2, edge_dim=2, edge_types=TYPES)
    assert layer.type_key.weight.shape == (TYPES + 1, 6)
    edges = some_edges(generator)
    nodes = torch.randn(NODES, DIM_IN, generator=generator)
    features, types = torch.randn(edges.shape[1], 2, generator=generator), torch.zeros(edges.shape[1], dtype=torch.long)
    graph = layer.prepare(edges, NODES, features, types)
    assert isinstance(graph, FeaturedEdges) and graph.sources is None
    loops = graph.mask.edge_index[0] == graph.mask.edge_index[1]
    assert graph.types.tolist() == [TYPES if loop else 0 for loop in loops]
    y = layer(nodes, graph)
    assert torch.equal(y, layer(nodes, edges, features, types))
    other = layer(nodes, edges, features, types + 1)
    assert not torch.allclose(y[:-2], other[:-2]) and torch.allclose(y[-2:], other[-2:])


def test_an_edge_listed_twice_counts_twice(generator):
    layer = GraphAttention(DIM_IN, 6, 2, version="dot", edge_dim=2, self_loops=False)
    nodes, features = torch.randn(3, DIM_IN, generator=generator), torch.zeros(3, 2)
    twice = layer.prepare(torch.tensor([[0, 1, 1], [2, 2, 2]]), 3, features)
    assert twice.sources is not None
    with rg.watch(layer, weights=True) as views:
        layer(nodes, twice)
    _, second, third = views["attend"].weights[0, 0, 2].tolist()
    assert second == pytest.approx(third)


def test_watch_shows_nodes_as_keys_and_edit_keeps_values_of_edges(generator):
    layer = GraphAttention(DIM_IN, 8, 2, version="dot", edge_dim=2)
    edges = some_edges(generator)
    nodes = torch.randn(NODES, DIM_IN, generator=generator)
    features = torch.randn(edges.shape[1], 2, generator=generator)
    with rg.watch(layer, weights=True, top=3) as views:
        y = layer(nodes, edges, features)
    weights = views["attend"].weights
    assert weights.shape == (1, 2, NODES, NODES)
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 2, NODES))
    with rg.edit(layer, {"attend": {0: weights[:, 0], 1: lambda own: own}}):
        torch.testing.assert_close(layer(nodes, edges, features), y)
    with rg.edit(layer, {"attend": {0: "uniform", 1: "uniform"}}):
        uniform = layer(nodes, edges, features)
    with torch.no_grad():
        layer.query.weight.zero_(), layer.query.bias.zero_()
    torch.testing.assert_close(layer(nodes, edges, features), uniform)


def test_wrong_types_are_refused():
    layer, edges, nodes = GraphAttention(5, 8, 2, edge_types=2), torch.tensor([[0, 1], [1, 2]]), torch.zeros(3, 5)
    with pytest.raises(BadInput, match="reads 2 types"):
        layer(nodes, edges)
    with pytest.raises(BadInput, match=r"are 0 to 2; they must be 0 … 1"):
        layer(nodes, edges, types=torch.tensor([0, 2]))
    with pytest.raises(BadInput, match=r"int64 \[3\]; they must be whole numbers"):
        layer(nodes, edges, types=torch.tensor([0, 1, 1]))
    with pytest.raises(BadInput, match="are 3 numbers each; the layer reads 4"):
        GraphAttention(5, 8, 2, edge_dim=4)(nodes, edges, torch.zeros(2, 3))
    with pytest.raises(BadInput, match="reads no types"):
        GraphAttention(5, 8, 2)(nodes, edges, types=torch.tensor([0, 0]))
