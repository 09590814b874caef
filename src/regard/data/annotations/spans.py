"""Texts with labelled spans, such as names: tags of words (BIO, BIOES), or JSON with the offsets of characters."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard

from ..files import Paths, file_format, resolve_paths
from ..reading import Reading, ReadingBuilder, count_noun, raise_fault
from ..tables import ColumnSpec, Row, Table, find_columns, find_split_column, read_table, split_in_row
from ..tables.table import Cell
from ..tagged import (
    FIELDS,
    LISTS,
    TAG_NAMES,
    WORD_NAMES,
    Block,
    Tagged,
    column_reader,
    conllu_reader,
    json_sentence,
    read_sentence_lines,
)
from ..tagged import split_blocks as sentence_blocks
from ..text import CHINESE, TEXT_NAMES

SPAN_NAMES = ("entities", "spans", "label", "labels", "annotations", "实体")
START_NAMES, END_NAMES = ("start", "start_offset", "begin"), ("end", "end_offset", "stop")
PARAGRAPHS = "paragraphs"
"""The column of spaCy 2's JSON."""
LABEL_KEYS = ("label", "type", "tag", "entity")
PREFIXES = {"B": "B", "I": "I", "M": "I", "E": "E", "L": "E", "S": "S", "U": "S"}
"""Prefixes of tags in the schemes BIO, BIOES, BMES and BILOU, as those of BIOES."""


@dataclass(frozen=True, order=True)
class LabelledSpan:
    """The characters from `start` to before `end` of a text, with a label."""

    start: int
    end: int
    label: str


@dataclass(frozen=True)
class SpannedText:
    """A text and its spans, which do not overlap. `words` are the (start, end) of its words, if the file has words."""

    text: str
    spans: tuple[LabelledSpan, ...]
    words: tuple[tuple[int, int], ...] | None = None
    split: str = ""


def read_spans(paths: Paths, *, column: str | None = None) -> Reading[SpannedText]:
    """Texts with spans.

    Columns of text: a word and its tag on each line, the tags in the scheme BIO, BIOES, BMES or BILOU, and a blank line
    between sentences. JSON, Parquet, Arrow: a text and a list of spans, each `[start, end, label]` or an object with
    start, end and label, as spaCy and Doccano write them; or a list of words and a list of tags. JSON may also have
    spaCy's lists `[text, {"entities": …}]`, or its paragraphs. `column` is the column of the tags or spans.
    """
    builder = ReadingBuilder[SpannedText]()
    for path in resolve_paths(paths):
        with builder.reading(path):
            if file_format(path) in LISTS:
                read_span_table(path, column, builder)
            else:
                read_tag_columns(path, column, builder)
    return builder.build()


def read_tag_columns(path: Path, column: str | None, builder: ReadingBuilder[SpannedText]) -> None:
    """Sentences of a file with a word and its tag on each line."""
    lines = read_sentence_lines(path)
    first = next((item for item in enumerate(lines, 1) if item[1].strip() and not item[1].startswith("# ")), None)
    if first is None:
        raise_fault(path, "has comments only.", 1)
    notes = ReadingBuilder[Tagged]()
    conllu = file_format(path) == "conllu" or first[1].count("\t") == len(FIELDS) - 1
    make = conllu_reader(path, column) if conllu else column_reader(path, first, column, notes)
    builder.notes.extend(notes.notes)

    def read(block: Block) -> SpannedText:
        rows = [(number, line) for number, line in block if not (conllu and line.startswith("#"))]
        sentence = make(block)
        for (number, line), tag in zip(rows, sentence.tags, strict=False):
            if parse_tag(tag) is None:
                hint = f"Give the column of the tags: column={'misc' if conllu else 2}."
                raise_fault(path, f"{bad_tag(tag)} {hint}", number, line.rfind(tag) + 1)
        return from_tags(sentence.words, sentence.tags)

    builder.each(sentence_blocks(lines), read)


def bad_tag(tag: str) -> str:
    return f"the tag is {tag!r:.40}; wanted O, or a prefix and a label, such as B-PER, I-PER, E-PER or S-PER."


