"""What experiments found, as it is kept: for each a `<name>.json` and a figure in each language, in one folder.

    docs/experiments/grey-ball.json  grey-ball.en.png  grey-ball.zh.png  report.html  full/grey-ball.json

The folder `full` in it has results of the same experiments at full size, which are shown beside them.
A result is what JSON has: `name`, `claim` (the fields of `Claim`), `numbers`, `verdict` (the fields of `Verdict`), `seed`,
`size`, `versions`, `devices`, `date`, `seconds`; every text of it is a dictionary of `en` and `zh`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

from .experiment import Both, Language

LANGUAGES: tuple[Language, ...] = get_args(Language)
KINDS = {
    "holds": Both("holds", "成立"),
    "limited": Both("holds with a limit", "有条件成立"),
    "fails": Both("does not hold", "不成立"),
}
"""A verdict's kinds, and the words for them."""
SIGNS = {"holds": "✓", "limited": "◐", "fails": "✗"}
"""A sign for each kind, so that colour alone says nothing."""
CHECKOUT = Path(__file__).resolve().parents[3] / "docs" / "experiments"
OWN = Path("experiments")
"""Where results are written unless another folder is named."""


def folder() -> Path | None:
    """The folder whose results are shown unless one is named: one's own, else those that the sources carry, else none."""
    return next((one for one in (OWN, CHECKOUT) if saved(one)), None)


def saved(folder: Path) -> list[dict[str, Any]]:
    """The results of a folder, by number; files that are none are passed over."""
    held = [document for path in sorted(folder.glob("*.json")) if (document := read(path))]
    return sorted(held, key=lambda document: document["claim"]["number"])


def at_full_size(folder: Path) -> dict[str, dict[str, Any]]:
    """The results at full size that stand beside those of a folder, by name."""
    return {document["name"]: document for document in saved(folder / "full")}


def read(path: Path) -> dict[str, Any] | None:
    """A kept result; None where there is none, or none that can be read."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) and {"claim", "numbers", "verdict"} <= set(document) else None


def save(document: dict[str, Any], folder: Path) -> None:
    """Write the result whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{document['name']}.json"
    unfinished = path.with_suffix(".json.part")
    unfinished.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    unfinished.replace(path)


def figure_path(folder: Path, name: str, language: Language) -> Path:
    """Where the figure of one language is."""
    return folder / f"{name}.{language}.png"
