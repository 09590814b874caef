"""The keys that each role of a head is about: of every query of a sentence, those that the role says it attends to.

Roles of a place (previous, next, self, first) need the order of the tokens alone. The others count keys that are at
least two places away, so that a head that attends to neighbours is not mistaken for one that reads words. Syntactic
roles read part-of-speech tags and nothing else: a noun phrase is the run of determiners, adjectives, numerals, adverbs
and nouns up to its last noun.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..inputs.model_input import Token

PLACE_ROLES = ("previous", "next", "self", "first")
CONTENT_ROLES = ("separator", "same", "induction")
SYNTAX_ROLES = (
    "modifier_noun", "noun_modifier", "preposition_noun", "noun_preposition",
    "verb_subject", "subject_verb", "verb_object", "object_verb",
)  # fmt: skip
"""From which word to which."""
NEARBY = "nearby"
"""Keys at most two places away, the query itself included: a role for heads that have no narrower one."""
NEAREST = 2
"""Places between a query and a key of a role that is not about places."""

NOUNS, PRONOUNS = ("NOUN", "PROPN"), ("NOUN", "PROPN", "PRON")
MODIFIERS = ("DET", "ADJ", "NUM")
IN_PHRASE = (*NOUNS, *MODIFIERS, "ADV")
BEFORE_VERB = ("AUX", "ADV", "PART")


class TaggedWord(NamedTuple):
    """A word: its characters in the text and its universal part-of-speech tag."""

    start: int
    end: int
    tag: str


def role_targets(
    tokens: Sequence[Token], words: Sequence[TaggedWord] = (), keys: Sequence[Token] | None = None
) -> dict[str, Tensor]:
    """For each role the keys that it is about, a boolean `[queries, keys]`.

    `tokens` attend to themselves, or to `keys` where these are given: then only the roles that need no common order
    are there. Syntactic roles are left out where there are no `words`.
    """
    if keys is not None:
        return {"first": first_key(len(tokens), len(keys)), "separator": separators(keys).expand(len(tokens), -1)}
    count = len(tokens)
    i, j = torch.arange(count)[:, None], torch.arange(count)[None, :]
    far, same = (i - j).abs() >= NEAREST, same_words(tokens)
    after_same = torch.cat([torch.zeros(count, 1, dtype=torch.bool), same[:, :-1]], 1)
    targets = {
        "previous": j == i - 1,
        "next": j == i + 1,
        "self": j == i,
        NEARBY: (i - j).abs() <= NEAREST,
        "first": first_key(count, count) & far,
        "separator": separators(tokens) & far & (j > 0),
        "same": same & far,
        "induction": after_same & far & (j < i),
    }
    for role, pairs in syntax_pairs(words).items():
        targets[role] = word_pairs(tokens, words, pairs) & far
    return targets


def first_key(queries: int, keys: int) -> Tensor:
    return (torch.arange(keys) == 0).expand(queries, -1)


def separators(tokens: Sequence[Token]) -> Tensor:
    """Which tokens are special or punctuation, `[tokens]`."""
    return torch.tensor([token.special or not any(map(str.isalnum, token.text)) for token in tokens])


def same_words(tokens: Sequence[Token]) -> Tensor:
    """Which pairs of tokens are the same word, whatever its case, `[tokens, tokens]`; a token is not its own pair."""
    texts = [
        "" if token.special or token.unknown or token.group is not None else token.text.strip().casefold()
        for token in tokens
    ]
    number = {text: n for n, text in enumerate(dict.fromkeys(texts))}
    numbers = torch.tensor([number[text] if any(map(str.isalnum, text)) else -1 - n for n, text in enumerate(texts)])
    same = numbers[:, None] == numbers[None, :]
    return same & ~torch.eye(len(tokens), dtype=torch.bool)


def syntax_pairs(words: Sequence[TaggedWord]) -> dict[str, list[tuple[int, int]]]:
    """The pairs (attending word, word attended to) of each syntactic role; each relation is there both ways.

    modifier, noun      a determiner, adjective or numeral, and the noun at the end of its phrase
    preposition, noun   a preposition and the noun at the end of the phrase after it
    verb, subject       a verb and the nearest noun or pronoun before it, with auxiliaries and adverbs between at most
    verb, object        a verb and the noun or pronoun of the phrase after it
    """
    pairs: dict[str, list[tuple[int, int]]] = {role: [] for role in SYNTAX_ROLES} if words else {}

    def add(first: str, second: str, n: int, other: int) -> None:
        pairs[f"{first}_{second}"].append((n, other))
        pairs[f"{second}_{first}"].append((other, n))

    for n, word in enumerate(words):
        after = phrase_noun(words, n + 1)
        if word.tag in MODIFIERS and after is not None:
            add("modifier", "noun", n, after)
        if word.tag == "ADP" and after is not None:
            add("preposition", "noun", n, after)
        if word.tag == "VERB":
            before = n - 1
            while before >= 0 and words[before].tag in BEFORE_VERB:
                before -= 1
            if before >= 0 and words[before].tag in PRONOUNS:
                add("verb", "subject", n, before)
            if after is not None:
                add("verb", "object", n, after)
    return pairs


def phrase_noun(words: Sequence[TaggedWord], start: int) -> int | None:
    """The last noun of the phrase that begins at a word, or the pronoun there; None where there is none."""
    if start < len(words) and words[start].tag == "PRON":
        return start
    noun = None
    for n in range(start, len(words)):
        if words[n].tag not in IN_PHRASE or (noun is not None and words[n].tag not in NOUNS):
            break
        noun = n if words[n].tag in NOUNS else noun
    return noun


def word_pairs(tokens: Sequence[Token], words: Sequence[TaggedWord], pairs: list[tuple[int, int]]) -> Tensor:
    """The pairs of tokens `[tokens, tokens]` that belong to pairs of words, by the characters that they cover."""
    inside = torch.tensor(
        [
            [not token.special and token.start < word.end and word.start < token.end for word in words]
            for token in tokens
        ]
    ).view(len(tokens), len(words))
    belong = torch.zeros(len(tokens), len(tokens), dtype=torch.bool)
    for a, b in pairs:
        belong |= inside[:, a, None] & inside[None, :, b]
    return belong
