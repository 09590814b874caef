"""Checkpoints of a run, written completely or not at all.

A checkpoint is a folder `step-00000200`, written under another name and renamed when every file in it is on the disk.
Its `state.json` is written last and has the size and the SHA-256 of each other file, and its own, so that a truncated
or damaged checkpoint is detected and skipped.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import warnings
from pathlib import Path
from types import ModuleType

from torch import Tensor

from ..data.json_values import JsonObject, ParsedObject
from ..errors import BadInput, Missing
from ..models.checkpoint.checksums import hash_file
from ..models.checkpoint.files import apply_umask, read_json

OWN = "own_sha256"
"""The entry of state.json with its own hash; `sha256` has those of the other files."""


class CheckpointStore:
    """The checkpoints in a folder; the newest `keep` stay."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder, self.keep = folder, keep

    def save(self, step: int, state: JsonObject, tensors: dict[str, dict[str, Tensor]]) -> Path:
        """Write a checkpoint: `state` as JSON, each of `tensors` as safetensors. Raises `BadInput` on a full disk."""
        target, partial = self.folder / f"step-{step:08d}", self.folder / f".writing-{step:08d}"
        try:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            sizes = {
                f"{name}.safetensors": write_tensors(partial / f"{name}.safetensors", x) for name, x in tensors.items()
            }
            hashes = {name: hash_file(partial / name) for name in sizes}
            content = {**state, "sizes": sizes, "sha256": hashes}
            write_text(partial / "state.json", json.dumps({**content, OWN: hash_state(content)}))
            shutil.rmtree(target, ignore_errors=True)
            os.replace(partial, target)
            sync(self.folder)
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise BadInput(
                f"The checkpoint of step {step} could not be written to {self.folder}: {error.strerror}. "
                "The previous checkpoint is intact: free some disk space and run the same command to resume from it."
            ) from error
        for old in self.folders()[: -self.keep]:
            shutil.rmtree(old, ignore_errors=True)
        return target

    def remove_partial(self) -> None:
        """Remove what a process that was killed while it wrote a checkpoint has left."""
        for partial in self.folder.glob(".writing-*"):
            shutil.rmtree(partial, ignore_errors=True)

    def folders(self) -> list[Path]:
        """The folders of checkpoints, oldest first."""
        return sorted(self.folder.glob("step-*"))

    def latest(self) -> tuple[ParsedObject, Path] | None:
        """State and folder of the newest complete checkpoint; None when there is none."""
        for folder in reversed(self.folders()):
            state = read_state(folder)
            if state is not None:
                return state, folder
            warnings.warn(f"The checkpoint {folder} is damaged and skipped.", stacklevel=2)
        return None


def read_state(folder: Path) -> ParsedObject | None:
    """The state of a checkpoint; None if a file is missing, truncated, altered or unreadable."""
    try:
        state = read_json(folder / "state.json")
        own = state.pop(OWN, None)  # checkpoints of earlier versions have no hashes
        if own is not None and own != hash_state(state):
            return None
        sizes, hashes = state["sizes"], state.get("sha256", {})
        complete = all((folder / name).stat().st_size == size for name, size in sizes.items())
        intact = complete and all(hash_file(folder / name) == value for name, value in hashes.items())
        return state if intact and all(readable(folder / name) for name in sizes) else None
    except Exception:  # whatever is wrong with it: the checkpoint before is used
        return None


def hash_state(state: JsonObject) -> str:
    """The SHA-256 of what a `state.json` holds beside it."""
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def readable(path: Path) -> bool:
    """Whether a file has a safetensors header: after a power cut it may have its size and hold zeros."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt"):
            return True
    except (SafetensorError, OSError):
        return False


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    return import_safetensors().load_file(path)


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> int:
    """Write tensors, wait until they are on the disk, and return the size of the file in bytes."""
    tensors = {name: x.detach().cpu().contiguous().clone() for name, x in tensors.items()}
    library = import_safetensors()
    from safetensors import SafetensorError

    try:
        library.save_file(tensors, path)
    except SafetensorError as error:  # raised where the disk cannot be written to
        raise OSError(errno.EIO, str(error)) from error
    apply_umask(path)
    sync(path)
    return path.stat().st_size


def write_text(path: Path, text: str) -> None:
    """Replace a file by this text atomically."""
    partial = path.with_name(f".{path.name}.writing")
    partial.write_text(text, "utf8")
    sync(partial)
    os.replace(partial, path)


def sync(path: Path) -> None:
    """Wait until a file or a folder entry is on the disk (fsync)."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def import_safetensors() -> ModuleType:
    """`safetensors.torch`; `Missing` if it is not installed."""
    try:
        import safetensors.torch
    except ImportError:
        raise Missing('Checkpoints need safetensors: pip install "regard[train]".') from None
    return safetensors.torch
