"""Attention over several processes: one sequence shared out among ranks, for every mask, position and score."""

from .graphs import GraphLayout, ShardedEdges, shard_graph
from .layout import Layout
from .links import LINKS, Link

__all__ = ["LINKS", "GraphLayout", "Layout", "Link", "ShardedEdges", "shard_graph"]
