"""Figures and pages from plain arrays and strings: maps, curves, masks.

Nothing here knows attention's own types; `regard.attention` hands over arrays.
"""

__all__ = ["NEEDS_MATPLOTLIB"]

NEEDS_MATPLOTLIB = 'Figures are drawn with matplotlib, which is not installed: pip install "regard[figures]"'
