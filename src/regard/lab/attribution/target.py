"""The target of an attribution: one number of a model's prediction, and the input units that it is attributed to.

Units are the input's tokens or, where these are many, groups of them: blocks of patches, stretches of time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from ...attention.parts.edges import Edges
from ...attention.view import View
from ...errors import BadInput, TooLarge, Unsupported
from ...models.detection import DetectionModel
from ...models.dual_encoder import DualEncoderModel
from ...models.ensemble import EnsembleModel
from ...models.heads import LMHead
from ...models.model import EncoderDecoderModel, Output, SequenceModel
from ...nn.hooks.attentions import find_attentions
from ...nn.hooks.watch import watch
from ..inspect.capture import locate_attention

INPUT_SIDES = {"tokens": "source", "meanings": "source", "images": "image", "sound": "sound"}
"""The arguments that hold the input of a model, and the side of their tokens."""
MAX_UNITS = 256
"""Every unit is ablated once, so the cost grows with the square of their number."""
MAX_WEIGHTS = 1 << 29
"""Weights of all heads together that fit in memory."""


@dataclass(frozen=True)
class TargetChoice:
    """Which number of a model's prediction is explained.

    `position` is the token whose tag, next token or word is predicted, the token that is generated, the object query,
    or a graph's node (None: the whole input, or the default). `label` is the class, tag or token whose probability
    counts (None: the predicted one). A model without a head predicts a vector, the mean of its last hidden
    states, and has neither.
    """

    position: int | None = None
    label: int | None = None


@dataclass(frozen=True)
class Units:
    """The units that are ablated. `of [tokens]` is the unit of each token."""

    of: Tensor
    grid: tuple[int, int, int] | None = None
    """Of an image: rows and columns of blocks, and how many cells a block has each way."""
    cell: tuple[int, int] = (1, 1)
    """Pixels of an image's cell."""
    columns: int = 0
    """Cells in a row of the image."""
    first: int = 0
    """How many tokens stand before an image's cells."""
    frames: int = 1
    """Audio frames of a token."""
    quietest: int = 0
    """The index of the quietest frame."""

    @property
    def count(self) -> int:
        return int(self.of.max()) + 1

    def pool(self, row: Tensor) -> Tensor:
        """`[units]`: the sums of a row `[tokens]` over each unit's tokens."""
        return row.new_zeros(self.count).index_add_(0, self.of.to(row.device), row)


