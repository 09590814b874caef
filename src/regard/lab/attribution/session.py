"""A model with one input whose prediction is explained: the target, the units, and the texts of its labels."""

from __future__ import annotations

import math
from typing import NotRequired, TypedDict

import torch
from torch import Tensor

from ...errors import BadInput
from ...models.model import Model
from ..inputs.images import class_labels
from ..inputs.model_input import ImageMetadata, ModelInput, Token, TokenFields, is_image, is_sound
from ..inspect.predictions import MAX_ITEMS, label_name, token_text, top_classes
from ..library import LoadedModel
from ..protocol import Json
from ..server.jobs import Job
from .ablation import Ablation, ablate, ablation_methods
from .graphs import GraphPass, GraphTarget, ablate_edges, run_graph_pass
from .methods import AttributionPass, PredictionChange, compare_prediction, run_pass
from .target import MAX_UNITS, AttributionTarget, TargetChoice, Units

MAX_GROUPS = 64
"""Blocks of a detector's cells, or stretches of a recording, that are ablated one by one."""


class UnitFields(TypedDict):
    """The units' tokens and, of an image, its pixels, the blocks' grid, and the share of the image that they cover."""

    side: str
    tokens: list[TokenFields]
    pixels: NotRequired[Tensor]
    grid: NotRequired[tuple[int, int, int] | None]
    first: NotRequired[int]
    box: NotRequired[list[float]]


class LabelChoice(TypedDict):
    label: int
    word: str | None
    probability: float


class TargetFields(TypedDict):
    """The number that is explained, and the labels to choose from."""

    type: str
    place: int | None
    label: int | None
    score: float
    word: NotRequired[str | None]
    probability: NotRequired[float]
    choices: list[LabelChoice]


class LabelledChange(PredictionChange):
    """A prediction compared with the model's own, with the texts of its labels."""

    top_word: NotRequired[str | None]
    items: NotRequired[list[LabelChoice]]


