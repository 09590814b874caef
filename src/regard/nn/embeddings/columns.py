"""Embeddings of the columns of a table: each column is a token, as in the FT-Transformer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ...errors import BadInput
from .embedding import Embedding, Input


@dataclass(frozen=True)
class ColumnEmbeddingConfig:
    """A token for each column of a table, after a first token for the whole row (Gorishniy et al. 2021).

    `sizes` has an entry for each column: 0 for numbers, and the number of values for categories. The token of a column
    c with the number x is `x · weight_c + bias_c`, with a missing number `missing_c`, and with the category n row n of
    the column's table plus `bias_c`.
    """

    reads: ClassVar[Input] = "columns"
    sizes: tuple[int, ...]
    dim: int
    dropout: float = 0.0

    def build(self) -> ColumnEmbedding:
        return ColumnEmbedding(self)


class ColumnEmbedding(Embedding):
    """See `ColumnEmbeddingConfig`.

    `columns [batch, columns]` of floats: numbers, NaN where they are missing, and the indices of categories →
    `[batch, 1 + columns, dim]`.

    >>> embed = ColumnEmbeddingConfig(sizes=(0, 5), dim=8).build()
    >>> embed(torch.tensor([[0.5, 3.0], [torch.nan, 0.0]])).shape
    torch.Size([2, 3, 8])
    """

    def __init__(self, config: ColumnEmbeddingConfig) -> None:
        super().__init__()
        self.config = config
        count, bound = len(config.sizes), config.dim**-0.5
        self.starts = [sum(config.sizes[:n]) for n in range(count)]
        self.first, self.weight, self.bias, self.missing, self.categories = (
            nn.Parameter(torch.empty(rows, config.dim).uniform_(-bound, bound))
            for rows in (1, count, count, count, max(1, sum(config.sizes)))
        )
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, columns: Tensor) -> Tensor:
        count = len(self.config.sizes)
        if columns.dim() != 2 or columns.shape[1] != count:
            raise BadInput(f"columns have shape {list(columns.shape)}; they must be [batch, {count}].")
        absent, columns = columns.isnan(), columns.nan_to_num()
        is_number = torch.tensor([size == 0 for size in self.config.sizes], device=columns.device)
        starts = torch.tensor(self.starts, device=columns.device)
        numbers = torch.where(absent[..., None], self.missing, columns[..., None] * self.weight)
        rows = (torch.where(is_number, 0.0, columns).long() + starts).clamp(max=len(self.categories) - 1)
        tokens = torch.where(is_number[:, None], numbers, self.categories[rows])  # [batch, columns, dim]
        first = self.first.expand(columns.shape[0], 1, -1)  # len() would be a constant in a traced graph
        return self.dropout(torch.cat([first, tokens + self.bias], dim=1))
