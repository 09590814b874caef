"""The linear baseline: naive-Bayes logistic regression over words, their features and pairs of near ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...attention.sharding import current_layout
from ...errors import BadInput
from ..heads import supervised_loss
from ..model import Model, Output

SMOOTHING = 0.3
"""The pseudo-count of every feature in each class (Laplace smoothing)."""

LOGIT_SCALE = 5.0
"""Scales the logits: Adam moves each weight by about the learning rate, and encoders need a small one."""

PRIME = 2654435761
"""Knuth's multiplicative hash, near 2³² times the golden ratio."""


@dataclass(frozen=True)
class NBLinearConfig:
    """A logit for each class: a weighted sum of the features of a text, scaled by naive Bayes.

    `tokens [batch, tokens]` or `[batch, tokens, numbers]`, of which the first `columns` are read, are rows of a table
    of `vocabulary`; those in `ignored` are no features (the first is padding). In each of the `pair_columns` two tokens
    up to `max_gap` apart are also a feature, hashed to one of `pair_buckets` further rows; a token that is ignored in
    that column is represented by its first column.
    """

    vocabulary: int
    pair_buckets: int
    classes: int
    columns: int = 1
    pair_columns: tuple[int, ...] = (0,)
    max_gap: int = 2
    ignored: tuple[int, ...] = (0, 1)
    family: str | None = None

    def build(self) -> NBLinearModel:
        return NBLinearModel(self)


class NBLinearModel(Model):
    """Logistic regression with naive-Bayes features (Wang and Manning 2012), trained as other models are.

        logit(c) = LOGIT_SCALE · Σ r(f, c) · weight(f, c) / √Σ r(f, c)² + bias(c)   over all features f of the text
        r(f, c) = ln P(f | c) − ln P(f | the other classes)                         as `count` estimates it

    Features that say little about the classes can then hardly be memorised. In an open layout (`regard.shard`) tokens
    are those of this rank, and every rank reads the features of the whole text.

    >>> model = NBLinearConfig(vocabulary=5, pair_buckets=0, classes=2, pair_columns=()).build()
    >>> model.count([(torch.tensor([[2, 3], [2, 4]]), None, torch.tensor([0, 1]))])
    >>> model.ratios.sign()[3:].tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """

    config: NBLinearConfig

    def __init__(self, config: NBLinearConfig) -> None:
        super().__init__(config)
        if config.pair_columns and config.pair_buckets < 1:
            raise BadInput(
                f"Pairs are hashed to {config.pair_buckets} rows; at least one is needed, or pair_columns=()."
            )
        rows = config.vocabulary + (config.pair_buckets if config.pair_columns else 0)
        self.weight = nn.Parameter(torch.zeros(rows, config.classes))
        self.bias = nn.Parameter(torch.zeros(config.classes))
        self.ratios: Tensor
        self.register_buffer("ratios", torch.zeros(rows, config.classes))

    def forward(self, *, tokens: Tensor, lengths: Tensor | None = None, labels: Tensor | None = None) -> Output:
        layout = current_layout()
        rows = self.rows(tokens if layout is None else layout.gather(tokens, 1), lengths)
        size = self.sum_rows(rows, self.ratios**2).sqrt()
        logits = LOGIT_SCALE * self.sum_rows(rows, self.weight * self.ratios) / size.clamp(min=1e-6) + self.bias
        return Output(logits=logits, loss=None if labels is None else supervised_loss(logits, labels, shift=False))

    def sum_rows(self, rows: Tensor, table: Tensor) -> Tensor:
        """`[batch, classes]`: the sum of the rows of a table that a text has."""
        return functional.embedding_bag(rows, table, mode="sum", padding_idx=self.config.ignored[0])

    def rows(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """`[batch, rows]`: the features of each text, padded."""
        config, tokens = self.config, tokens[..., : self.config.columns] if tokens.dim() == 3 else tokens[..., None]
        is_feature = torch.ones_like(tokens, dtype=torch.bool)
        for number in config.ignored:
            is_feature &= tokens != number
        if lengths is not None:
            is_feature &= (torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None])[..., None]
        features = [tokens.masked_fill(~is_feature, config.ignored[0]).flatten(1)]
        for column in config.pair_columns:
            own = torch.where(is_feature[..., column], tokens[..., column], tokens[..., 0])
            valid = is_feature[..., column] | is_feature[..., 0]
            for gap in range(1, config.max_gap + 1):
                both = valid[:, gap:] & valid[:, :-gap]
                salt = column * config.max_gap + gap
                row = config.vocabulary + hash_pair(own[:, :-gap], own[:, gap:], salt) % config.pair_buckets
                features.append(row.masked_fill(~both, config.ignored[0]))
        return torch.cat(features, dim=1)

    @torch.no_grad()
    def count(self, batches: Iterable[tuple[Tensor, Tensor | None, Tensor]]) -> None:
        """Estimate the ratios from texts and labels; a feature counts once in a text.

        Labels are classes `[batch]`, or 0 and 1 for several labels a text, `[batch, classes]`.
        """
        counts = torch.zeros_like(self.ratios)
        for tokens, lengths, labels in batches:
            present = labels if labels.dim() == 2 else functional.one_hot(labels, self.config.classes)
            for row, label in zip(self.rows(tokens, lengths), present.to(counts.dtype), strict=True):
                counts[row.unique()] += label
        counts[self.config.ignored[0]] = 0
        own, others = counts + SMOOTHING, counts.sum(1, keepdim=True) - counts + SMOOTHING
        ratios = (own / own.sum(0)).log() - (others / others.sum(0)).log()
        self.ratios.copy_(ratios * (counts.sum(1, keepdim=True) > 0))


def hash_pair(first: Tensor, second: Tensor, salt: int) -> Tensor:
    """A hash of two numbers and a salt."""
    mixed = ((first * PRIME + second) * PRIME + salt) * PRIME  # wraps around at 64 bits
    return (mixed >> 24) & 0x7FFFFFFF
