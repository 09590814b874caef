"""Swin's layers: attention within windows of a grid, which every second block shifts by half a window.

The shift is a mask. Rows and columns are rolled, so that windows at the border hold tokens from opposite sides; these
belong to different documents (`Documents`), and do not attend to each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...attention.execution import tensor_cache
from ...attention.parts.masks import Documents
from ...attention.parts.pair_bias import PairBias
from ...errors import BadInput, Unsupported
from ..attention import Attend, divide_heads, merge_heads, split_heads
from ..block import FeedForward
from ..linear import Linear

Grid = tuple[int, int]
"""Rows and columns."""


@dataclass(frozen=True)
class ShiftedWindowsConfig:
    """Stages of blocks over a grid, one for each of `dims`, `depths` and `heads`.

    Between two stages four neighbours are merged into one token. Attention is within windows of `window_size` ×
    `window_size` tokens, with a learned number for each head and offset of row and column; odd blocks of a stage shift
    the windows by half of their size. `ratio` is hidden / dim of the feed-forward networks; `qkv_bias` says whether
    these projections have one.
    """

    dims: tuple[int, ...]
    depths: tuple[int, ...]
    heads: tuple[int, ...]
    window_size: int = 7
    ratio: float = 4.0
    activation: str = "gelu"
    qkv_bias: bool = True
    eps: float = 1e-5
    dropout: float = 0.0
    attention_dropout: float = 0.0

    def __post_init__(self) -> None:
        if not len(self.dims) == len(self.depths) == len(self.heads) or not self.dims:
            sizes = f"{len(self.dims)} dims, {len(self.depths)} depths and {len(self.heads)} heads"
            raise BadInput(f"There are {sizes}. Give one of each for every stage.")
        if min(self.depths) < 1:
            raise BadInput(f"depths are {self.depths}; every stage must have a block at least.")
        if self.window_size < 1:
            raise BadInput(f"window_size is {self.window_size}; it must be at least 1.")

    @property
    def dim(self) -> int:
        """The dimension of the output."""
        return self.dims[-1]

    @property
    def causal(self) -> bool:
        return False

    def build(self) -> ShiftedWindows:
        return ShiftedWindows(self)


class ShiftedWindows(nn.Module):
    """See `ShiftedWindowsConfig`. `[batch, rows, columns, dims[0]]` → `[batch, tokens, dims[-1]]`, row by row.

    >>> config = ShiftedWindowsConfig(dims=(8, 16), depths=(2, 2), heads=(1, 2), window_size=3)
    >>> config.build()(torch.randn(2, 6, 7, 8)).shape
    torch.Size([2, 12, 16])
    """

    def __init__(self, config: ShiftedWindowsConfig) -> None:
        super().__init__()
        self.config = config
        places = [(stage, n) for stage, depth in enumerate(config.depths) for n in range(depth)]
        self.blocks = nn.ModuleList(WindowBlock(config, stage, n) for stage, n in places)
        self.norm = nn.LayerNorm(config.dim, eps=config.eps)

    def forward(self, x: Tensor, *, lengths: Tensor | None = None, cache: object = None) -> Tensor:
        if lengths is not None or cache is not None:
            raise Unsupported("Shifted windows read whole grids, without lengths or a cache. Leave them out.")
        if x.dim() != 4 or x.shape[3] != self.config.dims[0]:
            raise BadInput(f"x has shape {list(x.shape)}; it must be [batch, rows, columns, {self.config.dims[0]}].")
        for block in self.blocks:
            x = block(x)
        return self.norm(x).flatten(1, 2)


class PatchMerging(nn.Module):
    """A linear map of the norm of four neighbours: `[batch, rows, columns, dim]` → half the rows and columns, `out`."""

    def __init__(self, dim: int, out: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * dim)
        self.reduction = nn.Linear(4 * dim, out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.pad(x, (0, 0, 0, x.shape[2] % 2, 0, x.shape[1] % 2))
        neighbours = [x[:, row::2, column::2] for column in range(2) for row in range(2)]
        return self.reduction(self.norm(torch.cat(neighbours, dim=-1)))


class WindowBlock(nn.Module):
    """x + attention(norm(x)) within windows, then x + feed_forward(norm(x)), over `[batch, rows, columns, dim]`.

    The first block of a stage merges the output of the stage before it.
    """

    def __init__(self, config: ShiftedWindowsConfig, stage: int, n: int) -> None:
        super().__init__()
        dim = config.dims[stage]
        self.window, self.shift = config.window_size, config.window_size // 2 if n % 2 else 0
        self.merge = PatchMerging(config.dims[stage - 1], dim) if stage and n == 0 else None
        self.attention_norm = nn.LayerNorm(dim, eps=config.eps)
        self.attention = WindowAttention(config, stage)
        self.feed_forward_norm = nn.LayerNorm(dim, eps=config.eps)
        self.feed_forward = FeedForward(dim, int(config.ratio * dim), config.activation)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.merge is None else self.merge(x)
        if min(x.shape[1:3]) < self.window:
            raise BadInput(
                f"The grid has {x.shape[1]} rows and {x.shape[2]} columns, fewer than windows of {self.window} × "
                f"{self.window}. Give larger images."
            )
        x = x + self.dropout(self.attend_windows(self.attention_norm(x)))
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))

    def attend_windows(self, x: Tensor) -> Tensor:
        """The attention of each window; what pads the grid to whole windows is read as zeros."""
        rows, columns = x.shape[1:3]
        shift = 0 if min(rows, columns) <= self.window else self.shift
        grid = (-(-rows // self.window) * self.window, -(-columns // self.window) * self.window)
        x = functional.pad(x, (0, 0, 0, grid[1] - columns, 0, grid[0] - rows))
        ids = window_documents(grid, self.window, shift, x.device) if shift else None
        x = x.roll((-shift, -shift), (1, 2)) if shift else x
        y = self.attention(cut_windows(x, self.window), None if ids is None else Documents(ids.repeat(x.shape[0], 1)))
        y = join_windows(y, self.window, grid)
        y = y.roll((shift, shift), (1, 2)) if shift else y
        return y[:, :rows, :columns]


class WindowAttention(nn.Module):
    """Multi-head attention with a learned number for each head and offset, `table [(2·window − 1)², heads]`."""

    def __init__(self, config: ShiftedWindowsConfig, stage: int) -> None:
        super().__init__()
        dim, self.heads, bias = config.dims[stage], config.heads[stage], config.qkv_bias
        divide_heads(dim, self.heads)
        self.q, self.k, self.v = (Linear(dim, dim, bias) for _ in range(3))
        self.out = Linear(dim, dim)
        self.table = nn.Parameter(torch.zeros((2 * config.window_size - 1) ** 2, self.heads))
        self.window, self.dropout = config.window_size, config.attention_dropout
        self.attend = Attend()

    def forward(self, x: Tensor, mask: Documents | None = None) -> Tensor:
        """x `[windows, tokens, dim]` → the same."""
        q, k, v = (split_heads(project(x), self.heads) for project in (self.q, self.k, self.v))
        index = window_offsets(self.window, x.device)  # [tokens, tokens]
        bias = PairBias(self.table[index].permute(2, 0, 1)[None])  # [1, heads, tokens, tokens]
        dropout = self.dropout if self.training else 0.0
        return self.out(merge_heads(self.attend(q, k, v, mask=mask, bias=bias, dropout=dropout)))


def cut_windows(x: Tensor, window: int) -> Tensor:
    """`[batch, rows, columns, dim]` → `[batch · windows, window², dim]`."""
    batch, rows, columns, dim = x.shape
    x = x.reshape(batch, rows // window, window, columns // window, window, dim)
    return x.transpose(2, 3).reshape(-1, window * window, dim)


def join_windows(x: Tensor, window: int, grid: Grid) -> Tensor:
    """`[batch · windows, window², dim]` → `[batch, rows, columns, dim]`."""
    rows, columns = grid
    x = x.reshape(-1, rows // window, columns // window, window, window, x.shape[2])
    return x.transpose(2, 3).reshape(-1, rows, columns, x.shape[-1])


@tensor_cache
def window_offsets(window: int, device: torch.device) -> Tensor:
    """`[window², window²]`: the number of each pair's offset of row and column.

    >>> window_offsets(2, torch.device("cpu"))[0].tolist()
    [4, 3, 1, 0]
    """
    place = torch.arange(window * window, device=device)
    row, column = place // window, place % window
    offset = row[:, None] - row + window - 1, column[:, None] - column + window - 1
    return offset[0] * (2 * window - 1) + offset[1]


@tensor_cache
def window_documents(grid: Grid, window: int, shift: int, device: torch.device) -> Tensor:
    """`[windows, window²]`: the region of each token of a rolled grid; tokens of one region were neighbours before.

    >>> window_documents((4, 2), 2, 1, torch.device("cpu")).tolist()
    [[1, 2, 1, 2], [4, 5, 7, 8]]
    """
    row, column = (region_of(size, window, shift, device) for size in grid)
    regions = row[:, None] * 3 + column  # [rows, columns]
    return cut_windows(regions[None, ..., None], window).squeeze(-1)


def region_of(size: int, window: int, shift: int, device: torch.device) -> Tensor:
    """0 before the last window, 1 within it, 2 for what was rolled to its end."""
    place = torch.arange(size, device=device)
    return (place >= size - window).long() + (place >= size - shift).long()
