"""A model's answer as a list to be shown, each item with its probability."""

from __future__ import annotations

from typing import Any

from torch import Tensor

MOST = 10


def top(logits: Tensor, count: int = MOST) -> list[tuple[int, float]]:
    """The likeliest numbers of `logits [classes]` and their probabilities."""
    found = logits.float().softmax(-1).topk(min(count, logits.shape[-1]))
    return list(zip(found.indices.tolist(), found.values.tolist(), strict=True))


def classes(logits: Tensor, labels: list[str] | None) -> dict[str, Any]:
    """The likeliest classes of `logits [classes]`."""
    items = [{"label": labels[n] if labels else str(n), "class": n, "probability": p} for n, p in top(logits)]
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
        {what: place, "label": labels[n] if labels else str(n), "class": n, "probability": p}
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
    from ..tasks.translate import closed

    chances = logits.float().softmax(-1)
    items = [
        {"place": place, "label": named(tokenizer, n), "class": n, "probability": float(chances[place, n])}
        for place, n in enumerate(numbers)
    ]
    return {"kind": "text", "text": closed(tokenizer.decode(numbers)), "items": items}


def named(tokenizer: Any, number: int) -> str:
    """A token as it would be read; as it stands in the vocabulary where that is nothing."""
    return tokenizer.decode([number]) or tokenizer.pieces([number])[0] or str(number)
