"""Packing: the real tokens of a padded batch without their padding, so that layers compute nothing for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from ..attention.sharding import token_positions
from ..attention.tracing import shapes_only
from ..errors import BadInput


class Packing:
    """The positions of the real tokens of a padded batch: `pack` removes the padding, `pad` restores it.

    `positions` gives them where shapes may not depend on data: indices into the flattened batch, of which those beyond
    its end are computed and dropped.
    """

    def __init__(self, lengths: Tensor, tokens: int, positions: Tensor | None = None) -> None:
        self.lengths, self.tokens, self.batch = lengths, tokens, lengths.shape[0]
        self.size, self.spare = self.batch * tokens, int(positions is not None)
        if positions is None:
            real = token_positions(tokens, device=lengths.device) < lengths[:, None]  # [batch, tokens]
            self.index = self.clamped_index = real.flatten().nonzero().squeeze(1)  # [real tokens]
        else:
            self.index, self.clamped_index = positions, positions.clamp(max=self.size - 1)

    def pack(self, x: Tensor) -> Tensor:
        """`[batch, tokens, …]` → `[real tokens, …]`."""
        return x.flatten(0, 1).index_select(0, self.clamped_index)

    def pad(self, x: Tensor) -> Tensor:
        """`[real tokens, …]` → `[batch, tokens, …]`, zero in the padding."""
        padded = x.new_zeros(self.size + self.spare, *x.shape[1:]).index_copy(0, self.index, x)
        return padded[: self.size].unflatten(0, (self.batch, self.tokens))


_positions: list[tuple[Tensor, Tensor]] = []


@contextmanager
def packing_positions(*pairs: tuple[Tensor, Tensor]) -> Iterator[None]:
    """While open, code under `shapes_only` packs by these (lengths, positions): see `Packing`."""
    _positions.extend(pairs)
    try:
        yield
    finally:
        del _positions[len(_positions) - len(pairs) :]


def make_packing(x: Tensor, lengths: Tensor | None) -> Packing | None:
    """The packing of a batch; None when nothing is padded, or where shapes may not depend on data."""
    if lengths is None:
        return None
    if lengths.shape != x.shape[:1]:
        raise BadInput(f"lengths has shape {list(lengths.shape)}; it must be [{x.shape[0]}], one for each row.")
    if shapes_only():
        positions = next((positions for own, positions in _positions if own is lengths), None)
        return None if positions is None else Packing(lengths, x.shape[1], positions)
    packing = Packing(lengths, x.shape[1])
    return None if packing.index.shape[0] == x.shape[0] * x.shape[1] else packing


def real_tokens(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Which tokens of `x [batch, tokens, …]` are not padding, boolean `[batch, tokens]`."""
    index = token_positions(x.shape[1], device=x.device)
    return (index >= 0 if lengths is None else index < lengths[:, None]).expand(x.shape[:2])


def zero_padding(x: Tensor, real: Tensor | None) -> Tensor:
    """x with zeros where a token is not real."""
    return x if real is None else x.masked_fill(~real[..., None], 0.0)
