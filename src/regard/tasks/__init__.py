"""Tasks: from files to examples, a loss, a metric and a prediction."""

from __future__ import annotations

import difflib
from importlib import import_module
from typing import TYPE_CHECKING

from ..errors import BadInput

if TYPE_CHECKING:
    from .task import AnyTask

__all__ = ["TASKS", "find_task"]

TASKS = {
    "tag": "texts.tag.Tag",
    "classify": "classify.Classify",
    "answer": "texts.answer.AnswerQuestions",
    "multi": "texts.multi.Multi",
    "pairs": "texts.pairs.TextPairs",
    "rank": "texts.rank.Rank",
    "spans": "texts.spans.SpanTagger",
    "similarity": "texts.similarity.Similarity",
    "nodes": "nodes.Nodes",
    "graphs": "graphs.Graphs",
    "table": "tables.table.Tabular",
    "translate": "translate.Translate",
    "lm": "lm.Lm",
    "match": "match.Match",
    "detect": "detect.Detect",
    "transcribe": "transcribe.Transcribe",
}
"""The module and class of each task, by name."""


def find_task(name: str) -> type[AnyTask]:
    """The task of that name, or `BadInput` naming the nearest."""
    if name not in TASKS:
        near = difflib.get_close_matches(name, TASKS, n=1)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        raise BadInput(f"There is no task {name!r}. {hint}There are {', '.join(TASKS)}.")
    module, cls = TASKS[name].rsplit(".", 1)
    return getattr(import_module(f".{module}", __package__), cls)
