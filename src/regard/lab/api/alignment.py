"""Alignment: a text as the decoder writes it, beam by beam, and what it reads while it writes: words, or seconds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...errors import BadInput
from ...models.model import PairModel
from ...tasks.translate import closed
from ..inputs.audio import sound_source
from ..inputs.seq2seq import Source, room_of, rules_of, text_source
from ..inputs.text import need_text, spelt, tokenizer_of
from ..inspect.capture import Attention, Capture
from ..inspect.decoding import followed
from ..lab import Lab
from ..library import Loaded
from ..server.jobs import Job
from .heads import need_index, worst


def write(lab: Lab, ask: dict[str, Any], job: Job) -> dict[str, Any]:
    """The search for a translation, step by step: see `writing.followed`. Tokens come with how they are drawn."""
    beams, penalty = ask.get("beams", 4), ask.get("penalty", 1.0)
    if not isinstance(beams, int) or not isinstance(penalty, int | float) or not 0 <= penalty <= 5:
        raise BadInput(f"beams is {beams!r:.20} and penalty {penalty!r:.20}; give a whole number and one from 0 to 5.")
    loaded = lab.open(ask.get("model"), job)
    need_writer(loaded)
    source = source_of(lab, loaded, ask.get("input"))
    target = tokenizer_of(loaded.model, loaded.task).target
    rules = rules_of(loaded.model, loaded.task, target)
    most = room_of(loaded.model, source.most, len(rules.start))
    with job.holding(loaded.lock):
        found = followed(
            loaded.model, source.arguments, beams=beams, length_penalty=float(penalty), most=most, rules=rules, job=job
        )
    return {
        "tokens": [token.as_dict() for token in source.tokens],
        "steps": [[one | {"piece": piece(target, one["token"])} for one in step] for step in found["steps"]],
        "finished": [one | {"text": closed(target.decode(one["tokens"]))} for one in found["finished"]],
        "start": found["start"],
    }


def source_of(lab: Lab, loaded: Loaded, given: Any) -> Source:
    """What is read: a text, or a recording."""
    if not isinstance(given, dict):
        given = {}
    if loaded.kind == "sound":
        return sound_source(loaded.model, loaded.task, lab.fetcher(loaded)(given))
    return text_source(loaded.model, loaded.task, need_text(given))


def piece(tokenizer: Any, number: int) -> str:
    """A token as it is drawn."""
    return spelt(tokenizer, [number])[0].text


def need_writer(loaded: Loaded) -> None:
    """Raise for a model that writes no text."""
    if not isinstance(loaded.model, PairModel):
        raise BadInput(
            f"{loaded.entry.name} reads {loaded.kind} and writes no translation. Choose one that reads a text or a "
            "recording and writes a text."
        )


def read(lab: Lab, ask: dict[str, Any], job: Job) -> dict[str, Any]:
    """What the decoder reads of the source while it writes: one head's rectangle, or the mean of a layer's heads.

    Row t is the token that is being written; its query stands at the token before it. `weights [targets, sources]` and
    what is `outside [targets]` sum to one in each row: the silence that a model adds after a recording is left out of
    the columns. `norms` are ‖weight · value · W_O‖ (the mean over heads, where the mean is asked for).
    """
    found = lab.capture(ask, job)
    crossed = [one for one in found.attentions if one.role == "cross" and one.query_side == "target"]
    if not crossed or "writes" not in found.about:
        raise BadInput("This model has no attention from a decoder to a source. Choose a model that translates.")
    number = (
        len(crossed) - 1 if ask.get("attention") is None else need_index(ask["attention"], len(crossed), "attention")
    )
    attention, head = crossed[number], ask.get("head")
    if head is not None:
        need_index(head, attention.heads, "head")
    columns = found.about.get("heard", attention.keys)
    weights = of_heads(attention.weights(None), head)
    return {
        "tokens": [token.as_dict() for token in found.tokens[attention.key_side][:columns]],
        "side": attention.key_side,
        "seconds_per_token": found.about.get("seconds_per_token"),
        "text": found.prediction.get("text"),
        "writes": written(found),
        "own": bool(found.about.get("written")),
        "attentions": [one.describe() | {"backend": one.backend} for one in crossed],
        "attention": number,
        "head": head,
        "weights": weights[:, :columns],
        "outside": weights[:, columns:].sum(-1),
        "norms": norms(attention, head, columns),
        "masked": ~attention.stages(head or 0, (0, attention.queries), (0, columns))[0].allowed,
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


def norms(attention: Attention, head: int | None, columns: int) -> Tensor | None:
    """How long the vector is that each source token adds; None where the projection is not known."""
    if attention.lengths is None:
        return None
    return of_heads(
        torch.stack([attention.value_norms(one, None, (0, columns)) for one in range(attention.heads)]), head
    )


CALLS = {"write": write, "read": read}
