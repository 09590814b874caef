"""The backends: each computes the same attention in its own way."""
