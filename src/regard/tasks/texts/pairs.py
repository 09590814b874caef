"""Pairs of texts: a class (inference, paraphrase), a number (similarity) or labels, by one encoder that reads both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from torch import Tensor, nn

from ...data.annotations.pairs import LabelledPair, read_pairs
from ...data.json_values import JsonObject, ParsedObject
from ...data.reading import Reading, split_of
from ...data.tables import ColumnSpec
from ...models.config import SequenceConfig
from ...models.heads import ClassificationHeadConfig
from ...models.tokenizers.tokenizer import Tokenizer
from ...settings import Settings, setting
from ..architecture import Architecture
from ..losses.choose_target import input_target_from_dict, make_target
from ..losses.targets import InputTarget
from ..pretrained.pretrained import Pretrained
from ..results import Result
from ..target_task import TargetTask, stratified_split
from ..task import Batch
from .pair_inputs import PairInputs, pair_columns, swap


@dataclass(frozen=True)
class PairsSettings(Settings):
    """Settings of the task `pairs`. With `symmetric` both orders of a pair are one: each is trained on, and predictions
    are the mean over both."""

    first: str | None = setting(None, "Column of the first texts.")
    second: str | None = setting(None, "Column of the second texts.")
    label: str | None = setting(None, "Column of the labels or numbers.")
    target: Literal["auto", "class", "labels", "number"] = setting(
        "auto", "What labels are: a class, several labels (a|b, a;b or a JSON list), or a number; auto looks at them."
    )
    number_loss: Literal["mse", "huber"] = setting("mse", "Loss of numbers: squared error, or Huber's.")
    class_weights: Literal["none", "balanced"] = setting(
        "none", "balanced: the loss of a class is weighted by the inverse of its number of examples."
    )
    symmetric: bool = setting(False, "The order of the two texts does not matter, as for paraphrases.")
    pool: Literal["first", "mean", "last", "attention"] = setting("mean", "How tokens are pooled for the head.")
    unit: Literal["words", "wordpiece", "bpe", "unigram", "characters"] = setting(
        "words", "What a token of a text is: words, characters, or subwords of a trained tokenizer."
    )
    vocab_size: int = setting(20000, "Size of the texts' vocabulary.", ge=1)
    lowercase: bool = setting(True, "Turn texts to lower case.")
    max_length: int = setting(256, "Tokens of a pair that are read; the end of the longer text is cut off.", ge=5)
    word_dropout: float = setting(0.1, "Share of a text's tokens that are hidden in training.", ge=0, lt=1)


class TextPairs(TargetTask[PairsSettings, LabelledPair, PairInputs]):
    """A class, a number or labels for each pair of texts."""

    name = "pairs"
    Settings = PairsSettings
    reads_rows = True

    @property
    def row_columns(self) -> tuple[ColumnSpec, ColumnSpec]:
        return pair_columns(self.settings.first, self.settings.second)

    def __init__(self, settings: PairsSettings, target: InputTarget, inputs: PairInputs) -> None:
        self.settings, self._target, self.inputs = replace(settings, target=target.kind), target, inputs
        self.max_length = settings.max_length

    @classmethod
    def read(cls, paths: Sequence[Path], settings: PairsSettings) -> Reading[LabelledPair]:
        s = settings
        return read_pairs(paths, first=s.first, second=s.second, label=s.label, target=s.target)

    @classmethod
    def prepare(
        cls, examples: Sequence[LabelledPair], settings: PairsSettings, pretrained: Pretrained | None = None
    ) -> TextPairs:
        """The task for these training examples: its target and its vocabulary."""
        balanced = settings.class_weights == "balanced"
        target = make_target([e.label for e in examples], settings.target, settings.number_loss, balanced)
        if pretrained is None:
            return cls(settings, target, PairInputs.from_examples(examples, settings))
        return cls(settings, target, PairInputs.from_pretrained(pretrained, settings))

    @classmethod
    def prepare_from(
        cls, examples: Sequence[LabelledPair], settings: PairsSettings, pretrained: Pretrained
    ) -> TextPairs:
        return cls.prepare(examples, settings, pretrained)

    def as_dict(self) -> JsonObject:
        return {"target": self.target.as_dict(), "inputs": self.inputs.as_dict()}

    @classmethod
    def from_dict(cls, data: ParsedObject, settings: PairsSettings, tokenizer: Tokenizer | None = None) -> TextPairs:
        target = input_target_from_dict(data["target"])
        return cls(settings, target, PairInputs.from_dict(data["inputs"], settings, tokenizer))

    def config(self, a: Architecture) -> SequenceConfig:
        embed, stack = self.inputs.layer_configs(a)
        head = ClassificationHeadConfig(self.target.outputs, a.dim, pool=self.settings.pool, dropout=a.dropout)
        return SequenceConfig(embed, stack, head=head)

    def initialize(self, model: nn.Module) -> None:
        self.inputs.initialize(model)

    def logits(self, model: nn.Module, examples: Sequence[LabelledPair], tokens: int = 16384) -> Tensor:
        logits = super().logits(model, examples, tokens)
        if not self.settings.symmetric:
            return logits
        return (logits + super().logits(model, [swap(example) for example in examples], tokens)) / 2

    @classmethod
    def split(
        cls, reading: Reading[LabelledPair], share: float, seed: int
    ) -> tuple[Reading[LabelledPair], Reading[LabelledPair]]:
        """(training data, validation data), with the same share of every class; equal first texts stay together."""
        return stratified_split(reading, share, seed, by=lambda example: example.first)

    def example_records(self, examples: Sequence[LabelledPair]) -> list[dict[str, str]]:
        return [{"input": f"{example.first}\t{example.second}", "gold": example.label} for example in examples]

    def choices(self, examples: Sequence[LabelledPair]) -> list[str]:
        return self.inputs.choices(examples) + self.label_choices([example.label for example in examples])

    def text_inputs(self, text: str) -> Batch:
        first, _, second = text.partition("\t")
        return self.inputs.batch([LabelledPair(first, second, "")], None)

    def predict(self, model: nn.Module, inputs: Sequence[object]) -> Sequence[Result]:
        """The class, the labels or the number of each pair."""
        examples = [self.inputs.example_of(given) for given in inputs]
        names = [f"{example.first}\t{example.second}" for example in examples]
        return self.target.predictions(names, self.logits(model, examples))

    def describe(self, examples: Sequence[LabelledPair]) -> JsonObject:
        labels, splits = [example.label for example in examples], {split_of(example) for example in examples}
        facts: JsonObject = {"pairs": len(examples), **self.target.describe(labels), **self.inputs.describe(examples)}
        return facts | ({"splits": sorted(splits)} if splits != {""} else {})
