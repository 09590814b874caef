"""Puts the tables of results/ into README.md and README.zh.md, between their markers: CPU, GPU and tasks."""

import json
from pathlib import Path
from typing import Any

import task_pages
import tasks
from regard.bench.result import Result, insert, markdown

HERE = Path(__file__).parent
PAGES = (("README.md", "en"), ("README.zh.md", "zh"))
RACE = HERE / "results" / "h200-char-gpt.json"
OTHERS = ("tasks", "compare", RACE.stem)
"""Files of results that are no comparison of speeds."""

RACE_TOLD = {
    "en": "A character model of 10.7 million weights comes to the loss {0} of tiny Shakespeare's last tenth after {1}\n"
    "updates and {2:.1f} s of learning; nanoGPT's loop, compiled, beside it after {3} and {4:.1f} s, {5:.1f} times as\n"
    "long (`python -m regard.bench.char_gpt --text input.txt`; {6}).",
    "zh": "一千零七十万权重的字符模型在 tiny Shakespeare 末十分之一上达到 {0} 的损失，\n"
    "用 {1} 次更新、{2:.1f} 秒学习时间；同场的 nanoGPT 循环（已编译）用 {3} 次、{4:.1f} 秒，是它的 {5:.1f} 倍\n"
    "（`python -m regard.bench.char_gpt --text input.txt`；{6}）。",
}


def main() -> None:
    for name, language in PAGES:
        page = HERE.parent / name
        text = page.read_text(encoding="utf-8")
        for kind, path in results(HERE / "results").items():
            if f"<!-- bench:{kind} -->" in text:
                text = insert(text, markdown(Result.read(path), language), kind)
        if tasks.RESULTS.exists():
            text = insert(text, task_pages.table(tasks.read_results()["runs"], tasks.ROWS, language), "tasks")
        if RACE.exists():
            text = insert(text, race(json.loads(RACE.read_text("utf8")), language), "char-gpt")
        page.write_text(text, encoding="utf-8")


def race(found: dict[str, Any], language: str) -> str:
    """Who came to the goal when, of the two character models of `regard.bench.char_gpt`, in a sentence."""
    (steps, seconds), (their_steps, their_seconds) = (found["reached"][name] for name in ("regard", "plain loop"))
    where = f"{found['device']}, torch {found['versions']['torch']}, {found['date'][:10]}"
    numbers = (found["goal"], f"{steps:,}", seconds, f"{their_steps:,}", their_seconds, their_seconds / seconds, where)
    return RACE_TOLD[language].format(*numbers)


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
