"""Random parts and calls, determined by a seed: those of `regard check-kernels`."""

from regard.bench.differential.random_calls import KINDS, Parity, RandomCalls, Reach, Stripes

__all__ = ["KINDS", "Parity", "RandomCalls", "Reach", "Stripes"]
