"""The n-gram model beside a network that classifies few texts: two linear models of words and pairs of near words.

They differ in how features are weighted, and are fitted before training. Their weight in the mean with the network,
from none to all, is chosen on the validation data at every evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, TypeVar, cast

import torch
from torch import Tensor

from ...data.tables.column_profiles import CHINESE_LETTER
from ...models.baselines.linear import NBLinearConfig, NBLinearModel
from ...models.ensemble import EnsembleConfig, EnsembleModel
from ..losses.targets import InputTarget, RegressionTarget
from ..task import Batch, Scores

E = TypeVar("E")

MIN_TEXTS, MAX_TEXTS = 500, 50_000
"""Numbers of texts between which a linear model is fitted beside the network."""
PAIR_ROWS = 1 << 18
"""Rows that pairs of words are hashed to."""
Fit = tuple[Literal["nb", "idf", "both"], float]
"""The weighting of features and the strength of the fit; see `NBLinearModel`."""
CANDIDATES: tuple[tuple[Fit, Fit], ...] = ((("nb", 3.0), ("idf", 10.0)), (("idf", 10.0), ("both", 30.0)))
"""Pairs of fits. Their mean is better than each: 85.9 to 84.1 percent on held-out parts of TREC's training data."""
WEIGHTS = tuple(n / 10 for n in range(11))
BATCH = 256
FEW_TOKENS = 400_000
"""Tokens of all texts above which the network is half as wide."""
FEW_TEXTS: dict[str, str | float] = {
    "pool": "attention",
    "dropout": 0.3,
    "word_dropout": 0.2,
    "label_smoothing": 0.1,
    "ema": 0.99,
    "schedule": "cosine",
    "batch_size": 32,
}
"""Settings of the network beside the n-gram model: usual values for little data, not the result of a search."""


def suits(examples: Sequence[object], target: InputTarget) -> bool:
    """Whether a linear model is fitted beside the network for these texts by default."""
    return MIN_TEXTS <= len(examples) <= MAX_TEXTS and not isinstance(target, RegressionTarget)


def suggest_settings(texts: Sequence[str], words: bool) -> dict[str, str | float]:
    """Settings of a network that is trained on so few texts, by name; none for other numbers of texts.

    The network is regularized strongly, its weights are averaged, and it is smaller for long texts, so that it sees
    them often enough. `words` says whether tokens are words, whose affixes are then features unless they are Chinese.
    """
    if not MIN_TEXTS <= len(texts) <= MAX_TEXTS:
        return {}
    letters = "".join(texts[:1000])
    chinese = len(CHINESE_LETTER.findall(letters)) > sum(map(str.isalpha, letters)) / 2
    tokens = sum(map(len, texts)) if chinese else sum(len(text.split()) for text in texts)
    affixes = {"max_affix": 4} if words and not chinese else {}
    return {**FEW_TEXTS, "dim": 128 if tokens <= FEW_TOKENS else 64, **affixes}


def fit_linear(
    config: EnsembleConfig, examples: Sequence[E], make_batch: Callable[[Sequence[E]], Batch], target: InputTarget
) -> EnsembleModel:
    """Two linear models of these texts; the best of `CANDIDATES` on a tenth of them is fitted again to all."""
    held = examples[::10]
    rest = [example for n, example in enumerate(examples) if n % 10]
    own, other = as_batches(rest, make_batch), as_batches(held, make_batch)

    single = cast(NBLinearConfig, config.model)
    fitted = {fit: fit_model(single, own, fit) for pair in CANDIDATES for fit in pair}

    def held_out_loss(pair: tuple[Fit, Fit]) -> float:
        model = combine_models(config, [fitted[fit] for fit in pair])
        with torch.no_grad():
            losses = [target.loss(model(tokens=x, lengths=n).logits, labels, 0.0) for x, n, labels in other]
        return float(sum(losses))

    best = min(CANDIDATES, key=held_out_loss)
    batches = as_batches(examples, make_batch)
    return combine_models(config, [fit_model(single, batches, fit) for fit in best])


def fit_model(config: NBLinearConfig, batches: list[tuple[Tensor, Tensor, Tensor]], fit: Fit) -> NBLinearModel:
    weighting, strength = fit
    model = config.build()
    model.count(batches, weighting)
    model.fit(batches, strength)
    return model


def combine_models(config: EnsembleConfig, models: Sequence[NBLinearModel]) -> EnsembleModel:
    """The ensemble of these models, in evaluation mode."""
    ensemble = config.build().eval()
    for member, model in zip(ensemble.members, models, strict=True):
        member.load_state_dict(model.state_dict())
    return ensemble


def as_batches(
    examples: Sequence[E], make_batch: Callable[[Sequence[E]], Batch]
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """(tokens, lengths, labels) of all examples."""
    batches = [make_batch(examples[n : n + BATCH]) for n in range(0, len(examples), BATCH)]
    return [(batch["tokens"], batch["lengths"], batch["labels"]) for batch in batches]


def choose_weight(model: EnsembleModel, logits: Tensor, labels: Sequence[str], target: InputTarget) -> Scores:
    """Scores with the weight of the linear model that has the lowest loss, which becomes the model's.

    logits `[models, examples, outputs]`, those of the linear model last.
    """
    gold, config = target.tensor(labels), model.config
    losses = {}
    for weight in WEIGHTS:
        model.config = replace(config, extra_weight=weight)
        losses[weight] = float(target.loss(model.combine(logits), gold, 0.0))
    parts = {}
    for name, weight in (("network", 0.0), ("n-gram model", 1.0)):
        model.config = replace(config, extra_weight=weight)
        alone = model.combine(logits)
        target.tune(alone, labels)
        parts[name] = target.scores(alone, labels).metrics[target.main]
    best = min(WEIGHTS, key=losses.__getitem__)
    model.config = replace(config, extra_weight=best)
    combined = model.combine(logits)
    target.tune(combined, labels)
    scores = target.scores(combined, labels)
    summary = (
        f"The n-gram model has the weight {best:g}, chosen on the validation data ({target.main} of "
        f"the network alone {parts['network']:.4f}, of the n-gram model alone {parts['n-gram model']:.4f}). "
        "nb_linear=0 leaves it out."
    )
    return replace(scores, details={**scores.details, "n-gram weight": best, "summary": [summary]})
