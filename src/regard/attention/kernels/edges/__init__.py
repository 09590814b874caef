"""Attention along the edges of a graph."""
