"""Rows of different length without their padding: what is computed token by token sees real tokens only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ..attention.tracing import shapes_only
from ..errors import BadInput


class Rows:
    """Where the real tokens of a padded batch stand: `pack` takes them out, `pad` puts them back.

    `places` says where, for those who may not look: numbers into the flattened batch, and some beyond it, whose tokens
    are computed and come to nothing.
    """

    def __init__(self, lengths: Tensor, tokens: int, places: Tensor | None = None) -> None:
        self.lengths, self.tokens, self.batch = lengths, tokens, lengths.shape[0]
        self.size, self.spare = self.batch * tokens, int(places is not None)
        if places is None:
            real = torch.arange(tokens, device=lengths.device) < lengths[:, None]  # [batch, tokens]
            self.index = self.inside = real.flatten().nonzero().squeeze(1)  # [real tokens]
        else:
            self.index, self.inside = places, places.clamp(max=self.size - 1)

    def pack(self, x: Tensor) -> Tensor:
        """`[batch, tokens, …]` → `[real tokens, …]`."""
        return x.flatten(0, 1).index_select(0, self.inside)

    def pad(self, x: Tensor) -> Tensor:
        """`[real tokens, …]` → `[batch, tokens, …]`, zero where there is padding."""
        padded = x.new_zeros(self.size + self.spare, *x.shape[1:]).index_copy(0, self.index, x)
        return padded[: self.size].unflatten(0, (self.batch, self.tokens))


_told: list[tuple[Tensor, Tensor]] = []


@contextmanager
def told(*pairs: tuple[Tensor, Tensor]) -> Iterator[None]:
    """While open, code under `shapes_only` knows of these (lengths, places): see `Rows`."""
    _told.extend(pairs)
    try:
        yield
    finally:
        del _told[len(_told) - len(pairs) :]


def rows_of(x: Tensor, lengths: Tensor | None) -> Rows | None:
    """The rows of a padded batch; None when nothing is padded, or where sizes may not depend on data."""
    if lengths is None:
        return None
    if lengths.shape != x.shape[:1]:
        raise BadInput(f"lengths has shape {list(lengths.shape)}; it must be [{x.shape[0]}], one a row of the batch.")
    if shapes_only():
        places = next((places for own, places in _told if own is lengths), None)
        return None if places is None else Rows(lengths, x.shape[1], places)
    rows = Rows(lengths, x.shape[1])
    return None if rows.index.shape[0] == x.shape[0] * x.shape[1] else rows


def real_tokens(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Which tokens of `x [batch, tokens, …]` are no padding, boolean `[batch, tokens]`."""
    places = torch.arange(x.shape[1], device=x.device)
    return (places < places.shape[0] if lengths is None else places < lengths[:, None]).expand(x.shape[:2])


def cleared(x: Tensor, real: Tensor | None) -> Tensor:
    """x with zeros where a token is not real."""
    return x if real is None else x.masked_fill(~real[..., None], 0.0)
