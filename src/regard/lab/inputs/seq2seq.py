"""What an encoder–decoder reads and what it writes: a text for a text, or for a recording."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ...errors import BadInput
from ...models.generation.rules import Rules
from ...models.heads import VocabularyHead
from ..inspect.predictions import written
from .prepared import FEW, Prepared, Token, need_few
from .text import cut, encoded, spelt, tokenizer_of

MOST_NEW = 256
"""Tokens that are written at most."""


@dataclass(frozen=True)
class Source:
    """What is read: the call's arguments, the tokens as they are drawn, and how many tokens may be written for it."""

    arguments: dict[str, Tensor]
    tokens: list[Token]
    side: str
    most: int
    about: dict[str, Any] = field(default_factory=dict)


def text_source(model: Any, task: Any, text: str) -> Source:
    """A text to be translated, summed up or answered."""
    numbers, tokens = encoded(tokenizer_of(model, task), text)
    if task is not None:
        numbers, tokens = cut(numbers, tokens, task.settings.longest)
    need_few(len(numbers))
    return Source({"tokens": torch.tensor([numbers])}, tokens, "source", 2 * len(numbers) + 20)


def pair_input(model: Any, task: Any, text: str, target: Any) -> Prepared:
    """A text and its translation: the one that is given, or the one that the model writes."""
    return with_target(model, task, text_source(model, task, text), target)


def with_target(model: Any, task: Any, source: Source, target: Any) -> Prepared:
    """The source and what is written for it.

    The decoder's query for a token stands at the token before it, so what it is given is the text without its last
    token. A model without a head over a vocabulary cannot write: it is given the start, or the text that is given.
    """
    tokenizer = tokenizer_of(model, task).target
    writes = isinstance(model.head, VocabularyHead)
    rules = rules_of(model, task, tokenizer)
    whole = forced(rules, tokenizer, target, writes) if target else composed(model, task, source, rules)
    shown = [*spelt(tokenizer, whole), *([] if writes else [Token("?", special=True)])]
    given = whole[:-1] if writes else whole
    return Prepared(
        source.arguments | {"targets": torch.tensor([given])},
        {source.side: source.tokens, "target": shown[:-1]},
        source.side,
        source.about | {"writes": [token.as_dict() for token in shown[1:]], "written": not target, "numbers": whole},
        answer_of(tokenizer, whole, shown),
    )


def answer_of(tokenizer: Any, whole: list[int], shown: list[Token]) -> Callable[[Any], dict[str, Any]]:
    """How what was written is read; of a model without a head nothing is known of the tokens' chances."""

    def answer(output: Any) -> dict[str, Any]:
        if output.logits is not None:
            return written(output.logits[0], tokenizer, whole[1:])
        items = [
            {"place": place, "label": token.text, "class": None, "probability": None}
            for place, token in enumerate(shown[1:])
        ]
        return {"kind": "vector", "items": items}

    return answer


def rules_of(model: Any, task: Any, tokenizer: Any) -> Rules:
    """What texts begin and end with: as the task says, the checkpoint's folder, or the tokenizer."""
    rules = getattr(task, "rules", None) or model.rules or Rules()
    end = () if tokenizer.end is None else (tokenizer.end,)
    pad = tokenizer.pad if rules.pad is None else rules.pad
    return replace(rules, start=rules.start or (model.config.start,), end=rules.end or end, pad=pad)


def room_of(model: Any, most: int, start: int) -> int:
    """How many tokens can be written: so many, as far as the decoder has places for them."""
    places = getattr(getattr(model.target_embed, "config", None), "places", None)
    return max(1, min(most, MOST_NEW, places - start if isinstance(places, int) else most))


@torch.no_grad()
def composed(model: Any, task: Any, source: Source, rules: Rules) -> list[int]:
    """The tokens that the model writes, start and end included; the start alone where it has no head."""
    if not isinstance(model.head, VocabularyHead):
        return list(rules.start)
    if hasattr(task, "write"):
        return trimmed(task.write(model, source.arguments["tokens"].tolist())[0].tolist(), rules)
    beams = getattr(getattr(task, "settings", None), "beams", 1)
    how = {"start": rules.start, "end": rules.end or None, "pad": rules.filling, "beams": beams}
    made = model.generate(**source.arguments, max_new=room_of(model, source.most, len(rules.start)), **how)
    return trimmed(made[0].tolist(), rules)


def trimmed(numbers: list[int], rules: Rules) -> list[int]:
    """Tokens up to the first end after the start, that included."""
    for n, number in enumerate(numbers):
        if n >= max(1, len(rules.start)) and number in rules.end:
            return numbers[: n + 1]
    return numbers


def forced(rules: Rules, tokenizer: Any, target: Any, writes: bool) -> list[int]:
    """The tokens of a text that is given, after the decoder's start: a text, or the numbers of its tokens."""
    if isinstance(target, list):
        if len(target) > FEW.tokens or not all(type(one) is int and 0 <= one < tokenizer.size for one in target):
            raise BadInput(f"target is {target!r:.60}; it must be a text, or numbers of tokens below {tokenizer.size}.")
        return [*rules.start, *target]
    numbers, tokens = encoded(tokenizer, str(target))
    plain = [number for number, token in zip(numbers, tokens, strict=True) if not token.special]
    return [*rules.start, *plain, *(rules.end[:1] if writes else ())]
