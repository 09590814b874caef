"""A task that experiments share: a query and pairs of key and value; the answer is the value of the query's key."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .experiment import Tell
from .learning import drawing, fit

KINDS, VALUES, TRAINED = 40, 8, 8
"""Different keys, different values, and the pairs that are learned from."""


class Lookup(nn.Module):
    """A query and its pairs as vectors, a body in which they meet, and what the query's token then says.

    `keys [batch, 1 + pairs]` has the query first; `values [batch, 1 + pairs]` has no value (`VALUES`) there.
    """

    def __init__(self, body: nn.Module, dim: int, most: int | None = None) -> None:
        super().__init__()
        self.keys, self.values = nn.Embedding(KINDS, dim), nn.Embedding(VALUES + 1, dim)
        self.body, self.head, self.most = body, nn.Linear(dim, VALUES), most

    def embed(self, keys: Tensor, values: Tensor) -> Tensor:
        return self.keys(keys[:, : self.most]) + self.values(values[:, : self.most])

    def forward(self, keys: Tensor, values: Tensor) -> Tensor:
        x = self.embed(keys, values)
        return self.head((x + self.body(x))[:, 0])


def lookups(batch: int, pairs: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, values, and the value that is asked for."""
    keys = torch.rand(batch, KINDS, generator=generator).argsort(1)[:, :pairs]
    values = torch.randint(VALUES, (batch, pairs), generator=generator)
    asked = torch.randint(pairs, (batch, 1), generator=generator)
    answer = values.gather(1, asked).flatten()
    nothing = torch.full((batch, 1), VALUES)
    return torch.cat([keys.gather(1, asked), keys], 1), torch.cat([nothing, values], 1), answer


def learn_lookup(model: Lookup, steps: int, rate: float, seed: int, tell: Tell) -> list[float]:
    """Train on fresh look-ups of `TRAINED` pairs, drawn by the seed; the losses."""
    generator = drawing(seed)

    def loss() -> Tensor:
        keys, values, answer = lookups(64, TRAINED, generator)
        return nn.functional.cross_entropy(model(keys, values), answer)

    return fit(model, loss, steps, rate, tell)
