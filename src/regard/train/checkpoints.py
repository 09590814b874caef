"""Checkpoints of a run: whole or not there, the latest good one found again.

A checkpoint is a folder `step-00000200`, written under another name and renamed when every file in it is on the disk.
Its `state.json` is written last and has the size of each other file, so that one that was cut off is noticed and passed
over.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import BadInput, Missing


class Store:
    """The checkpoints in a folder; the newest `keep` stay."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder, self.keep = folder, keep

    def save(self, step: int, state: dict[str, Any], tensors: dict[str, dict[str, Tensor]]) -> Path:
        """Write a checkpoint: `state` as JSON, each of `tensors` as safetensors. Raises `BadInput` on a full disk."""
        target, half = self.folder / f"step-{step:08d}", self.folder / f".writing-{step:08d}"
        try:
            shutil.rmtree(half, ignore_errors=True)
            half.mkdir(parents=True)
            sizes = {
                f"{name}.safetensors": write_tensors(half / f"{name}.safetensors", x) for name, x in tensors.items()
            }
            write_text(half / "state.json", json.dumps({**state, "sizes": sizes}))
            shutil.rmtree(target, ignore_errors=True)
            os.replace(half, target)
            sync(self.folder)
        except OSError as error:
            shutil.rmtree(half, ignore_errors=True)
            raise BadInput(
                f"The checkpoint of step {step} could not be written to {self.folder}: {error.strerror}. "
                "The one before is as it was; make room and run the same command to go on from it."
            ) from error
        for old in self.found()[: -self.keep]:
            shutil.rmtree(old, ignore_errors=True)
        return target

    def found(self) -> list[Path]:
        """The folders of checkpoints, oldest first."""
        return sorted(self.folder.glob("step-*"))

    def latest(self) -> tuple[dict[str, Any], Path] | None:
        """State and folder of the newest whole checkpoint; None when there is none."""
        for folder in reversed(self.found()):
            state = whole(folder)
            if state is not None:
                return state, folder
            warnings.warn(f"The checkpoint {folder} is damaged and passed over.", stacklevel=2)
        return None


def whole(folder: Path) -> dict[str, Any] | None:
    """The state of a checkpoint whose files are all there in full."""
    try:
        state = json.loads((folder / "state.json").read_text("utf8"))
        sizes = state["sizes"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    ready = all((folder / name).is_file() and (folder / name).stat().st_size == size for name, size in sizes.items())
    return state if ready and all(readable(folder / name) for name in sizes) else None


def readable(path: Path) -> bool:
    """Whether a file's head is that of safetensors: after a power cut it may have its size and hold zeros."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt"):
            return True
    except (SafetensorError, OSError):
        return False


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    return safetensors().load_file(path)


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> int:
    """Write tensors and wait until they are on the disk; how many bytes they take."""
    plain = {name: x.detach().cpu().contiguous().clone() for name, x in tensors.items()}
    library = safetensors()
    from safetensors import SafetensorError

    try:
        library.save_file(plain, path)
    except SafetensorError as error:  # how the library tells of a disk that it cannot write to
        raise OSError(errno.EIO, str(error)) from error
    sync(path)
    return path.stat().st_size


def write_text(path: Path, text: str) -> None:
    """Replace a file by this text, whole or not at all."""
    half = path.with_name(f".{path.name}.writing")
    half.write_text(text, "utf8")
    sync(half)
    os.replace(half, path)


def sync(path: Path) -> None:
    """Wait until a file, or a folder's list of files, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError:
        raise Missing('Checkpoints need safetensors: pip install "regard[train]".') from None
    return safetensors.torch
