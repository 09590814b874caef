"""What tasks with one target for each input share: a class, a set of labels or a number of a text, an image, a pair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from random import Random
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from ..data.batching import batch_by_size
from ..data.json_values import JsonObject, ParsedObject
from ..data.reading import Reading, split
from ..models.interfaces import EmbeddingConfig, LayersConfig
from ..models.tokenizers.tokenizer import Tokenizer
from ..settings import Settings
from .architecture import Architecture
from .inputs.given import name_of
from .losses.choose_target import stratify_labels, target_note
from .losses.targets import InputTarget
from .results import Result
from .task import Batch, Scores, Task

RARE = 5
"""Examples of a class under which it is named before training."""


class Labelled(Protocol):
    """An example with a label."""

    @property
    def label(self) -> str: ...


S = TypeVar("S", bound=Settings)
E = TypeVar("E", bound=Labelled)


def stratified_split(
    reading: Reading[E], share: float, seed: int, by: Callable[[E], Hashable] | None = None
) -> tuple[Reading[E], Reading[E]]:
    """(training data, validation data), with the same share of every label; examples with equal `by` stay together."""
    strata = stratify_labels([example.label for example in reading.examples])
    numbers = {id(example): n for n, example in enumerate(reading.examples)}
    return split(reading, share, seed, by=by, stratify=lambda example: strata[numbers[id(example)]])


class Inputs(Protocol[E]):
    """The inputs of examples as tensors."""

    @property
    def tokenizer(self) -> Tokenizer | None: ...
    def sizes(self, examples: Sequence[E]) -> list[int]: ...
    def batch(self, examples: Sequence[E], rng: Random | None) -> Batch: ...
    def example_of(self, given: object) -> E: ...
    def describe(self, examples: Sequence[E]) -> JsonObject: ...
    def as_dict(self) -> JsonObject: ...
    def layer_configs(self, a: Architecture) -> tuple[EmbeddingConfig, LayersConfig]: ...
    def initialize(self, model: nn.Module) -> None: ...


X = TypeVar("X", bound=Inputs[Any])  # of the same examples as the task


class TargetTask(Task[S, E, E], Generic[S, E, X]):
    """A task whose examples have a `label`, which a `target` makes numbers, losses and results of."""

    inputs: X
    _target: InputTarget

    @property
    def target(self) -> InputTarget:
        return self._target

    @property
    def labels(self) -> list[str] | None:
        return self._target.labels

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self.inputs.tokenizer

    def tuned_values(self) -> JsonObject:
        return self.target.tuned_values()

    def restore_tuned(self, values: ParsedObject) -> None:
        self.target.restore_tuned(values)

    def sizes(self, examples: Sequence[E]) -> list[int]:
        return self.inputs.sizes(examples)

    def batch(self, examples: Sequence[E], rng: Random | None = None) -> Batch:
        labels = self.target.tensor([example.label for example in examples])
        return {**self.inputs.batch(examples, rng), "labels": labels}

    def describe_inputs(self, examples: Sequence[E]) -> JsonObject:
        """Facts about the inputs of examples."""
        return self.inputs.describe(examples)

    def count(self, batch: Batch) -> int:
        return int(self.target.label_mask(batch["labels"]).sum())

    def loss(self, model: nn.Module, batch: Batch, smoothing: float = 0.0) -> Tensor:
        given = {name: value for name, value in batch.items() if name != "labels"}
        return self.target.loss(model(**given).logits.float(), batch["labels"], smoothing, model.training)

    def logits(self, model: nn.Module, examples: Sequence[E], tokens: int = 16384) -> Tensor:
        """The outputs of the model, `[examples, outputs]`."""
        device = next(model.parameters()).device
        return self.collect(lambda inputs: model(**inputs).logits, examples, device, tokens)

    @torch.no_grad()
    def collect(
        self, forward: Callable[[Batch], Tensor], examples: Sequence[E], device: torch.device, tokens: int = 16384
    ) -> Tensor:
        """The outputs of `forward` for all examples, `[…, examples, outputs]`, computed in batches of similar sizes."""
        if not examples:
            return torch.zeros(0, self.target.outputs)
        order: list[int] = []
        parts = []
        for numbers in batch_by_size(self.sizes(examples), tokens):
            batch = self.inputs.batch([examples[n] for n in numbers], None)
            parts.append(forward({name: value.to(device) for name, value in batch.items()}).float().cpu())
            order += numbers
        return torch.cat(parts, -2)[..., torch.tensor(order).argsort(), :]

    def evaluate(self, model: nn.Module, examples: Sequence[E]) -> Scores:
        """The scores of the target: accuracy and F1 of classes, F1 of sets of labels, or errors of numbers."""
        return self.target.scores(self.logits(model, examples), [example.label for example in examples])

    def validate(self, model: nn.Module, examples: Sequence[E]) -> Scores:
        """The scores, with the thresholds of labels chosen on these examples."""
        logits, labels = self.logits(model, examples), [example.label for example in examples]
        self.target.tune(logits, labels)
        return self.target.scores(logits, labels)

    def unknown_labels(self, examples: Sequence[E]) -> Counter[str]:
        """Labels of these examples that the training data does not have, with their counts."""
        return self.target.unknown([example.label for example in examples])

    def label_choices(self, labels: Sequence[str]) -> list[str]:
        """What labels were taken for, and classes that have few examples."""
        sentences = [note] if (note := target_note(self.target, labels)) else []
        counts = self.target.counts(labels)
        if rare := [f"{label!r} ({count})" for label, count in counts.most_common()[::-1] if count < RARE][:5]:
            sentences.append(f"Classes with fewer than {RARE} examples are hardly learned: {', '.join(rare)}.")
        return sentences

    def predict(self, model: nn.Module, inputs: Sequence[object]) -> Sequence[Result]:
        """The class, the labels or the number of each input."""
        logits = self.logits(model, [self.inputs.example_of(given) for given in inputs])
        return self.target.predictions([name_of(given) for given in inputs], logits)
