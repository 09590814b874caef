"""Sentence vectors: texts that are alike get near vectors, learned by contrast with the other texts of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...data.annotations.similarity import SimilarTexts, read_similarity
from ...data.json_values import JsonObject, ParsedObject
from ...data.reading import Reading
from ...data.tables import ColumnSpec
from ...errors import BadInput
from ...models.config import SequenceConfig
from ...models.model import Model
from ...models.tokenizers.tokenizer import Tokenizer
from ...settings import Settings, Training, setting
from ..architecture import Architecture
from ..inputs.text import truncation_note
from ..metrics.rank_correlation import rank_correlation
from ..pretrained.embedder import Embedder, PoolingConfig, pool_tokens
from ..pretrained.pretrained import Encoder, Pretrained
from ..pretrained.texts import SubwordTexts
from ..results import Regression
from ..task import Batch, Scores, Task, require_tokenizer
from .pair_inputs import pair_columns, pair_of

COSENT_SCALE = 20.0
"""Factor of the cosines in the loss of scored pairs."""


@dataclass(frozen=True)
class SimilaritySettings(Settings):
    """Settings of the task `similarity`, which trains the vectors of a checkpoint on pairs, triplets or scored pairs.

    Of pairs, the second text of each row is the answer for the first, and those of the other rows of the batch are
    not (InfoNCE): larger batches are harder. Negatives of triplets are added to them. Scored pairs are ordered by the
    cosine of their vectors as by their scores (CoSENT).
    """

    first: str | None = setting(None, "Column of the first texts.")
    second: str | None = setting(None, "Column of the second texts, which are alike or have a score.")
    negative: str | None = setting(None, "Column of texts that are unlike the first.")
    similarity: str | None = setting(None, "Column of the scores; higher means more similar.", former="likeness")
    pool: Literal["auto", "mean", "first", "last", "max"] = setting(
        "auto", "How tokens are pooled to a vector; auto as the checkpoint says, else the mean.", former="pooling"
    )
    temperature: float = setting(0.05, "Cosines are divided by it before the softmax over the batch.", gt=0)
    max_length: int = setting(128, "Tokens of a text that are read; the rest is cut off.", ge=1)


class Similarity(Task[SimilaritySettings, SimilarTexts, SimilarTexts]):
    """Vectors of texts: `SimilarTexts` examples; Spearman's correlation of cosines and scores, or recall of pairs."""

    name = "similarity"
    Settings = SimilaritySettings
    TRAINING = Training(batch_size=64)
    reads_rows = True

    @property
    def row_columns(self) -> tuple[ColumnSpec, ColumnSpec]:
        return pair_columns(self.settings.first, self.settings.second)

    def __init__(
        self,
        settings: SimilaritySettings,
        texts: SubwordTexts,
        pooling: PoolingConfig,
        encoder: Encoder | None = None,
    ) -> None:
        self.settings, self.texts, self.pooling_config, self.encoder = settings, texts, pooling, encoder
        self.max_length = texts.max_length

    @property
    def tokenizer(self) -> Tokenizer:
        return self.texts.tokenizer

    @classmethod
    def read(cls, paths: Sequence[Path], settings: SimilaritySettings) -> Reading[SimilarTexts]:
        s = settings
        return read_similarity(paths, first=s.first, second=s.second, negative=s.negative, score=s.similarity)

    @classmethod
    def prepare(cls, examples: Sequence[SimilarTexts], settings: SimilaritySettings) -> Similarity:
        raise BadInput("The task similarity trains the vectors of a checkpoint. Give one: --from CHECKPOINT.")

    @classmethod
    def prepare_from(
        cls, examples: Sequence[SimilarTexts], settings: SimilaritySettings, pretrained: Pretrained
    ) -> Similarity:
        """The task with the encoder, the tokenizer and (unless it is set) the pooling of a checkpoint."""
        if len({example.score is None for example in examples}) > 1:
            raise BadInput("Some of these files have scores and some have none. Train on one sort at a time.")
        own = Embedder.from_pretrained(pretrained).config
        texts = pretrained.texts(settings.max_length)
        pooling = own.pooling if settings.pool == "auto" else settings.pool
        config = PoolingConfig(pooling, own.normalize, texts.max_length)
        return cls(settings, texts, config, pretrained.encoder("tokens"))

    def as_dict(self) -> JsonObject:
        return {"pooling": vars(self.pooling_config)}

    @classmethod
    def from_dict(
        cls, data: ParsedObject, settings: SimilaritySettings, tokenizer: Tokenizer | None = None
    ) -> Similarity:
        pooling = PoolingConfig(**data["pooling"])
        return cls(settings, SubwordTexts(require_tokenizer(tokenizer), pooling.max_length), pooling)

    def config(self, a: Architecture) -> SequenceConfig:
        assert self.encoder is not None
        return SequenceConfig(*self.encoder.layer_configs(a), family=self.encoder.config.family)

    def initialize(self, model: nn.Module) -> None:
        assert self.encoder is not None
        self.encoder.initialize(model)

    def sizes(self, examples: Sequence[SimilarTexts]) -> list[int]:
        """The mean size for every example, so that a text is contrasted with texts of any length."""
        total = sum(sum(self.texts.sizes(texts)) for texts in columns_of(examples) if texts)
        return [max(1, -(-total // len(examples)))] * len(examples)

    def batch(self, examples: Sequence[SimilarTexts], rng: Random | None = None) -> Batch:
        """All texts as one batch: the first texts, the second, the negatives; and the scores, or which are equal.

        `alike [first texts, other texts]` is true where another text equals the right one, so that it is no negative.
        """
        firsts, seconds, negatives = columns_of(examples)
        batch = self.texts.batch([*firsts, *seconds, *negatives])
        if examples[0].score is not None:
            return {**batch, "scores": torch.tensor([float(example.score or 0.0) for example in examples])}
        number: dict[str, int] = {}
        others = torch.tensor([number.setdefault(text, len(number)) for text in (*seconds, *negatives)])
        return {**batch, "alike": others[: len(seconds), None] == others}

    def count(self, batch: Batch) -> int:
        return len(batch["scores"] if "scores" in batch else batch["alike"])

    def loss(self, model: nn.Module, batch: Batch, smoothing: float = 0.0) -> Tensor:
        """The sum of the losses of the rows."""
        tokens, count = {name: batch[name] for name in ("tokens", "lengths")}, self.count(batch)
        hidden = model(**tokens, **({"segments": batch["segments"]} if "segments" in batch else {})).hidden
        vectors = pool_tokens(hidden.float(), batch["lengths"], self.pooling_config)
        vectors = functional.normalize(vectors, dim=-1)
        if "scores" in batch:
            return count * cosent_loss((vectors[:count] * vectors[count:]).sum(-1), batch["scores"])
        return info_nce_sum(vectors[:count], vectors[count:], batch["alike"], self.settings.temperature, smoothing)

    def embedder(self, model: Model) -> Embedder:
        """The vectors of a model of this task."""
        return Embedder(model, self.tokenizer, self.pooling_config)

    def cosines(self, model: Model, firsts: Sequence[str], seconds: Sequence[str]) -> Tensor:
        """The cosine of each pair."""
        vectors = functional.normalize(self.embedder(model).embed([*firsts, *seconds]), dim=-1)
        return (vectors[: len(firsts)] * vectors[len(firsts) :]).sum(-1)

    def evaluate(self, model: Model, examples: Sequence[SimilarTexts]) -> Scores:
        """Spearman's and Pearson's correlation of cosines and scores; of pairs how often the second text is nearest."""
        firsts, seconds, negatives = columns_of(examples)
        if examples[0].score is not None:
            cosines = self.cosines(model, firsts, seconds)
            scores = torch.tensor([float(example.score or 0.0) for example in examples])
            pearson = torch.corrcoef(torch.stack([cosines, scores]))[0, 1].nan_to_num()
            metrics = {"spearman": rank_correlation(cosines, scores), "pearson": float(pearson)}
            return Scores(metrics, "spearman", hypotheses=[f"{cosine:.4f}" for cosine in cosines.tolist()])
        others = list(dict.fromkeys((*seconds, *negatives)))
        number = {text: n for n, text in enumerate(others)}
        vectors = functional.normalize(self.embedder(model).embed([*firsts, *others]), dim=-1)
        cosines = vectors[: len(firsts)] @ vectors[len(firsts) :].t()  # [first texts, other texts]
        right = cosines[torch.arange(len(firsts)), torch.tensor([number[text] for text in seconds])]
        ranks = 1 + (cosines > right[:, None]).sum(1)
        metrics = {f"recall@{k}": float((ranks <= k).float().mean()) for k in (1, 10)}
        metrics["MRR"] = float((1 / ranks).mean())
        return Scores(metrics, "recall@1", hypotheses=[others[n] for n in cosines.argmax(1).tolist()])

    def example_records(self, examples: Sequence[SimilarTexts]) -> list[dict[str, str]]:
        gold = [e.second if e.score is None else f"{e.score:g}" for e in examples]
        return [{"input": f"{e.first}\t{e.second}", "gold": right} for e, right in zip(examples, gold, strict=True)]

    def choices(self, examples: Sequence[SimilarTexts]) -> list[str]:
        texts = [text for column in columns_of(examples) for text in column]
        return truncation_note(self.texts.lengths(texts), self.texts.max_length or 10**9, "texts")

    def text_inputs(self, text: str) -> Batch:
        return self.texts.batch([text])

    def predict(self, model: Model, inputs: Sequence[object]) -> list[Regression]:
        """The cosine of each pair of texts: two texts with a tab between, or a row of a table."""
        pairs = [pair_of(given, self.settings.first, self.settings.second) for given in inputs]
        cosines = self.cosines(model, [first for first, _ in pairs], [second for _, second in pairs]).tolist()
        return [Regression("\t".join(pair), (cosine,)) for pair, cosine in zip(pairs, cosines, strict=True)]

    def describe(self, examples: Sequence[SimilarTexts]) -> JsonObject:
        """Facts that `check` shows."""
        scores = [example.score for example in examples if example.score is not None]
        sort = "scored pairs" if scores else "triplets" if examples[0].negative else "pairs"
        facts: JsonObject = {sort: len(examples), "longest": max(self.texts.sizes(columns_of(examples)[0]))}
        return facts | ({"scores": f"{min(scores):g} … {max(scores):g}"} if scores else {})


def columns_of(examples: Sequence[SimilarTexts]) -> tuple[list[str], list[str], list[str]]:
    """First texts, second texts, and the negatives that there are."""
    negatives = [example.negative for example in examples if example.negative]
    return [example.first for example in examples], [example.second for example in examples], negatives


def info_nce_sum(firsts: Tensor, others: Tensor, alike: Tensor, temperature: float, smoothing: float = 0.0) -> Tensor:
    """Σ over pairs of the cross-entropy of the right text among all, and of the first text among the first (InfoNCE).

    `firsts [pairs, dim]` and `others [pairs + negatives, dim]` have length 1; `alike` marks copies of the right text.

    >>> vectors = torch.eye(3)
    >>> round(float(info_nce_sum(vectors, vectors, torch.eye(3).bool(), temperature=1.0)) / 3, 4)  # ln(e + 2) − 1
    0.5514
    """
    logits = firsts @ others.t() / temperature
    count = len(firsts)
    right = torch.arange(count, device=logits.device)
    copies = alike.clone()
    copies[right, right] = False
    logits = logits.masked_fill(copies, -torch.inf)
    forward = functional.cross_entropy(logits, right, reduction="sum", label_smoothing=smoothing)
    backward = functional.cross_entropy(logits[:, :count].t(), right, reduction="sum", label_smoothing=smoothing)
    return (forward + backward) / 2


def cosent_loss(cosines: Tensor, scores: Tensor) -> Tensor:
    """ln(1 + Σ exp(20 (cosine_i − cosine_j))) over all i, j of which the score of i is the lower (CoSENT).

    >>> float(cosent_loss(torch.tensor([0.1, 0.9]), torch.tensor([1.0, 5.0]))) < 1e-6
    True
    """
    differences = COSENT_SCALE * (cosines[:, None] - cosines[None, :])
    wrong = differences.masked_fill(scores[:, None] >= scores[None, :], -torch.inf).flatten()
    return torch.logsumexp(functional.pad(wrong, (1, 0)), 0)