class AttributionTarget:
    """A model, one input `[1, tokens, …]` and the number that is explained, `score`.

    score = ln p(label)              of a model with a head
    score = output                   of a model that predicts a number
    score = vector · v0 / ‖v0‖²      of a model without a head: the share of its output v0 that is left, 1 at first

    `prediction_type` is what the model predicts: see `find_prediction_type`.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        choice: TargetChoice | None = None,
        units: Units | None = None,
        generated: Sequence[int] = (),
        unclear: Sequence[int] = (),
    ) -> None:
        """`unclear` are the tokens whose own prediction is not explained by default, such as unknown ones."""
        choice = choice or TargetChoice()
        self.unclear = list(unclear)
        self.model, self.inputs, self.generated = model, inputs, list(generated)
        name = next((name for name in INPUT_SIDES if name in inputs), None)
        if name is None:
            raise BadInput(f"The model reads {', '.join(inputs)}, of which no units can be ablated.")
        self.input_name, self.side = name, INPUT_SIDES[name]
        self.tokens = self.count_tokens()
        self.units = units or Units(torch.arange(self.tokens))
        if self.units.count > MAX_UNITS:
            raise BadInput(
                f"The text has {self.units.count} tokens; each is ablated once, so the limit is {MAX_UNITS}. Give a "
                "shorter one."
            )
        self.prediction_type = find_prediction_type(model)
        with torch.no_grad():
            output = self.model(**inputs)
        if self.prediction_type == "class" and output.logits.shape[-1] == 1:
            self.prediction_type = "number"
        self.position = self.resolve_position(choice.position, output)
        with torch.no_grad():
            self.prediction = self.read_output(output, self.positions(1))[0]
        self.label = self.resolve_label(choice.label)

    def count_tokens(self) -> int:
        """How many tokens the model makes of its input."""
        if self.input_name in ("tokens", "meanings"):
            return self.inputs[self.input_name].shape[1]
        own = (self.side, self.side)
        keys = [view.received.shape[-1] for name, view in self.views.items() if self.sides(name) == own]
        if not keys:
            raise BadInput("This model has no self-attention over its input. Choose another model.")
        return max(keys)

    @cached_property
    def views(self) -> dict[str, View]:
        """The statistics of the last call of each attention, in the order of the calls."""
        with torch.no_grad(), watch(self.model) as views:
            self.model(**self.inputs)
        return dict(views)

    @cached_property
    def heads(self) -> dict[str, int]:
        """The number of heads of each attention, in the order of the calls."""
        return {name: view.lse.shape[1] for name, view in self.views.items()}

    @property
    def weights(self) -> int:
        """How many weights all heads have together."""
        return sum(view.lse.shape[1] * view.lse.shape[2] * view.received.shape[-1] for view in self.views.values())

    def sides(self, name: str) -> tuple[str, str]:
        """The sides of an attention's queries and keys."""
        place = locate_attention(name, self.side)
        return place.query_side, place.key_side

    @property
    def decodes(self) -> bool:
        """Whether the prediction comes from a decoder, which attends to the input across."""
        return any(self.sides(name)[0] == "target" for name in find_attentions(self.model))

    def resolve_position(self, position: int | None, output: Output) -> int | None:
        """The position that is explained; by default the usual one of the kind of prediction."""
        if self.prediction_type in ("class", "vector", "number"):
            return None
        assert output.logits is not None
        count = output.logits.shape[1]
        position = self.default_position(output.logits) if position is None else position
        if not 0 <= position < count:
            raise BadInput(f"There is no position {position}; the prediction has {count}, 0 … {count - 1}.")
        return position

    def default_position(self, logits: Tensor) -> int:
        """The last token for the next one; the most probable object; the first frame with a CTC label.

        Of a tag or a word for every token, the token that the model is least certain of: there the others matter most.
        """
        if self.prediction_type == "next":
            return logits.shape[1] - 1
        if self.prediction_type == "object":
            return int(logits[0].float().softmax(-1)[:, :-1].amax(-1).argmax())
        head = self.model.head
        if isinstance(head, LMHead) and head.config.blank is not None:
            return int((logits[0].argmax(-1) != head.config.blank).int().argmax())
        if self.prediction_type not in ("tag", "word"):
            return 0
        certainty = logits[0].float().softmax(-1).amax(-1)
        if len(self.unclear) < len(certainty):
            certainty[self.unclear] = 2.0
        return int(certainty.argmin())

    def resolve_label(self, label: int | None) -> int | None:
        if self.prediction_type in ("vector", "number"):
            return None
        if label is None and self.prediction_type == "generated" and self.position is not None:
            label = self.generated[self.position] if self.position < len(self.generated) else None
        if label is None:
            label = int((self.prediction[:-1] if self.prediction_type == "object" else self.prediction).argmax())
        count = len(self.prediction)
        if not 0 <= label < count:
            raise BadInput(f"There is no label {label}; the model has {count}, 0 … {count - 1}.")
        return label

    def positions(self, batch: int) -> Tensor | None:
        """The position that is explained, for each row of a batch."""
        device = self.inputs[self.input_name].device
        return None if self.position is None else torch.full((batch,), self.position, device=device)

    def predict(self, inputs: Mapping[str, Tensor | Edges], positions: Tensor | None) -> Tensor:
        """ln p of every label `[batch, labels]`, or the vectors `[batch, dim]`, of inputs of one length."""
        return self.read_output(self.model(**inputs), positions)

    def read_output(self, output: Output, positions: Tensor | None) -> Tensor:
        """`predict` for an output."""
        if self.prediction_type == "vector":
            if isinstance(self.model, DualEncoderModel):  # before it is normalized, where nothing is lost
                assert output.pooled is not None
                return output.pooled.float()
            assert output.hidden is not None
            return output.hidden.float().mean(1)
        logits = output.logits
        assert logits is not None
        if positions is not None:
            logits = logits[torch.arange(len(positions), device=positions.device), positions]
        return logits.float() if self.prediction_type == "number" else logits.float().log_softmax(-1)

    def score(self, predictions: Tensor) -> Tensor:
        """`[batch]` of predictions `[batch, …]`."""
        if self.prediction_type == "vector":
            return predictions @ self.prediction / self.prediction.square().sum()
        return predictions[:, self.label or 0]

    @property
    def initial_score(self) -> float:
        """The score before any change."""
        return float(self.score(self.prediction[None])[0])

    def check_memory(self) -> None:
        """Raise `TooLarge` where the weights of all heads would not fit."""
        if self.weights > MAX_WEIGHTS:
            raise TooLarge(
                f"All heads together have {self.weights:,} weights on this input; {MAX_WEIGHTS:,} fit in memory. Give "
                "a smaller input, or a smaller model."
            )


def find_prediction_type(model: nn.Module) -> str:
    """What a model predicts.

    "class" of the whole input, "tag" of each token, the "next" token, the "word" at each token, the "generated" token
    of a decoder, the "object" of each query or cell, or a "vector".
    """
    if isinstance(model, DetectionModel):
        return "vector" if model.classes is None else "object"
    if isinstance(model, EnsembleModel):
        raise Unsupported(
            f"This is an ensemble of {len(model.models)} models, and attribution follows the attention of a single "
            "one. Inspect its heads, or train with ensemble=1 and nb_linear=0."
        )
    if not isinstance(model, SequenceModel | EncoderDecoderModel) or model.head is None:
        return "vector"
    if isinstance(model, EncoderDecoderModel):
        return "generated"
    if isinstance(model.head, LMHead):
        return "next" if model.causal else "word"
    return "tag" if model.head.config.per_token else "class"
