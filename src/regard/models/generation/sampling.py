"""Sampling: how the next token is chosen from its logits."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal, TypedDict

import torch
from torch import Tensor

from ...errors import BadInput, Unsupported
from ...nn.cache import Cache
from ...nn.caches.config import KINDS, CacheConfig, CacheKind


@dataclass(frozen=True)
class GenerationConfig:
    """The settings of a generation; `generate` describes each."""

    max_new: int = 64
    min_new: int = 0
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    beams: int = 1
    length_penalty: float = 1.0
    early: bool = False
    start: int | Sequence[int] | Tensor | None = None
    end: int | Sequence[int] | None = None
    pad: int | None = None
    generator: torch.Generator | None = None
    cache: bool | CacheKind | Literal["sliding"] | CacheConfig | Cache = True

    def __post_init__(self) -> None:
        need_count("max_new", self.max_new, "Ask for at least one token.")
        need_count("min_new", self.min_new, "Leave it out to let a text end at once.", least=0)
        need_count("beams", self.beams, "Use 1 for a text without beams.")
        if self.min_new > self.max_new:
            raise BadInput(f"min_new is {self.min_new} and max_new {self.max_new}; it must not be more.")
        if not self.temperature >= 0:
            raise BadInput(f"temperature is {self.temperature}; it must be 0 (the likeliest token) or more.")
        if self.top_k is not None:
            need_count("top_k", self.top_k, "Leave it out to choose among all tokens.")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise BadInput(f"top_p is {self.top_p}; it must be above 0 and at most 1. Leave it out to keep all tokens.")
        if isinstance(self.cache, str) and self.cache not in (*KINDS, "sliding"):
            kinds = ", ".join(repr(kind) for kind in (*KINDS, "sliding"))
            raise BadInput(f"cache is {self.cache!r}; it must be True, False, {kinds}, a CacheConfig or a Cache.")
        if not isinstance(self.cache, bool | str | CacheConfig | Cache):
            raise BadInput(
                f"cache is {type(self.cache).__name__}; it must be True, False, a kind of cache as a word, a "
                "CacheConfig or a Cache."
            )
        self.check_strategy()

    def check_strategy(self) -> None:
        """Raise for settings that contradict each other."""
        if self.beams > 1 and self.temperature:
            raise Unsupported(
                f"beams={self.beams} search for the likeliest text, and temperature={self.temperature} draws one by "
                "chance. Leave one of them out."
            )
        if not self.temperature and (self.top_k is not None or self.top_p is not None):
            raise BadInput("top_k and top_p limit what is drawn, and temperature 0 draws nothing. Set temperature=1.0.")

    def choose(self, logits: Tensor) -> Tensor:
        """The next token of each row, `[batch]`, of `logits [batch, vocabulary]`."""
        if not self.temperature:
            return logits.argmax(-1)
        probabilities = filter_logits(logits, self.temperature, self.top_k, self.top_p).softmax(-1)
        return torch.multinomial(probabilities, 1, generator=self.generator).squeeze(1)


class GenerationSettings(TypedDict, total=False):
    """The fields of `GenerationConfig` as keyword arguments."""

    max_new: int
    min_new: int
    temperature: float
    top_k: int | None
    top_p: float | None
    beams: int
    length_penalty: float
    early: bool
    start: int | Sequence[int] | Tensor | None
    end: int | Sequence[int] | None
    pad: int | None
    generator: torch.Generator | None
    cache: bool | CacheKind | Literal["sliding"] | CacheConfig | Cache


class GenerateArguments(GenerationSettings, total=False):
    """The arguments of `generate`: the inputs of a model and the settings."""

    tokens: Tensor | None
    lengths: Tensor | None
    images: Tensor | None
    sound: Tensor | None


def read_config(settings: GenerationSettings) -> GenerationConfig:
    """The settings as a value; `BadInput` for an unknown one names the nearest."""
    names = [field.name for field in fields(GenerationConfig)]
    for name in settings:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else f" There are {', '.join(names)}."
            raise BadInput(f"generate has no setting {name!r}.{hint}")
    return GenerationConfig(**settings)


def need_count(name: str, value: object, hint: str, least: int = 1) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise BadInput(f"{name} is {value!r}; it must be a whole number of at least {least}. {hint}")


def filter_logits(logits: Tensor, temperature: float, top_k: int | None = None, top_p: float | None = None) -> Tensor:
    """The logits to sample from: divided by the temperature, −∞ outside the top k, and then outside the top p.

    The top k are the k largest and those equal to the smallest of them. The top p are the fewest likeliest tokens whose
    probabilities sum to p or more.

    >>> filter_logits(torch.tensor([[4.0, 2.0, 0.0]]), temperature=2.0, top_k=2).tolist()
    [[2.0, 1.0, -inf]]
    """
    logits = logits.float() / temperature
    if top_k is not None and top_k < logits.shape[-1]:
        least = logits.topk(top_k).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if top_p is not None and top_p < 1:
        rising, order = logits.sort(-1)
        below = rising.softmax(-1).cumsum(-1) <= 1 - top_p
        below[:, -1] = False
        logits = logits.masked_fill(below.scatter(-1, order, below), -torch.inf)
    return logits
