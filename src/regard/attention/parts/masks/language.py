"""Masks of language models: chunks of a long text, prefixes that all may read, trees of drafts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from ....errors import BadInput
from ...execution import mask_cache
from ..mask import KeyBounds, Mask, PairGrid, Tiling
from ..part import check_count, check_tensor
from .tile_states import states_from, tile_sizes


@dataclass(frozen=True, eq=False, repr=False)
class Chunked(Mask):
    """A query attends to the keys of its own chunk of `size` tokens: i // size = j // size.

    Local layers of Llama 4 have `Causal() & Chunked(8192)`.

    >>> Chunked(2).dense(4, 4).int().tolist()
    [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]
    """

    size: int
    formula = "i // size = j // size"

    def __post_init__(self) -> None:
        check_count(self.size, "Chunked's size", 1)

    @property
    def causal(self) -> bool:
        return self.size == 1

    def allow(self, i: Tensor, j: Tensor) -> Tensor:
        return i // self.size == j // self.size

    def tiles(self, tiling: Tiling) -> Tensor:
        (i_first, i_last), (j_first, j_last) = ((x // self.size for x in bounds) for bounds in tiling.place_ranges())
        same = (i_first == i_last) & (j_first == j_last) & (i_first == j_first)
        return states_from(same, (i_last < j_first) | (j_last < i_first))

    def key_span(self, first: int, last: int) -> KeyBounds:
        return first // self.size * self.size, last // self.size * self.size + self.size - 1

    @property
    def key_period(self) -> int:
        return self.size


@dataclass(frozen=True, eq=False, repr=False)
class Prefix(Mask):
    """Everyone attends to the first `lengths` tokens: j < lengths, one number or one for each row, `[batch]`.

    A prefix language model has `Causal() | Prefix(lengths)`: its prompt is read in both directions.

    >>> Prefix(2).dense(2, 3).int().tolist()
    [[1, 1, 0], [1, 1, 0]]
    """

    lengths: int | Tensor
    formula = "j < lengths[b]"

    def __post_init__(self) -> None:
        if not isinstance(self.lengths, Tensor):
            return check_count(self.lengths, "Prefix's lengths")
        check_tensor(self.lengths, "Prefix's lengths", (1,), "whole numbers [batch]", False)
        if self.lengths.dtype.is_floating_point or self.lengths.dtype == torch.bool:
            raise BadInput(f"Prefix's lengths are {self.lengths.dtype}; they must be whole numbers [batch].")

    def check(self, grid: PairGrid) -> None:
        if isinstance(self.lengths, Tensor) and self.lengths.shape[0] != grid.batch:
            raise BadInput(
                f"Prefix's lengths are {list(self.lengths.shape)}; the batch is {grid.batch}. Give one for each row, "
                "or a number for all."
            )

    @property
    def causal(self) -> bool:
        return not isinstance(self.lengths, Tensor) and self.lengths == 0

    def by_batch(self) -> int | Tensor:
        """The lengths, to be compared with j."""
        return self.lengths[:, None, None, None] if isinstance(self.lengths, Tensor) else self.lengths

    def allow(self, i: Tensor, j: Tensor) -> Tensor:
        return j < self.by_batch()

    def tiles(self, tiling: Tiling) -> Tensor:
        _, (first, last) = tiling.place_ranges()
        return states_from(last < self.by_batch(), first >= self.by_batch()).expand(-1, -1, *tiling.shape)


@dataclass(frozen=True, eq=False, repr=False)
class Tree(Mask):
    """A tree of drafts (speculative decoding): a node attends to itself, to its ancestors and to all that is before.

    The nodes are the last rows. `parents` has the number of each node's parent among them, an earlier one, or −1 for
    those that follow the text itself: numbers, or a tensor `[nodes]` or `[batch, nodes]`. Rows before the nodes attend
    to each other and to no node. For positions, nodes of the same depth share a place: `Places(keys)`.

    >>> Tree((-1, 0, 0, 1)).dense(4, 6).int().tolist()   # two tokens, then a node, two children and a grandchild
    [[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 1, 0], [1, 1, 1, 1, 0, 1]]
    """

    parents: tuple[int, ...] | Tensor
    formula = "j is before the tree, or i's node, or an ancestor of it"

    def __post_init__(self) -> None:
        if isinstance(self.parents, list | range):
            object.__setattr__(self, "parents", tuple(self.parents))
        if isinstance(self.parents, tuple):
            check_parents(torch.tensor(self.parents, dtype=torch.int64))
            return
        check_tensor(self.parents, "Tree's parents", (1, 2), "whole numbers [nodes] or [batch, nodes]", False)
        if self.parents.dtype.is_floating_point or self.parents.dtype == torch.bool:
            raise BadInput(f"Tree's parents are {self.parents.dtype}; they must be whole numbers, −1 for none.")

    @property
    def by_rows(self) -> bool:
        return True

    @property
    def nodes(self) -> int:
        return self.parents.shape[-1] if isinstance(self.parents, Tensor) else len(self.parents)

    @property
    def checked_by_shape(self) -> bool:
        return False

    def check(self, grid: PairGrid) -> None:
        if self.nodes > grid.keys:
            raise BadInput(f"Tree has {self.nodes} nodes, which are the last keys; there are {grid.keys} keys.")
        if isinstance(self.parents, Tensor) and self.parents.dim() == 2 and self.parents.shape[0] != grid.batch:
            raise BadInput(
                f"Tree's parents are {list(self.parents.shape)}; the batch is {grid.batch}. Give one tree for each "
                "row, or [nodes] for all."
            )
        if not torch.compiler.is_compiling():
            self.ancestors(grid.device)

    def ancestors(self, device: torch.device | str) -> Tensor:
        """Whether node j is node i or an ancestor of it, boolean `[batch or 1, nodes, nodes]`; made once for a tree."""
        if torch.compiler.is_compiling():
            return find_ancestors(self.parents, device)
        key = (find_ancestors, str(device))
        return mask_cache(self).get(key, lambda: find_ancestors(check_parents(self.parents), device))

    def allow(self, i: Tensor, j: Tensor) -> Tensor:
        return self.permits(i, j, PairGrid(self.nodes, self.nodes, device=i.device))

    def permits(self, i: Tensor, j: Tensor, grid: PairGrid) -> Tensor:
        first = grid.keys - self.nodes
        before = j < first
        if not self.nodes:
            return before & (i == i)
        related = self.ancestors(grid.device)[:, (i - first).clamp(min=0), (j - first).clamp(min=0)]
        pairs = before | ((i >= first) & (j >= first) & related)
        return pairs[0] if pairs.shape[0] == 1 else pairs[:, None]

    def tiles(self, tiling: Tiling) -> Tensor:
        first, ancestors = tiling.grid.keys - self.nodes, self.ancestors(tiling.grid.device)
        sums = pad(ancestors.long().cumsum(-1).cumsum(-2), (1, 0, 1, 0))  # of rectangles of nodes, from the first on
        (top, bottom), (left, right) = (
            ((low - first).clamp(0, self.nodes), (high + 1 - first).clamp(0, self.nodes))
            for low, high in (tiling.queries(), tiling.keys())
        )
        count = sums[:, bottom, right] - sums[:, top, right] - sums[:, bottom, left] + sums[:, top, left]
        row_sizes, column_sizes = tile_sizes(tiling)
        start = tiling.keys()[0]
        count = count + row_sizes * (first - start).clamp(0, None).minimum(column_sizes)
        return states_from((count == row_sizes * column_sizes)[:, None], (count == 0)[:, None])


def find_ancestors(parents: tuple[int, ...] | Tensor, device: torch.device | str) -> Tensor:
    """The reflexive and transitive closure of "is the parent of", by squaring: paths of 1, 2, 4, … steps."""
    numbers = torch.as_tensor(parents, device=device).long()
    numbers = numbers[None] if numbers.dim() == 1 else numbers  # [batch or 1, nodes]
    nodes = numbers.shape[1]
    if not nodes:
        return torch.ones(numbers.shape[0], 0, 0, dtype=torch.bool, device=device)
    reached = one_hot(numbers + 1, nodes + 1)[..., 1:].bool() | torch.eye(nodes, dtype=torch.bool, device=device)
    for _ in range((nodes - 1).bit_length()):
        reached = (reached.float() @ reached.float()) > 0
    return reached


def check_parents(parents: tuple[int, ...] | Tensor) -> tuple[int, ...] | Tensor:
    """The parents; raises `BadInput` unless each is −1 or an earlier node."""
    numbers = torch.as_tensor(parents).long()
    numbers = numbers[None] if numbers.dim() == 1 else numbers  # [batch or 1, nodes]
    wrong = (numbers < -1) | (numbers >= torch.arange(numbers.shape[1], device=numbers.device))
    if bool(wrong.any()):
        row, node = wrong.nonzero()[0].tolist()
        raise BadInput(
            f"Tree's parents say {int(numbers[row, node])} for node {node}; a parent is an earlier node, "
            f"0 … {node - 1}, or −1. Sort the nodes so that parents come first."
            if node
            else f"Tree's parents say {int(numbers[row, node])} for node 0, which can have none: −1."
        )
    return parents
