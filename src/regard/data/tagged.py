"""Tagged sentences: CoNLL-U, two columns of text, or JSON lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import BadInput
from .files import Paths, file_format, read_file_lines, resolve_paths
from .reading import Reading, ReadingBuilder, raise_fault
from .tables import ColumnSpec, Row, Table, as_text, find_columns, read_table

FIELDS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
"""The ten columns of CoNLL-U."""

WORD_NAMES = ("words", "tokens", "forms", "词", "词语")
TAG_NAMES = ("tags", "labels", "upos", "pos_tags", "ner_tags", "pos", "ner", "标签")

Block = list[tuple[int, str]]
"""A sentence's lines with their numbers."""


@dataclass(frozen=True)
class Tagged:
    """A sentence's words and a tag for each."""

    words: tuple[str, ...]
    tags: tuple[str, ...]


def read_tagged(paths: Paths, *, column: str | int | None = None) -> Reading[Tagged]:
    """Tagged sentences.

    CoNLL-U: `column` is one of upos (unless given), xpos, deprel, …; multiword tokens (1-2) and empty nodes (1.1) are
    skipped. Columns of text: a word and its tag a line, a tab or blanks between, a blank line between sentences; of
    more columns the last is the tag unless `column` has another number. JSON lines: lists of words and tags. A sentence
    with a fault is left out whole.
    """
    builder = ReadingBuilder[Tagged]()
    for path in resolve_paths(paths):
        with builder.reading(path):
            if file_format(path) in ("jsonl", "ndjson"):
                read_json_lists(path, column, builder)
                continue
            lines = read_file_lines(path)
            number, first = first_line(path, lines)
            conllu = file_format(path) == "conllu" or first.count("\t") == len(FIELDS) - 1
            make = conllu_reader(path, column) if conllu else column_reader(path, (number, first), column, builder)
            builder.each(split_blocks(lines), make)
    return builder.build()


def first_line(path: Path, lines: list[str]) -> tuple[int, str]:
    """The first line that is no comment, with its number."""
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.startswith("# "):
            return number, line
    raise_fault(path, "has comments only.", 1)


def split_blocks(lines: list[str]) -> Iterator[Block]:
    """Lines between blank lines."""
    block: Block = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            block.append((number, line))
        elif block:
            yield block
            block = []
    if block:
        yield block


def conllu_reader(path: Path, column: str | int | None) -> Callable[[Block], Tagged]:
    """What reads a sentence of CoNLL-U."""
    name = str(column or "upos").lower()
    if name not in FIELDS[2:]:
        raise BadInput(f"CoNLL-U has no column {column!r} of tags. Take one of {', '.join(FIELDS[2:])}.")
    field = FIELDS.index(name)

    def read(block: Block) -> Tagged:
        words, tags = [], []
        for number, line in block:
            if line[0] == "#":
                continue
            cells = line.split("\t")
            if is_word(path, number, cells, len(words) + 1):
                if cells[field] in ("", "_"):
                    place = sum(len(cell) + 1 for cell in cells[:field]) + 1
                    raise_fault(path, f"the word {cells[1]!r} has no {name}.", number, place)
                words.append(cells[1])
                tags.append(cells[field])
        if not words:
            raise_fault(path, "is a sentence without words.", block[0][0])
        return Tagged(tuple(words), tuple(tags))

    return read


def is_word(path: Path, number: int, cells: list[str], expected: int) -> bool:
    """Whether a line of CoNLL-U is a word, not a multiword token or an empty node; `MalformedData` if it is neither."""
    if len(cells) != len(FIELDS):
        raise_fault(path, f"has {len(cells)} columns; CoNLL-U has {len(FIELDS)}, with a tab between.", number)
    if not cells[0].isdecimal():
        if re.fullmatch(r"\d+[-.]\d+", cells[0]):
            return False
        raise_fault(path, f"the id is {cells[0]!r}; wanted a number, such as 4, 4-5 or 4.1.", number, 1)
    if int(cells[0]) != expected:
        hint = "Is a blank line missing before it?" if cells[0] == "1" else "Is a line missing or twice there?"
        raise_fault(path, f"the id is {cells[0]}; wanted {expected}. {hint}", number, 1)
    if not cells[1]:
        raise_fault(path, "the word (column 2) is empty.", number, len(cells[0]) + 2)
    return True


def column_reader(
    path: Path, first: tuple[int, str], column: str | int | None, builder: ReadingBuilder[Tagged]
) -> Callable[[Block], Tagged]:
    """What reads a sentence of words and tags in columns."""
    number, line = first
    tabs = "\t" in line
    wanted = len(cells_of(line, tabs))
    if wanted < 2:
        raise_fault(path, f"is {line!r:.60}; wanted a word and its tag, a tab or a blank between.", number, 1)
    tag = tag_column(path, column, wanted)
    builder.note(f"{path.name}: word = column 1, tag = column {tag}, {'a tab' if tabs else 'blanks'} between")

    def read(block: Block) -> Tagged:
        pairs = []
        for number, line in block:
            cells = cells_of(line, tabs)
            if len(cells) != wanted:
                raise_fault(path, f"is {line!r:.60}, {len(cells)} columns; wanted {wanted}.", number)
            if not cells[0].strip() or not cells[tag - 1].strip():
                empty = 1 if not cells[0].strip() else tag
                place = 1 + sum(len(cell) + 1 for cell in cells[: empty - 1])
                raise_fault(path, f"the {'word' if empty == 1 else 'tag'} (column {empty}) is empty.", number, place)
            pairs.append((cells[0].strip(), cells[tag - 1].strip()))
        words, tags = zip(*pairs, strict=True)
        return Tagged(words, tags)

    return read


def cells_of(line: str, tabs: bool) -> list[str]:
    return line.split("\t") if tabs else re.split("[ \t]+", line.strip(" \t"))


def tag_column(path: Path, column: str | int | None, columns: int) -> int:
    """The number of the tag's column."""
    if column is None:
        return columns
    if not str(column).isdecimal() or not 2 <= int(column) <= columns:
        raise BadInput(f"{path} has {columns} columns without names. Give column as a number from 2 to {columns}.")
    return int(column)


def read_json_lists(path: Path, column: str | int | None, builder: ReadingBuilder[Tagged]) -> None:
    """Sentences from JSON lines."""
    wanted = [ColumnSpec("words", None, WORD_NAMES), ColumnSpec("tags", column, TAG_NAMES, "column")]
    table = read_table(path, wanted)
    builder.faults.extend(table.faults)
    columns = find_columns(table, wanted, builder)
    builder.each(table.rows, lambda row: json_sentence(table, row, columns))


def json_sentence(table: Table, row: Row, columns: dict[str, str]) -> Tagged:
    words, tags = (list_in(table, row, columns[role], role) for role in ("words", "tags"))
    if len(words) != len(tags):
        table.raise_fault(
            row, columns["tags"], f"there are {len(words)} words and {len(tags)} tags; wanted a tag for each word."
        )
    return Tagged(words, tags)


def list_in(table: Table, row: Row, name: str, what: str) -> tuple[str, ...]:
    """A list of texts or numbers."""
    value = table.value(row, name)
    if not isinstance(value, list) or not value:
        table.raise_fault(row, name, f"the {what} are {value!r:.60}; wanted a list that is not empty.")
    texts = tuple(as_text(one) for one in value)
    if not all(texts):
        n = texts.index(next(one for one in texts if not one))
        table.raise_fault(row, name, f"number {n + 1} of the {what} is {value[n]!r:.60}; wanted text.")
    return tuple(one or "" for one in texts)
