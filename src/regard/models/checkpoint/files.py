"""Files of a checkpoint folder: JSON that is read without trust, and writing that never leaves half a file."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from ...errors import BadInput, explain_damage
from ...limits import DIGITS, JSON_BYTES, JSON_DEPTH, JSON_VALUES, json_depth

POINTER = b"version https://git-lfs"

STAGING = ".writing-"
"""Begins the name of a folder in which files are written before they replace others."""
UNFINISHED = (".*.writing", ".*.tmp", ".tmp??????")
"""Names of files that are not yet complete: of texts, of earlier versions, and of safetensors."""

JsonObject = dict[str, Any]
"""The contents of config.json and similar files."""
FileWriters = Mapping[str, Callable[[Path], object]]
"""Functions that write a file, by the file's name."""


def read_json(path: Path) -> JsonObject:
    """The JSON object in a file; `BadInput` names the file, the line and the column where it is none."""
    content = read_any_json(path)
    if not isinstance(content, dict):
        raise BadInput(f"{path} holds a JSON {type(content).__name__}, wanted an object {{…}}. Fetch it again.")
    return content


def read_any_json(path: Path) -> Any:
    """The JSON value in a file, within the limits."""
    refuse_pointer(path)
    with explain_damage(path):
        if message := JSON_BYTES.excess(path.stat().st_size):
            raise BadInput(f"{path}: {message}")
        return parse_json(path.read_bytes(), path)


def parse_json(text: bytes, path: Path) -> Any:
    """The value of a JSON text; `BadInput` where it is none, or has too many values, levels or digits."""
    values = text.count(b",") + text.count(b"[") + text.count(b"{")
    opened = text.count(b"[") + text.count(b"{")
    if message := JSON_VALUES.excess(values):
        raise BadInput(f"{path}: {message}")
    if digits := re.search(rb"[0-9]{%d}" % (DIGITS.value + 1), text):
        raise BadInput(f"{path}: at byte {digits.start()} {DIGITS.excess(len(digits[0]))}")
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise BadInput(f"{path} is not JSON: {error.msg} at {where}. Repair it or fetch it again.") from error
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path} is not JSON: {error}. Fetch it again.") from error
    if opened > JSON_DEPTH.value and (message := JSON_DEPTH.excess(json_depth(content))):
        raise BadInput(f"{path}: {message}")
    return content


def refuse_pointer(path: Path) -> None:
    with explain_damage(path), path.open("rb") as file:
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


def replace_files(path: Path, writers: FileWriters) -> None:
    """Let each writer fill a file beside the folder's own, flush them all, then give them their names in order."""
    with stage_files(path, writers) as staging:
        publish_files(staging, path, writers)


@contextmanager
def stage_files(path: Path, writers: FileWriters) -> Iterator[Path]:
    """A folder in `path` with a file by each writer, on the disk; it is removed at the end.

    What a process that was killed has left of it is removed by `remove_unfinished`.
    """
    staging = path / f"{STAGING}{uuid4().hex}"
    staging.mkdir(parents=True)
    try:
        for name, write in writers.items():
            write(staging / name)
            apply_umask(staging / name)
            flush(staging / name)
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def publish_files(staging: Path, path: Path, names: Iterable[str]) -> None:
    """Rename files of a staging folder into `path`, each at once, in this order."""
    for name in names:
        (staging / name).replace(path / name)
    flush(path)


def remove_unfinished(path: Path) -> None:
    """Remove what processes that were killed while they wrote into a folder have left there."""
    for staging in path.glob(f"{STAGING}*"):
        shutil.rmtree(staging, ignore_errors=True)
    for pattern in UNFINISHED:
        for file in path.glob(pattern):
            file.unlink(missing_ok=True)


def apply_umask(file: Path) -> None:
    """Give a file the mode that new files have; safetensors writes files that only their owner can read."""
    umask = os.umask(0o077)
    os.umask(umask)
    file.chmod(0o666 & ~umask)


def flush(path: Path) -> None:
    if path.is_dir() and os.name == "nt":  # Windows opens no folders, and renames durably without it
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
