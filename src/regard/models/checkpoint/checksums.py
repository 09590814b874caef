"""Checksums of models: the SHA-256 of every file of a folder in its `regard.json`, and of a JSON file in itself.

A file that was altered, by a failing disk or a broken copy, is noticed before it is used. Folders of earlier versions
have no checksums, and open without them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import BadInput
from .files import JsonObject, read_json

WEIGHTS = "model.safetensors"
FILES, REPLACED, OWN = "files", "replaced_files", "sha256"
"""Entries of regard.json: hashes of the files, of those that they replace while they are written, and of itself."""


def hash_file(path: Path) -> str:
    """The SHA-256 of a file's contents."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_json(content: JsonObject) -> str:
    """The SHA-256 of a JSON object without its own entry `sha256`; the order of its keys does not matter."""
    plain = json.loads(json.dumps({name: value for name, value in content.items() if name != OWN}))
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def add_hash(content: JsonObject) -> JsonObject:
    """The object with its SHA-256 as the entry `sha256`.

    >>> signed = add_hash({"labels": ["a", "b"]})
    >>> hash_json(signed) == signed["sha256"]
    True
    """
    return {**content, OWN: hash_json(content)}


def check_json(content: JsonObject, path: Path) -> JsonObject:
    """The object without its entry `sha256`; `BadInput` if it has one that belongs to other contents."""
    if OWN in content and content[OWN] != hash_json(content):
        raise BadInput(
            f"{path} is damaged: its contents do not have the SHA-256 that it names. Get the file again, or train the "
            f'model again. If you changed it on purpose, remove its entry "{OWN}".'
        )
    return {name: value for name, value in content.items() if name != OWN}


@dataclass(frozen=True)
class Checksums:
    """The SHA-256 of files by name, and while files are being replaced also of those that may still be there."""

    files: dict[str, str] = field(default_factory=dict)
    replaced: dict[str, list[str]] = field(default_factory=dict)

    def entries(self) -> JsonObject:
        """The entries of regard.json."""
        return {FILES: self.files} | ({REPLACED: self.replaced} if self.replaced else {})

    def of_file(self, name: str) -> list[str]:
        """The hashes that a file may have; none for one that is not listed."""
        return [self.files[name], *self.replaced.get(name, ())] if name in self.files else []


def split_checksums(config: JsonObject, path: Path) -> tuple[JsonObject, Checksums]:
    """(the rest, the checksums) of the contents of regard.json."""
    files, replaced = config.get(FILES, {}), config.get(REPLACED, {})
    named = isinstance(files, dict) and all(is_plain_name(name) for name in files)
    hashed = named and all(isinstance(digest, str) for digest in files.values())
    if not hashed or not isinstance(replaced, dict) or not all(isinstance(x, list) for x in replaced.values()):
        raise BadInput(f'{path} has "{FILES}" that are not names of files with hashes. Get the file again.')
    rest = {name: value for name, value in config.items() if name not in (FILES, REPLACED)}
    return rest, Checksums(files, replaced)


def is_plain_name(name: str) -> bool:
    """Whether this names a file in a folder, and does not lead out of it."""
    return name not in ("", ".", "..") and not set(name) & set("/\\:\0")


def check_files(folder: Path, checksums: Checksums) -> None:
    """Raise `BadInput` that names the first file of a model's folder that is missing or altered."""
    if checksums.files and (folder / WEIGHTS).is_file() and WEIGHTS not in checksums.files:
        raise BadInput(f"{folder} has a {WEIGHTS} that its regard.json does not name. Get the whole folder again.")
    for name in checksums.files:
        if not (folder / name).is_file():
            if checksums.replaced and name not in checksums.replaced:
                continue  # a process that added it was killed before
            raise BadInput(f"{folder} lacks {name}, which its regard.json names. Get the whole folder again.")
        if hash_file(folder / name) not in checksums.of_file(name):
            raise BadInput(
                f"{folder / name} is damaged: it does not have the SHA-256 that regard.json names. Get the file again, "
                f'or train the model again. If you changed it on purpose, remove the entries "{FILES}" and "{OWN}" of '
                "regard.json."
            )


def known_hashes(folder: Path, names: Iterable[str]) -> dict[str, list[str]]:
    """The hashes that the files of a folder may have now: those of its regard.json, or else of the files themselves."""
    path, checksums = folder / "regard.json", Checksums()
    if path.is_file():
        with suppress(BadInput):  # it is replaced
            checksums = split_checksums(read_json(path), path)[1]
    present = [name for name in names if (folder / name).is_file()]
    return {name: checksums.of_file(name) or [hash_file(folder / name)] for name in present}
