"""The notebooks `docs/course/*.ipynb`: the steps of a chapter as cells that run, in one language a notebook."""

from __future__ import annotations

import json

from ..experiments.experiment import Bilingual, Language
from .pages import TEXTS, bullets, chapter_title, describe_evidence, describe_findings
from .source import IMPORTS, find_printed, write_numpy, write_regard
from .step import Chapter, Step

INTRODUCTION = Bilingual(
    "Change a value and run its cell again: the numbers and the picture below follow.",
    "改动一个值，再运行它所在的单元格，下面的数字和图会随之改变。",
)
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def write_notebook(chapter: Chapter, language: Language) -> str:
    """The notebook of a chapter as JSON, version 4.5 of the format, without outputs."""
    head = f"# {chapter_title(chapter, language)}\n\n{chapter.lead(language)}\n\n{INTRODUCTION(language)}"
    cells = [markdown_cell("start", head)]
    cells.append(code_cell("imports", f"{IMPORTS}\nfrom regard.course.figures import draw_step"))
    for step in chapter.steps:
        cells += step_cells(step, language)
    notebook = {"cells": cells, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(notebook, ensure_ascii=False, indent=1) + "\n"


def step_cells(step: Step, language: Language) -> list[dict[str, object]]:
    """The cells of a step: its text, its program, its picture, and the same in Regard with the difference."""
    texts = [f"## {step.title(language)}", f"> {step.claim(language)}", bullets(describe_findings(step, language))]
    if step.evidence:
        verdicts = "\n".join(describe_evidence(evidence, language) for evidence in step.evidence)
        texts.append(f"**{TEXTS['measured'](language)}**\n\n{verdicts}")
    values = "".join(f", {control.name}={control.name}" for control in step.controls)
    cells = [
        markdown_cell(step.name, "\n\n".join(filter(None, texts))),
        code_cell(f"{step.name}-numpy", f"{write_numpy(step, language)}\n\nprint({find_printed(step)})"),
        code_cell(f"{step.name}-picture", f'draw_step("{step.name}", "{language}"{values})'),
    ]
    if step.attend is not None:
        program = f"expected = {step.answer}\n{write_regard(step)}\nprint(abs(output.numpy() - expected).max())"
        cells.append(code_cell(f"{step.name}-regard", program))
    return cells


def markdown_cell(name: str, text: str) -> dict[str, object]:
    return {"cell_type": "markdown", "id": name, "metadata": {}, "source": text.splitlines(keepends=True)}


def code_cell(name: str, code: str) -> dict[str, object]:
    source = code.splitlines(keepends=True)
    return {"cell_type": "code", "execution_count": None, "id": name, "metadata": {}, "outputs": [], "source": source}
