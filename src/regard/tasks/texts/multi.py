"""Several tasks with one text encoder: a head for each, trained on mixed batches.

The training file is TOML with a table for each head:

    [sentiment]
    task = "classify"
    train = "reviews.csv"

    [entailment]
    task = "pairs"
    train = ["nli-1.tsv", "nli-2.tsv"]
    dev = "nli-dev.tsv"
    weight = 0.5

Files are relative to the TOML file. Other keys are settings of the head's task, such as `label` or `target`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...data.annotations.pairs import LabelledPair
from ...data.batching import batch_by_size
from ...data.files import resolve_paths
from ...data.json_values import JsonObject, ParsedObject
from ...data.reading import Fault, Reading
from ...data.text import LabelledText
from ...errors import BadInput, RegardError
from ...models.config import SequenceConfig
from ...models.heads import ClassificationHeadConfig
from ...models.tokenizers.tokenizer import Tokenizer
from ...settings import Settings, load_settings, setting
from ..architecture import Architecture
from ..inputs.given import name_of
from ..inputs.text import TextInputs
from ..losses.choose_target import input_target_from_dict, make_target
from ..losses.targets import InputTarget
from ..pretrained.pretrained import Pretrained
from ..results import HeadResults, Result
from ..target_task import Inputs, stratified_split
from ..task import Batch, Scores, Task, require_tokenizer
from .heads import HEAD_SETTINGS, SHARED, HeadExample, HeadSpec, read_heads, texts_of
from .pair_inputs import PairInputs
from .pairs import PairsSettings

SCORES = {"class": "accuracy", "labels": "micro F1", "number": "R2"}
"""The metric of a head that counts in the mean over heads, by the kind of its target."""


@dataclass(frozen=True)
class MultiSettings(Settings):
    """Settings of the task `multi`: what all heads have in common. The training file names the heads."""

    pool: Literal["first", "mean", "last", "attention"] = setting("mean", "How tokens are pooled for the heads.")
    unit: Literal["words", "wordpiece", "bpe", "unigram", "characters"] = setting(
        "words", "What a token of a text is: words, characters, or subwords of a trained tokenizer."
    )
    vocab_size: int = setting(20000, "Size of the texts' vocabulary.", ge=1)
    lowercase: bool = setting(True, "Turn texts to lower case.")
    max_length: int = setting(256, "Tokens of a text or pair that are read.", ge=5)
    word_dropout: float = setting(0.1, "Share of a text's tokens that are hidden in training.", ge=0, lt=1)


@dataclass(frozen=True, eq=False)
class Head:
    """A head: its target, the inputs that read its examples, and its columns of the model's outputs."""

    spec: HeadSpec
    target: InputTarget
    inputs: Inputs[Any]  # of the examples of its task
    columns: slice


