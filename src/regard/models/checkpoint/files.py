"""Files of a checkpoint folder: JSON that is read without trust, and writing that never leaves half a file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

from ...errors import BadInput

POINTER = b"version https://git-lfs"

JsonObject = dict[str, Any]
"""The contents of config.json and similar files."""


def read_json(path: Path) -> JsonObject:
    """The JSON object in a file; `BadInput` names the file, the line and the column where it is none."""
    refuse_pointer(path)
    try:
        content = json.loads(path.read_bytes())
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise BadInput(f"{path} is not JSON: {error.msg} at {where}. Repair it or fetch it again.") from error
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path} is not JSON: {error}. Fetch it again.") from error
    if not isinstance(content, dict):
        raise BadInput(f"{path} holds a JSON {type(content).__name__}, wanted an object {{…}}. Fetch it again.")
    return content


def refuse_pointer(path: Path) -> None:
    with path.open("rb") as file:
        if file.read(len(POINTER)) != POINTER:
            return
    raise BadInput(
        f"{path} is a Git LFS pointer, not the file itself: it was cloned without Git LFS. "
        "Run `git lfs install && git lfs pull` in the folder."
    )


def to_json(content: JsonObject) -> str:
    try:
        return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    except (TypeError, ValueError) as error:
        raise BadInput(f"The configuration cannot be written as JSON: {error}. Use numbers, texts, lists.") from error


def text_writer(text: str) -> Callable[[Path], object]:
    return lambda file: file.write_text(text, encoding="utf-8")


def replace_files(path: Path, writers: dict[str, Callable[[Path], object]]) -> None:
    """Let each writer fill a temporary file in the folder, flush them all, then give them their names in order."""
    temporary = {name: path / f".{name}.{uuid4().hex}.tmp" for name in writers}
    try:
        for name, write in writers.items():
            write(temporary[name])
            flush(temporary[name])
        for name, file in temporary.items():
            file.replace(path / name)
        flush(path)
    finally:
        for file in temporary.values():
            file.unlink(missing_ok=True)


def flush(path: Path) -> None:
    if path.is_dir() and os.name == "nt":  # Windows opens no folders, and renames durably without it
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
