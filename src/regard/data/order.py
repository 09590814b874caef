"""The order of examples: batches of like size, shuffled by (seed, epoch), so that a place in it is two numbers."""

from __future__ import annotations

import random
from collections.abc import Sequence

from ..errors import BadInput


class Order:
    """Batches of example numbers, the same for the same seed and epoch.

    Examples are shuffled, sorted by about their size within pools so that a batch holds neighbours in size (but not
    one size alone, which would teach length as if it were content), cut into batches of at most `tokens` (or
    `examples`), and the batches shuffled. An example larger than the budget is a batch of its own. If all are to be
    `alike`, a last batch that is not full is left out: for running text, which every epoch cuts elsewhere.

    >>> order = Order([3, 1, 2, 2], tokens=4, seed=0)
    >>> sorted(n for batch in order.epoch(0) for n in batch)
    [0, 1, 2, 3]
    >>> order.epoch(1) == Order([3, 1, 2, 2], tokens=4, seed=0).epoch(1)
    True
    >>> [len(batch) for batch in Order([2] * 7, examples=3, alike=True).epoch(0)]
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
        alike: bool = False,
    ) -> None:
        if not sizes:
            raise BadInput("There are no examples to train on. Look at the file with `regard check`.")
        self.sizes, self.tokens, self.examples, self.seed, self.pool = list(sizes), tokens, examples, seed, pool
        self.alike = alike

    def epoch(self, number: int) -> list[list[int]]:
        """The batches of an epoch."""
        draw = random.Random(f"{self.seed} {number}")
        order = list(range(len(self.sizes)))
        draw.shuffle(order)
        mean = max(1, sum(self.sizes) // len(self.sizes))
        pool = self.pool * max(1, self.examples or (self.tokens or mean) // mean)
        about = {n: self.sizes[n] * draw.uniform(0.7, 1.4) for n in order}
        order = [
            n
            for start in range(0, len(order), pool)
            for n in sorted(order[start : start + pool], key=about.__getitem__)
        ]
        batches = self.cut(order)
        if self.alike and len(batches) > 1 and len(batches[-1]) < len(batches[0]):
            batches.pop()
        draw.shuffle(batches)
        return batches

    def cut(self, order: list[int]) -> list[list[int]]:
        """An order cut where a batch is full."""
        batches: list[list[int]] = [[]]
        held = 0
        for n in order:
            full = self.examples is not None and len(batches[-1]) >= self.examples
            over = self.tokens is not None and held + self.sizes[n] > self.tokens
            if batches[-1] and (full or (self.examples is None and over)):
                batches.append([])
                held = 0
            batches[-1].append(n)
            held += self.sizes[n]
        return batches
