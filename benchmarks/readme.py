"""Puts the tables of results/ into README.md and README.zh.md, between their markers: CPU, GPU and tasks."""

from pathlib import Path

import task_pages
import tasks
from regard.bench.result import Result, insert, markdown

HERE = Path(__file__).parent
PAGES = (("README.md", "en"), ("README.zh.md", "zh"))
OTHERS = ("tasks", "compare", "h200-char-gpt")
"""Files of results that are no comparison of speeds."""


def main() -> None:
    for name, language in PAGES:
        page = HERE.parent / name
        text = page.read_text(encoding="utf-8")
        for kind, path in results(HERE / "results").items():
            if f"<!-- bench:{kind} -->" in text:
                text = insert(text, markdown(Result.read(path), language), kind)
        if tasks.RESULTS.exists():
            text = insert(text, task_pages.table(tasks.read_results()["runs"], tasks.ROWS, language), "tasks")
        page.write_text(text, encoding="utf-8")


def results(folder: Path) -> dict[str, Path]:
    """The files to take tables from, by the name of their markers; of several GPUs the H200's, or else the first."""
    found = {}
    for kind in ("", "-models"):
        files = sorted(path for path in folder.glob("*.json") if path.stem.endswith("-models") == bool(kind))
        files = [path for path in files if path.stem not in OTHERS]
        gpus = sorted((path for path in files if path.stem != f"cpu{kind}"), key=lambda x: (x.stem != f"h200{kind}", x))
        if (folder / f"cpu{kind}.json").exists():
            found[f"cpu{kind}"] = folder / f"cpu{kind}.json"
        if gpus:
            found[f"gpu{kind}"] = gpus[0]
    return found


if __name__ == "__main__":
    main()
