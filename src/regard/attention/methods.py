"""Methods: exact attention, or an approximation that says how far off it is."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .call import Call
from .part import Part


class Method(Part):
    """How the weights are computed."""

    def attend(self, call: Call) -> Tensor:
        """The output by this method; raises `Unsupported` for parts that its mathematics does not allow."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False, repr=False)
class Exact(Method):
    """Every weight, to rounding."""

    formula = "softmax(score) v"
