"""Chapter 5, second half: order, positions, cost, what weights explain, and cheaper attention."""

from __future__ import annotations

from ...step import Step
from . import cheaper, costs, levels, order

__all__ = ["LIMITS"]

LIMITS: tuple[Step, ...] = (*order.STEPS, *costs.STEPS, *cheaper.STEPS, *levels.STEPS)