class Multi(Task[MultiSettings, HeadExample, HeadExample]):
    """Classes, labels or numbers of texts and of pairs, several at once.

    The model has one encoder and one output layer; each head has some of its columns. The main metric is the mean over
    heads of accuracy, micro F1 or R².
    """

    name = "multi"
    Settings = MultiSettings

    def __init__(self, settings: MultiSettings, heads: dict[str, Head], tokenizer: Tokenizer) -> None:
        self.settings, self.heads, self._tokenizer = settings, heads, tokenizer
        self.max_length = settings.max_length

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @classmethod
    def read(cls, paths: Sequence[Path], settings: MultiSettings) -> Reading[HeadExample]:
        from .. import find_task

        examples: list[HeadExample] = []
        faults: list[Fault] = []
        files: list[str] = []
        notes: list[str] = []
        for path in resolve_paths(paths):
            files.append(str(path))
            for spec, splits in read_heads(path):
                for split_name, own in splits.items():
                    reading = find_task(spec.task).read([path.parent / name for name in own], spec.settings)
                    given = len(splits) > 1 or split_name != "train"
                    marks = (split_name if given else example.split for example in reading.examples)
                    examples += map(HeadExample, [spec] * len(reading), reading.examples, marks)
                    faults += reading.faults
                    files += reading.files
                    notes += [f"{spec.name}: {note}" for note in reading.notes]
        return Reading(tuple(examples), tuple(faults), tuple(files), tuple(dict.fromkeys(notes)))

    @classmethod
    def prepare(
        cls, examples: Sequence[HeadExample], settings: MultiSettings, pretrained: Pretrained | None = None
    ) -> Multi:
        """The task for these training examples: the target of each head, and one vocabulary."""
        groups: dict[str, list[HeadExample]] = {}
        for example in examples:
            groups.setdefault(example.spec.name, []).append(example)
        tokenizer = (
            Tokenizer.train(
                [text for example in examples for text in texts_of(example.example)],
                settings.unit,
                settings.vocab_size,
                settings.lowercase,
            )
            if pretrained is None
            else pretrained.tokenizer
        )
        heads, start = {}, 0
        for name, own in groups.items():
            spec = share_settings(own[0].spec, settings)
            balanced = spec.settings.class_weights == "balanced"
            labels = [example.label for example in own]
            try:
                target = make_target(labels, spec.settings.target, spec.settings.number_loss, balanced)
            except BadInput as error:
                raise BadInput(f"The head {name}: {error}") from None
            columns = slice(start, start + target.outputs)
            heads[name] = Head(spec, target, make_inputs(spec, tokenizer, pretrained), columns)
            start = columns.stop
        return cls(settings, heads, tokenizer)

    @classmethod
    def prepare_from(cls, examples: Sequence[HeadExample], settings: MultiSettings, pretrained: Pretrained) -> Multi:
        return cls.prepare(examples, settings, pretrained)

    def as_dict(self) -> JsonObject:
        return {
            "heads": [
                {
                    "name": name,
                    "task": head.spec.task,
                    "weight": head.spec.weight,
                    "settings": asdict(head.spec.settings),
                    "target": head.target.as_dict(),
                    "inputs": head.inputs.as_dict(),
                }
                for name, head in self.heads.items()
            ]
        }

    @classmethod
    def from_dict(cls, data: ParsedObject, settings: MultiSettings, tokenizer: Tokenizer | None = None) -> Multi:
        tokenizer = require_tokenizer(tokenizer)
        heads, start = {}, 0
        for saved in data["heads"]:
            own = load_settings(HEAD_SETTINGS[saved["task"]], saved["settings"])
            spec = HeadSpec(saved["name"], saved["task"], own, saved["weight"])
            target = input_target_from_dict(saved["target"])
            inputs = (
                PairInputs.from_dict(saved["inputs"], own, tokenizer)
                if isinstance(own, PairsSettings)
                else TextInputs.from_dict(saved["inputs"], own, tokenizer)
            )
            columns = slice(start, start + target.outputs)
            heads[spec.name] = Head(spec, target, inputs, columns)
            start = columns.stop
        return cls(settings, heads, tokenizer)

    def tuned_values(self) -> JsonObject:
        return {name: values for name, head in self.heads.items() if (values := head.target.tuned_values())}

    def restore_tuned(self, values: ParsedObject) -> None:
        for name, own in values.items():
            self.heads[name].target.restore_tuned(own)

    def config(self, a: Architecture) -> SequenceConfig:
        every = list(self.heads.values())
        reader = next((head for head in every if isinstance(head.inputs, PairInputs)), every[0])
        embed, stack = reader.inputs.layer_configs(a)
        outputs = every[-1].columns.stop
        head = ClassificationHeadConfig(outputs, a.dim, pool=self.settings.pool, dropout=a.dropout)
        return SequenceConfig(embed, stack, head=head)

    def initialize(self, model: nn.Module) -> None:
        next(iter(self.heads.values())).inputs.initialize(model)

    def sizes(self, examples: Sequence[HeadExample]) -> list[int]:
        sizes = [0] * len(examples)
        for head, numbers in self.by_head(examples):
            own = head.inputs.sizes([examples[n].example for n in numbers])
            for n, size in zip(numbers, own, strict=True):
                sizes[n] = size
        return sizes

    def by_head(self, examples: Sequence[HeadExample]) -> list[tuple[Head, list[int]]]:
        """Each head with the indices of its examples; heads without any are left out."""
        numbers: dict[str, list[int]] = {}
        for n, example in enumerate(examples):
            numbers.setdefault(example.spec.name, []).append(n)
        unknown = set(numbers) - set(self.heads)
        if unknown:
            raise BadInput(f"There is no head {sorted(unknown)[0]!r}. The heads are {', '.join(self.heads)}.")
        return [(head, numbers[name]) for name, head in self.heads.items() if name in numbers]

    def batch(self, examples: Sequence[HeadExample], rng: Random | None = None) -> Batch:
        """The rows of all heads, those of one head together; labels are under the heads' names."""
        parts, labels = [], {}
        for head, numbers in self.by_head(examples):
            own = [examples[n].example for n in numbers]
            parts.append(head.inputs.batch(own, rng))
            labels[f"labels {head.spec.name}"] = head.target.tensor([example.label for example in own])
        return join_rows(parts, self.tokenizer.pad or 0) | labels

    def count(self, batch: Batch) -> int:
        return sum(
            int(head.target.label_mask(batch[f"labels {name}"]).sum())
            for name, head in self.heads.items()
            if f"labels {name}" in batch
        )

    def loss(self, model: nn.Module, batch: Batch, smoothing: float = 0.0) -> Tensor:
        """The sum of the losses of all heads, each with its weight."""
        logits = model(**{name: x for name, x in batch.items() if not name.startswith("labels ")}).logits.float()
        total, start = logits.new_zeros(()), 0
        for name, head in self.heads.items():
            if (labels := batch.get(f"labels {name}")) is not None:
                own = logits[start : start + len(labels), head.columns]
                total = total + head.spec.weight * head.target.loss(own, labels, smoothing, model.training)
                start += len(labels)
        return total

    @torch.no_grad()
    def logits(
        self, model: nn.Module, head: Head, examples: Sequence[LabelledText | LabelledPair], tokens: int = 16384
    ) -> Tensor:
        """The outputs of a head for its examples."""
        device = next(model.parameters()).device
        logits = torch.zeros(len(examples), head.target.outputs)
        for numbers in batch_by_size(head.inputs.sizes(examples), tokens):
            batch = head.inputs.batch([examples[n] for n in numbers], None)
            output = model(**{name: x.to(device) for name, x in batch.items()}).logits
            logits[numbers] = output[:, head.columns].float().cpu()
        return logits

    def evaluate(self, model: nn.Module, examples: Sequence[HeadExample]) -> Scores:
        return self.score(model, examples, tune=False)

    def validate(self, model: nn.Module, examples: Sequence[HeadExample]) -> Scores:
        return self.score(model, examples, tune=True)

    def score(self, model: nn.Module, examples: Sequence[HeadExample], tune: bool) -> Scores:
        """The metrics of each head under its name, and the mean over heads."""
        metrics, details, values = {}, {}, []
        for head, numbers in self.by_head(examples):
            own = [examples[n].example for n in numbers]
            logits, labels = self.logits(model, head, own), [example.label for example in own]
            if tune:
                head.target.tune(logits, labels)
            scores = head.target.scores(logits, labels)
            metrics |= {f"{head.spec.name} {name}": value for name, value in scores.metrics.items()}
            details[head.spec.name] = scores.details
            values.append(scores.metrics[SCORES[head.target.kind]])
        return Scores({"mean": sum(values) / max(1, len(values)), **metrics}, "mean", details=details)

    def unknown_labels(self, examples: Sequence[HeadExample]) -> Counter[str]:
        counts: Counter[str] = Counter()
        for head, numbers in self.by_head(examples):
            counts += head.target.unknown([examples[n].label for n in numbers])
        return counts

    @classmethod
    def split(
        cls, reading: Reading[HeadExample], share: float, seed: int
    ) -> tuple[Reading[HeadExample], Reading[HeadExample]]:
        """(training data, validation data): the same share of each head and of each of its labels."""
        parts: dict[str, list[HeadExample]] = {}
        for example in reading.examples:
            parts.setdefault(example.spec.name, []).append(example)
        pairs = [stratified_split(replace(reading, examples=tuple(own)), share, seed) for own in parts.values()]
        rest, held = (tuple(e for pair in pairs for e in pair[side].examples) for side in (0, 1))
        return replace(reading, examples=rest), replace(reading, examples=held)

    def choices(self, examples: Sequence[HeadExample]) -> list[str]:
        """How many examples each head has, and what its labels are."""
        return [
            f"{head.spec.name}: {len(numbers):,} examples of {head.spec.task}, a {head.target.kind}"
            f"{'' if head.target.labels is None else f' of {head.target.outputs}'}, weight {head.spec.weight:g}."
            for head, numbers in self.by_head(examples)
        ]

    def text_inputs(self, text: str) -> Batch:
        head = next(iter(self.heads.values()))
        return head.inputs.batch([head.inputs.example_of(text)], None)

    def predict(self, model: nn.Module, inputs: Sequence[object]) -> list[HeadResults]:
        """What every head that reads such an input predicts; a pair is two texts with a tab between them."""
        return [self.predict_one(model, given) for given in inputs]

    def predict_one(self, model: nn.Module, given: object) -> HeadResults:
        results: dict[str, Result] = {}
        reasons = []
        pair = (isinstance(given, Mapping) and len(given) > 1) or (isinstance(given, str) and "\t" in given)
        for name, head in self.heads.items():
            if isinstance(head.inputs, PairInputs) != pair:
                continue
            try:
                logits = self.logits(model, head, [head.inputs.example_of(given)])
                results[name] = head.target.predictions([name_of(given)], logits)[0]
            except RegardError as error:
                reasons.append(str(error))
        if not results:
            wanted = "two texts with a tab between them" if not pair else "one text"
            raise BadInput(reasons[0] if reasons else f"No head reads {name_of(given)!r:.60}. Give {wanted}.")
        return HeadResults(name_of(given), results)

    def describe(self, examples: Sequence[HeadExample]) -> JsonObject:
        """Facts that `check` shows: those of each head."""
        facts: JsonObject = {"examples": len(examples), "vocabulary": self.tokenizer.size}
        for head, numbers in self.by_head(examples):
            labels = head.target.describe([examples[n].label for n in numbers])
            facts[head.spec.name] = {"task": head.spec.task, "examples": len(numbers), **labels}
        return facts


