"""What a run learned from, in short: it may go on with the same alone."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..settings import spec_of
from ..tasks.task import Task


def fingerprint(task: Task[Any], examples: Sequence[Any], files: dict[str, list[str]]) -> str:
    """A short text that says whether a task learned the same labels and words from as many examples of the same files.

    Files that settings name count too, and of a folder the names and sizes of its files, but for what a system hides.
    """
    found = hashlib.sha256()
    beside = [getattr(task.settings, item.name) for item in fields(task.settings) if spec_of(item).file]
    for path in (Path(one) for one in [*(one for part in sorted(files) for one in files[part]), *filter(None, beside)]):
        for one in sorted(path.rglob("*")) if path.is_dir() else ():
            if one.is_file() and not hidden(one.relative_to(path)):
                found.update(f"{one.relative_to(path)} {one.stat().st_size} ".encode())
        if path.is_file():
            found.update(digest(path))
    vocabulary = {} if task.tokenizer is None else task.tokenizer.backend.get_vocab()
    found.update(json.dumps([unrounded(task.as_dict()), vocabulary, len(examples)], sort_keys=True).encode())
    return found.hexdigest()[:16]


def hidden(path: Path) -> bool:
    """Whether a file is one that systems leave in folders of data.

    >>> hidden(Path("cats/.DS_Store")), hidden(Path("cats/1.png"))
    (True, False)
    """
    return path.name in ("Thumbs.db", "desktop.ini") or any(part.startswith(".") for part in path.parts)


def digest(path: Path) -> bytes:
    """What is in a file, in short; the same gzipped and not."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path) if packed else path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except (EOFError, gzip.BadGzipFile, zlib.error):  # its reader has told so
        return hashlib.sha256(path.read_bytes()).digest()


def unrounded(data: Any) -> Any:
    """The same without the numbers that rounding may change, such as means.

    >>> unrounded({"labels": ["a"], "mean": [0.5, 1.5], "size": 3})
    {'labels': ['a'], 'mean': [None, None], 'size': 3}
    """
    if isinstance(data, dict):
        return {str(name): unrounded(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [unrounded(value) for value in data]
    return None if isinstance(data, float) else data
