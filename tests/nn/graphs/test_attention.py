"""Graph attention against torch_geometric's layers, with their weights."""

import pytest
import torch
from torch_geometric.nn import GATConv, GATv2Conv

import regard as rg
from regard.errors import BadInput
from regard.nn.graphs.attention import GraphAttention, with_self_loops

NODES, DIM_IN, HEADS, HEAD_DIM = 13, 5, 3, 4
RENAMED = {
    "lin.weight": "value.weight",
    "att_src": "source",
    "att_dst": "target",
    "att": "weight",
    "lin_l.weight": "key.weight",
    "lin_l.bias": "key.bias",
    "lin_r.weight": "query.weight",
    "lin_r.bias": "query.bias",
    "res.weight": "residual.weight",
    "bias": "bias",
}


def some_edges(generator):
    """Distinct edges, some of them loops, that lead to all nodes but the last two."""
    edges = torch.randint(0, NODES, (2, 50), generator=generator)
    edges[1] %= NODES - 2
    return torch.cat([edges, torch.tensor([[1, 4], [1, 4]])], dim=1).unique(dim=1)


def pair(version, merge, bias, residual, self_loops):
    """Their layer and ours, with the same weights."""
    theirs = (GATConv, GATv2Conv)[version - 1](
        DIM_IN,
        HEAD_DIM,
        HEADS,
        concat=merge == "concat",
        bias=bias,
        residual=residual,
        add_self_loops=self_loops,
    ).double()
    dim = HEADS * HEAD_DIM if merge == "concat" else HEAD_DIM
    mine = GraphAttention(
        DIM_IN, dim, HEADS, version=version, merge=merge, bias=bias, residual=residual, self_loops=self_loops
    ).double()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter)
    state = {RENAMED[name]: value for name, value in theirs.state_dict().items()}
    mine.load_state_dict({name: value.reshape(mine.state_dict()[name].shape) for name, value in state.items()})
    return theirs, mine


@pytest.mark.parametrize("self_loops", [True, False])
@pytest.mark.parametrize(("merge", "bias", "residual"), [("concat", True, False), ("mean", False, True)])
@pytest.mark.parametrize("version", [1, 2])
def test_equal_to_torch_geometric(version, merge, bias, residual, self_loops, generator):
    theirs, mine = pair(version, merge, bias, residual, self_loops)
    nodes = torch.randn(NODES, DIM_IN, generator=generator, dtype=torch.float64)
    edges = some_edges(generator)
    a, b = nodes.clone().requires_grad_(), nodes.clone().requires_grad_()
    y, wanted = mine(a, edges), theirs(b, edges)
    assert torch.allclose(y, wanted, atol=1e-12)
    grad = torch.randn(y.shape, generator=generator, dtype=torch.float64)
    y.backward(grad)
    wanted.backward(grad)
    assert torch.allclose(a.grad, b.grad, atol=1e-12)
    mine_grads = {name: parameter.grad for name, parameter in mine.named_parameters()}
    for name, parameter in theirs.named_parameters():
        actual = mine_grads.pop(RENAMED[name])
        assert torch.allclose(actual, parameter.grad.reshape(actual.shape), atol=1e-12), name
    assert not mine_grads


@pytest.mark.parametrize("version", [1, 2])
def test_a_node_that_nothing_leads_to_takes_in_zeros(version, generator):
    layer = GraphAttention(DIM_IN, 6, 2, version=version, bias=False, self_loops=False)
    nodes = torch.randn(NODES, DIM_IN, generator=generator)
    y = layer(nodes, some_edges(generator))
    assert y[-2:].abs().sum() == 0 and (y[:-2].abs().sum(-1) > 0).all()


@pytest.mark.parametrize("version", [1, 2])
def test_prepared_edges_give_the_same(version, generator):
    layer = GraphAttention(DIM_IN, 6, 2, version=version)
    nodes, edges = torch.randn(NODES, DIM_IN, generator=generator), some_edges(generator)
    prepared = layer.prepare(edges, NODES)
    assert torch.equal(layer(nodes, prepared), layer(nodes, edges))
    assert torch.equal(layer(nodes, rg.Edges(with_self_loops(edges, NODES))), layer(nodes, edges))
    assert not torch.allclose(layer(nodes, rg.Edges(edges)), layer(nodes, edges))


def test_nodes_permute_freely(generator):
    layer = GraphAttention(DIM_IN, 6, 2, version=2)
    nodes, edges = torch.randn(NODES, DIM_IN, generator=generator), some_edges(generator)
    order = torch.randperm(NODES, generator=generator)
    assert torch.allclose(layer(nodes[order], order.argsort()[edges]), layer(nodes, edges)[order], atol=1e-6)


