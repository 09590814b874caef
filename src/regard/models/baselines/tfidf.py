"""Linear models of the n-grams of a text, weighted by TF-IDF or by naive Bayes: what a network has to beat."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...errors import Missing
from ..ensemble import MeanOf, mean_logits
from ..heads import supervised_loss
from ..model import Model, Output

FIT_STEPS = 40
"""Steps of L-BFGS."""
SMOOTHING = 0.3
"""The pseudo-count of every feature in each class (Laplace smoothing)."""
MEANS: dict[str, MeanOf] = {"class": "softmax", "labels": "sigmoid", "number": "identity"}
"""What the mean of several models is taken of, by what they predict."""

Target = Literal["class", "labels", "number"]


@dataclass(frozen=True)
class TfidfConfig:
    """Linear models over `words` and `characters`, numbers of n-grams that are features, and their mean.

    `ngrams [batch, features]` are the different features of each text: those of words from 1 on, those of characters
    after them, 0 for padding; `ngram_counts [batch, features]` says how often each occurs. `outputs` are the logits of
    classes or of labels, or numbers, as `target` says.
    """

    words: int
    characters: int
    outputs: int
    target: Target = "class"
    family: str | None = None

    def build(self) -> TfidfModel:
        return TfidfModel(self)


@dataclass(frozen=True)
class NgramCounts:
    """The features of many texts: those of text n are `features[starts[n] : starts[n + 1]]`, with their `counts`."""

    features: Tensor
    counts: Tensor
    starts: Tensor

    @classmethod
    def from_texts(cls, texts: Sequence[Mapping[int, int]]) -> NgramCounts:
        """Of how often each feature occurs in each text."""
        features = torch.tensor([feature for text in texts for feature in text], dtype=torch.int64)
        counts = torch.tensor([count for text in texts for count in text.values()], dtype=torch.int64)
        return cls(features, counts, torch.tensor([0, *map(len, texts)]).cumsum(0))

    def __len__(self) -> int:
        return len(self.starts) - 1


class TfidfModel(Model):
    """The mean of three linear models: TF-IDF of words, TF-IDF of characters, and naive Bayes of words (Wang and
    Manning 2012), which numbers do not have.

    >>> model = TfidfConfig(words=3, characters=2, outputs=2).build()
    >>> texts = NgramCounts.from_texts([{1: 1, 2: 3, 4: 1}, {3: 1, 5: 2}])
    >>> model.fit(texts, torch.tensor([0, 1]), [10.0] * 3)
    >>> ngrams = torch.tensor([[1, 2, 4], [3, 5, 0]])
    >>> model.eval()(ngrams=ngrams, ngram_counts=torch.tensor([[1, 3, 1], [1, 2, 0]])).logits.argmax(-1).tolist()
    [0, 1]
    """

    config: TfidfConfig

    def __init__(self, config: TfidfConfig) -> None:
        super().__init__(config)
        words, characters = (1, config.words + 1), (config.words + 1, config.words + config.characters + 1)
        parts = [NgramLinear(words, config.outputs), NgramLinear(characters, config.outputs)]
        if config.target != "number":
            parts.append(NgramLinear(words, config.outputs, naive_bayes=True))
        self.parts = nn.ModuleList(parts)

    def forward(self, *, ngrams: Tensor, ngram_counts: Tensor, labels: Tensor | None = None) -> Output:
        logits = torch.stack([part(ngrams, ngram_counts) for part in self.parts])
        combined = mean_logits(logits, [1 / len(self.parts)] * len(self.parts), MEANS[self.config.target])
        return Output(logits=combined, loss=None if labels is None else supervised_loss(combined, labels, shift=False))

    def fit(self, texts: NgramCounts, labels: Tensor, strengths: Sequence[float]) -> None:
        """Fit every part to texts and their labels, each with its strength: more strength, less regularization.

        Labels are classes `[texts]`, 0 or 1 for each label `[texts, outputs]`, or numbers `[texts, outputs]`.
        """
        for part, strength in zip(self.linear_parts, strengths, strict=True):
            part.solve(part.prepare(texts, labels), LOSSES[self.config.target], strength)

    def choose_strengths(
        self,
        training: tuple[NgramCounts, Tensor],
        held_out: tuple[NgramCounts, Tensor],
        strengths: Sequence[float],
    ) -> list[float]:
        """For each part the strength, from low to high, with the lowest loss on held-out texts."""
        loss, chosen = LOSSES[self.config.target], []
        for part in self.linear_parts:
            problem, losses = part.prepare(*training), {}
            others = part.matrix(held_out[0])
            for strength in strengths:  # each fit begins where the last one ended
                part.solve(problem, loss, strength)
                logits = part.product(others, part.weight.detach()) / part.size(others) + part.bias.detach()
                losses[strength] = float(loss(logits, held_out[1]))
            chosen.append(min(losses, key=losses.__getitem__))
        return chosen

    @property
    def linear_parts(self) -> list[NgramLinear]:
        return [part for part in self.parts if isinstance(part, NgramLinear)]


@dataclass(frozen=True)
class Problem:
    """Texts as a sparse matrix of values `[texts, features]`, its transpose, and their labels."""

    values: Any
    transposed: Any
    size: Tensor
    labels: Tensor


class NgramLinear(nn.Module):
    """A linear model of some of the features, the rows from `rows[0]` to before `rows[1]`.

    logit(c) = Σ v(f) · r(f, c) · weight(f, c) / √Σ (v(f) · r(f, c))² + bias(c)     over the features f of a text
    TF-IDF:      v(f) = 1 + ln count(f),  r(f, c) = 1 + ln((1 + texts) / (1 + texts that have f))
    naive Bayes: v(f) = 1,                r(f, c) = ln P(f | c) − ln P(f | the other classes)
    """

    def __init__(self, rows: tuple[int, int], outputs: int, naive_bayes: bool = False) -> None:
        super().__init__()
        self.rows, self.naive_bayes = rows, naive_bayes
        size = 1 + rows[1] - rows[0]  # row 0 is every other feature
        self.weight = nn.Parameter(torch.zeros(size, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.ratios: Tensor
        self.register_buffer("ratios", torch.zeros(size, outputs if naive_bayes else 1))

    def forward(self, ngrams: Tensor, counts: Tensor) -> Tensor:
        """`[batch, outputs]`."""
        rows = self.local(ngrams)
        weighted = self.values(counts)[..., None] * self.ratios[rows]  # [batch, features, 1 or outputs]
        size = weighted.square().sum(1).sqrt().clamp(min=1e-6)
        return (weighted * self.weight[rows]).sum(1) / size + self.bias

    def local(self, ngrams: Tensor) -> Tensor:
        """The rows of its own table; 0 for the features of another kind."""
        first, end = self.rows
        return torch.where((ngrams >= first) & (ngrams < end), ngrams - first + 1, 0)

    def values(self, counts: Tensor) -> Tensor:
        """What a feature counts by how often it occurs."""
        return torch.ones_like(counts, dtype=self.weight.dtype) if self.naive_bayes else 1 + counts.clamp(min=1).log()

    @torch.no_grad()
    def prepare(self, texts: NgramCounts, labels: Tensor) -> Problem:
        """Estimate the ratios from texts and labels, and set the weights to zero."""
        matrix = self.matrix(texts)
        if self.naive_bayes:
            classes = functional.one_hot(labels, len(self.bias)) if labels.dim() == 1 else labels
            in_class = torch.from_numpy(matrix.T @ classes.to(self.weight.dtype).numpy())
            own, others = in_class + SMOOTHING, in_class.sum(1, keepdim=True) - in_class + SMOOTHING
            ratios = (own / own.sum(0)).log() - (others / others.sum(0)).log()
        else:
            documents = torch.bincount(self.local(texts.features), minlength=len(self.ratios))
            ratios = (1 + ((1 + len(texts)) / (1 + documents)).log())[:, None]
        ratios[0] = 0.0
        self.ratios.copy_(ratios)
        self.weight.zero_()
        self.bias.zero_()
        return Problem(matrix, matrix.T.tocsr(), self.size(matrix), labels)

    def matrix(self, texts: NgramCounts) -> Any:
        """The values of the features of texts as a sparse matrix `[texts, features]` of scipy."""
        try:
            from scipy.sparse import csr_matrix
        except ImportError:
            raise Missing('Fitting a linear model needs scipy: pip install "regard[train]".') from None
        rows = self.local(texts.features)
        own = rows > 0
        starts = functional.pad(own.cumsum(0), (1, 0))[texts.starts]
        values, shape = self.values(texts.counts[own]), (len(texts), len(self.ratios))
        return csr_matrix((values.numpy(), rows[own].numpy(), starts.numpy()), shape)

    def product(self, matrix: Any, weight: Tensor) -> Tensor:
        """`[texts, outputs]`: the weighted sums over the features of texts."""
        return torch.from_numpy(matrix @ (weight * self.ratios).numpy())

    def size(self, matrix: Any) -> Tensor:
        """`[texts, 1 or outputs]`: the length of the weighted features of texts."""
        return torch.from_numpy(matrix.power(2) @ (self.ratios**2).numpy()).sqrt().clamp(min=1e-6)

    def solve(self, problem: Problem, loss_of: Callable[[Tensor, Tensor], Tensor], strength: float) -> None:
        """Minimise strength · Σ loss + ½ Σ weight² with L-BFGS, from the weights that it has: the problem is convex."""
        weight, bias = self.weight.detach().clone(), self.bias.detach().clone()
        optimizer = torch.optim.LBFGS(
            [weight, bias], max_iter=FIT_STEPS, history_size=10, line_search_fn="strong_wolfe"
        )
        decay = 1 / (strength * len(problem.labels))

        @torch.enable_grad()
        def closure() -> Tensor:
            """The loss, and its gradient by hand through the sparse products."""
            logits = (self.product(problem.values, weight) / problem.size + bias).requires_grad_()
            loss = loss_of(logits, problem.labels)
            (gradient,) = torch.autograd.grad(loss, logits)
            pulled = torch.from_numpy(problem.transposed @ (gradient / problem.size).numpy())
            weight.grad, bias.grad = pulled * self.ratios + decay * weight, gradient.sum(0)
            return loss.detach() + decay / 2 * weight.square().sum()

        optimizer.step(closure)  # type: ignore[arg-type]
        with torch.no_grad():
            self.weight.copy_(weight)
            self.bias.copy_(bias)


def labels_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean over texts of the sum of the binary losses of all labels."""
    return functional.binary_cross_entropy_with_logits(logits, labels, reduction="sum") / len(labels)


def numbers_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Half of the mean squared error."""
    return functional.mse_loss(logits, labels) / 2


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "class": functional.cross_entropy,
    "labels": labels_loss,
    "number": numbers_loss,
}
