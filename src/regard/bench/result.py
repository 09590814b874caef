"""What a run leaves behind: rows that know whether they met their goal, as a table, as JSON and as Markdown."""

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from regard import RegardError

HEADINGS = {
    "en": ("work", "shape", "measured", "Regard", "against", "theirs", "times better", "goal"),
    "zh": ("任务", "形状", "测量", "Regard", "对比", "对方", "倍数", "目标"),
}
CHINESE = {
    "plain": "普通注意力",
    "causal": "因果注意力",
    "causal window of 255 back": "因果窗口（向前 255）",
    "causal with ALiBi": "因果 + ALiBi",
    "additive (tanh)": "加性注意力（tanh）",
    "GAT layer, 8 × 16": "GAT 层，8 × 16",
    "look: top 8, map 256 × 256": "look：前 8 项，256 × 256 图",
    "time": "时间",
    "memory": "额外内存峰值",
    "eager": "直接写公式",
    "limit": "上限",
    "regard, first call": "Regard 首次调用",
    "4.5 × own time at N/4": "自身 N/4 用时 × 4.5",
}


@dataclass(frozen=True)
class Row:
    """One quantity of ours beside one of theirs: seconds of a forward and backward pass, or bytes beyond the inputs.

    >>> row = Row("causal", "H8 N2048 D64", "time", 0.10, "SDPA", 0.12, goal=0.95)
    >>> round(row.better, 2), row.met
    (1.2, True)
    """

    work: str
    shape: str
    measure: Literal["time", "memory"]
    ours: float
    against: str | None = None
    theirs: float | None = None
    goal: float | None = None

    @property
    def better(self) -> float | None:
        """How many times less ours is than theirs."""
        return None if self.theirs is None else self.theirs / self.ours

    @property
    def met(self) -> bool | None:
        """Whether that reaches the goal; `None` where there is none."""
        return None if self.better is None or self.goal is None else self.better >= self.goal

    def cells(self) -> tuple[str, ...]:
        """The row as it is read, one text under each heading."""
        theirs = "" if self.theirs is None else quantity(self.theirs, self.measure)
        better = "" if self.better is None else f"{self.better:.3g}×"
        goal = "" if self.goal is None else f"≥ {self.goal:g}×, {'met' if self.met else 'not met'}"
        ours = quantity(self.ours, self.measure)
        return self.work, self.shape, self.measure, ours, self.against or "", theirs, better, goal


@dataclass(frozen=True)
class Result:
    """A run: where, when and with what it was made, its rows, and notes on what was left out."""

    device: str
    date: str
    threads: int
    quick: bool
    versions: dict[str, str | None]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict:
        """Everything as JSON has it, each row with its ratio and whether the goal was met."""
        rows = [asdict(row) | {"better": row.better, "met": row.met} for row in self.rows]
        return asdict(self) | {"rows": rows}

    def write(self, path: Path) -> None:
        """Writes the JSON document."""
        path.write_text(json.dumps(self.as_dict(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "Result":
        """The run that `write` wrote."""
        found = json.loads(path.read_text(encoding="utf-8"))
        rows = tuple(Row(**{k: v for k, v in row.items() if k not in ("better", "met")}) for row in found["rows"])
        return cls(**found | {"rows": rows, "notes": tuple(found["notes"])})

    def title(self) -> str:
        """Where, when and with what, in a line."""
        return f"{self.device}; {self.threads} threads, torch {self.versions.get('torch')}, fp32, {self.date[:10]}"


def quantity(value: float, measure: str) -> str:
    """Seconds or bytes with three figures and a unit that suits them.

    >>> quantity(0.0312, "time"), quantity(2.5e9, "memory")
    ('31.2 ms', '2.5 GB')
    """
    if measure == "time":
        return f"{value:.3g} s" if value >= 1 else f"{value * 1e3:.3g} ms"
    return f"{value / 1e9:.3g} GB" if value >= 1e9 else f"{value / 1e6:.3g} MB"


def table(result: Result) -> str:
    """The run for a terminal, columns aligned."""
    lines = [HEADINGS["en"], *(row.cells() for row in result.rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([result.title(), "", *rows, *result.notes])


def markdown(result: Result, language: str) -> str:
    """The run as a Markdown table, with the line of where and when above it."""
    lines = [HEADINGS[language], tuple("---" for _ in HEADINGS[language])]
    lines += [tuple(translate(cell, language) for cell in row.cells()) for row in result.rows]
    rows = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([result.title(), "", *rows])


def translate(text: str, language: str) -> str:
    """A cell in the page's language."""
    if language == "en":
        return text
    return CHINESE.get(text, text).replace("not met", "未达到").replace("met", "达到")


def insert(page: str, text: str, name: str = "cpu") -> str:
    """The page with what stands between the markers `<!-- bench:cpu -->` and `<!-- /bench:cpu -->` replaced."""
    start, end = f"<!-- bench:{name} -->", f"<!-- /bench:{name} -->"
    pattern = re.compile(f"({re.escape(start)}).*?({re.escape(end)})", re.DOTALL)
    if not pattern.search(page):
        raise RegardError(f"The page has no markers {start} and {end}: put them where the table belongs.")
    return pattern.sub(lambda found: f"{found[1]}\n{text}\n{found[2]}", page)
