"""The residual embedding of images: stages of residual convolution blocks before a stack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..old_names import accept_old_names
from .embedding import Embedding, Input
from .images import BasicBlock, SinusoidalPositions2d, flatten_map, need_images


@accept_old_names(places="positions")
@dataclass(frozen=True)
class ResidualEmbeddingConfig:
    """A 3 × 3 convolution, then `blocks` residual blocks of each of `widths`; every width but the first halves the map.

    images `[batch, channels, height, width]` → `[batch, positions, dim]`, row by row. `positions` adds two-dimensional
    sinusoids, for layers without positions of their own.
    """

    reads: ClassVar[Input] = "images"
    channels: int
    dim: int
    widths: tuple[int, ...] = (64, 128, 256)
    blocks: int = 2
    positions: bool = False

    def build(self) -> ResidualEmbedding:
        return ResidualEmbedding(self)


class ResidualEmbedding(Embedding):
    """See `ResidualEmbeddingConfig`.

    >>> ResidualEmbeddingConfig(channels=1, dim=16, widths=(4, 8)).build()(torch.randn(2, 1, 8, 6)).shape
    torch.Size([2, 12, 16])
    """

    reads = "images"

    def __init__(self, config: ResidualEmbeddingConfig) -> None:
        super().__init__()
        self.channels = config.channels
        self.first = nn.Conv2d(config.channels, config.widths[0], 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(config.widths[0])
        sizes = zip((config.widths[0], *config.widths), config.widths, strict=False)
        self.stages = nn.Sequential(
            *(
                BasicBlock(before if n == 0 else width, width, 2 if n == 0 and stage else 1, nn.BatchNorm2d)
                for stage, (before, width) in enumerate(sizes)
                for n in range(config.blocks)
            )
        )
        last = config.widths[-1]
        self.projection = nn.Conv2d(last, config.dim, 1) if last != config.dim else None
        self.places = SinusoidalPositions2d(config.dim) if config.positions else None

    def forward(self, images: Tensor) -> Tensor:
        need_images(images, self.channels)
        x = self.stages(functional.relu(self.norm(self.first(images))))
        x, grid = flatten_map(x if self.projection is None else self.projection(x))
        if self.places is None:
            return x
        real = torch.ones(1, *grid, dtype=torch.bool, device=x.device)
        return x + self.places(real).to(x.dtype)
