"""Classification: a class for a text, an image or a recording."""

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
from ..data.batching import batch_by_size
from ..data.files import file_format, read_file_lines, resolve_paths
from ..data.images import LabelledImage, Picture
from ..data.listing import file_extension
from ..data.reading import MalformedData, Reading, split, split_of
from ..data.sound import LabelledSound, Spoken
from ..data.text import LabelledText
from ..errors import BadInput
from ..models.baselines.linear import NBLinearConfig
from ..models.config import SequenceConfig
from ..models.ensemble import EnsembleConfig, EnsembleModel
from ..models.heads import IGNORED, ClassificationHeadConfig
from ..models.hierarchical import HierarchicalConfig
from ..models.tokenizers.tokenizer import Tokenizer
from ..settings import Settings, setting
from .architecture import HIERARCHICAL, Architecture
from .inputs.audio import AudioInputs
from .inputs.augment import mixup
from .inputs.images import ImageInputs
from .inputs.text import TextInputs
from .inputs.word_features import WordFeatures
from .losses.r_drop import repeat_batch, symmetric_kl
from .sentences import hierarchical_config
from .task import Batch, Scores, Task

INPUTS = {"text": TextInputs, "image": ImageInputs, "sound": AudioInputs}

RARE = 5
"""Examples of a class under which it is named before training."""

NB_WEIGHT = 0.7
"""Weight of the linear classifier beside the encoders. Encoders that are trained on few texts are overconfident, and it
is not: on folds of SST-2 equal weights scored lower."""


@dataclass(frozen=True)
class ClassifySettings(Settings):
    """Settings of the task `classify`, which reads texts, images or recordings.

    `ensemble` models are trained side by side, and their probabilities averaged. With `nb_linear` a linear classifier
    over word, affix and word-pair features, weighted by naive Bayes log-count ratios, is trained with them. Its word
    pairs are hashed to that many rows.
    """

    modality: Literal["auto", "text", "image", "sound"] = setting(
        "auto", "What the inputs are; auto reads it off the files.", former="kind"
    )
    input: str | None = setting(None, "Column or array of the inputs.")
    label: str | None = setting(None, "Column or array of the labels.")
    folder: str | None = setting(None, "Folder that a table's paths are relative to.")
    pool: Literal["first", "mean", "last", "attention"] = setting("mean", "How tokens are pooled for the head.")
    r_drop: float = setting(0.0, "Weight of R-Drop's consistency loss; 0 is off.", ge=0, former="agreement")
    ensemble: int = setting(1, "Models that are trained side by side and averaged.", ge=1, former="members")
    class_weights: Literal["none", "balanced"] = setting(
        "none", "balanced: the loss of a class is weighted by the inverse of its number of examples."
    )
    unit: Literal["words", "wordpiece", "bpe", "unigram", "characters"] = setting(
        "words", "What a token of a text is: words, characters, or subwords of a trained tokenizer."
    )
    vocab_size: int = setting(20000, "Size of the texts' vocabulary.", ge=1, former="vocabulary")
    lowercase: bool = setting(True, "Turn texts to lower case.", former="lower")
    max_length: int = setting(512, "Tokens of a text that are read; the rest is cut off.", ge=1, former="longest")
    word_dropout: float = setting(0.1, "Share of a text's tokens that are hidden in training.", ge=0, lt=1)
    vectors: str | None = setting(None, "File of word vectors (GloVe, word2vec, NPZ) for the embedding.", file=True)
    frozen: bool = setting(False, "Do not train the word vectors.")
    max_affix: int = setting(
        0, "Longest prefix and suffix that are word features; 0 is none. Needs unit=words.", ge=0, former="affixes"
    )
    char_ngrams: int = setting(
        0,
        "Longest character n-gram (from 3) that is a word feature; 0 is none. Needs unit=words.",
        ge=0,
        former="grams",
    )
    rare_word_dropout: float = setting(
        1.0,
        "With word features, a word seen n times is read as unknown with probability a / (a + n) in training.",
        ge=0,
        former="rare",
    )
    nb_linear: int = setting(
        0,
        "Rows of hashed word pairs of a naive-Bayes linear classifier beside the model; 0 is none.",
        ge=0,
        former="wide",
    )
    image_size: int | None = setting(
        None,
        "Height and width that images are resized to; by default their own, where they agree.",
        ge=1,
        former="size",
    )
    patch_size: int = setting(4, "Height and width of a patch in pixels.", ge=1, former="patch")
    rotation: float = setting(
        0.0,
        "Images are rotated by up to so many degrees in training, and scaled by up to a tenth.",
        ge=0,
        former="turn",
    )
    shift: int = setting(0, "Images are shifted by up to so many pixels in training.", ge=0)
    flip: bool = setting(False, "Half of the images are mirrored in training.")
    jitter: float = setting(0.0, "Contrast and brightness change by up to so many deviations in training.", ge=0)
    cutout: int = setting(0, "Side of the square in pixels that is erased from an image in training.", ge=0)
    mixup: float = setting(0.0, "Alpha of mixup, Beta(alpha, alpha); 0 is off.", ge=0, former="mix")
    features: Literal["mel", "mfcc"] = setting("mel", "Features of recordings: log-mel or MFCC.")
    bins: int = setting(40, "Mel bins or coefficients of a frame.", ge=1)
    sample_rate: int | None = setting(None, "Samples a second that recordings are resampled to.", ge=1)
    stack_frames: int = setting(2, "Frames that are stacked into one token.", ge=1, former="stack")
    mask_frames: int = setting(0, "Longest stretch of frames that is masked in training, twice a recording.", ge=0)
    mask_bins: int = setting(0, "Widest band of bins that is masked in training, twice a recording.", ge=0)


