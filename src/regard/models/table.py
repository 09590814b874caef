"""Models of tables: the columns of a row as tokens, a stack over them, and a head for the row."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..nn.embeddings.columns import ColumnEmbeddingConfig
from .heads import ClassificationHeadConfig, supervised_loss
from .interfaces import LayersConfig
from .model import Model, Output


@dataclass(frozen=True)
class TableConfig:
    """`embed → stack → head` over the columns of a row.

    With attention blocks (`StackConfig`) it is the FT-Transformer, with `FullyConnectedConfig` an MLP.
    """

    embed: ColumnEmbeddingConfig
    stack: LayersConfig
    head: ClassificationHeadConfig
    family: str | None = None

    def build(self) -> TableModel:
        return TableModel(self)


class TableModel(Model):
    """See `TableConfig`.

    `columns [batch, columns]`: numbers, NaN where they are missing, and indices of categories. Returns `hidden [batch,
    1 + columns, dim]` and `logits [batch, classes]`.

    >>> import torch
    >>> from regard.nn.block import StackConfig
    >>> embed = ColumnEmbeddingConfig(sizes=(0, 5), dim=8)
    >>> model = TableConfig(embed, StackConfig(8, 1, 2), ClassificationHeadConfig(3, 8)).build()
    >>> model(columns=torch.tensor([[0.5, 3.0]])).logits.shape
    torch.Size([1, 3])
    """

    config: TableConfig

    def __init__(self, config: TableConfig) -> None:
        super().__init__(config)
        self.embed = config.embed.build()
        self.stack = config.stack.build()
        self.head = config.head.build()

    def forward(self, *, columns: Tensor, labels: Tensor | None = None) -> Output:
        hidden = self.stack(self.embed(columns))
        logits = self.head(self.head.pool(hidden, None, None))
        return Output(hidden, logits, loss=None if labels is None else supervised_loss(logits, labels, shift=False))
