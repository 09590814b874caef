"""Texts: with a label, with a target text, or alone."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import BadInput
from .files import Paths, file_format, read_file_lines, read_text, resolve_paths, split_lines
from .reading import Fault, Reading, ReadingBuilder, raise_fault
from .tables import (
    TABLES,
    ColumnSpec,
    Row,
    Table,
    column_label_type,
    find_columns,
    find_split_column,
    label_text,
    note_empty_labels,
    read_table,
    split_in_row,
    with_label_sets,
)
from .tables.label_types import LabelType

TEXT_NAMES = (
    *("text", "sentence", "review", "text_a", "content", "comment", "document", "question", "utterance", "tweet"),
    *("body", "message", "query", "文本", "句子", "内容", "评论", "正文", "评价"),
)
LABEL_NAMES = (
    *("label", "class", "category", "target", "sentiment", "tag", "y", "type", "intent", "emotion", "polarity"),
    *("rating", "stars", "score", "gold_label", "标签", "类别", "分类", "情感", "评分", "分数"),
)
LANGUAGES = (
    *("en", "zh", "de", "fr", "es", "it", "pt", "ru", "ja", "jp", "ko", "ar", "nl", "pl", "tr", "cs", "sv", "da", "fi"),
    *("nb", "no", "hu", "ro", "bg", "el", "uk", "he", "hi", "th", "vi", "id", "fa", "eng", "cmn", "zho", "deu", "fra"),
    *("english", "chinese", "german", "french", "spanish", "japanese", "中文", "英文", "英语", "汉语"),
)
SOURCE_NAMES = ("source", "src", "article", "document", "dialogue", "dialog", "原文", "源", "文章")
TARGET_NAMES = (
    *("target", "tgt", "trg", "translation", "summary", "highlights", "headline", "headlines", "abstract", "title"),
    *("译文", "目标", "摘要", "标题"),
)

CHINESE = re.compile("[\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef]$")


@dataclass(frozen=True)
class LabelledText:
    """A text and its class; `split` is 'train', 'dev' or 'test' if the file assigns one."""

    text: str
    label: str
    split: str = ""


@dataclass(frozen=True)
class Parallel:
    """A source text and its target, such as a translation; `references` are all correct targets, `target` the first."""

    source: str
    target: str
    references: tuple[str, ...] = ()
    split: str = ""


@dataclass(frozen=True)
class Document:
    """The whole text of a file."""

    text: str
    file: str

    @property
    def lines(self) -> list[str]:
        """The lines, including blank ones."""
        return split_lines(self.text)


def read_texts(
    paths: Paths,
    *,
    text: str | int | None = None,
    label: str | int | None = None,
    header: bool | None = None,
    target: LabelType | Literal["auto"] = "class",
) -> Reading[LabelledText]:
    """Labelled texts from a table of any format, or from fastText's lines.

    A column is given by name or by number from 1, or found by its name, or by its values: the label repeats, the text
    does not, identifiers are neither. A list of labels becomes its JSON text, and so do the names of several columns of
    0 and 1 (`label="toxic,obscene"`). An empty label is a fault
    unless labels are sets, and so is a label that is no number where `target` says that labels are numbers.
    """
    builder = ReadingBuilder[LabelledText]()
    wanted = [
        ColumnSpec("text", text, TEXT_NAMES, "input", "text"),
        ColumnSpec("label", label, LABEL_NAMES, content="label"),
    ]
    for path in resolve_paths(paths):
        with builder.reading(path):
            table = with_label_sets(read_table(path, wanted, header), wanted[1])
            builder.faults.extend(table.faults)
            columns = find_columns(table, wanted, builder)
            split_column, label_type = find_split_column(table), column_label_type(table, columns["label"], target)
            if label_type == "labels":
                note_empty_labels(table, columns["label"], builder)
            for row in table.rows:
                with builder.catching(row):
                    if label_type == "number":
                        table.number(row, columns["label"], "label")
                    content = table.cell(row, columns["text"], "text")
                    name = label_text(table, row, columns["label"], label_type == "labels")
                    builder.examples.append(LabelledText(content, name, split_in_row(table, row, split_column)))
    return builder.build()


def read_parallel(
    paths: Paths, *, source: str | int | None = None, target: str | int | None = None, header: bool | None = None
) -> Reading[Parallel]:
    """Pairs of texts: from a table of any format, or from two text files that correspond line by line.

    Two paths without a table's extension are the source lines and the target lines. In a table a column is given by
    name or by number from 1, or found by its name (source, target), or it is one of the first two columns of texts. In
    JSON lines a source that is a list of sentences is joined, and a list of targets has several references.
    """
    files = resolve_paths(paths)
    builder = ReadingBuilder[Parallel]()
    if len(files) == 2 and not any(file_format(path) in TABLES for path in files):
        builder.files.extend(map(str, files))
        with builder.catching():
            read_two_files(files[0], files[1], builder)
        return builder.build()
    for path in files:
        with builder.reading(path):
            read_pair_table(path, source, target, header, builder)
    return builder.build()


def read_two_files(source: Path, target: Path, builder: ReadingBuilder[Parallel]) -> None:
    """The pairs of two files, line by line; files with different numbers of lines are malformed."""
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
    for n, (first, second) in enumerate(zip(left, right, strict=True)):
        first, second = first.strip(), second.strip()
        if first and second:
            builder.examples.append(Parallel(first, second, (second,)))
        elif first or second:
            empty, full = (target, source) if first else (source, target)
            message = f"is blank, but {full.name} says {first or second!r:.60} there."
            builder.faults.append(Fault(str(empty), n + 1, 1, message))


def read_pair_table(
    path: Path,
    source: str | int | None,
    target: str | int | None,
    header: bool | None,
    builder: ReadingBuilder[Parallel],
) -> None:
    """The pairs of a table."""
    names = {"source": SOURCE_NAMES + LANGUAGES, "target": TARGET_NAMES + LANGUAGES}
    wanted = [ColumnSpec("source", source, names["source"]), ColumnSpec("target", target, names["target"])]
    table = read_table(path, wanted, header, min_matches=2)
    builder.faults.extend(table.faults)
    roles = [
        ColumnSpec("source", source, SOURCE_NAMES, content="text"),
        ColumnSpec("target", target, TARGET_NAMES, content="text"),
    ]
    columns = find_columns(table, roles, builder)
    split_column = find_split_column(table)
    for row in table.rows:
        with builder.catching(row):
            sources, targets = (sentences(table, row, columns[role], role) for role in ("source", "target"))
            split = split_in_row(table, row, split_column)
            builder.examples.append(Parallel(join_sentences(sources), targets[0], tuple(targets), split))


def sentences(table: Table, row: Row, name: str, role: str) -> list[str]:
    """The sentences of a cell: one, or the items of a list."""
    value = table.value(row, name)
    if not isinstance(value, list):
        return [table.cell(row, name, role)]
    texts = [item.strip() for item in value if isinstance(item, str) and item.strip()]
    if len(texts) < len(value) or not texts:
        table.raise_fault(row, name, f"the {role} is {value!r:.60}; wanted sentences, none of them empty.")
    return texts


def join_sentences(parts: Iterable[str]) -> str:
    """Join sentences with a space, except after a Chinese character.

    >>> join_sentences(["One.", "Two."]), join_sentences(["一。", "二。"])
    ('One. Two.', '一。二。')
    """
    text = ""
    for part in parts:
        text += part if not text or CHINESE.search(text) else f" {part}"
    return text


def read_lines(paths: Paths) -> Reading[Document]:
    """The text of each file, with \\n as line ends and otherwise unchanged; of a table, its column of texts.

    CSV and TSV are refused: it is more likely that they hold something else than a running text.
    """
    builder = ReadingBuilder[Document]()
    for path in resolve_paths(paths):
        if file_format(path) in ("npz", "csv", "tsv"):
            raise BadInput(f"{path} is no plain text by its name. Give a text file, such as {path.stem}.txt.")
        with builder.reading(path):
            text = text_column(path, builder) if file_format(path) in TABLES else read_text(path)
            builder.examples.append(Document(text, str(path)))
    return builder.build()


def text_column(path: Path, builder: ReadingBuilder[Document]) -> str:
    """The texts of a table, one after the other on lines of their own."""
    wanted = [ColumnSpec("text", None, TEXT_NAMES, content="text")]
    table = read_table(path, wanted)
    builder.faults.extend(table.faults)
    name = find_columns(table, wanted, builder)["text"]
    return "\n".join(str(table.value(row, name) or "") for row in table.rows) + "\n"