class Classify(Task[ClassifySettings]):
    """A class for each example: accuracy, and F1 as the mean over classes."""

    name = "classify"
    Settings = ClassifySettings

    def __init__(
        self, settings: ClassifySettings, labels: list[str], inputs: TextInputs | ImageInputs | AudioInputs
    ) -> None:
        self.settings, self.inputs = settings, inputs
        self._labels = labels
        self.max_length = settings.max_length if isinstance(inputs, TextInputs) else None
        self.input_column = settings.input
        self.frames_per_token = settings.stack_frames if isinstance(inputs, AudioInputs) else None
        self.number = {label: n for n, label in enumerate(labels)}
        self.ratios: Tensor | None = None
        self.weights: Tensor | None = None

    @property
    def labels(self) -> list[str]:
        return self._labels

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self.inputs.tokenizer

    @property
    def word_features(self) -> WordFeatures | None:
        return self.inputs.word_features if isinstance(self.inputs, TextInputs) else None

    @classmethod
    def read(cls, paths: Sequence[Path], settings: ClassifySettings) -> Reading[Any]:
        modality: str = settings.modality
        if modality == "auto":
            modality = detect_modality(resolve_paths(paths, folders=True)[0])
        return INPUTS[modality].read(paths, settings)

    @classmethod
    def prepare(cls, examples: Sequence[Any], settings: ClassifySettings) -> Classify:
        """The task for these training examples: its classes, and the vocabulary or statistics of its inputs."""
        labels = sort_labels({example.label for example in examples})
        if len(labels) < 2:
            raise BadInput(f"There is {len(labels)} class in {len(examples)} examples: {labels}. Give at least two.")
        modalities = {LabelledImage: "image", LabelledSound: "sound"}
        inputs = INPUTS[modalities.get(type(examples[0]), "text")]
        check_unused_settings(settings, inputs.kind)
        task = cls(settings, labels, inputs.from_examples(examples, settings))
        task.ratios = task.naive_bayes_ratios(examples) if settings.nb_linear else None
        if settings.class_weights == "balanced":
            counts = Counter(example.label for example in examples)
            task.weights = balanced_weights([counts[label] for label in labels])
        return task

    def as_dict(self) -> dict[str, Any]:
        return {"labels": self.labels, "kind": self.inputs.kind, "inputs": self.inputs.as_dict()}

    @classmethod
    def from_dict(cls, data: dict[str, Any], settings: ClassifySettings, tokenizer: Any = None) -> Classify:
        return cls(settings, data["labels"], INPUTS[data["kind"]].from_dict(data["inputs"], settings, tokenizer))

    def config(self, a: Architecture) -> SequenceConfig | HierarchicalConfig | EnsembleConfig:
        members = self.settings.ensemble
        if a.model == HIERARCHICAL:
            config = hierarchical_config(self.inputs, a, len(self.labels))
        else:
            embed, stack = self.inputs.layer_configs(a)
            head = ClassificationHeadConfig(len(self.labels), a.dim, pool=self.settings.pool, dropout=a.dropout)
            config = SequenceConfig(embed, stack, head=head)
        if self.settings.nb_linear:
            return EnsembleConfig(config, members, self.nb_linear_config(), NB_WEIGHT)
        return config if members == 1 else EnsembleConfig(config, members)

    @property
    def models_per_example(self) -> int:
        """Number of models that are trained side by side, each on its own copy of the batch."""
        return self.settings.ensemble + (1 if self.settings.nb_linear else 0)

    def nb_linear_config(self) -> NBLinearConfig:
        """The configuration of the linear classifier beside the model."""
        assert isinstance(self.inputs, TextInputs)
        return self.inputs.nb_linear_config(len(self.labels))

    def naive_bayes_ratios(self, examples: Sequence[Any]) -> Tensor:
        """The naive Bayes log-count ratios of the linear classifier's features."""
        linear = self.nb_linear_config().build()
        batches = (self.batch(examples[n : n + 256]) for n in range(0, len(examples), 256))
        linear.count((batch["tokens"], batch["lengths"], batch["labels"]) for batch in batches)
        return linear.ratios

    def initialize(self, model: nn.Module) -> None:
        """Set word vectors and naive Bayes ratios."""
        for member in model.members if isinstance(model, EnsembleModel) else [model]:
            self.inputs.initialize(member)
        if self.ratios is not None:
            model.beside.ratios.copy_(self.ratios)  # type: ignore[union-attr, operator]

    def sizes(self, examples: Sequence[Any]) -> list[int]:
        return self.inputs.sizes(examples)

    def batch(self, examples: Sequence[Any], rng: Random | None = None) -> dict[str, Tensor]:
        """Inputs and labels; in training every example once for each model, augmented separately."""
        if rng is not None and self.models_per_example > 1:
            examples = [example for example in examples for _ in range(self.models_per_example)]
        labels = torch.tensor([self.number.get(example.label, IGNORED) for example in examples])
        batch = {**self.inputs.batch(examples, rng), "labels": labels}
        return mixup(batch, rng, self.settings.mixup) if rng is not None and self.settings.mixup else batch

    def count(self, batch: dict[str, Tensor]) -> int:
        return int((batch["labels"] != IGNORED).sum())

    def loss(self, model: nn.Module, batch: dict[str, Tensor], smoothing: float = 0.0) -> Tensor:
        """The sum of the losses of the examples.

        With `r_drop`, in training, each example is computed twice with different dropout, as p and as q:

            ½ (loss(p) + loss(q)) + r_drop · ¼ (KL(p‖q) + KL(q‖p))
        """
        r_drop = self.settings.r_drop if model.training else 0.0
        batch = repeat_batch(batch) if r_drop else batch
        given = {name: value for name, value in batch.items() if name not in ("labels", "other", "share")}
        logits = model(**given).logits.float()
        weights = self.weights if model.training else None
        total = cross_entropy_sum(logits, batch["labels"], smoothing, weights)
        if "other" in batch:
            share = batch["share"]
            total = share * total + (1 - share) * cross_entropy_sum(logits, batch["other"], smoothing, weights)
        return (total + r_drop / 2 * symmetric_kl(logits.log_softmax(-1))) / 2 if r_drop else total

    @torch.no_grad()
    def probabilities(self, model: nn.Module, examples: Sequence[Any], tokens: int = 16384) -> Tensor:
        """The probability of each class, `[examples, classes]`."""
        device = next(model.parameters()).device
        probabilities = torch.zeros(len(examples), len(self.labels))
        for numbers in batch_by_size(self.sizes(examples), tokens):
            batch = self.inputs.batch([examples[n] for n in numbers], None)
            logits = model(**{name: value.to(device) for name, value in batch.items()}).logits
            probabilities[numbers] = logits.float().softmax(-1).cpu()
        return probabilities

    def evaluate(self, model: nn.Module, examples: Sequence[Any]) -> Scores:
        """Accuracy, macro F1 and mean loss; precision, recall and F1 of each class.

        Classes that the training data does not have count as wrong, in the loss with a probability of 1e-12.
        """
        probabilities = self.probabilities(model, examples)
        gold = [example.label for example in examples]
        predicted = [self.labels[n] for n in probabilities.argmax(-1).tolist()]
        per_class = classification_report(gold, predicted)
        known = [n for n, label in enumerate(gold) if label in self.number]
        of_label = torch.zeros(len(gold))
        of_label[known] = probabilities[known, [self.number[gold[n]] for n in known]]
        metrics = {
            "accuracy": sum(map(str.__eq__, gold, predicted)) / max(1, len(gold)),
            "macro F1": sum(scores["F1"] for scores in per_class.values()) / max(1, len(per_class)),
            "loss": float(-of_label.clamp(min=1e-12).log().mean()),
        }
        details = {"per class": per_class, "never learned": dict(self.unknown_labels(examples))}
        return Scores(metrics, "accuracy", hypotheses=predicted, details=details)

    def example_records(self, examples: Sequence[Any]) -> list[dict[str, Any]]:
        return [{"input": input_text(example), "gold": example.label} for example in examples]

    def unknown_labels(self, examples: Sequence[Any]) -> Counter[str]:
        """Labels of these examples that the training data does not have, with their counts."""
        return Counter(example.label for example in examples if example.label not in self.number)

    @classmethod
    def split(cls, reading: Reading[Any], share: float, seed: int) -> tuple[Reading[Any], Reading[Any]]:
        """(training data, validation data), with the same share of every class."""
        return split(reading, share, seed, stratify=lambda example: example.label)

    def choices(self, examples: Sequence[Any]) -> list[str]:
        """Texts that are cut off, classes that have few examples."""
        counts = Counter(example.label for example in examples)
        rare = [f"{label!r} ({count})" for label, count in counts.most_common()[::-1] if count < RARE][:5]
        sentences = self.inputs.choices(examples) if isinstance(self.inputs, TextInputs) else []
        if rare:
            sentences.append(f"Classes with fewer than {RARE} examples are hardly learned: {', '.join(rare)}.")
        return sentences

    def text_inputs(self, text: str) -> Batch | None:
        return self.inputs.batch([LabelledText(text, "")], None) if isinstance(self.inputs, TextInputs) else None

    def image_inputs(self, image: Picture) -> Batch | None:
        inputs = self.inputs
        return inputs.batch([LabelledImage(image, "")], None) if isinstance(inputs, ImageInputs) else None

    def audio_inputs(self, spoken: Spoken) -> Batch | None:
        if not isinstance(self.inputs, AudioInputs) or spoken.sound is None:
            return None
        return self.inputs.batch([LabelledSound(spoken.sound, "")], None)

    @property
    def input_files(self) -> tuple[str, ...]:
        if isinstance(self.inputs, TextInputs):
            return ()
        return images.ENDINGS if isinstance(self.inputs, ImageInputs) else sound.ENDINGS

    def predict(self, model: nn.Module, inputs: Sequence[str]) -> list[dict[str, Any]]:
        """The class, its probability and those of all classes, for texts or for paths of images or recordings."""
        probabilities = self.probabilities(model, [self.inputs.example_of(text) for text in inputs])
        return [
            {
                "input": text,
                "label": self.labels[max(range(len(row)), key=row.__getitem__)],
                "probability": round(max(row), 4),
                "probabilities": {label: round(p, 4) for label, p in zip(self.labels, row, strict=True)},
            }
            for text, row in zip(inputs, probabilities.tolist(), strict=True)
        ]

    def describe(self, examples: Sequence[Any]) -> dict[str, Any]:
        """Facts that `check` shows."""
        counts = Counter(example.label for example in examples)
        facts = {"kind": self.inputs.kind, "examples read": len(examples), "classes": dict(counts.most_common())}
        splits = Counter(split_of(example) for example in examples)
        return facts | ({"parts": dict(splits)} if set(splits) != {""} else {}) | self.inputs.describe(examples)


