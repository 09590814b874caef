"""A model's answer as a list to be shown, each item with its probability."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

MOST = 10


def top(logits: Tensor, count: int = MOST) -> list[tuple[int, float]]:
    """The likeliest numbers of `logits [classes]` and their probabilities."""
    found = logits.float().softmax(-1).topk(min(count, logits.shape[-1]))
    return list(zip(found.indices.tolist(), found.values.tolist(), strict=True))


def name_of(number: int, labels: list[str] | None) -> str:
    """The word for a class; its number where there is none."""
    return str(labels[number]) if labels and number < len(labels) else str(number)


def classes(logits: Tensor, labels: list[str] | None) -> dict[str, Any]:
    """The likeliest classes of `logits [classes]`."""
    items = [{"label": name_of(n, labels), "class": n, "probability": p} for n, p in top(logits)]
    return {"kind": "classes", "items": items}


def tags(logits: Tensor, labels: list[str] | None) -> dict[str, Any]:
    """The likeliest class of every token, of `logits [tokens, classes]`."""
    best = logits.float().softmax(-1).max(-1)
    return {"kind": "tags", "items": listed(best.indices.tolist(), best.values.tolist(), labels, "token")}


def nodes(logits: Tensor, labels: list[str] | None) -> dict[str, Any]:
    """The likeliest class of every node."""
    best = logits.float().softmax(-1).max(-1)
    return {"kind": "nodes", "items": listed(best.indices.tolist(), best.values.tolist(), labels, "node")}


def listed(numbers: list[int], chances: list[float], labels: list[str] | None, what: str) -> list[dict[str, Any]]:
    return [
        {what: place, "label": name_of(n, labels), "class": n, "probability": p}
        for place, (n, p) in enumerate(zip(numbers, chances, strict=True))
    ]


def next_token(logits: Tensor, tokenizer: Any, places: list[int], kind: str) -> dict[str, Any]:
    """The likeliest tokens at some places of `logits [tokens, vocabulary]`."""
    items = [
        {"place": place, "label": named(tokenizer, n), "class": n, "probability": p}
        for place in places
        for n, p in top(logits[place])
    ]
    return {"kind": kind, "items": items}


def written(logits: Tensor, tokenizer: Any, numbers: list[int]) -> dict[str, Any]:
    """The text of these tokens, and the probability that the model gave each after those before it."""
    from ...tasks.translate import closed

    chances = logits.float().softmax(-1)
    items = [
        {"place": place, "label": named(tokenizer, n), "class": n, "probability": float(chances[place, n])}
        for place, n in enumerate(numbers)
    ]
    return {"kind": "text", "text": closed(tokenizer.decode(numbers)), "items": items}


def named(tokenizer: Any, number: int) -> str:
    """A token as it would be read; as it stands in the vocabulary where that is nothing."""
    return tokenizer.decode([number]) or tokenizer.pieces([number])[0] or str(number)


def objects(logits: Tensor, boxes: Tensor, labels: list[str] | None, sure: float) -> dict[str, Any]:
    """The surest objects of `logits [queries, classes + 1]` and `boxes [queries, 4]`, of which the last class is none.

    Each has the number of its `query`, and its `box` as shares of the picture: left, top, right, bottom.
    """
    from ...models.set_loss import corners

    best = logits.float().softmax(-1)[:, :-1].max(-1)
    low, high = corners(boxes.float())
    sides = torch.cat([low, high], -1).clamp(0, 1)
    order = best.values.argsort(descending=True, stable=True)[:MOST].tolist()
    items = [
        {
            "query": n,
            "label": name_of(int(best.indices[n]), labels),
            "class": int(best.indices[n]),
            "probability": float(best.values[n]),
            "box": sides[n].tolist(),
        }
        for n in order
    ]
    return {"kind": "objects", "items": items, "sure": sure}
