"""Ranking: the candidates of each query, ordered by a model that reads both."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from torch import Tensor, nn

from ...data.annotations.pairs import (
    CANDIDATES_NAMES,
    FIRST_NAMES,
    NEGATIVE_NAMES,
    POSITIVE_NAMES,
    LabelledPair,
    read_rankings,
)
from ...data.reading import Reading, split
from ...data.tables import ColumnSpec
from ...settings import setting
from ..losses.targets import ClassTarget, to_number
from ..metrics.ranking import ranking_scores
from ..results import RankedText, Ranking
from ..task import Scores
from .pair_inputs import parse_object
from .pairs import PairsSettings, TextPairs


@dataclass(frozen=True)
class RankSettings(PairsSettings):
    """Settings of the task `rank`: those of `pairs`, whose first text is the query and whose second is a candidate."""

    first: str | None = setting(None, "Column of the queries.")
    second: str | None = setting(None, "Column of the candidates.")
    label: str | None = setting(None, "Column of the relevance: numbers, 0 for irrelevant candidates.")
    target: Literal["auto", "class", "labels", "number"] = setting(
        "auto", "Whether a level of relevance is a class or a number; auto takes classes for up to 20 whole numbers."
    )
    symmetric: bool = setting(False, "The order of query and candidate does not matter.")


class Rank(TextPairs):
    """The order of the candidates of each query: nDCG and MRR.

    A model of pairs is trained; a candidate's score is the number or, of classes, the expected relevance.
    """

    name = "rank"
    Settings = RankSettings

    @classmethod
    def read(cls, paths: Sequence[Path], settings: PairsSettings) -> Reading[LabelledPair]:
        return read_rankings(paths, query=settings.first, candidate=settings.second, relevance=settings.label)

    @classmethod
    def split(
        cls, reading: Reading[LabelledPair], share: float, seed: int
    ) -> tuple[Reading[LabelledPair], Reading[LabelledPair]]:
        """(training data, validation data): a query is in one of them with all its candidates."""
        return split(reading, share, seed, by=lambda example: example.first)

    @property
    def row_columns(self) -> tuple[ColumnSpec, ColumnSpec]:
        first, second = super().row_columns
        return replace(first, role="query"), replace(second, role="candidate")

    def relevance(self, logits: Tensor) -> list[float]:
        """The expected relevance of each candidate."""
        if isinstance(self.target, ClassTarget):
            levels = [to_number(label) for label in self.target.labels]
            return (logits.softmax(-1) @ logits.new_tensor(levels)).tolist()
        return logits[:, 0].tolist()

    def evaluate(self, model: nn.Module, examples: Sequence[LabelledPair]) -> Scores:
        """nDCG, MRR and hits@1 over queries, and the scores of the pairs."""
        logits, labels = self.logits(model, examples), [example.label for example in examples]
        groups: dict[str, list[tuple[float, float]]] = {}
        for example, score in zip(examples, self.relevance(logits), strict=True):
            groups.setdefault(example.first, []).append((score, to_number(example.label)))
        of_pairs = self.target.scores(logits, labels)
        metrics = {**ranking_scores(list(groups.values())), **of_pairs.metrics}
        return Scores(metrics, "nDCG", hypotheses=of_pairs.hypotheses, details={"queries": len(groups)})

    def validate(self, model: nn.Module, examples: Sequence[LabelledPair]) -> Scores:
        return self.evaluate(model, examples)

    def predict(self, model: nn.Module, inputs: Sequence[object]) -> Sequence[Ranking]:  # type: ignore[override]
        """The candidates of each query, best first: of {"query": …, "candidates": […]}, or of one candidate."""
        rankings = []
        for query, candidates in map(self.query_of, inputs):
            logits = self.logits(model, [LabelledPair(query, text, "") for text in candidates])
            ranked = [RankedText(*pair) for pair in zip(candidates, self.relevance(logits), strict=True)]
            rankings.append(Ranking(query, tuple(sorted(ranked, key=lambda candidate: -candidate.score))))
        return rankings

    def query_of(self, given: object) -> tuple[str, list[str]]:
        """The query and the candidates of an input."""
        given = parse_object(given)
        if isinstance(given, Mapping):
            candidates = candidates_in(given, CANDIDATES_NAMES)
            if candidates is None:
                lists = [candidates_in(given, names) for names in (POSITIVE_NAMES, NEGATIVE_NAMES)]
                candidates = [text for own in lists if own is not None for text in own] or None
            query = next((given[name] for name in (self.settings.first, *FIRST_NAMES) if name in given), None)
            if candidates is not None and isinstance(query, str):
                return query, candidates
        example = self.inputs.example_of(given)
        return example.first, [example.second]


def candidates_in(given: Mapping[str, object], names: Sequence[str]) -> list[str] | None:
    """The texts under one of these names: a list, also as JSON, or one text; None where there is none."""
    value = next((given[name] for name in names if name in given), None)
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.lstrip().startswith("[") else [value]
        except (ValueError, RecursionError):  # a text that begins with a bracket
            value = [value]
    return [str(text) for text in value] if isinstance(value, list) else None
