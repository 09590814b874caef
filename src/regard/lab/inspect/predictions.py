"""Predictions as lists of items with their probabilities."""

from __future__ import annotations

from typing import NotRequired, TypedDict

import torch
from torch import Tensor

from ...models.tokenizers.tokenizer import Tokenizer

MAX_ITEMS = 10

PredictionItem = TypedDict(
    "PredictionItem",
    {
        "token": NotRequired[int],
        "node": NotRequired[int],
        "place": NotRequired[int],
        "query": NotRequired[int],
        "label": str,
        "class": int | None,
        "probability": float | None,
        "box": NotRequired[list[float]],
    },
)
"""A class with its probability, and what it is predicted for: a token, a node, a position, or an object query."""


class PredictionFields(TypedDict):
    """What a model predicts; `text` where it is a text, `sure` the least probability of a detected object."""

    type: str
    text: NotRequired[str]
    items: list[PredictionItem]
    sure: NotRequired[float]


def top_classes(logits: Tensor, count: int = MAX_ITEMS) -> list[tuple[int, float]]:
    """The most probable classes of `logits [classes]` and their probabilities."""
    top = logits.float().softmax(-1).topk(min(count, logits.shape[-1]))
    return list(zip(top.indices.tolist(), top.values.tolist(), strict=True))


def label_name(number: int, labels: list[str] | None) -> str:
    """The label of a class; its number where there is none."""
    return str(labels[number]) if labels and number < len(labels) else str(number)


def class_prediction(logits: Tensor, labels: list[str] | None) -> PredictionFields:
    """The most probable classes of `logits [classes]`."""
    items: list[PredictionItem] = [
        {"label": label_name(n, labels), "class": n, "probability": p} for n, p in top_classes(logits)
    ]
    return {"type": "classes", "items": items}


def tag_prediction(logits: Tensor, labels: list[str] | None) -> PredictionFields:
    """The most probable class of every token, of `logits [tokens, classes]`."""
    best = logits.float().softmax(-1).max(-1)
    items: list[PredictionItem] = [
        {"token": n, "label": label_name(number, labels), "class": number, "probability": p}
        for n, (number, p) in enumerate(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    ]
    return {"type": "tags", "items": items}


def node_prediction(logits: Tensor, labels: list[str] | None) -> PredictionFields:
    """The most probable class of every node."""
    best = logits.float().softmax(-1).max(-1)
    items: list[PredictionItem] = [
        {"node": n, "label": label_name(number, labels), "class": number, "probability": p}
        for n, (number, p) in enumerate(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    ]
    return {"type": "nodes", "items": items}


def token_prediction(logits: Tensor, tokenizer: Tokenizer, places: list[int], task: str) -> PredictionFields:
    """The most probable tokens at some positions of `logits [tokens, vocabulary]`."""
    items: list[PredictionItem] = [
        {"place": place, "label": token_text(tokenizer, n), "class": n, "probability": p}
        for place in places
        for n, p in top_classes(logits[place])
    ]
    return {"type": task, "items": items}


def text_prediction(logits: Tensor, tokenizer: Tokenizer, numbers: list[int]) -> PredictionFields:
    """The text of these tokens, and the probability of each after those before it."""
    from ...tasks.translate import join_tokens

    probabilities = logits.float().softmax(-1)
    items: list[PredictionItem] = [
        {"place": place, "label": token_text(tokenizer, n), "class": n, "probability": float(probabilities[place, n])}
        for place, n in enumerate(numbers)
    ]
    return {"type": "text", "text": join_tokens(tokenizer.decode(numbers)), "items": items}


def token_text(tokenizer: Tokenizer, number: int) -> str:
    """The decoded token; the vocabulary's entry where that is empty."""
    return tokenizer.decode([number]) or tokenizer.pieces([number])[0] or str(number)


def object_prediction(logits: Tensor, boxes: Tensor, labels: list[str] | None, sure: float) -> PredictionFields:
    """The surest objects of `logits [queries, classes + 1]` and `boxes [queries, 4]`, of which the last class is none.

    Each has the number of its `query`, and its `box` as shares of the picture: left, top, right, bottom.
    """
    from ...models.set_loss import corners

    best = logits.float().softmax(-1)[:, :-1].max(-1)
    low, high = corners(boxes.float())
    sides = torch.cat([low, high], -1).clamp(0, 1)
    order = best.values.argsort(descending=True, stable=True)[:MAX_ITEMS].tolist()
    items: list[PredictionItem] = [
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
