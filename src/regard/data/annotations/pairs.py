"""Pairs of texts with a label or number, and queries with candidates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..files import Paths, resolve_paths
from ..reading import Reading, ReadingBuilder
from ..tables import ColumnSpec, Row, Table, find_columns, find_split_column, read_table, split_in_row
from ..tables.label_types import LabelType, infer_label_type
from ..text import LABEL_NAMES

FIRST_NAMES = (
    *("sentence1", "sentence_1", "text1", "text_a", "sentence_a", "premise", "question1", "query", "question", "first"),
    *("anchor", "句子1", "前提", "查询", "问题"),
)
SECOND_NAMES = (
    *("sentence2", "sentence_2", "text2", "text_b", "sentence_b", "hypothesis", "question2", "candidate", "passage"),
    *("document", "answer", "second", "句子2", "假设", "候选", "文档"),
)
VALUE_NAMES = (*LABEL_NAMES, "score", "similarity", "relevance", "gold_label", "is_duplicate", "分数", "相关度")
CANDIDATES_NAMES = ("candidates", "passages", "documents", "候选")
POSITIVE_NAMES, NEGATIVE_NAMES = ("positive", "positives", "pos"), ("negative", "negatives", "neg")


@dataclass(frozen=True)
class LabelledPair:
    """Two texts and their label; `split` is 'train', 'dev' or 'test' if the file assigns one."""

    first: str
    second: str
    label: str
    split: str = ""


def read_pairs(
    paths: Paths,
    *,
    first: str | None = None,
    second: str | None = None,
    label: str | None = None,
    target: LabelType | str = "auto",
) -> Reading[LabelledPair]:
    """Pairs of texts from tables: two columns of texts and one of labels, given by name or number, or found."""
    builder = ReadingBuilder[LabelledPair]()
    wanted = [
        ColumnSpec("first text", first, FIRST_NAMES, "first", "text"),
        ColumnSpec("second text", second, SECOND_NAMES, "second", "text"),
        ColumnSpec("label", label, VALUE_NAMES, content="label"),
    ]
    for path in resolve_paths(paths):
        with builder.reading(path):
            read_pair_rows(path, wanted, target, builder)
    return builder.build()


def read_pair_rows(
    path: Path, wanted: Sequence[ColumnSpec], target: str, builder: ReadingBuilder[LabelledPair]
) -> None:
    """The pairs of a table; where labels are numbers, one that is none is a fault."""
    table = read_table(path, wanted, min_matches=2)
    builder.faults.extend(table.faults)
    columns = find_columns(table, wanted, builder)
    split_column = find_split_column(table)
    values = [str(table.value(row, columns["label"]) or "") for row in table.rows]
    numbers = (infer_label_type(values) if target == "auto" else target) == "number"

    def make(row: Row) -> LabelledPair:
        first, second = (table.cell(row, columns[role], role) for role in ("first text", "second text"))
        label = table.cell(row, columns["label"], "label")
        if numbers:
            table.number(row, columns["label"], "label")
        return LabelledPair(first, second, label, split_in_row(table, row, split_column))

    builder.each(table.rows, make)


def read_rankings(
    paths: Paths, *, query: str | None = None, candidate: str | None = None, relevance: str | None = None
) -> Reading[LabelledPair]:
    """Queries with candidates: a row for each pair with its relevance (a number), or in JSON a row for each query.

    Such a row has `candidates` and their `relevance`, two lists, or lists of `positive` and `negative` texts, whose
    relevance is 1 and 0.
    """
    builder = ReadingBuilder[LabelledPair]()
    wanted = [
        ColumnSpec("query", query, FIRST_NAMES, content="text"),
        ColumnSpec("candidate", candidate, SECOND_NAMES, content="text"),
        ColumnSpec("relevance", relevance, ("relevance", *VALUE_NAMES), content="label"),
    ]
    for path in resolve_paths(paths):
        with builder.reading(path):
            table = read_table(path, wanted, min_matches=2)
            builder.faults.extend(table.faults)
            split_column = find_split_column(table)
            names = {name.casefold(): name for name in table.names}
            lists = [first_of(names, usual) for usual in (CANDIDATES_NAMES, POSITIVE_NAMES, NEGATIVE_NAMES)]
            columns = find_columns(table, wanted[:1] if any(lists) else wanted, builder)
            for row in table.rows:
                with builder.catching():
                    split = split_in_row(table, row, split_column)
                    text = table.cell(row, columns["query"], "query")
                    pairs = (
                        read_lists(table, row, lists, names) if any(lists) else [read_candidate(table, row, columns)]
                    )
                    builder.examples += [LabelledPair(text, other, f"{value:g}", split) for other, value in pairs]
    return builder.build()


def first_of(names: dict[str, str], usual: Sequence[str]) -> str | None:
    return next((names[name] for name in usual if name in names), None)


def read_candidate(table: Table, row: Row, columns: dict[str, str]) -> tuple[str, float]:
    """(text, relevance) of a row with one candidate."""
    text = table.cell(row, columns["candidate"], "candidate")
    return text, table.number(row, columns["relevance"], "relevance")


def read_lists(table: Table, row: Row, lists: Sequence[str | None], names: dict[str, str]) -> list[tuple[str, float]]:
    """(text, relevance) of each candidate of a row with lists."""
    candidates, positive, negative = lists
    if candidates is None:
        given = [(name, value) for name, value in ((positive, 1.0), (negative, 0.0)) if name is not None]
        return [(text, value) for name, value in given for text in texts_of(table, row, name)]
    texts = texts_of(table, row, candidates)
    column = first_of(names, ("relevance", *VALUE_NAMES))
    values = None if column is None else table.value(row, column)
    numbers = [float(value) for value in values if isinstance(value, int | float)] if isinstance(values, list) else []
    if column is None or not isinstance(values, list) or not len(numbers) == len(values) == len(texts):
        message = f"the relevance is {values!r:.60}; wanted a number for each of the {len(texts)} candidates."
        table.raise_fault(row, column or candidates, message)
    return list(zip(texts, numbers, strict=True))


def texts_of(table: Table, row: Row, name: str) -> list[str]:
    """The texts of a cell: a list, or one text."""
    value = table.value(row, name)
    items = value if isinstance(value, list) else [value]
    texts = [item.strip() for item in items if isinstance(item, str)]
    if len(texts) < len(items) or not all(texts):
        table.raise_fault(row, name, f"{name!r} is {value!r:.60}; wanted texts, none of them empty.")
    return texts
