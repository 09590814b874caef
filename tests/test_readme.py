"""The README: its Python and its commands run as written, its output is current, it is short, both languages agree."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from regard.cli import app

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "README.zh.md")
NOT_RUN = ("pip", "make", "regard lab", "regard serve")
"""Commands that install something or do not end by themselves."""


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", read(page), re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
def test_python_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = blocks(page, "python")
    assert len(code) >= 2
    exec("\n".join(code), {})
    assert [path.name for path in tmp_path.iterdir()] == ["look.html"]


@pytest.mark.parametrize("page", PAGES)
def test_the_output_shown_is_that_of_the_example(page: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", blocks(page, "python")[0]]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout == blocks(page, "text")[0]


@pytest.mark.parametrize("page", PAGES)
def test_page_has_at_most_150_lines(page: str) -> None:
    assert len(read(page).splitlines()) <= 150


def test_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, conllu: Callable[[Path, int], None]) -> None:
    monkeypatch.chdir(tmp_path)
    for name, sentences in (("train", 40), ("dev", 8), ("test", 8)):
        conllu(tmp_path / f"{name}.conllu", sentences)
    commands = [line.split("  #")[0].strip() for block in blocks("README.md", "sh") for line in block.splitlines()]
    run = [command for command in commands if not command.startswith(NOT_RUN)]
    assert len(run) >= 5
    for command in run:
        program, *arguments = shlex.split(command)
        assert program == "regard"
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, f"{command}\n{result.output}"


@pytest.fixture
def conllu() -> Callable[[Path, int], None]:
    """Writes a small CoNLL-U file of so many sentences."""

    def write(path: Path, sentences: int) -> None:
        words = [("the", "DET"), ("cat", "NOUN"), ("sees", "VERB"), ("a", "DET"), ("dog", "NOUN")]
        rows = [[words[(i + start) % len(words)] for i in range(4)] for start in range(sentences)]
        texts = ["\n".join(f"{n}\t{w}\t{w}\t{t}" + "\t_" * 6 for n, (w, t) in enumerate(row, 1)) for row in rows]
        path.write_text("\n\n".join(texts) + "\n\n", encoding="utf-8")

    return write


def test_both_languages_have_the_same_code_and_tables() -> None:
    english, chinese = (read(page) for page in PAGES)
    calls = [re.findall(r"rg\.\w+", page) for page in (english, chinese)]
    assert calls[0] == calls[1]
    assert english.count("| --- |") == chinese.count("| --- |")
    commands = [[line.split("  #")[0] for block in blocks(page, "sh") for line in block.splitlines()] for page in PAGES]
    assert commands[0] == commands[1]
