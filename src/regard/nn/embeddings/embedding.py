"""What every embedding states: the input that it reads, and how many tokens it makes of it."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor, nn

Input = Literal["tokens", "images", "sound", "columns"]
"""The argument of a model that an embedding reads."""


class Embedding(nn.Module):
    """A module from the input that it `reads` to `[batch, tokens, dim]`."""

    reads: ClassVar[Input] = "tokens"

    def lengths_after(self, lengths: Tensor) -> Tensor:
        """The number of tokens that inputs of these lengths become."""
        return lengths
