"""Settings that suit a checkpoint: its sizes, and rates for weights that are trained already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

from ...data.json_values import JsonValue
from ...errors import BadInput
from ...models.config import EncoderDecoderConfig, SequenceConfig
from ...models.dual_encoder import DualEncoderConfig
from ...models.interfaces import LayersConfig
from ...nn.block import StackConfig
from ...settings import Settings, Training, use_current_names
from ..architecture import Architecture
from .pretrained import Pretrained, find_encoder

SIZES = ("dim", "layers", "heads", "hidden", "activation", "gated", "norm", "pre_norm")
"""Fields of an architecture that a checkpoint decides and a stack has."""

FREE = ("dropout", "attention_dropout", "checkpoint", "lora_rank", "lora_alpha", "lora_targets")
"""Fields of an architecture that can be set for a checkpoint."""

RATES = ((512, 2e-4), (1024, 5e-5))
"""Highest dim, and the learning rate for encoders up to it."""

WITHOUT_HEAD = ("lm", "translate", "match", "similarity", "transcribe")
LONG_INPUTS = {"transcribe": 8}
"""Examples of a batch of tasks whose inputs have many tokens each: 1,500 of a recording of 30 seconds."""
PADDED = ("classify", "tag", "spans", "translate")
"""Tasks whose batches are padded to few shapes for CUDA graphs."""


def fine_tuning_architecture(a: Architecture, pretrained: Pretrained) -> Architecture:
    """The architecture with the sizes and the dropout of a checkpoint; attention weights are not dropped."""
    stack = main_stack(pretrained)
    if not isinstance(stack, StackConfig):
        return replace(a, dim=stack.dim)
    sizes = {name: getattr(stack, name) for name in SIZES}
    return replace(a, **sizes, dropout=stack.dropout, attention_dropout=0.0)


def fine_tuning_settings(settings: Settings, pretrained: Pretrained) -> Settings:
    """The settings of a task: words of a text are not hidden, tokens are pooled as the checkpoint was trained, and a
    language model or translator reads at most the tokens that it has positions for. Recordings are not masked.

    A decoder has read the whole text at its last token, and a ViT gathers the image in its first.
    """
    config = pretrained.model.config
    values = {item.name: getattr(settings, item.name) for item in fields(settings)}
    reads = config.embed.reads if isinstance(config, SequenceConfig | EncoderDecoderConfig) else "tokens"
    texts = reads == "tokens" and not isinstance(config, DualEncoderConfig)
    changes: dict[str, str | float] = {"word_dropout": 0.0} if texts and "word_dropout" in values else {}
    if reads == "sound" and "mask_frames" in values:
        changes |= {"mask_frames": 0, "mask_bins": 0}
    limited = "max_length" if isinstance(config, EncoderDecoderConfig) else "context"
    limited_tokens = texts and isinstance(values.get(limited), int)  # of `answer` the context is a column
    limit = pretrained.encoder("tokens").max_length if limited_tokens else None
    if limit is not None:
        changes[limited] = min(values[limited], limit)
    if values.get("pool") == "mean" and isinstance(config, SequenceConfig):
        causal = isinstance(config.stack, StackConfig) and config.stack.causal
        changes["pool"] = "last" if causal else "first" if reads == "images" else "mean"
    return replace(settings, **changes)


def main_stack(pretrained: Pretrained) -> LayersConfig:
    """The stack of a checkpoint that names its sizes: of a dual encoder that of texts."""
    config = pretrained.model.config
    if isinstance(config, DualEncoderConfig):
        tower = config.text or config.image
        assert tower is not None
        return tower.stack
    if isinstance(config, SequenceConfig | EncoderDecoderConfig):
        return config.stack
    for reads in ("tokens", "images", "sound"):
        encoder, _ = find_encoder(config, reads)
        if encoder is not None:
            return encoder.stack
    raise BadInput(f"{pretrained.name} is a {type(config).__name__}, which has no encoder to start from.")


def fine_tuning(training: Training, task: str, pretrained: Pretrained, lora: bool) -> Training:
    """How a checkpoint is trained further: few epochs, a low rate that falls to zero, a higher one for a new head."""
    dim = main_stack(pretrained).dim
    rate = next((rate for largest, rate in RATES if dim <= largest), 2e-5)
    shared: dict[str, object] = {"schedule": "linear", "betas": (0.9, 0.999), "weight_decay": 0.01, "warmup": 100}
    shared |= {"precision": "auto", "cuda_graph": task in PADDED}
    rate = 10 * rate if lora else rate
    if task in WITHOUT_HEAD:  # nothing is new
        batches = {"batch_size": LONG_INPUTS[task], "batch_tokens": None} if task in LONG_INPUTS else {}
        return replace(training, **shared, **batches, epochs=3, learning_rate=rate / 2)
    return replace(
        training,
        **shared,
        epochs=4,
        batch_size=32,
        batch_tokens=None,
        learning_rate=rate,
        head_learning_rate=1e-3,
        layer_decay=0.9,
    )


def check_free(changes: Sequence[Mapping[str, JsonValue]], groups: Sequence[Settings]) -> None:
    """Raise `BadInput` where a size is set that the checkpoint decides."""
    names = {item.name for item in fields(Architecture)} - set(FREE)
    for source in changes:
        fixed = [name for name in use_current_names(groups, source) if name in names]
        if fixed:
            raise BadInput(f"{fixed[0]} is given by the checkpoint. Leave it out, or train without --from.")
