"""Classification and regression: a class, a set of labels or a number for a text, an image or a recording."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Literal

from torch import Tensor, nn

from ..data import images, sound
from ..data.arrays import Arrays
from ..data.files import file_format, resolve_paths
from ..data.images import LabelledImage, Picture
from ..data.json_values import JsonObject, ParsedObject
from ..data.listing import embedded_file, file_extension
from ..data.reading import MalformedData, Reading, split_of
from ..data.sound import LabelledSound, Spoken
from ..data.tables import TABLES, as_text, sample_cells
from ..data.text import LabelledText
from ..errors import BadInput
from ..models.baselines.linear import NBLinearConfig
from ..models.baselines.tfidf import MEANS
from ..models.config import SequenceConfig
from ..models.ensemble import EnsembleConfig, EnsembleModel
from ..models.heads import ClassificationHeadConfig, PoolerConfig
from ..models.hierarchical import HierarchicalConfig
from ..models.tokenizers.tokenizer import Tokenizer
from ..settings import Settings, setting
from .architecture import HIERARCHICAL, Architecture
from .inputs.audio import AudioInputs
from .inputs.augment import mixup
from .inputs.images import ImageInputs
from .inputs.images import suggest_settings as suggest_image_settings
from .inputs.text import TextInputs
from .inputs.words.features import WordFeatures
from .inputs.words.ngrams import NgramVocabulary
from .losses.choose_target import input_target_from_dict, make_target
from .losses.r_drop import repeat_batch, symmetric_kl
from .losses.targets import ClassTarget, InputTarget, LabelsTarget, RegressionTarget
from .pretrained.pretrained import Pretrained
from .target_task import TargetTask, stratified_split
from .task import Batch, Scores
from .texts import ngram_linear
from .texts.ngram_linear import NgramFit
from .texts.sentences import hierarchical_config

INPUTS = {"text": TextInputs, "image": ImageInputs, "sound": AudioInputs}
LabelledInput = LabelledText | LabelledImage | LabelledSound

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
    target: Literal["auto", "class", "labels", "number"] = setting(
        "auto", "What labels are: a class, several labels (a|b, a;b or a JSON list), or a number; auto looks at them."
    )
    number_loss: Literal["mse", "huber"] = setting("mse", "Loss of numbers: squared error, or Huber's.")
    folder: str | None = setting(None, "Folder that a table's paths are relative to.")
    pool: Literal["first", "mean", "last", "attention", "pooler"] = setting(
        "mean", "How tokens are pooled for the head; pooler: a layer and tanh over the first token, as BERT has it."
    )
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
    freeze_vectors: bool = setting(False, "Do not train the word vectors.", former="frozen")
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
    nb_linear: int | None = setting(
        None,
        "Rows of hashed word pairs of an n-gram model beside the network, trained with it; 0 is none. By default one "
        "is fitted to 50 to 50,000 texts, and its weight chosen on the validation data; not beside one checkpoint.",
        ge=0,
        former="wide",
        former_default=0,
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


class Classify(TargetTask[ClassifySettings, LabelledInput, TextInputs | ImageInputs | AudioInputs]):
    """A class, a set of labels or a number for each example, as its `target` says."""

    name = "classify"
    Settings = ClassifySettings

    def __init__(
        self, settings: ClassifySettings, target: InputTarget, inputs: TextInputs | ImageInputs | AudioInputs
    ) -> None:
        self.settings = replace(settings, target=target.kind)
        self._target, self.inputs = target, inputs
        self.max_length = settings.max_length if isinstance(inputs, TextInputs) else None
        self.input_column = settings.input
        self.frames_per_token = settings.stack_frames if isinstance(inputs, AudioInputs) else None
        self.ratios: Tensor | None = None
        self.ngram_fit: NgramFit | None = None
        self.fitted_examples: Sequence[LabelledInput] = ()
        self.final_ngrams: dict[str, Tensor] | None = None

    @property
    def word_features(self) -> WordFeatures | None:
        return self.inputs.word_features if isinstance(self.inputs, TextInputs) else None

    @classmethod
    def read(
        cls, paths: Sequence[Path], settings: ClassifySettings
    ) -> Reading[LabelledText] | Reading[LabelledImage] | Reading[LabelledSound]:
        modality: str = settings.modality
        if modality == "auto":
            modality = detect_modality(resolve_paths(paths, folders=True)[0])
        return INPUTS[modality].read(paths, settings)

    @classmethod
    def suggest_settings(cls, examples: Sequence[LabelledInput], settings: ClassifySettings) -> dict[str, str | float]:
        """Those for few texts or images; a network alone (nb_linear=0) keeps the plain defaults."""
        images = [example for example in examples if isinstance(example, LabelledImage)]
        if images and len(images) == len(examples):
            return suggest_image_settings(images, settings)
        texts = [example.text for example in examples if isinstance(example, LabelledText)]
        if len(texts) < len(examples) or settings.nb_linear is not None:
            return {}
        return ngram_linear.suggest_settings(texts, words=settings.unit == "words" and settings.vectors is None)

    @classmethod
    def prepare_from(
        cls, examples: Sequence[LabelledInput], settings: ClassifySettings, pretrained: Pretrained
    ) -> Classify:
        return cls.prepare(examples, settings, pretrained)

    @classmethod
    def prepare(
        cls, examples: Sequence[LabelledInput], settings: ClassifySettings, pretrained: Pretrained | None = None
    ) -> Classify:
        """The task for these training examples: its target, and the vocabulary or statistics of its inputs."""
        balanced = settings.class_weights == "balanced"
        labels = [example.label for example in examples]
        target = make_target(labels, settings.target, settings.number_loss, balanced)
        check_target_settings(settings, target)
        modalities = {LabelledImage: "image", LabelledSound: "sound"}
        inputs = INPUTS[modalities.get(type(examples[0]), "text")]
        check_unused_settings(settings, inputs.kind)
        if pretrained is None:
            task = cls(settings, target, inputs.from_examples(examples, settings))
        else:
            task = cls(settings, target, inputs.from_pretrained(pretrained, settings))
        task.ratios = task.naive_bayes_ratios(examples) if settings.nb_linear else None
        alone = pretrained is not None and settings.ensemble == 1  # one checkpoint stays a model that others read
        if settings.nb_linear is None and not alone and ngram_linear.suits(len(examples)):
            task.add_ngrams(examples)
        return task

    def add_ngrams(self, examples: Sequence[LabelledInput]) -> None:
        """Fit an n-gram model to these texts beside the network."""
        if isinstance(self.inputs, TextInputs):
            self.inputs.ngrams = NgramVocabulary.from_texts(input_text(example) for example in examples)
            self.ngram_fit = NgramFit(self.inputs.ngrams, self.target)
            self.fitted_examples = examples

    def as_dict(self) -> JsonObject:
        # that of classes is as runs of earlier versions have it, so that they can be resumed
        target = {} if isinstance(self.target, ClassTarget) else {"target": self.target.as_dict()}
        return {"labels": self.labels, **target, "kind": self.inputs.kind, "inputs": self.inputs.as_dict()}

    @classmethod
    def from_dict(cls, data: ParsedObject, settings: ClassifySettings, tokenizer: Tokenizer | None = None) -> Classify:
        target = input_target_from_dict(data["target"]) if "target" in data else ClassTarget(data["labels"])
        return cls(settings, target, INPUTS[data["kind"]].from_dict(data["inputs"], settings, tokenizer))

    def config(self, a: Architecture) -> SequenceConfig | HierarchicalConfig | EnsembleConfig:
        members, outputs = self.settings.ensemble, self.target.outputs
        if a.model == HIERARCHICAL:
            config = hierarchical_config(self.inputs, a, outputs)
        else:
            embed, stack = self.inputs.layer_configs(a)
            head = ClassificationHeadConfig(outputs, a.dim, pool=self.settings.pool, dropout=a.dropout)
            pooler = PoolerConfig(a.dim) if self.settings.pool == "pooler" else None
            config = SequenceConfig(embed, stack, pooler, head)
        mean = MEANS[self.target.kind]
        if self.ngram_fit is not None:
            read = ("ngrams", "ngram_counts")
            return EnsembleConfig(config, members, self.ngram_fit.config, mean=mean, fitted=True, extra_inputs=read)
        if self.settings.nb_linear:
            return EnsembleConfig(config, members, self.nb_linear_config(), NB_WEIGHT, mean=mean)
        return config if members == 1 else EnsembleConfig(config, members, mean=mean)

    @property
    def models_per_example(self) -> int:
        """Number of models that are trained side by side, each on its own copy of the batch."""
        return self.settings.ensemble + (1 if self.settings.nb_linear else 0)

    def nb_linear_config(self) -> NBLinearConfig:
        """The configuration of the linear classifier beside the model."""
        assert isinstance(self.inputs, TextInputs)
        return self.inputs.nb_linear_config(self.target.outputs, self.settings.nb_linear or 1)

    def naive_bayes_ratios(self, examples: Sequence[LabelledInput]) -> Tensor:
        """The naive Bayes log-count ratios of the linear classifier's features."""
        linear = self.nb_linear_config().build()
        batches = (self.batch(examples[n : n + 256]) for n in range(0, len(examples), 256))
        linear.count((batch["tokens"], batch["lengths"], batch["labels"]) for batch in batches)
        return linear.ratios

    def initialize(self, model: nn.Module) -> None:
        """Set word vectors and naive Bayes ratios; fit the n-gram model."""
        for member in model.members if isinstance(model, EnsembleModel) else [model]:
            self.inputs.initialize(member)
        if self.ratios is not None:
            model.beside.ratios.copy_(self.ratios)  # type: ignore[union-attr, operator]
        if self.ngram_fit is not None and isinstance(model, EnsembleModel) and model.beside is not None:
            model.beside.load_state_dict(self.fit_ngrams(self.fitted_examples))

    def fit_ngrams(self, examples: Sequence[LabelledInput]) -> dict[str, Tensor]:
        """The weights of the n-gram model of these texts."""
        assert self.ngram_fit is not None
        texts, labels = [input_text(example) for example in examples], [example.label for example in examples]
        return self.ngram_fit(texts, labels).state_dict()

    @contextmanager
    def refit(self, model: nn.Module, examples: Sequence[LabelledInput]) -> Iterator[str]:
        """While open, the n-gram model is the one of all these texts."""
        if self.ngram_fit is None or not isinstance(model, EnsembleModel) or model.beside is None:
            yield ""
            return
        examples = [example for example in examples if not self.unknown_labels([example])]
        if self.final_ngrams is None:
            self.final_ngrams = self.fit_ngrams(examples)
        before = {name: x.clone() for name, x in model.beside.state_dict().items()}
        model.beside.load_state_dict(self.final_ngrams)
        try:
            yield (
                f"The n-gram model that is saved is fitted to all {len(examples):,} texts, those held out for these "
                "scores included."
            )
        finally:
            model.beside.load_state_dict(before)

    def validate(self, model: nn.Module, examples: Sequence[LabelledInput]) -> Scores:
        """The scores, with the weight of the n-gram model and the thresholds of labels chosen on these examples."""
        if not isinstance(model, EnsembleModel) or not model.config.fitted:
            return super().validate(model, examples)
        logits = self.collect(model.model_logits, examples, model.device)
        return ngram_linear.choose_weight(model, logits, [example.label for example in examples], self.target)

    def batch(self, examples: Sequence[LabelledInput], rng: Random | None = None) -> dict[str, Tensor]:
        """Inputs and labels; in training every example once for each model, augmented separately."""
        if rng is not None and self.models_per_example > 1:
            examples = [example for example in examples for _ in range(self.models_per_example)]
        batch = super().batch(examples, rng)
        return mixup(batch, rng, self.settings.mixup) if rng is not None and self.settings.mixup else batch

    def loss(self, model: nn.Module, batch: dict[str, Tensor], smoothing: float = 0.0) -> Tensor:
        """The sum of the losses of the examples.

        With `r_drop`, in training, each example is computed twice with different dropout, as p and as q:

            ½ (loss(p) + loss(q)) + r_drop · ¼ (KL(p‖q) + KL(q‖p))
        """
        r_drop = self.settings.r_drop if model.training else 0.0
        batch = repeat_batch(batch) if r_drop else batch
        given = {name: value for name, value in batch.items() if name not in ("labels", "other", "share")}
        logits = model(**given).logits.float()
        total = self.target.loss(logits, batch["labels"], smoothing, model.training)
        if "other" in batch:
            share, other = batch["share"], self.target.loss(logits, batch["other"], smoothing, model.training)
            total = share * total + (1 - share) * other
        return (total + r_drop / 2 * symmetric_kl(logits.log_softmax(-1))) / 2 if r_drop else total

    def probabilities(self, model: nn.Module, examples: Sequence[LabelledInput]) -> Tensor:
        """The probability of each class or label, `[examples, classes]`."""
        logits = self.logits(model, examples)
        return logits.sigmoid() if isinstance(self.target, LabelsTarget) else logits.softmax(-1)

    def training_length(self, examples: Sequence[LabelledInput]) -> int | None:
        return None if isinstance(self.inputs, ImageInputs) else max(self.sizes(examples), default=None)

    def example_records(self, examples: Sequence[LabelledInput]) -> list[dict[str, str]]:
        return [{"input": input_text(example), "gold": example.label} for example in examples]

    @classmethod
    def split(
        cls, reading: Reading[LabelledInput], share: float, seed: int
    ) -> tuple[Reading[LabelledInput], Reading[LabelledInput]]:
        """(training data, validation data), with the same share of every class; texts that repeat stay together."""
        texts = all(isinstance(example, LabelledText) for example in reading.examples)
        return stratified_split(reading, share, seed, by=input_text if texts else None)

    def choices(self, examples: Sequence[LabelledInput]) -> list[str]:
        """What labels were taken for, texts that are cut off, classes that have few examples."""
        cut_off = self.inputs.choices([input_text(e) for e in examples]) if isinstance(self.inputs, TextInputs) else []
        sentences = cut_off + self.label_choices([example.label for example in examples])
        if self.ngram_fit is not None:
            sentences.append(
                f"There are {len(examples):,} texts: an n-gram model is fitted beside the network; the validation data "
                "decides how much each counts. Give nb_linear=0 for the network alone."
            )
        return sentences

    @property
    def token_inputs(self) -> tuple[str, ...]:
        return ("tokens", "segments") if isinstance(self.inputs, TextInputs) else ()

    def pad_for_cuda_graph(self, batch: Batch) -> Batch:
        """The batch padded to few shapes, where it has tokens of a checkpoint's tokenizer and a class for each text."""
        subwords = self.inputs.subwords if isinstance(self.inputs, TextInputs) else None
        classes = batch["labels"].dim() == 1 and not batch["labels"].is_floating_point()
        return batch if subwords is None or not classes else subwords.pad_batch(batch, self.models_per_example)

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

    def describe(self, examples: Sequence[LabelledInput]) -> JsonObject:
        """Facts that `check` shows."""
        labels = [example.label for example in examples]
        facts: JsonObject = {"kind": self.inputs.kind, "examples read": len(examples), **self.target.describe(labels)}
        splits = Counter(split_of(example) for example in examples)
        return facts | ({"parts": dict(splits)} if set(splits) != {""} else {}) | self.describe_inputs(examples)


