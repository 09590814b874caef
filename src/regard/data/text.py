"""Text: sentences with a label, with a translation, or alone."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..errors import BadInput
from .files import Paths, kind_of, lines_of, paths_of, read_lines_of, read_text
from .reading import Fault, Gathering, Reading, refuse
from .tables import TABLES, Row, Table, Wanted, find_columns, part_column, part_in, read_table

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
        return lines_of(self.text)


def read_texts(
    paths: Paths, *, text: str | int | None = None, label: str | int | None = None, header: bool | None = None
) -> Reading[LabelledText]:
    """Labelled texts from CSV, TSV or JSON lines.

    Columns are named, numbered from 1, or guessed by their names; without names, of two columns the label is the one
    with fewer different values. TSV is split at its tabs alone; quotes are part of the text there.
    """
    gather = Gathering[LabelledText]()
    wanted = [Wanted("text", text, TEXT_NAMES, "input"), Wanted("label", label, LABEL_NAMES)]
    for path in paths_of(paths):
        with gather.reading(path):
            table = read_table(path, wanted, header)
            gather.faults.extend(table.faults)
            columns = find_columns(table, label_last(table, wanted), gather)
            part = part_column(table)
            gather.each(table.rows, lambda row, t=table, c=columns, p=part: labelled(t, row, c, p))
    return gather.done()


def label_last(table: Table, wanted: list[Wanted]) -> list[Wanted]:
    """The roles in the order of a table of two columns: the label has the fewer different values, or the shorter."""
    if len(table.names) != 2:
        return wanted
    values = [{str(table.value(row, name)) for row in table.rows} for name in table.names]
    first, second = ((len(column), sum(map(len, column))) for column in values)
    return wanted[::-1] if first < second else wanted


def labelled(table: Table, row: Row, columns: dict[str, str], part: str | None) -> LabelledText:
    text, label = (table.cell(row, columns[role], role) for role in ("text", "label"))
    return LabelledText(text, label, part_in(table, row, part))


def read_parallel(
    paths: Paths, *, source: str | int | None = None, target: str | int | None = None, header: bool | None = None
) -> Reading[Parallel]:
    """Pairs of texts: from a table (TSV, CSV, JSON lines), or from two text files that correspond line by line.

    Two paths that are not named as tables are the source's lines and the target's. In a table the columns are named,
    numbered from 1, called source and target, or the first two. In JSON lines a list of sentences as source is joined,
    and a list of targets holds several right answers.
    """
    found = paths_of(paths)
    gather = Gathering[Parallel]()
    if len(found) == 2 and not any(kind_of(path) in TABLES for path in found):
        gather.files.extend(map(str, found))
        with gather.catching():
            two_files(found[0], found[1], gather)
        return gather.done()
    for path in found:
        with gather.reading(path):
            pair_table(path, source, target, header, gather)
    return gather.done()


def two_files(source: Path, target: Path, gather: Gathering[Parallel]) -> None:
    """Line by line; unequal numbers of lines are refused whole, since nobody knows where they part."""
    left, right = read_lines_of(source), read_lines_of(target)
    if len(left) != len(right):
        short, other = (source, target) if len(left) < len(right) else (target, source)
        few, many = sorted((len(left), len(right)))
        message = f"ends after {few:,} lines, but {other.name} has {many:,}. Line n of one must translate the other's."
        refuse(short, message, few + 1)
    gather.note(f"{source.name} is the source, {target.name} the target")
    blank = [n for n in range(len(left)) if not left[n].strip() and not right[n].strip()]
    if blank:
        gather.note(f"{len(blank):,} lines are blank in both files, the first {blank[0] + 1}: left out")
    skip = set(blank)
    for n, (one, other) in enumerate(zip(left, right, strict=True)):
        one, other = one.strip(), other.strip()
        if one and other:
            gather.examples.append(Parallel(one, other, (other,)))
        elif n not in skip:
            empty, full, words = (target, source, one) if one else (source, target, other)
            gather.faults.append(Fault(str(empty), n + 1, 1, f"is blank, but {full.name} says {words!r:.60} there."))


def pair_table(
    path: Path, source: str | int | None, target: str | int | None, header: bool | None, gather: Gathering[Parallel]
) -> None:
    """The pairs of a table."""
    names = {"source": SOURCE_NAMES + LANGUAGES, "target": TARGET_NAMES + LANGUAGES}
    asked = [Wanted("source", source, names["source"]), Wanted("target", target, names["target"])]
    table = read_table(path, asked, header, known=2)
    gather.faults.extend(table.faults)
    columns = find_columns(table, first_two(table, asked), gather)
    part = part_column(table)
    gather.each(table.rows, lambda row: pair(table, row, columns, part))


def first_two(table: Table, asked: list[Wanted]) -> list[Wanted]:
    """The first two columns in place of those that were not given and have no name to know them by."""
    known = {name.casefold(): name for name in table.names}
    choices = []
    for one, own in zip(asked, (SOURCE_NAMES, TARGET_NAMES), strict=True):
        given = one.given if one.given is not None else next((known[name] for name in own if name in known), None)
        choices.append(Wanted(one.role, given, ()))
    taken = {str(one.given) for one in choices if one.given is not None}
    free = iter([name for n, name in enumerate(table.names, 1) if not {name, str(n)} & taken][:2])
    return [
        Wanted(one.role, None, (name.casefold(),)) if one.given is None and (name := next(free, None)) else one
        for one in choices
    ]


def pair(table: Table, row: Row, columns: dict[str, str], part: str | None) -> Parallel:
    source = sentences(table, row, columns["source"], "source")
    targets = sentences(table, row, columns["target"], "target")
    return Parallel(joined(source), targets[0], tuple(targets), part_in(table, row, part))


def sentences(table: Table, row: Row, name: str, what: str) -> list[str]:
    """The sentences in a cell, one unless it is a list."""
    value = table.value(row, name)
    if not isinstance(value, list):
        return [table.cell(row, name, what)]
    texts = [one.strip() for one in value if isinstance(one, str) and one.strip()]
    if len(texts) < len(value) or not texts:
        table.refuse(row, name, f"the {what} is {value!r:.60}; wanted sentences, none of them empty.")
    return texts


def joined(parts: Iterable[str]) -> str:
    """Sentences in a row, with a blank between them except after a Chinese one.

    >>> joined(["One.", "Two."]), joined(["一。", "二。"])
    ('One. Two.', '一。二。')
    """
    text = ""
    for part in parts:
        text += part if not text or CHINESE.search(text) else f" {part}"
    return text


def read_lines(paths: Paths) -> Reading[Document]:
    """The text of each file, line ends as \\n and nothing else changed."""
    gather = Gathering[Document]()
    for path in paths_of(paths):
        if kind_of(path) in ("npz", "csv", "jsonl"):
            raise BadInput(f"{path} is no plain text by its name. Give a text file, such as {path.stem}.txt.")
        with gather.reading(path):
            gather.examples.append(Document(read_text(path), str(path)))
    return gather.done()
