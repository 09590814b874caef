"""Rows of different length without their padding: what is computed token by token sees real tokens only."""

from __future__ import annotations

import torch
from torch import Tensor

from ..attention.blind import blind
from ..attention.errors import BadInput


class Rows:
    """Where the real tokens of a padded batch stand: `pack` takes them out, `pad` puts them back."""

    def __init__(self, lengths: Tensor, tokens: int) -> None:
        self.lengths, self.tokens, self.batch = lengths, tokens, lengths.shape[0]
        real = torch.arange(tokens, device=lengths.device) < lengths[:, None]  # [batch, tokens]
        self.index = real.flatten().nonzero().squeeze(1)  # [real tokens]

    def pack(self, x: Tensor) -> Tensor:
        """`[batch, tokens, …]` → `[real tokens, …]`."""
        return x.flatten(0, 1).index_select(0, self.index)

    def pad(self, x: Tensor) -> Tensor:
        """`[real tokens, …]` → `[batch, tokens, …]`, zero where there is padding."""
        padded = x.new_zeros(self.batch * self.tokens, *x.shape[1:])
        return padded.index_copy(0, self.index, x).unflatten(0, (self.batch, self.tokens))


def rows_of(x: Tensor, lengths: Tensor | None) -> Rows | None:
    """The rows of a padded batch; None when nothing is padded, or where sizes may not depend on data."""
    if lengths is None:
        return None
    if lengths.shape != x.shape[:1]:
        raise BadInput(f"lengths has shape {list(lengths.shape)}; it must be [{x.shape[0]}], one a row of the batch.")
    if blind():
        return None
    rows = Rows(lengths, x.shape[1])
    return None if rows.index.shape[0] == x.shape[0] * x.shape[1] else rows


def real_tokens(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Which tokens of `x [batch, tokens, …]` are no padding, boolean `[batch, tokens]`."""
    places = torch.arange(x.shape[1], device=x.device)
    return (places < places.shape[0] if lengths is None else places < lengths[:, None]).expand(x.shape[:2])


def cleared(x: Tensor, real: Tensor | None) -> Tensor:
    """x with zeros where a token is not real."""
    return x if real is None else x.masked_fill(~real[..., None], 0.0)
