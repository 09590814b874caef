"""BigBird's sparse attention (Zaheer et al. 2020): which blocks of keys each block of queries attends to.

Every block attends to its neighbours, to the first block and to the last; those two attend to all. In training every
other block also attends to `random` blocks, drawn for each head. In evaluation the random blocks are all the first
block, which is then visited `random` times more: this is how the published weights are used. A block that is visited
several times counts as so many copies of its keys, so log(visits) is added to their scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...attention.execution import tensor_cache
from ...attention.parts.mask import Mask, PairGrid, Tiling
from ...attention.parts.masks.blocks import block_tiles
from ...attention.parts.masks.tile_states import add_batch_heads
from ...attention.parts.part import PartSpec, check_count
from ...attention.parts.scores import Dot, Score
from ...attention.sharding import token_positions, whole_tokens
from ...errors import BadInput, Missing
from ..parts.layer_masks import LayerMask

if TYPE_CHECKING:
    from numpy.random import RandomState

PAPER_LENGTHS = (1024, 3072, 4096)  # lengths for which the original draws blocks by another algorithm
PAPER_REACH = 1024  # tokens beyond which that algorithm draws no blocks


@dataclass(frozen=True, eq=False, repr=False)
class BigBirdBlocks(Mask):
    """The mask of one layer: near, first, last and random blocks; full attention up to 5 + 2·random blocks.

    `positions` is the longest text of the model; `layer` seeds the random blocks, which are drawn when `training`. The
    blocks are those of the padded batch.

    >>> BigBirdBlocks(block=1, random=1, heads=2, positions=9, layer=0).dense(8, 8)[0, 0].int().sum(1).tolist()
    [8, 4, 5, 5, 5, 5, 4, 8]
    """

    block: int
    random: int
    heads: int
    positions: int
    layer: int
    training: bool = False
    formula = "j's block is near i's, first, last or drawn for it"

    def __post_init__(self) -> None:
        for name, least in (("block", 1), ("random", 0), ("heads", 1), ("positions", 1), ("layer", 0)):
            check_count(getattr(self, name), f"BigBirdBlocks' {name}", least)

    def check(self, grid: PairGrid) -> None:
        if grid.queries != grid.keys or grid.heads not in (1, self.heads):
            raise BadInput(
                f"BigBirdBlocks is for as many queries as keys and {self.heads} heads; the call has {grid.queries} "
                f"queries, {grid.keys} keys and {grid.heads} heads."
            )

    def allow(self, i: Tensor, j: Tensor) -> Tensor:
        tokens = max(int(i.max()), int(j.max())) + 1
        return self.permits(i, j, PairGrid(tokens, tokens, device=i.device))

    def permits(self, i: Tensor, j: Tensor, grid: PairGrid) -> Tensor:
        return self.visits(grid.keys, grid.device)[..., i // self.block, j // self.block] > 0

    def tiles(self, tiling: Tiling) -> Tensor:
        visited = self.visits(tiling.grid.keys, tiling.grid.device) > 0
        return block_tiles(visited, self.block, tiling.row_numbers(), tiling.keys())

    def repeated_blocks(self, tokens: int) -> list[int]:
        """The blocks of keys that some block of queries visits several times."""
        if not self.random or self.is_full(tokens):
            return []
        if not self.training:
            return [0]
        if -(-tokens // self.block) * self.block not in PAPER_LENGTHS:
            return []
        return (self.visits(tokens) > 1).flatten(0, 2).any(0).nonzero()[:, 0].tolist()

    def is_full(self, tokens: int) -> bool:
        """Whether the text is so short that attention is full."""
        return tokens <= (5 + 2 * self.random) * self.block

    def visits(self, tokens: int, device: torch.device | str = "cpu") -> Tensor:
        """How often each block of queries visits each block of keys, `[1, heads or 1, blocks, blocks]`."""
        if self.is_full(tokens):
            blocks = -(-tokens // self.block)
            return torch.ones(1, 1, blocks, blocks, dtype=torch.long, device=device)
        settings = (self.block, self.random, self.heads, self.positions, self.layer, self.training)
        return add_batch_heads(count_visits(tokens, *settings, str(device)))


@dataclass(frozen=True, eq=False, repr=False)
class BigBirdMask(LayerMask):
    """The masks of a stack: `at_layer` gives each layer's, in training and in evaluation.

    >>> BigBirdMask(block=64, random=3, heads=12, positions=4096).at_layer(2, training=True)
    BigBirdBlocks(block=64, random=3, heads=12, positions=4096, layer=2, training=True)
    """

    block: int
    random: int
    heads: int
    positions: int

    def at_layer(self, layer: int, training: bool) -> BigBirdBlocks:
        return BigBirdBlocks(self.block, self.random, self.heads, self.positions, layer, training)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class BigBirdDot(Dot):
    """scale · q·k + log(how often i's block visits j's)."""

    blocks: BigBirdBlocks
    formula = "scale · q·k + log(visits)"

    def similarity(self, q: Tensor, k: Tensor) -> Tensor:
        block = torch.arange(k.shape[2], device=k.device) // self.blocks.block
        visits = self.blocks.visits(k.shape[2], k.device)[..., block[:, None], block]
        return super().similarity(q, k) + visits.clamp(min=1).to(q.dtype).log()

    def lower(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, float]:
        """Queries with log(visits) appended for each block that is visited several times, keys with its indicator."""
        tokens, scale = whole_tokens(k.shape[2]), self.factor(q.shape[-1])
        repeated = self.blocks.repeated_blocks(tokens)
        if not repeated:
            return q, k, scale
        block = token_positions(k.shape[2], device=k.device) // self.blocks.block
        visits = self.blocks.visits(tokens, k.device)[..., repeated].clamp(min=1)  # [1, heads or 1, blocks, repeated]
        added = (visits.double().log() / scale)[:, :, block]  # [1, heads or 1, tokens, repeated]
        rounded = added.to(q.dtype)
        rest = (added - rounded).to(q.dtype)  # the digits that the type of q has no room for
        indicator = (block[:, None] == torch.tensor(repeated, device=k.device)).to(k.dtype)  # [tokens, repeated]
        q = torch.cat([q, rounded.expand(*q.shape[:3], -1), rest.expand(*q.shape[:3], -1)], dim=-1)
        return q, torch.cat([k, *2 * [indicator.expand(*k.shape[:3], -1)]], dim=-1), scale


@dataclass(frozen=True, eq=False, repr=False)
class BigBirdScore(PartSpec, Score):
    """The score that goes with `BigBirdMask`."""

    block: int
    random: int
    positions: int

    def build(self, heads: int, head_dim: int, layer: int = 0) -> BigBirdScoreModule:
        return BigBirdScoreModule(BigBirdMask(self.block, self.random, heads, self.positions), layer)


class BigBirdScoreModule(nn.Module):
    """Gives the score of one layer, in training or in evaluation."""

    def __init__(self, mask: BigBirdMask, layer: int) -> None:
        super().__init__()
        self.scores = {mode: BigBirdDot(blocks=mask.at_layer(layer, mode)) for mode in (False, True)}

    def forward(self) -> BigBirdDot:
        return self.scores[self.training]


@tensor_cache
def count_visits(
    tokens: int, block: int, random: int, heads: int, positions: int, layer: int, training: bool, device: str
) -> Tensor:
    """How often each block of queries visits each block of keys, `[heads or 1, blocks, blocks]`."""
    blocks = -(-tokens // block)
    index = torch.arange(blocks)
    edge = (index == 0) | (index == blocks - 1)
    visited = ((index[:, None] - index).abs() <= 1) | edge | edge[:, None]
    visits = visited.long().repeat(heads if training else 1, 1, 1)
    random_blocks = torch.zeros(1, blocks - 2, random, dtype=torch.long)
    if training and random:
        state = make_random_state(layer)
        if blocks * block in PAPER_LENGTHS:
            random_blocks = torch.tensor(draw_paper_blocks(state, blocks, block, random, heads, positions))
        else:
            random_blocks = torch.tensor(draw_blocks(state, blocks, random, heads))
    visits[:, 1:-1].scatter_add_(2, random_blocks, torch.ones_like(random_blocks))
    return visits.to(device)


def make_random_state(seed: int) -> RandomState:
    """The generator with which the blocks of published models were drawn."""
    try:
        from numpy.random import RandomState
    except ImportError:
        raise Missing('BigBird draws blocks with numpy in training: pip install "regard[train]".') from None
    return RandomState(seed)


def draw_blocks(state: RandomState, blocks: int, random: int, heads: int) -> list[list[list[int]]]:
    """Random blocks for all but the first and last, `[heads, blocks − 2, random]`, from the first 2·random + 5."""
    end = 2 * random + 5
    rows = []
    for row in range(1, blocks - 1):
        taken = {row - 1, row, row + 1, 0, end - 1}
        taken |= {end - 2} if row == 1 else {1} if row == end - 2 else set()
        rows.append([[x for x in state.permutation(end).tolist() if x not in taken][:random] for _ in range(heads)])
    return [list(head) for head in zip(*rows, strict=True)]


def draw_paper_blocks(
    state: RandomState, blocks: int, block: int, random: int, heads: int, positions: int
) -> list[list[list[int]]]:
    """The same as the original draws it: for the longest text, then cut, among the blocks of its first tokens."""
    total = positions // block
    last = PAPER_REACH // block - 1 if 2 * block < PAPER_REACH else total - 1
    middle = list(range(1, total - 1))
    blocks_by_head = []
    for _ in range(heads):
        rows = []
        for row in range(1, total - 1):
            near = row < total - 3
            candidates = middle[: min(max(row - 2, 0), last)] + middle[row + 1 : last] if near else middle[:last]
            rows.append(state.permutation(candidates)[:random].tolist())
        blocks_by_head.append(rows[: blocks - 2])
    return blocks_by_head
