"""Random augmentation of images and audio frames, from the random generator of the batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

import torch
from torch import Tensor
from torch.nn import functional


def shift_images(images: Tensor, rng: Random, shift: int = 0, flip: bool = False) -> Tensor:
    """Images `[batch, channels, height, width]`, each shifted by up to `shift` pixels with its edge repeated, and half
    of them mirrored when `flip`."""
    batch, _, height, width = images.shape
    padded = functional.pad(images, (shift,) * 4, mode="replicate") if shift else images
    rows = torch.arange(height) + random_integers(rng, batch, 2 * shift)[:, None]
    columns = torch.arange(width) + random_integers(rng, batch, 2 * shift)[:, None]
    if flip:
        mirrored = random_integers(rng, batch, 1).bool()
        columns = torch.where(mirrored[:, None], columns.flip(1), columns)
    image = torch.arange(batch)[:, None, None]
    return padded[image, :, rows[:, :, None], columns[:, None]].permute(0, 3, 1, 2)


def rotate_images(images: Tensor, rng: Random, most: float, scale: float = 0.1) -> Tensor:
    """Images, each rotated about its centre by up to `most` degrees and scaled by up to 1 ± `scale`."""
    angles, sizes = (
        torch.tensor([rng.uniform(-side, side) for _ in range(len(images))]) for side in (math.radians(most), scale)
    )
    cos, sin, zero = angles.cos() / (1 + sizes), angles.sin() / (1 + sizes), torch.zeros_like(angles)
    ratio = images.shape[2] / images.shape[3]
    matrices = torch.stack([cos, -sin * ratio, zero, sin / ratio, cos, zero], 1).view(-1, 2, 3)
    grid = functional.affine_grid(matrices, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, padding_mode="border", align_corners=False)


def jitter_images(images: Tensor, rng: Random, strength: float) -> Tensor:
    """Images whose contrast and brightness change by up to `strength` deviations, separately for each channel."""
    batch, channels = images.shape[:2]
    contrast, brightness = (
        torch.tensor([rng.uniform(-strength, strength) for _ in range(batch * channels)]).view(batch, channels, 1, 1)
        for _ in range(2)
    )
    return images * (1 + contrast) + brightness


def cutout(images: Tensor, rng: Random, size: int) -> Tensor:
    """Images with a square of `size` pixels, partly outside perhaps, set to zero."""
    batch, _, height, width = images.shape
    top, left = (random_integers(rng, batch, side - 1)[:, None] - size // 2 for side in (height, width))
    rows, columns = torch.arange(height), torch.arange(width)
    inside_rows, inside_columns = (rows >= top) & (rows < top + size), (columns >= left) & (columns < left + size)
    return images.masked_fill((inside_rows[:, :, None] & inside_columns[:, None])[:, None], 0.0)


def mixup(batch: dict[str, Tensor], rng: Random, strength: float) -> dict[str, Tensor]:
    """The batch with each image a mixture of itself and another, whose labels are `other`; `share` is its own weight.

    share ~ Beta(strength, strength), the same for the whole batch;
    loss = share · loss(labels) + (1 − share) · loss(other).
    """
    images, labels = batch["images"], batch["labels"]
    share = rng.betavariate(strength, strength)
    order = list(range(len(labels)))
    rng.shuffle(order)
    images = share * images + (1 - share) * images[order]
    return {**batch, "images": images, "other": labels[order], "share": torch.tensor(share)}


def spec_augment(frames: Tensor, rng: Random, widest: Sequence[int], count: int = 2) -> Tensor:
    """Frames `[frames, bins]` with `count` spans of frames and of bins zeroed (SpecAugment), each at most `widest`."""
    frames = frames.clone()
    for axis, most in enumerate(widest):
        size = frames.shape[axis]
        for _ in range(count if most else 0):
            width = rng.randint(0, min(most, size // 2))
            frames.narrow(axis, rng.randint(0, size - width), width).zero_()
    return frames


def random_integers(rng: Random, count: int, most: int) -> Tensor:
    """`count` random integers from 0 to `most`."""
    return torch.tensor([rng.randint(0, most) for _ in range(count)])