def input_text(example: LabelledText | LabelledImage | LabelledSound) -> str:
    """A text, or the name of the file of an image or recording; empty where it has none."""
    if isinstance(example, LabelledText):
        return example.text
    source = example.image if isinstance(example, LabelledImage) else example.sound
    return str(getattr(source, "name", "") or getattr(source, "path", ""))


def detect_modality(path: Path) -> str:
    """Whether a file or folder holds texts, images or recordings."""
    if path.is_dir():
        names = [file.name for file in path.rglob("*") if file.is_file()]
        tables = any(file_extension(Path(name)) in TABLES for name in names)
        return modality_of_names(iter(names)) or ("text" if tables else "image")
    if file_format(path) == "npz":
        try:
            return "sound" if "rate" in Arrays(path) else "image"
        except MalformedData as error:
            raise BadInput(str(error)) from None
    cells = sample_cells(path)
    inside = next((data for row in cells for cell in row if (data := embedded_file(cell)) is not None), None)
    if inside is not None:
        return "sound" if inside[:4] in sound.MAGIC and inside[8:12] != b"WEBP" else "image"
    rows = [[as_text(cell) or "" for cell in row] for row in cells]
    return modality_of_rows(rows[1:] or rows)  # the first may be a header


def modality_of_rows(rows: Sequence[Sequence[str]]) -> str:
    """The modality of a table: image or sound if most rows have the name of such a file, else text.

    >>> modality_of_rows([["a.png", "cat"]]), modality_of_rows([["I sent b.png", "spam"], ["see you", "ham"]])
    ('image', 'text')
    """
    counts = Counter(modality_of_names(name for cell in row for name in re.split(r'[\t,;"]', cell)) for row in rows)
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
            value, default = getattr(settings, name), getattr(ClassifySettings(), name)
            if value != default and (name, value) != ("nb_linear", 0):
                raise BadInput(f"{name} is a setting for {other}, and these files hold {modality}. Leave it out.")


def check_target_settings(settings: ClassifySettings, target: InputTarget) -> None:
    """Raise `BadInput` for a setting that goes with another target."""
    if settings.r_drop and not isinstance(target, ClassTarget):
        raise BadInput(f"r_drop compares probabilities of classes, and the target is {target.kind!r}. Leave it out.")
    if settings.nb_linear and isinstance(target, RegressionTarget):
        raise BadInput("nb_linear is a classifier, and the labels are numbers. Leave it out, or give target=class.")
