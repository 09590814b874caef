"""Images as tokens: patches, feature maps, residual networks, and two-dimensional positions."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...errors import BadInput

RESNET_BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}
"""Blocks in each of a ResNet's four stages, by its depth."""


class Patches(nn.Module):
    """Patch embedding: each square of `patch` × `patch` pixels as a vector, row by row, as in ViT.

    images `[batch, channels, height, width]` → `[batch, patches, dim]`: a linear map of each square's pixels. Images
    are cut without a rest; those of `size` pixels may have one, at the right and at the bottom, which is not read.

    >>> Patches(channels=3, patch=4, dim=16)(torch.randn(2, 3, 8, 12)).shape
    torch.Size([2, 6, 16])
    """

    def __init__(
        self, channels: int, patch: int, dim: int, bias: bool = True, size: tuple[int, int] | None = None
    ) -> None:
        super().__init__()
        self.channels, self.patch, self.size = channels, patch, size
        self.projection = nn.Conv2d(channels, dim, patch, stride=patch, bias=bias)

    def forward(self, images: Tensor) -> Tensor:
        self.grid(*need_images(images, self.channels))
        return self.projection(images).flatten(2).mT

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """The rows and columns of patches."""
        whole = height % self.patch == 0 and width % self.patch == 0
        if not (whole or (height, width) == self.size) or min(height, width) < self.patch:
            raise BadInput(
                f"An image of {height} × {width} pixels is not cut by patches of {self.patch} × {self.patch}. "
                "Resize or pad it to a multiple."
            )
        return height // self.patch, width // self.patch


class Features(NamedTuple):
    """A feature map, row by row `[batch, positions, dim]`, and its grid (rows, columns)."""

    x: Tensor
    grid: tuple[int, int]


