"""What each head measurably does: the mean weight of its queries on the keys that a role is about.

    score  = mean over queries of Σ_j weight(i, j), j the keys of the role (`role_targets.py`)
    chance = the same of a head without that role: equal weights on all allowed keys; for words also the weight that
             this head gives to other pairs of the same distance, whichever is more
    share  = (score − chance) / (1 − chance)

Only queries that have a key of the role and another allowed key count. The role of a head is the one with the largest
share, among those with at least `MIN_QUERIES` queries, if that share is at least `THRESHOLD`. A head without one is
"nearby" where the share of its neighbours is, "broad" where its entropy is at least `BROAD` of the largest possible,
and "mixed" otherwise. Sums over several texts make a label stable.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import BadInput
from .capture import Capture
from .captured_attention import CapturedAttention
from .role_targets import CONTENT_ROLES, NEARBY, PLACE_ROLES, SYNTAX_ROLES, TaggedWord, role_targets

ROLES = (*PLACE_ROLES, *CONTENT_ROLES, *SYNTAX_ROLES, NEARBY)
WORD_ROLES = ("same", "induction", *SYNTAX_ROLES)
"""Roles of which other pairs of the same distance are compared."""
THRESHOLD, BROAD = 0.3, 0.9
"""The least share of a role's label, and the least entropy of a broad head, as a share of the largest."""
MIN_QUERIES = 8
"""Queries of a role below which it says nothing."""
MAX_TOKENS = 512
"""Tokens of a text that is counted: all pairs of a head are in memory at once."""


@dataclass
class RoleScores:
    """Sums over the queries seen so far, `[heads, roles]` each; `queries [roles]` counts them."""

    weight: Tensor
    uniform: Tensor
    distance: Tensor
    queries: Tensor
    entropy: Tensor
    """The sum of entropy / log(allowed keys), `[heads]`."""
    rows: int = 0
    """Queries with more than one allowed key."""

    @classmethod
    def empty(cls, heads: int) -> RoleScores:
        weight, uniform, distance = torch.zeros(3, heads, len(ROLES), dtype=torch.float64)
        return cls(weight, uniform, distance, torch.zeros(len(ROLES)), torch.zeros(heads, dtype=torch.float64))

    def add(self, weights: Tensor, allowed: Tensor, targets: dict[str, Tensor]) -> None:
        """Count the queries of one text: weights and allowed pairs `[heads, queries, keys]`, and a role's keys."""
        weights = weights.double().masked_fill(~allowed, 0.0)
        count = allowed.sum(-1).double()  # [heads, queries]
        by_distance = distance_means(weights, allowed) if weights.shape[1] == weights.shape[2] else None
        for role, keys in targets.items():
            n, pairs = ROLES.index(role), allowed & keys
            size = pairs.sum(-1).double()
            counted = (size > 0) & (size < count)
            self.weight[:, n] += ((weights * pairs).sum(-1) * counted).sum(-1)
            self.uniform[:, n] += (size / count.clamp(min=1) * counted).sum(-1)
            if by_distance is not None:
                self.distance[:, n] += ((by_distance * pairs).sum(-1) * counted).sum(-1)
            self.queries[n] += float(counted.sum(-1).max())
        several = count > 1
        entropy = -torch.xlogy(weights, weights).sum(-1) / count.log().clamp(min=1e-9)
        self.entropy += (entropy * several).sum(-1)
        self.rows += int(several.sum(-1).max())

    @property
    def score(self) -> Tensor:
        return self.weight / self.queries.clamp(min=1)

    @property
    def chance(self) -> Tensor:
        distance = torch.tensor([role in WORD_ROLES for role in ROLES])
        uniform, elsewhere = (total / self.queries.clamp(min=1) for total in (self.uniform, self.distance))
        return torch.where(distance, torch.maximum(uniform, elsewhere), uniform)

    @property
    def share(self) -> Tensor:
        chance = self.chance.clamp(max=1 - 1e-9)
        return ((self.score - chance) / (1 - chance)).masked_fill(self.queries == 0, 0.0)

    @property
    def evenness(self) -> Tensor:
        """The mean of entropy / log(allowed keys), `[heads]`."""
        return self.entropy / max(1, self.rows)

    def labels(self) -> list[str]:
        """The role of each head: one of `ROLES`, "broad" or "mixed"."""
        narrow = [n for n, role in enumerate(ROLES) if role != NEARBY]
        best = self.reliable_share[:, narrow].max(-1)
        near = self.reliable_share[:, ROLES.index(NEARBY)]
        rows = zip(best.indices.tolist(), best.values.tolist(), near.tolist(), self.evenness.tolist(), strict=True)
        return [
            ROLES[narrow[n]]
            if share >= THRESHOLD
            else NEARBY
            if close >= THRESHOLD
            else "broad"
            if even >= BROAD
            else "mixed"
            for n, share, close, even in rows
        ]

    @property
    def reliable_share(self) -> Tensor:
        """The share of the roles that enough queries were counted for, 0 of the others."""
        return self.share.masked_fill(self.queries < MIN_QUERIES, 0.0)


