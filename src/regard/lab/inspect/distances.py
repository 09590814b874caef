"""Attention distances of heads in the unit of the input: pixels, seconds."""

from __future__ import annotations

import torch
from torch import Tensor

from .attention_fields import DistanceFields
from .captured_attention import CapturedAttention
from .region import ROWS, split_span


def describe_with_distance(
    attention: CapturedAttention, coordinates: Tensor, real: Tensor, queries: Tensor
) -> DistanceFields:
    """The description of an attention, with the distance, entropy and largest weight of each head, `[heads]`.

    Also the strongest far link of each head, from one of the `queries [tokens]`.
    """
    distance, special = head_distances(attention, coordinates, real)
    links, link_weights = far_links(attention, coordinates, queries & real, real)
    stats = attention.stats([])
    return {
        **attention.describe(),
        "distance": distance,
        "special": special,
        "entropy": stats["entropy"],
        "entropy_share": stats["entropy_share"],
        "peak": stats["peak"],
        "links": links,
        "link_weights": link_weights,
    }


def head_distances(attention: CapturedAttention, coordinates: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """The mean distance of each head's real queries to their keys, and their mean weight on special keys, `[heads]`.

    `coordinates [tokens, dims]` are the tokens' positions; `real [tokens]` is False for special tokens, which have
    none: a query's distance is the mean over real keys by their normalized weights, and the weight on special keys is
    counted separately. Queries with weight on special keys alone are left out.
    """
    distances, special = [], []
    for head in range(attention.heads):
        total, outside, count, rows_seen = 0.0, 0.0, 0, 0
        for rows in split_span((0, attention.queries), ROWS):
            queries = real[slice(*rows)]
            weight = attention.weights(head, rows)[queries]
            on_real = weight[:, real]
            sums = on_real.sum(-1)
            distance = torch.cdist(coordinates[slice(*rows)][queries].to(weight), coordinates[real].to(weight))
            mean = (on_real * distance).sum(-1)[sums > 1e-9] / sums[sums > 1e-9]
            total, count = total + float(mean.sum()), count + len(mean)
            outside, rows_seen = outside + float(weight[:, ~real].sum()), rows_seen + len(weight)
        distances.append(total / max(1, count))
        special.append(outside / max(1, rows_seen))
    return torch.tensor(distances), torch.tensor(special)


def far_links(
    attention: CapturedAttention, coordinates: Tensor, queries: Tensor, keys: Tensor
) -> tuple[Tensor, Tensor]:
    """The far pair of largest weight of each head, query and key `[heads, 2]`, and its weight, `[heads]`.

    Far is at least a quarter of the extent of the tokens. `queries` and `keys`, `[tokens]`, say which tokens count.
    """
    extent = float((coordinates[keys].amax(0) - coordinates[keys].amin(0)).norm())
    links, weights = [], []
    for head in range(attention.heads):
        best, pair = -1.0, (0, 0)
        for first, last in split_span((0, attention.queries), ROWS):
            weight = attention.weights(head, (first, last))
            distance = torch.cdist(coordinates[first:last].to(weight), coordinates.to(weight))
            counted = queries[first:last, None] & keys & (distance >= extent / 4)
            largest, place = weight.masked_fill(~counted, -1.0).flatten().max(0)
            if float(largest) > best:
                best, pair = float(largest), (first + int(place) // attention.keys, int(place) % attention.keys)
        links.append(pair)
        weights.append(max(0.0, best))
    return torch.tensor(links), torch.tensor(weights)
