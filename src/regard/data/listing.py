"""Lists of files: a folder with a folder for each class, or a table of paths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from ..limits import PATH_LENGTH
from .files import is_file
from .reading import Fault, FaultCollector, raise_fault
from .tables import (
    SPLITS,
    Cell,
    ColumnSpec,
    column_label_type,
    find_columns,
    find_split_column,
    label_text,
    note_empty_labels,
    parse_split_name,
    read_table,
    split_in_row,
    with_label_sets,
)
from .tables.label_types import LabelType

PATH_NAMES = ("path", "file", "filename", "file_name", "filepath", "路径", "文件", "文件名")


class ListedFile(NamedTuple):
    """A file with its text or label and its split; `location` is the (file, line, column) that lists it.

    `data` are the bytes of a file that stands in the table itself, as Hugging Face's data sets have it.
    """

    path: Path
    text: str
    split: str
    location: tuple[str, int | None, int | None]
    data: bytes | None = None


def embedded_file(cell: Cell) -> bytes | None:
    """The bytes of a file in a cell: `{"bytes": …, "path": …}` or bytes themselves; None for other cells."""
    value = cell.get("bytes") if isinstance(cell, Mapping) else cell
    return value if isinstance(value, bytes) else None


def file_name(cell: Cell) -> Cell:
    """The path in a cell that may be a Hugging Face data set's `{"bytes": …, "path": …}`."""
    return cell.get("path") if isinstance(cell, Mapping) else cell


def class_folders(root: Path, endings: Collection[str], builder: FaultCollector) -> Iterator[ListedFile]:
    """The files of a folder that has a folder for each class, or a train, dev and test folder with these."""
    folders = [path for path in sorted(root.iterdir()) if path.is_dir() and not path.name.startswith(".")]
    loose = [path for path in sorted(root.iterdir()) if path.is_file() and file_extension(path) in endings]
    builder.faults.extend(
        Fault(str(path), None, None, f"lies in no class's folder under {root.name}.") for path in loose
    )
    if not folders:
        raise_fault(root, "has no folders in it; wanted one for each class, with its files inside.")
    split_names = {name for names in SPLITS.values() for name in names}
    if all(folder.name.casefold() in split_names for folder in folders):
        for folder in folders:
            inside = [path for path in sorted(folder.iterdir()) if path.is_dir() and not path.name.startswith(".")]
            if not inside:
                raise_fault(folder, "has no folders in it; wanted one for each class, with its files inside.")
            for path in inside:
                yield from class_folder(path, parse_split_name("split", folder.name) or "", endings, builder)
        return
    for folder in folders:
        yield from class_folder(folder, "", endings, builder)


def class_folder(folder: Path, split: str, endings: Collection[str], builder: FaultCollector) -> Iterator[ListedFile]:
    """The files of one class, also those in its subfolders."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith(".")]
    listed = [path for path in files if file_extension(path) in endings]
    if not listed:
        fault = f"the class {folder.name!r} has no files; wanted some of .{', .'.join(sorted(endings))}."
        builder.faults.append(Fault(str(folder), None, None, fault))
    for other, count in Counter(file_extension(path) for path in files if file_extension(path) not in endings).items():
        builder.note(f"{folder}: {count} files named .{other} left out")
    for path in listed:
        yield ListedFile(path, folder.name, split, (str(path), None, None))


def file_extension(path: Path) -> str:
    return path.suffix[1:].lower()


def listed_files(
    path: Path,
    file: ColumnSpec,
    text: ColumnSpec,
    folder: Path | None,
    builder: FaultCollector,
    target: LabelType | Literal["auto"] = "class",
) -> Iterator[ListedFile]:
    """The files that a table lists with a text or label; paths are relative to `folder`, by default the table's own.

    A label that is no number is a fault where `target` says that labels are numbers.
    """
    table = with_label_sets(read_table(path, [file, text]), text)
    builder.faults.extend(table.faults)
    columns = find_columns(table, [file, text], builder)
    split_column, root = find_split_column(table), folder or path.parent
    label_type = column_label_type(table, columns[text.role], target)
    if label_type == "labels":
        note_empty_labels(table, columns[text.role], builder)
    for row in table.rows:
        with builder.catching():
            data = embedded_file(table.value(row, columns[file.role]))
            given = file_name(table.value(row, columns[file.role]))
            name = given if isinstance(given, str) and (data or given.strip()) else ""
            name = name.strip() or (f"row {row.line}" if data else table.cell(row, columns[file.role], file.role))
            if message := PATH_LENGTH.excess(len(name)):
                table.raise_fault(row, columns[file.role], f"the name of a file is too long: {message}")
            if data is None and not is_file(root / name):
                message = f"the file {name!r:.200} is not there. Paths are looked up from {root.resolve()}."
                table.raise_fault(row, columns[file.role], message)
            location = (str(path), row.line, table.column(row, columns[file.role]))
            if label_type == "labels":
                label = label_text(table, row, columns[text.role], empty=True)
            else:
                label = table.cell(row, columns[text.role], text.role)
            if label_type == "number":
                table.number(row, columns[text.role], text.role)
            yield ListedFile(root / name, label, split_in_row(table, row, split_column), location, data)
