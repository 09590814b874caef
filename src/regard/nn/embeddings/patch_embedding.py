"""The patch embedding of images: a class token, patches, and learned positions, as in ViT."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from .images import Patches
from .text import LearnedPositions


@dataclass(frozen=True)
class ImageEmbeddingConfig:
    """`[class token, patches row by row] + position`, then a norm and dropout if given.

    Positions are learned for images of `size` pixels, one number or (height, width), and interpolated (bicubic) for
    images of other sizes, which must be multiples of `patch`.
    """

    size: int | tuple[int, int]
    patch: int
    dim: int
    channels: int = 3
    bias: bool = True
    norm: float | None = None
    dropout: float = 0.0

    def build(self) -> ImageEmbedding:
        return ImageEmbedding(self)


class ImageEmbedding(nn.Module):
    """See `ImageEmbeddingConfig`. `images [batch, channels, height, width]` → `[batch, 1 + patches, dim]`."""

    reads = "images"

    def __init__(self, config: ImageEmbeddingConfig) -> None:
        super().__init__()
        size = (config.size, config.size) if isinstance(config.size, int) else config.size
        self.patches = Patches(config.channels, config.patch, config.dim, config.bias)
        self.grid = self.patches.grid(*size)
        self.first = nn.Parameter(torch.randn(config.dim) * 0.02)
        self.places = LearnedPositions(1 + self.grid[0] * self.grid[1], config.dim)
        self.norm = nn.LayerNorm(config.dim, eps=config.norm) if config.norm is not None else None
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images)
        x = torch.cat([self.first.expand(x.shape[0], 1, -1), x], dim=1)
        x = x + self.position_table(self.patches.grid(*images.shape[2:]))
        return self.dropout(x if self.norm is None else self.norm(x))

    def position_table(self, grid: tuple[int, int]) -> Tensor:
        """`[1 + patches, dim]`: the position embeddings for a grid of (rows, columns) patches."""
        if grid == self.grid:
            return self.places.weight
        table = self.places.weight[1:].t().unflatten(1, self.grid)  # [dim, rows, columns]
        table = functional.interpolate(table[None], size=grid, mode="bicubic")[0]
        return torch.cat([self.places.weight[:1], table.flatten(1).t()])
