"""Tagged sentences: CoNLL-U, columns of text, or tables with lists of words and tags."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import BadInput
from .files import Paths, file_format, read_file_lines, resolve_paths
from .reading import Reading, ReadingBuilder, raise_fault
from .tables import TABLES, ColumnSpec, Row, Table, as_text, find_columns, read_table

FIELDS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
"""The ten columns of CoNLL-U."""

WORD_NAMES = ("words", "tokens", "forms", "词", "词语")
TAG_NAMES = ("tags", "labels", "upos", "pos_tags", "ner_tags", "pos", "ner", "标签")

LISTS = ("jsonl", "ndjson", "json", "parquet", "pq", "arrow", "feather", "ipc")
"""Formats of tables whose cells can be lists."""

Block = list[tuple[int, str]]
"""The lines of a sentence with their numbers."""


DOCUMENT_START = "-DOCSTART-"
"""The word of the line that begins a document, in the files of CoNLL-2003."""


@dataclass(frozen=True)
class Tagged:
    """The words of a sentence and the tag of each."""

    words: tuple[str, ...]
    tags: tuple[str, ...]


def read_tagged(paths: Paths, *, column: str | int | None = None) -> Reading[Tagged]:
    """Tagged sentences.

    CoNLL-U: `column` is upos (the default), xpos, deprel, …; multiword tokens (1-2) and empty nodes (1.1) are skipped.
    Columns of text: a word and its tag on each line, separated by a tab or spaces, and a blank line between sentences;
    the tag is the last column unless `column` is another number. Lines that begin with -DOCSTART- (CoNLL-2003) are
    skipped. JSON, Parquet, Arrow: a list of words and a list of
    tags. A sentence with a fault is skipped.
    """
    builder = ReadingBuilder[Tagged]()
    for path in resolve_paths(paths):
        with builder.reading(path):
            if file_format(path) in LISTS:
                read_json_lists(path, column, builder)
                continue
            lines = read_sentence_lines(path)
            content = (item for item in enumerate(lines, 1) if item[1].strip() and not item[1].startswith("# "))
            first = next(content, None)
            if first is None:
                raise_fault(path, "has comments only.", 1)
            conllu = file_format(path) == "conllu" or first[1].count("\t") == len(FIELDS) - 1
            make = conllu_reader(path, column) if conllu else column_reader(path, first, column, builder)
            builder.each(split_blocks(lines), make)
    return builder.build()


def read_words(path: Path, is_tag: Callable[[str], bool]) -> list[tuple[str, ...]] | None:
    """The words of each sentence of a file that has them apart; None for other files.

    Such are CoNLL-U, tables with lists of words, and columns whose last is a tag on every line.
    """
    if file_format(path) in LISTS:
        table = read_table(path, [ColumnSpec("words", None, WORD_NAMES)])
        cells = [[table.value(row, name) for row in table.rows] for name in table.names if name in WORD_NAMES]
        lists = [own for own in cells if own and all(isinstance(cell, list) for cell in own)]
        return [tuple(as_text(item) or "" for item in cell) for cell in lists[0]] if lists else None  # type: ignore[union-attr]
    if file_format(path) in TABLES and file_format(path) != "tsv":
        return None
    blocks = [
        [line for _, line in block if not line.startswith("# ")] for block in split_blocks(read_sentence_lines(path))
    ]
    rows = [[line.split("\t") if "\t" in line else line.split() for line in block] for block in blocks]
    if file_format(path) == "conllu" or (rows and all(len(cells) == len(FIELDS) for block in rows for cells in block)):
        return [tuple(cells[1] for cells in block if len(cells) > 1 and cells[0].isdecimal()) for block in rows]
    tagged = bool(rows) and all(len(cells) > 1 and is_tag(cells[-1]) for block in rows for cells in block)
    return [tuple(cells[0] for cells in block) for block in rows] if tagged else None


def read_sentence_lines(path: Path) -> list[str]:
    """The lines of a file; those that begin a document are empty."""
    return ["" if line.startswith(DOCUMENT_START) else line for line in read_file_lines(path)]


def split_blocks(lines: list[str]) -> Iterator[Block]:
    """The blocks of lines that blank lines separate."""
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
    """A function that reads a sentence of CoNLL-U."""
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
                    start = sum(len(cell) + 1 for cell in cells[:field]) + 1
                    raise_fault(path, f"the word {cells[1]!r} has no {name}.", number, start)
                words.append(cells[1])
                tags.append(cells[field])
        if not words:
            raise_fault(path, "is a sentence without words.", block[0][0])
        return Tagged(tuple(words), tuple(tags))

    return read


def is_word(path: Path, number: int, cells: list[str], expected: int) -> bool:
    """Whether a line of CoNLL-U is a word, not a multiword token or empty node; `MalformedData` for other lines."""
    if len(cells) != len(FIELDS):
        raise_fault(path, f"has {len(cells)} columns; CoNLL-U has {len(FIELDS)}, with a tab between.", number)
    if not cells[0].isdecimal():
        if re.fullmatch(r"\d+[-.]\d+", cells[0]):
            return False
        raise_fault(path, f"the id is {cells[0]!r}; wanted a number, such as 4, 4-5 or 4.1.", number, 1)
    if cells[0] != str(expected):
        hint = "Is a blank line missing before it?" if cells[0] == "1" else "Is a line missing or twice there?"
        raise_fault(path, f"the id is {cells[0]}; wanted {expected}. {hint}", number, 1)
    if not cells[1]:
        raise_fault(path, "the word (column 2) is empty.", number, len(cells[0]) + 2)
    return True


def column_reader(
    path: Path, first: tuple[int, str], column: str | int | None, builder: ReadingBuilder[Tagged]
) -> Callable[[Block], Tagged]:
    """A function that reads a sentence of words and tags in columns; `first` is the first line and its number."""
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
                start = 1 + sum(len(cell) + 1 for cell in cells[: empty - 1])
                raise_fault(path, f"the {'word' if empty == 1 else 'tag'} (column {empty}) is empty.", number, start)
            pairs.append((cells[0].strip(), cells[tag - 1].strip()))
        words, tags = zip(*pairs, strict=True)
        return Tagged(words, tags)

    return read


def cells_of(line: str, tabs: bool) -> list[str]:
    return line.split("\t") if tabs else re.split("[ \t]+", line.strip(" \t"))


def tag_column(path: Path, column: str | int | None, columns: int) -> int:
    """The number of the column of tags: `column`, by default the last."""
    if column is None:
        return columns
    if not str(column).isdecimal() or not 2 <= int(column) <= columns:
        raise BadInput(f"{path} has {columns} columns without names. Give column as a number from 2 to {columns}.")
    return int(column)


def read_json_lists(path: Path, column: str | int | None, builder: ReadingBuilder[Tagged]) -> None:
    """Sentences from a table of lists."""
    wanted = [ColumnSpec("words", None, WORD_NAMES), ColumnSpec("tags", column, TAG_NAMES, "column")]
    table = read_table(path, wanted)
    builder.faults.extend(table.faults)
    columns = find_columns(table, wanted, builder)
    builder.each(table.rows, lambda row: json_sentence(table, row, columns))


def json_sentence(table: Table, row: Row, columns: dict[str, str]) -> Tagged:
    words, tags = (read_list(table, row, columns[role], role) for role in ("words", "tags"))
    if len(words) != len(tags):
        table.raise_fault(
            row, columns["tags"], f"there are {len(words)} words and {len(tags)} tags; wanted a tag for each word."
        )
    return Tagged(words, tags)


def read_list(table: Table, row: Row, name: str, role: str) -> tuple[str, ...]:
    """The texts or numbers of a cell, as text."""
    value = table.value(row, name)
    if not isinstance(value, list) or not value:
        table.raise_fault(row, name, f"the {role} are {value!r:.60}; wanted a list that is not empty.")
    texts = tuple(as_text(item) for item in value)
    if not all(texts):
        n = texts.index(next(text for text in texts if not text))
        table.raise_fault(row, name, f"number {n + 1} of the {role} is {value[n]!r:.60}; wanted text.")
    return tuple(text or "" for text in texts)
