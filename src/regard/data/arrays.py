"""Arrays in NPZ files: looked up by name, checked, and never unpickled."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ..errors import Missing
from .files import read_bytes
from .reading import raise_fault
from .tables import PART_NAMES, as_text, parse_split_name

if TYPE_CHECKING:
    import numpy as np

BROKEN = (zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError, MemoryError, OverflowError)
"""What a damaged archive raises when it is opened or unpacked (`NotImplementedError` is a `RuntimeError`)."""


class Arrays:
    """The arrays of an NPZ file. `MalformedData` names the file and the array for whatever does not fit."""

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
            self.file = numpy.load(source, allow_pickle=False)
        except (ValueError, *BROKEN) as error:
            raise_fault(path, f"is no NPZ file that can be read: {error}.")
        self.names: list[str] = list(self.file.files)
        if not self.names:
            raise_fault(path, "holds no arrays.")

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def get(self, name: str, what: str, setting: str | None = None) -> np.ndarray:
        """An array by its name; the error says with which setting another can be named."""
        if name not in self.names:
            hint = f" Name another with {setting}=." if setting else ""
            raise_fault(self.path, f"has no array {name!r} for the {what}. There are {', '.join(self.names)}.{hint}")
        try:
            array = self.file[name]
        except ValueError as error:
            if "allow_pickle" not in str(error):
                self.raise_fault(name, f"cannot be read: {error}.")
            self.raise_fault(name, "holds Python objects, which could run code when read. Save numbers or text.")
        except BROKEN as error:
            self.raise_fault(name, f"is broken ({error}). Get the file again.")
        return array

    def find(self, known: Sequence[str], what: str, setting: str) -> str:
        """The first of the known names that is there."""
        name = next((name for name in known if name in self.names), None)
        if name is None:
            there = ", ".join(self.names)
            raise_fault(self.path, f"which array is the {what}? There are {there}. Say it with {setting}=.")
        return name

    def raise_fault(self, name: str, message: str) -> NoReturn:
        """Raise `MalformedData` for an array."""
        raise_fault(self.path, f"the array {name!r} {message}")

    def texts(self, name: str, count: int, what: str, setting: str | None = None) -> list[str]:
        """An array of `count` texts or whole numbers, as text."""
        array = self.get(name, what, setting)
        if array.shape != (count,):
            self.raise_fault(name, f"has shape {list(array.shape)}; wanted [{count}], one {what} for each example.")
        if array.dtype.kind not in "USbuif":
            self.raise_fault(name, f"holds {array.dtype}; wanted text or numbers.")
        if array.dtype.kind == "S":
            array = array.astype("U")
        return [as_text(value) or "" for value in array.tolist()]

    def labels(self, name: str, count: int) -> list[str]:
        """A class for each example: names, or numbers into the names in `classes` or in the array called `name` + s."""
        texts = self.texts(name, count, "label", "label")
        table = next((one for one in ("classes", f"{name}s", "class_names", "label_names") if one in self), None)
        if table is None or table == name or self.get(name, "label").dtype.kind in "US":
            return texts
        classes = self.get(table, "names of classes")
        names = self.texts(table, len(classes), "name of a class")
        return [names[int(one)] if one.isdecimal() and int(one) < len(names) else "" for one in texts]

    def parts(self, count: int) -> list[str]:
        """The part of each example, '' for all of them where the file has no such array."""
        name = next((name for name in PART_NAMES if name in self), None)
        if name is None:
            return [""] * count
        values = self.texts(name, count, "part")
        parts = [parse_split_name(name, value) for value in values]
        if None in parts:
            n = parts.index(None)
            self.raise_fault(name, f"has {values[n]!r} at {n}; wanted train, dev or test.")
        return [part or "" for part in parts]

    def offsets(self, length: int, what: str) -> list[int]:
        """Where each example begins in the `length` rows that they share, and the last one ends."""
        offsets = self.get("offsets", "beginnings")
        if offsets.ndim != 1 or offsets.dtype.kind not in "ui" or len(offsets) < 2:
            self.raise_fault(
                "offsets", f"is {offsets.dtype} {list(offsets.shape)}; wanted whole numbers [examples + 1]."
            )
        found = offsets.astype("int64").tolist()
        if found[0] < 0 or found[-1] != length:
            self.raise_fault("offsets", f"runs from {found[0]} to {found[-1]}; the {what} has {length} rows.")
        back = next((n for n in range(len(found) - 1) if found[n + 1] < found[n]), None)
        if back is not None:
            self.raise_fault("offsets", f"falls from {found[back]} to {found[back + 1]} at {back + 1}; it must rise.")
        return found
