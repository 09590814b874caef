"""A line through what a text has: a weight for each word, each of its features, each pair of near ones; no layers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...errors import BadInput
from ..heads import loss_of
from ..model import Model, Output

ADDED = 0.3
"""How often everything counts as seen in each class before a text was: what is rare should not seem certain."""

PACE = 5.0
"""What a logit is times weights of length one. Adam moves each by about the rate, and encoders want a small one."""

PRIME = 2654435761
"""Knuth's multiplier, near 2³² times the golden section."""


@dataclass(frozen=True)
class Line:
    """A logit for each class: the sum of the weights of what a text has, weighed by what counting says about it.

    `tokens [batch, tokens]` or `[batch, tokens, numbers]`, of which the first `columns` are read: numbers of a table of
    `vocabulary` rows, of which `nothing` say nothing (the first is padding). The numbers of each of the columns
    `paired`, of two tokens up to `near` apart, are read as one too, by `pairs` more rows that they are hashed to; a
    token that has nothing in that column has its first column's there.
    """

    vocabulary: int
    pairs: int
    classes: int
    columns: int = 1
    paired: tuple[int, ...] = (0,)
    near: int = 2
    nothing: tuple[int, ...] = (0, 1)
    family: str | None = None

    def build(self) -> LineModel:
        return LineModel(self)


class LineModel(Model):
    """Logistic regression whose features are scaled by naive Bayes (Wang and Manning 2012), learned as all else is.

        logit(c) = PACE · Σ r(f, c) · weight(f, c) / √Σ r(f, c)² + bias(c)      over all f that the text has
        r(f, c) = ln P(f | c) − ln P(f | the other classes)                     as `count` found it

    What says little about the classes can then hardly be learned by heart.

    >>> line = Line(vocabulary=5, pairs=0, classes=2, paired=()).build()
    >>> line.count([(torch.tensor([[2, 3], [2, 4]]), None, torch.tensor([0, 1]))])
    >>> line.ratios.sign()[3:].tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """

    config: Line

    def __init__(self, config: Line) -> None:
        super().__init__(config)
        if config.paired and config.pairs < 1:
            raise BadInput(f"Pairs are hashed to {config.pairs} rows; they need one at least. Or give paired=().")
        rows = config.vocabulary + (config.pairs if config.paired else 0)
        self.weight = nn.Parameter(torch.zeros(rows, config.classes))
        self.bias = nn.Parameter(torch.zeros(config.classes))
        self.ratios: Tensor
        self.register_buffer("ratios", torch.zeros(rows, config.classes))

    def forward(self, *, tokens: Tensor, lengths: Tensor | None = None, labels: Tensor | None = None) -> Output:
        rows = self.rows(tokens, lengths)
        size = self.summed(rows, self.ratios**2).sqrt()
        logits = PACE * self.summed(rows, self.weight * self.ratios) / size.clamp(min=1e-6) + self.bias
        return Output(logits=logits, loss=None if labels is None else loss_of(logits, labels, shift=False))

    def summed(self, rows: Tensor, table: Tensor) -> Tensor:
        """`[batch, classes]`: what a table has in a text's rows, added."""
        return functional.embedding_bag(rows, table, mode="sum", padding_idx=self.config.nothing[0])

    def rows(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """`[batch, rows]`: the numbers of all that each text has, filled up with padding."""
        config, tokens = self.config, tokens[..., : self.config.columns] if tokens.dim() == 3 else tokens[..., None]
        said = torch.ones_like(tokens, dtype=torch.bool)
        for number in config.nothing:
            said &= tokens != number
        if lengths is not None:
            said &= (torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None])[..., None]
        found = [tokens.masked_fill(~said, config.nothing[0]).flatten(1)]
        for column in config.paired:
            own = torch.where(said[..., column], tokens[..., column], tokens[..., 0])
            there = said[..., column] | said[..., 0]
            for gap in range(1, config.near + 1):
                both = there[:, gap:] & there[:, :-gap]
                kind = column * config.near + gap
                row = config.vocabulary + hashed(own[:, :-gap], own[:, gap:], kind) % config.pairs
                found.append(row.masked_fill(~both, config.nothing[0]))
        return torch.cat(found, dim=1)

    @torch.no_grad()
    def count(self, batches: Iterable[tuple[Tensor, Tensor | None, Tensor]]) -> None:
        """Find the ratios in texts and their labels: a text that has something several times counts once."""
        counts = torch.zeros_like(self.ratios)
        for tokens, lengths, labels in batches:
            for row, label in zip(self.rows(tokens, lengths), labels.tolist(), strict=True):
                counts[row.unique(), label] += 1
        counts[self.config.nothing[0]] = 0
        own, others = counts + ADDED, counts.sum(1, keepdim=True) - counts + ADDED
        ratios = (own / own.sum(0)).log() - (others / others.sum(0)).log()
        self.ratios.copy_(ratios * (counts.sum(1, keepdim=True) > 0))


def hashed(first: Tensor, second: Tensor, kind: int) -> Tensor:
    """A number for each two numbers and kind: the same for the same, and else as good as drawn."""
    mixed = ((first * PRIME + second) * PRIME + kind) * PRIME  # what does not fit into 64 bits is dropped
    return (mixed >> 24) & 0x7FFFFFFF
