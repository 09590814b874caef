"""Arrays in NPZ files: found by name, checked, never unpickled."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ..errors import BadInput, Missing
from ..limits import ARCHIVE_MEMBERS, expansion_excess
from .files import read_bytes
from .reading import is_foreign, raise_fault
from .tables import SPLIT_COLUMNS, as_text, parse_split_name

if TYPE_CHECKING:
    import numpy as np


def check_members(path: Path, source: Path | BytesIO) -> None:
    """`MalformedData` if the arrays of an archive are too many, or too large for it."""
    with zipfile.ZipFile(source) as archive:
        members = archive.infolist()
    packed, unpacked = sum(member.compress_size for member in members), sum(member.file_size for member in members)
    if message := ARCHIVE_MEMBERS.excess(len(members)) or expansion_excess(packed, unpacked):
        raise_fault(path, message)


class Arrays:
    """The arrays of an NPZ file. Errors are `MalformedData` with the file and the array."""

    def __init__(self, path: Path) -> None:
        try:
            import numpy
        except ImportError:
            raise Missing('Reading NPZ files needs numpy: pip install "regard[train]".') from None
        self.path = path
        try:
            source = BytesIO(read_bytes(path)) if path.suffix == ".gz" else path
            if not zipfile.is_zipfile(source):
                raise_fault(path, "is no NPZ file, or is cut. Save it with numpy.savez, or get it again.")
            check_members(path, source)
            self.file = numpy.load(source, allow_pickle=False)
        except Exception as error:
            if not is_foreign(error):
                raise
            raise_fault(path, f"is no NPZ file that can be read: {error}.")
        self.names: list[str] = list(self.file.files)
        if not self.names:
            raise_fault(path, "holds no arrays.")

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def get(self, name: str, role: str, setting: str | None = None) -> np.ndarray:
        """The array of this name. `role` and the `setting` that chooses another name are for the error message."""
        if name not in self.names:
            hint = f" Name another with {setting}=." if setting else ""
            raise_fault(self.path, f"has no array {name!r} for the {role}. There are {', '.join(self.names)}.{hint}")
        try:
            self.check_header(name)
            array = self.file[name]
        except Exception as error:  # numpy parses headers with Python's own parser, which has errors of many kinds
            if not is_foreign(error):
                raise
            if "allow_pickle" in str(error):
                self.raise_fault(name, "holds Python objects, which could run code when read. Save numbers or text.")
            self.raise_fault(name, f"is broken ({type(error).__name__}: {str(error)[:200]}). Get the file again.")
        return array

    def check_header(self, name: str) -> None:
        """`MalformedData` if an array's header counts more bytes than the archive has for it."""
        from numpy.lib import format as npy

        member = f"{name}.npy" if f"{name}.npy" in self.file.zip.namelist() else name
        with self.file.zip.open(member) as stream:
            version = npy.read_magic(stream)
            if version not in ((1, 0), (2, 0)):
                self.raise_fault(name, f"is in version {version} of the format; wanted numbers or text as numpy saves.")
            read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, _, dtype = read_header(stream)
        size, stored = math.prod(shape) * dtype.itemsize, self.file.zip.getinfo(member).file_size
        if size > stored or min(shape, default=0) < 0:
            self.raise_fault(name, f"is {list(shape)}, {size:,} bytes, and {stored:,} are there. Get the file again.")

    def find(self, candidates: Sequence[str], role: str, setting: str) -> str:
        """The first of the candidate names that the file has."""
        name = next((name for name in candidates if name in self.names), None)
        if name is None:
            names = ", ".join(self.names)
            raise_fault(self.path, f"which array is the {role}? There are {names}. Say it with {setting}=.")
        return name

    def raise_fault(self, name: str, message: str) -> NoReturn:
        """Raise `MalformedData` for an array."""
        raise_fault(self.path, f"the array {name!r} {message}")

    def texts(self, name: str, count: int, role: str, setting: str | None = None) -> list[str]:
        """An array of `count` texts or numbers, as text."""
        array = self.get(name, role, setting)
        if array.shape != (count,):
            self.raise_fault(name, f"has shape {list(array.shape)}; wanted [{count}], one {role} for each example.")
        if array.dtype.kind not in "USbuif":
            self.raise_fault(name, f"holds {array.dtype}; wanted text or numbers.")
        self.check_count(name, count)
        try:
            values = (array.astype("U") if array.dtype.kind == "S" else array).tolist()
        except (UnicodeError, SystemError) as error:  # code points that do not exist
            self.raise_fault(name, f"holds text that cannot be read ({error}). Save it again.")
        return [as_text(value) or "" for value in values]

    def labels(self, name: str, count: int) -> list[str]:
        """The class of each example. Numbers are indices into `classes`, or into the array called `name` + s."""
        texts = self.texts(name, count, "label", "label")
        candidates = ("classes", f"{name}s", "class_names", "label_names")
        table = next((candidate for candidate in candidates if candidate in self), None)
        if table is None or table == name or self.get(name, "label").dtype.kind in "US":
            return texts
        classes = self.get(table, "names of classes")
        names = self.texts(table, len(classes), "name of a class")
        return [names[int(text)] if text.isdecimal() and int(text) < len(names) else "" for text in texts]

    def splits(self, count: int) -> list[str]:
        """The split of each example; '' for all of them if the file has no such array."""
        name = next((name for name in SPLIT_COLUMNS if name in self), None)
        if name is None:
            return [""] * count
        values = self.texts(name, count, "split")
        splits = [parse_split_name(name, value) for value in values]
        if None in splits:
            n = splits.index(None)
            self.raise_fault(name, f"has {values[n]!r} at {n}; wanted train, dev or test.")
        return [split or "" for split in splits]

    def check_count(self, name: str, count: int) -> None:
        """`MalformedData` if an archive has more examples than its size can account for."""
        if message := expansion_excess(self.path.stat().st_size, 0, rows=count):
            self.raise_fault(name, f"has {count:,} examples: {message}")

    def offsets(self, length: int, role: str) -> list[int]:
        """The start of each example in the `length` concatenated rows, and the end of the last one."""
        offsets = self.get("offsets", "beginnings")
        if offsets.ndim != 1 or offsets.dtype.kind not in "ui" or len(offsets) < 2:
            self.raise_fault(
                "offsets", f"is {offsets.dtype} {list(offsets.shape)}; wanted whole numbers [examples + 1]."
            )
        self.check_count("offsets", len(offsets))
        values = offsets.astype("int64").tolist()
        if values[0] < 0 or values[-1] != length:
            self.raise_fault("offsets", f"runs from {values[0]} to {values[-1]}; the {role} has {length} rows.")
        falls = next((n for n in range(len(values) - 1) if values[n + 1] < values[n]), None)
        if falls is not None:
            before, after = values[falls], values[falls + 1]
            self.raise_fault("offsets", f"falls from {before} to {after} at {falls + 1}; it must rise.")
        return values


