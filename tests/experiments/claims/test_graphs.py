"""The claim graphs: its verdict, its data and its models."""

import pytest
import torch

from regard.experiments.claims import graphs
from regard.experiments.toolkit.metrics import summarize


@pytest.mark.parametrize(
    ("edges", "older", "outcome"),
    [(0.99, 0.6, "holds"), (0.8, 0.6, "limited"), (0.99, 0.97, "limited"), (0.8, 0.97, "limited")],
)
def test_verdict(edges, older, outcome):
    layers = {"GAT, 1 head": 0.2, "GAT, 8 heads": older, "GATv2, 1 head": 0.9, "GATv2, 8 heads": 1.0}
    numbers = {
        "sizes": [4, 8],
        "neighbours": {
            "along edges": summarize([edges]),
            "full": summarize([0.5]),
            "full, told the edges": summarize([0.7]),
        },
        "lookup": {
            layer: {"4": summarize([accuracy]), "8": summarize([accuracy])} for layer, accuracy in layers.items()
        },
        "distinct": {layer: summarize([0.5]) for layer in layers},
    }
    assert graphs.verdict(numbers).kind == outcome


def test_labels_are_the_majority_of_neighbours():
    torch.manual_seed(0)
    colours, adjacency, labels = graphs.sample_graphs(20)
    colours, labels = colours.unflatten(0, (20, -1)), labels.unflatten(0, (20, -1))
    for graph in range(20):
        for node in range(graphs.NODES):
            near = colours[graph, adjacency[graph, node]].tolist()
            assert not near or near.count(0) != near.count(1)
            assert labels[graph, node] == (near.count(1) > near.count(0))
