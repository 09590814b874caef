"""The patch embedding of images: a class token, patches, and learned positions, as in ViT."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...errors import BadInput
from .embedding import Embedding, Input
from .images import Patches
from .text import LearnedPositions


@dataclass(frozen=True)
class ImageEmbeddingConfig:
    """`[class token, patches row by row] + position`, then a norm and dropout if given.

    Positions are learned for images of `size` pixels, one number or (height, width), and interpolated for images of
    other sizes, which must be multiples of `patch`: `resize` is "bicubic", or "bilinear" with antialiasing (NaFlex).
    Where `size` is no multiple, the last pixels of its images are not read (SigLIP: 384 by patches of 14).
    `mask_token` stores the vector of a masked patch, which models trained on masked images have. Without `class_token`
    there are patches alone.
    """

    reads: ClassVar[Input] = "images"
    size: int | tuple[int, int]
    patch: int
    dim: int
    channels: int = 3
    bias: bool = True
    norm: float | None = None
    dropout: float = 0.0
    mask_token: bool = False
    class_token: bool = True
    resize: Literal["bicubic", "bilinear"] = "bicubic"

    def build(self) -> ImageEmbedding:
        return ImageEmbedding(self)


class ImageEmbedding(Embedding):
    """See `ImageEmbeddingConfig`. `images [batch, channels, height, width]` → `[batch, 1 + patches, dim]`."""

    reads = "images"

    def __init__(self, config: ImageEmbeddingConfig) -> None:
        super().__init__()
        size = (config.size, config.size) if isinstance(config.size, int) else config.size
        self.resize = config.resize
        self.patches = Patches(config.channels, config.patch, config.dim, config.bias, size)
        self.grid = self.patches.grid(*size)
        self.first = nn.Parameter(torch.randn(config.dim) * 0.02) if config.class_token else None
        self.mask = nn.Parameter(torch.zeros(config.dim)) if config.mask_token else None
        self.places = LearnedPositions(self.class_tokens + self.grid[0] * self.grid[1], config.dim)
        self.norm = nn.LayerNorm(config.dim, eps=config.norm) if config.norm is not None else None
        self.dropout = nn.Dropout(config.dropout)

    @property
    def class_tokens(self) -> int:
        return 0 if self.first is None else 1

    def forward(self, images: Tensor, sizes: Tensor | None = None) -> Tensor:
        """`sizes [batch, 2]` are the height and width in pixels of each image, the rest of which is padding: its own
        patches come first in its row, and `patch_counts` says how many there are."""
        x = self.patches(images)
        grid = self.patches.grid(*images.shape[2:])
        if sizes is None:
            table = self.position_table(grid)
        else:
            grids = self.check_sizes(images, sizes)
            x = gather_patches(x, sizes // self.patches.patch, grid[1])
            unique = {own: self.position_table(own) for own in set(grids)}
            table = nn.utils.rnn.pad_sequence([unique[own] for own in grids], batch_first=True)
        if self.first is not None:
            x = torch.cat([self.first.expand(x.shape[0], 1, -1), x], dim=1)
        x = x + table
        return self.dropout(x if self.norm is None else self.norm(x))

    def check_sizes(self, images: Tensor, sizes: Tensor) -> list[tuple[int, int]]:
        """The grid of each image, or `BadInput`."""
        if sizes.shape != (images.shape[0], 2) or sizes.is_floating_point():
            raise BadInput(
                f"sizes is {sizes.dtype} {list(sizes.shape)}; it must be whole numbers [{images.shape[0]}, 2], the "
                "height and width of each image in pixels."
            )
        for height, width in sizes.tolist():
            if height > images.shape[2] or width > images.shape[3]:
                raise BadInput(
                    f"sizes has {height} × {width} pixels, and images have {images.shape[2]} × {images.shape[3]}. Pad "
                    "images to the largest size."
                )
        return [self.patches.grid(*size) for size in sizes.tolist()]

    def patch_counts(self, sizes: Tensor) -> Tensor:
        """The number of tokens of images of these sizes, `[batch]`."""
        return (sizes // self.patches.patch).prod(1) + self.class_tokens

    def position_table(self, grid: tuple[int, int]) -> Tensor:
        """`[1 + patches, dim]`: the position embeddings for a grid of (rows, columns) patches."""
        if grid == self.grid:
            return self.places.weight
        first, table = self.places.weight.split([self.class_tokens, self.grid[0] * self.grid[1]])
        table, dtype = table.t().unflatten(1, self.grid)[None], table.dtype  # [1, dim, rows, columns]
        if self.resize == "bilinear":  # in float32: torch has no antialiasing in half precision on a CPU
            exact = torch.promote_types(dtype, torch.float32)
            table = functional.interpolate(table.to(exact), size=grid, mode="bilinear", antialias=True).to(dtype)
        else:
            table = functional.interpolate(table, size=grid, mode="bicubic")
        return torch.cat([first, table[0].flatten(1).t()])


def gather_patches(x: Tensor, grids: Tensor, columns: int) -> Tensor:
    """The patches of each image at the beginning of its row, of `x [batch, patches, dim]` in rows of `columns`.

    `grids [batch, 2]` are the rows and columns of patches that belong to an image; what follows them is zero.

    >>> x = torch.arange(6.0).view(1, 6, 1)  # 2 rows of 3 columns
    >>> gather_patches(x, torch.tensor([[2, 2]]), 3).flatten().tolist()
    [0.0, 1.0, 3.0, 4.0]
    """
    counts, own = grids.prod(1), grids[:, 1:]
    place = torch.arange(int(counts.max()), device=x.device)
    real = place < counts[:, None]  # [batch, most]
    index = (place // own * columns + place % own).masked_fill(~real, 0)
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[2])).masked_fill(~real[..., None], 0.0)


def fit_patches(height: int, width: int, patch: int, most: int) -> tuple[int, int]:
    """The largest (height, width) in multiples of `patch` at the same ratio, rounded up, with `most` patches (NaFlex).

    >>> fit_patches(480, 640, patch=16, most=256)
    (224, 288)
    """
    by_height = ((rows, -(-width * rows // height)) for rows in range(1, most + 1))
    by_width = ((-(-height * columns // width), columns) for columns in range(1, most + 1))
    fitting = [grid for grids in (by_height, by_width) for grid in grids if grid[0] * grid[1] <= most]
    rows, columns = max(fitting, key=lambda grid: grid[0] * grid[1])
    return rows * patch, columns * patch