def cross_entropy_sum(logits: Tensor, labels: Tensor, smoothing: float, weights: Tensor | None = None) -> Tensor:
    """The sum of the losses; `weights [classes]` are factors of the losses of each class."""
    weights = None if weights is None else weights.to(logits.device)
    return functional.cross_entropy(
        logits, labels, weights, ignore_index=IGNORED, label_smoothing=smoothing, reduction="sum"
    )


def input_text(example: LabelledText | LabelledImage | LabelledSound) -> str:
    """A text, or the name of the file of an image or recording; empty where it has none."""
    if isinstance(example, LabelledText):
        return example.text
    source = example.image if isinstance(example, LabelledImage) else example.sound
    return str(getattr(source, "name", "") or getattr(source, "path", ""))


def balanced_weights(counts: Sequence[int]) -> Tensor:
    """A factor for each class, inverse to its number of examples; their mean over the examples is 1.

    >>> balanced_weights([90, 10]).tolist()
    [0.5555555820465088, 5.0]
    """
    return torch.tensor([sum(counts) / (len(counts) * count) for count in counts])


def detect_modality(path: Path) -> str:
    """Whether a file or folder holds texts, images or recordings."""
    if path.is_dir():
        return modality_of_names(file.name for file in path.rglob("*") if file.is_file()) or "image"
    if file_format(path) == "npz":
        try:
            return "sound" if "rate" in Arrays(path) else "image"
        except MalformedData as error:
            raise BadInput(str(error)) from None
    try:
        lines = read_file_lines(path)[:20]
    except MalformedData:
        return "text"  # its reader reports what is wrong with the file
    return modality_of_rows(lines[1:] or lines)


