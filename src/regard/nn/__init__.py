"""Layers: attention with several heads, blocks and stacks of it, embeddings, and the things to compare with."""

from .attention import Attend, Memory, MultiHeadAttention
from .block import Block, FeedForward, Stack, StackConfig
from .cache import Cache
from .embeddings import Learned, Sinusoidal, Text, TextEmbedding, sinusoids

__all__ = [
    "Attend",
    "Block",
    "Cache",
    "FeedForward",
    "Learned",
    "Memory",
    "MultiHeadAttention",
    "Sinusoidal",
    "Stack",
    "StackConfig",
    "Text",
    "TextEmbedding",
    "sinusoids",
]
