"""A lookup task: a query key and pairs of key and value; the target is the value of the query's key."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..progress import ProgressCallback
from .training import fit, seeded_generator

KEYS, VALUES, TRAINING_PAIRS = 40, 8, 8
"""The number of different keys and of different values, and the pairs of a training example."""


class KeyValueModel(nn.Module):
    """Embeds the query and the pairs, mixes them in `body`, and classifies the query's token.

    `keys [batch, 1 + pairs]` has the query first; `values [batch, 1 + pairs]` has no value (`VALUES`) there.
    """

    def __init__(self, body: nn.Module, dim: int, max_tokens: int | None = None) -> None:
        super().__init__()
        self.keys, self.values = nn.Embedding(KEYS, dim), nn.Embedding(VALUES + 1, dim)
        self.body, self.head, self.max_tokens = body, nn.Linear(dim, VALUES), max_tokens

    def embed(self, keys: Tensor, values: Tensor) -> Tensor:
        return self.keys(keys[:, : self.max_tokens]) + self.values(values[:, : self.max_tokens])

    def forward(self, keys: Tensor, values: Tensor) -> Tensor:
        x = self.embed(keys, values)
        return self.head((x + self.body(x))[:, 0])


def sample_lookups(batch: int, pairs: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, values and the target value of each row."""
    keys = torch.rand(batch, KEYS, generator=generator).argsort(1)[:, :pairs]
    values = torch.randint(VALUES, (batch, pairs), generator=generator)
    query = torch.randint(pairs, (batch, 1), generator=generator)
    targets = values.gather(1, query).flatten()
    no_value = torch.full((batch, 1), VALUES)
    return torch.cat([keys.gather(1, query), keys], 1), torch.cat([no_value, values], 1), targets


def train_key_value(
    model: KeyValueModel, steps: int, learning_rate: float, seed: int, progress: ProgressCallback
) -> list[float]:
    """Train on fresh lookups of `TRAINING_PAIRS` pairs; returns the losses."""
    generator = seeded_generator(seed)

    def loss() -> Tensor:
        keys, values, targets = sample_lookups(64, TRAINING_PAIRS, generator)
        return nn.functional.cross_entropy(model(keys, values), targets)

    return fit(model, loss, steps, learning_rate, progress)
