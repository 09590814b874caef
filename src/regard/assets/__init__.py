"""Small trained models that come with the package, each the folder of a run with a README.md that says what it is.

They make the first minute real: `regard.load("digits")`, `regard predict shakespeare "ROMEO:"`.
"""

from __future__ import annotations

from pathlib import Path

from ..errors import BadInput

__all__ = ["list_assets", "resolve_folder"]

ASSETS = Path(__file__).parent


def list_assets() -> dict[str, Path]:
    """The folders of the models that come with the package, by name.

    >>> "digits" in list_assets()
    True
    """
    return {path.name: path for path in sorted(ASSETS.iterdir()) if (path / "run.json").is_file()}


def resolve_folder(name: str | Path) -> Path:
    """The folder that is meant: the one at this path or, where there is none, the shipped model of this name."""
    try:
        exists = Path(name).exists()
    except OSError as error:  # a name that is too long, a folder that may not be read
        raise BadInput(f"{str(name)[:80]!r} cannot be opened: {error.strerror}. Give the path of a folder.") from error
    return Path(name) if exists else list_assets().get(str(name), Path(name))
