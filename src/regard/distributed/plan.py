"""What a sharded call costs every rank, as a table and a picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from ..attention.parts.masks import Everything
from ..attention.parts.parts import Parts
from ..attention.parts.scores import Additive
from ..machine import format_bytes
from .layout import Layout
from .traffic import RankCost, Sizes, Traffic, rank_costs

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class ShardedPlan:
    """What a forward pass costs every rank. `seconds` are predicted for the layout's link, those of the slowest rank.

    `balance` is the work of the busiest rank over the mean; `reduction` the bytes of an all-gather over those received.
    """

    ranks: tuple[RankCost, ...]
    gathered: int  # bytes that a rank would receive of all keys and values
    strategy: str
    description: str
    traffic: Traffic
    tile: int

    @property
    def seconds(self) -> float:
        return max(cost.seconds for cost in self.ranks)

    @property
    def balance(self) -> float:
        work = [cost.tiles for cost in self.ranks]
        return max(work) * len(work) / max(sum(work), 1)

    @property
    def mean_received(self) -> float:
        """Bytes that a rank receives, on average."""
        return sum(cost.received for cost in self.ranks) / len(self.ranks)

    @property
    def reduction(self) -> float:
        return self.gathered / self.mean_received if self.mean_received else float("inf")

    def __str__(self) -> str:
        head = ("rank", "tokens", "tiles", "received", "sent", "time")
        rows = [
            (
                str(x.rank),
                f"{x.rows:,}",
                f"{x.tiles:,}",
                format_bytes(x.received),
                format_bytes(x.sent),
                f"{x.seconds * 1e3:.3g} ms",
            )
            for x in self.ranks
        ]
        widths = [max(len(row[n]) for row in [head, *rows]) for n in range(len(head))]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in [head, *rows]]
        fewer = (
            "nothing is received"
            if not self.mean_received
            else f"{self.reduction:.3g} times fewer bytes than an all-gather"
        )
        return "\n".join([self.description, *lines, f"balance {self.balance:.3f}, {fewer}"])

    def plot(self) -> Figure:
        """The visited tiles, coloured by the rank that computes them, and the work and bytes of every rank."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(9.0, 4.0), layout="constrained")
        left, right = figure.subplots(1, 2)
        owners = self.traffic.query_owner[:, None].expand_as(self.traffic.visited).clone()
        heavy = self.traffic.heavy[:, None].expand_as(owners)
        owners[heavy] = self.traffic.key_owner.expand_as(owners)[heavy]
        shown = owners.double().masked_fill(~self.traffic.visited, float("nan"))
        left.imshow(shown.numpy(), cmap="tab20", aspect="auto", interpolation="nearest", vmin=0, vmax=19)
        left.set(xlabel=f"tiles of {self.tile} keys", ylabel=f"tiles of {self.tile} queries", title=self.strategy)
        numbers = [x.rank for x in self.ranks]
        right.bar([n - 0.2 for n in numbers], [x.tiles for x in self.ranks], 0.4, label="tiles", color="#4c72b0")
        other = right.twinx()
        other.bar([n + 0.2 for n in numbers], [x.received / 1e6 for x in self.ranks], 0.4, label="MB", color="#dd8452")
        right.set(xlabel="rank", ylabel="tiles computed")
        other.set_ylabel("MB received")
        return figure


def call_sizes(q: Tensor, k: Tensor, v: Tensor, parts: Parts) -> Sizes:
    """What a call weighs by key, query, output and pair."""
    batch, heads, dim = q.shape[0], q.shape[1], q.shape[3]
    exact = max(v.itemsize, 4)
    position = parts.position
    relative = position is not None and position.rel_vectors(q, k) is not None
    products = 1 + relative + (position is not None and position.multiplies_keys)
    per_score = (4 if isinstance(parts.score, Additive) else 2) * dim * products
    return Sizes(
        key=batch * k.shape[1] * (k.shape[3] * k.itemsize + v.shape[3] * v.itemsize),
        query=batch * heads * dim * q.itemsize * (2 if relative else 1),
        output=batch * heads * (v.shape[3] + 1) * exact,
        pair=batch * heads * (per_score + 2 * v.shape[3]),
    )


def plan_sharded(layout: Layout, q: Tensor, k: Tensor, v: Tensor, parts: Parts) -> ShardedPlan:
    """The cost of one call for every rank."""
    mask = Everything() if parts.mask is None else parts.mask
    traffic, sizes = layout.traffic(mask), call_sizes(q, k, v, parts)
    costs = rank_costs(traffic, layout.tile, layout.tokens, sizes, layout.link)
    gathered = sizes.key * layout.tokens[1] * (layout.ranks - 1) // layout.ranks
    text = f"{mask} on {layout!r}, {layout.link.name}"
    return ShardedPlan(tuple(costs), gathered, layout.strategy, text, traffic, layout.tile)
