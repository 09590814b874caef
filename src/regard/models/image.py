"""Images as a stack's tokens: patches, a class token before them, and a learned place for each."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..nn.embeddings.images import Patches
from ..nn.embeddings.text import LearnedPositions


@dataclass(frozen=True)
class ImageEmbeddingConfig:
    """Images as vectors: `[class token, patches row by row] + place`, then a norm and dropout if asked.

    Places are learned for images of `size` pixels, one number or (height, width). An image of another size has the
    table's values between them (bicubic), as far as patches of `patch` × `patch` pixels cut it.
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
    """See `Image`. `images [batch, channels, height, width]` → `[batch, 1 + patches, dim]`."""

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
        """`[1 + patches, dim]`: the places of an image with this many patches below and beside each other."""
        if grid == self.grid:
            return self.places.weight
        table = self.places.weight[1:].t().unflatten(1, self.grid)  # [dim, rows, columns]
        table = functional.interpolate(table[None], size=grid, mode="bicubic")[0]
        return torch.cat([self.places.weight[:1], table.flatten(1).t()])
