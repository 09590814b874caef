"""The n-gram model beside a network that reads few texts: linear models of TF-IDF and naive Bayes features.

It is fitted before training. Its weight in the mean with the network, from none to all, is chosen on the validation
data at every evaluation.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ...data.tables.column_profiles import CHINESE_LETTER
from ...models.baselines.tfidf import NgramCounts, TfidfConfig, TfidfModel
from ...models.ensemble import EnsembleModel
from ..inputs.words.ngrams import NgramVocabulary
from ..losses.targets import InputTarget, RegressionTarget
from ..task import Scores

MIN_TEXTS, MAX_TEXTS = 50, 50_000
"""Numbers of texts between which a linear model is fitted beside the network."""
STRENGTHS = {"class": (3.0, 10.0, 30.0), "labels": (3.0, 10.0, 30.0), "number": (0.3, 1.0, 3.0)}
"""Inverse strengths of the regularization, of which held-out texts choose one for each linear model."""
HELD_OUT = 5
"""One text of so many chooses the strengths."""
WEIGHTS = tuple(n / 10 for n in range(11))
FEW_TOKENS = 400_000
"""Tokens of all texts above which the network is half as wide."""
TOKEN_PASSES = 2_000_000
"""Tokens that the network reads in all epochs: about a minute of one core, after which such networks overfit."""
EPOCHS = (4, 20)
"""Fewest and most epochs of a run."""
FEW_TEXTS: dict[str, str | float] = {
    "pool": "attention",
    "dropout": 0.3,
    "word_dropout": 0.2,
    "label_smoothing": 0.1,
    "ema": 0.99,
    "schedule": "cosine",
    "batch_size": 32,
    "model": "cnn+attention",
    "positions": "none",
    "learning_rate": 2e-3,
    "warmup": 50,
    "patience": 4,
}
"""Settings of the network beside the n-gram model."""


def suits(texts: int) -> bool:
    """Whether a linear model is fitted beside the network for so many texts by default."""
    return MIN_TEXTS <= texts <= MAX_TEXTS


def suggest_settings(texts: Sequence[str], words: bool) -> dict[str, str | float]:
    """Settings of a network that is trained on so few texts, by name; none for other numbers of texts.

    The network is regularized strongly, its weights are averaged, and it is smaller for long texts and reads them in
    fewer epochs. `words` says whether tokens are words, whose affixes are then features unless they are Chinese.
    """
    if not suits(len(texts)):
        return {}
    letters = "".join(texts[:1000])
    chinese = len(CHINESE_LETTER.findall(letters)) > sum(map(str.isalpha, letters)) / 2
    tokens = sum(map(len, texts)) if chinese else sum(len(text.split()) for text in texts)
    affixes = {"max_affix": 4} if words and not chinese else {}
    epochs = min(EPOCHS[1], max(EPOCHS[0], TOKEN_PASSES // max(1, tokens)))
    return {**FEW_TEXTS, "dim": 128 if tokens <= FEW_TOKENS else 64, "epochs": epochs, **affixes}


class NgramFit:
    """Fits n-gram models to texts with labels; the strengths that the first texts choose serve all fits."""

    def __init__(self, vocabulary: NgramVocabulary, target: InputTarget) -> None:
        self.vocabulary, self.target = vocabulary, target
        self.strengths: list[float] | None = None

    @property
    def config(self) -> TfidfConfig:
        words, characters = len(self.vocabulary.words), len(self.vocabulary.characters)
        return TfidfConfig(words, characters, self.target.outputs, self.target.kind)

    def __call__(self, texts: Sequence[str], labels: Sequence[str]) -> TfidfModel:
        """The model of these texts."""
        counts = [self.vocabulary.count(text) for text in texts]
        gold = self.gold(labels)
        model = self.config.build().eval()
        if self.strengths is None:
            held = [zlib.crc32(text.encode()) % HELD_OUT == 0 for text in texts]  # texts that repeat stay together
            training, held_out = (
                (NgramCounts.from_texts([counts[n] for n in numbers]), gold[numbers])
                for numbers in ([n for n, own in enumerate(held) if own is side] for side in (False, True))
            )
            choices = STRENGTHS[self.target.kind]
            if len(training[1]) and len(held_out[1]):
                self.strengths = model.choose_strengths(training, held_out, choices)
            else:
                self.strengths = [choices[1]] * len(model.linear_parts)
        model.fit(NgramCounts.from_texts(counts), gold, self.strengths)
        return model

    def gold(self, labels: Sequence[str]) -> Tensor:
        """The labels as the linear models take them: numbers are standardized."""
        gold = self.target.tensor(labels)
        if not isinstance(self.target, RegressionTarget):
            return gold
        return (gold - torch.tensor(self.target.mean)) / torch.tensor(self.target.std)


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