def modality_of_rows(lines: Sequence[str]) -> str:
    """The modality of a table: image or sound if most rows have the name of such a file, else text.

    >>> modality_of_rows(["a.png,cat", "b.png,dog"]), modality_of_rows(["I sent b.png,spam", "see you,ham"])
    ('image', 'text')
    """
    rows = [line for line in lines if line.strip()]
    counts = Counter(modality_of_names(iter(re.split(r'[\t,;"]', line))) for line in rows)
    return next((modality for modality in ("image", "sound") if 2 * counts[modality] > len(rows)), "text")


def modality_of_names(names: Iterator[str]) -> str | None:
    """The modality of the first name with an extension of images or recordings."""
    for name in names:
        for modality, endings in (("image", images.ENDINGS), ("sound", sound.ENDINGS)):
            if file_extension(Path(name.strip())) in endings and not name.strip().startswith("."):
                return modality
    return None


def check_unused_settings(settings: ClassifySettings, modality: str) -> None:
    """Raise `BadInput` for a setting that inputs of this modality do not use."""
    for other, inputs in INPUTS.items():
        for name in inputs.SETTINGS if other != modality else ():
            if getattr(settings, name) != getattr(ClassifySettings(), name):
                raise BadInput(f"{name} is a setting for {other}, and these files hold {modality}. Leave it out.")


