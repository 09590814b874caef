"""Vectors of a file's texts, saved beside it with a hash of what they were computed from; the nearest of a query."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from ..data.arrays import read_array
from ..errors import BadInput, Missing
from ..models.checkpoint.files import replace_files, text_writer
from ..tasks.pretrained.embedder import Embedder

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class SearchResult:
    """One of the nearest inputs of a query: its row (from 0), the text or path, and the cosine."""

    row: int
    text: str
    score: float


@dataclass(frozen=True, eq=False)
class VectorIndex:
    """Texts or paths of images with their vectors `[inputs, dim]`, of length 1.

    >>> index = VectorIndex(("a", "b"), torch.eye(2))
    >>> [match.text for match in index.search(torch.tensor([0.0, 1.0]), top=1)]
    ['b']
    """

    inputs: tuple[str, ...]
    vectors: Tensor

    def search(self, query: Tensor, top: int = 10) -> list[SearchResult]:
        """The `top` inputs whose vectors are nearest to the query's `[dim]`, by their cosine."""
        cosines = self.vectors @ functional.normalize(query.float(), dim=-1)
        values, rows = cosines.topk(min(top, len(self.inputs)))
        return [
            SearchResult(row, self.inputs[row], value)
            for row, value in zip(rows.tolist(), values.tolist(), strict=True)
        ]


def index_inputs(
    embedder: Embedder, checkpoint: Path, inputs: Sequence[str | Path], cache: Path | None = None
) -> tuple[VectorIndex, bool]:
    """The index of these inputs, and whether it was read from the `cache`, a file of vectors.

    The cache is used if the file beside it has the hash of the same checkpoint and inputs; otherwise it is written.
    """
    digest = input_hash(checkpoint, inputs)
    note = None if cache is None else cache.with_name(cache.name + ".json")
    names = tuple(map(str, inputs))
    if cache is not None and note is not None and cache.is_file() and note.is_file():
        try:
            fits = json.loads(note.read_text("utf8")).get("hash") == digest
        except (ValueError, AttributeError):
            fits = False
        if fits:
            return VectorIndex(names, torch.from_numpy(read_vectors(cache))), True
    vectors = functional.normalize(embedder.embed(list(inputs)), dim=-1)
    if cache is not None and note is not None:
        write_vectors(cache, vectors)
        replace_files(cache.parent, {note.name: text_writer(json.dumps({"hash": digest, "inputs": len(names)}) + "\n")})
    return VectorIndex(names, vectors), False


def input_hash(checkpoint: Path, inputs: Sequence[str | Path]) -> str:
    """A hash of the checkpoint's files and of the inputs; of a path its size and time count too."""
    sha = hashlib.sha256()
    for file in sorted(path for path in checkpoint.rglob("*") if path.suffix in (".json", ".safetensors")):
        state = file.stat()
        sha.update(f"{file.relative_to(checkpoint)} {state.st_size} {state.st_mtime_ns}\n".encode())
    for given in inputs:
        state = given.stat() if isinstance(given, Path) and given.is_file() else None
        sha.update(json.dumps([str(given), state and [state.st_size, state.st_mtime_ns]]).encode() + b"\n")
    return sha.hexdigest()[:32]


def write_vectors(path: Path, vectors: Tensor) -> None:
    """Write `[inputs, dim]` as a NumPy file."""
    numpy = need_numpy()

    def write(file: Path) -> None:
        with file.open("wb") as stream:
            numpy.save(stream, vectors.numpy(), allow_pickle=False)

    if path.parent != Path():
        path.parent.mkdir(parents=True, exist_ok=True)
    replace_files(path.parent, {path.name: write})


def read_vectors(path: Path) -> np.ndarray:
    """The array in a NumPy file, float32 `[inputs, dim]`."""
    advice = "Delete it: it is computed again."
    array = read_array(path, advice)
    if array.ndim != 2:
        raise BadInput(f"{path} is {list(array.shape)}; wanted vectors [inputs, dim]. {advice}")
    return array.astype("float32", copy=False)


def need_numpy() -> ModuleType:
    try:
        import numpy
    except ImportError:
        raise Missing("Vectors are saved with numpy: pip install numpy.") from None
    return numpy
