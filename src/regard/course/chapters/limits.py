"""Chapter 5, second half: order, positions, cost and what weights explain."""

from __future__ import annotations

from ..step import Step

LIMITS: tuple[Step, ...] = ()
