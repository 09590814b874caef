"""Which files belong to a set: a folder for each class, or a table that lists paths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from .reading import Fault, Gathering, refuse
from .tables import PARTS, Row, Table, Wanted, find_columns, part_column, part_in, part_named, read_table

PATH_NAMES = ("path", "file", "filename", "file_name", "filepath", "路径", "文件", "文件名")


class Listed(NamedTuple):
    """A file, what is said of it, its part, and where that is said."""

    path: Path
    text: str
    part: str
    place: tuple[str, int | None, int | None]


def class_folders(root: Path, endings: Collection[str], gather: Gathering[Any]) -> Iterator[Listed]:
    """The files of a folder that has a folder for each class, or train, dev and test folders that have them."""
    folders = [path for path in sorted(root.iterdir()) if path.is_dir() and not path.name.startswith(".")]
    loose = [path for path in sorted(root.iterdir()) if path.is_file() and ending(path) in endings]
    gather.faults.extend(
        Fault(str(path), None, None, f"lies in no class's folder under {root.name}.") for path in loose
    )
    if not folders:
        refuse(root, "has no folders in it; wanted one for each class, with its files inside.")
    if all(folder.name.casefold() in names_of_parts() for folder in folders):
        for folder in folders:
            inside = [path for path in sorted(folder.iterdir()) if path.is_dir() and not path.name.startswith(".")]
            if not inside:
                refuse(folder, "has no folders in it; wanted one for each class, with its files inside.")
            for path in inside:
                yield from class_folder(path, part_named("split", folder.name) or "", endings, gather)
        return
    for folder in folders:
        yield from class_folder(folder, "", endings, gather)


def names_of_parts() -> set[str]:
    return {name for names in PARTS.values() for name in names}


def class_folder(folder: Path, part: str, endings: Collection[str], gather: Gathering[Any]) -> Iterator[Listed]:
    """The files of one class, those in folders further down too."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith(".")]
    kept = [path for path in files if ending(path) in endings]
    if not kept:
        fault = f"the class {folder.name!r} has no files; wanted some of .{', .'.join(sorted(endings))}."
        gather.faults.append(Fault(str(folder), None, None, fault))
    for other, count in Counter(ending(path) for path in files if ending(path) not in endings).items():
        gather.note(f"{folder}: {count} files named .{other} left out")
    for path in kept:
        yield Listed(path, folder.name, part, (str(path), None, None))


def ending(path: Path) -> str:
    return path.suffix[1:].lower()


def listed_files(
    path: Path, file: Wanted, text: Wanted, folder: Path | None, gather: Gathering[Any]
) -> Iterator[Listed]:
    """The files that a table names, relative to its own folder unless another is given, with a text or label each."""
    table = read_table(path, [file, text])
    gather.faults.extend(table.faults)
    columns = find_columns(table, [file, text], gather)
    part = part_column(table)
    for row in table.rows:
        with gather.catching():
            yield listed(table, row, (columns[file.role], file.role), (columns[text.role], text.role), part, folder)


def listed(
    table: Table, row: Row, file: tuple[str, str], text: tuple[str, str], part: str | None, folder: Path | None
) -> Listed:
    name = table.cell(row, *file)
    root = folder or table.path.parent
    if not (root / name).is_file():
        table.refuse(row, file[0], f"the file {name!r} is not there. Paths are looked up from {root.resolve()}.")
    place = (str(table.path), row.line, table.column(row, file[0]))
    return Listed(root / name, table.cell(row, *text), part_in(table, row, part), place)
