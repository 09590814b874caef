"""One number of a model's answer, of which it is asked what it came from: which model, which input, which answer.

What may have made the answer are the input's units: tokens, or where these are many, several beside each other: blocks
of patches, stretches of time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ...errors import BadInput, TooLarge, Unsupported
from ...models.detection import DetectionModel
from ...models.dual_encoder import DualEncoderModel
from ...models.ensemble import EnsembleModel
from ...models.heads import LMHead
from ...models.model import EncoderDecoderModel
from ...nn.hooks.attentions import find_attentions
from ...nn.hooks.watch import watch
from ..inspect.capture import locate_attention

READS = {"tokens": "source", "meanings": "source", "images": "image", "sound": "sound"}
"""The arguments that hold what a model reads, and the side that their tokens are on."""
MOST_UNITS = 256
"""Every unit is removed once, so work grows with the square of their number."""
MOST_WEIGHTS = 1 << 29
"""Weights of all heads together that are held at once."""


@dataclass(frozen=True)
class Question:
    """Which number of a model's answer is asked about.

    `place` is the token whose tag, whose next token or whose word is predicted, the token that is being written, the
    query that looks for an object, or a graph's node (None: the whole input, or what is usual); `label` the class, tag
    or token whose probability counts (None: what the model answers itself). A model without a head answers with a
    vector, the mean of its tokens' last states, and has neither.
    """

    place: int | None = None
    label: int | None = None


@dataclass(frozen=True)
class Units:
    """What can be taken away. `of [tokens]` says which unit each token of the input belongs to."""

    of: Tensor
    grid: tuple[int, int, int] | None = None
    """Of a picture: rows and columns of blocks, and how many cells a block has each way."""
    cell: tuple[int, int] = (1, 1)
    """Pixels of a picture's cell."""
    columns: int = 0
    """Cells in a row of the picture."""
    first: int = 0
    """How many tokens stand before a picture's cells."""
    frames: int = 1
    """Frames of sound that become a token."""
    quietest: int = 0
    """The number of a frame that has as good as no sound."""

    @property
    def count(self) -> int:
        return int(self.of.max()) + 1

    def pooled(self, row: Tensor) -> Tensor:
        """`[units]`: the sums of a row `[tokens]` over each unit's tokens."""
        return row.new_zeros(self.count).index_add_(0, self.of.to(row.device), row)


