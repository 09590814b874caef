"""A checkpoint's rules for generation: which tokens start and end a text, and which are suppressed or forced."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..checkpoint.files import JsonObject


@dataclass(frozen=True)
class TokenRules:
    """`start` are the tokens a decoder begins with, `end` those that end a text, `pad` fills shorter rows.

    `suppressed` tokens are never generated, `suppressed_first` not as the first new token; `forced_first` and
    `forced_last` are the first new token and the last possible one.
    """

    start: tuple[int, ...] = ()
    end: tuple[int, ...] = ()
    pad: int | None = None
    suppressed: tuple[int, ...] = ()
    suppressed_first: tuple[int, ...] = ()
    forced_first: int | None = None
    forced_last: int | None = None

    @property
    def fill_token(self) -> int:
        """The token that fills short rows."""
        return self.pad if self.pad is not None else self.end[0] if self.end else 0

    def apply(self, scores: Tensor, new: int, min_new: int, max_new: int) -> Tensor:
        """The scores `[batch, vocabulary]` of the token after `new` new ones, −∞ for suppressed ones."""
        if new == 0 and self.forced_first is not None:
            return force_token(scores, self.forced_first)
        if new == max_new - 1 and self.forced_last is not None:
            return force_token(scores, self.forced_last)
        banned = self.suppressed + (self.end if new < min_new else ()) + (self.suppressed_first if new == 0 else ())
        return scores.index_fill(-1, as_tensor(banned, scores.device), -torch.inf) if banned else scores

    def ends(self, tokens: Tensor) -> Tensor:
        """Which of the tokens end a text."""
        if len(self.end) == 1:
            return tokens == self.end[0]
        return torch.isin(tokens, as_tensor(self.end, tokens.device))

    def lengths(self, tokens: Tensor) -> Tensor:
        """The number of tokens of each row `[batch, tokens]` up to and including its first end; `[batch]`."""
        before = self.ends(tokens).cumsum(1).roll(1, 1)
        before[:, 0] = 0
        return (before == 0).sum(1)


def force_token(scores: Tensor, token: int) -> Tensor:
    """Scores that allow one token alone."""
    left = torch.full_like(scores, -torch.inf)
    left[:, token] = 0.0
    return left


@functools.lru_cache(maxsize=64)
def as_tensor(tokens: tuple[int, ...], device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(tokens, dtype=torch.long, device=device)


def read_rules(generation: JsonObject, config: JsonObject) -> TokenRules:
    """The rules in a folder's `generation_config.json`, or else in its `config.json`.

    >>> read_rules({"eos_token_id": [2, 7]}, {"pad_token_id": 0, "eos_token_id": 2})
    TokenRules(start=(), end=(2, 7), pad=0, suppressed=(), suppressed_first=(), forced_first=None, forced_last=None)
    """

    def find(name: str) -> Any:
        return config.get(name) if generation.get(name) is None else generation[name]

    words = [word for word in find("bad_words_ids") or () if len(word) == 1]
    return TokenRules(
        start=as_tuple(find("decoder_start_token_id")),
        end=as_tuple(find("eos_token_id")),
        pad=find("pad_token_id"),
        suppressed=as_tuple(find("suppress_tokens")) + tuple(word[0] for word in words),
        suppressed_first=as_tuple(find("begin_suppress_tokens")),
        forced_first=find("forced_bos_token_id"),
        forced_last=next(iter(as_tuple(find("forced_eos_token_id"))), None),
    )


def write_rules(rules: TokenRules) -> JsonObject:
    """The rules as `read_rules` reads them from `generation_config.json`."""
    config = {
        "decoder_start_token_id": one_or_list(rules.start),
        "eos_token_id": one_or_list(rules.end),
        "pad_token_id": rules.pad,
        "suppress_tokens": list(rules.suppressed) or None,
        "begin_suppress_tokens": list(rules.suppressed_first) or None,
        "forced_bos_token_id": rules.forced_first,
        "forced_eos_token_id": rules.forced_last,
    }
    return {name: value for name, value in config.items() if value is not None}


def rules_from_dict(saved: JsonObject) -> TokenRules:
    """The rules that a run has saved."""
    values: JsonObject = {name: tuple(x) if isinstance(x, list) else x for name, x in saved.items()}
    return TokenRules(**values)


def as_tuple(value: int | Iterable[int] | None) -> tuple[int, ...]:
    """A token, several or none as a tuple."""
    if value is None:
        return ()
    return (int(value),) if isinstance(value, int) else tuple(int(token) for token in value)


def one_or_list(tokens: tuple[int, ...]) -> int | list[int] | None:
    return None if not tokens else tokens[0] if len(tokens) == 1 else list(tokens)
