"""Neighbour sampling: its laws, and the whole graph as the limit."""

from __future__ import annotations

import pytest
import torch

import regard as rg
from regard.data.graphs import NeighbourLoader, NeighbourSampler
from regard.models.graph_attention import GATConfig

NODES = 97


@pytest.fixture(scope="module")
def edges() -> torch.Tensor:
    g = torch.Generator().manual_seed(0)
    edges = torch.randint(0, NODES - 1, (2, 700), generator=g)  # the last node is alone
    edges[1, :60] = 5
    return edges.unique(dim=1)


@pytest.fixture(scope="module")
def sampler(edges) -> NeighbourSampler:
    return NeighbourSampler.from_edges(edges, NODES, block=101)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_edges_of_each_target_are_together(edges, sampler):
    targets = torch.repeat_interleave(torch.arange(NODES), sampler.starts.diff())
    assert torch.equal(edges[:, sampler.numbers.long()], torch.stack([sampler.sources.long(), targets]))
    assert torch.equal(sampler.numbers.long().sort().values, torch.arange(edges.shape[1]))


@pytest.mark.parametrize("neighbours", [(3,), (4, 2), (2, 3, 1), (-1, 2)])
def test_sampled_edges_exist_and_are_counted(edges, sampler, neighbours):
    seeds = torch.tensor([5, 96, 0, 50])
    graph = sampler.sample(seeds, neighbours, generator(1))
    assert torch.equal(graph.nodes[:4], seeds) and len(graph.nodes.unique()) == len(graph.nodes)
    assert torch.equal(graph.nodes[graph.edges], edges[:, graph.edge_numbers])
    assert len(graph.edge_numbers.unique()) == len(graph.edge_numbers)
    drawn = torch.bincount(graph.edges[1], minlength=len(graph.nodes))
    degrees = sampler.starts.diff()[graph.nodes]
    hop = torch.full((len(graph.nodes),), len(neighbours))
    hop[:4] = 0
    for number in range(len(neighbours)):  # a node's hop is one more than the least of those that it is drawn for
        source, target = graph.edges
        reached = source[hop[target] == number]
        hop[reached] = hop[reached].clamp(max=number + 1)
    for node, (count, degree) in enumerate(zip(drawn.tolist(), degrees.tolist(), strict=True)):
        limit = ([*neighbours, 0])[int(hop[node])]
        assert count == (degree if limit < 0 else min(limit, degree))


def test_all_neighbours_give_the_outputs_of_the_whole_graph(edges, sampler):
    torch.manual_seed(0)
    x, seeds = torch.randn(NODES, 6, dtype=torch.float64), torch.tensor([96, 5, 3, 41])
    for version in (1, 2):
        model = GATConfig(6, 3, dim=8, layers=3, heads=2, version=version).build().double().eval()
        whole = model(nodes=x, edges=edges).logits[seeds]
        for neighbours in ((-1, -1, -1), (60, 99, 10**6)):
            graph = sampler.sample(seeds, neighbours, generator())
            drawn = model(nodes=x[graph.nodes], edges=graph.edges).logits[:4]
            torch.testing.assert_close(drawn, whole, rtol=1e-12, atol=1e-12)


def test_all_neighbours_are_those_of_pyg(edges, sampler):
    utils = pytest.importorskip("torch_geometric.utils", reason="torch-geometric is not installed")
    seeds = torch.tensor([7, 20])
    for hops in (1, 2):
        nodes, *_ = utils.k_hop_subgraph(seeds, hops, edges, num_nodes=NODES)
        graph = sampler.sample(seeds, (-1,) * hops, generator())
        assert torch.equal(graph.nodes.sort().values, nodes)


def test_every_edge_is_drawn_equally_often(sampler):
    """60 and more edges, of which 4 are drawn 3,000 times: a chi-square statistic within five deviations."""
    degree, draws = int(sampler.starts.diff()[5]), 3000
    g, counts = generator(2), torch.zeros(degree)
    for _ in range(draws):
        _, places = sampler.draw(torch.tensor([5]), 4, g)
        counts[places - sampler.starts[5]] += 1
    expected = 4 * draws / degree
    variance = expected * (1 - 4 / degree)
    statistic = float(((counts - expected) ** 2 / variance).sum()) * (degree - 1) / degree
    assert abs(statistic - (degree - 1)) < 5 * (2 * (degree - 1)) ** 0.5


def test_the_loader_is_seeded_and_resumes(edges):
    seeds = torch.arange(0, NODES, 2)
    loader, again = (
        NeighbourLoader(edges, NODES, seeds=seeds, neighbours=(3, 2), batch_size=8, seed=4) for _ in range(2)
    )
    first = list(loader.epoch(1))
    assert len(first) == 7
    assert torch.equal(torch.cat([graph.nodes[: graph.seeds] for graph in first]).sort().values, seeds)
    for n, graph in enumerate(again.epoch(1, first=3), 3):
        assert all(torch.equal(a, b) for a, b in zip(graph[:3], first[n][:3], strict=True))
    assert not torch.equal(next(loader.epoch(2)).nodes, first[0].nodes)


def test_features_may_be_in_a_memory_map(tmp_path, edges):
    numpy = pytest.importorskip("numpy")
    x = numpy.random.default_rng(0).random((NODES, 4)).astype("float32")
    numpy.save(tmp_path / "x.npy", x)
    mapped = torch.from_numpy(numpy.load(tmp_path / "x.npy", mmap_mode="c"))
    loader = NeighbourLoader(edges, NODES, seeds=torch.arange(NODES), neighbours=(2,), batch_size=16)
    for graph in loader.epoch(0):
        assert torch.equal(mapped[graph.nodes], torch.from_numpy(x)[graph.nodes])


@pytest.mark.parametrize("neighbours", [(), (0,), (3, -2)])
def test_bad_numbers_of_neighbours(edges, neighbours):
    with pytest.raises(rg.BadInput, match="at least 1"):
        NeighbourLoader(edges, NODES, seeds=torch.arange(3), neighbours=neighbours)


def test_edges_out_of_range(edges):
    with pytest.raises(rg.BadInput, match="0 … 9"):
        NeighbourSampler.from_edges(edges, 10)
