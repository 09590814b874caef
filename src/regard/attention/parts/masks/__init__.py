"""The masks, and presets that combine them.

Each defines `allow(i, j)` (or `permits`, where it depends on the sizes of the call) and the exact states of its tiles.
"""

from .blocks import Blocks, NearBlocks, RandomBlocks
from .language import Chunked, Prefix, Tree
from .presets import bigbird, longformer
from .tokens import Documents, Global, Lengths, Pairs
from .windows import Causal, Dilated, Everything, Window

__all__ = [
    "Blocks",
    "Causal",
    "Chunked",
    "Dilated",
    "Documents",
    "Everything",
    "Global",
    "Lengths",
    "NearBlocks",
    "Pairs",
    "Prefix",
    "RandomBlocks",
    "Tree",
    "Window",
    "bigbird",
    "longformer",
]