def map_array(path: Path, offset: int) -> np.ndarray:
    """The array whose NPY header is at `offset` of a file, mapped copy-on-write: nothing is written to the file."""
    import numpy
    from numpy.lib import format as npy

    with path.open("rb") as file:
        file.seek(offset)
        version = npy.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"version {version} of the format")
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read_header(file)
        start = file.tell()
    if dtype.hasobject:
        raise ValueError("an array of Python objects")
    order = "F" if fortran else "C"
    if 0 in shape:
        return numpy.empty(shape, dtype, order)
    return numpy.memmap(path, dtype, "c", start, shape, order)


def read_array(path: Path, advice: str) -> np.ndarray:
    """The numbers of an NPY file; `BadInput` that ends in the advice where it has none, or is damaged."""
    try:
        import numpy
    except ImportError:
        raise Missing('Reading NPY files needs numpy: pip install "regard[train]".') from None
    try:
        array = map_array(path, 0)
        if array.dtype.kind not in "buif":
            raise ValueError(f"{array.dtype} instead of numbers")
        return numpy.array(array)
    except Exception as error:  # numpy parses headers with Python's own parser, which has errors of many kinds
        reason = " ".join(str(error).split())[:200]
        raise BadInput(f"{path} holds no array that can be read ({reason}). {advice}") from None
