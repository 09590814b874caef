"""Batches of examples of similar size, in an order that is a function of seed and epoch."""

from __future__ import annotations

import random
from collections.abc import Sequence

from ..errors import BadInput


class BatchSampler:
    """Batches of example indices, the same for the same seed and epoch.

    Examples are shuffled and sorted by their size, with some noise, within pools, so that a batch has examples of
    similar size. They are then split into batches of at most `tokens` (or `examples`), and the batches are shuffled. An
    example above the budget is a batch of its own. `drop_last` drops a last batch that is not full.

    >>> sampler = BatchSampler([3, 1, 2, 2], tokens=4, seed=0)
    >>> sorted(n for batch in sampler.batches(epoch=0) for n in batch)
    [0, 1, 2, 3]
    >>> sampler.batches(1) == BatchSampler([3, 1, 2, 2], tokens=4, seed=0).batches(1)
    True
    >>> [len(batch) for batch in BatchSampler([2] * 7, examples=3, drop_last=True).batches(0)]
    [3, 3]
    """

    def __init__(
        self,
        sizes: Sequence[int],
        *,
        tokens: int | None = None,
        examples: int | None = None,
        seed: int = 0,
        pool: int = 100,
        drop_last: bool = False,
    ) -> None:
        if not sizes:
            raise BadInput("There are no examples to train on. Look at the file with `regard check`.")
        self.sizes, self.tokens, self.examples, self.seed, self.pool = list(sizes), tokens, examples, seed, pool
        self.drop_last = drop_last

    def batches(self, epoch: int) -> list[list[int]]:
        """The batches of an epoch."""
        rng = random.Random(f"{self.seed} {epoch}")
        order = list(range(len(self.sizes)))
        rng.shuffle(order)
        mean = max(1, sum(self.sizes) // len(self.sizes))
        pool = self.pool * max(1, self.examples or (self.tokens or mean) // mean)
        noisy_sizes = {n: self.sizes[n] * rng.uniform(0.7, 1.4) for n in order}
        order = [
            n
            for start in range(0, len(order), pool)
            for n in sorted(order[start : start + pool], key=noisy_sizes.__getitem__)
        ]
        batches = self.split_batches(order)
        if self.drop_last and len(batches) > 1 and len(batches[-1]) < len(batches[0]):
            batches.pop()
        rng.shuffle(batches)
        return batches

    def split_batches(self, order: list[int]) -> list[list[int]]:
        """Split the examples, in this order, into batches."""
        batches: list[list[int]] = [[]]
        size = 0
        for n in order:
            full = self.examples is not None and len(batches[-1]) >= self.examples
            over = self.tokens is not None and size + self.sizes[n] > self.tokens
            if batches[-1] and (full or (self.examples is None and over)):
                batches.append([])
                size = 0
            batches[-1].append(n)
            size += self.sizes[n]
        return batches


def batch_by_size(sizes: Sequence[int], tokens: int) -> list[list[int]]:
    """All examples sorted by size, in batches of at most `tokens`.

    >>> batch_by_size([3, 1, 2], tokens=3)
    [[1, 2], [0]]
    """
    order = sorted(range(len(sizes)), key=sizes.__getitem__)
    return BatchSampler(sizes, tokens=max(1, tokens)).split_batches(order) if sizes else []
