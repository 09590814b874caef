"""Questions with the passages that answer them: SQuAD's JSON, or tables of question, context and answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..files import Paths, file_format, read_text, resolve_paths
from ..json_values import ParsedObject
from ..reading import Reading, ReadingBuilder, raise_fault
from ..tables import ColumnSpec, Row, Table, find_columns, find_split_column, read_table, split_in_row
from ..tables.json_rows import json_document

QUESTION_NAMES = ("question", "query", "问题")
CONTEXT_NAMES = ("context", "passage", "paragraph", "text", "document", "上下文", "文章", "段落")
ANSWER_NAMES = ("answer", "answers", "answer_text", "答案")
START_NAMES = ("answer_start", "start")


SEARCHED = 1 << 20
"""Characters of a file in which the line of a question is looked for."""


@dataclass(frozen=True)
class QuestionAnswer:
    """A question, a passage, and the answers: (first character, text) of parts of the passage; none if it has none."""

    question: str
    context: str
    answers: tuple[tuple[int, str], ...]
    split: str = ""


def read_answers(
    paths: Paths, *, question: str | None = None, context: str | None = None, answer: str | None = None
) -> Reading[QuestionAnswer]:
    """Questions with passages and answers.

    SQuAD's JSON (`data`, `paragraphs`, `qas`), or tables with a column each. A cell of answers is a text, an object
    with `text` and `answer_start`, or a list of texts; where no offset is given, the answer is looked for in the
    passage. An empty answer means that the passage has none.
    """
    builder = ReadingBuilder[QuestionAnswer]()
    wanted = [
        ColumnSpec("question", question, QUESTION_NAMES),
        ColumnSpec("context", context, CONTEXT_NAMES),
        ColumnSpec("answer", answer, ANSWER_NAMES),
    ]
    for path in resolve_paths(paths):
        with builder.reading(path):
            text = read_text(path) if file_format(path) == "json" else ""
            document = squad_document(path, text) if text else None
            if document is not None:
                builder.each(squad_questions(path, text, document), lambda found: found.read())
            else:
                read_answer_rows(path, wanted, builder)
    return builder.build()


def squad_document(path: Path, text: str) -> ParsedObject | None:
    """The JSON of a file in SQuAD's form; None for other files."""
    document = json_document(path, text)
    articles = document.get("data") if isinstance(document, dict) else None
    nested = isinstance(articles, list) and any(isinstance(item, dict) and "paragraphs" in item for item in articles)
    return document if nested else None


@dataclass(frozen=True)
class SquadQuestion:
    """A question of SQuAD's JSON, with its passage and the place where it stands."""

    path: Path
    text: str
    question: object
    context: object
    answers: object

    @property
    def line(self) -> int | None:
        """The line where the question first stands in the file; None in large files, where looking takes long."""
        place = self.text.find(json.dumps(self.question, ensure_ascii=False)) if len(self.text) < SEARCHED else -1
        return None if place < 0 else self.text.count("\n", 0, place) + 1

    def read(self) -> QuestionAnswer:
        if not isinstance(self.question, str) or not isinstance(self.context, str):
            raise_fault(self.path, "a question or its context is missing; wanted both as text.", self.line)
        answers = []
        for item in self.answers if isinstance(self.answers, list) else []:
            text, start = (item.get("text"), item.get("answer_start")) if isinstance(item, dict) else (None, None)
            message = check_answer(self.context, text, start)
            if message or not isinstance(start, int):
                raise_fault(self.path, f"the question {self.question!r:.60}: {message}", self.line)
            answers.append((start, str(text)))
        return QuestionAnswer(self.question.strip(), self.context, tuple(dict.fromkeys(answers)))


def squad_questions(path: Path, text: str, document: ParsedObject) -> Iterator[SquadQuestion]:
    """The questions of SQuAD's JSON."""
    for article in document["data"]:
        for paragraph in objects_in(article, "paragraphs"):
            for item in objects_in(paragraph, "qas"):
                answers = [] if item.get("is_impossible") else item.get("answers")
                yield SquadQuestion(path, text, item.get("question"), paragraph.get("context"), answers)


def squad_rows(path: Path) -> list[dict[str, str]] | None:
    """The id, question and context of each question of SQuAD's JSON; None for other files."""
    text = read_text(path) if file_format(path) == "json" else ""
    document = squad_document(path, text) if text else None
    if document is None:
        return None
    return [
        {"id": str(item.get("id", "")), "question": str(item.get("question")), "context": str(paragraph.get("context"))}
        for article in document["data"]
        for paragraph in objects_in(article, "paragraphs")
        for item in objects_in(paragraph, "qas")
    ]


def objects_in(value: object, name: str) -> list[ParsedObject]:
    """The objects of a list in an object; none where it has no such list."""
    items = value.get(name) if isinstance(value, dict) else None
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def check_answer(context: str, text: object, start: object) -> str:
    """What is wrong with an answer and its offset; empty if nothing is."""
    if not isinstance(text, str) or not text:
        return f"the answer is {text!r:.60}; wanted text."
    if not isinstance(start, int) or isinstance(start, bool) or not 0 <= start <= len(context):
        return f"the answer starts at {start!r:.20}; wanted a character of the context (0 to {len(context)})."
    if context[start : start + len(text)] != text:
        there = context[start : start + len(text)]
        return f"the answer is {text!r:.40}, but the context has {there!r:.40} at {start}."
    return ""


def read_answer_rows(path: Path, wanted: list[ColumnSpec], builder: ReadingBuilder[QuestionAnswer]) -> None:
    """The questions of a table."""
    table = read_table(path, wanted, min_matches=2)
    builder.faults.extend(table.faults)
    columns = find_columns(table, wanted, builder)
    split_column = find_split_column(table)
    start = next((name for usual in START_NAMES for name in table.names if name.casefold() == usual), None)

    def make(row: Row) -> QuestionAnswer:
        question, context = (table.cell(row, columns[role], role) for role in ("question", "context"))
        answers = cell_answers(table, row, columns["answer"], start, context)
        return QuestionAnswer(question, context, answers, split_in_row(table, row, split_column))

    builder.each(table.rows, make)


def cell_answers(table: Table, row: Row, name: str, start: str | None, context: str) -> tuple[tuple[int, str], ...]:
    """The answers of a row, found in the passage where there is no offset."""
    value = table.value(row, name)
    offset = None if start is None else table.value(row, start)
    if isinstance(value, dict):
        texts, offsets = value.get("text"), value.get("answer_start")
    else:
        short = isinstance(offset, str) and offset.isdecimal() and len(offset) < 20
        texts, offsets = value, int(str(offset)) if short else offset
    texts = texts if isinstance(texts, list) else [] if texts in (None, "") else [texts]
    offsets = offsets if isinstance(offsets, list) else [offsets] * len(texts)
    answers = []
    for text, place in zip(texts, offsets, strict=False):
        text = str(text).strip()
        place = context.find(text) if place is None or place == "" else place
        if place == -1:
            table.raise_fault(row, name, f"the answer {text!r:.60} is not in the context; wanted a part of it.")
        message = check_answer(context, text, place)
        if message or not isinstance(place, int):
            table.raise_fault(row, name, message)
        answers.append((place, text))
    return tuple(dict.fromkeys(answers))
