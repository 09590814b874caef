"""Positions that differ from layer to layer: their specification in the configuration of a stack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from ...attention.parts.part import Part, PartSpec
from ...attention.parts.positions import Position


@dataclass(frozen=True, eq=False, repr=False)
class LayerPositions(PartSpec, Position):
    """One position for each layer; None is a layer without (NoPE).

    >>> from regard import Rotary
    >>> LayerPositions((Rotary(), None)).positions[1]
    """

    positions: tuple[Position | None, ...]

    def build_layers(self, build: Callable[[Part], nn.Module]) -> LayerPositionModules:
        """The modules of all layers; `build` makes that of one position."""
        return LayerPositionModules(self.positions, build)


class LayerPositionModules(nn.Module):
    """The module of each layer's position, or None; layers with equal positions share one."""

    def __init__(self, positions: tuple[Position | None, ...], build: Callable[[Part], nn.Module]) -> None:
        super().__init__()
        unique = list(dict.fromkeys(position for position in positions if position is not None))
        self.unique = nn.ModuleList(build(position) for position in unique)
        self.index = [None if position is None else unique.index(position) for position in positions]

    def by_layer(self) -> list[nn.Module | None]:
        return [None if n is None else self.unique[n] for n in self.index]