class AttributionSession:
    """A model with one input: the target, the units of the input, and the texts of its labels."""

    def __init__(self, loaded: LoadedModel, prepared: ModelInput, choice: TargetChoice) -> None:
        self.loaded = loaded
        model, task = loaded.model, loaded.task
        self.side, self.metadata = prepared.side, prepared.metadata
        self.labels = class_labels(model, task) or self.metadata.get("labels")
        self.tokenizer = None if task is None else task.tokenizer
        if self.tokenizer is None and isinstance(model, Model):
            self.tokenizer = model.tokenizer
        if prepared.side == "nodes":
            numeric = task is not None and task.target is not None and task.target.kind != "class"
            self.target: AttributionTarget = GraphTarget(model, prepared.arguments, choice, numeric)
            self.tokens = [prepared.tokens["nodes"][n] for n in self.target.sources.tolist()]
        else:
            units, self.tokens = group_units(prepared)
            generated = self.metadata.get("numbers", [])[1:]
            unclear = [n for n, token in enumerate(prepared.tokens[prepared.side]) if token.special or token.unknown]
            self.target = AttributionTarget(model, prepared.arguments, choice, units, generated, unclear)
        self.positions = self.list_positions(prepared)

    def list_positions(self, prepared: ModelInput) -> list[TokenFields] | int:
        """The tokens whose prediction can be explained; of a graph or a grid of cells, how many there are."""
        if self.target.prediction_type == "generated":
            return prepared.metadata.get("target_tokens", [])
        if self.target.prediction_type in ("tag", "next", "word"):
            return [token.as_dict() for token in prepared.tokens[prepared.side]]
        if prepared.side == "nodes":
            return self.target.tokens
        return (
            len(prepared.tokens.get("target", prepared.tokens[prepared.side]))
            if self.target.prediction_type == "object"
            else 0
        )

    def run_pass(self) -> AttributionPass | GraphPass:
        return run_graph_pass(self.target) if isinstance(self.target, GraphTarget) else run_pass(self.target)

    @property
    def ablations(self) -> list[Ablation]:
        return ["drop"] if isinstance(self.target, GraphTarget) else ablation_methods(self.target)

    def read_ablation(self, requested: Json) -> Ablation:
        """The requested ablation; the default where none is requested."""
        for ablation in self.ablations:
            if ablation == (requested or self.ablations[0]):
                return ablation
        raise BadInput(f"The ablation is {requested!r}; here it must be {' or '.join(self.ablations)}.")

    def ablate(self, method: Ablation, job: Job) -> Tensor:
        """The measured effect of each unit."""
        progress = lambda done, total: job.report(done, total, "")  # noqa: E731
        if isinstance(self.target, GraphTarget):
            return ablate_edges(self.target, method, progress)
        return ablate(self.target, method, progress)

    def describe_units(self) -> UnitFields:
        """The units' tokens and, of an image, its pixels and how the units lie in it."""
        m, units = self.metadata, self.target.units
        described: UnitFields = {"side": self.side, "tokens": [token.as_dict() for token in self.tokens]}
        if not is_image(m):
            return described
        box = [m["grid"][n] * m["cell"][n] / m["size"][n] for n in (0, 1)]
        return {**described, "pixels": m["pixels"], "grid": units.grid, "first": units.first, "box": box}

    def label_text(self, label: int | None) -> str | None:
        if label is None:
            return None
        if self.target.prediction_type in ("next", "word", "generated"):
            return str(label) if self.tokenizer is None else token_text(self.tokenizer.target, label)
        if self.target.prediction_type == "object" and label == len(self.target.prediction) - 1:
            return "∅"
        return label_name(label, self.labels)

    def list_choices(self, prediction: Tensor, count: int = MAX_ITEMS) -> list[LabelChoice]:
        """The most probable labels."""
        top = top_classes(prediction, count)
        return [{"label": n, "word": self.label_text(n), "probability": p} for n, p in top]

    def describe_target(self) -> TargetFields:
        """The number that is explained, and the labels to choose from."""
        target, score = self.target, self.target.initial_score
        if target.label is None:
            return {
                "type": target.prediction_type,
                "place": target.position,
                "label": None,
                "score": score,
                "choices": [],
            }
        return {
            "type": target.prediction_type,
            "place": target.position,
            "label": target.label,
            "score": score,
            "word": self.label_text(target.label),
            "probability": math.exp(score),
            "choices": self.list_choices(target.prediction),
        }

    def compare(self, after: Tensor) -> LabelledChange:
        """Another prediction compared with the model's own, with the texts of its labels."""
        result = compare_prediction(self.target, after)
        if "top" not in result:
            return {**result}
        return {**result, "top_word": self.label_text(result["top"]), "items": self.list_choices(after, 3)}


def group_units(prepared: ModelInput) -> tuple[Units, list[Token]]:
    """The units of an input and how each is drawn: tokens, blocks of an image's cells, stretches of a recording."""
    tokens, metadata = prepared.tokens[prepared.side], prepared.metadata
    if is_image(metadata):
        return group_cells(tokens, metadata, MAX_GROUPS if metadata["detects"] else MAX_UNITS)
    if not is_sound(metadata):
        return Units(torch.arange(len(tokens))), tokens
    heard, size = metadata["heard"], -(-metadata["heard"] // MAX_GROUPS)
    of = torch.arange(len(tokens)) // size
    of[heard:] = -(-heard // size)
    shown = [Token(tokens[n].text, n, min(n + size, heard)) for n in range(0, heard, size)]
    shown += [Token("…", heard, len(tokens), special=True)] if heard < len(tokens) else []
    return Units(of, frames=metadata["frames_per_token"], quietest=metadata["quietest"]), shown


def group_cells(tokens: list[Token], metadata: ImageMetadata, most: int) -> tuple[Units, list[Token]]:
    """An image's cells in the smallest square blocks that are at most `most`; a class token is a unit by itself."""
    (rows, columns), (height, width) = metadata["grid"], metadata["cell"]
    first, size = len(tokens) - rows * columns, 1
    while -(-rows // size) * -(-columns // size) + first > most:
        size += 1
    down, across = -(-rows // size), -(-columns // size)
    cell = torch.arange(rows * columns)
    of = torch.cat([torch.arange(first), first + cell // columns // size * across + cell % columns // size])
    shown = tokens[:first] + [Token(f"{n // across},{n % across}", n, n + 1) for n in range(down * across)]
    return Units(of, (down, across, size), (height, width), columns, first), shown
