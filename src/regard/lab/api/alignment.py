"""Alignment: a translation as the decoder writes it, beam by beam, and what it reads while it writes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...attention.errors import BadInput
from ...tasks.translate import closed
from ..capture import Attention, Capture
from ..inputs import need_text, pair_source, spelt
from ..lab import Lab
from ..work import Job
from ..writing import MOST_NEW, followed
from .heads import need_index, worst


def write(lab: Lab, ask: dict[str, Any], job: Job) -> dict[str, Any]:
    """The search for a translation, step by step: see `writing.followed`. Tokens come with how they are drawn."""
    beams, penalty = ask.get("beams", 4), ask.get("penalty", 1.0)
    if not isinstance(beams, int) or not isinstance(penalty, int | float) or not 0 <= penalty <= 5:
        raise BadInput(f"beams is {beams!r:.20} and penalty {penalty!r:.20}; give a whole number and one from 0 to 5.")
    loaded = lab.open(ask.get("model"), job)
    need_pair(loaded.kind, loaded.entry.name)
    given = ask.get("input")
    text = need_text(given if isinstance(given, dict) else {})
    tokenizer, numbers, tokens = pair_source(loaded.model, loaded.task, text)
    how = {"beams": beams, "length_penalty": float(penalty), "most": min(MOST_NEW, 2 * len(numbers) + 20)}
    with job.holding(loaded.lock):
        found = followed(loaded.model, {"tokens": torch.tensor([numbers])}, **how, job=job)
    target = tokenizer.target
    return {
        "tokens": [token.as_dict() for token in tokens],
        "steps": [[one | {"piece": piece(target, one["token"])} for one in step] for step in found["steps"]],
        "finished": [one | {"text": closed(target.decode(one["tokens"]))} for one in found["finished"]],
        "start": found["start"],
    }


def piece(tokenizer: Any, number: int) -> str:
    """A token as it is drawn."""
    return spelt(tokenizer, [number])[0].text


def need_pair(kind: str, name: str) -> None:
    if kind != "pair":
        raise BadInput(
            f"{name} reads {kind} and writes no translation. Choose one that reads a text and writes another."
        )


def read(lab: Lab, ask: dict[str, Any], job: Job) -> dict[str, Any]:
    """What the decoder reads of the source while it writes: one head's rectangle, or the mean of a layer's heads.

    Row t is the token that is being written; its query stands at the token before it. `weights [targets, sources]` sum
    to one in each row; `norms` are ‖weight · value · W_O‖ (the mean over heads, where the mean is asked for).
    """
    found = lab.capture(ask, job)
    crossed = [one for one in found.attentions if one.role == "cross"]
    if not crossed:
        raise BadInput("This model has no attention from a decoder to a source. Choose a model that translates.")
    number = (
        len(crossed) - 1 if ask.get("attention") is None else need_index(ask["attention"], len(crossed), "attention")
    )
    attention, head = crossed[number], ask.get("head")
    if head is not None:
        need_index(head, attention.heads, "head")
    return {
        "tokens": [token.as_dict() for token in found.tokens["source"]],
        "writes": written(found),
        "own": bool(found.about.get("written")),
        "attentions": [one.describe() | {"backend": one.backend} for one in crossed],
        "attention": number,
        "head": head,
        "weights": of_heads(attention.weights(None), head),
        "norms": norms(attention, head),
        "masked": ~attention.stages(head or 0, (0, attention.queries), (0, attention.keys))[0].allowed,
        "difference": worst(found, job),
    }


def written(found: Capture) -> list[dict[str, Any]]:
    """The tokens that are written, each with its probability after those before it."""
    items = found.prediction["items"]
    return [
        token | {"probability": item["probability"]} for token, item in zip(found.about["writes"], items, strict=True)
    ]


def of_heads(cells: Tensor, head: int | None) -> Tensor:
    return cells.mean(0) if head is None else cells[head]


def norms(attention: Attention, head: int | None) -> Tensor | None:
    """How long the vector is that each source token adds; None where the projection is not known."""
    if attention.lengths is None:
        return None
    return of_heads(torch.stack([attention.value_norms(one) for one in range(attention.heads)]), head)


CALLS = {"write": write, "read": read}
