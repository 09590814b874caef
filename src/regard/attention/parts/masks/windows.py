"""Masks by distance: every key, earlier keys, windows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..mask import ALL, KeyBounds, Mask, Tiling
from ..part import check_count
from .tile_states import states_from


@dataclass(frozen=True, eq=False, repr=False)
class Everything(Mask):
    """Every query attends to every key."""

    formula = "always"

    @property
    def by_rows(self) -> bool:
        return True

    @property
    def allows_future(self) -> bool:
        return True

    def allow(self, i: Tensor, j: Tensor) -> Tensor:
        return torch.ones_like(i + j, dtype=torch.bool)

    def tiles(self, tiling: Tiling) -> Tensor:
        return torch.full((1, 1, *tiling.shape), ALL, dtype=torch.int8, device=tiling.grid.device)

    def key_span(self, first: int, last: int) -> KeyBounds:
        return -math.inf, math.inf


@dataclass(frozen=True, eq=False, repr=False)
class Causal(Mask):
    """A query attends to itself and to earlier keys: j ≤ i.

    >>> Causal().dense(2, 3).int().tolist()
    [[1, 1, 0], [1, 1, 1]]
    """

    formula = "j ≤ i"

    @property
    def causal(self) -> bool:
        return True

    def allow(self, i: Tensor, j: Tensor) -> Tensor:
        return j <= i

    def tiles(self, tiling: Tiling) -> Tensor:
        least, most = tiling.distances()
        return states_from(least >= 0, most < 0)

    def key_span(self, first: int, last: int) -> KeyBounds:
        return -math.inf, last


@dataclass(frozen=True, eq=False, repr=False)
class Window(Mask):
    """A query attends to `before` earlier keys, itself and `after` later keys: i − before ≤ j ≤ i + after."""

    before: int
    after: int = 0
    formula = "i − before ≤ j ≤ i + after"

    def __post_init__(self) -> None:
        check_count(self.before, "Window's before")
        check_count(self.after, "Window's after")

    @property
    def causal(self) -> bool:
        return self.after == 0

    def allow(self, i: Tensor, j: Tensor) -> Tensor:
        return (j >= i - self.before) & (j <= i + self.after)

    def tiles(self, tiling: Tiling) -> Tensor:
        least, most = tiling.distances()
        return states_from((least >= -self.after) & (most <= self.before), (most < -self.after) | (least > self.before))

    def key_span(self, first: int, last: int) -> KeyBounds:
        return first - self.before, last + self.after


@dataclass(frozen=True, eq=False, repr=False)
class Dilated(Mask):
    """A dilated window: every `step`-th key, `before` of them earlier and `after` of them later."""

    before: int
    after: int
    step: int
    formula = "(i − j) % step = 0 and −after·step ≤ i − j ≤ before·step"

    def __post_init__(self) -> None:
        check_count(self.before, "Dilated's before")
        check_count(self.after, "Dilated's after")
        check_count(self.step, "Dilated's step", 1)

    @property
    def causal(self) -> bool:
        return self.after == 0

    def allow(self, i: Tensor, j: Tensor) -> Tensor:
        distance = i - j
        near = (distance <= self.before * self.step) & (distance >= -self.after * self.step)
        return near & (distance % self.step == 0)

    def tiles(self, tiling: Tiling) -> Tensor:
        least, most = tiling.distances()
        low, high = least.clamp(min=-self.after * self.step), most.clamp(max=self.before * self.step)
        some = torch.div(high, self.step, rounding_mode="floor") * self.step >= low
        inside = (least >= -self.after * self.step) & (most <= self.before * self.step)
        return states_from(inside & some & ((least == most) | (self.step == 1)), ~some)

    def key_span(self, first: int, last: int) -> KeyBounds:
        return first - self.before * self.step, last + self.after * self.step
