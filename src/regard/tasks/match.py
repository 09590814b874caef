"""Image-text matching: two encoders, and the nearest texts and images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from ..data.files import file_format, is_file
from ..data.images import ENDINGS, Captioned, ImageFile, LabelledImage, Picture, read_captions
from ..data.json_values import JsonObject, ParsedObject
from ..data.reading import Reading, split
from ..errors import BadInput
from ..models.dual_encoder import DualEncoderConfig, DualEncoderModel, TowerConfig
from ..models.tokenizers.tokenizer import Tokenizer
from ..settings import Settings, Training, setting
from .architecture import Architecture
from .inputs.given import name_of
from .inputs.images import ImageInputs
from .inputs.text import TextInputs
from .pretrained.pretrained import Pretrained, describe_model
from .results import Matches, Similar
from .task import Batch, Scores, Task

KS = (1, 5, 10)
"""The k of recall at k."""


@dataclass(frozen=True)
class MatchSettings(Settings):
    """Settings of the task `match`, which reads images and their captions."""

    image: str | None = setting(None, "Column or array of the images.")
    text: str | None = setting(None, "Column or array of the captions.")
    folder: str | None = setting(None, "Folder that a table's paths are relative to.")
    projection_dim: int = setting(128, "Size of the embeddings in which images and texts meet.", ge=1, former="shared")
    top_k: int = setting(5, "How many of the nearest are listed by predict.", ge=0, former="shown")
    unit: Literal["wordpiece", "bpe", "unigram", "characters", "words"] = setting(
        "wordpiece", "What a token of a text is: words, characters, or subwords of a trained tokenizer."
    )
    vocab_size: int = setting(4000, "Size of the texts' vocabulary.", ge=1, former="vocabulary")
    lowercase: bool = setting(True, "Turn texts to lower case.", former="lower")
    max_length: int = setting(64, "Tokens of a text that are read; the rest is cut off.", ge=1, former="longest")
    word_dropout: float = setting(0.1, "Share of a text's tokens that are hidden in training.", ge=0, lt=1)
    vectors: str | None = setting(None, "File of word vectors (GloVe, word2vec, NPZ) for the embedding.", file=True)
    freeze_vectors: bool = setting(False, "Do not train the word vectors.", former="frozen")
    image_size: int | None = setting(
        None,
        "Height and width that images are resized to; by default their own, where they agree.",
        ge=1,
        former="size",
    )
    patch_size: int = setting(8, "Height and width of a patch in pixels.", ge=1, former="patch")
    rotation: float = setting(
        0.0,
        "Images are rotated by up to so many degrees in training, and scaled by up to a tenth.",
        ge=0,
        former="turn",
    )
    shift: int = setting(2, "Images are shifted by up to so many pixels in training.", ge=0)
    flip: bool = setting(False, "Half of the images are mirrored in training.")
    jitter: float = setting(0.1, "Contrast and brightness change by up to so many deviations in training.", ge=0)
    max_affix: ClassVar[int] = 0
    char_ngrams: ClassVar[int] = 0
    rare_word_dropout: ClassVar[float] = 0.0
    nb_linear: ClassVar[int] = 0
    cutout: int = setting(0, "Side of the square in pixels that is erased from an image in training.", ge=0)


class Match(Task[MatchSettings, Captioned, Captioned]):
    """Texts for images and images for texts: `Captioned` examples, recall at k in both directions."""

    name = "match"
    compares_inputs = True
    Settings = MatchSettings
    ARCHITECTURE = Architecture(dim=128, layers=4, heads=4, activation="gelu")
    TRAINING = Training(epochs=60, batch_size=128, learning_rate=5e-4, warmup=200, schedule="cosine", weight_decay=0.1)

    def __init__(self, settings: MatchSettings, pictures: ImageInputs, texts: TextInputs) -> None:
        self.settings, self.images, self.texts = settings, pictures, texts
        self._tokenizer = texts.tokenizer
        self.max_length = settings.max_length
        self.pretrained: Pretrained | None = None

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @classmethod
    def read(cls, paths: Sequence[Path], settings: MatchSettings) -> Reading[Captioned]:
        """Tables, or NPZ; a table beside one NPZ has the captions of its images."""
        arrays = [path for path in paths if file_format(path) == "npz"]
        tables = [path for path in paths if path not in arrays]
        if not arrays or not tables:
            return read_captions(paths, image=settings.image, text=settings.text, folder=settings.folder)
        if len(arrays) > 1 or len(tables) > 1:
            raise BadInput(
                f"Which of {len(tables)} tables has the captions of which of {len(arrays)} NPZ files? Give one of each."
            )
        return read_captions(
            arrays, captions=tables[0], image=settings.image, text=settings.text, folder=settings.folder
        )

    @classmethod
    def split(
        cls, reading: Reading[Captioned], share: float, seed: int
    ) -> tuple[Reading[Captioned], Reading[Captioned]]:
        """(training data, validation data); the captions of an image stay together."""
        return split(reading, share, seed, by=lambda example: example.name)

    @classmethod
    def prepare(cls, examples: Sequence[Captioned], settings: MatchSettings) -> Match:
        """The task for these training examples: the texts' vocabulary, the images' size and brightness."""
        if not examples:
            raise BadInput("No image with a text was read. Look at the files with `regard check --task match`.")
        images = list({example.name: example for example in examples}.values())
        return cls(settings, ImageInputs.from_examples(images, settings), TextInputs.from_examples(examples, settings))

    @classmethod
    def prepare_from(cls, examples: Sequence[Captioned], settings: MatchSettings, pretrained: Pretrained) -> Match:
        """The task with the two encoders, the tokenizer and the image processor of a checkpoint such as CLIP."""
        if not isinstance(pretrained.model, DualEncoderModel) or pretrained.model.scale is None:
            raise BadInput(
                f"{pretrained.name} ({describe_model(pretrained.model)}) has no encoders of texts and of images. Start "
                "from a CLIP, or from a run of this task."
            )
        before = pretrained.task
        if isinstance(before, Match):
            task = cls(settings, before.images, before.texts)
        else:
            images = ImageInputs.from_pretrained(pretrained, settings)
            task = cls(settings, images, TextInputs.from_pretrained(pretrained, settings))
        task.pretrained = pretrained
        return task

    def initialize(self, model: nn.Module) -> None:
        """Load the weights of a checkpoint, all of them."""
        if self.pretrained is not None:
            self.pretrained.initialize(model)

    def as_dict(self) -> JsonObject:
        return {"pictures": self.images.as_dict(), "texts": self.texts.as_dict()}

    @classmethod
    def from_dict(cls, data: ParsedObject, settings: MatchSettings, tokenizer: Tokenizer | None = None) -> Match:
        texts = TextInputs.from_dict(data["texts"], settings, tokenizer)
        return cls(settings, ImageInputs.from_dict(data["pictures"], settings, None), texts)

    def config(self, a: Architecture) -> DualEncoderConfig:
        """Two encoders with the same architecture, each pooled by the mean of its tokens; or those of a checkpoint."""
        if self.pretrained is not None:
            return cast(DualEncoderConfig, self.pretrained.model.config)
        text, image = self.texts.layer_configs(a), self.images.layer_configs(a)
        shared = self.settings.projection_dim
        return DualEncoderConfig(
            TowerConfig(*text, shared=shared, end="mean"), TowerConfig(*image, shared=shared, end="mean")
        )

    def sizes(self, examples: Sequence[Captioned]) -> list[int]:
        """The mean size for every example, so that a pair is contrasted with texts of any length."""
        sizes = self.texts.sizes(examples)
        return [self.images.tokens + -(-sum(sizes) // len(sizes))] * len(sizes)

    def batch(self, examples: Sequence[Captioned], rng: Random | None = None) -> dict[str, Tensor]:
        """Images, texts, and `alike [batch]`: the number of the first example with the same image."""
        first: dict[str, int] = {}
        alike = torch.tensor([first.setdefault(example.name, n) for n, example in enumerate(examples)])
        return {**self.images.batch(examples, rng), **self.texts.batch(examples, rng), "alike": alike}

    def count(self, batch: dict[str, Tensor]) -> int:
        return len(batch["alike"])

    def loss(self, model: nn.Module, batch: dict[str, Tensor], smoothing: float = 0.0) -> Tensor:
        logits = model(tokens=batch["tokens"], lengths=batch["lengths"], images=batch["images"]).logits
        return contrastive_loss_sum(logits, batch["alike"][:, None] == batch["alike"], smoothing)

    @torch.no_grad()
    def evaluate(self, model: nn.Module, examples: Sequence[Captioned]) -> Scores:
        """Recall at 1, 5, 10 of texts for each image and of images for each text; the main metric is their mean."""
        images = list({example.name: example for example in examples}.values())
        number = {example.name: n for n, example in enumerate(images)}
        image_of = torch.tensor([number[example.name] for example in examples])  # [texts]
        cosines = self.embed_images(model, images) @ self.embed_texts(model, [example.text for example in examples]).t()
        correct = torch.arange(len(images))[:, None] == image_of  # [images, texts]
        of_texts, of_images = ranks(cosines, correct), ranks(cosines.t(), correct.t())
        metrics = {f"text@{k}": recall_at(of_texts, k) for k in KS}
        metrics |= {f"image@{k}": recall_at(of_images, k) for k in KS}
        best = cosines.argmax(0).tolist()
        lines = [f"{example.text}\t{images[n].name}" for example, n in zip(examples, best, strict=True)]
        return Scores({"recall": sum(metrics.values()) / len(metrics), **metrics}, "recall", hypotheses=lines)

    def embed_images(self, model: nn.Module, examples: Sequence[Captioned], size: int = 256) -> Tensor:
        """The embeddings of the images, `[images, projection_dim]`, on the CPU."""
        device, embeddings = next(model.parameters()).device, []
        for start in range(0, len(examples), size):
            images = self.images.batch(examples[start : start + size], None)["images"]
            embeddings.append(model(images=images.to(device)).image.float().cpu())
        return torch.cat(embeddings)

    def embed_texts(self, model: nn.Module, texts: Sequence[str], size: int = 256) -> Tensor:
        """The embeddings of the texts, `[texts, projection_dim]`, on the CPU."""
        device, embeddings = next(model.parameters()).device, []
        for start in range(0, len(texts), size):
            inputs = self.texts.encode(list(texts[start : start + size]))
            embeddings.append(model(**{name: x.to(device) for name, x in inputs.items()}).text.float().cpu())
        return torch.cat(embeddings)

    def text_inputs(self, text: str) -> Batch:
        return self.texts.encode([text])

    def image_inputs(self, image: Picture) -> Batch:
        return self.images.batch([LabelledImage(image, "")], None)

    @property
    def input_files(self) -> tuple[str, ...]:
        return ENDINGS

    @torch.no_grad()
    def predict(self, model: nn.Module, inputs: Sequence[object]) -> list[Matches]:
        """The nearest of the given texts for each given image, and of the given images for each text."""
        names = [name_of(given) for given in inputs]
        paths = [name for name in names if is_image_path(name)]
        texts = [name for name in names if not is_image_path(name)]
        if not paths or not texts:
            raise BadInput(
                f"Got {len(paths)} images and {len(texts)} texts. Give both, paths of images and texts to choose from: "
                'regard predict RUN cat.png dog.png "a black cat".'
            )
        images = self.embed_images(model, [Captioned(ImageFile(Path(path)), "", path) for path in paths])
        cosines, k = images @ self.embed_texts(model, texts).t(), self.settings.top_k
        return [
            *(Matches("image", path, nearest(texts, cosines[n], k)) for n, path in enumerate(paths)),
            *(Matches("text", text, nearest(paths, cosines[:, n], k)) for n, text in enumerate(texts)),
        ]

    def describe(self, examples: Sequence[Captioned]) -> JsonObject:
        """Facts that `check` shows: pairs, images, vocabulary, examples."""
        images = list({example.name: example for example in examples}.values())
        lengths = self.texts.encode([example.text for example in examples])["lengths"]
        return {
            "pairs": len(examples),
            "images": len(images),
            "tokens": int(lengths.sum()),
            "longest": int(lengths.max()),
            "vocabulary": self.tokenizer.size,
            **self.images.describe(images),
            "examples": [f"{Path(example.name).name}: {example.text[:70]}" for example in examples[:3]],
        }


def contrastive_loss_sum(logits: Tensor, correct: Tensor, smoothing: float = 0.0) -> Tensor:
    """Σ over pairs of the mean of two cross-entropies: of its text among the texts, of its image among the images.

    `logits [images, texts]`; `correct`, of the same shape, is true where a text belongs to an image. Several correct
    texts of an image have the same target probability.

    >>> float(contrastive_loss_sum(torch.zeros(4, 4), torch.eye(4).bool()) / 4)  # ln 4: a uniform distribution
    1.3862943649291992
    """
    transposed = soft_cross_entropy(logits.t(), correct.t(), smoothing)
    return (soft_cross_entropy(logits, correct, smoothing) + transposed) / 2


def soft_cross_entropy(logits: Tensor, correct: Tensor, smoothing: float) -> Tensor:
    """Σ over rows of the cross-entropy with a uniform distribution over the correct columns."""
    target = correct / correct.sum(1, keepdim=True)
    target = (1 - smoothing) * target + smoothing / correct.shape[1]
    return -(target * logits.float().log_softmax(1)).sum()


def ranks(cosines: Tensor, correct: Tensor) -> Tensor:
    """`[rows]`: the rank of the nearest correct column of each row, from 1; equally near wrong ones are before it.

    >>> ranks(torch.tensor([[0.9, 0.1, 0.5], [0.3, 0.3, 0.2]]), torch.tensor([[0, 0, 1], [1, 0, 0]]).bool()).tolist()
    [2, 2]
    """
    best = cosines.masked_fill(~correct, -torch.inf).amax(1, keepdim=True)
    return 1 + ((cosines >= best) & ~correct).sum(1)


def recall_at(ranks: Tensor, k: int) -> float:
    """The share of ranks that are at most k."""
    return float((ranks <= k).float().mean())


def nearest(names: Sequence[str], cosines: Tensor, count: int) -> tuple[Similar, ...]:
    """The nearest names with their cosines."""
    values, indices = cosines.topk(min(count, len(names)))
    return tuple(Similar(names[int(n)], v) for n, v in zip(indices.tolist(), values.tolist(), strict=True))


def is_image_path(text: str) -> bool:
    """Whether an argument has an image's extension; `BadInput` if it has and there is no such file."""
    if not text.lower().endswith(tuple(f".{ending}" for ending in ENDINGS)):
        return False
    if not is_file(Path(text)):
        raise BadInput(f"{text} does not exist. Give the path of an image.")
    return True
