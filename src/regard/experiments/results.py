"""Saved results of experiments: `<name>.json` and a figure in each language, in one folder.

    docs/experiments/grey-ball.json  grey-ball.en.png  grey-ball.zh.png  report.html  full/grey-ball.json

The subfolder `full` has results of the same experiments at full size. A result has `name`, `claim` (the fields of
`Claim`), `numbers`, `verdict` (the fields of `Verdict`), `seed`, `size`, `versions`, `devices`, `date` and `seconds`;
each text is a dictionary of `en` and `zh`.

The package ships the results of the repository without their figures, in `published`, so that a verdict can be shown
wherever Regard is installed; `published_verdict` reads them.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

from .experiment import Bilingual, Language, Subclaim, Verdict

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
PUBLISHED_FOLDER = Path(__file__).resolve().parent / "published"
"""The results that ship with the package, without figures."""


def find_results_folder() -> Path | None:
    """The folder whose results are shown by default: `DEFAULT_FOLDER`, else the repository's, else the package's."""
    folders = (DEFAULT_FOLDER, REPOSITORY_FOLDER, PUBLISHED_FOLDER)
    return next((folder for folder in folders if read_results(folder)), None)


def published_result(name: str) -> ResultDocument | None:
    """The result of an experiment that ships with the package; None if there is none."""
    return read_result(PUBLISHED_FOLDER / f"{name}.json")


def published_verdict(name: str) -> Verdict | None:
    """The measured verdict on a claim that ships with the package; None if the claim was not measured.

    >>> published_verdict("soft-dictionary").kind
    'holds'
    """
    result = published_result(name)
    return None if result is None else load_verdict(result["verdict"])


def dump_verdict(verdict: Verdict) -> ResultDocument:
    """A verdict in the form that JSON holds."""
    document = asdict(verdict)
    return document | {"subclaims": list(document["subclaims"])}


def load_verdict(document: ResultDocument) -> Verdict:
    """A verdict from the form that JSON holds."""
    subclaims = tuple(
        Subclaim(**fields | {"text": Bilingual(**fields["text"]), "figures": Bilingual(**fields["figures"])})
        for fields in document.get("subclaims", ())
    )
    return Verdict(document["kind"], Bilingual(**document["key"]), Bilingual(**document["why"]), subclaims)


def publish_results(folder: Path, target: Path = PUBLISHED_FOLDER) -> list[Path]:
    """Copy the results of a folder, and those at full size without their numbers, in the form that the package ships."""
    full_size = [result | {"numbers": {}} for result in read_full_size_results(folder).values()]
    paths = [save_result(result, target, indent=None) for result in read_results(folder)]
    return paths + [save_result(result, target / "full", indent=None) for result in full_size]


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
    except (OSError, ValueError, RecursionError):
        return None
    known = isinstance(result, dict) and all(isinstance(result.get(name), dict) for name in ("claim", "verdict"))
    return result if known and "numbers" in result and isinstance(result["claim"].get("number"), int) else None


def save_result(result: ResultDocument, folder: Path, indent: int | None = 1) -> Path:
    """Write the result atomically; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result['name']}.json"
    unfinished = path.with_suffix(".json.part")
    unfinished.write_text(json.dumps(result, ensure_ascii=False, indent=indent) + "\n", encoding="utf-8")
    unfinished.replace(path)
    return path


def figure_path(folder: Path, name: str, language: Language) -> Path:
    """The path of an experiment's figure in one language."""
    return folder / f"{name}.{language}.png"
