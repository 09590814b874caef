"""Predictions as lists of items with their probabilities."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

MAX_ITEMS = 10


def top_classes(logits: Tensor, count: int = MAX_ITEMS) -> list[tuple[int, float]]:
    """The most probable classes of `logits [classes]` and their probabilities."""
    top = logits.float().softmax(-1).topk(min(count, logits.shape[-1]))
    return list(zip(top.indices.tolist(), top.values.tolist(), strict=True))


def label_name(number: int, labels: list[str] | None) -> str:
    """The label of a class; its number where there is none."""
    return str(labels[number]) if labels and number < len(labels) else str(number)


def class_prediction(logits: Tensor, labels: list[str] | None) -> dict[str, Any]:
    """The most probable classes of `logits [classes]`."""
    items = [{"label": label_name(n, labels), "class": n, "probability": p} for n, p in top_classes(logits)]
    return {"type": "classes", "items": items}


def tag_prediction(logits: Tensor, labels: list[str] | None) -> dict[str, Any]:
    """The most probable class of every token, of `logits [tokens, classes]`."""
    best = logits.float().softmax(-1).max(-1)
    return {"type": "tags", "items": list_items(best.indices.tolist(), best.values.tolist(), labels, "token")}


def node_prediction(logits: Tensor, labels: list[str] | None) -> dict[str, Any]:
    """The most probable class of every node."""
    best = logits.float().softmax(-1).max(-1)
    return {"type": "nodes", "items": list_items(best.indices.tolist(), best.values.tolist(), labels, "node")}


def list_items(
    numbers: list[int], probabilities: list[float], labels: list[str] | None, unit: str
) -> list[dict[str, Any]]:
    return [
        {unit: place, "label": label_name(n, labels), "class": n, "probability": p}
        for place, (n, p) in enumerate(zip(numbers, probabilities, strict=True))
    ]


def token_prediction(logits: Tensor, tokenizer: Any, places: list[int], task: str) -> dict[str, Any]:
    """The most probable tokens at some positions of `logits [tokens, vocabulary]`."""
    items = [
        {"place": place, "label": token_text(tokenizer, n), "class": n, "probability": p}
        for place in places
        for n, p in top_classes(logits[place])
    ]
    return {"type": task, "items": items}


def text_prediction(logits: Tensor, tokenizer: Any, numbers: list[int]) -> dict[str, Any]:
    """The text of these tokens, and the probability of each after those before it."""
    from ...tasks.translate import join_tokens

    probabilities = logits.float().softmax(-1)
    items = [
        {"place": place, "label": token_text(tokenizer, n), "class": n, "probability": float(probabilities[place, n])}
        for place, n in enumerate(numbers)
    ]
    return {"type": "text", "text": join_tokens(tokenizer.decode(numbers)), "items": items}


def token_text(tokenizer: Any, number: int) -> str:
    """The decoded token; the vocabulary's entry where that is empty."""
    return tokenizer.decode([number]) or tokenizer.pieces([number])[0] or str(number)


def object_prediction(logits: Tensor, boxes: Tensor, labels: list[str] | None, sure: float) -> dict[str, Any]:
    """The surest objects of `logits [queries, classes + 1]` and `boxes [queries, 4]`, of which the last class is none.

    Each has the number of its `query`, and its `box` as shares of the picture: left, top, right, bottom.
    """
    from ...models.set_loss import corners

    best = logits.float().softmax(-1)[:, :-1].max(-1)
    low, high = corners(boxes.float())
    sides = torch.cat([low, high], -1).clamp(0, 1)
    order = best.values.argsort(descending=True, stable=True)[:MAX_ITEMS].tolist()
    items = [
        {
            "query": n,
            "label": label_name(int(best.indices[n]), labels),
            "class": int(best.indices[n]),
            "probability": float(best.values[n]),
            "box": sides[n].tolist(),
        }
        for n in order
    ]
    return {"type": "objects", "items": items, "sure": sure}
