"""A fingerprint of the training data: a run can be resumed only with the same data."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from ..data.files import split_sheet
from ..data.json_values import JsonValue
from ..settings import spec_of
from ..tasks.task import AnyTask


def fingerprint(task: AnyTask, examples: Sequence[object], files: dict[str, list[str]]) -> str:
    """A hash of the contents of the data files, the labels and vocabulary of the task, and the number of examples.

    Files that settings name count too. Of a folder, the names and sizes of its files count, without hidden files.
    """
    sha = hashlib.sha256()
    named = [getattr(task.settings, item.name) for item in fields(task.settings) if spec_of(item).file]
    for name in [*(name for split in sorted(files) for name in files[split]), *filter(None, named)]:
        path = split_sheet(Path(name))[0]
        for file in sorted(path.rglob("*")) if path.is_dir() else ():
            relative = file.relative_to(path)
            if file.is_file() and not is_hidden(relative):
                sha.update(f"{relative} {file.stat().st_size} ".encode())
        if path.is_file():
            sha.update(digest(path))
    vocabulary = {} if task.tokenizer is None else task.tokenizer.backend.get_vocab()
    sha.update(json.dumps([mask_floats(task.as_dict()), vocabulary, len(examples)], sort_keys=True).encode())
    return sha.hexdigest()[:16]


def is_hidden(path: Path) -> bool:
    """Whether a file is hidden, or one that operating systems add to folders.

    >>> is_hidden(Path("cats/.DS_Store")), is_hidden(Path("cats/1.png"))
    (True, False)
    """
    return path.name in ("Thumbs.db", "desktop.ini") or any(name.startswith(".") for name in path.parts)


def digest(path: Path) -> bytes:
    """The SHA-256 of the contents of a file, decompressed if it is gzip."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path) if packed else path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except (EOFError, gzip.BadGzipFile, zlib.error):  # the reader of the file has reported it
        return hashlib.sha256(path.read_bytes()).digest()


def mask_floats(data: JsonValue) -> JsonValue:
    """JSON data with None for floats, such as means, whose last digits can differ between machines.

    >>> mask_floats({"labels": ["a"], "mean": [0.5, 1.5], "size": 3})
    {'labels': ['a'], 'mean': [None, None], 'size': 3}
    """
    if isinstance(data, Mapping):
        return {str(name): mask_floats(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [mask_floats(value) for value in data]
    return None if isinstance(data, float) else data
