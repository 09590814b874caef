"""Drawings of hearts, arrows, clocks and faces in random colours: pictures whose shape and colour are independent."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

SHAPES = ("heart", "arrow", "clock", "face")
SIDE = 32
OVERSAMPLING = 3


def sample_drawings(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Pictures on white, `[count, 3, SIDE, SIDE]` from 0 to 1, and the numbers of their shapes in `SHAPES`.

    Colour, place, size and rotation are random and independent of the shape.
    """
    labels = torch.randint(len(SHAPES), (count,), generator=generator)
    colours = 0.85 * torch.rand(count, 3, 1, 1, generator=generator)
    angles = (torch.rand(count, generator=generator) - 0.5) * math.pi / 6
    scales = 9 + 4 * torch.rand(count, 1, 1, generator=generator)
    shifts = 5 * (torch.rand(2, count, 1, 1, generator=generator) - 0.5)
    hours = 2 * math.pi * torch.rand(2, count, 1, 1, generator=generator)

    axis = (torch.arange(SIDE * OVERSAMPLING) + 0.5) / OVERSAMPLING - SIDE / 2
    down, right = torch.meshgrid(axis, axis, indexing="ij")
    x, y = (right - shifts[0]) / scales, -(down - shifts[1]) / scales  # the shape lies within −1 … 1, y is up
    cos, sin = angles.cos()[:, None, None], angles.sin()[:, None, None]
    x, y = cos * x - sin * y, sin * x + cos * y
    fills, darks, whites = (
        torch.stack(parts).gather(0, labels[None, :, None, None].expand(1, *x.shape))[0]
        for parts in zip(heart(x, y), arrow(x, y), clock(x, y, hours), face(x, y), strict=True)
    )
    pictures = torch.where(fills[:, None], colours, torch.ones(()))
    pictures = torch.where(whites[:, None], torch.ones(()), pictures)
    pictures = torch.where(darks[:, None], 0.3 * colours, pictures)
    return avg_pool2d(pictures, OVERSAMPLING), labels


def heart(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The pixels that are filled, dark and white inside, as in the next functions."""
    x, y = 1.2 * x, 1.2 * y + 0.1
    fill = (x**2 + y**2 - 1) ** 3 <= x**2 * y**3
    return fill, torch.zeros_like(fill), torch.zeros_like(fill)


def arrow(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    fill = ((x.abs() < 0.28) & (y > -1) & (y < 0.3)) | ((y > 0.1) & (x.abs() < 1 - y))
    return fill, torch.zeros_like(fill), torch.zeros_like(fill)


def clock(x: Tensor, y: Tensor, hours: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    radius = (x**2 + y**2).sqrt()
    hands = torch.zeros_like(radius, dtype=torch.bool)
    for angle, length in zip(hours, (0.45, 0.65), strict=True):
        along, across = x * angle.sin() + y * angle.cos(), x * angle.cos() - y * angle.sin()
        hands |= (along > 0) & (along < length) & (across.abs() < 0.09)
    return radius < 1, hands, radius < 0.78


def face(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    radius = (x**2 + y**2).sqrt()
    eyes = (x.abs() - 0.38) ** 2 + (y - 0.25) ** 2 < 0.025
    mouth = ((radius - 0.55).abs() < 0.08) & (y < -0.15)
    return radius < 1, eyes | mouth, torch.zeros_like(eyes)
