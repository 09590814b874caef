"""The task of a checkpoint that was trained elsewhere, by its head: classify, tag, continue or rewrite texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from ..data.images import ENDINGS, load_image
from ..errors import Missing, Unsupported
from ..models.config import EncoderDecoderConfig, SequenceConfig
from ..models.dual_encoder import DualEncoderConfig
from ..models.generation.sampling import GenerateArguments, GenerationSettings
from ..models.graph_encoder import GraphEncoderConfig
from ..models.heads import ClassificationHeadConfig, LMHeadConfig
from ..models.hierarchical import HierarchicalConfig
from ..models.model import Model
from ..models.table import TableConfig
from ..models.tokenizers.tokenizer import Encoded, Tokenizer
from ..nn.embeddings.patch_embedding import ImageEmbeddingConfig
from ..nn.embeddings.patch_grid import PatchGridConfig
from ..nn.embeddings.text import TextEmbeddingConfig
from ..tasks.inputs.given import as_picture, as_text, name_of
from ..tasks.results import Classification, GeneratedText, Regression, Result, Tagging

BATCH = 32
MAX_NEW = 64
HALF = (0.5, 0.5, 0.5)
EMBEDDED = SequenceConfig | EncoderDecoderConfig | HierarchicalConfig
HEADED = EMBEDDED | GraphEncoderConfig | TableConfig
Compute = Callable[[Model, Sequence[object], GenerationSettings], Sequence[Result]]
"""A function that gives the results of a batch of inputs."""


@dataclass(frozen=True)
class CheckpointTask:
    """What `predict` needs to know of a checkpoint: how its inputs are read, and its outputs."""

    name: str
    compute: Compute
    labels: list[str] | None = None
    modality: Literal["text", "image"] = "text"
    generation: GenerationSettings = field(default_factory=GenerationSettings)
    generates: bool = False
    compares_inputs: bool = False

    @property
    def input_files(self) -> tuple[str, ...]:
        return ENDINGS if self.modality == "image" else ()

    def predict(self, model: Model, inputs: Sequence[object]) -> list[Result]:
        """A result for each input."""
        results: list[Result] = []
        for start in range(0, len(inputs), BATCH):
            results += self.compute(model, inputs[start : start + BATCH], self.generation)
        return results


def task_of_checkpoint(model: Model, name: str) -> CheckpointTask:
    """The task that the head of a model is for; `Unsupported` where it has none that this package predicts with."""
    config = model.config
    head = config.head if isinstance(config, HEADED) else None
    embed = config.embed if isinstance(config, EMBEDDED) else None
    if isinstance(head, ClassificationHeadConfig):
        labels = model.labels or [f"LABEL_{n}" for n in range(head.classes)]
        if isinstance(embed, ImageEmbeddingConfig | PatchGridConfig) and not head.per_token:
            return CheckpointTask("classify", classify_images(labels), labels, "image")
        if isinstance(embed, TextEmbeddingConfig):
            tokenizer_of(model, name)
            if head.per_token:
                return CheckpointTask("tag", tag_texts(labels), labels)
            return CheckpointTask("classify", classify_texts(labels), labels if head.classes > 1 else None)
    if isinstance(head, LMHeadConfig) and isinstance(embed, TextEmbeddingConfig):
        causal = isinstance(config, SequenceConfig) and config.stack.causal
        if causal or isinstance(config, EncoderDecoderConfig):
            tokenizer_of(model, name)
            task = "lm" if causal else "translate"
            return CheckpointTask(task, continue_texts if causal else rewrite_texts, generates=True)
    head_name = type(head).__name__.removesuffix("Config") if head is not None else "no head"
    family = config.family or type(config).__name__
    message = (
        f"{name} holds a model ({family}, {head_name}) without a task to predict. Use rg.load({name!r}) for its "
        f"outputs, or train a head: regard train classify --from {name}."
    )
    if model.tokenizer is None or (head is not None and not isinstance(config, DualEncoderConfig)):
        raise Unsupported(message)
    return CheckpointTask("embed", refuse_to_predict(f"{message} Its vectors are given by .embed(texts)."))


def refuse_to_predict(message: str) -> Compute:
    """What a checkpoint without a head answers: it has vectors of texts, and no predictions."""

    def compute(model: Model, inputs: Sequence[object], settings: GenerationSettings) -> list[Result]:
        raise Unsupported(message)

    return compute


def tokenizer_of(model: Model, name: str = "The model") -> Tokenizer:
    """The tokenizer of a model; `Missing` where its folder has none."""
    if model.tokenizer is None:
        raise Missing(f"{name} has no tokenizer (tokenizer.json or a vocabulary). Copy the tokenizer's files into it.")
    return model.tokenizer


def encode(model: Model, texts: list[str]) -> Encoded:
    """The tokens of texts, cut to the positions that the model has."""
    embed = model.config.embed
    limit = embed.max_positions if isinstance(embed, TextEmbeddingConfig) else None
    encoded = tokenizer_of(model)(texts, max_length=limit)
    segments = None if encoded.segments is None else encoded.segments.to(model.device)
    tokens, lengths = encoded.tokens.to(model.device), encoded.lengths.to(model.device)
    return replace(encoded, tokens=tokens, lengths=lengths, segments=segments)


def classify_texts(labels: list[str]) -> Compute:
    def compute(model: Model, inputs: Sequence[object], settings: GenerationSettings) -> list[Result]:
        texts = [as_text(given) for given in inputs]
        return class_results(texts, labels, model(**encode(model, texts).inputs).logits)

    return compute


def classify_images(labels: list[str]) -> Compute:
    def compute(model: Model, inputs: Sequence[object], settings: GenerationSettings) -> list[Result]:
        pixels = torch.stack([prepare_image(model, given) for given in inputs])
        return class_results([name_of(given) for given in inputs], labels, model(images=pixels).logits)

    return compute


def class_results(names: Sequence[str], labels: list[str], logits: Tensor) -> list[Result]:
    """Classes, or with one output numbers."""
    if logits.shape[-1] == 1:
        return [Regression(name, (value,)) for name, (value,) in zip(names, logits.float().tolist(), strict=True)]
    rows = logits.float().softmax(-1).tolist()
    return [Classification.from_probabilities(name, labels, row) for name, row in zip(names, rows, strict=True)]


def prepare_image(model: Model, given: object) -> Tensor:
    """The pixels as the checkpoint's preprocessor prepares them: resized, scaled, standardized."""
    embed, settings = model.config.embed, model.preprocessor
    pixels = load_image(as_picture(given), embed.channels).float()
    size = embed.size if isinstance(embed.size, tuple) else (embed.size, embed.size)
    mode = {2: "bilinear", 3: "bicubic"}.get(settings.get("resample", 2), "bilinear")
    pixels = functional.interpolate(pixels[None], size, mode=mode, antialias=True)[0].round().clamp(0, 255)
    pixels = pixels * settings.get("rescale_factor", 1 / 255)
    mean, std = (torch.tensor(settings.get(name, HALF)[: embed.channels]) for name in ("image_mean", "image_std"))
    return ((pixels - mean[:, None, None]) / std[:, None, None]).to(model.device)


