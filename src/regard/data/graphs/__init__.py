"""Graphs: one whose nodes have labels, sets of graphs with a label each, molecules."""

from .graph_sets import LabelledGraph, read_graphs, split_by_scaffold
from .node_graphs import Graph, draw_masks, read_nodes
from .sampling import NeighbourLoader, NeighbourSampler, SampledGraph

__all__ = [
    "Graph",
    "LabelledGraph",
    "NeighbourLoader",
    "NeighbourSampler",
    "SampledGraph",
    "draw_masks",
    "read_graphs",
    "read_nodes",
    "split_by_scaffold",
]
