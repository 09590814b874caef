"""The five chapters, one module each, in the order of the notes they follow."""

from . import fully_connected, networks, self_attention, transformer, vector_sets

__all__ = ["CHAPTERS"]

CHAPTERS = (
    fully_connected.CHAPTER,
    transformer.CHAPTER,
    vector_sets.CHAPTER,
    networks.CHAPTER,
    self_attention.CHAPTER,
)
