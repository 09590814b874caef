"""Folders of data files as the Hugging Face Hub and `datasets` write them, and the split that a file's path says."""

from __future__ import annotations

import re
from pathlib import Path

MARKERS = ("dataset_dict.json", "dataset_info.json", "state.json")
"""Files that `datasets.save_to_disk` puts beside its data."""
SHARD = re.compile(r"(?P<split>[A-Za-z_.]+)-\d{5}-of-\d{5}(-[0-9a-f]+)?")
COLUMNAR = ("parquet", "arrow")


def is_dataset_folder(folder: Path) -> bool:
    """Whether a folder holds a data set of Parquet or Arrow files."""
    if any((folder / marker).is_file() for marker in MARKERS):
        return True
    return any(next(folder.glob(f"{place}*.{ending}"), None) for place in ("", "data/", "*/") for ending in COLUMNAR)


def dataset_files(folder: Path) -> list[Path]:
    """The Parquet files of a folder, else its Arrow files, sorted; files of `datasets`' cache are left out."""
    for ending in COLUMNAR:
        files = [path for path in sorted(folder.rglob(f"*.{ending}")) if not path.name.startswith((".", "cache-"))]
        if files:
            return files
    return []


def split_of_file(path: Path) -> str:
    """The name of the split that the path of a data file says; '' if it says none.

    >>> split_of_file(Path("imdb/data/validation-00000-of-00002.parquet")), split_of_file(Path("reviews.parquet"))
    ('validation', '')
    """
    if (match := SHARD.fullmatch(path.stem)) and match["split"] != "data":
        return match["split"]
    saved = path.suffix == ".arrow" and (path.parent / "state.json").is_file()
    return path.parent.name if saved and (path.parent.parent / "dataset_dict.json").is_file() else ""
