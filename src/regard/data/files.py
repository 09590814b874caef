"""Files as bytes and as text: gzip is decompressed, text must be UTF-8, lines are numbered as in an editor."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from ..errors import BadInput
from .reading import raise_fault

Paths = str | Path | Iterable[str | Path]


def resolve_paths(paths: Paths, *, folders: bool = False) -> list[Path]:
    """One path or several as a list; `BadInput` for a path that does not exist, or for a folder unless `folders`."""
    given = [Path(paths)] if isinstance(paths, str | Path) else [Path(path) for path in paths]
    if not given:
        raise BadInput("No file was given. Give one path or several.")
    for path in given:
        if not path.exists():
            raise BadInput(f"{path} is not there. Give the path of a file that exists.")
        if path.is_dir() and not folders:
            raise BadInput(f"{path} is a folder. Give the files in it.")
    return given


def file_format(path: Path) -> str:
    """The extension of a file in lower case, without `.gz`.

    >>> file_format(Path("dev.CONLLU.gz")), file_format(Path("train.en.gz")), file_format(Path("README"))
    ('conllu', 'en', '')
    """
    endings = [ending.lower() for ending in path.suffixes]
    if endings and endings[-1] == ".gz":
        endings.pop()
    return endings[-1][1:] if endings else ""


def read_bytes(path: Path) -> bytes:
    """The bytes of a file, decompressed if it is gzip; `MalformedData` if it is empty or a broken archive."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise_fault(path, f"cannot be opened: {error.strerror}.")
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise_fault(path, f"is a broken gzip file ({error}). Get the whole file again.")
    if not data:
        raise_fault(path, "the file is empty.")
    return data


def read_text(path: Path) -> str:
    """The text of a UTF-8 file with \\n as line ends; `MalformedData` with line and column for invalid bytes."""
    data = read_bytes(path)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise_encoding_fault(path, data, error.start + (len(data) - len(error.object)))
    text = text.replace("\r\n", "\n")
    text = text if "\n" in text else text.replace("\r", "\n")
    if not text.strip():
        raise_fault(path, "the file has blank lines only.", 1)
    return text


def raise_encoding_fault(path: Path, data: bytes, offset: int) -> NoReturn:
    """Raise `MalformedData` for the byte at `offset`, with the encoding that the file probably has."""
    if data[:2] == b"PK":
        raise_fault(path, "is a ZIP archive, such as an Excel workbook. Save it as CSV in UTF-8.")
    start = data.rfind(b"\n", 0, offset) + 1
    line, column = data.count(b"\n", 0, offset) + 1, len(data[start:offset].decode("utf-8", "replace")) + 1
    encoding = likely_encoding(data)
    advice = f"Save the file as UTF-8; if it is {encoding}: iconv -f {encoding} -t UTF-8 {path.name} > new"
    raise_fault(path, f"byte {offset} (0x{data[offset]:02X}) is not UTF-8. {advice}", line, column)


def likely_encoding(data: bytes) -> str:
    """UTF-16 by its byte-order mark, GB18030 if bytes beyond ASCII come in pairs, otherwise Windows-1252.

    >>> likely_encoding("很好的酒店 ok".encode("gbk")), likely_encoding("déjà vu".encode("latin-1"))
    ('GB18030', 'WINDOWS-1252')
    """
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "UTF-16"
    runs = re.findall(rb"[\x80-\xff]+", data)
    return "GB18030" if sum(map(len, runs)) >= 2 * len(runs) else "WINDOWS-1252"


def split_lines(text: str) -> list[str]:
    """The lines without their ends. Only \\n ends a line: a sentence may contain any other separator."""
    lines = text.split("\n")
    return lines[:-1] if not lines[-1] else lines


def read_file_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 file."""
    return split_lines(read_text(path))
