"""Results of benchmarks: rows with their goals, as a table, as JSON and as Markdown."""

import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
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
    "training a translator, one batch": "训练翻译模型，一批",
    "time": "时间",
    "memory": "额外内存峰值",
    "eager": "直接写公式",
    "limit": "上限",
    "regard, first call": "Regard 首次调用",
    "4.5 × own time at N/4": "自身 N/4 用时 × 4.5",
    "dense causal": "稠密因果",
    "window ±512": "窗口 ±512",
    "window ±512 with ALiBi": "窗口 ±512 + ALiBi",
    "causal window of 1024 back": "因果窗口（向前 1024）",
    "causal window of 1024 back with ALiBi": "因果窗口（向前 1024）+ ALiBi",
    "Longformer layer": "Longformer 层",
    "BigBird, block 64": "BigBird，块 64",
    "learned bias by distance": "按距离学习的偏置",
    "causal with a cap on scores": "因果 + 分数上限",
    "causal with sinks": "因果 + 汇（sink）",
    "learned bias by pair": "按词元对学习的偏置",
    "Gemma 2 attention layer": "Gemma 2 注意力层",
    "gpt-oss attention layer": "gpt-oss 注意力层",
    "Transformer-XL": "Transformer-XL",
    "sentences of 32–1024 tokens": "长 32–1024 的句子",
    "GATv2 layer, 8 × 16": "GATv2 层，8 × 16",
    "look: entropy, top 8, received, map 256 × 256": "look：熵、前 8 项、所得、256 × 256 图",
    "decoding one token": "解码一个词元",
    "Linformer": "Linformer",
    "Nyström": "Nyström",
    "Performer": "Performer",
    "BERT-base, a step of training": "BERT-base，训练一步",
    "ViT-B/16, a step of training": "ViT-B/16，训练一步",
    "GPT-2 small with its loss, a step of training": "GPT-2 small 及其损失，训练一步",
    "Longformer-base, a step of training": "Longformer-base，训练一步",
    "BigBird-base, a step of training": "BigBird-base，训练一步",
    "small translator, 4 + 4 layers, a step of training": "小型翻译模型（4 + 4 层），训练一步",
    "transformers, compiled": "transformers，编译后",
    "transformers, compiled, CUDA graphs": "transformers，编译后，CUDA 图",
    "nn.Transformer, compiled": "nn.Transformer，编译后",
    "nn.Transformer, compiled, CUDA graphs": "nn.Transformer，编译后，CUDA 图",
    "greedy decoding, GPT-2": "贪心解码，GPT-2",
    "Transformer-XL, evaluating a token": "Transformer-XL，评估一个词元",
    "encoding, MiniLM": "编码，MiniLM",
    "recomputed window (paper: 363×)": "重算窗口（论文：363×）",
    "recomputed window (paper: 773×)": "重算窗口（论文：773×）",
    "recomputed window (paper: 1,409×)": "重算窗口（论文：1,409×）",
    "recomputed window (paper: 1,874×)": "重算窗口（论文：1,874×）",
    "compiled": "编译后的公式",
    "compiled, in float32": "编译后的公式（float32）",
    "PyG, compiled": "PyG，编译后",
    "FlexAttention, blocks of 64": "FlexAttention，块 64",
    "FlexAttention in transformers": "transformers 中的 FlexAttention",
    "transformers, eager": "transformers，eager",
    "SDPA, cuDNN": "SDPA（cuDNN）",
    "cuDNN's graph API, noted earlier": "cuDNN 图接口（先前记录）",
}
PHRASES = {
    "not met": "未达到",
    "met": "达到",
    " against ": " 对 ",
    " of matrix products": "（矩阵乘）",
    " of memory": "（显存带宽）",
    " of exp unit": "（特殊函数单元）",
    "memory ≥": "显存 ≥",
}
GPU_HEADINGS = {
    "en": (
        "work",
        "shape",
        "Regard",
        "against",
        "theirs",
        "times faster",
        "goal",
        "memory",
        "of the limit",
        "first call",
    ),
    "zh": ("任务", "形状", "Regard", "对比", "对方", "快几倍", "目标", "显存", "达到上限的", "首次调用"),
}
PEAK_RATES = {"matrix products": 750e12, "memory": 4.16e12, "exp unit": 4.03e12}
"""Operations, bytes and special functions per second, measured on an H200."""


