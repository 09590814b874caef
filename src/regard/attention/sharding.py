"""What `attend`, `look`, `plan` and layers ask of a layout, which `regard.distributed` implements; the open layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from torch import Tensor

from ..errors import BadInput, Unsupported
from .parts.parts import Parts

if TYPE_CHECKING:
    from .look import LookOptions
    from .view import View


class SequencePlan(Protocol):
    """What a sharded call costs every rank."""

    @property
    def seconds(self) -> float: ...

    @property
    def balance(self) -> float: ...

    @property
    def reduction(self) -> float: ...


@runtime_checkable
class SequenceLayout(Protocol):
    """Which tokens of a sequence each rank holds; see `regard.shard`."""

    @property
    def ranks(self) -> int: ...

    @property
    def rank(self) -> int: ...

    @property
    def tokens(self) -> tuple[int, int]: ...

    def places(self, rank: int | None = None) -> Tensor: ...

    def split(self, x: Tensor, dim: int = -2, *, keys: bool = False) -> Tensor: ...

    def gather(self, x: Tensor, dim: int = -2, *, keys: bool = False) -> Tensor: ...

    def sum(self, x: Tensor) -> Tensor: ...

    def check_ranks(self, check: Callable[[], object]) -> None: ...

    def __enter__(self) -> object: ...

    def __exit__(self, *_: object) -> None: ...

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, parts: Parts, generator: torch.Generator | None, backend: str
    ) -> Tensor: ...

    def look(self, q: Tensor, k: Tensor, parts: Parts, options: LookOptions) -> View: ...

    def plan(self, q: Tensor, k: Tensor, v: Tensor, parts: Parts) -> SequencePlan: ...


OPEN_LAYOUTS: list[SequenceLayout] = []
"""The layouts that are open (`with layout:`), the innermost last; not by thread, since autograd has threads of its own.
"""


def check_layout(layout: object) -> None:
    """Raise `BadInput` unless it is a layout."""
    if not isinstance(layout, SequenceLayout):
        raise BadInput(f"layout is {layout!r:.80}; it must be a layout, which regard.shard(masks, tokens, mesh) makes.")


def current_layout() -> SequenceLayout | None:
    """The open layout, of which models then hold this rank's tokens; None outside."""
    return OPEN_LAYOUTS[-1] if OPEN_LAYOUTS else None


def whole_tokens(tokens: int) -> int:
    """The tokens of the whole sequence of which a layer has `tokens`."""
    layout = current_layout()
    if layout is None:
        return tokens
    check_tokens(layout, tokens)
    return layout.tokens[0]


def token_positions(tokens: int, start: int = 0, device: torch.device | str | None = None) -> Tensor:
    """The positions of the tokens that a layer has, `[tokens]`: from `start` on, or those of this rank."""
    layout = current_layout()
    if layout is None:
        return torch.arange(start, start + tokens, device=device)
    if start:
        raise Unsupported("A cache of earlier tokens does not run sharded. Call the model on the whole sequence.")
    check_tokens(layout, tokens)
    return layout.places().to(device)


def check_tokens(layout: SequenceLayout, tokens: int) -> None:
    """Raise unless so many tokens are those of this rank."""
    own = len(layout.places())
    if tokens != own:
        raise BadInput(
            f"A model got {tokens} tokens inside `with layout:`; rank {layout.rank} holds {own} of "
            f"{layout.tokens[0]}. Take them with layout.split(x, 1)."
        )
