"""What a sharded call costs every rank, as a table and a picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..attention.parts.parts import Parts
from ..attention.parts.scores import Additive
from ..machine import format_bytes
from .attention.attend import lower_call, whole_mask
from .attention.shard_plan import count_tokens
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
                f"{x.tiles:,.0f}",
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
        assignment, light = self.traffic.assignment, self.traffic.light.dense()
        shown = assignment.query_owner[:, None].expand_as(light).double().masked_fill(~light, float("nan"))
        rows = (self.traffic.heavy // self.tile).unique()  # which have heavy rows: those cross the whole picture
        shown[rows] = torch.where(light[rows], shown[rows], assignment.key_owner.double())
        left.imshow(shown.numpy(), cmap="tab20", aspect="auto", interpolation="nearest", vmin=0, vmax=19)
        left.set(xlabel=f"tiles of {self.tile} keys", ylabel=f"tiles of {self.tile} queries", title=self.strategy)
        numbers = [x.rank for x in self.ranks]
        blue, orange = "#4c72b0", "#dd8452"
        right.bar([n - 0.2 for n in numbers], [x.tiles for x in self.ranks], 0.4, color=blue)
        other = right.twinx()
        other.bar([n + 0.2 for n in numbers], [x.received / 1e6 for x in self.ranks], 0.4, color=orange)
        right.set_xlabel("rank")
        right.set_ylabel("tiles computed", color=blue)
        other.set_ylabel("MB received", color=orange)
        return figure


def call_sizes(layout: Layout, q: Tensor, k: Tensor, v: Tensor, parts: Parts) -> Sizes:
    """What a call weighs by key, query, output and pair, in the form that this rank's kernels take."""
    own = (layout.rows(), layout.keys(), layout.keys())
    q, k, v = (x[:, :, :1].expand(-1, -1, count_tokens(runs), -1) for x, runs in zip((q, k, v), own, strict=True))
    with torch.no_grad():
        p, _ = lower_call(layout, (q, k, v), Parts(**{**vars(parts), "dropout": 0.0}), whole_mask(parts))
    relative, by_keys = p.rel_vectors is not None, p.key_vectors is not None
    per_score = (4 if isinstance(parts.score, Additive) else 2) * p.q.shape[3] * (1 + relative + by_keys)
    return Sizes(
        key=token_bytes(p.k) + token_bytes(p.v),
        query=token_bytes(p.q) + (token_bytes(p.rel_vectors.queries) if p.rel_vectors is not None else 0),
        output=q.shape[0] * q.shape[1] * (p.v.shape[3] + 1) * max(p.v.itemsize, 4),
        pair=q.shape[0] * q.shape[1] * (per_score + 2 * p.v.shape[3]),
    )


def token_bytes(x: Tensor) -> int:
    """Bytes of one token of x `[batch, heads, tokens, dim]`."""
    return x.shape[0] * x.shape[1] * x.shape[3] * x.itemsize


def plan_sharded(layout: Layout, q: Tensor, k: Tensor, v: Tensor, parts: Parts) -> ShardedPlan:
    """The cost of one call for every rank."""
    mask = whole_mask(parts)
    traffic, sizes = layout.traffic(mask), call_sizes(layout, q, k, v, parts)
    costs = rank_costs(traffic, sizes, layout.link)
    gathered = sizes.key * layout.tokens[1] * (layout.ranks - 1) // layout.ranks
    text = f"{mask} on {layout!r}, {layout.link.name}"
    return ShardedPlan(tuple(costs), gathered, layout.strategy, text, traffic, layout.tile)