def parse_tag(tag: str) -> tuple[str, str] | None:
    """(prefix of BIOES, label) of a tag; ("O", "") outside of spans, None if it is neither.

    >>> parse_tag("B-PER"), parse_tag("U-LOC"), parse_tag("O"), parse_tag("NOUN")
    (('B', 'PER'), ('S', 'LOC'), ('O', ''), None)
    """
    if tag == "O":
        return "O", ""
    prefix, dash, label = tag.partition("-")
    return (PREFIXES[prefix], label) if dash and label and prefix in PREFIXES else None


def spans_of_tags(tags: Sequence[str]) -> list[tuple[int, int, str]]:
    """(first, one after the last, label) of the spans of tags, as conlleval and seqeval read them.

    A span begins at B or S, and at another tag that does not continue the span before it: one of another label, or
    after E or S. It ends before the next beginning or O, and after E or S.

    >>> spans_of_tags(["B-PER", "I-PER", "O", "I-LOC", "B-LOC", "S-LOC"])
    [(0, 2, 'PER'), (3, 4, 'LOC'), (4, 5, 'LOC'), (5, 6, 'LOC')]
    """
    spans: list[tuple[int, int, str]] = []
    start, open_label, before = 0, "", "O"
    for n, tag in enumerate([*tags, "O"]):
        prefix, label = parse_tag(tag) or ("O", "")
        continues = before in "BI" and prefix in "IE" and label == open_label
        if not continues:
            if before != "O":
                spans.append((start, n, open_label))
            start, open_label = n, label
        before = prefix
    return spans


def from_tags(words: Sequence[str], tags: Sequence[str], split: str = "") -> SpannedText:
    """The text of words with tags: a blank between two words, except between Chinese characters.

    >>> from_tags(["Ada", "Lovelace", "wrote"], ["B-PER", "I-PER", "O"])
    SpannedText(text='Ada Lovelace wrote', spans=(LabelledSpan(start=0, end=12, label='PER'),), \
words=((0, 3), (4, 12), (13, 18)), split='')
    """
    text, places = "", []
    for word in words:
        if text and not (CHINESE.match(text[-1]) or CHINESE.match(word[0])):
            text += " "
        places.append((len(text), len(text) + len(word)))
        text += word
    spans = (LabelledSpan(places[a][0], places[b - 1][1], label) for a, b, label in spans_of_tags(tags))
    return SpannedText(text, tuple(spans), tuple(places), split)


def read_span_table(path: Path, column: str | None, builder: ReadingBuilder[SpannedText]) -> None:
    """Texts of a table with lists of spans, or sentences of a table with lists of words and tags."""
    text, spans = ColumnSpec("text", None, TEXT_NAMES), ColumnSpec("spans", column, SPAN_NAMES, "column")
    words, tags = ColumnSpec("words", None, WORD_NAMES), ColumnSpec("tags", column, TAG_NAMES, "column")
    table = read_table(path, [text, spans])
    builder.faults.extend(table.faults)
    split_column = find_split_column(table)
    if PARAGRAPHS in table.names:
        for row in table.rows:
            with builder.catching(row):
                builder.examples.extend(read_paragraphs(table, row))
        return
    if any(name.casefold() in WORD_NAMES for name in table.names):
        columns = find_columns(table, [words, tags], builder)

        def read_words(row: Row) -> SpannedText:
            sentence = json_sentence(table, row, columns)
            for tag in sentence.tags:
                if parse_tag(tag) is None:
                    table.raise_fault(row, columns["tags"], bad_tag(tag))
            return from_tags(sentence.words, sentence.tags, split_in_row(table, row, split_column))

        builder.each(table.rows, read_words)
        return
    columns = find_columns(table, [text, spans], builder)
    trimmed = 0

    def read(row: Row) -> SpannedText:
        nonlocal trimmed
        content = table.value(row, columns["text"])
        if not isinstance(content, str) or not content.strip():
            table.raise_fault(row, columns["text"], f"the text is {content!r:.60}; wanted text that is not empty.")
        given = read_row_spans(table, row, columns["spans"], content)
        stripped = [strip_blanks(content, span) for span in given]
        trimmed += sum(a != b for a, b in zip(given, stripped, strict=True))
        return SpannedText(content, tuple(stripped), None, split_in_row(table, row, split_column))

    builder.each(table.rows, read)
    if trimmed:
        builder.note(f"{path.name}: {count_noun(trimmed, 'span')} began or ended with blanks, which were left out")


