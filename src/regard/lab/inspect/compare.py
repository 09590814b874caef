"""Two attention maps on common tokens: the tokens of one aligned with those of the other, and the signed difference."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from ..inputs.model_input import Token

Alignment = Literal["characters", "words", "places"]
ALIGNMENTS: tuple[Alignment, ...] = get_args(Alignment)


class AlignedTokens(NamedTuple):
    """Tokens of two sequences that count as the same: indices of the first and of the second."""

    a: list[int]
    b: list[int]


def align_tokens(a: Sequence[Token], b: Sequence[Token], alignment: Alignment) -> list[AlignedTokens]:
    """The aligned tokens in the order of `a`; tokens without a partner are left out.

    characters   tokens of one text by two tokenizers: the shortest stretches that end at the same character in both
    words        the n-th occurrence of a word with its n-th occurrence, whatever its case
    places       the n-th token with the n-th token
    """
    if alignment == "characters":
        return align_characters(a, b)
    if alignment == "places":
        return [AlignedTokens([n], [n]) for n in range(min(len(a), len(b)))]
    return align_words(a, b)


def align_words(a: Sequence[Token], b: Sequence[Token]) -> list[AlignedTokens]:
    """
    >>> words = lambda text: [Token(word) for word in text.split()]
    >>> [pair.b[0] for pair in align_words(words("the dog bit the man"), words("the man bit the dog"))]
    [0, 4, 2, 3, 1]
    """
    places: dict[tuple[str, bool], list[int]] = defaultdict(list)
    for n, token in enumerate(b):
        places[word_key(token)].append(n)
    pairs = []
    for n, token in enumerate(a):
        left = places[word_key(token)]
        if left:
            pairs.append(AlignedTokens([n], [left.pop(0)]))
    return pairs


def word_key(token: Token) -> tuple[str, bool]:
    return token.text.strip().casefold() or token.text, token.special


def align_characters(a: Sequence[Token], b: Sequence[Token]) -> list[AlignedTokens]:
    """
    >>> first, second = [Token("ab", 0, 2), Token("c", 2, 3)], [Token("a", 0, 1), Token("b", 1, 2), Token("c", 2, 3)]
    >>> align_characters(first, second)
    [AlignedTokens(a=[0], b=[0, 1]), AlignedTokens(a=[1], b=[2])]
    """
    plain = [[n for n, token in enumerate(tokens) if not token.special] for tokens in (a, b)]
    ends = {a[n].end for n in plain[0]} & {b[n].end for n in plain[1]}
    groups: dict[int, AlignedTokens] = {}
    for side, (tokens, numbers) in enumerate(zip((a, b), plain, strict=True)):
        for n in numbers:
            end = min((end for end in ends if end >= tokens[n].end), default=None)
            if end is not None:
                groups.setdefault(end, AlignedTokens([], []))[side].append(n)
    pairs = [group for _, group in sorted(groups.items()) if group.a and group.b]
    special = align_words([token for token in a if token.special], [token for token in b if token.special])
    numbers = [[n for n, token in enumerate(tokens) if token.special] for tokens in (a, b)]
    pairs += [AlignedTokens([numbers[0][x] for x in pair.a], [numbers[1][y] for y in pair.b]) for pair in special]
    return sorted(pairs)


def pool_weights(weights: Tensor, rows: list[list[int]], columns: list[list[int]]) -> Tensor:
    """The weights of groups of tokens, `[…, rows, columns]`: the mean over a row of the sums over a column."""
    mean = weights.new_zeros(len(rows), weights.shape[-2])
    for n, row in enumerate(rows):
        mean[n, row] = 1.0 / len(row)
    total = weights.new_zeros(weights.shape[-1], len(columns))
    for n, column in enumerate(columns):
        total[column, n] = 1.0
    return mean @ weights @ total


@dataclass(frozen=True)
class MapDifference:
    """Two maps on their aligned tokens, `[…, rows, columns]`; `rest […, rows]` is their weight on other keys."""

    a: Tensor
    b: Tensor
    rest: Tensor

    @property
    def difference(self) -> Tensor:
        """b − a."""
        return self.b - self.a

    @property
    def distance(self) -> Tensor:
        """The total variation distance of each row, `[…, rows]`: 0 equal, 1 disjoint.

        The weight on keys without a partner is at different keys in the two, so it counts in full.
        """
        return (self.difference.abs().sum(-1) + self.rest) / 2


def compare_maps(a: Tensor, b: Tensor, rows: list[AlignedTokens], columns: list[AlignedTokens]) -> MapDifference:
    """Two maps `[…, queries, keys]` on aligned tokens."""
    pooled, rest = [], []
    for weights, side in ((a.double(), 0), (b.double(), 1)):
        queries, keys = [row[side] for row in rows], [column[side] for column in columns]
        others = sorted(set(range(weights.shape[-1])).difference(*keys))
        pooled.append(pool_weights(weights, queries, keys))
        rest.append(pool_weights(weights, queries, [others])[..., 0])
    return MapDifference(pooled[0], pooled[1], rest[0] + rest[1])


def name_group(tokens: Sequence[Token], group: list[int]) -> Token:
    """The token that stands for a group: its characters joined."""
    first, last = tokens[group[0]], tokens[group[-1]]
    text = "".join(tokens[n].text for n in group) if len(group) > 1 else first.text
    return Token(text, first.start, last.end, first.special, unknown=any(tokens[n].unknown for n in group))


def mean_distance(difference: MapDifference) -> Tensor:
    """The mean total variation distance over rows, `[…]`; 0 where no row is aligned."""
    distance = difference.distance
    return distance.mean(-1) if distance.shape[-1] else torch.zeros(distance.shape[:-1], dtype=distance.dtype)
