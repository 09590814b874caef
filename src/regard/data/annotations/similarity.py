"""Texts that are alike: pairs, triplets with a text that is not, and pairs with a score."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..files import Paths, resolve_paths
from ..reading import Reading, ReadingBuilder
from ..tables import ColumnSpec, Row, find_columns, find_split_column, read_table, split_in_row
from .pairs import FIRST_NAMES, NEGATIVE_NAMES, POSITIVE_NAMES, SECOND_NAMES, VALUE_NAMES


@dataclass(frozen=True)
class SimilarTexts:
    """Two texts that are alike, or whose likeness is `score`; `negative` is a text unlike the first, or empty."""

    first: str
    second: str
    negative: str = ""
    score: float | None = None
    split: str = ""


def read_similarity(
    paths: Paths,
    *,
    first: str | None = None,
    second: str | None = None,
    negative: str | None = None,
    score: str | None = None,
) -> Reading[SimilarTexts]:
    """Rows of tables with two columns of texts, and perhaps one of negatives or of scores; given by name, or found."""
    builder = ReadingBuilder[SimilarTexts]()
    wanted = [
        ColumnSpec("first text", first, FIRST_NAMES, "first", "text"),
        ColumnSpec("second text", second, (*POSITIVE_NAMES, *SECOND_NAMES), "second", "text"),
    ]
    optional = [
        ColumnSpec("negative", negative, NEGATIVE_NAMES, "negative"),
        ColumnSpec("score", score, VALUE_NAMES, "likeness"),
    ]
    for path in resolve_paths(paths):
        with builder.reading(path):
            read_similarity_rows(path, wanted, optional, builder)
    return builder.build()


def read_similarity_rows(
    path: Path, wanted: list[ColumnSpec], optional: list[ColumnSpec], builder: ReadingBuilder[SimilarTexts]
) -> None:
    """The rows of one table; of several `optional` columns those that it has."""
    table = read_table(path, [*wanted, *optional], min_matches=2)
    builder.faults.extend(table.faults)
    taken = {str(spec.given).casefold() for spec in wanted if spec.given is not None}
    have = {name.casefold() for name in table.names} - taken
    extra = [spec for spec in optional if spec.given is not None or have & set(spec.names)]
    columns = find_columns(table, [*wanted, *extra], builder)
    split_column = find_split_column(table)

    def make(row: Row) -> SimilarTexts:
        first, second = (table.cell(row, columns[role], role) for role in ("first text", "second text"))
        negative = table.cell(row, columns["negative"], "negative") if "negative" in columns else ""
        score = table.number(row, columns["score"], "score") if "score" in columns else None
        return SimilarTexts(first, second, negative, score, split_in_row(table, row, split_column))

    builder.each(table.rows, make)
