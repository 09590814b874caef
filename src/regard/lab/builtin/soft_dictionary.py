"""The soft dictionary of the page Mechanisms: a query is compared with words, and their values are mixed."""

from __future__ import annotations

from typing import TypedDict

import torch
from torch import Tensor

import regard as rg

from ...errors import BadInput
from ...experiments import CONCEPTS
from ..lab import Lab
from ..protocol import Json, Request
from ..server.jobs import Job

UNRELATED = -12.0
"""The score of a word that does not belong to the query."""


class HardAnswer(TypedDict):
    word: str
    value: float


class DictionaryLookup(TypedDict):
    """See `dictionary`; `hard` is the entry with the largest weight."""

    asked: str
    words: list[str]
    q: Tensor
    k: Tensor
    v: Tensor
    scores: Tensor
    weights: Tensor
    answer: float
    hard: HardAnswer
    known: bool
    concepts: list[list[str]]
    python: str


def dictionary(lab: Lab, request: Request, job: Job) -> DictionaryLookup:
    """The soft dictionary: a query is compared with every word, and the result is the weighted mean of their values.

    Words are one-hot keys. A concept's query has the logarithm of each member's share on that member's axis and −12 on
    the others, so that weights = softmax(sharpness · q·k) equal the shares at sharpness 1.
    """
    asked, entries = request.get("asked", "fruit"), request.get("entries")
    entries = {"apple": 10, "banana": 5, "chair": 2} if entries is None else entries
    if not isinstance(asked, str) or not isinstance(entries, dict) or not 1 <= len(entries) <= 32:
        raise BadInput('The dictionary needs a query and 1 to 32 entries: {"apple": 10, ...}.')
    sharpness, words = read_number(request.get("sharpness", 1.0)), list(entries)
    share = log_shares(asked)
    q = torch.tensor([share.get(word.lower(), UNRELATED) for word in words])
    k, v = torch.eye(len(words)), torch.tensor([read_number(value) for value in entries.values()])
    score = rg.Dot(scale=sharpness)
    y = rg.attend(q[None, None, None], k[None, None], v[None, None, :, None], score=score)
    weights = rg.look(q[None, None, None], k[None, None], score=score, weights=True).weights
    assert weights is not None
    weights = weights[0, 0, 0]
    best = int(weights.argmax())
    return {
        "asked": asked,
        "words": words,
        "q": q,
        "k": k,
        "v": v,
        "scores": q * sharpness,
        "weights": weights,
        "answer": float(y),
        "hard": {"word": words[best], "value": float(v[best])},
        "known": bool(share.keys() - {asked.lower()}),
        "concepts": [list(names) for names in CONCEPTS],
        "python": f"q = torch.tensor({[round(value, 4) for value in q.tolist()]})\nk = torch.eye({len(words)})\n"
        f"v = torch.tensor({v.tolist()})\ny = rg.attend(q[None, None, None], k[None, None], v[None, None, :, None], "
        f"score=rg.Dot(scale={sharpness}))",
    }  # fmt: skip


def read_number(value: Json) -> float:
    """A value of the dictionary, or its sharpness."""
    if not isinstance(value, int | float) or not abs(value) <= 1e9:
        raise BadInput("The values of the dictionary and its sharpness must be numbers.")
    return float(value)


def log_shares(query: str) -> dict[str, float]:
    """The logarithm of each word's share of the query: a concept is shared by its words, a word is all its own."""
    shares = {query.lower(): 0.0}
    for names, members in CONCEPTS.items():
        if query.lower() in names:
            parts = torch.tensor([0.6, 0.4] if len(members) == 2 else [1.0] * len(members))
            logs = (parts / parts.sum()).log().tolist()
            shares |= {word: log for pair, log in zip(members, logs, strict=True) for word in pair}
    return shares