def share_settings(spec: HeadSpec, settings: MultiSettings) -> HeadSpec:
    """The head with the settings of inputs that all heads have in common."""
    return replace(spec, settings=replace(spec.settings, **{name: getattr(settings, name) for name in SHARED}))


def make_inputs(spec: HeadSpec, tokenizer: Tokenizer, pretrained: Pretrained | None) -> TextInputs | PairInputs:
    own = spec.settings
    if isinstance(own, PairsSettings):
        return PairInputs(own, tokenizer) if pretrained is None else PairInputs.from_pretrained(pretrained, own)
    return TextInputs(own, tokenizer) if pretrained is None else TextInputs.from_pretrained(pretrained, own)


def join_rows(parts: Sequence[Batch], fill: int) -> Batch:
    """Batches one below the other, padded to the same number of tokens; texts without segments have segment 0."""
    width = max(part["tokens"].shape[1] for part in parts)
    joined = {
        "tokens": torch.cat(
            [functional.pad(p["tokens"], (0, width - p["tokens"].shape[1]), value=fill) for p in parts]
        ),
        "lengths": torch.cat([part["lengths"] for part in parts]),
    }
    if any("segments" in part for part in parts):
        segments = [part.get("segments", torch.zeros_like(part["tokens"])) for part in parts]
        joined["segments"] = torch.cat([functional.pad(x, (0, width - x.shape[1])) for x in segments])
    return joined
