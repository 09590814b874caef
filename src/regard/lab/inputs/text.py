"""Texts as tokens, for models that read them.

Tokens are drawn from character offsets, never from the vocabulary's own spelling: pieces of one character share a
group.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

from ...errors import BadInput, Unsupported
from ...models.heads import VocabularyHead
from ..inspect.predictions import classes, next_token, tags
from .prepared import FEW, Limits, Prepared, Token, need_few, too_many

PARTED = re.compile(r"\w+(?=n['’]t\b)|n['’]t\b|\w+(?:-\w+)*|['’]\w+|[^\w\s]", re.IGNORECASE)
"""English words as treebanks part them."""


def need_text(given: dict[str, Any], limits: Limits = FEW) -> str:
    """The text of an input; `BadInput` where there is none, or too much."""
    text = given.get("text")
    if not isinstance(text, str):
        raise BadInput(f"This model reads a text; the input is {sorted(given)}. Give it as input.text.")
    if not text.strip():
        raise BadInput("The text is empty. Type a sentence, or choose one of the examples.")
    if len(text) > limits.characters:
        raise BadInput(f"The text has {len(text):,} characters; {too_many(limits.characters, limits)}")
    if any(0xD800 <= ord(letter) <= 0xDFFF for letter in text):
        raise BadInput("The text has half a character in it. Type it anew.")
    return text


def drawn(text: str, offsets: list[tuple[int, int]], pieces: list[str], special: list[bool]) -> list[Token]:
    """Tokens from character offsets: what a piece covers, and for pieces of one character which of them it is."""
    tokens: list[Token] = []
    first = 0
    for n, (start, end) in enumerate(offsets):
        same = n > 0 and start < end and (start, end) == offsets[n - 1] and not special[n]
        first = first if same else n
        shown = text[start:end] if start < end and not special[n] else pieces[n]
        tokens.append(Token(shown, start, end, special[n], first if same else None))
        if same:
            tokens[first] = Token(tokens[first].text, start, end, False, first)
    return tokens


def encoded(tokenizer: Any, text: str) -> tuple[list[int], list[Token]]:
    """A text's tokens as numbers and as they are drawn."""
    (row,) = tokenizer.backend.encode_batch([text])
    ends = {tokenizer.number(role) for role in ("pad_token", "cls_token", "bos_token", "sep_token", "eos_token")}
    special = [number in ends for number in row.ids]
    return row.ids, drawn(text, row.offsets, tokenizer.pieces(row.ids), special)


def spelt(tokenizer: Any, numbers: list[int]) -> list[Token]:
    """Tokens that a model wrote, with the places of their characters in the text that they spell."""
    ends = {tokenizer.number(role) for role in ("pad_token", "cls_token", "bos_token", "sep_token", "eos_token")}
    pieces = tokenizer.pieces(numbers)
    tokens, text = [], ""
    for n, number in enumerate(numbers):
        if number in ends:
            tokens.append(Token(pieces[n] or "", len(text), len(text), True))
            continue
        whole = tokenizer.decode([one for one in numbers[: n + 1] if one not in ends])
        shown = whole[len(text) :] if whole.startswith(text) else whole
        tokens.append(Token(shown or pieces[n] or "", len(text), max(len(text), len(whole))))
        text = whole if "\ufffd" not in whole else text
    return tokens


def text_input(model: Any, task: Any, text: str, limits: Limits) -> Prepared:
    """A text for an encoder or a decoder."""
    if getattr(getattr(task, "inputs", None), "spelling", None) is not None:
        return spelt_input(task, text, limits)
    tokenizer = tokenizer_of(model, task)
    running = getattr(task, "name", None) == "lm"
    numbers, tokens = by_lines(tokenizer, text) if running else encoded(tokenizer, text)
    if hasattr(getattr(task, "settings", None), "longest"):
        numbers, tokens = cut(numbers, tokens, task.settings.longest)
    need_few(len(numbers), limits=limits)
    arguments = {"tokens": torch.tensor([numbers])}
    if hasattr(task, "inputs"):  # as the task itself calls its model
        arguments["lengths"] = torch.tensor([len(numbers)])
    about = {"context": task.settings.context} if running else {}
    answer = text_answer(model, tokenizer, numbers, getattr(task, "labels", None) or getattr(model, "labels", None))
    return Prepared(arguments, {"source": tokens}, "source", about, answer)


