"""The parts of an attention, and its dropout, as one value."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NoReturn, TypedDict

from torch import Tensor

from ...errors import BadInput
from .edges import EdgeFeatures
from .mask import Mask
from .methods import Exact, Method
from .pair_bias import PairBias
from .part import Part, equal_values
from .places import Places
from .positions import Position
from .scores import Dot, Score
from .sink import Sink

DOT, EXACT = Dot(), Exact()


class PartOptions(TypedDict, total=False):
    """The parts of an attention as arguments of `attend`."""

    score: Score | None
    position: Position | None
    mask: Mask | None
    method: Method | None
    dropout: float
    sink: Sink | None
    bias: PairBias | None
    places: Places | None
    edges: EdgeFeatures | None


@dataclass(frozen=True, repr=False, init=False)
class Parts:
    """What one attention computes: score, position, mask, method and dropout, a sink, a bias by pair, places and
    features of edges.

    `attend`, `plan` and `look` make one of their arguments; layers, stacks and tasks are built from one, in which a
    learned part is given by its specification (`PartSpec`). `score` None is `Dot()`, `method` None is `Exact()`. Raises
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
    sink: Sink | None = None
    bias: PairBias | None = None
    places: Places | None = None
    edges: EdgeFeatures | None = None

    def __init__(
        self,
        score: Score | None = None,
        position: Position | None = None,
        mask: Mask | None = None,
        method: Method | None = None,
        dropout: float = 0.0,
        sink: Sink | None = None,
        bias: PairBias | None = None,
        places: Places | None = None,
        edges: EdgeFeatures | None = None,
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
        if sink is not None and not isinstance(sink, Sink):
            raise_wrong_part("sink", sink, Sink)
        if bias is not None and not isinstance(bias, PairBias):
            raise_wrong_part("bias", bias, PairBias)
        if places is not None and not isinstance(places, Places):
            raise_wrong_part("places", places, Places)
        if edges is not None and not isinstance(edges, EdgeFeatures):
            raise_wrong_part("edges", edges, EdgeFeatures)
        object.__setattr__(self, "score", score)
        object.__setattr__(self, "position", position)
        object.__setattr__(self, "mask", mask)
        object.__setattr__(self, "method", method)
        object.__setattr__(self, "dropout", dropout)
        object.__setattr__(self, "sink", sink)
        object.__setattr__(self, "bias", bias)
        object.__setattr__(self, "places", places)
        object.__setattr__(self, "edges", edges)

    def __repr__(self) -> str:
        values = [(x.name, getattr(self, x.name), x.default) for x in fields(self)]
        shown = [f"{name}={value!r}" for name, value, default in values if not equal_values(value, default)]
        return f"Parts({', '.join(shown)})"


DEFAULT_PARTS = Parts()


def raise_wrong_part(name: str, value: object, part_class: type[Part]) -> NoReturn:
    """Raise `BadInput` for a value that is not a part of this class, with what to pass instead."""
    wrappers = {"sink": "logits in regard.Sink", "bias": "bias in regard.PairBias", "places": "tensor in regard.Places"}
    wrappers["edges"] = "bias in regard.EdgeFeatures"
    wrapper = wrappers.get(name, "boolean tensor in regard.Pairs")
    hint = f"Wrap a {wrapper}(...)." if isinstance(value, Tensor) else "Pass a part."
    if isinstance(value, type) and issubclass(value, Part):
        hint = f"Call it: {value.__name__}(...)."
    raise BadInput(f"{name} is {value!r:.80}; it must be a {part_class.__name__}. {hint}")
