"""Tables: a class or a number for each row of numbers, categories and dates."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from ...data.json_values import JsonObject, ParsedObject
from ...data.reading import Reading, split
from ...data.tables.feature_rows import FeatureRow, read_feature_rows
from ...errors import BadInput, Unsupported
from ...models.heads import ClassificationHeadConfig
from ...models.table import TableConfig
from ...models.tokenizers.tokenizer import Tokenizer
from ...nn.baselines.fully_connected import FullyConnectedConfig
from ...nn.embeddings.columns import ColumnEmbeddingConfig
from ...settings import Settings, Training, setting
from ..architecture import Architecture, stack_of
from ..inputs.cache import TensorCache
from ..losses.choose_target import input_target_from_dict, make_target, stratify_labels, target_note
from ..losses.targets import InputTarget, LabelsTarget
from ..results import Result
from ..task import Scores, Task
from .boosting import NAME, score_boosting
from .column_features import CategoryColumn, ColumnFeatures, DateColumn, NumberColumn, fit_columns

ROWS = 4096
"""Rows that are evaluated at once."""


@dataclass(frozen=True)
class TableSettings(Settings):
    """Settings of the task `table`, which reads tables of numbers, categories and dates."""

    label: str | None = setting(None, "Column to predict; by default target, label, class, …, or the last column.")
    target: Literal["auto", "class", "number"] = setting(
        "auto", "Whether the label is a class or a number; auto reads it off the labels."
    )
    categorical_columns: str = setting(
        "", "Columns, separated by commas, whose numbers are names of categories.", former="categories"
    )
    ignored_columns: str = setting("", "Columns, separated by commas, that are not read.", former="ignored")
    scale: Literal["standard", "quantile"] = setting(
        "standard", "Numbers are standardized, or mapped by their quantiles to a normal distribution."
    )
    metric: Literal["auto", "loss"] = setting(
        "loss", "Score on the validation rows that selects the best weights; auto is accuracy or RMSE."
    )
    baseline: bool = setting(True, "Fit gradient boosting too, where scikit-learn is installed, and report its scores.")


class Tabular(Task[TableSettings, FeatureRow, FeatureRow]):
    """A class or a number for each row; every column is a token (FT-Transformer), or all go through an MLP."""

    name = "table"
    Settings = TableSettings
    ARCHITECTURE = Architecture(
        "transformer", 64, 2, 8, hidden=128, dropout=0.2, attention_dropout=0.2, activation="relu", positions="none"
    )
    TRAINING = Training(
        epochs=100, batch_size=64, learning_rate=5e-4, warmup=50, schedule="cosine", weight_decay=5e-2, patience=15
    )
    reads_rows: ClassVar[bool] = True

    def __init__(self, settings: TableSettings, features: ColumnFeatures, target: InputTarget) -> None:
        self.settings, self.features = settings, features
        self._target = target
        self.training_rows: Sequence[FeatureRow] = ()
        self.baseline: Scores | None = None
        self.encoded: TensorCache[FeatureRow] = TensorCache(self.encode_row)

    def encode_row(self, row: FeatureRow) -> Tensor:
        """The columns of a row as numbers."""
        return self.features.encode([row.values])[0]

    @property
    def target(self) -> InputTarget:
        return self._target

    @property
    def labels(self) -> list[str] | None:
        return self._target.labels

    @classmethod
    def read(cls, paths: Sequence[Path], settings: TableSettings) -> Reading[FeatureRow]:
        return read_feature_rows(paths, label=settings.label, target=settings.target)

    @classmethod
    def split(
        cls, reading: Reading[FeatureRow], share: float, seed: int
    ) -> tuple[Reading[FeatureRow], Reading[FeatureRow]]:
        """A fifth of a small table is held out, so that the rows that choose the weights are not a handful."""
        strata = dict(zip(reading.examples, stratify_labels([row.label for row in reading.examples]), strict=True))
        share = max(share, min(0.2, 200 / max(1, len(reading))))
        return split(reading, share, seed, stratify=strata.__getitem__)

    @classmethod
    def prepare(cls, examples: Sequence[FeatureRow], settings: TableSettings) -> Tabular:
        """The task for these training rows: what their columns hold, and what is predicted."""
        ignored = split_names(settings.ignored_columns)
        rows = [{name: row.values[name] for name in row.values if name not in ignored} for row in examples]
        known = {name for row in examples[:1] for name in row.values}
        if unknown := [name for name in (*ignored, *split_names(settings.categorical_columns)) if name not in known]:
            raise BadInput(f"There is no column {unknown[0]!r}. There are {', '.join(map(repr, sorted(known)[:30]))}.")
        features = fit_columns(rows, split_names(settings.categorical_columns), settings.scale == "quantile")
        if not features.columns:
            raise BadInput("No column has values to learn from. " + " ".join(features.notes))
        task = cls(settings, features, make_target([row.label for row in examples], settings.target))
        if isinstance(task.target, LabelsTarget):
            raise Unsupported("The labels are sets of labels, and a table predicts one class. Give target=class.")
        task.training_rows = examples
        return task

    def choices(self, examples: Sequence[FeatureRow]) -> list[str]:
        named = {
            "numbers": [column.name for column in self.features.columns if isinstance(column, NumberColumn)],
            "categories": [column.name for column in self.features.columns if isinstance(column, CategoryColumn)],
            "dates": list(dict.fromkeys(c.source for c in self.features.columns if isinstance(c, DateColumn))),
        }
        columns = "; ".join(
            f"{len(names)} of {kind} ({', '.join(names[:8])}{', …' * (len(names) > 8)})"
            for kind, names in named.items()
            if names
        )
        note = target_note(self.target, [row.label for row in examples])
        return [f"Columns: {columns}.", *self.features.notes, *([note] if note else [])]

    def as_dict(self) -> JsonObject:
        return {"columns": self.features.as_dict(), "target": self.target.as_dict()}

    @classmethod
    def from_dict(cls, data: ParsedObject, settings: TableSettings, tokenizer: Tokenizer | None = None) -> Tabular:
        return cls(settings, ColumnFeatures.from_dict(data["columns"]), input_target_from_dict(data["target"]))

    def config(self, a: Architecture) -> TableConfig:
        embed = ColumnEmbeddingConfig(self.features.sizes, a.dim, a.dropout if a.model == "mlp" else 0.0)
        head = ClassificationHeadConfig(self.target.outputs, a.dim, pool="first", dropout=a.dropout)
        if a.model == "mlp":
            stack = FullyConnectedConfig(a.dim, a.layers, 1 + len(self.features.columns), a.hidden)
            return TableConfig(embed, stack, head)
        if a.model != "transformer":
            raise Unsupported(f"{a.model} reads tokens in their order, and columns have none. Take transformer or mlp.")
        if a.position is not None:
            raise Unsupported(f"{a.position} needs distances between tokens; columns have none. Leave out position.")
        return TableConfig(embed, stack_of(replace(a, positions="none")), head)

    def sizes(self, examples: Sequence[FeatureRow]) -> list[int]:
        return [1 + len(self.features.columns)] * len(examples)

    def batch(self, examples: Sequence[FeatureRow], rng: Random | None = None) -> dict[str, Tensor]:
        return {
            "columns": torch.stack([self.encoded(row) for row in examples]),
            "labels": self.target.tensor([row.label for row in examples]),
        }

    def count(self, batch: dict[str, Tensor]) -> int:
        return int(self.target.label_mask(batch["labels"]).sum())

    def loss(self, model: nn.Module, batch: dict[str, Tensor], smoothing: float = 0.0) -> Tensor:
        return self.target.loss(model(columns=batch["columns"]).logits.float(), batch["labels"], smoothing)

    @torch.no_grad()
    def logits(self, model: nn.Module, columns: Tensor) -> Tensor:
        device = next(model.parameters()).device
        return torch.cat([model(columns=part.to(device)).logits.float().cpu() for part in columns.split(ROWS)])

    def evaluate(self, model: nn.Module, examples: Sequence[FeatureRow]) -> Scores:
        """Accuracy and macro F1, or RMSE, MAE and R², with the loss."""
        columns, labels = torch.stack([self.encoded(row) for row in examples]), [row.label for row in examples]
        logits = self.logits(model, columns)
        scores = self.target.scores(logits, labels)
        gold = self.target.tensor(labels)
        known = int(self.target.label_mask(gold).sum())
        loss = float(self.target.loss(logits, gold, 0.0)) / max(1, known)
        scores = replace(scores, metrics={**scores.metrics, "loss": scores.metrics.get("loss", loss)})
        return scores if self.settings.metric == "auto" else replace(scores, main="loss", higher=False)

    def validate(self, model: nn.Module, examples: Sequence[FeatureRow]) -> Scores:
        """The scores, with those of gradient boosting on the same rows beside them."""
        scores = self.evaluate(model, examples)
        if self.baseline is None and self.settings.baseline and self.training_rows:
            train, held = (
                (torch.stack([self.encoded(row) for row in rows]), [row.label for row in rows])
                for rows in (self.training_rows, examples)
            )
            self.baseline = score_boosting(train, held, self.features.sizes, self.target)
        if self.baseline is None:
            return scores
        return replace(scores, details={**scores.details, "baselines": {NAME: self.baseline.metrics}})

    def example_records(self, examples: Sequence[FeatureRow]) -> list[dict[str, str]]:
        return [{"input": json.dumps(dict(row.values), ensure_ascii=False), "gold": row.label} for row in examples]

    def unknown_labels(self, examples: Sequence[FeatureRow]) -> Counter[str]:
        return self.target.unknown([row.label for row in examples])

    def predict(self, model: nn.Module, inputs: Sequence[object]) -> Sequence[Result]:
        """The class or number of each row: a dictionary of columns and values, or one as JSON text."""
        rows = [self.read_row(given) for given in inputs]
        texts = [
            given if isinstance(given, str) else json.dumps(dict(row), default=str)
            for given, row in zip(inputs, rows, strict=True)
        ]
        return self.target.predictions(texts, self.logits(model, self.features.encode(rows)))

    def read_row(self, given: object) -> Mapping[str, object]:
        """The columns of an input; `BadInput` where it has none that the model reads."""
        if isinstance(given, str):
            try:
                given = json.loads(given)
            except (ValueError, RecursionError):
                raise BadInput(f"{given!r:.80} is no row. Give a table with --data, or a JSON object.") from None
        wanted = dict.fromkeys(c.source if isinstance(c, DateColumn) else c.name for c in self.features.columns)
        if not isinstance(given, Mapping) or not any(name in given for name in wanted):
            raise BadInput(f"A row is {given!r:.80}; wanted values of the columns {', '.join(list(wanted)[:20])}.")
        return given

    def row_inputs(self, text: str) -> tuple[dict[str, Tensor], list[str]]:
        """The model's arguments for one row as JSON text, and the names of its tokens."""
        return {"columns": self.features.encode([self.read_row(text)])}, ["[row]", *self.features.names]

    def describe(self, examples: Sequence[FeatureRow]) -> JsonObject:
        """Facts that `check` shows: the columns and the labels."""
        kinds = {NumberColumn: "number", CategoryColumn: "category", DateColumn: "date"}
        missing = Counter(name for row in examples for name, value in row.values.items() if value is None)
        columns = {
            column.name: kinds[type(column)] + (f" of {column.size - 2}" if isinstance(column, CategoryColumn) else "")
            for column in self.features.columns
        }
        facts = {"rows": len(examples), "columns": columns, "missing values": dict(missing.most_common())}
        return facts | {"left out": list(self.features.notes)} | self.target.describe([row.label for row in examples])


def split_names(text: str) -> list[str]:
    """Names that are separated by commas.

    >>> split_names("zip code, sex")
    ['zip code', 'sex']
    """
    return [name.strip() for name in text.split(",") if name.strip()]
