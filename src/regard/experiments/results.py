"""Saved results of experiments: `<name>.json` and a figure in each language, in one folder.

    docs/experiments/grey-ball.json  grey-ball.en.png  grey-ball.zh.png  report.html  full/grey-ball.json

The subfolder `full` has results of the same experiments at full size. A result has `name`, `claim` (the fields of
`Claim`), `numbers`, `verdict` (the fields of `Verdict`), `seed`, `size`, `versions`, `devices`, `date` and `seconds`;
each text is a dictionary of `en` and `zh`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

from .experiment import Bilingual, Language

ResultDocument = dict[str, Any]
"""A result as JSON holds it."""

LANGUAGES: tuple[Language, ...] = get_args(Language)
VERDICT_LABELS = {
    "holds": Bilingual("holds", "成立"),
    "limited": Bilingual("holds with a limit", "有条件成立"),
    "fails": Bilingual("does not hold", "不成立"),
}
"""The text of each kind of verdict."""
VERDICT_SIGNS = {"holds": "✓", "limited": "◐", "fails": "✗"}
"""The sign of each kind of verdict, so that readers need not rely on colour."""
REPOSITORY_FOLDER = Path(__file__).resolve().parents[3] / "docs" / "experiments"
"""Where a checkout of the repository has its results."""
DEFAULT_FOLDER = Path("experiments")
"""Where results are saved unless another folder is given."""


def find_results_folder() -> Path | None:
    """The folder whose results are shown by default: `DEFAULT_FOLDER`, else the repository's, else none."""
    return next((folder for folder in (DEFAULT_FOLDER, REPOSITORY_FOLDER) if read_results(folder)), None)


def read_results(folder: Path) -> list[ResultDocument]:
    """The results in a folder, by number; other files are skipped."""
    results = [result for path in sorted(folder.glob("*.json")) if (result := read_result(path))]
    return sorted(results, key=lambda result: result["claim"]["number"])


def read_full_size_results(folder: Path) -> dict[str, ResultDocument]:
    """The results at full size in a folder's subfolder `full`, by name."""
    return {result["name"]: result for result in read_results(folder / "full")}


def read_result(path: Path) -> ResultDocument | None:
    """A saved result; None if the file is missing or is not a result."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return result if isinstance(result, dict) and {"claim", "numbers", "verdict"} <= set(result) else None


def save_result(result: ResultDocument, folder: Path) -> None:
    """Write the result atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result['name']}.json"
    unfinished = path.with_suffix(".json.part")
    unfinished.write_text(json.dumps(result, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    unfinished.replace(path)


def figure_path(folder: Path, name: str, language: Language) -> Path:
    """The path of an experiment's figure in one language."""
    return folder / f"{name}.{language}.png"
