"""Writes the course for the documentation: `python -m regard.course.write docs/course [--without-pictures]`.

index.md  index.zh.md               the chapters and steps
networks.md  networks.zh.md         a page a chapter
networks.ipynb  networks.zh.ipynb   the same as a notebook
pictures/soft-dictionary.en.svg     the pictures of a step, drawn by matplotlib
"""

from __future__ import annotations

import sys
from pathlib import Path

from ..experiments.experiment import Language
from ..experiments.results import LANGUAGES
from .course import list_chapters, list_steps
from .notebooks import write_notebook
from .pages import write_index, write_page


def write_texts() -> dict[str, str]:
    """The content of every page and notebook by its file name."""
    texts = {}
    for language in LANGUAGES:
        suffix = "" if language == "en" else f".{language}"
        texts[f"index{suffix}.md"] = write_index(language)
        for chapter in list_chapters():
            texts[f"{chapter.name}{suffix}.md"] = write_page(chapter, language)
            texts[f"{chapter.name}{suffix}.ipynb"] = write_notebook(chapter, language)
    return texts


def picture_path(folder: Path, step: str, language: Language) -> Path:
    """The path of the picture of a step in one language."""
    return folder / "pictures" / f"{step}.{language}.svg"


def draw_pictures(folder: Path) -> None:
    """Draw the picture of every step in both languages, the same bytes each time."""
    from matplotlib import rc_context

    from .figures import draw_step

    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    for step in list_steps():
        for language in LANGUAGES:
            with rc_context({"svg.fonttype": "none", "svg.hashsalt": step.name}):
                path = picture_path(folder, step.name, language)
                draw_step(step.name, language).savefig(path, metadata={"Date": None})


def main(arguments: list[str]) -> None:
    folder = Path(next((word for word in arguments if not word.startswith("--")), "docs/course"))
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in write_texts().items():
        (folder / name).write_text(text, encoding="utf-8")
    if "--without-pictures" not in arguments:
        draw_pictures(folder)
    print(f"{folder}: {len(list_chapters())} chapters, {len(list_steps())} steps")


if __name__ == "__main__":
    main(sys.argv[1:])
