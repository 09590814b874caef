"""Protocols of the parts of a configuration: any value with these attributes and a `build` method fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol, TypeVar

from torch import nn

from ..nn.embeddings.embedding import Embedding, Input

if TYPE_CHECKING:
    from .model import Model


class EmbeddingConfig(Protocol):
    """An embedding: `build` returns a module from the input that it `reads` to `[batch, tokens, dim]`."""

    reads: ClassVar[Input]

    @property
    def dim(self) -> int: ...
    def build(self) -> Embedding: ...


class LayersConfig(Protocol):
    """A stack of layers: `build` returns a module from `[batch, tokens, dim]` to the same shape.

    In a `causal` one no token depends on later tokens.
    """

    @property
    def dim(self) -> int: ...
    @property
    def causal(self) -> bool: ...
    def build(self) -> nn.Module: ...


class ModelConfig(Protocol):
    """A whole model; `family` names the key table of its Hugging Face checkpoints."""

    @property
    def family(self) -> str | None: ...
    def build(self) -> Model: ...


E = TypeVar("E", bound=EmbeddingConfig)
L = TypeVar("L", bound=LayersConfig)