def tag_texts(labels: list[str]) -> Compute:
    """A tag for each word that the tokenizer finds: that of its first subword."""

    def compute(model: Model, inputs: Sequence[object], settings: GenerationSettings) -> list[Result]:
        texts = [as_text(given) for given in inputs]
        encoded = encode(model, texts)
        numbers = model(**encoded.inputs).logits.argmax(-1).tolist()
        results: list[Result] = []
        for text, offsets, words, row in zip(texts, encoded.offsets, encoded.words, numbers, strict=True):
            positions: dict[int, list[int]] = {}
            for position, word in enumerate(words):
                if word is not None:
                    positions.setdefault(word, []).append(position)
            spans = [(offsets[places[0]][0], offsets[places[-1]][1]) for places in positions.values()]
            tags = tuple(labels[row[places[0]]] for places in positions.values())
            results.append(Tagging(tuple(text[start:end] for start, end in spans), tags))
        return results

    return compute


def continue_texts(model: Model, inputs: Sequence[object], settings: GenerationSettings) -> list[Result]:
    """Each prompt with its continuation."""
    results: list[Result] = []
    for text in map(as_text, inputs):
        encoded = encode(model, [text])
        arguments: GenerateArguments = {"max_new": MAX_NEW, **settings}
        tokens = model.generate(**{**arguments, "tokens": encoded.tokens, "lengths": encoded.lengths})
        results.append(GeneratedText(text, tokenizer_of(model).decode(tokens[0])))
    return results


def rewrite_texts(model: Model, inputs: Sequence[object], settings: GenerationSettings) -> list[Result]:
    """The text that an encoder–decoder writes for each text."""
    texts = [as_text(given) for given in inputs]
    encoded = encode(model, texts)
    arguments: GenerateArguments = {"max_new": 4 * MAX_NEW, **settings}
    tokens = model.generate(**{**arguments, "tokens": encoded.tokens, "lengths": encoded.lengths})
    return [GeneratedText(*pair) for pair in zip(texts, tokenizer_of(model).target.decode(tokens), strict=True)]
