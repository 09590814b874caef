"""The n-gram baseline: a language model of counts, without training."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ...errors import BadInput
from ..model import Model, Output


@dataclass(frozen=True)
class NgramConfig:
    """An n-gram model of that `order`; `sizes` are the numbers of different n-grams of 1, 2, … words."""

    vocabulary: int
    order: int
    sizes: tuple[int, ...]

    @property
    def family(self) -> str | None:
        """None: other programs have no such model."""
        return None

    def build(self) -> NgramModel:
        return NgramModel(self)


class NgramModel(Model):
    """Interpolated Kneser–Ney (Kneser and Ney 1995) with one discount D = n₁ / (n₁ + 2 n₂) for each length.

        p(w | h) = max(c(hw) − D, 0) / c(h·) + D · N(h·) / c(h·) · p(w | h without its first word)

    c counts n-grams of `order` words; for shorter ones it is the number of different words that precede them. N(h·) is
    the number of different words that follow h; n₁ and n₂ are the numbers of n-grams counted once and twice. The
    unigrams are interpolated with 1 / vocabulary. For a history that was never seen, p is that of the shorter history.

    An n-gram is stored as the number whose digits, to the base of the vocabulary, are its words; the table is a sorted
    tensor.
    """

    config: NgramConfig

    def __init__(self, config: NgramConfig) -> None:
        super().__init__(config)
        for length, size in enumerate(config.sizes, 1):
            self.register_buffer(f"runs{length}", torch.zeros(size, dtype=torch.long))
            self.register_buffer(f"counts{length}", torch.zeros(size, dtype=torch.long))

    @classmethod
    def from_tokens(cls, tokens: Tensor, vocabulary: int, order: int) -> NgramModel:
        """The model of a text `[tokens]`, whose end is followed by its beginning."""
        need_order(order, vocabulary)
        counted = []
        for length in range(1, order + 1):
            around = torch.cat([tokens, tokens.repeat(-(-length // len(tokens)))[: length - 1]])  # over the end
            counted.append(numbers_of(around.unfold(0, length, 1), vocabulary).unique(return_counts=True))
        for shorter in range(1, order):
            longer = counted[shorter][0]
            counted[shorter - 1] = (longer % vocabulary**shorter).unique(return_counts=True)
        model = cls(NgramConfig(vocabulary, order, tuple(len(runs) for runs, _ in counted))).eval()
        for length, (runs, counts) in enumerate(counted, 1):
            model.get_buffer(f"runs{length}").copy_(runs)
            model.get_buffer(f"counts{length}").copy_(counts)
        return model

    @property
    def device(self) -> torch.device:
        return self.get_buffer("runs1").device

    def forward(self, *, tokens: Tensor) -> Output:
        """`logits [batch, tokens, vocabulary]`: ln p of every word after each position."""
        history = self.histories(tokens).flatten(0, 1)
        words = torch.arange(self.config.vocabulary, device=tokens.device).expand(history.shape[0], -1)
        return Output(logits=self.probabilities(history, words).log().float().unflatten(0, tuple(tokens.shape)))

    def losses(self, tokens: Tensor) -> Tensor:
        """−ln p of each word of a text but the first, `[tokens − 1]`."""
        history = self.histories(tokens[None, :-1])[0]
        return -self.probabilities(history, tokens[1:, None]).log().squeeze(1)

    def histories(self, tokens: Tensor) -> Tensor:
        """The `order` − 1 words up to each position, `[batch, tokens, order − 1]`; −1 before the first."""
        before = self.config.order - 1
        padded = functional.pad(tokens, (max(0, before - 1), 0), value=-1)
        return padded.unfold(1, before, 1) if before else tokens.new_empty(*tokens.shape, 0)

    def probabilities(self, history: Tensor, words: Tensor) -> Tensor:
        """p of `words [rows, words]` after `history [rows, order − 1]`, float64."""
        size = self.config.vocabulary
        probability = torch.full(words.shape, 1 / size, dtype=torch.float64, device=words.device)
        for length in range(1, self.config.order + 1):
            recent = history[:, history.shape[1] - length + 1 :]
            seen = (recent >= 0).all(1)
            start = torch.where(seen, numbers_of(recent, size), -1)
            probability = self.interpolate(length, start, words, probability)
        return probability

    def interpolate(self, length: int, start: Tensor, words: Tensor, below: Tensor) -> Tensor:
        """p by n-grams of `length` words that begin with `start [rows]`; `below` is p by shorter ones."""
        runs, counts = self.get_buffer(f"runs{length}"), self.get_buffer(f"counts{length}")
        once, twice = (counts == 1).sum(), (counts == 2).sum()
        discount = once / (once + 2 * twice).clamp(min=1)
        first = torch.searchsorted(runs, start * self.config.vocabulary)
        last = torch.searchsorted(runs, (start + 1) * self.config.vocabulary)
        sums = functional.pad(counts.cumsum(0), (1, 0)).double()
        total = (sums[last] - sums[first]) * (start >= 0)  # c(h·), [rows]
        run = start[:, None] * self.config.vocabulary + words
        index = torch.searchsorted(runs, run).clamp(max=len(runs) - 1)
        count = torch.where(runs[index] == run, counts[index], 0).double()
        kept, freed = (count - discount).clamp(min=0), discount * (last - first)[:, None]
        return torch.where(total[:, None] > 0, (kept + freed * below) / total.clamp(min=1)[:, None], below)


def numbers_of(words: Tensor, vocabulary: int) -> Tensor:
    """`[rows]` of `[rows, words]`: the words as the digits of one number."""
    number = words.new_zeros(words.shape[0])
    for column in words.unbind(1):
        number = number * vocabulary + column
    return number


def need_order(order: int, vocabulary: int) -> None:
    """Raise unless every n-gram of `order` + 1 words has a number of its own in 63 bits."""
    most = next(n for n in range(63, 0, -1) if n == 1 or (vocabulary + 1) ** n < 2**62)
    if not 1 <= order <= most:
        raise BadInput(
            f"order is {order}; with a vocabulary of {vocabulary:,} it must be 1 to {most}. Change order or size."
        )
