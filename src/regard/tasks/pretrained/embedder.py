"""Vectors of texts and images: an encoder, the pooling of its tokens, and the tokenizer that belongs to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

import torch
from torch import Tensor
from torch.nn import functional

from ...data.batching import batch_by_size
from ...data.images import Picture
from ...data.json_values import ParsedObject
from ...errors import BadInput, Unsupported, explain_damage
from ...models.checkpoint.files import read_any_json, read_json
from ...models.config import EncoderDecoderConfig, SequenceConfig
from ...models.dual_encoder import DualEncoderConfig, DualEncoderModel, TowerConfig
from ...models.heads import pool
from ...models.model import EncoderDecoderModel, Model, SequenceModel
from ...models.tokenizers.tokenizer import Tokenizer, call_backend, pad_rows
from ...nn.embeddings.patch_embedding import ImageEmbeddingConfig
from ...nn.embeddings.text import TextEmbeddingConfig
from ...nn.linear import onednn_products
from ..inputs.given import as_picture
from .pixels import ImageProcessor
from .pretrained import Pretrained

Pooling = Literal["mean", "first", "last", "max"]

POOLING_KEYS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "first",
    "pooling_mode_lasttoken": "last",
    "pooling_mode_max_tokens": "max",
}
"""The settings of a sentence-transformers pooling layer, and our names."""

CPU_TOKENS, GPU_TOKENS = 768, 65536
"""Tokens of a batch; on a CPU as many as its cache has room for."""
IMAGES = 64
"""Images of a batch."""


@dataclass(frozen=True)
class PoolingConfig:
    """How the vectors of tokens become one: `pooling`, then scaled to length 1 if `normalize`."""

    pooling: Pooling = "mean"
    normalize: bool = True
    max_length: int | None = None

    @classmethod
    def from_folder(cls, folder: Path) -> PoolingConfig:
        """What a sentence-transformers folder says; the mean, scaled to length 1, where it says nothing."""
        if not (folder / "modules.json").is_file():
            return cls()
        with explain_damage(folder / "modules.json"):
            return cls.from_modules(folder, read_any_json(folder / "modules.json"))

    @classmethod
    def from_modules(cls, folder: Path, modules: list[ParsedObject]) -> PoolingConfig:
        """What the modules of a sentence-transformers folder say."""
        names = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
        others = [name for name in names if name not in ("Transformer", "Pooling", "Normalize")]
        if others:
            raise Unsupported(f"{folder} has a layer {others[0]} after its encoder, which is not read here.")
        paths = {name: folder / module.get("path", "") for name, module in zip(names, modules, strict=True)}
        for path in paths.values():
            if not path.resolve().is_relative_to(folder.resolve()):
                raise BadInput(f"{folder / 'modules.json'} leads out of its folder, to {path}. Get the files again.")
        settings = read_json(paths["Pooling"] / "config.json") if "Pooling" in paths else {}
        chosen = [name for key, name in POOLING_KEYS.items() if settings.get(key)]
        mode = settings.get("pooling_mode")  # newer files have one name instead
        chosen = chosen or ["first" if mode == "cls" else "last" if mode == "lasttoken" else str(mode or "mean")]
        if len(chosen) != 1 or chosen[0] not in get_args(Pooling):
            raise Unsupported(
                f"{folder} pools tokens by {' and '.join(chosen)}; one of mean, first, last, max is read."
            )
        limits = folder / "sentence_bert_config.json"
        max_length = read_json(limits).get("max_seq_length") if limits.is_file() else None
        if max_length is not None and (not isinstance(max_length, int) or max_length < 1):
            raise BadInput(f"{limits}: max_seq_length is {max_length!r:.40}; it must be a whole number from 1.")
        return cls(cast(Pooling, chosen[0]), "Normalize" in names, max_length)


class Embedder:
    """Vectors of texts (and, of a dual encoder such as CLIP, of images).

    `embed` gives one row for each input. Texts are sorted by length and computed without padding.
    """

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer | None,
        config: PoolingConfig = PoolingConfig(),  # noqa: B008
        processor: ImageProcessor | None = None,
    ) -> None:
        self.model, self.tokenizer, self.config, self.processor = model, tokenizer, config, processor

    @classmethod
    def from_pretrained(cls, pretrained: Pretrained) -> Embedder:
        """The embedder of a checkpoint, as its folder says; a run of the task `similarity` says it in its settings."""
        model, task = pretrained.model, pretrained.task
        own = None if task is None else task.embedder(model)
        config = PoolingConfig.from_folder(pretrained.folder) if own is None else own.config
        processor = None
        image = model.config.image if isinstance(model, DualEncoderModel) else None
        if image is not None and isinstance(embed := image.embed, ImageEmbeddingConfig):
            size = (embed.size, embed.size) if isinstance(embed.size, int) else (embed.size[0], embed.size[1])
            processor = ImageProcessor.from_config(model.preprocessor, size, embed.channels)
        elif not isinstance(model, DualEncoderModel):
            pretrained.encoder("tokens")  # raises where it reads no texts
        return cls(model, model.tokenizer, config, processor)

    @property
    def dim(self) -> int:
        """The size of a vector."""
        return self.embed([""]).shape[1]

    def embed(self, inputs: str | Path | Sequence[str | Path | Picture]) -> Tensor:
        """`[inputs, dim]`, on the CPU in float32: vectors of texts, and of images, given as `Path` or array."""
        listed = [inputs] if isinstance(inputs, str | Path) else list(inputs)
        if not listed:
            raise BadInput("There is no input to embed. Give at least one text.")
        texts = [n for n, given in enumerate(listed) if isinstance(given, str)]
        images = [n for n, given in enumerate(listed) if not isinstance(given, str)]
        vectors: dict[int, Tensor] = {}
        if texts:
            vectors |= zip(texts, self.embed_texts([cast(str, listed[n]) for n in texts]), strict=True)
        if images:
            vectors |= zip(images, self.embed_images([as_picture(listed[n]) for n in images]), strict=True)
        return torch.stack([vectors[n] for n in range(len(listed))])

    @torch.no_grad()
    def embed_texts(self, texts: Sequence[str]) -> Tensor:
        rows = self.encode(texts)
        fill = next((token for token in (self.tokenizer.pad, self.tokenizer.end) if token is not None), 0)  # type: ignore[union-attr]
        device = self.model.device
        budget = CPU_TOKENS if device.type == "cpu" else GPU_TOKENS
        order, parts = [], []
        for numbers in reversed(batch_by_size([len(row) for row in rows], budget)):
            tokens = pad_rows([rows[n] for n in numbers], fill).to(device)
            lengths = torch.tensor([len(rows[n]) for n in numbers], device=device)
            with onednn_products():
                parts.append(self.pool(tokens, lengths).float())
            order += numbers
        vectors = torch.cat(parts).cpu()
        return torch.empty_like(vectors).index_copy_(0, torch.tensor(order), vectors)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of texts, cut to what the model reads."""
        if self.tokenizer is None:
            raise BadInput("This checkpoint has no tokenizer. Copy the tokenizer's files into its folder.")
        backend = self.tokenizer.backend
        backend.no_padding()
        limits = [limit for limit in (self.config.max_length, position_limit(self.model)) if limit is not None]
        if limits:
            backend.enable_truncation(max_length=min(limits))
        try:
            return [
                encoding.ids or [self.tokenizer.end or 0]
                for encoding in call_backend(backend.encode_batch_fast, list(texts))
            ]
        finally:
            backend.no_truncation()

    def pool(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """The vectors of a batch, `[batch, dim]`."""
        model = self.model
        if isinstance(model, DualEncoderModel):
            vectors = model(tokens=tokens, lengths=lengths).text  # of length 1
            assert vectors is not None
            return vectors
        return pool_tokens(hidden_states(model, tokens, lengths), lengths, self.config)

    @torch.no_grad()
    def embed_images(self, images: Sequence[Picture]) -> Tensor:
        if self.processor is None:
            raise BadInput("This checkpoint reads texts alone; images need one such as CLIP. Give texts.")
        parts = []
        for start in range(0, len(images), IMAGES):
            batch = self.processor.batch(list(images[start : start + IMAGES]))
            parts.append(self.model(images=batch.to(self.model.device)).image.float().cpu())
        return torch.cat(parts)


def hidden_states(model: Model, tokens: Tensor, lengths: Tensor) -> Tensor:
    """The last layer of an encoder, `[batch, tokens, dim]`; no head is computed."""
    if isinstance(model, EncoderDecoderModel):
        return model.encode(tokens, lengths).x
    if not isinstance(model, SequenceModel):
        raise Unsupported(f"{type(model).__name__} has no single encoder of texts. Take another checkpoint.")
    return model.stack(model.embed(tokens), lengths=lengths)


def pool_tokens(hidden: Tensor, lengths: Tensor, config: PoolingConfig) -> Tensor:
    """One vector of each row, `[batch, dim]`."""
    if config.pooling == "max":
        padded = torch.arange(hidden.shape[1], device=hidden.device) >= lengths[:, None]
        vectors = hidden.masked_fill(padded[..., None], -torch.inf).amax(1)
    else:
        vectors = pool(hidden, lengths, config.pooling)
    return functional.normalize(vectors, dim=-1) if config.normalize else vectors


def position_limit(model: Model) -> int | None:
    """How many tokens the position embeddings of a model's texts allow."""
    config = model.config
    tower = config.text if isinstance(config, DualEncoderConfig) else config
    embed = tower.embed if isinstance(tower, TowerConfig | SequenceConfig | EncoderDecoderConfig) else None
    return embed.max_positions if isinstance(embed, TextEmbeddingConfig) else None
