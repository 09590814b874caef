"""Regard: attention, whole. Every mechanism behind one call, and a way to look inside."""

from . import models, nn
from .attention.attend import attend
from .attention.convert import causal_from_start, from_additive, from_attn_mask, from_hugging_face, from_key_padding
from .attention.look import look
from .attention.parts.edges import Edges
from .attention.parts.mask import Mask
from .attention.parts.masks import (
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
from .attention.parts.methods import Exact, Linformer, Method, Nystrom, Performer
from .attention.parts.parts import Parts
from .attention.parts.positions import Alibi, Bias, Position, Rotary, Shaw, T5Bias, TransformerXL
from .attention.parts.scores import Additive, Bilinear, Cosine, Dot, Score
from .attention.plan import Plan, plan
from .attention.view import View
from .errors import BadInput, Missing, RegardError, TooLarge, Unsupported
from .models.checkpoint.checkpoint import load
from .nn.hooks.edit import edit
from .nn.hooks.watch import watch

__version__ = "0.1.0"

__all__ = [
    "Additive",
    "Alibi",
    "BadInput",
    "Bias",
    "Bilinear",
    "Blocks",
    "Causal",
    "Cosine",
    "Dilated",
    "Documents",
    "Dot",
    "Edges",
    "Everything",
    "Exact",
    "Global",
    "Lengths",
    "Linformer",
    "Mask",
    "Method",
    "Missing",
    "NearBlocks",
    "Nystrom",
    "Pairs",
    "Parts",
    "Performer",
    "Plan",
    "Position",
    "RandomBlocks",
    "RegardError",
    "Rotary",
    "Score",
    "Shaw",
    "T5Bias",
    "TooLarge",
    "TransformerXL",
    "Unsupported",
    "View",
    "Window",
    "attend",
    "bigbird",
    "causal_from_start",
    "edit",
    "from_additive",
    "from_attn_mask",
    "from_hugging_face",
    "from_key_padding",
    "load",
    "longformer",
    "look",
    "models",
    "nn",
    "plan",
    "watch",
]
