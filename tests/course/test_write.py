"""The pages and notebooks of the course: the committed files are what the source writes, and their code runs."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import matplotlib.figure
import nbformat
import numpy as np
import pytest

from regard.course import list_chapters, list_steps
from regard.course.figures import arrange, draw_step
from regard.course.notebooks import write_notebook
from regard.course.source import write_assignment
from regard.course.write import picture_path, write_texts
from regard.experiments.results import LANGUAGES

FOLDER = Path(__file__).parents[2] / "docs" / "course"
COMMAND = "python -m regard.course.write docs/course"


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return write_texts()


def test_committed_files_are_what_the_source_writes(texts: dict[str, str]) -> None:
    outdated = [name for name, text in texts.items() if (FOLDER / name).read_text(encoding="utf-8") != text]
    assert not outdated, f"out of date: run {COMMAND}"


def test_folder_has_nothing_else(texts: dict[str, str]) -> None:
    files = {path.name for path in FOLDER.iterdir() if path.is_file()}
    pictures = {path.name for path in (FOLDER / "pictures").iterdir()}
    paths = [picture_path(FOLDER, step.name, language) for step in list_steps() for language in LANGUAGES]
    assert files == set(texts)
    assert pictures == {path.name for path in paths}


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("chapter", list_chapters(), ids=lambda chapter: chapter.name)
def test_notebook_is_valid_and_runs(chapter: Any, language: Any) -> None:
    """Its cells run in order in one namespace, as in Jupyter; what Regard prints is a difference below 1e-6."""
    notebook = nbformat.reads(write_notebook(chapter, language), as_version=4)
    nbformat.validate(notebook)
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), np.errstate(all="ignore"):
            if cell.id.endswith("-picture"):
                figure = eval(cell.source, names)
                assert isinstance(figure, matplotlib.figure.Figure)
                if language == "en":
                    figure.set_layout_engine("none")  # the slow part of drawing
                    figure.savefig(io.BytesIO(), dpi=30)
            else:
                exec(compile(cell.source, cell.id, "exec"), names)
        if cell.id.endswith("-regard"):
            assert float(printed.getvalue()) <= 1e-6, cell.id


def test_picture_follows_the_values() -> None:
    figures = [draw_step("soft-dictionary", query=np.array(query)) for query in ([2.0, 1.0], [-3.0, -2.0])]
    bars = [[bar.get_width() for bar in figure.subfigs[0].axes[1].patches] for figure in figures]
    assert bars[0][0] > 0.5 and bars[1][0] < 0.01
    assert [len(row) for row in arrange(list_steps()[0].pictures)] == [1]


def test_links_of_the_index_lead_to_sections() -> None:
    for suffix in ("", ".zh"):
        index = (FOLDER / f"index{suffix}.md").read_text(encoding="utf-8")
        for page, anchor in re.findall(r"\]\(([\w-]+)\.md#([\w-]+)\)", index):
            assert f"{{ #{anchor} }}" in (FOLDER / f"{page}{suffix}.md").read_text(encoding="utf-8"), anchor


def test_long_arrays_are_written_a_row_a_line() -> None:
    for value in (np.arange(60.0), np.arange(60.0).reshape(6, 10), np.arange(12.0).reshape(4, 3) > 5):
        names: dict[str, Any] = {"np": np}
        text = write_assignment("value", value)
        exec(text, names)
        assert np.array_equal(names["value"], value) and max(map(len, text.splitlines())) <= 88
    assert write_assignment("word", "猫") == 'word = "猫"'
    assert json.loads(write_assignment("x", 2.5).removeprefix("x = ")) == 2.5
