"""Text: sentences with a label, with a translation, or alone."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..errors import BadInput
from .files import Paths, file_format, read_file_lines, read_text, resolve_paths, split_lines
from .reading import Fault, Reading, ReadingBuilder, raise_fault
from .tables import TABLES, ColumnSpec, Row, Table, find_columns, find_split_column, read_table, split_in_row

TEXT_NAMES = (
    *("text", "sentence", "review", "text_a", "content", "comment", "document", "question", "utterance", "tweet"),
    *("body", "message", "query", "文本", "句子", "内容", "评论", "正文", "评价"),
)
LABEL_NAMES = (
    *("label", "class", "category", "target", "sentiment", "tag", "y", "type", "intent", "emotion", "polarity"),
    *("rating", "stars", "标签", "类别", "分类", "情感"),
)
LANGUAGES = (
    *("en", "zh", "de", "fr", "es", "it", "pt", "ru", "ja", "jp", "ko", "ar", "nl", "pl", "tr", "cs", "sv", "da", "fi"),
    *("nb", "no", "hu", "ro", "bg", "el", "uk", "he", "hi", "th", "vi", "id", "fa", "eng", "cmn", "zho", "deu", "fra"),
    *("english", "chinese", "german", "french", "spanish", "japanese", "中文", "英文", "英语", "汉语"),
)
SOURCE_NAMES = ("source", "src", "原文", "源")
TARGET_NAMES = ("target", "tgt", "trg", "translation", "summary", "译文", "目标")

CHINESE = re.compile("[\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef]$")


@dataclass(frozen=True)
class LabelledText:
    """A text and its class; `part` is 'train', 'dev' or 'test' where the file says so."""

    text: str
    label: str
    part: str = ""


@dataclass(frozen=True)
class Parallel:
    """A text and what is to be made of it; `references` are all the answers that count as right, `target` the first."""

    source: str
    target: str
    references: tuple[str, ...] = ()
    part: str = ""


@dataclass(frozen=True)
class Document:
    """The whole text of a file."""

    text: str
    file: str

    @property
    def lines(self) -> list[str]:
        """The lines, blank ones too."""
        return split_lines(self.text)


def read_texts(
    paths: Paths, *, text: str | int | None = None, label: str | int | None = None, header: bool | None = None
) -> Reading[LabelledText]:
    """Labelled texts from CSV, TSV or JSON lines.

    Columns are named, numbered from 1, or guessed by their names; without names, of two columns the label is the one
    with fewer different values. TSV is split at its tabs alone; quotes are part of the text there.
    """
    builder = ReadingBuilder[LabelledText]()
    wanted = [ColumnSpec("text", text, TEXT_NAMES, "input"), ColumnSpec("label", label, LABEL_NAMES)]
    for path in resolve_paths(paths):
        with builder.reading(path):
            table = read_table(path, wanted, header)
            builder.faults.extend(table.faults)
            columns = find_columns(table, label_last(table, wanted), builder)
            part = find_split_column(table)
            builder.each(table.rows, lambda row, t=table, c=columns, p=part: make_labelled_text(t, row, c, p))
    return builder.build()


def label_last(table: Table, wanted: list[ColumnSpec]) -> list[ColumnSpec]:
    """The roles in the order of a table of two columns: the label has the fewer different values, or the shorter."""
    if len(table.names) != 2:
        return wanted
    values = [{str(table.value(row, name)) for row in table.rows} for name in table.names]
    first, second = ((len(column), sum(map(len, column))) for column in values)
    return wanted[::-1] if first < second else wanted


def make_labelled_text(table: Table, row: Row, columns: dict[str, str], part: str | None) -> LabelledText:
    text, label = (table.cell(row, columns[role], role) for role in ("text", "label"))
    return LabelledText(text, label, split_in_row(table, row, part))


def read_parallel(
    paths: Paths, *, source: str | int | None = None, target: str | int | None = None, header: bool | None = None
) -> Reading[Parallel]:
    """Pairs of texts: from a table (TSV, CSV, JSON lines), or from two text files that correspond line by line.

    Two paths that are not named as tables are the source's lines and the target's. In a table the columns are named,
    numbered from 1, called source and target, or the first two. In JSON lines a list of sentences as source is joined,
    and a list of targets holds several right answers.
    """
    found = resolve_paths(paths)
    builder = ReadingBuilder[Parallel]()
    if len(found) == 2 and not any(file_format(path) in TABLES for path in found):
        builder.files.extend(map(str, found))
        with builder.catching():
            read_two_files(found[0], found[1], builder)
        return builder.build()
    for path in found:
        with builder.reading(path):
            read_pair_table(path, source, target, header, builder)
    return builder.build()


def read_two_files(source: Path, target: Path, builder: ReadingBuilder[Parallel]) -> None:
    """Line by line; unequal numbers of lines are refused whole, since nobody knows where they part."""
    left, right = read_file_lines(source), read_file_lines(target)
    if len(left) != len(right):
        short, other = (source, target) if len(left) < len(right) else (target, source)
        few, many = sorted((len(left), len(right)))
        message = f"ends after {few:,} lines, but {other.name} has {many:,}. Line n of one must translate the other's."
        raise_fault(short, message, few + 1)
    builder.note(f"{source.name} is the source, {target.name} the target")
    blank = [n for n in range(len(left)) if not left[n].strip() and not right[n].strip()]
    if blank:
        builder.note(f"{len(blank):,} lines are blank in both files, the first {blank[0] + 1}: left out")
    skip = set(blank)
    for n, (one, other) in enumerate(zip(left, right, strict=True)):
        one, other = one.strip(), other.strip()
        if one and other:
            builder.examples.append(Parallel(one, other, (other,)))
        elif n not in skip:
            empty, full, words = (target, source, one) if one else (source, target, other)
            builder.faults.append(Fault(str(empty), n + 1, 1, f"is blank, but {full.name} says {words!r:.60} there."))


def read_pair_table(
    path: Path,
    source: str | int | None,
    target: str | int | None,
    header: bool | None,
    builder: ReadingBuilder[Parallel],
) -> None:
    """The pairs of a table."""
    names = {"source": SOURCE_NAMES + LANGUAGES, "target": TARGET_NAMES + LANGUAGES}
    asked = [ColumnSpec("source", source, names["source"]), ColumnSpec("target", target, names["target"])]
    table = read_table(path, asked, header, known=2)
    builder.faults.extend(table.faults)
    columns = find_columns(table, first_two(table, asked), builder)
    part = find_split_column(table)
    builder.each(table.rows, lambda row: make_pair(table, row, columns, part))


def first_two(table: Table, asked: list[ColumnSpec]) -> list[ColumnSpec]:
    """The first two columns in place of those that were not given and have no name to know them by."""
    known = {name.casefold(): name for name in table.names}
    choices = []
    for one, own in zip(asked, (SOURCE_NAMES, TARGET_NAMES), strict=True):
        given = one.given if one.given is not None else next((known[name] for name in own if name in known), None)
        choices.append(ColumnSpec(one.role, given, ()))
    taken = {str(one.given) for one in choices if one.given is not None}
    free = iter([name for n, name in enumerate(table.names, 1) if not {name, str(n)} & taken][:2])
    return [
        ColumnSpec(one.role, None, (name.casefold(),)) if one.given is None and (name := next(free, None)) else one
        for one in choices
    ]


def make_pair(table: Table, row: Row, columns: dict[str, str], part: str | None) -> Parallel:
    source = sentences(table, row, columns["source"], "source")
    targets = sentences(table, row, columns["target"], "target")
    return Parallel(join_sentences(source), targets[0], tuple(targets), split_in_row(table, row, part))


def sentences(table: Table, row: Row, name: str, what: str) -> list[str]:
    """The sentences in a cell, one unless it is a list."""
    value = table.value(row, name)
    if not isinstance(value, list):
        return [table.cell(row, name, what)]
    texts = [one.strip() for one in value if isinstance(one, str) and one.strip()]
    if len(texts) < len(value) or not texts:
        table.raise_fault(row, name, f"the {what} is {value!r:.60}; wanted sentences, none of them empty.")
    return texts


def join_sentences(parts: Iterable[str]) -> str:
    """Sentences in a row, with a blank between them except after a Chinese one.

    >>> join_sentences(["One.", "Two."]), join_sentences(["一。", "二。"])
    ('One. Two.', '一。二。')
    """
    text = ""
    for part in parts:
        text += part if not text or CHINESE.search(text) else f" {part}"
    return text


def read_lines(paths: Paths) -> Reading[Document]:
    """The text of each file, line ends as \\n and nothing else changed."""
    builder = ReadingBuilder[Document]()
    for path in resolve_paths(paths):
        if file_format(path) in ("npz", "csv", "jsonl"):
            raise BadInput(f"{path} is no plain text by its name. Give a text file, such as {path.stem}.txt.")
        with builder.reading(path):
            builder.examples.append(Document(read_text(path), str(path)))
    return builder.build()
