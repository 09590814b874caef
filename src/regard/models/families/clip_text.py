"""CLIP's text tower alone: `clip`'s table, where their names may have the tower's before them."""

from .clip import IGNORED, keys, read, write

PREFIX = "text_model."

__all__ = ["IGNORED", "PREFIX", "keys", "read", "write"]