class FeatureMap(nn.Module):
    """A small convolutional stem: for each stage a convolution with a stride and ReLU, then one to `dim`.

    images `[batch, channels, height, width]` → `Features`, `[batch, positions, dim]` with their grid; each stride s
    makes rows and columns ⌈size / s⌉.

    >>> FeatureMap(channels=1, dim=16, hidden=(8, 12), strides=(2, 2))(torch.randn(2, 1, 28, 28)).grid
    (7, 7)
    """

    def __init__(
        self,
        channels: int,
        dim: int,
        hidden: tuple[int, ...] = (32, 64),
        strides: tuple[int, ...] = (2, 2),
        kernel: int = 3,
    ) -> None:
        super().__init__()
        if len(hidden) != len(strides):
            raise BadInput(
                f"There are {len(hidden)} hidden sizes and {len(strides)} strides. Give one of each a stage."
            )
        if kernel % 2 == 0:
            raise BadInput(f"FeatureMap's kernel is {kernel}; it must be odd, so that it has a middle.")
        self.channels = channels
        sizes = zip((channels, *hidden), hidden, strides, strict=False)
        stages = [nn.Conv2d(a, b, kernel, stride, padding=kernel // 2) for a, b, stride in sizes]
        self.stages = nn.ModuleList(stages)
        self.projection = nn.Conv2d(hidden[-1] if hidden else channels, dim, 1)

    def forward(self, images: Tensor) -> Features:
        need_images(images, self.channels)
        x = images
        for stage in self.stages:
            x = functional.relu(stage(x))
        return flatten_map(self.projection(x))


def flatten_map(x: Tensor) -> Features:
    """A map `[batch, dim, rows, columns]` as `[batch, rows · columns, dim]`, row by row, with its grid."""
    return Features(x.flatten(2).mT, (x.shape[2], x.shape[3]))


class FrozenBatchNorm(nn.Module):
    """Batch normalisation with fixed statistics: (x − mean) / √(variance + ε) · weight + bias, all buffers."""

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        for name, value in (("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0)):
            self.register_buffer(name, torch.full((channels,), value))

    def forward(self, x: Tensor) -> Tensor:
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        shift = self.bias - self.running_mean * scale
        return x * scale[:, None, None] + shift[:, None, None]


class BasicBlock(nn.Module):
    """Two 3 × 3 convolutions with a residual connection: the block of ResNet-18 and 34."""

    growth = 1

    def __init__(self, channels: int, hidden: int, stride: int, norm: type[nn.Module]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, hidden, 3, stride, padding=1, bias=False)
        self.bn1 = norm(hidden)
        self.conv2 = nn.Conv2d(hidden, hidden, 3, padding=1, bias=False)
        self.bn2 = norm(hidden)
        self.downsample = make_shortcut(channels, hidden, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return functional.relu(y + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    """1 × 1, 3 × 3 (with the stride) and 1 × 1 convolutions with a residual: the block of ResNet-50 and 101."""

    growth = 4

    def __init__(self, channels: int, hidden: int, stride: int, norm: type[nn.Module]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, hidden, 1, bias=False)
        self.bn1 = norm(hidden)
        self.conv2 = nn.Conv2d(hidden, hidden, 3, stride, padding=1, bias=False)
        self.bn2 = norm(hidden)
        self.conv3 = nn.Conv2d(hidden, 4 * hidden, 1, bias=False)
        self.bn3 = norm(4 * hidden)
        self.downsample = make_shortcut(channels, 4 * hidden, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.bn1(self.conv1(x)))
        y = functional.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return functional.relu(y + (x if self.downsample is None else self.downsample(x)))


class Pointwise(nn.Conv2d):
    """A 1 × 1 convolution that applies the stride before it multiplies.

    oneDNN's strided one writes out of bounds in backward with few channels (torch 2.13).
    """

    def forward(self, input: Tensor) -> Tensor:
        down, right = self.stride
        return nn.functional.conv2d(input[:, :, ::down, ::right], self.weight, self.bias)


def make_shortcut(channels: int, out_channels: int, stride: int, norm: type[nn.Module]) -> nn.Sequential | None:
    """The projection of x to the shape of a block's output; None where the shapes are equal."""
    if channels == out_channels and stride == 1:
        return None
    return nn.Sequential(Pointwise(channels, out_channels, 1, stride, bias=False), norm(out_channels))


class ResNet(nn.Module):
    """A residual network without its classifier: `[batch, channels, h, w]` → `[batch, dim, ⌈h/32⌉, ⌈w/32⌉]`.

    dim is 512 for depths 18 and 34, 2048 for 50 and 101. Parameters have the names of the published checkpoints
    (`conv1`, `bn1`, `layer1.0.conv1`, `layer1.0.downsample.0`). With `frozen_norm`, as in DETR, batch normalisation
    has fixed buffers.

    >>> ResNet(18)(torch.randn(1, 3, 64, 96)).shape
    torch.Size([1, 512, 2, 3])
    """

    def __init__(self, depth: int = 50, channels: int = 3, frozen_norm: bool = True) -> None:
        super().__init__()
        if depth not in RESNET_BLOCKS:
            raise BadInput(f"ResNet's depth is {depth}; it must be one of {', '.join(map(str, RESNET_BLOCKS))}.")
        self.depth, self.channels = depth, channels
        block = BasicBlock if depth < 50 else Bottleneck
        norm = FrozenBatchNorm if frozen_norm else nn.BatchNorm2d
        self.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = norm(64)
        self.dim = 64
        self.layer1, self.layer2, self.layer3, self.layer4 = (
            self.stage(block, 64 << n, count, 1 if n == 0 else 2, norm) for n, count in enumerate(RESNET_BLOCKS[depth])
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def stage(
        self, block: type[BasicBlock | Bottleneck], hidden: int, count: int, stride: int, norm: type[nn.Module]
    ) -> nn.Sequential:
        """`count` blocks, the first of which takes the stride."""
        first = block(self.dim, hidden, stride, norm)
        self.dim = hidden * block.growth
        return nn.Sequential(first, *(block(self.dim, hidden, 1, norm) for _ in range(count - 1)))

    def forward(self, images: Tensor) -> Tensor:
        need_images(images, self.channels)
        x = functional.relu(self.bn1(self.conv1(images)))
        x = functional.max_pool2d(x, 3, stride=2, padding=1)
        return self.layer4(self.layer3(self.layer2(self.layer1(x))))


def shrink_mask(mask: Tensor, grid: tuple[int, int]) -> Tensor:
    """Which positions of a map are not padding, `[batch, rows, columns]`, from `mask [batch, height, width]`.

    A position takes the value of the pixel at its upper left corner, as in DETR.
    """
    return functional.interpolate(mask[:, None].float(), size=grid)[:, 0].bool()


class SinusoidalPositions2d(nn.Module):
    """Sine and cosine of each position's row and column, half of `dim` each, as in DETR.

        y = rows up to and including it / rows · 2π   (the count when `normalize` is off)
        position[2n], position[2n + 1] = sin(y / base^(4n/dim)), cos(y / base^(4n/dim));  then the same of x

    mask `[batch, rows, columns]`, True for the image, → `[batch, rows · columns, dim]`. Padding does not count.

    >>> SinusoidalPositions2d(8)(torch.ones(2, 3, 5, dtype=torch.bool)).shape
    torch.Size([2, 15, 8])
    """

    def __init__(self, dim: int, normalize: bool = True, base: float = 10000.0) -> None:
        super().__init__()
        if dim % 4:
            raise BadInput(
                f"SinusoidalPositions2d's dim is {dim}; it must be a multiple of 4: sine and cosine of row and column."
            )
        self.dim, self.normalize, self.base = dim, normalize, base

    def forward(self, mask: Tensor) -> Tensor:
        need_mask(mask)
        y, x = (mask.cumsum(axis, dtype=torch.float32) for axis in (1, 2))
        if self.normalize:
            y, x = (2 * math.pi * count / (count.amax(axis, keepdim=True) + 1e-6) for count, axis in ((y, 1), (x, 2)))
        return torch.cat([self.waves(y), self.waves(x)], -1).flatten(1, 2)

    def waves(self, positions: Tensor) -> Tensor:
        """`[batch, rows, columns]` → `[batch, rows, columns, dim / 2]`."""
        rate = self.base ** (-torch.arange(0, self.dim // 2, 2, device=positions.device) / (self.dim // 2))
        angle = positions[..., None] * rate
        return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)


class LearnedPositions2d(nn.Module):
    """A learned vector for each column and each row, half of `dim` each, one after the other.

    mask `[batch, rows, columns]` → `[batch, rows · columns, dim]`; at most `size` rows and columns.

    >>> LearnedPositions2d(8, size=10)(torch.ones(2, 3, 5, dtype=torch.bool)).shape
    torch.Size([2, 15, 8])
    """

    def __init__(self, dim: int, size: int = 50) -> None:
        super().__init__()
        if dim % 2:
            raise BadInput(
                f"LearnedPositions2d's dim is {dim}; it must be even: half for the column, half for the row."
            )
        self.size = size
        self.rows, self.columns = nn.Embedding(size, dim // 2), nn.Embedding(size, dim // 2)
        for table in (self.rows, self.columns):
            nn.init.uniform_(table.weight)

    def forward(self, mask: Tensor) -> Tensor:
        need_mask(mask)
        batch, rows, columns = mask.shape
        if max(rows, columns) > self.size:
            raise BadInput(
                f"The map has {rows} × {columns} positions; LearnedPositions2d has {self.size} rows and columns."
            )
        x = self.columns.weight[:columns].expand(rows, -1, -1)
        y = self.rows.weight[:rows, None].expand(-1, columns, -1)
        return torch.cat([x, y], -1).flatten(0, 1).expand(batch, -1, -1)


def need_images(images: Tensor, channels: int) -> tuple[int, int]:
    """Height and width of the images, or `BadInput`."""
    if images.dim() != 4 or images.shape[1] != channels:
        raise BadInput(f"images have shape {list(images.shape)}; they must be [batch, {channels}, height, width].")
    return images.shape[2], images.shape[3]


def need_mask(mask: Tensor) -> None:
    if mask.dim() != 3 or mask.dtype != torch.bool:
        raise BadInput(
            f"mask is {mask.dtype} {list(mask.shape)}; it must be boolean [batch, rows, columns], True for the image."
        )
