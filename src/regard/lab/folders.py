"""The folders that hold models and runs, found by their small files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from ..models.checkpoint.folder import CONFIGS
from .protocol import JsonObject

MAX_DEPTH = 3
"""How many folders deep models are searched for."""


def relative_name(path: Path, root: Path) -> str:
    """The path below the root; the root's own name for the root itself."""
    inside = path.relative_to(root)
    return root.name if str(inside) == "." else inside.as_posix()


def walk_folders(root: Path, depth: int, unreadable: dict[Path, OSError]) -> Iterator[Path]:
    """A folder and those inside it, sorted by name; symbolic links are not followed.

    Folders that cannot be read are left out, and put into `unreadable`.
    """
    try:
        children = sorted(os.scandir(root), key=lambda child: child.name)
    except OSError as error:
        unreadable[root] = error
        return
    yield root
    for child in children if depth else ():
        if child.is_dir(follow_symlinks=False) and not child.name.startswith((".", "__")):
            yield from walk_folders(Path(child.path), depth - 1, unreadable)


def model_folders(root: Path, unreadable: dict[Path, OSError] | None = None) -> Iterator[Path]:
    """The folders that hold a model, a run's or a checkpoint; folders inside a run are left out."""
    runs: list[Path] = []
    for path in walk_folders(root, MAX_DEPTH, {} if unreadable is None else unreadable):
        if any(run in path.parents for run in runs):
            continue
        if is_file(path / "run.json"):
            runs.append(path)
            if is_file(path / "model" / CONFIGS["regard"]):
                yield path
        elif is_file(path / CONFIGS["regard"]) or is_huggingface(path):
            yield path


def is_file(path: Path) -> bool:
    """Whether there is a file; False also where that cannot be known."""
    try:
        return path.is_file()
    except OSError:
        return False


def is_huggingface(path: Path) -> bool:
    """Whether a folder is a Hugging Face checkpoint; one with a broken configuration is refused when it is opened."""
    file = path / CONFIGS["huggingface"]
    return "model_type" in read_json_or_empty(file) or (is_file(file) and any(path.glob("*.safetensors")))


def read_json_or_empty(path: Path) -> JsonObject:
    """The file's JSON object, empty where it cannot be read, so that a listing continues."""
    try:
        content = json.loads(path.read_text("utf8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
