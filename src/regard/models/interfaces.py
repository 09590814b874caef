"""Protocols of the parts of a configuration: any value with these attributes and a `build` method fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from torch import nn

if TYPE_CHECKING:
    from .model import Model


class EmbeddingConfig(Protocol):
    """An embedding: `build` returns a module from inputs to `[batch, tokens, dim]`."""

    @property
    def dim(self) -> int: ...
    def build(self) -> nn.Module: ...


class LayersConfig(Protocol):
    """A stack of layers: `build` returns a module from `[batch, tokens, dim]` to the same shape."""

    @property
    def dim(self) -> int: ...
    def build(self) -> nn.Module: ...


class ModelConfig(Protocol):
    """A whole model; `family` names the key table of its Hugging Face checkpoints."""

    @property
    def family(self) -> str | None: ...
    def build(self) -> Model: ...


E = TypeVar("E", bound=EmbeddingConfig)
L = TypeVar("L", bound=LayersConfig)
