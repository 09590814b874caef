"""Files as bytes and as text: gzip is decompressed, the encoding detected, lines are numbered as in an editor."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NoReturn

from ..errors import BadInput
from ..limits import FILE_BYTES, PATH_LENGTH, expansion_excess
from .dataset_folders import dataset_files, is_dataset_folder
from .encodings import Encoding, detect_encoding
from .reading import add_note, raise_fault

Paths = str | Path | Iterable[str | Path]
CHUNK = 1 << 20
SHEETS = (".xlsx", ".xlsm")


def resolve_paths(paths: Paths, *, folders: bool = False) -> list[Path]:
    """One path or several as a list of files; `BadInput` for a path that does not exist.

    A folder of a Hugging Face data set becomes its Parquet or Arrow files; another folder is `BadInput` unless
    `folders`. A sheet of a workbook is named after a `#`: `prices.xlsx#May`.
    """
    given = [Path(paths)] if isinstance(paths, str | Path) else [Path(path) for path in paths]
    if not given:
        raise BadInput("No file was given. Give one path or several.")
    files: list[Path] = []
    for path in given:
        if message := PATH_LENGTH.excess(len(str(path))):
            raise BadInput(f"{str(path)[:80]}… is no path that can be read: {message}")
        file = split_sheet(path)[0]
        if not is_there(file):
            raise BadInput(f"{path} is not there. Give the path of a file that exists.")
        if file.is_dir() and is_dataset_folder(file) and (inside := dataset_files(file)):
            files += inside
            continue
        if file.is_dir() and not folders:
            raise BadInput(f"{path} is a folder without Parquet or Arrow files. Give the files in it.")
        files.append(path)
    return files


def is_there(path: Path) -> bool:
    """Whether there is a file or folder; False also for a path that cannot be one."""
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that is too long, or has a zero byte
        return False


def is_file(path: Path) -> bool:
    """Whether a path is a file; False also for a path that cannot be one."""
    return is_there(path) and path.is_file()


def split_sheet(path: Path) -> tuple[Path, str | None]:
    """The file of a path, and the sheet that it names after a `#`, if it is a workbook.

    >>> split_sheet(Path("prices.xlsx#May")), split_sheet(Path("c#/prices.csv"))
    ((PosixPath('prices.xlsx'), 'May'), (PosixPath('c#/prices.csv'), None))
    """
    name, mark, sheet = path.name.partition("#")
    return (path.with_name(name), sheet) if mark and name.lower().endswith(SHEETS) else (path, None)


def file_format(path: Path) -> str:
    """The extension of a file in lower case, without `.gz`.

    >>> file_format(Path("dev.CONLLU.gz")), file_format(Path("train.en.gz")), file_format(Path("README"))
    ('conllu', 'en', '')
    """
    endings = [ending.lower() for ending in split_sheet(path)[0].suffixes]
    if endings and endings[-1] == ".gz":
        endings.pop()
    return endings[-1][1:] if endings else ""


def read_bytes(path: Path) -> bytes:
    """The bytes of a file, decompressed if it is gzip; `MalformedData` if it is empty, too large or broken."""
    try:
        with path.open("rb") as file:
            data = read_up_to(file, FILE_BYTES.value + 1)
    except OSError as error:
        raise_fault(path, f"cannot be opened: {error.strerror}.")
    if message := FILE_BYTES.excess(len(data)):
        raise_fault(path, message)
    if data[:2] == b"\x1f\x8b":
        data = unpack_gzip(path)
    if not data:
        raise_fault(path, "the file is empty.")
    return data


def read_up_to(file: BinaryIO, most: int) -> bytes:
    """At most so many bytes of an open file, without asking for more memory than the file needs."""
    chunks = [file.read(min(most, os.fstat(file.fileno()).st_size))]
    size = len(chunks[0])
    while size < most and (chunk := file.read(min(CHUNK, most - size))):  # a pipe says no size
        chunks.append(chunk)
        size += len(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def unpack_gzip(path: Path) -> bytes:
    """The contents of a gzip file; `MalformedData` as soon as they, or their rows and cells, are too many for it."""
    chunks, growth = [], TextGrowth()
    try:
        with path.open("rb") as packed, gzip.GzipFile(fileobj=packed) as file:
            while chunk := file.read(CHUNK):
                if message := growth.add(chunk, packed.tell()):
                    raise_fault(path, message)
                chunks.append(chunk)
    except (OSError, EOFError, zlib.error) as error:
        raise_fault(path, f"is a broken gzip file ({error}). Get the whole file again.")
    return b"".join(chunks)


@dataclass
class TextGrowth:
    """What was unpacked of a text so far: its bytes, its rows (JSON's objects count as rows) and its cells."""

    size: int = 0
    rows: int = 0
    cells: int = 0

    def add(self, chunk: bytes, packed: int) -> str:
        """The message for a text that has grown too much out of `packed` bytes; '' while it has not."""
        self.size += len(chunk)
        self.rows += chunk.count(b"\n") + chunk.count(b"{")
        self.cells += chunk.count(b",") + chunk.count(b"\t")
        return expansion_excess(packed, self.size, rows=self.rows, cells=self.cells)


def read_text(path: Path) -> str:
    """The text of a file with \\n as line ends; `MalformedData` with line and column for invalid bytes.

    Text is UTF-8, or in another encoding by its byte-order mark or bytes, which a note reports.
    """
    data = read_bytes(path)
    encoding = detect_encoding(data)
    if encoding is None:
        raise_encoding_fault(path, data)
    try:
        text = data.decode(encoding.codec)
    except UnicodeDecodeError as error:
        raise_encoding_fault(path, data, error.start + len(data) - len(error.object), encoding)
    if encoding.name != "UTF-8":
        add_note(f"{path.name}: read as {encoding.name}; it is not UTF-8")
        text = text.removeprefix("\ufeff")
    text = text.replace("\r\n", "\n")
    text = text if "\n" in text else text.replace("\r", "\n")
    if not text.strip():
        raise_fault(path, "the file has blank lines only.", 1)
    return text


def locate_byte(data: bytes, offset: int, codec: str) -> tuple[int, int]:
    """The line and column, from 1, of a byte."""
    before = data[:offset].decode(codec, "replace")
    return before.count("\n") + 1, len(before) - before.rfind("\n")


def raise_encoding_fault(
    path: Path, data: bytes, offset: int | None = None, encoding: Encoding | None = None
) -> NoReturn:
    """Raise `MalformedData` for a byte, by default the first that is not UTF-8."""
    if data[:2] == b"PK":
        raise_fault(path, "is a ZIP archive. If it is an Excel workbook, name it .xlsx; otherwise unpack it.")
    codec, name = encoding or Encoding("utf-8", "UTF-8")
    if offset is None:
        try:
            offset = data.decode(codec).find("\0")
        except UnicodeDecodeError as error:
            offset = error.start
    line, column = locate_byte(data, offset, codec)
    wanted = f"no {name}" if data[offset] else "no text"
    advice = f"Save the file as UTF-8, such as with iconv -f ENCODING -t UTF-8 {path.name} > new"
    raise_fault(path, f"byte {offset} (0x{data[offset]:02X}) is {wanted}. {advice}", line, column)


def split_lines(text: str) -> list[str]:
    """The lines without their ends. Only \\n ends a line: a sentence may contain any other separator."""
    lines = text.split("\n")
    return lines[:-1] if not lines[-1] else lines


def read_file_lines(path: Path) -> list[str]:
    """The lines of a text file."""
    return split_lines(read_text(path))
