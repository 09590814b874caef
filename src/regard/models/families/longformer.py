"""Longformer (Beltagy et al. 2020): RoBERTa over windows, with second projections for global tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...nn.old_names import accept_old_names
from ..checkpoint.files import JsonObject
from ..checkpoint.key_table import Key, Shapes
from ..config import TextConfig
from .bert import encoder_keys, write_bert
from .roberta import IGNORED, head_keys, read_arguments, roberta

__all__ = ["IGNORED", "PREFIX", "keys", "longformer", "read", "write"]
PREFIX = "longformer."


@accept_old_names(places="positions")
def longformer(*, window: int | tuple[int, ...] = 512, positions: int = 4096, **more: Any) -> TextConfig:
    """Longformer-base by default, 148,659,456 parameters with its pooler; `more` as in `roberta`.

    `window` (their attention_window) is how many neighbours a token sees, half on either side: one number, or one a
    layer. A head that classifies the whole text makes its first token global unless `global_tokens` say otherwise.

    >>> longformer(layers=2, window=(32, 64)).stack.window
    (32, 64)
    """
    plain = roberta(positions=positions, **{"family": "longformer", **more})
    return replace(plain, stack=replace(plain.stack, window=window))


def read(config: JsonObject, shapes: Shapes) -> TextConfig:
    """Our configuration of theirs."""
    window = config["attention_window"]
    window = tuple(window) if isinstance(window, list) else window
    return longformer(window=window, **read_arguments(config, shapes, PREFIX))


def write(config: TextConfig) -> JsonObject:
    """Their configuration of ours."""
    window = config.stack.window
    window = list(window) if isinstance(window, tuple) else window
    return {**write_bert(config, "longformer", "Longformer"), "attention_window": window}


def keys(config: TextConfig) -> list[Key]:
    base = "" if config.head is None else PREFIX
    block, theirs = "stack.blocks.{n}.attention.", base + "encoder.layer.{n}.attention.self."
    return [
        *encoder_keys(base),
        *(Key(f"{theirs}{x}.{{p}}", f"{block}{x}.{{p}}") for x in ("query", "key", "value")),
        *(Key(f"{theirs}{x}_global.{{p}}", f"{block}{x}_global.{{p}}") for x in ("query", "key", "value")),
        Key(base + "pooler.dense.{p}", "pooler.dense.{p}"),
        *head_keys(config),
    ]
