"""BigBird's blocks: which of them each block of queries looks at, and how often.

Every block sees its neighbours, the first block and the last; those two see all. While learning, every other block also
sees `random` drawn ones, each head its own. At rest the drawn ones are all the first block, which is then seen
`random` times more: that is how the published weights are used. A block seen several times weighs as much as so many
copies of its keys, so log(times) is added to their scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..attention.cache import constant
from ..attention.parts.mask import Grid, Mask, Tiling
from ..attention.parts.masks import block_tiles, four
from ..attention.parts.part import need_count
from ..attention.parts.scores import Dot, Score
from ..errors import BadInput, Missing

PAPER_LENGTHS = (1024, 3072, 4096)  # of these the blocks are drawn by a plan of their own
PAPER_REACH = 1024  # beyond which that plan draws none


@dataclass(frozen=True, eq=False, repr=False)
class BigBirdBlocks(Mask):
    """Near, first, last and (`drawn`) random blocks; everything where there are no more than 5 + 2·random blocks.

    `places` is the longest text that the model knows; `layer` seeds what is drawn. The blocks are those of the call,
    padding included.

    >>> BigBirdBlocks(block=1, random=1, heads=2, places=9, layer=0).dense(8, 8)[0, 0].int().sum(1).tolist()
    [8, 4, 5, 5, 5, 5, 4, 8]
    """

    block: int
    random: int
    heads: int
    places: int
    layer: int
    drawn: bool = False
    formula = "j's block is near i's, first, last or drawn for it"

    def __post_init__(self) -> None:
        for name, least in (("block", 1), ("random", 0), ("heads", 1), ("places", 1), ("layer", 0)):
            need_count(getattr(self, name), f"BigBirdBlocks' {name}", least)

    def check(self, grid: Grid) -> None:
        if grid.queries != grid.keys or grid.heads not in (1, self.heads):
            raise BadInput(
                f"BigBirdBlocks is for as many queries as keys and {self.heads} heads; the call has {grid.queries} "
                f"queries, {grid.keys} keys and {grid.heads} heads."
            )

    def allow(self, i: Tensor, j: Tensor) -> Tensor:
        tokens = max(int(i.max()), int(j.max())) + 1
        return self.permits(i, j, Grid(tokens, tokens, device=i.device))

    def permits(self, i: Tensor, j: Tensor, grid: Grid) -> Tensor:
        return self.seen(grid.keys, grid.device)[..., i // self.block, j // self.block] > 0

    def tiles(self, tiling: Tiling) -> Tensor:
        seen = self.seen(tiling.grid.keys, tiling.grid.device) > 0
        return block_tiles(seen, self.block, tiling.row_numbers(), tiling.keys())

    def repeated(self, tokens: int) -> list[int]:
        """The blocks of keys that some block of queries sees several times."""
        if not self.random or self.all_seen(tokens):
            return []
        if not self.drawn:
            return [0]
        if -(-tokens // self.block) * self.block not in PAPER_LENGTHS:
            return []
        return (self.seen(tokens) > 1).flatten(0, 2).any(0).nonzero()[:, 0].tolist()

    def all_seen(self, tokens: int) -> bool:
        """Whether the text is so short that everything is looked at."""
        return tokens <= (5 + 2 * self.random) * self.block

    def seen(self, tokens: int, device: torch.device | str = "cpu") -> Tensor:
        """How often each block of queries sees each block of keys, `[1, heads or 1, blocks, blocks]`."""
        if self.all_seen(tokens):
            blocks = -(-tokens // self.block)
            return torch.ones(1, 1, blocks, blocks, dtype=torch.long, device=device)
        plan = (self.block, self.random, self.heads, self.places, self.layer, self.drawn)
        return four(times(tokens, *plan, str(device)))


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class BigBirdDot(Dot):
    """scale · q·k + log(times that i's block sees j's)."""

    blocks: BigBirdBlocks
    formula = "scale · q·k + log(times)"

    def similarity(self, q: Tensor, k: Tensor) -> Tensor:
        place = torch.arange(k.shape[2], device=k.device) // self.blocks.block
        seen = self.blocks.seen(k.shape[2], k.device)[..., place[:, None], place]
        return super().similarity(q, k) + seen.clamp(min=1).to(q.dtype).log()

    def lower(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, float]:
        """Queries with log(times) added for each block that some see several times, keys with a mark of their block."""
        tokens, scale = k.shape[2], self.factor(q.shape[-1])
        often = self.blocks.repeated(tokens)
        if not often:
            return q, k, scale
        place = torch.arange(tokens, device=k.device) // self.blocks.block
        seen = self.blocks.seen(tokens, k.device)[..., often].clamp(min=1)  # [1, heads or 1, blocks, often]
        added = (seen.double().log() / scale)[:, :, place]  # [1, heads or 1, tokens, often]
        rounded = added.to(q.dtype)
        rest = (added - rounded).to(q.dtype)  # what the type of q had no digits for
        mark = (place[:, None] == torch.tensor(often, device=k.device)).to(k.dtype)  # [tokens, often]
        q = torch.cat([q, rounded.expand(*q.shape[:3], -1), rest.expand(*q.shape[:3], -1)], dim=-1)
        return q, torch.cat([k, *2 * [mark.expand(*k.shape[:3], -1)]], dim=-1), scale


class BigBirdScore(nn.Module):
    """The score that goes with `BigBirdBlocks`, for a layer that may be learning or at rest."""

    def __init__(self, heads: int, head_dim: int, block: int, random: int, places: int, layer: int) -> None:
        super().__init__()
        self.learning = BigBirdBlocks(block, random, heads, places, layer, drawn=True)
        self.resting = BigBirdBlocks(block, random, heads, places, layer, drawn=False)

    def forward(self) -> Score:
        return BigBirdDot(blocks=self.learning if self.training else self.resting)


@constant
def times(
    tokens: int, block: int, random: int, heads: int, places: int, layer: int, drawn: bool, device: str
) -> Tensor:
    """How often each block of queries sees each block of keys, `[heads or 1, blocks, blocks]`."""
    blocks = -(-tokens // block)
    place = torch.arange(blocks)
    edge = (place == 0) | (place == blocks - 1)
    seen = ((place[:, None] - place).abs() <= 1) | edge | edge[:, None]
    seen = seen.long().repeat(heads if drawn else 1, 1, 1)
    chosen = torch.zeros(1, blocks - 2, random, dtype=torch.long)
    if drawn and random:
        plan = paper_plan if blocks * block in PAPER_LENGTHS else short_plan
        chosen = torch.tensor(plan(generator(layer), blocks, block, random, heads, places))
    seen[:, 1:-1].scatter_add_(2, chosen, torch.ones_like(chosen))
    return seen.to(device)


def generator(seed: int) -> Any:
    """The generator that the blocks of published models were drawn with."""
    try:
        from numpy.random import RandomState
    except ImportError:
        raise Missing('BigBird draws blocks with numpy while learning: pip install "regard[train]".') from None
    return RandomState(seed)


def short_plan(draw: Any, blocks: int, block: int, random: int, heads: int, places: int) -> list:
    """The blocks drawn for all but the first and last, `[heads, blocks − 2, random]`, from the first 2·random + 5."""
    end = 2 * random + 5
    rows = []
    for row in range(1, blocks - 1):
        taken = {row - 1, row, row + 1, 0, end - 1}
        taken |= {end - 2} if row == 1 else {1} if row == end - 2 else set()
        rows.append([[x for x in draw.permutation(end).tolist() if x not in taken][:random] for _ in range(heads)])
    return [list(head) for head in zip(*rows, strict=True)]


def paper_plan(draw: Any, blocks: int, block: int, random: int, heads: int, places: int) -> list:
    """The same by the paper's plan: drawn for the longest text and cut, among the blocks of its first tokens."""
    total = places // block
    last = PAPER_REACH // block - 1 if 2 * block < PAPER_REACH else total - 1
    middle = list(range(1, total - 1))
    plan = []
    for _ in range(heads):
        rows = []
        for row in range(1, total - 1):
            near = row < total - 3
            choice = middle[: min(max(row - 2, 0), last)] + middle[row + 1 : last] if near else middle[:last]
            rows.append(draw.permutation(choice)[:random].tolist())
        plan.append(rows[: blocks - 2])
    return plan