def test_dropout_acts_in_training_only_and_keeps_the_mean(generator):
    layer = GraphAttention(DIM_IN, 6, 2, attention_dropout=0.5)
    nodes, edges = torch.randn(NODES, DIM_IN, generator=generator), some_edges(generator)
    plain = layer.eval()(nodes, edges)
    assert torch.equal(plain, layer(nodes, edges))
    layer.train()
    drawn = torch.stack([layer(nodes, edges) for _ in range(400)])
    assert not torch.equal(drawn[0], drawn[1])
    assert (drawn.mean(0) - plain).abs().max() < 6 * drawn.std(0).max() / 20
    dropped = GraphAttention(DIM_IN, 6, 2, dropout=1.0, bias=False)
    assert dropped(nodes, edges).abs().sum() == 0


def test_wrong_calls_are_refused():
    with pytest.raises(BadInput, match="version is 3"):
        GraphAttention(4, 4, version=3)
    with pytest.raises(BadInput, match="merge is 'sum'"):
        GraphAttention(4, 4, merge="sum")
    with pytest.raises(BadInput, match="3 heads"):
        GraphAttention(4, 4, 3)
    layer, edges = GraphAttention(4, 4), torch.tensor([[0], [1]])
    with pytest.raises(BadInput, match=r"\[2, 5\]"):
        layer(torch.zeros(2, 5), edges)
    with pytest.raises(BadInput, match=r"\[2, edges\]"):
        layer(torch.zeros(2, 4), edges.T.contiguous())
    with pytest.raises(BadInput, match="targets from 0 to 7"):
        layer(torch.zeros(2, 4), torch.tensor([[0], [7]]))


@pytest.mark.parametrize("self_loops", [True, False])
@pytest.mark.parametrize("merge", ["concat", "mean"])
@pytest.mark.parametrize("version", [1, 2])
def test_numbers_of_edges_as_in_torch_geometric(version, merge, self_loops, generator):
    """With loops, edges listed twice and nodes without edges; all gradients, those of the numbers included."""
    theirs = (GATConv, GATv2Conv)[version - 1](
        DIM_IN, HEAD_DIM, HEADS, concat=merge == "concat", add_self_loops=self_loops, edge_dim=2, fill_value="mean"
    ).double()
    dim = HEADS * HEAD_DIM if merge == "concat" else HEAD_DIM
    mine = GraphAttention(DIM_IN, dim, HEADS, version=version, merge=merge, self_loops=self_loops, edge_dim=2).double()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter)
    renamed = RENAMED | {"lin_edge.weight": "edge_key.weight", "att_edge": "edge"}
    state = {renamed[name]: value for name, value in theirs.state_dict().items()}
    mine.load_state_dict({name: value.reshape(mine.state_dict()[name].shape) for name, value in state.items()})
    edges = some_edges(generator)
    edges = torch.cat([edges, edges[:, :3]], dim=1)
    results = []
    for layer in (theirs, mine):
        nodes = torch.randn(NODES, DIM_IN, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        numbers = torch.randn(edges.shape[1], 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        nodes.requires_grad_(), numbers.requires_grad_()
        y = layer(nodes, edges, numbers)
        y.square().sum().backward()
        weights = layer.lin_edge.weight if layer is theirs else layer.edge_key.weight
        results.append((y, nodes.grad, numbers.grad, weights.grad))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


def test_numbers_of_edges_have_the_right_shape():
    layer, edges = GraphAttention(5, 8, 2, edge_dim=3), torch.tensor([[0, 1], [1, 2]])
    with pytest.raises(BadInput, match=r"must be \[edges, n\]"):
        layer(torch.randn(3, 5), edges, torch.randn(3, 3))
    with pytest.raises(BadInput, match="reads 3 numbers of each edge"):
        layer(torch.randn(3, 5), edges)
    with pytest.raises(BadInput, match="reads no numbers"):
        GraphAttention(5, 8, 2)(torch.randn(3, 5), edges, torch.randn(2, 3))


def test_numbers_of_edges_decide_who_is_looked_at():
    """Two sources with the same features: the one whose edge has the larger number gets the weight."""
    layer = GraphAttention(1, 1, version=1, edge_dim=1, self_loops=False, bias=False)
    with torch.no_grad():
        for name, value in (
            ("value.weight", 1.0),
            ("source", 0.0),
            ("target", 0.0),
            ("edge_key.weight", 1.0),
            ("edge", 1.0),
        ):
            layer.get_parameter(name).fill_(value)
    nodes = torch.tensor([[1.0], [5.0], [0.0]])
    y = layer(nodes, torch.tensor([[0, 1], [2, 2]]), torch.tensor([[0.0], [20.0]]))
    assert y[2].item() == pytest.approx(5.0, abs=1e-4) and y[0].item() == 0.0
