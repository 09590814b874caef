"""The patches of images as a grid of vectors, for layers that read rows and columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from .embedding import Embedding, Input
from .images import Patches, need_images


@dataclass(frozen=True)
class PatchGridConfig:
    """The norm of each patch of `patch` × `patch` pixels (ε `norm`), as in Swin.

    With `positions` a learned vector is added for each place of the grid of images of `size` pixels, interpolated
    (bicubic) for other sizes. Images are padded with zeros to a multiple of `patch`.
    """

    reads: ClassVar[Input] = "images"
    size: int | tuple[int, int]
    patch: int
    dim: int
    channels: int = 3
    norm: float = 1e-5
    positions: bool = False
    dropout: float = 0.0

    def build(self) -> PatchGrid:
        return PatchGrid(self)


class PatchGrid(Embedding):
    """See `PatchGridConfig`. `images [batch, channels, height, width]` → `[batch, rows, columns, dim]`."""

    reads = "images"

    def __init__(self, config: PatchGridConfig) -> None:
        super().__init__()
        height, width = (config.size, config.size) if isinstance(config.size, int) else config.size
        self.patches = Patches(config.channels, config.patch, config.dim)
        self.norm = nn.LayerNorm(config.dim, eps=config.norm)
        grid = height // config.patch, width // config.patch
        self.places = nn.Parameter(torch.randn(*grid, config.dim) * 0.02) if config.positions else None
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, images: Tensor) -> Tensor:
        height, width = need_images(images, self.patches.channels)
        patch = self.patches.patch
        if height % patch or width % patch:
            images = functional.pad(images, (0, -width % patch, 0, -height % patch))
        grid = images.shape[2] // patch, images.shape[3] // patch
        x = self.norm(self.patches(images).unflatten(1, grid))  # [batch, rows, columns, dim]
        if self.places is not None:
            x = x + resize_grid(self.places, grid)
        return self.dropout(x)


def resize_grid(table: Tensor, grid: tuple[int, int]) -> Tensor:
    """A table `[rows, columns, dim]` for another grid."""
    if tuple(table.shape[:2]) == grid:
        return table
    return functional.interpolate(table.permute(2, 0, 1)[None], size=grid, mode="bicubic")[0].permute(1, 2, 0)