def spelt_input(task: Any, text: str, limits: Limits) -> Prepared:
    """A text for a classifier that knows words by their letters: words as its tokenizer parts them."""
    backend = task.inputs.tokenizer.backend
    plain = text if backend.normalizer is None else backend.normalizer.normalize_str(text)
    words = backend.pre_tokenizer.pre_tokenize_str(plain)[: task.settings.longest]
    if not words:
        raise BadInput("There is no word in the text. Type a sentence.")
    need_few(len(words), limits=limits)
    shown = text if len(text) == len(plain) else plain
    tokens = [Token(shown[start:end], start, end) for _, (start, end) in words]
    arguments = task.inputs.batch([task.inputs.given(text)], None)
    return Prepared(arguments, {"source": tokens}, "source", {}, lambda output: classes(output.logits[0], task.labels))


def tokenizer_of(model: Any, task: Any) -> Any:
    found = getattr(task, "tokenizer", None) or model.tokenizer
    if found is None:
        raise Unsupported("This model's folder has no tokenizer, so texts cannot become tokens. Put its files there.")
    return found


def by_lines(tokenizer: Any, text: str) -> tuple[list[int], list[Token]]:
    """A running text, whose lines a language model reads one by one."""
    numbers: list[int] = []
    tokens: list[Token] = []
    begin = 0
    lines = text.splitlines(keepends=True)
    for line, row in zip(lines, tokenizer.backend.encode_batch(lines), strict=True):
        base = len(tokens)
        for token in drawn(line, row.offsets, row.tokens, [False] * len(row.ids)):
            group = None if token.group is None else token.group + base
            tokens.append(Token(token.text, token.start + begin, token.end + begin, token.special, group))
        numbers += row.ids
        begin += len(line)
    return numbers, tokens


def cut(numbers: list[int], tokens: list[Token], longest: int) -> tuple[list[int], list[Token]]:
    """The beginning of a text that is too long for a model, with its end token."""
    if len(numbers) <= longest:
        return numbers, tokens
    ended = tokens[-1].special
    keep = longest - 1 if ended else longest
    return numbers[:keep] + numbers[-1:] * ended, tokens[:keep] + tokens[-1:] * ended


def text_answer(model: Any, tokenizer: Any, numbers: list[int], labels: list[str] | None) -> Callable[[Any], dict]:
    """How the answer of a model that reads text is shown: classes, the next token, or what is hidden."""

    def answer(output: Any) -> dict[str, Any]:
        if output.logits is None:
            return {"kind": "vector", "items": []}
        if output.logits.dim() == 2:
            return classes(output.logits[0], labels)
        if not isinstance(model.head, VocabularyHead):
            return tags(output.logits[0], labels)
        if getattr(model, "causal", False):
            return next_token(output.logits[0], tokenizer, [len(numbers) - 1], "next")
        hidden = [n for n, number in enumerate(numbers) if number == tokenizer.mask]
        return next_token(output.logits[0], tokenizer, hidden, "masked")

    return answer


def tag_input(task: Any, text: str) -> Prepared:
    """A sentence for a tagger: words as treebanks part them, or as blanks do where they part everything."""
    from ...data.tagged import Tagged

    found = list(PARTED.finditer(text))
    if not found:
        raise BadInput("There is no word in the text. Type a sentence.")
    words = [one[0] for one in found]
    need_few(len(words), "The sentence")
    batch = task.batch([Tagged(tuple(words), ("",) * len(words))])
    tokens = [Token(one[0], one.start(), one.end()) for one in found]
    return Prepared(
        {"tokens": batch["tokens"]},
        {"source": tokens},
        "source",
        {"labels": task.tags},
        lambda output: tags(output.logits[0], task.tags),
    )
