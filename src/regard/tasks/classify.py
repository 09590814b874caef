"""N → 1: a class for a text, an image or a recording."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..data import images, sound
from ..data.arrays import Arrays
from ..data.files import kind_of, paths_of, read_lines_of
from ..data.listing import ending
from ..data.order import Order
from ..data.reading import Reading, Refused
from ..errors import BadInput
from ..models.baselines.linear import Line
from ..models.config import Sequence as SequenceConfig
from ..models.ensemble import Committee, CommitteeModel
from ..models.heads import IGNORED, Classes
from .architecture import Architecture
from .inputs.audio import Recordings
from .inputs.augment import mixed
from .inputs.images import Pictures
from .inputs.text import Texts
from .losses.r_drop import disagreement, twice
from .task import Scores

INPUTS = {"text": Texts, "image": Pictures, "sound": Recordings}

LINE_SAYS = 0.7
"""How much of what is said a line beside the encoders says. Taught by few texts these are surer than they should be,
and it is not: on folds of SST-2's sentences equal parts served less."""


@dataclass(frozen=True)
class ClassifySettings:
    """How texts, images or recordings are read; `kind` says which, unless the files do.

    `input` and `label` name columns or arrays, `folder` is where a table's paths begin. `pool` says what the class is
    read off. `agreement` is the weight of a second thing to learn: that the model, asked twice, each time with other
    dropout, says the same. With `members` there are so many models side by side, each learning by itself, and the mean
    of their probabilities is what is said.

    Texts: `unit` of which the vocabulary has so many pieces; `longest` tokens are kept; a share `word_dropout` of them
    is hidden while training; `vectors` is a file of word vectors, kept as they are if `frozen`. With `affixes` words
    are known by their letters too and by their beginnings and endings of up to so many, with `grams` by their runs of
    three to so many letters instead of the letters; while training a word seen n times is known by these alone with
    probability `rare` / (`rare` + n). With `wide` a line learns beside the model (or the members), and what is said
    is a mean of both: it gives each word, each of its affixes or runs and each pair of near words a weight, the pairs
    (and those of the words' longest beginnings) being hashed to so many rows, and hears from naive Bayes which of them
    matter.

    Images: brought to `size` pixels either way, cut into squares of `patch`. While training: turned by up to `turn`
    degrees (and made up to a tenth larger or smaller, if it is not 0), moved by up to `shift` pixels, mirrored if
    `flip`, `jitter` deviations of contrast and brightness, a square of `cutout` pixels hidden, two images mixed in
    proportions drawn from Beta(`mix`, `mix`).

    Sound: `features` with so many `bins` a frame, `stack` frames a token, at `sample_rate` samples a second. While
    training, two stretches of up to `mask_frames` frames and two of up to `mask_bins` bins are hidden.
    """

    kind: Literal["auto", "text", "image", "sound"] = "auto"
    input: str | None = None
    label: str | None = None
    folder: str | None = None
    pool: Literal["first", "mean", "last", "attention"] = "mean"
    agreement: float = 0.0
    members: int = 1
    unit: Literal["words", "wordpiece", "bpe", "unigram", "characters"] = "words"
    vocabulary: int = 20000
    lower: bool = True
    longest: int = 512
    word_dropout: float = 0.1
    vectors: str | None = None
    frozen: bool = False
    affixes: int = 0
    grams: int = 0
    rare: float = 1.0
    wide: int = 0
    size: int | None = None
    patch: int = 4
    turn: float = 0.0
    shift: int = 0
    flip: bool = False
    jitter: float = 0.0
    cutout: int = 0
    mix: float = 0.0
    features: Literal["mel", "mfcc"] = "mel"
    bins: int = 40
    sample_rate: int | None = None
    stack: int = 2
    mask_frames: int = 0
    mask_bins: int = 0


