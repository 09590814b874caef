"""Vectors by distance that the query is multiplied with: Shaw et al. and Transformer-XL."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..part import check_tensor
from .position import Position, RelativeVectors, check_dim, check_entries, check_heads, gather_by_distance, read_as


@dataclass(frozen=True, eq=False, repr=False)
class Shaw(Position):
    """scale · q·keys[head, i − j + zero]: a vector by distance beside the key; `keys` is `[heads, n, d]`."""

    keys: Tensor
    zero: int = 0
    formula = "scale · q·keys[i − j + zero]"
    dot_only = True

    def __post_init__(self) -> None:
        check_tensor(self.keys, "Shaw's keys", (3,), "[heads, n, d]")
        check_entries("Shaw's keys", self.keys, self.zero)

    def tables(self) -> list[Tensor]:
        return [self.keys]

    def check(self, q: Tensor, k: Tensor) -> None:
        check_heads("Shaw's keys", self.keys, q)
        check_dim("Shaw's keys", self.keys, q)

    def vector_scores(self, q: Tensor, k: Tensor, distance: Tensor, dtype: torch.dtype) -> Tensor:
        return gather_by_distance(q, self.keys, distance + self.zero, dtype)

    def rel_vectors(self, q: Tensor, k: Tensor, dtype: torch.dtype) -> RelativeVectors:
        return RelativeVectors(q, read_as(self.keys, dtype), self.zero)


@dataclass(frozen=True, eq=False, repr=False)
class TransformerXL(Position):
    """scale · ((q + content_bias)·k + (q + position_bias)·embedding[i − j + zero]).

    `embedding [heads, n, d]`, the biases (the paper's u and v) `[heads, d]`.
    """

    embedding: Tensor
    content_bias: Tensor
    position_bias: Tensor
    zero: int = 0
    formula = "scale · ((q + u)·k + (q + v)·embedding[i − j + zero])"
    dot_only = transforms = keeps_dtype = True

    def __post_init__(self) -> None:
        check_tensor(self.embedding, "TransformerXL's embedding", (3,), "[heads, n, d]")
        check_tensor(self.content_bias, "TransformerXL's content_bias", (2,), "[heads, d]")
        check_tensor(self.position_bias, "TransformerXL's position_bias", (2,), "[heads, d]")
        check_entries("TransformerXL's embedding", self.embedding, self.zero)

    def tables(self) -> list[Tensor]:
        return [self.embedding]

    def check(self, q: Tensor, k: Tensor) -> None:
        for name, value in self.tensors().items():
            check_heads(f"TransformerXL's {name}", value, q)
            check_dim(f"TransformerXL's {name}", value, q)

    def vector_scores(self, q: Tensor, k: Tensor, distance: Tensor, dtype: torch.dtype) -> Tensor:
        rel_q = q + self.position_bias.to(q.dtype)[:, None]  # [batch, heads, queries, d]
        return gather_by_distance(rel_q, self.embedding, distance + self.zero, dtype)

    def transform(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return q + self.content_bias.to(q.dtype)[:, None], k

    def rel_vectors(self, q: Tensor, k: Tensor, dtype: torch.dtype) -> RelativeVectors:
        rel_q = q + self.position_bias.to(q.dtype)[:, None]
        return RelativeVectors(rel_q.to(dtype), read_as(self.embedding, dtype), self.zero)