def read_paragraphs(table: Table, row: Row) -> list[SpannedText]:
    """The sentences of a row of spaCy 2's JSON: paragraphs of sentences of tokens with `orth` and `ner` (BILUO)."""
    try:
        value: Any = table.value(row, PARAGRAPHS)
        paragraphs = [paragraph["sentences"] for paragraph in value]
        sentences = [sentence["tokens"] for paragraph in paragraphs for sentence in paragraph]
        pairs = [[(token["orth"], token["ner"]) for token in tokens] for tokens in sentences]
    except (KeyError, TypeError) as error:
        wanted = "wanted spaCy's paragraphs, sentences and tokens, each token with orth and ner."
        table.raise_fault(row, PARAGRAPHS, f"the paragraphs lack {error}; {wanted}")
    for word, tag in (pair for sentence in pairs for pair in sentence):
        if not isinstance(word, str) or not word.strip() or not isinstance(tag, str) or parse_tag(tag) is None:
            table.raise_fault(row, PARAGRAPHS, f"the token {word!r:.40} has a wrong word or tag: {bad_tag(str(tag))}")
    return [from_tags([word for word, _ in own], [tag for _, tag in own]) for own in pairs if own]


def read_row_spans(table: Table, row: Row, name: str, text: str) -> list[LabelledSpan]:
    """The spans of a row in their order; a fault for offsets outside of the text and for spans that overlap."""
    value = table.value(row, name)
    if value is None:
        value = []
    if not isinstance(value, list):
        table.raise_fault(row, name, f"the spans are {value!r:.60}; wanted a list of [start, end, label].")
    spans = sorted(read_span(table, row, name, item, n, text) for n, item in enumerate(value, 1))
    for first, second in itertools.pairwise(spans):
        if second.start < first.end:
            both = " and ".join(f"{s.label} {text[s.start : s.end]!r:.30} ({s.start}–{s.end})" for s in (first, second))
            table.raise_fault(row, name, f"the spans {both} overlap; wanted spans that do not.")
    return spans


def read_span(table: Table, row: Row, name: str, item: Cell, number: int, text: str) -> LabelledSpan:
    """A span from `[start, end, label]` or from an object."""
    if isinstance(item, dict):
        keys = (START_NAMES, END_NAMES, LABEL_KEYS)
        item = [next((item[key] for key in names if key in item), None) for names in keys]
    if not isinstance(item, list) or len(item) < 3:
        table.raise_fault(row, name, f"span {number} is {item!r:.60}; wanted [start, end, label].")
    start, end, label = item[:3]
    if not is_offset(start) or not is_offset(end) or not isinstance(label, str) or not label:
        message = f"span {number} is {[start, end, label]!r:.60}; wanted two whole numbers and a label."
        table.raise_fault(row, name, message)
    if not 0 <= start < end <= len(text):
        message = f"span {number} ({label}) has the characters {start} to {end}; the text has {len(text)}."
        table.raise_fault(row, name, f"{message} Wanted 0 ≤ start < end ≤ {len(text)}.")
    if not text[start:end].strip():
        table.raise_fault(row, name, f"span {number} ({label}, {start} to {end}) has blanks only.")
    return LabelledSpan(start, end, label)


def is_offset(value: Cell) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def strip_blanks(text: str, span: LabelledSpan) -> LabelledSpan:
    """The span without blanks at its ends."""
    inside = text[span.start : span.end]
    start = span.start + len(inside) - len(inside.lstrip())
    return replace(span, start=start, end=start + len(inside.strip()))
