"""Which files belong to a set: a folder for each class, or a table that lists paths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from .reading import Fault, ReadingBuilder, raise_fault
from .tables import (
    PARTS,
    ColumnSpec,
    Row,
    Table,
    find_columns,
    find_split_column,
    parse_split_name,
    read_table,
    split_in_row,
)

PATH_NAMES = ("path", "file", "filename", "file_name", "filepath", "路径", "文件", "文件名")


class ListedFile(NamedTuple):
    """A file, what is said of it, its part, and where that is said."""

    path: Path
    text: str
    part: str
    place: tuple[str, int | None, int | None]


def class_folders(root: Path, endings: Collection[str], builder: ReadingBuilder[Any]) -> Iterator[ListedFile]:
    """The files of a folder that has a folder for each class, or train, dev and test folders that have them."""
    folders = [path for path in sorted(root.iterdir()) if path.is_dir() and not path.name.startswith(".")]
    loose = [path for path in sorted(root.iterdir()) if path.is_file() and file_extension(path) in endings]
    builder.faults.extend(
        Fault(str(path), None, None, f"lies in no class's folder under {root.name}.") for path in loose
    )
    if not folders:
        raise_fault(root, "has no folders in it; wanted one for each class, with its files inside.")
    if all(folder.name.casefold() in split_names() for folder in folders):
        for folder in folders:
            inside = [path for path in sorted(folder.iterdir()) if path.is_dir() and not path.name.startswith(".")]
            if not inside:
                raise_fault(folder, "has no folders in it; wanted one for each class, with its files inside.")
            for path in inside:
                yield from class_folder(path, parse_split_name("split", folder.name) or "", endings, builder)
        return
    for folder in folders:
        yield from class_folder(folder, "", endings, builder)


def split_names() -> set[str]:
    return {name for names in PARTS.values() for name in names}


def class_folder(
    folder: Path, part: str, endings: Collection[str], builder: ReadingBuilder[Any]
) -> Iterator[ListedFile]:
    """The files of one class, those in folders further down too."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith(".")]
    kept = [path for path in files if file_extension(path) in endings]
    if not kept:
        fault = f"the class {folder.name!r} has no files; wanted some of .{', .'.join(sorted(endings))}."
        builder.faults.append(Fault(str(folder), None, None, fault))
    for other, count in Counter(file_extension(path) for path in files if file_extension(path) not in endings).items():
        builder.note(f"{folder}: {count} files named .{other} left out")
    for path in kept:
        yield ListedFile(path, folder.name, part, (str(path), None, None))


def file_extension(path: Path) -> str:
    return path.suffix[1:].lower()


def listed_files(
    path: Path, file: ColumnSpec, text: ColumnSpec, folder: Path | None, builder: ReadingBuilder[Any]
) -> Iterator[ListedFile]:
    """The files that a table names, relative to its own folder unless another is given, with a text or label each."""
    table = read_table(path, [file, text])
    builder.faults.extend(table.faults)
    columns = find_columns(table, [file, text], builder)
    part = find_split_column(table)
    for row in table.rows:
        with builder.catching():
            yield make_listed_file(
                table, row, (columns[file.role], file.role), (columns[text.role], text.role), part, folder
            )


def make_listed_file(
    table: Table, row: Row, file: tuple[str, str], text: tuple[str, str], part: str | None, folder: Path | None
) -> ListedFile:
    name = table.cell(row, *file)
    root = folder or table.path.parent
    if not (root / name).is_file():
        table.raise_fault(row, file[0], f"the file {name!r} is not there. Paths are looked up from {root.resolve()}.")
    place = (str(table.path), row.line, table.column(row, file[0]))
    return ListedFile(root / name, table.cell(row, *text), split_in_row(table, row, part), place)
