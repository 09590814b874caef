"""Masks that differ from layer to layer: their specification in the configuration of a stack."""

from __future__ import annotations

from dataclasses import dataclass

from ...attention.parts.mask import Mask, PairGrid
from ...errors import BadInput


class LayerMask(Mask):
    """A mask that each layer of a stack has another of. Subclasses write `at_layer`; `attend` refuses it."""

    def check(self, grid: PairGrid) -> None:
        raise BadInput(f"{self!r} has a mask for each layer. Pass that of one layer: .at_layer(0, training=False).")


@dataclass(frozen=True, eq=False, repr=False)
class LayerMasks(LayerMask):
    """One mask for each layer; None allows every pair.

    >>> from regard import Causal, Window
    >>> LayerMasks((Causal(), Causal() & Window(7))).at_layer(1, training=False)
    Causal() & Window(before=7)
    """

    masks: tuple[Mask | None, ...]

    def at_layer(self, layer: int, training: bool) -> Mask | None:
        return self.masks[layer]
