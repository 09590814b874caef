"""A line through what a text has: a weight for each word, each of its features, each pair of near ones; no layers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...errors import BadInput
from ..heads import supervised_loss
from ..model import Model, Output

SMOOTHING = 0.3
"""How often everything counts as seen in each class before a text was: what is rare should not seem certain."""

LOGIT_SCALE = 5.0
"""What a logit is times weights of length one. Adam moves each by about the rate, and encoders want a small one."""

PRIME = 2654435761
"""Knuth's multiplier, near 2³² times the golden section."""


@dataclass(frozen=True)
class NBLinearConfig:
    """A logit for each class: the sum of the weights of what a text has, weighed by what counting says about it.

    `tokens [batch, tokens]` or `[batch, tokens, numbers]`, of which the first `columns` are read: numbers of a table of
    `vocabulary` rows, of which `nothing` say nothing (the first is padding). The numbers of each of the columns
    `paired`, of two tokens up to `near` apart, are read as one too, by `pairs` more rows that they are hashed to; a
    token that has nothing in that column has its first column's there.
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
    """Logistic regression whose features are scaled by naive Bayes (Wang and Manning 2012), learned as all else is.

        logit(c) = PACE · Σ r(f, c) · weight(f, c) / √Σ r(f, c)² + bias(c)      over all f that the text has
        r(f, c) = ln P(f | c) − ln P(f | the other classes)                     as `count` found it

    What says little about the classes can then hardly be learned by heart.

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
                f"Pairs are hashed to {config.pair_buckets} rows; they need one at least. Or give paired=()."
            )
        rows = config.vocabulary + (config.pair_buckets if config.pair_columns else 0)
        self.weight = nn.Parameter(torch.zeros(rows, config.classes))
        self.bias = nn.Parameter(torch.zeros(config.classes))
        self.ratios: Tensor
        self.register_buffer("ratios", torch.zeros(rows, config.classes))

    def forward(self, *, tokens: Tensor, lengths: Tensor | None = None, labels: Tensor | None = None) -> Output:
        rows = self.rows(tokens, lengths)
        size = self.sum_rows(rows, self.ratios**2).sqrt()
        logits = LOGIT_SCALE * self.sum_rows(rows, self.weight * self.ratios) / size.clamp(min=1e-6) + self.bias
        return Output(logits=logits, loss=None if labels is None else supervised_loss(logits, labels, shift=False))

    def sum_rows(self, rows: Tensor, table: Tensor) -> Tensor:
        """`[batch, classes]`: what a table has in a text's rows, added."""
        return functional.embedding_bag(rows, table, mode="sum", padding_idx=self.config.ignored[0])

    def rows(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """`[batch, rows]`: the numbers of all that each text has, filled up with padding."""
        config, tokens = self.config, tokens[..., : self.config.columns] if tokens.dim() == 3 else tokens[..., None]
        said = torch.ones_like(tokens, dtype=torch.bool)
        for number in config.ignored:
            said &= tokens != number
        if lengths is not None:
            said &= (torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None])[..., None]
        found = [tokens.masked_fill(~said, config.ignored[0]).flatten(1)]
        for column in config.pair_columns:
            own = torch.where(said[..., column], tokens[..., column], tokens[..., 0])
            there = said[..., column] | said[..., 0]
            for gap in range(1, config.max_gap + 1):
                both = there[:, gap:] & there[:, :-gap]
                kind = column * config.max_gap + gap
                row = config.vocabulary + hash_pair(own[:, :-gap], own[:, gap:], kind) % config.pair_buckets
                found.append(row.masked_fill(~both, config.ignored[0]))
        return torch.cat(found, dim=1)

    @torch.no_grad()
    def count(self, batches: Iterable[tuple[Tensor, Tensor | None, Tensor]]) -> None:
        """Find the ratios in texts and their labels: a text that has something several times counts once."""
        counts = torch.zeros_like(self.ratios)
        for tokens, lengths, labels in batches:
            for row, label in zip(self.rows(tokens, lengths), labels.tolist(), strict=True):
                counts[row.unique(), label] += 1
        counts[self.config.ignored[0]] = 0
        own, others = counts + SMOOTHING, counts.sum(1, keepdim=True) - counts + SMOOTHING
        ratios = (own / own.sum(0)).log() - (others / others.sum(0)).log()
        self.ratios.copy_(ratios * (counts.sum(1, keepdim=True) > 0))


def hash_pair(first: Tensor, second: Tensor, kind: int) -> Tensor:
    """A number for each two numbers and kind: the same for the same, and else as good as drawn."""
    mixed = ((first * PRIME + second) * PRIME + kind) * PRIME  # what does not fit into 64 bits is dropped
    return (mixed >> 24) & 0x7FFFFFFF
