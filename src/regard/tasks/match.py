"""Image-text matching: two encoders, and the nearest texts and images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ..data.files import file_format
from ..data.images import Captioned, ImageFile, LabelledImage, Picture, read_captions
from ..data.reading import Reading, split
from ..errors import BadInput
from ..models.dual_encoder import DualEncoderConfig, TowerConfig
from ..models.tokenizers.tokenizer import Tokenizer
from ..settings import Settings, Training, setting
from .architecture import Architecture
from .inputs.images import ImageInputs
from .inputs.text import TextInputs
from .task import Batch, Scores, Task

KS = (1, 5, 10)
"""The k of recall at k."""

ENDINGS = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm")


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
    frozen: bool = setting(False, "Do not train the word vectors.")
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


class Match(Task[MatchSettings]):
    """Texts for images and images for texts: `Captioned` examples, recall among the nearest, both ways."""

    name = "match"
    Settings = MatchSettings
    ARCHITECTURE = Architecture(dim=128, layers=4, heads=4, activation="gelu")
    TRAINING = Training(epochs=60, batch_size=128, learning_rate=5e-4, warmup=200, schedule="cosine", weight_decay=0.1)

    def __init__(self, settings: MatchSettings, pictures: ImageInputs, texts: TextInputs) -> None:
        self.settings, self.images, self.texts = settings, pictures, texts
        self._tokenizer = texts.tokenizer
        self.max_length = settings.max_length

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @classmethod
    def read(cls, paths: Sequence[Path], settings: MatchSettings) -> Reading[Captioned]:
        """Tables, or NPZ; a table beside one NPZ has the captions of its images."""
        names: dict[str, Any] = {"image": settings.image, "text": settings.text, "folder": settings.folder}
        arrays = [path for path in paths if file_format(path) == "npz"]
        tables = [path for path in paths if path not in arrays]
        if not arrays or not tables:
            return read_captions(paths, **names)
        if len(arrays) > 1 or len(tables) > 1:
            raise BadInput(
                f"Which of {len(tables)} tables has the captions of which of {len(arrays)} NPZ files? Give one of each."
            )
        return read_captions(arrays, captions=tables[0], **names)

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
        told: Any = settings
        once: Any = list({example.name: example for example in examples}.values())
        written: Any = examples
        return cls(settings, ImageInputs.from_examples(once, told), TextInputs.from_examples(written, told))

    def as_dict(self) -> dict[str, Any]:
        return {"pictures": self.images.as_dict(), "texts": self.texts.as_dict()}

    @classmethod
    def from_dict(cls, data: dict[str, Any], settings: MatchSettings, tokenizer: Any = None) -> Match:
        texts = TextInputs.from_dict(data["texts"], settings, tokenizer)
        return cls(settings, ImageInputs.from_dict(data["pictures"], settings, None), texts)

    def config(self, a: Architecture) -> DualEncoderConfig:
        """Two towers of the same kind, each read by the mean of its tokens, which every kind of stack has."""
        text, image = self.texts.layer_configs(a), self.images.layer_configs(a)
        shared = self.settings.projection_dim
        return DualEncoderConfig(
            TowerConfig(*text, shared=shared, end="mean"), TowerConfig(*image, shared=shared, end="mean")
        )

    def sizes(self, examples: Sequence[Captioned]) -> list[int]:
        """The same for all, so that a pair is told from any others, not from those of its length."""
        written: Any = examples
        texts = self.texts.sizes(written)
        return [self.images.tokens + -(-sum(texts) // len(texts))] * len(texts)

    def batch(self, examples: Sequence[Captioned], rng: Random | None = None) -> dict[str, Tensor]:
        """Images, texts, and `alike [batch]`: the number of the first example with the same image."""
        pairs: Any = examples
        first: dict[str, int] = {}
        alike = torch.tensor([first.setdefault(example.name, n) for n, example in enumerate(examples)])
        return {**self.images.batch(pairs, rng), **self.texts.batch(pairs, rng), "alike": alike}

    def count(self, batch: dict[str, Tensor]) -> int:
        return len(batch["alike"])

    def loss(self, model: nn.Module, batch: dict[str, Tensor], smoothing: float = 0.0) -> Tensor:
        logits = model(tokens=batch["tokens"], lengths=batch["lengths"], images=batch["images"]).logits
        right = batch["alike"][:, None] == batch["alike"]
        return contrastive_loss_sum(logits, right, smoothing)

    @torch.no_grad()
    def evaluate(self, model: nn.Module, examples: Sequence[Captioned]) -> Scores:
        """Recall at 1, 5, 10 of texts for each image and of images for each text; their mean decides."""
        images = list({example.name: example for example in examples}.values())
        place = {example.name: n for n, example in enumerate(images)}
        owner = torch.tensor([place[example.name] for example in examples])  # [texts]
        near = self.embed_images(model, images) @ self.embed_texts(model, [example.text for example in examples]).t()
        right = torch.arange(len(images))[:, None] == owner  # [images, texts]
        texts, pictures = ranks(near, right), ranks(near.t(), right.t())
        metrics = {f"text@{k}": recall_at(texts, k) for k in KS} | {f"image@{k}": recall_at(pictures, k) for k in KS}
        best = near.argmax(0).tolist()
        lines = [f"{example.text}\t{images[n].name}" for example, n in zip(examples, best, strict=True)]
        return Scores({"recall": sum(metrics.values()) / len(metrics), **metrics}, "recall", hypotheses=lines)

    def embed_images(self, model: nn.Module, examples: Sequence[Any], size: int = 256) -> Tensor:
        """`[images, shared]` on the CPU."""
        device, parts = next(model.parameters()).device, []
        for start in range(0, len(examples), size):
            images = self.images.batch(examples[start : start + size], None)["images"]
            parts.append(model(images=images.to(device)).image.float().cpu())
        return torch.cat(parts)

    def embed_texts(self, model: nn.Module, texts: Sequence[str], size: int = 256) -> Tensor:
        """`[texts, shared]` on the CPU."""
        device, parts = next(model.parameters()).device, []
        for start in range(0, len(texts), size):
            given = self.texts.encode(list(texts[start : start + size]))
            parts.append(model(**{name: x.to(device) for name, x in given.items()}).text.float().cpu())
        return torch.cat(parts)

    def text_inputs(self, text: str) -> Batch:
        return self.texts.encode([text])

    def image_inputs(self, image: Picture) -> Batch:
        return self.images.batch([LabelledImage(image, "")], None)

    @torch.no_grad()
    def predict(self, model: nn.Module, inputs: Sequence[str]) -> list[dict[str, Any]]:
        """The nearest of the given texts for each given image, and of the given images for each text."""
        paths = [one for one in inputs if is_image_path(one)]
        texts = [one for one in inputs if not is_image_path(one)]
        if not paths or not texts:
            raise BadInput(
                f"Got {len(paths)} images and {len(texts)} texts. Give both, paths of images and texts to choose from: "
                'regard predict RUN cat.png dog.png "a black cat".'
            )
        images = self.embed_images(model, [Captioned(ImageFile(Path(path)), "", path) for path in paths])
        near = images @ self.embed_texts(model, texts).t()
        return [
            *({"image": path, "texts": nearest(texts, near[n], self.settings.top_k)} for n, path in enumerate(paths)),
            *(
                {"text": text, "images": nearest(paths, near[:, n], self.settings.top_k)}
                for n, text in enumerate(texts)
            ),
        ]

    def describe(self, examples: Sequence[Captioned]) -> dict[str, Any]:
        """What `check` shows: pairs, images, vocabulary, examples."""
        once: Any = list({example.name: example for example in examples}.values())
        encoded = self.texts.encode([example.text for example in examples])
        return {
            "pairs": len(examples),
            "images": len(once),
            "tokens": int(encoded["lengths"].sum()),
            "longest": int(encoded["lengths"].max()),
            "vocabulary": self.tokenizer.size,
            **self.images.describe(once),
            "examples": [f"{Path(example.name).name}: {example.text[:70]}" for example in examples[:3]],
        }


def contrastive_loss_sum(logits: Tensor, right: Tensor, smoothing: float = 0.0) -> Tensor:
    """Σ over pairs of the mean of two cross-entropies: of its text among the texts, of its image among the images.

    `logits [images, texts]`; `right` says which texts belong to which images. Where several do, the chance is wanted to
    be shared among them.

    >>> float(contrastive_loss_sum(torch.zeros(4, 4), torch.eye(4).bool()) / 4)  # ln 4: nothing is known
    1.3862943649291992
    """
    return (soft_cross_entropy(logits, right, smoothing) + soft_cross_entropy(logits.t(), right.t(), smoothing)) / 2


def soft_cross_entropy(logits: Tensor, right: Tensor, smoothing: float) -> Tensor:
    wanted = right / right.sum(1, keepdim=True)
    wanted = (1 - smoothing) * wanted + smoothing / right.shape[1]
    return -(wanted * logits.float().log_softmax(1)).sum()


def ranks(near: Tensor, right: Tensor) -> Tensor:
    """`[rows]`: the place of the nearest right column, from 1; a wrong one that is as near stands before it.

    >>> ranks(torch.tensor([[0.9, 0.1, 0.5], [0.3, 0.3, 0.2]]), torch.tensor([[0, 0, 1], [1, 0, 0]]).bool()).tolist()
    [2, 2]
    """
    best = near.masked_fill(~right, -torch.inf).amax(1, keepdim=True)
    return 1 + ((near >= best) & ~right).sum(1)


def recall_at(places: Tensor, k: int) -> float:
    """The share of places that are among the first k."""
    return float((places <= k).float().mean())


def nearest(names: Sequence[str], near: Tensor, count: int) -> list[dict[str, Any]]:
    """The nearest names with their cosines."""
    values, places = near.topk(min(count, len(names)))
    return [{"what": names[n], "cosine": round(v, 4)} for n, v in zip(places.tolist(), values.tolist(), strict=True)]


def is_image_path(text: str) -> bool:
    """Whether an argument is meant as the path of an image; `BadInput` if it is and there is none."""
    if not text.lower().endswith(ENDINGS):
        return False
    if not Path(text).is_file():
        raise BadInput(f"{text} does not exist. Give the path of an image.")
    return True