def distance_means(weights: Tensor, allowed: Tensor) -> Tensor:
    """The mean weight of a head's other pairs of the same distance, for each pair, `[heads, tokens, tokens]`.

    A pair that is the only one of its distance gets 0.
    """
    heads, count, _ = weights.shape
    offset = (torch.arange(count)[None, :] - torch.arange(count)[:, None] + count - 1).flatten()
    total = weights.new_zeros(heads, 2 * count - 1).index_add_(1, offset, weights.flatten(1))
    pairs = weights.new_zeros(heads, 2 * count - 1).index_add_(1, offset, allowed.double().flatten(1))
    others = (pairs[:, offset] - 1).clamp(min=1)
    return ((total[:, offset] - weights.flatten(1)) / others).view_as(weights).clamp(min=0)


def add_capture(scores: list[RoleScores], capture: Capture, words: dict[str, list[TaggedWord]]) -> None:
    """Count a forward pass, `scores` one of each attention; `words` are the tagged words of a side."""
    for tally, attention in zip(scores, capture.attentions, strict=True):
        queries, keys = capture.tokens[attention.query_side], capture.tokens[attention.key_side]
        own = attention.query_side == attention.key_side and attention.queries == attention.keys
        targets = role_targets(queries, words.get(attention.query_side, ()), None if own else keys)
        rows, columns = (0, attention.queries), (0, attention.keys)
        weights = attention.weights(None)
        with attention.lock, torch.no_grad():
            each = attention.scores.range(rows)
            allowed = torch.stack([attention.scores.allowed_pairs(h, each, columns) for h in range(attention.heads)])
        tally.add(weights.cpu(), allowed.cpu(), targets)


def label_heads(captures: list[Capture], words: list[dict[str, list[TaggedWord]]] | None = None) -> list[RoleScores]:
    """The scores of every head over the forward passes of one model, an item for each attention.

    `words` are the tagged words of each pass by side; without them syntactic roles are left out.

    >>> from regard.lab.lab import Lab
    >>> from regard.lab.server.jobs import Job
    >>> pass_ = Lab().capture({"model": "meanings", "input": {"text": "the cat saw the dog and the cat"}}, Job())
    >>> [len(scores.labels()) for scores in label_heads([pass_])]
    [2]
    """
    if not captures:
        raise BadInput("There is no forward pass to read roles from. Give at least one.")
    scores = [RoleScores.empty(attention.heads) for attention in captures[0].attentions]
    for n, capture in enumerate(captures):
        if [attention.name for attention in capture.attentions] != [first.name for first in captures[0].attentions]:
            raise BadInput("The forward passes are of different models. Give those of one.")
        add_capture(scores, capture, {} if words is None else words[n])
    return scores


def pair_weights(attention: CapturedAttention, queries: list[int], keys: list[int]) -> Tensor:
    """Each head's weight from some queries to some keys, `[heads]`: the mean over queries of the sum over keys."""
    rows = [attention.weights(None, (query, query + 1))[:, 0, keys].sum(-1) for query in queries]
    return torch.stack(rows).mean(0)