class Classify:
    """A class for each example: accuracy, and F1 as the mean over classes."""

    name = "classify"
    Settings = ClassifySettings

    def __init__(self, settings: ClassifySettings, labels: list[str], inputs: Texts | Pictures | Recordings) -> None:
        self.settings, self.labels, self.inputs = settings, labels, inputs
        self.number = {label: n for n, label in enumerate(labels)}
        self.ratios: Tensor | None = None

    @staticmethod
    def read(paths: Sequence[Path], settings: ClassifySettings) -> Reading[Any]:
        kind = settings.kind if settings.kind != "auto" else kind_in(paths_of(paths, folders=True)[0])
        return INPUTS[kind].read(paths, settings)

    @classmethod
    def prepare(cls, examples: Sequence[Any], settings: ClassifySettings) -> Classify:
        """The task for these training examples: its classes, and what its kind of input needs."""
        labels = in_order({example.label for example in examples})
        if len(labels) < 2:
            raise BadInput(f"There is {len(labels)} class in {len(examples)} examples: {labels}. Give two at least.")
        inputs = INPUTS[kind_of_example(examples[0])]
        need_own_settings(settings, inputs.kind)
        made = cls(settings, labels, inputs.learn(examples, settings))
        made.ratios = made.counted(examples) if settings.wide else None
        return made

    @property
    def tokenizer(self) -> Any:
        return getattr(self.inputs, "tokenizer", None)

    def as_dict(self) -> dict[str, Any]:
        return {"labels": self.labels, "kind": self.inputs.kind, "inputs": self.inputs.as_dict()}

    @classmethod
    def from_dict(cls, data: dict[str, Any], settings: dict[str, Any], tokenizer: Any = None) -> Classify:
        made = ClassifySettings(**settings)
        return cls(made, data["labels"], INPUTS[data["kind"]].from_dict(data["inputs"], made, tokenizer))

    def config(self, a: Architecture) -> SequenceConfig | Committee:
        embed, stack = self.inputs.layers(a)
        head = Classes(len(self.labels), a.dim, pool=self.settings.pool, dropout=a.dropout)
        one, members = SequenceConfig(embed, stack, head=head), self.settings.members
        if self.settings.wide:
            return Committee(one, members, self.line(), LINE_SAYS)
        return one if members == 1 else Committee(one, members)

    @property
    def voices(self) -> int:
        """How many models learn, each by itself."""
        return self.settings.members + (1 if self.settings.wide else 0)

    def line(self) -> Line:
        """What learns beside the model where that is wanted."""
        assert isinstance(self.inputs, Texts)
        return self.inputs.line(len(self.labels))

    def counted(self, examples: Sequence[Any]) -> Tensor:
        """What naive Bayes says about all that the line reads."""
        line = self.line().build()
        batches = (self.batch(examples[n : n + 256]) for n in range(0, len(examples), 256))
        line.count((batch["tokens"], batch["lengths"], batch["labels"]) for batch in batches)
        return line.ratios

    def start(self, model: nn.Module) -> None:
        """What a model knows before it has learned anything."""
        for one in model.members if isinstance(model, CommitteeModel) else [model]:
            self.inputs.start(one)
        if self.ratios is not None:
            model.beside.ratios.copy_(self.ratios)  # type: ignore[union-attr, operator]

    def sizes(self, examples: Sequence[Any]) -> list[int]:
        return self.inputs.sizes(examples)

    def batch(self, examples: Sequence[Any], draw: Random | None = None) -> dict[str, Tensor]:
        """Inputs and labels; while training every example once for each model, changed at random each time."""
        if draw is not None and self.voices > 1:
            examples = [example for example in examples for _ in range(self.voices)]
        labels = torch.tensor([self.number.get(example.label, IGNORED) for example in examples])
        batch = {**self.inputs.batch(examples, draw), "labels": labels}
        return mixed(batch, draw, self.settings.mix) if draw is not None and self.settings.mix else batch

    def count(self, batch: dict[str, Tensor]) -> int:
        return int((batch["labels"] != IGNORED).sum())

    def loss(self, model: nn.Module, batch: dict[str, Tensor], smoothing: float = 0.0) -> Tensor:
        """The sum of the examples' losses.

        With `agreement`, while training, each example is computed twice, as p and as q by what dropout left:
        ½ (loss(p) + loss(q)) + agreement · ¼ (KL(p‖q) + KL(q‖p)).
        """
        agreement = self.settings.agreement if model.training else 0.0
        batch = twice(batch) if agreement else batch
        given = {name: value for name, value in batch.items() if name not in ("labels", "other", "share")}
        logits = model(**given).logits.float()
        total = sum_of_losses(logits, batch["labels"], smoothing)
        if "other" in batch:
            share = batch["share"]
            total = share * total + (1 - share) * sum_of_losses(logits, batch["other"], smoothing)
        return (total + agreement / 2 * disagreement(logits.log_softmax(-1))) / 2 if agreement else total

    @torch.no_grad()
    def chances(self, model: nn.Module, examples: Sequence[Any], tokens: int = 16384) -> Tensor:
        """The probability of each class, `[examples, classes]`."""
        device = next(model.parameters()).device
        found = torch.zeros(len(examples), len(self.labels))
        for numbers in by_size(self.sizes(examples), tokens):
            batch = self.inputs.batch([examples[n] for n in numbers], None)
            logits = model(**{name: value.to(device) for name, value in batch.items()}).logits
            found[numbers] = logits.float().softmax(-1).cpu()
        return found

    def evaluate(self, model: nn.Module, examples: Sequence[Any]) -> Scores:
        """Accuracy, macro F1 and mean loss; each class's precision, recall and F1. A class never learned is wrong."""
        chances = self.chances(model, examples)
        gold, said = [e.label for e in examples], [self.labels[n] for n in chances.argmax(-1).tolist()]
        each = per_class(gold, said)
        known = [n for n, label in enumerate(gold) if label in self.number]
        right = chances[known, [self.number[gold[n]] for n in known]].clamp(min=1e-12)
        metrics = {
            "accuracy": sum(map(str.__eq__, gold, said)) / max(1, len(gold)),
            "macro F1": sum(one["F1"] for one in each.values()) / max(1, len(each)),
            "loss": float(-right.log().mean()) if known else 0.0,
        }
        details = {"per class": each, "never learned": dict(self.never_learned(examples))}
        return Scores(metrics, "accuracy", hypotheses=said, details=details)

    def never_learned(self, examples: Sequence[Any]) -> Counter[str]:
        """How often these examples have labels that were not learned from."""
        return Counter(example.label for example in examples if example.label not in self.number)

    def predict(self, model: nn.Module, inputs: Sequence[str]) -> list[dict[str, Any]]:
        """The class and its probability, for texts or for paths of images or recordings."""
        chances = self.chances(model, [self.inputs.given(one) for one in inputs])
        best = chances.max(-1)
        return [
            {"input": text, "label": self.labels[n], "probability": round(p, 4)}
            for text, n, p in zip(inputs, best.indices.tolist(), best.values.tolist(), strict=True)
        ]

    def describe(self, examples: Sequence[Any]) -> dict[str, Any]:
        """What `check` shows."""
        counts = Counter(example.label for example in examples)
        facts = {"kind": self.inputs.kind, "examples read": len(examples), "classes": dict(counts.most_common())}
        parts = Counter(getattr(example, "part", "") for example in examples)
        return facts | ({"parts": dict(parts)} if set(parts) != {""} else {}) | self.inputs.describe(examples)


