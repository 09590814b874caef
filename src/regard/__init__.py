"""Regard: attention, whole. Every mechanism behind one call, and a way to look inside."""

from .attention.attend import attend
from .attention.errors import BadInput, Missing, RegardError, TooLarge, Unsupported
from .attention.graph import Edges
from .attention.mask import Mask
from .attention.masks import (
    Blocks,
    Causal,
    Dilated,
    Documents,
    Everything,
    Global,
    Lengths,
    NearBlocks,
    Pairs,
    RandomBlocks,
    Window,
    bigbird,
    longformer,
)
from .attention.methods import Exact, Method
from .attention.positions import Alibi, Bias, Position, Rotary, Shaw, T5Bias, TransformerXL
from .attention.scores import Additive, Bilinear, Cosine, Dot, Score

__version__ = "0.1.0"