@dataclass(frozen=True)
class BenchmarkRow:
    """One measurement of Regard beside one of a peer: seconds of forward and backward, or bytes beyond the inputs.

    >>> row = BenchmarkRow("causal", "H8 N2048 D64", "time", 0.10, "SDPA", 0.12, goal=0.95)
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
        """The ratio of theirs to ours: above 1, ours is better."""
        return None if self.theirs is None else self.theirs / self.ours

    @property
    def met(self) -> bool | None:
        """Whether the ratio reaches the goal; `None` without a goal."""
        return None if self.better is None or self.goal is None else self.better >= self.goal

    def cells(self) -> tuple[str, ...]:
        """The cells of the row, one for each heading."""
        theirs = "" if self.theirs is None else format_quantity(self.theirs, self.measure)
        better = "" if self.better is None else format_ratio(self.better)
        goal = "" if self.goal is None else f"≥ {self.goal:g}×, {'met' if self.met else 'not met'}"
        ours = format_quantity(self.ours, self.measure)
        return self.work, self.shape, self.measure, ours, self.against or "", theirs, better, goal

    def as_dict(self) -> dict:
        """The row as JSON, with its ratio and whether the goal was met."""
        return asdict(self) | {"better": self.better, "met": self.met}

    @classmethod
    def from_dict(cls, document: dict) -> "BenchmarkRow":
        """The row from the output of `as_dict`."""
        return cls(**{name: value for name, value in document.items() if name not in ("better", "met")})


@dataclass(frozen=True)
class PassCost:
    """Seconds of the forward pass and of forward and backward, and their peak bytes."""

    forward: float | None = None
    both: float | None = None
    forward_bytes: float | None = None
    both_bytes: float | None = None


@dataclass(frozen=True)
class SpeedupGoal:
    """The wanted ratios of theirs to ours: forward time, forward and backward time, memory."""

    forward: float | None = None
    both: float | None = None
    memory: float | None = None


@dataclass(frozen=True)
class ResourceNeed:
    """The least amount of the limiting resource that a workload needs; `limit` is a key of `PEAK_RATES`."""

    limit: str
    forward: float
    both: float = 0.0


@dataclass(frozen=True)
class GpuBenchmarkRow:
    """A workload on a GPU beside one peer; `first` is the seconds of our first call, with compilation.

    >>> ours, theirs = PassCost(2e-3, 6e-3), PassCost(2e-3, 9e-3)
    >>> need = ResourceNeed("matrix products", 1.1e12, 3.85e12)
    >>> row = GpuBenchmarkRow("causal", "N8192", ours, need, 0.5, "SDPA", theirs, SpeedupGoal(0.98, 1.2))
    >>> row.better.forward, row.better.memory, row.met
    (1.0, None, True)
    >>> row.cells()[5:7], row.cells()[8]
    (('1×, 1.5×', '≥ 0.98×, ≥ 1.2×, met'), '73 %, 86 % of matrix products')
    """

    work: str
    shape: str
    ours: PassCost
    need: ResourceNeed
    first: float | None = None
    against: str | None = None
    theirs: PassCost = field(default_factory=PassCost)
    goal: SpeedupGoal = field(default_factory=SpeedupGoal)
    limited: bool = True

    @property
    def better(self) -> SpeedupGoal:
        """The ratio of theirs to ours: above 1, ours is better."""
        ours, theirs = self.ours, self.theirs
        memory = ratio(theirs.both_bytes, ours.both_bytes) or ratio(theirs.forward_bytes, ours.forward_bytes)
        return SpeedupGoal(ratio(theirs.forward, ours.forward), ratio(theirs.both, ours.both), memory)

    @property
    def met(self) -> bool | None:
        """Whether every measured ratio with a goal reaches it; `None` without one."""
        pairs = zip(asdict(self.better).values(), asdict(self.goal).values(), strict=True)
        reached = [better >= goal for better, goal in pairs if better is not None and goal is not None]
        return all(reached) if reached else None

    @property
    def share(self) -> PassCost:
        """The fraction of the peak rate that our two passes reach."""
        rate = PEAK_RATES[self.need.limit]
        forward, both = ratio(self.need.forward / rate, self.ours.forward), ratio(self.need.both / rate, self.ours.both)
        return PassCost(forward, both) if self.limited else PassCost()

    def cells(self) -> tuple[str, ...]:
        """The cells of the row, one for each heading; times are forward, then forward and backward."""
        ours, theirs, better, goal = self.ours, self.theirs, self.better, self.goal
        goals = join_values(goal.forward, goal.both, text=lambda x: f"≥ {x:g}×")
        if goal.memory is not None:
            goals = ", ".join(filter(None, [goals, f"memory ≥ {goal.memory:g}×"]))
        verdict = "" if self.met is None else f", {'met' if self.met else 'not met'}"
        memory = [c.forward_bytes if c.both_bytes is None else c.both_bytes for c in (ours, theirs)]
        fraction = join_values(self.share.forward, self.share.both, text=lambda x: f"{x:.0%}".replace("%", " %"))
        return (
            self.work,
            self.shape,
            join_values(ours.forward, ours.both, text=lambda x: format_quantity(x, "time")),
            self.against or "",
            join_values(theirs.forward, theirs.both, text=lambda x: format_quantity(x, "time")),
            join_values(better.forward, better.both, text=lambda x: f"{x:.3g}×"),
            goals + verdict if goals else "",
            " against ".join(format_quantity(x, "memory") for x in memory if x is not None),
            f"{fraction} of {self.need.limit}" if fraction else "",
            "" if self.first is None else format_quantity(self.first, "time"),
        )

    def as_dict(self) -> dict:
        """The row as JSON, with its ratios, its fraction of the peak rate and whether the goals were met."""
        document = {"better": asdict(self.better), "met": self.met}
        return asdict(self) | document | {"share": {"forward": self.share.forward, "both": self.share.both}}

    @classmethod
    def from_dict(cls, document: dict) -> "GpuBenchmarkRow":
        """The row from the output of `as_dict`."""
        types = {"ours": PassCost, "theirs": PassCost, "goal": SpeedupGoal, "need": ResourceNeed}
        fields = {name: value for name, value in document.items() if name not in ("better", "met", "share")}
        return cls(**fields | {name: type_(**document[name]) for name, type_ in types.items()})


def ratio(over: float | None, under: float | None) -> float | None:
    """`over / under`; `None` if either is missing or 0."""
    return over / under if over and under else None


def join_values(*values: float | None, text: Callable[[float], str]) -> str:
    """The formatted values that are not None, separated by commas."""
    return ", ".join(text(value) for value in values if value is not None)


@dataclass(frozen=True)
class BenchmarkResult:
    """A benchmark run: device, date, versions, rows, notes on what was left out, and failures."""

    device: str
    date: str
    threads: int
    quick: bool
    versions: dict[str, str | None]
    rows: tuple[BenchmarkRow | GpuBenchmarkRow, ...]
    notes: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()

    def as_dict(self) -> dict:
        """The result as JSON."""
        rows = [row.as_dict() for row in self.rows]
        return asdict(self) | {"rows": rows}

    def write(self, path: Path) -> None:
        """Write the JSON document."""
        path.write_text(json.dumps(self.as_dict(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "BenchmarkResult":
        """Read a document that `write` wrote."""
        document = json.loads(path.read_text(encoding="utf-8"))
        rows = tuple((BenchmarkRow if "measure" in row else GpuBenchmarkRow).from_dict(row) for row in document["rows"])
        return cls(**document | {"rows": rows} | {name: tuple(document.get(name, ())) for name in ("notes", "failed")})

    @property
    def on_gpu(self) -> bool:
        """Whether the rows have GPU columns."""
        return any(isinstance(row, GpuBenchmarkRow) for row in self.rows)

    @property
    def headings(self) -> dict[str, tuple[str, ...]]:
        """The column headings, by language."""
        return GPU_HEADINGS if self.on_gpu else HEADINGS

    def title(self) -> str:
        """Device, versions and date in one line."""
        torch, day = self.versions.get("torch"), self.date[:10]
        if self.on_gpu:
            return f"{self.device}; torch {torch}, Triton {self.versions.get('triton')}, bf16 (graphs fp32), {day}"
        if self.device.startswith("NVIDIA"):
            return f"{self.device}; torch {torch}, bf16 autocast, {day}"
        return f"{self.device}; {self.threads} threads, torch {torch}, fp32, {day}"


def format_ratio(value: float) -> str:
    """A ratio to three digits, large ones as integers.

    >>> format_ratio(1.236), format_ratio(1653.2)
    ('1.24×', '1,653×')
    """
    return f"{value:,.0f}×" if value >= 1000 else f"{value:.3g}×"


def format_quantity(value: float, measure: str) -> str:
    """Seconds or bytes with three digits and a suitable unit.

    >>> format_quantity(0.0312, "time"), format_quantity(2.5e9, "memory")
    ('31.2 ms', '2.5 GB')
    """
    if measure == "time":
        return f"{value:.3g} s" if value >= 1 else f"{value * 1e3:.3g} ms"
    return f"{value / 1e9:.3g} GB" if value >= 1e9 else f"{value / 1e6:.3g} MB"


def format_table(result: BenchmarkResult) -> str:
    """The result for a terminal, with aligned columns."""
    lines = [result.headings["en"], *(row.cells() for row in result.rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([result.title(), "", *rows, *result.notes, *(f"Failed: {text}" for text in result.failed)])


def format_markdown(result: BenchmarkResult, language: str) -> str:
    """The result as a Markdown table under its title line."""
    headings = result.headings[language]
    lines = [headings, tuple("---" for _ in headings)]
    lines += [tuple(translate(cell, language) for cell in row.cells()) for row in result.rows]
    rows = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([result.title(), "", *rows])


def translate(text: str, language: str) -> str:
    """A cell in the language of the page."""
    if language == "en":
        return text
    text = CHINESE.get(text, text)
    for english, chinese in PHRASES.items():
        text = text.replace(english, chinese)
    return text


def replace_section(page: str, text: str, name: str = "cpu") -> str:
    """The page with the text between the markers `<!-- bench:cpu -->` and `<!-- /bench:cpu -->` replaced."""
    start, end = f"<!-- bench:{name} -->", f"<!-- /bench:{name} -->"
    pattern = re.compile(f"({re.escape(start)}).*?({re.escape(end)})", re.DOTALL)
    if not pattern.search(page):
        raise RegardError(f"The page has no markers {start} and {end}: add them where the table belongs.")
    return pattern.sub(lambda match: f"{match[1]}\n{text}\n{match[2]}", page)
