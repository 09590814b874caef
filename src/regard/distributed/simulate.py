"""Attention over many ranks without them: predicted bytes, balance and time of every way to share a sequence out.

Beside the layouts of `shard` stand what other libraries do: gathering all keys and values, passing them round a ring
(every block, for plain and causal masks), and Ulysses, which exchanges heads for tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..attention.parts.mask import Mask, PairGrid
from ..errors import BadInput
from .assignment import STRATEGIES, equal_runs
from .links import Link, find_link
from .shard import assign, tile_size
from .traffic import Sizes, best_traffic, traffic_bytes
from .visited import find_visited


@dataclass(frozen=True)
class Prediction:
    """One way to compute a mask over ranks, forward pass."""

    method: str
    seconds: float  # of the slowest rank
    received: float  # bytes of a rank, on average
    balance: float  # work of the busiest rank over the mean


@dataclass(frozen=True)
class Heads:
    """The size of an attention layer: heads, heads of keys and values, their dim, and bytes of an element."""

    heads: int = 32
    kv_heads: int = 8
    dim: int = 128
    itemsize: int = 2

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise BadInput(f"{self.heads} heads cannot share {self.kv_heads} heads of keys; give a divisor of them.")

    def sizes(self) -> Sizes:
        return Sizes(
            key=2 * self.kv_heads * self.dim * self.itemsize,
            query=self.heads * self.dim * self.itemsize,
            output=self.heads * (self.dim + 1) * 4,
            pair=4 * self.heads * self.dim,
        )


def simulate(
    mask: Mask, tokens: int, ranks: int, link: Link | str = "infiniband", heads: Heads | None = None
) -> list[Prediction]:
    """Predictions for a mask over `tokens` tokens, the fastest first.

    >>> import regard as rg
    >>> best, *others = simulate(rg.Causal() & rg.Window(4095), 262_144, 16)
    >>> best.method, round(max(x.received for x in others) / best.received)
    ('equal runs', 64)
    """
    if tokens < ranks:
        raise BadInput(f"{tokens} tokens cannot be shared out among {ranks} ranks; each needs at least one.")
    link, heads = find_link(link), heads or Heads()
    sizes, tile = heads.sizes(), tile_size(tokens, tokens, ranks)
    visited = find_visited(mask, PairGrid(tokens, tokens, device=mask.device()), tile)
    predictions = []
    for name in STRATEGIES:
        assignment = assign(name, [visited], ranks, tile, (tokens, tokens))
        traffic, seconds = best_traffic(visited, assignment, sizes, link)
        work, (received, _) = traffic.work(), traffic_bytes(traffic, sizes)
        balance = float(work.max() / work.mean().clamp(min=1e-9))
        predictions.append(Prediction(name, float(seconds.max()), float(received.double().mean()), balance))
    work = visited.tiles.counts().double()
    runs = work.new_zeros(ranks).index_add_(0, equal_runs(work, ranks), work)
    balance = float(runs.max() / runs.mean().clamp(min=1e-9))
    per_tile = tile * tile * sizes.pair
    everything = sizes.key * tokens * (ranks - 1) / ranks
    busiest = link.compute(float(runs.max()) * per_tile)
    predictions.append(Prediction("all-gather", link.transfer(everything, ranks - 1) + busiest, everything, balance))
    # every step of a ring waits for its slowest rank, and moves a block whether the mask needs it or not
    step = max(link.transfer(everything / max(ranks - 1, 1)), link.compute(float(runs.max()) * per_tile / ranks))
    predictions.append(Prediction("ring", ranks * step, everything, balance))
    if ranks <= heads.heads:
        outputs = heads.heads * heads.dim * heads.itemsize
        keys = sizes.key * max(1.0, ranks / heads.kv_heads)  # a rank needs a whole head of keys
        moved = (sizes.query + keys + outputs) * tokens / ranks * (ranks - 1) / ranks
        even = link.compute(float(work.sum()) * per_tile / ranks)
        predictions.append(Prediction("Ulysses", link.transfer(moved, 4 * (ranks - 1)) + even, moved, 1.0))
    return sorted(predictions, key=lambda x: x.seconds)


def table(predictions: Iterable[Prediction]) -> str:
    """Predictions as text."""
    rows = [("method", "time", "received by a rank", "balance")]
    for x in predictions:
        time = f"{x.seconds * 1e3:.3g} ms" if x.seconds < 0.9995 else f"{x.seconds:.4g} s"
        size = f"{x.received / 1e6:.4g} MB" if x.received < 1e10 else f"{x.received / 1e9:.4g} GB"
        rows.append((x.method, time, size, f"{x.balance:.2f}"))
    widths = [max(len(row[n]) for row in rows) for n in range(4)]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)