def sum_of_losses(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    return functional.cross_entropy(logits, labels, ignore_index=IGNORED, label_smoothing=smoothing, reduction="sum")


def kind_in(path: Path) -> str:
    """Whether a file or folder holds texts, images or recordings."""
    if path.is_dir():
        return kind_of_names(one.name for one in path.rglob("*") if one.is_file()) or "image"
    if kind_of(path) == "npz":
        try:
            return "sound" if "rate" in Arrays(path) else "image"
        except Refused as refused:
            raise BadInput(str(refused)) from None
    try:
        lines = read_lines_of(path)[:20]
    except Refused:
        return "text"  # whose reader says what is wrong with the file
    return kind_of_rows(lines[1:] or lines)


def kind_of_rows(lines: Sequence[str]) -> str:
    """What most of a table's lines name: images, recordings, or neither, since a text may end in the name of a file.

    >>> kind_of_rows(["a.png,cat", "b.png,dog"]), kind_of_rows(["I sent b.png,spam", "see you,ham"])
    ('image', 'text')
    """
    rows = [line for line in lines if line.strip()]
    found = Counter(kind_of_names(iter(re.split(r'[\t,;"]', line))) for line in rows)
    return next((kind for kind in ("image", "sound") if 2 * found[kind] > len(rows)), "text")


def kind_of_names(names: Iterator[str]) -> str | None:
    """What the first name that ends as images or recordings do says."""
    for name in names:
        for kind, endings in (("image", images.ENDINGS), ("sound", sound.ENDINGS)):
            if ending(Path(name.strip())) in endings and not name.strip().startswith("."):
                return kind
    return None


def kind_of_example(example: Any) -> str:
    kinds = {images.LabelledImage: "image", sound.LabelledSound: "sound"}
    return kinds.get(type(example), "text")


def need_own_settings(settings: ClassifySettings, kind: str) -> None:
    """Raise for a setting that says nothing about this kind of input."""
    for other, inputs in INPUTS.items():
        for name in inputs.SETTINGS if other != kind else ():
            if getattr(settings, name) != getattr(ClassifySettings(), name):
                raise BadInput(f"{name} is a setting for {other}, and these files hold {kind}. Leave it out.")


def in_order(labels: set[str]) -> list[str]:
    """Labels in their order as numbers, or as words.

    >>> in_order({"10", "9"}), in_order({"b", "a"})
    (['9', '10'], ['a', 'b'])
    """
    numbers = all(label.isdecimal() for label in labels)
    return sorted(labels, key=lambda label: (int(label), label)) if numbers else sorted(labels)


def by_size(sizes: Sequence[int], tokens: int) -> list[list[int]]:
    """Numbers of examples in batches of about `tokens`, neighbours in size together."""
    return Order(sizes, tokens=tokens).cut(sorted(range(len(sizes)), key=sizes.__getitem__)) if sizes else []


def per_class(gold: Sequence[str], said: Sequence[str]) -> dict[str, dict[str, float]]:
    """Precision, recall and F1 of every class that was right or was said, and how many there are.

    >>> per_class(["a", "a", "b"], ["a", "b", "b"])["a"]
    {'precision': 1.0, 'recall': 0.5, 'F1': 0.6666666666666666, 'count': 2}
    """
    there, claimed = Counter(gold), Counter(said)
    right = Counter(one for one, other in zip(gold, said, strict=True) if one == other)
    found = {}
    for label in in_order(set(there) | set(claimed)):
        precision, recall = right[label] / max(1, claimed[label]), right[label] / max(1, there[label])
        score = 2 * right[label] / (there[label] + claimed[label])
        found[label] = {"precision": precision, "recall": recall, "F1": score, "count": there[label]}
    return found
