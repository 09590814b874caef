"""Boundaries as labels of tokens: B(egin), M(iddle), E(nd) of a word or span, or S(ingle), with its tag; O outside."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from ....data.tagged import Tagged

PLACES = "BMES"
OUTSIDE = "O"
FOLLOWING = {"B": "ME", "M": "ME", "E": "BSO", "S": "BSO", OUTSIDE: "BSO"}
"""The places that may follow a place: inside a word the tag stays the same, after it any word may begin."""


def boundary_labels(tags: Sequence[str]) -> list[str]:
    """The labels of characters for these tags of words.

    >>> boundary_labels(["NOUN"])
    ['B-NOUN', 'M-NOUN', 'E-NOUN', 'S-NOUN']
    """
    return [f"{place}-{tag}" for tag in tags for place in PLACES]


def split_words(example: Tagged) -> Tagged:
    """The characters of a sentence's words, each with its label.

    >>> split_words(Tagged(("猫", "垫子"), ("NOUN", "NOUN")))
    Tagged(words=('猫', '垫', '子'), tags=('S-NOUN', 'B-NOUN', 'E-NOUN'))
    """
    labels: list[str] = []
    for word, tag in zip(example.words, example.tags, strict=True):
        labels += [f"{place}-{tag}" for place in places_of(len(word))]
    return Tagged(tuple("".join(example.words)), tuple(labels))


def places_of(length: int) -> str:
    """The places of the tokens of a word or span.

    >>> places_of(1), places_of(4)
    ('S', 'BMME')
    """
    return "S" if length == 1 else "B" + "M" * (length - 2) + "E"


def join_characters(characters: Sequence[str], labels: Sequence[str], breaks: Collection[int] = ()) -> Tagged:
    """The words and tags of labelled characters; a word also ends before the positions `breaks`.

    >>> join_characters("猫垫子", ("S-NOUN", "B-NOUN", "E-NOUN"))
    Tagged(words=('猫', '垫子'), tags=('NOUN', 'NOUN'))
    """
    words: list[str] = []
    tags: list[str] = []
    for n, (character, label) in enumerate(zip(characters, labels, strict=True)):
        place, tag = label.split("-", 1)
        if place in "BS" or not words or n in breaks:
            words.append(character)
            tags.append(tag)
        else:
            words[-1] += character
    return Tagged(tuple(words), tuple(tags))


def allowed_transitions(labels: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
    """Which label may come first `[labels]`, after which other `[before, after]`, and last `[labels]`."""
    parts = [(label[0], label[2:]) for label in labels]
    after = [[b in FOLLOWING[a] and (b in "BSO" or tag == other) for b, other in parts] for a, tag in parts]
    first, last = ([place in wanted for place, _ in parts] for wanted in ("BSO", "ESO"))
    return torch.tensor(first), torch.tensor(after), torch.tensor(last)


def best_labels(logits: Tensor, lengths: Tensor, labels: Sequence[str]) -> list[list[int]]:
    """The likeliest sequence of labels of each row that forms whole words (Viterbi).

    logits `[batch, tokens, labels]`. A row's score is the sum of its labels' log-probabilities; sequences that break a
    word off have none.
    """
    first, after, last = (torch.where(allowed, 0.0, -torch.inf) for allowed in allowed_transitions(labels))
    scores = logits.float().cpu().log_softmax(-1)
    best = scores[:, 0] + first  # [batch, labels]
    pointers = []
    for n in range(1, scores.shape[1]):
        value, pointer = (best[:, :, None] + after).max(1)
        inside = (n < lengths.cpu())[:, None]
        best = torch.where(inside, value + scores[:, n], best)
        pointers.append(torch.where(inside, pointer, torch.arange(len(labels))))  # past its end a row stays in place
    path = [(best + last).argmax(-1)]
    for pointer in reversed(pointers):
        path.append(pointer.gather(1, path[-1][:, None])[:, 0])
    rows = torch.stack(path[::-1], 1)  # [batch, tokens]
    return [row[:length] for row, length in zip(rows.tolist(), lengths.tolist(), strict=True)]
