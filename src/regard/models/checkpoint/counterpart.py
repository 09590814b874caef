"""The family of transformers that a model has the form of, whether it was trained here or read from a checkpoint.

Their configuration is written and read back: where the result differs from ours in what changes outputs, the family has
no counterpart of it, and the difference is named.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import TypeVar

from ...errors import RegardError, Unsupported
from ...nn.block import StackConfig
from ...nn.embeddings.patch_embedding import ImageEmbeddingConfig
from ...nn.embeddings.text import TextEmbeddingConfig
from ..config import EncoderDecoderConfig, SequenceConfig
from ..ensemble import EnsembleConfig
from ..interfaces import ModelConfig
from ..model import Model
from .key_table import Family, Shapes, make_table, write_tensors

TEXT_ENCODERS, DECODERS = ("bert", "roberta", "distilbert"), ("gpt2", "llama")
IMAGE_ENCODERS, ENCODER_DECODERS = ("vit",), ("marian", "t5", "whisper")
"""Modules of `families` that a model without a family is compared with."""
UNFIT_SCORE = 99
IGNORED = ("dropout", "attention_dropout", "hidden_dropout", "family", "padding")
"""Fields that do not change the output of a model in evaluation."""
C = TypeVar("C", bound=SequenceConfig | EncoderDecoderConfig)
UNFIT = (AttributeError, KeyError, StopIteration, TypeError, ValueError, RegardError)
"""What `write` or `read` of a family raise for a configuration of another form."""


def find_counterpart(model: Model, names: list[str]) -> tuple[Family, ModelConfig]:
    """(family, the configuration with its name) for a model with these tensors; `Unsupported` names what has none."""
    config = model.config
    if not isinstance(config, SequenceConfig | EncoderDecoderConfig):
        if config.family:
            return find_family(config.family), config
        several = " (several networks, or an n-gram model beside one: ensemble=1 and nb_linear=0 train one alone)"
        raise Unsupported(
            f"transformers has no counterpart of {type(config).__name__.removesuffix('Config')} models"
            f'{several * isinstance(config, EnsembleConfig)}. Save it with format="regard", or export it as ONNX.'
        )
    if isinstance(config, SequenceConfig) and config.word_embed is not None:
        raise Unsupported(
            "transformers has no counterpart of a tagger that pools subwords to words and reads features of the words. "
            'Save it with format="regard", or export it as ONNX.'
        )
    if config.family is not None:
        family = find_family(config.family)
        differences = list(compare(config, write_and_read(model, config, names, family), ""))
        if not differences:
            return family, config
        raise no_counterpart(config.family, differences)
    best: tuple[str, list[str], int] | None = None
    for name in candidates(config):
        family, named = find_family(name), replace(write_out_widths(config), family=name)
        try:
            differences = list(compare(named, write_and_read(model, named, names, family), ""))
            score = len(differences)
        except UNFIT as error:
            reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
            differences, score = [f"this form ({reason})"], UNFIT_SCORE
        if not differences:
            return family, named
        if best is None or score < best[2]:
            best = name, differences, score
    if best is None:
        layers = [type(part).__name__.removesuffix("Config") for part in (config.embed, config.stack)]
        raise Unsupported(
            f"transformers has no counterpart of a model of {' and '.join(layers)}. "
            'Save it with format="regard", or export it as ONNX.'
        )
    raise no_counterpart(*best[:2])


def candidates(config: SequenceConfig | EncoderDecoderConfig) -> tuple[str, ...]:
    """The families that read the same inputs."""
    if isinstance(config, EncoderDecoderConfig):
        return ENCODER_DECODERS
    if isinstance(config.embed, ImageEmbeddingConfig):
        return IMAGE_ENCODERS
    if isinstance(config.embed, TextEmbeddingConfig) and isinstance(config.stack, StackConfig):
        return DECODERS if config.stack.causal else TEXT_ENCODERS
    return ()


def write_out_widths(config: C) -> C:
    """The configuration with the width of its feed-forward layers as a number, which their configurations need."""
    stacks = {"stack": config.stack}
    if isinstance(config, EncoderDecoderConfig):
        stacks["decoder"] = config.decoder
    widened = {
        name: replace(stack, hidden=4 * stack.dim)
        for name, stack in stacks.items()
        if isinstance(stack, StackConfig) and stack.hidden is None
    }
    return replace(config, **widened)


def no_counterpart(name: str, differences: list[str]) -> Unsupported:
    more = f", and {len(differences) - 4} more differences" if len(differences) > 4 else ""
    pool = " A run with pool=pooler has their head." if any("head.pool" in text for text in differences) else ""
    return Unsupported(
        f"transformers has no model of this form; the nearest, {name}, has no counterpart of "
        f"{'; '.join(differences[:4])}"
        f'{more}. Save it with format="regard", or export it as ONNX.{pool}'
    )


def find_family(name: str) -> Family:
    from .checkpoint import find_family as by_model_type

    return by_model_type(name, "this model")


def write_and_read(model: Model, config: ModelConfig, names: list[str], family: Family) -> ModelConfig:
    """Our configuration after it was written for a family and read back."""
    written, rows = family.write(config), make_table(family.keys(config), names)
    tensors = model.state_dict()
    shapes: Shapes = {name: tuple(x.shape) for name, x in write_tensors(rows, tensors).items()}
    return family.read(written, shapes)


def compare(ours: object, theirs: object, where: str) -> Iterator[str]:
    """The fields in which two configurations differ, with both values."""
    if type(ours) is type(theirs) and is_dataclass(ours) and not isinstance(ours, type):
        for field in fields(ours):
            if field.name not in IGNORED:
                values = getattr(ours, field.name), getattr(theirs, field.name)
                yield from compare(*values, f"{where}.{field.name}" if where else field.name)
    elif not same(ours, theirs):
        yield f"{where} = {describe(ours)} (theirs: {describe(theirs)})"


def same(ours: object, theirs: object) -> bool:
    if isinstance(ours, tuple) or isinstance(theirs, tuple):  # (8, 8) is 8
        return as_tuple(ours) == as_tuple(theirs)
    return ours == theirs


def as_tuple(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else (value, value)


def describe(value: object) -> str:
    return type(value).__name__ if is_dataclass(value) else repr(value)