def sort_labels(labels: set[str]) -> list[str]:
    """Labels sorted as numbers, or as text.

    >>> sort_labels({"10", "9"}), sort_labels({"b", "a"})
    (['9', '10'], ['a', 'b'])
    """
    numbers = all(label.isdecimal() for label in labels)
    return sorted(labels, key=lambda label: (int(label), label)) if numbers else sorted(labels)


def classification_report(gold: Sequence[str], predicted: Sequence[str]) -> dict[str, dict[str, float]]:
    """Precision, recall, F1 and count of every class among labels and predictions.

    >>> classification_report(["a", "a", "b"], ["a", "b", "b"])["a"]
    {'precision': 1.0, 'recall': 0.5, 'F1': 0.6666666666666666, 'count': 2}
    """
    of_gold, of_predicted = Counter(gold), Counter(predicted)
    correct = Counter(label for label, other in zip(gold, predicted, strict=True) if label == other)
    report = {}
    for label in sort_labels(set(of_gold) | set(of_predicted)):
        precision, recall = correct[label] / max(1, of_predicted[label]), correct[label] / max(1, of_gold[label])
        f1 = 2 * correct[label] / (of_gold[label] + of_predicted[label])
        report[label] = {"precision": precision, "recall": recall, "F1": f1, "count": of_gold[label]}
    return report
