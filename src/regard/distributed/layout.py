"""A layout: which tokens of a sequence each rank holds."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from ..attention.execution import mask_cache
from ..attention.parts.mask import Mask, PairGrid
from ..attention.parts.parts import Parts
from ..attention.sharding import OPEN_LAYOUTS
from ..errors import BadInput
from .assignment import Assignment, Runs
from .exchange import Exchange, compare
from .links import Link
from .traffic import Sizes, Traffic, best_traffic
from .visited import find_visited

if TYPE_CHECKING:
    from ..attention.look import LookOptions
    from ..attention.view import View
    from .plan import ShardedPlan

NUMBERS = itertools.count()


@dataclass(frozen=True, eq=False, repr=False)
class Layout:
    """Which tokens of a sequence each of `ranks` holds, as `shard` chose them.

    Tokens are shared out in tiles of `tile`, as `assignment` says. `tokens` are the queries and keys of the whole;
    `group` the processes, None for a layout that is only planned with.

    While a layout is open (`with layout:`), models take and return this rank's tokens, and gradients of parameters are
    this rank's share, which DDP or an all-reduce sums.
    """

    strategy: str
    assignment: Assignment
    rank: int
    group: ProcessGroup | None
    masks: tuple[Mask, ...]
    link: Link
    sizes: Sizes
    number: int = field(default_factory=NUMBERS.__next__)

    @property
    def ranks(self) -> int:
        return self.assignment.ranks

    @property
    def tokens(self) -> tuple[int, int]:
        return self.assignment.tokens

    @property
    def tile(self) -> int:
        return self.assignment.tile

    @functools.cached_property
    def own_places(self) -> Tensor:
        """The positions of this rank's tokens."""
        return self.places(self.rank)

    def rows(self, rank: int | None = None) -> Runs:
        """The queries of a rank (this one unless given), as runs (first, last + 1)."""
        return self.assignment.query_runs[self.rank if rank is None else rank]

    def keys(self, rank: int | None = None) -> Runs:
        """The keys of a rank, as runs; those of its queries where a sequence attends to itself."""
        return self.assignment.key_runs[self.rank if rank is None else rank]

    def places(self, rank: int | None = None) -> Tensor:
        """The positions of a rank's tokens in the whole sequence, `[tokens of the rank]`."""
        return self.own_places if rank is None else torch.cat([torch.arange(*run) for run in self.rows(rank)])

    def split(self, x: Tensor, dim: int = -2, *, keys: bool = False) -> Tensor:
        """This rank's tokens of the whole sequence x, along `dim`; `keys` for a sequence that is attended to."""
        whole = self.tokens[1 if keys else 0]
        if x.shape[dim] != whole:
            raise BadInput(f"x is {list(x.shape)}; dimension {dim} must be the whole sequence, {whole} tokens.")
        runs = self.keys() if keys else self.rows()
        return torch.cat([x.narrow(dim, first, last - first) for first, last in runs], dim)

    def gather(self, x: Tensor, dim: int = -2, *, keys: bool = False) -> Tensor:
        """The whole sequence of which x holds this rank's tokens, on every rank.

        In backward each rank takes the gradient of its own tokens: every rank is expected to compute the same from
        the whole, as a loss over it does.
        """
        return GatherSequence.apply(x, self, dim, keys)  # type: ignore[return-value]

    def sum(self, x: Tensor) -> Tensor:
        """The sum of x over the ranks, in their order, on every rank; backward sums the gradients of all ranks."""
        from .attention.attend import SumRanks

        compare(self.group, self.require_group, f"{list(x.shape)} {x.dtype}", "tensors to sum")
        return SumRanks.apply(x, self)  # type: ignore[return-value]

    def require_group(self) -> ProcessGroup:
        """The processes; raises `BadInput` for a layout that is only planned with."""
        if self.group is None:
            raise BadInput("This layout was made for a number of ranks and has no processes; give shard a mesh.")
        return self.group

    def check_ranks(self, check: Callable[[], object]) -> None:
        """Raise on every rank unless `check` passes on all: a rank that went on alone would wait for ever."""
        compare(self.group, check, "", "call")

    def __enter__(self) -> Layout:
        self.require_group()
        if self.tokens[0] != self.tokens[1]:
            raise BadInput(f"{self!r} is for attention to another sequence; a model needs one length.")
        OPEN_LAYOUTS.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        OPEN_LAYOUTS.pop()

    def traffic(self, mask: Mask) -> Traffic:
        """What each rank computes and receives for a mask, cached with it."""

        def make() -> Traffic:
            visited = find_visited(mask, PairGrid(*self.tokens, device=mask.device()), self.tile)
            return best_traffic(visited, self.assignment, self.sizes, self.link)[0]

        return mask_cache(mask).get(("traffic", self.number), make)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        parts: Parts,
        generator: torch.Generator | None = None,
        backend: str = "auto",
    ) -> Tensor:
        """`regard.attend` of the whole sequence, for this rank's queries."""
        from .attention.attend import attend_sharded

        return attend_sharded(self, q, k, v, parts, generator, backend)

    def look(self, q: Tensor, k: Tensor, parts: Parts, options: LookOptions) -> View:
        """`regard.look` of the whole sequence, for this rank's queries."""
        from .attention.look import look_sharded

        return look_sharded(self, q, k, parts, options)

    def plan(self, q: Tensor, k: Tensor, v: Tensor, parts: Parts) -> ShardedPlan:
        """What a call costs every rank; q, k and v are those of one rank, of which only sizes and types are used."""
        from .plan import plan_sharded

        return plan_sharded(self, q, k, v, parts)

    def __repr__(self) -> str:
        queries, keys = self.tokens
        size = f"{queries:,} tokens" if queries == keys else f"{queries:,} queries × {keys:,} keys"
        return f"Layout({size} over {self.ranks} ranks: {self.strategy}, tiles of {self.tile})"


