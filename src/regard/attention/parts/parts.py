"""The four parts of an attention, and its dropout, as one value."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NoReturn

from torch import Tensor

from ...errors import BadInput
from .mask import Mask
from .methods import Exact, Method
from .part import Part, equal_values
from .positions import Position
from .scores import Dot, Score

DOT, EXACT = Dot(), Exact()


@dataclass(frozen=True, repr=False, init=False)
class Parts:
    """What one attention computes: score, position, mask, method and dropout.

    `attend`, `plan` and `look` make one of their arguments; layers, stacks and tasks are built from one, in which a
    learned part stands as its specification (`PartSpec`). `score` None is `Dot()`, `method` None is `Exact()`. Raises
    `BadInput` when a field has another type.

    >>> import regard as rg
    >>> rg.Parts(mask=rg.Causal() & rg.Window(3), position=rg.Alibi())
    Parts(position=Alibi(), mask=Causal() & Window(before=3))
    >>> rg.Parts(position=rg.nn.LearnedT5Bias(buckets=16))
    Parts(position=LearnedT5Bias(buckets=16))
    >>> rg.Parts() == rg.Parts(score=rg.Dot())
    True
    """

    score: Score = DOT
    position: Position | None = None
    mask: Mask | None = None
    method: Method = EXACT
    dropout: float = 0.0

    def __init__(
        self,
        score: Score | None = None,
        position: Position | None = None,
        mask: Mask | None = None,
        method: Method | None = None,
        dropout: float = 0.0,
    ) -> None:
        # Written out: torch.compile cannot trace a generated __init__ whose defaults are parts.
        score, method = DOT if score is None else score, EXACT if method is None else method
        if not isinstance(score, Score):
            raise_wrong_part("score", score, Score)
        if position is not None and not isinstance(position, Position):
            raise_wrong_part("position", position, Position)
        if mask is not None and not isinstance(mask, Mask):
            raise_wrong_part("mask", mask, Mask)
        if not isinstance(method, Method):
            raise BadInput(f"method is {method!r:.80}; it must be a Method, such as Exact() or Nystrom(landmarks=64).")
        if not isinstance(dropout, int | float) or not 0.0 <= dropout <= 1.0:
            raise BadInput(f"dropout is {dropout!r}; it must be a number from 0 to 1.")
        object.__setattr__(self, "score", score)
        object.__setattr__(self, "position", position)
        object.__setattr__(self, "mask", mask)
        object.__setattr__(self, "method", method)
        object.__setattr__(self, "dropout", dropout)

    def __repr__(self) -> str:
        values = [(x.name, getattr(self, x.name), x.default) for x in fields(self)]
        shown = [f"{name}={value!r}" for name, value, default in values if not equal_values(value, default)]
        return f"Parts({', '.join(shown)})"


DEFAULT_PARTS = Parts()


def raise_wrong_part(name: str, value: object, part_class: type[Part]) -> NoReturn:
    """Raise `BadInput` for a value that is not a part of this class, with what to pass instead."""
    hint = "Wrap a boolean tensor in regard.Pairs(...)." if isinstance(value, Tensor) else "Pass a part."
    if isinstance(value, type) and issubclass(value, Part):
        hint = f"Call it: {value.__name__}(...)."
    raise BadInput(f"{name} is {value!r:.80}; it must be a {part_class.__name__}. {hint}")
