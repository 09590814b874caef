"""Arrays of a large graph in memory maps: of an uncompressed NPZ file, or of a folder of NPY files.

Of a mapped array only what is indexed is read, and the system may drop it again: a process that owns a fourth of the
nodes reads a fourth of their features.
"""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import torch
from torch import Tensor

from ...errors import Missing
from ..arrays import Arrays, map_array
from ..files import file_format
from ..reading import is_foreign, raise_fault

if TYPE_CHECKING:
    import numpy as np

MAPPED_BYTES = 1 << 26
"""Size from which an array of an NPZ file is mapped instead of read."""
BLOCK_BYTES = 1 << 24
"""Bytes of a mapped array that are looked at together."""
NAMES = {"edges": "edge_index", "features": "x", "labels": "y"}
"""Other names that files of a folder may have."""
EDGE_TABLES = ("csv", "tsv", "txt", "parquet")
LOCAL_HEADER = 30


class MappedArrays(Arrays):
    """The arrays of an NPZ file; large ones that are stored uncompressed are mapped."""

    def get(self, name: str, role: str, setting: str | None = None) -> np.ndarray:
        member = f"{name}.npy"
        if name in self.names and self.path.suffix != ".gz" and member in self.file.zip.namelist():
            info = self.file.zip.getinfo(member)
            if info.compress_type == zipfile.ZIP_STORED and info.file_size >= MAPPED_BYTES:
                return self.map(name, info)
        return super().get(name, role, setting)

    def map(self, name: str, info: zipfile.ZipInfo) -> np.ndarray:
        """A stored member in place."""
        try:
            self.check_header(name)
            with self.path.open("rb") as file:
                file.seek(info.header_offset)
                header = file.read(LOCAL_HEADER)
                if header[:4] != b"PK\x03\x04":
                    self.raise_fault(name, "is not where the archive says. Get the file again.")
                file.seek(info.header_offset + LOCAL_HEADER + sum(struct.unpack("<HH", header[26:30])))
                return map_array(self.path, file.tell())
        except Exception as error:
            if not is_foreign(error):
                raise
            self.raise_fault(name, f"is broken ({type(error).__name__}: {str(error)[:200]}). Get the file again.")


class FolderArrays(Arrays):
    """The arrays of a folder: `features.npy` (or `x.npy`), `labels.npy`, `edges.npy`, `train_mask.npy`, … .

    `edge_tables` are the parts of a table of edges, `edges-00.csv` and so on, where there is no array of them.
    """

    def __init__(self, path: Path) -> None:
        try:
            import numpy  # noqa: F401
        except ImportError:
            raise Missing('Reading NPY files needs numpy: pip install "regard[train]".') from None
        self.path = path
        self.arrays = {NAMES.get(file.stem, file.stem): file for file in sorted(path.glob("*.npy"))}
        self.names = list(self.arrays)
        self.edge_tables = [
            file
            for file in sorted(path.iterdir())
            if file.name.startswith("edges") and file.is_file() and file_format(file) in EDGE_TABLES
        ]

    def get(self, name: str, role: str, setting: str | None = None) -> np.ndarray:
        if name not in self.arrays:
            hint = f" Name another with {setting}=." if setting else ""
            usual = next((other for other, known in NAMES.items() if known == name), name)
            names = ", ".join(file.name for file in self.arrays.values()) or "no NPY files"
            raise_fault(self.path, f"has no {usual}.npy for the {role}. There are {names}.{hint}")
        try:
            return map_array(self.arrays[name], 0)
        except Exception as error:
            if not is_foreign(error):
                raise
            if "object" in str(error):
                self.raise_fault(name, "holds Python objects, which could run code when read. Save numbers or text.")
            self.raise_fault(name, f"is broken ({type(error).__name__}: {str(error)[:200]}). Get the file again.")

    def check_count(self, name: str, count: int) -> None:
        """Nothing: these arrays are not packed."""

    def raise_fault(self, name: str, message: str) -> NoReturn:
        raise_fault(self.arrays.get(name, self.path), message)


def is_graph_folder(path: Path) -> bool:
    """Whether a folder has the arrays of a graph."""
    return path.is_dir() and any((path / f"{name}.npy").is_file() for name in ("features", "x", "labels", "y"))


def to_tensor(array: np.ndarray, dtype: str) -> Tensor:
    """The array as a tensor of this type; a large mapped one as it is, if torch has its type."""
    import numpy

    mapped = isinstance(array, numpy.memmap) and array.nbytes >= MAPPED_BYTES
    known = array.dtype.isnative and array.dtype.name not in ("uint16", "uint32", "uint64", "longdouble", "float128")
    return torch.from_numpy(array if mapped and known else array.astype(dtype))


def row_blocks(x: Tensor, dim: int = 0) -> Iterator[tuple[int, Tensor]]:
    """(first row, rows) of a tensor, in blocks of bounded size."""
    size = max(1, BLOCK_BYTES * x.shape[dim] // max(1, x.numel() * x.element_size()))
    for first in range(0, x.shape[dim], size):
        yield first, x.narrow(dim, first, min(size, x.shape[dim] - first))