class GatherSequence(torch.autograd.Function):
    """The whole sequence from the tokens of all ranks; backward takes the gradient of the rank's own."""

    @staticmethod
    def forward(ctx, x: Tensor, layout: Layout, dim: int, keys: bool) -> Tensor:
        ctx.layout, ctx.dim, ctx.keys = layout, dim, keys
        group = layout.require_group()
        compare(group, lambda: check_tokens(x, layout, dim, keys), describe(x, dim), "tensors to gather")
        whole = layout.tokens[1 if keys else 0]
        owned = [(layout.keys(rank) if keys else layout.rows(rank)) for rank in range(layout.ranks)]
        counts = [sum(last - first for first, last in runs) for runs in owned]
        moved = x.detach().movedim(dim, 0).contiguous()
        received = [moved.new_empty(count, *moved.shape[1:]) for count in counts]
        others = [rank for rank in range(layout.ranks) if rank != layout.rank]
        Exchange(group).start([(moved, rank) for rank in others], [(received[x], x) for x in others]).wait()
        received[layout.rank] = moved
        output = moved.new_empty(whole, *moved.shape[1:])
        for runs, rows in zip(owned, received, strict=True):
            start = 0
            for first, last in runs:
                output[first:last] = rows[start : start + last - first]
                start += last - first
        return output.movedim(0, dim)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return ctx.layout.split(grad, ctx.dim, keys=ctx.keys), None, None, None


def check_tokens(x: Tensor, layout: Layout, dim: int, keys: bool) -> None:
    """Raise `BadInput` unless x has this rank's tokens along `dim`."""
    count = sum(last - first for first, last in (layout.keys() if keys else layout.rows()))
    if not -x.dim() <= dim < x.dim() or x.shape[dim] != count:
        raise BadInput(f"x is {list(x.shape)}; dimension {dim} must be this rank's {count} tokens.")


def describe(x: Tensor, dim: int) -> str:
    """What the tensors of all ranks have in common, from each of which comes a part."""
    return f"{x.movedim(dim, 0).shape[1:] if -x.dim() <= dim < x.dim() else x.shape} {x.dtype}"