class Asked:
    """A model, one input `[1, tokens, …]` and a question; `score` is the number that the readings are about.

    score = ln p(label)              of a model with a head
    score = output                   of one whose answer is a number
    score = vector · v0 / ‖v0‖²      of one without a head: how much is left of its answer v0, 1 before any change
    """

    def __init__(
        self,
        model: Any,
        inputs: dict[str, Any],
        question: Question | None = None,
        units: Units | None = None,
        written: Sequence[int] = (),
    ) -> None:
        question = question or Question()
        self.model, self.inputs, self.written = model, inputs, list(written)
        self.reads = need_reader(inputs)
        self.side = READS[self.reads]
        self.tokens = self.count_tokens()
        self.units = units or Units(torch.arange(self.tokens))
        need_few_units(self.units.count)
        self.kind = kind_of(model)
        with torch.no_grad():
            output = self.model(**inputs)
        if self.kind == "class" and output.logits.shape[-1] == 1:
            self.kind = "number"
        self.place = self.place_asked(question.place, output)
        with torch.no_grad():
            self.before = self.told(output, self.places(1))[0]
        self.label = self.label_asked(question.label)

    def count_tokens(self) -> int:
        """How many tokens the model makes of what it reads."""
        if self.reads in ("tokens", "meanings"):
            return self.inputs[self.reads].shape[1]
        keys = [k for name, k in self.sizes.items() if locate_attention(name, self.side)[3] == (self.side, self.side)]
        if not keys:
            raise BadInput("This model has no self-attention over its input. Choose another model.")
        return max(keys)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """How many keys each attention looks at in its last call."""
        return {name: view.received.shape[-1] for name, view in self.views.items()}

    @cached_property
    def heads(self) -> dict[str, int]:
        """The number of heads of each attention that the model calls, in the order of the calls."""
        return {name: view.lse.shape[1] for name, view in self.views.items()}

    @cached_property
    def views(self) -> dict[str, Any]:
        with torch.no_grad(), watch(self.model) as seen:
            self.model(**self.inputs)
        return dict(seen)

    @property
    def weights(self) -> int:
        """How many weights all heads have together."""
        return sum(view.lse.shape[1] * view.lse.shape[2] * view.received.shape[-1] for view in self.views.values())

    def sides(self, name: str) -> tuple[str, str]:
        """Whose queries look at whose keys in an attention."""
        return locate_attention(name, self.side)[3]

    @property
    def decodes(self) -> bool:
        """Whether the answer is read off a decoder, which looks at the input from outside."""
        return any(self.sides(name)[0] == "target" for name in find_attentions(self.model))

    def place_asked(self, place: int | None, output: Any) -> int | None:
        """The place that is asked about; unless given the usual one of the kind of answer."""
        if self.kind in ("class", "vector", "number"):
            return None
        count = output.logits.shape[1]
        place = self.usual_place(output) if place is None else place
        if not 0 <= place < count:
            raise BadInput(f"There is no token {place}: there are {count}, 0 … {count - 1}.")
        return place

    def usual_place(self, output: Any) -> int:
        """The last token, where the next one is read; the surest object; the first sound that is a letter."""
        if self.kind == "next":
            return output.logits.shape[1] - 1
        if self.kind == "object":
            return int(output.logits[0].float().softmax(-1)[:, :-1].amax(-1).argmax())
        blank = getattr(getattr(self.model.head, "config", None), "blank", None)
        if blank is not None:
            return int((output.logits[0].argmax(-1) != blank).int().argmax())
        return 0

    def label_asked(self, label: int | None) -> int | None:
        if self.kind in ("vector", "number"):
            return None
        if label is None and self.kind == "written" and self.place is not None and self.place < len(self.written):
            label = self.written[self.place]
        if label is None:
            label = int((self.before[:-1] if self.kind == "object" else self.before).argmax())
        if not 0 <= label < len(self.before):
            raise BadInput(f"There is no label {label}: the model has {len(self.before)}, 0 … {len(self.before) - 1}.")
        return label

    def places(self, batch: int) -> Tensor | None:
        """The place that is asked about, for each row of a batch."""
        device = self.inputs[self.reads].device
        return None if self.place is None else torch.full((batch,), self.place, device=device)

    def answers(self, inputs: dict[str, Any], places: Tensor | None) -> Tensor:
        """ln p of every label `[batch, labels]`, or the vectors `[batch, dim]`, of inputs of one length."""
        return self.told(self.model(**inputs), places)

    def told(self, output: Any, places: Tensor | None) -> Tensor:
        """What `answers` gives, of an output."""
        if self.kind == "vector":
            if isinstance(self.model, DualEncoderModel):  # before it is made of length one, where nothing can be lost
                return output.pooled.float()
            return output.hidden.float().mean(1)
        logits = output.logits
        if places is not None:
            logits = logits[torch.arange(len(places), device=places.device), places]
        return logits.float() if self.kind == "number" else logits.float().log_softmax(-1)

    def score(self, answers: Tensor) -> Tensor:
        """`[batch]` of answers `[batch, …]`."""
        if self.kind == "vector":
            return answers @ self.before / self.before.square().sum()
        return answers[:, self.label or 0]

    def now(self) -> float:
        """The score before any change."""
        return float(self.score(self.before[None])[0])

    def need_room(self) -> None:
        """Raise where the weights of all heads would not fit."""
        if self.weights > MOST_WEIGHTS:
            raise TooLarge(
                f"All heads together have {self.weights:,} weights on this input; {MOST_WEIGHTS:,} are held at once. "
                "Give a smaller input, or a smaller model."
            )


def kind_of(model: Any) -> str:
    """What a model answers.

    "class" of the whole, "tag" of each token, "next" token, "word" at each, "written" token by token, "object" of each
    query or cell, or a "vector".
    """
    if isinstance(model, DetectionModel):
        return "vector" if model.classes is None else "object"
    if isinstance(model, EnsembleModel):
        raise Unsupported(
            f"{model.count} models form this ensemble, and an attribution follows the layers of a single model. "
            "Inspect their heads, or train with ensemble=1 and nb_linear=0."
        )
    if isinstance(model, DualEncoderModel) or getattr(model, "head", None) is None:
        return "vector"
    if isinstance(model, EncoderDecoderModel):
        return "written"
    if isinstance(model.head, LMHead):
        return "next" if model.causal else "word"
    return "tag" if model.head.config.per_token else "class"


def need_reader(inputs: dict[str, Any]) -> str:
    """The argument that holds what is read."""
    reads = next((name for name in READS if name in inputs), None)
    if reads is None:
        raise BadInput(f"The model is given {', '.join(inputs)}; no ablation is defined for these inputs.")
    return reads


def need_few_units(units: int) -> None:
    if units > MOST_UNITS:
        raise BadInput(
            f"The text has {units} tokens; each is ablated once, and the limit is {MOST_UNITS}. "
            "Give a shorter one."
        )
