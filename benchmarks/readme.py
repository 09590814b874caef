"""Puts the table of results/cpu.json into README.md and README.zh.md, between their markers."""

from pathlib import Path

from regard.bench.result import Result, insert, markdown

HERE = Path(__file__).parent


def main() -> None:
    result = Result.read(HERE / "results" / "cpu.json")
    for name, language in (("README.md", "en"), ("README.zh.md", "zh")):
        page = HERE.parent / name
        page.write_text(insert(page.read_text(encoding="utf-8"), markdown(result, language)), encoding="utf-8")


if __name__ == "__main__":
    main()
