"""Calls that people make every day on a GPU, each beside the line of torch that they would write instead.

    python benchmarks/everyday.py                    # measures, writes results/everyday.json
    python benchmarks/everyday.py --only decode      # the rows whose name contains this
    python benchmarks/everyday.py --profile          # also the kernels of each call, and what it takes the host
    python benchmarks/everyday.py --write            # writes the tables of docs/benchmarks.md and .zh.md again

Both sides take turns; results are compared before anything is timed. A time is what a call takes in a row of calls: of
the host or of the GPU, whichever is longer. The host alone is what it takes to start a few calls without waiting.
"""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

import regard as rg
from regard import machine
from regard.bench.measure import relative_error
from regard.bench.survey.survey import PromptMask, additive_formula

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "everyday.json"
PAGES = {"en": ROOT / "docs/benchmarks.md", "zh": ROOT / "docs/benchmarks.zh.md"}
MARKS = ("<!-- everyday:table -->\n", "<!-- /everyday:table -->\n")
SURVEYS = {device: ROOT / "benchmarks" / "results" / f"survey-{device}.json" for device in ("cpu", "cuda")}
SURVEY_HEADS = {
    "en": ("calls", "number", "worst", "5 %", "median", "95 %"),
    "zh": ("调用", "个数", "最差", "5 %", "中位数", "95 %"),
}
WORDS = {
    "en": {"head": ("call", "beside", "forward", "with backward"), "note": "{device}, torch {torch}, bfloat16, {date}"},
    "zh": {"head": ("调用", "对比", "前向", "含反向"), "note": "{device}，torch {torch}，bfloat16，{date}"},
}
CHINESE = {
    "decode": "解码", "32,768 keys": "32,768 个键", "window 4,096 of": "窗口 4,096，共", "window": "窗口",
    "causal": "因果", "queries": "个查询", "60 keys": "60 个键", "new lengths each call": "每次新的长度",
    "T5 bias, fixed": "T5 偏置（固定）",
    "T5 bias, learned": "T5 偏置（学习）", "own mask": "自己的掩码", "BERT of transformers": "transformers 的 BERT",
    "padded": "有填充", "watched, top": "用 watch，top", "mask tensor": "掩码张量", "bias tensor": "偏置张量",
    "SDPA without ALiBi": "无 ALiBi 的 SDPA", "SDPA on the slice": "切片上的 SDPA", "mask made anew": "重新做掩码",
    "bias looked up": "查表得偏置", "formula, compiled": "公式，已编译", "formula": "公式", "its sdpa": "它的 sdpa",
    "the same, not watched": "同上，不用 watch",
}  # fmt: skip
ROUNDS, SECONDS = 5, 0.1  # of timing, for each side of a row
HOST_CALLS = 10  # that are started without a wait
TOLERANCE = 6e-2  # in bfloat16, to which formulas round every step

Step = Callable[[], object]


@dataclass
class Row:
    """A call, what it is compared with, and the tensors that get gradients where it is timed with backward."""

    name: str
    ours: Callable[[], Tensor]
    beside: str
    theirs: Callable[[], Tensor]
    leaves: list[Tensor] = field(default_factory=list)
    compare: bool = True


def normal(*size: int, grad: bool = True) -> Tensor:
    return torch.randn(*size, device="cuda", dtype=torch.bfloat16, requires_grad=grad)


def rows() -> Iterator[Callable[[], Row]]:
    """Makers of the rows, so that one row's tensors are in memory at a time."""
    for batch in (1, 8):
        yield lambda batch=batch: decode_plain(batch)
        yield lambda batch=batch: decode_alibi(batch)
        yield lambda batch=batch: decode_window(batch)
    for queries in (1, 40):
        yield lambda queries=queries: bahdanau(queries)
    for batch, tokens in ((1, 256), (8, 512), (32, 128), (4, 1024)):
        yield lambda batch=batch, tokens=tokens: window(batch, tokens)
    yield causal
    yield vit
    yield new_lengths
    yield t5_fixed
    yield own_mask
    for batch, tokens in ((8, 128), (8, 512), (1, 4096)):
        for padded in (False, True):
            yield lambda batch=batch, tokens=tokens, padded=padded: bert(batch, tokens, padded)
    yield watched
    yield t5_learned


def decode_plain(batch: int) -> Row:
    q, (k, v) = normal(batch, 32, 1, 128, grad=False), (normal(batch, 8, 32_768, 128, grad=False) for _ in range(2))
    return Row(
        f"decode B{batch}, 32,768 keys", lambda: rg.attend(q, k, v), "SDPA", lambda: sdpa(q, k, v, enable_gqa=True)
    )


def decode_alibi(batch: int) -> Row:
    q, (k, v) = normal(batch, 32, 1, 128, grad=False), (normal(batch, 8, 32_768, 128, grad=False) for _ in range(2))
    ours = lambda: rg.attend(q, k, v, mask=rg.Causal(), position=rg.Alibi())  # noqa: E731
    theirs = lambda: sdpa(q, k, v, enable_gqa=True)  # noqa: E731
    return Row(f"decode B{batch}, 32,768 keys, ALiBi", ours, "SDPA without ALiBi", theirs, compare=False)


def decode_window(batch: int) -> Row:
    q, (k, v) = normal(batch, 32, 1, 128, grad=False), (normal(batch, 8, 32_768, 128, grad=False) for _ in range(2))
    ours = lambda: rg.attend(q, k, v, mask=rg.Causal() & rg.Window(4095))  # noqa: E731
    theirs = lambda: sdpa(q, k[:, :, -4096:], v[:, :, -4096:], enable_gqa=True)  # noqa: E731
    return Row(f"decode B{batch}, window 4,096 of 32,768 keys", ours, "SDPA on the slice", theirs)


def bahdanau(queries: int) -> Row:
    q, weight = normal(256, 1, queries, 512), normal(1, 512)
    k, v = (normal(256, 1, 60, 512) for _ in range(2))
    formula = additive_formula if queries == 1 else torch.compile(additive_formula, dynamic=False)
    name = f"Bahdanau, {queries} queries, 60 keys, D512, B256"
    ours = lambda: rg.attend(q, k, v, score=rg.Additive(weight))  # noqa: E731
    theirs = lambda: formula(q, k, v, weight, None, 1)  # noqa: E731
    return Row(name, ours, "formula" if queries == 1 else "formula, compiled", theirs, [q, k, v, weight])


def square(batch: int, heads: int, tokens: int, dim: int = 64) -> list[Tensor]:
    return [normal(batch, heads, tokens, dim) for _ in range(3)]


def window(batch: int, tokens: int) -> Row:
    q, k, v = leaves = square(batch, 8, tokens)
    i = torch.arange(tokens, device="cuda")
    allowed = (i[:, None] - i).abs() <= 32
    ours = lambda: rg.attend(q, k, v, mask=rg.Window(32, 32))  # noqa: E731
    theirs = lambda: sdpa(q, k, v, attn_mask=allowed)  # noqa: E731
    return Row(f"window ±32, B{batch} H8 N{tokens}", ours, "SDPA, mask tensor", theirs, leaves)


def causal() -> Row:
    q, k, v = leaves = square(1, 8, 256)
    ours = lambda: rg.attend(q, k, v, mask=rg.Causal())  # noqa: E731
    return Row("causal, B1 H8 N256", ours, "SDPA", lambda: sdpa(q, k, v, is_causal=True), leaves)


def vit() -> Row:
    q, k, v = leaves = square(256, 12, 197)
    return Row("ViT, B256 H12 N197", lambda: rg.attend(q, k, v), "SDPA", lambda: sdpa(q, k, v), leaves)


def new_lengths() -> Row:
    q, k, v = leaves = square(8, 8, 256)
    lengths = torch.randint(128, 257, (8,), device="cuda")
    j = torch.arange(256, device="cuda")
    ours = lambda: rg.attend(q, k, v, mask=rg.Lengths(lengths.clone()))  # noqa: E731
    theirs = lambda: sdpa(q, k, v, attn_mask=(j < lengths.clone()[:, None])[:, None, None])  # noqa: E731
    return Row("new lengths each call, B8 H8 N256", ours, "SDPA, mask made anew", theirs, leaves)


def t5_fixed() -> Row:
    q, k, v = leaves = square(8, 12, 2048)
    table = normal(12, 32, grad=False)
    position = rg.T5Bias(table)
    i = torch.arange(2048, device="cuda")
    bias = position.score_bias(q, k, 1.0, i[:, None] - i)[None].contiguous()
    ours = lambda: rg.attend(q, k, v, position=position)  # noqa: E731
    return Row("T5 bias, fixed, B8 H12 N2048", ours, "SDPA, bias tensor", lambda: sdpa(q, k, v, attn_mask=bias), leaves)


def t5_learned() -> Row:
    q, k, v = square(8, 12, 2048)
    table = normal(12, 32)
    position = rg.T5Bias(table)
    i = torch.arange(2048, device="cuda")
    buckets = position.bucket(i - i[:, None])
    ours = lambda: rg.attend(q, k, v, position=position)  # noqa: E731
    theirs = lambda: sdpa(  # noqa: E731
        q, k, v, attn_mask=torch.nn.functional.embedding(buckets, table.mT).permute(2, 0, 1)[None]
    )
    return Row("T5 bias, learned, B8 H12 N2048", ours, "SDPA, bias looked up", theirs, [q, k, v, table])


def own_mask() -> Row:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, k, v = leaves = square(1, 16, 4096)
    mask = PromptMask(512)
    flex = torch.compile(flex_attention, dynamic=False)
    block = create_block_mask(lambda b, h, i, j: (j <= i) | (j < 512), None, None, 4096, 4096, "cuda")
    ours = lambda: rg.attend(q, k, v, mask=mask)  # noqa: E731
    return Row("own mask, N4096", ours, "FlexAttention", lambda: flex(q, k, v, block_mask=block), leaves)  # type: ignore[arg-type, return-value]


@functools.cache
def make_bert(attention: str) -> Any:
    """A BERT of transformers with random weights, the same each time."""
    from transformers import BertConfig, BertModel

    import regard.integrations.transformers  # noqa: F401, registers the attention

    torch.manual_seed(0)
    options: dict[str, Any] = {"max_position_embeddings": 4096, "attn_implementation": attention}
    with torch.device("cuda"):
        model: Any = BertModel(BertConfig(**options), add_pooling_layer=False)
    return model.to(torch.bfloat16).eval()


def bert(batch: int, tokens: int, padded: bool) -> Row:
    """A forward pass of BERT, with padding or without."""
    ids = torch.randint(5, 20_000, (batch, tokens), device="cuda")
    real = torch.ones(batch, tokens, dtype=torch.long, device="cuda")
    if padded:
        real[:, tokens - tokens // 4 :] = 0
        real[-1, tokens // 2 :] = 0
    models = {name: make_bert(name) for name in ("regard", "sdpa")}
    run = lambda name: models[name](ids, attention_mask=real).last_hidden_state * real[..., None]  # noqa: E731
    name = f"BERT of transformers, B{batch} N{tokens}{', padded' if padded else ''}"
    return Row(name, lambda: run("regard"), "its sdpa", lambda: run("sdpa"))


def watched() -> Row:
    ids = torch.randint(5, 20_000, (8, 512), device="cuda")
    model = make_bert("regard")

    def watch() -> Tensor:
        with rg.watch(model, top=8):
            return model(ids).last_hidden_state

    return Row("BERT B8 N512, watched, top 8", watch, "the same, not watched", lambda: model(ids).last_hidden_state)


def make_step(function: Callable[[], Tensor], leaves: list[Tensor], grad: Tensor | None) -> Callable[[], list[Tensor]]:
    """A call that gives the output, or with a gradient of it the output and the gradients."""
    if grad is None:

        def forward() -> list[Tensor]:
            with torch.no_grad():
                return [function()]

        return forward

    def step() -> list[Tensor]:
        output = function()
        return [output.detach(), *torch.autograd.grad(output, leaves, grad)]

    return step


def time_both(ours: Step, theirs: Step) -> tuple[float, float]:
    """Median seconds of each, in turns."""
    counts, times = [], ([], [])
    for step in (ours, theirs):
        for _ in range(3):
            step()
        counts.append(max(3, min(200, int(SECONDS / ROUNDS / max(time_calls(step, 3), 1e-6)))))
    for _ in range(ROUNDS):
        for step, count, seconds in zip((ours, theirs), counts, times, strict=True):
            seconds.append(time_calls(step, count))
    return median(times[0]), median(times[1])


def time_calls(step: Step, count: int) -> float:
    torch.cuda.synchronize()
    start = perf_counter()
    for _ in range(count):
        step()
    torch.cuda.synchronize()
    return (perf_counter() - start) / count


def host_seconds(step: Step) -> float:
    """What the host takes to start a call."""
    seconds = []
    for _ in range(7):
        torch.cuda.synchronize()
        start = perf_counter()
        for _ in range(HOST_CALLS):
            step()
        seconds.append((perf_counter() - start) / HOST_CALLS)
    torch.cuda.synchronize()
    return median(seconds)


def kernel_times(step: Step, calls: int = 10) -> list[tuple[str, float, float]]:
    """The kernels of a call: name, how many of them, µs in all."""
    step()
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(calls):
            step()
        torch.cuda.synchronize()
    events = [e for e in profile.key_averages() if e.device_time_total > 0]
    kernels = [(e.key[:90], e.count / calls, e.device_time_total / calls) for e in events]
    return sorted(kernels, key=lambda kernel: -kernel[2])


def measure_row(row: Row, trains: bool, profiled: bool) -> dict[str, Any]:
    """The record of one row, forward or with backward."""
    grad = torch.randn_like(row.theirs()) if trains else None
    ours, theirs = (make_step(function, row.leaves, grad) for function in (row.ours, row.theirs))
    if row.compare:
        differences = [relative_error(x, y) for x, y in zip(ours(), theirs(), strict=True)]
        if not max(differences) <= TOLERANCE:
            raise ValueError(f"{row.name}: the results differ by {max(differences):.1e}")
    mine, other = time_both(ours, theirs)
    record: dict[str, Any] = {"ours": mine, "theirs": other, "ratio": round(other / mine, 3)}
    record["host"] = {"ours": host_seconds(ours), "theirs": host_seconds(theirs)}
    if profiled:
        record["kernels"] = {"ours": kernel_times(ours), "theirs": kernel_times(theirs)}
    return record


def measure(only: list[str], profiled: bool) -> Iterator[dict[str, Any]]:
    """The records of the rows, as they are measured."""
    for make in rows():
        torch.manual_seed(0)
        torch.compiler.reset()
        torch.cuda.empty_cache()
        row = make()
        if only and not any(text in row.name for text in only):
            continue
        record: dict[str, Any] = {"call": row.name, "beside": row.beside}
        for mode in ("forward", "training") if row.leaves else ("forward",):
            try:
                record[mode] = measure_row(row, mode == "training", profiled)
            except Exception as error:  # the other rows are still measured
                record[mode] = {"error": f"{type(error).__name__}: {error}"[:300]}
            with nullcontext() if mode == "training" else torch.no_grad():
                record[mode]["backend"] = rg_backend(row)
        yield record


def rg_backend(row: Row) -> str:
    """The backend that runs the row's call."""
    from regard.attention import attend as module

    seen: list[str] = []
    run = module.find_plan

    def note(*args: Any, **kwargs: Any) -> Any:
        plan = run(*args, **kwargs)
        seen.append("" if plan is None or plan.backend is None else plan.backend.name)
        return plan

    warm = module.attend_warm
    try:
        module.find_plan, module.attend_warm = note, lambda *_: None
        row.ours()
        row.ours()
    finally:
        module.find_plan, module.attend_warm = run, warm
    return seen[-1] if seen else ""


def format_record(record: dict[str, Any]) -> str:
    """One or two lines, and the kernels under them."""
    lines = []
    for mode in ("forward", "training"):
        if mode not in record:
            continue
        x = record[mode]
        if "error" in x:
            lines.append(f"{record['call']} {mode}: {x['error']}")
            continue
        host = f"host {x['host']['ours'] * 1e6:.0f} / {x['host']['theirs'] * 1e6:.0f}"
        lines.append(
            f"{x['ratio']:6.2f}  {x['ours'] * 1e6:8.1f} / {x['theirs'] * 1e6:8.1f} µs ({host})  "
            f"{record['call']}, {mode} [{x['backend']}; {record['beside']}]"
        )
        for side, kernels in x.get("kernels", {}).items():
            lines.append(f"          {side}: {sum(t for _, _, t in kernels):.1f} µs")
            lines += [f"            {time:8.1f} µs  {count:4.1f} ×  {name}" for name, count, time in kernels[:9]]
    return "\n".join(lines)


def write_pages() -> None:
    """Write the tables of both pages again, from the stored results."""
    for language, page in PAGES.items():
        text = page.read_text(encoding="utf-8")
        for (first, last), table in make_tables(language).items():
            start, end = text.index(first) + len(first), text.index(last)
            text = text[:start] + table + text[end:]
        page.write_text(text, encoding="utf-8")


def make_tables(language: str) -> dict[tuple[str, str], str]:
    """The tables of a page by the marks around them."""
    tables = {MARKS: format_table(json.loads(RESULTS.read_text(encoding="utf-8")), language)}
    for device, path in SURVEYS.items():
        marks = (f"<!-- bench:survey-{device} -->\n", f"<!-- /bench:survey-{device} -->\n")
        tables[marks] = format_survey(json.loads(path.read_text(encoding="utf-8")), language)
    return tables


def format_survey(data: dict[str, Any], language: str) -> str:
    """The distribution of the ratios of random calls as a table in Markdown: of all, and by use."""
    head = SURVEY_HEADS[language]
    rows = [row for row in data["rows"] if row["others"]]
    lines = [f"{data['device']}, torch {data['versions']['torch']}, {data['date']}; `{data['command']}`", ""]
    lines += [format_line(head), format_line(["---"] * len(head))]
    for use in ("", "training", "prefill", "decoding"):
        ratios = sorted(row["ratio"] for row in rows if use in row["call"]["use"])
        at = [f"{ratios[min(int(x * len(ratios)), len(ratios) - 1)]:.2f}" for x in (0.0, 0.05, 0.5, 0.95)]
        lines.append(format_line([use or {"en": "all", "zh": "全部"}[language], str(len(ratios)), *at]))
    return "\n".join(lines) + "\n"


def format_table(data: dict[str, Any], language: str) -> str:
    """The rows as a table in Markdown: the ratio of times, and both times."""
    words = WORDS[language]
    lines = [words["note"].format(**{**data, "torch": data["versions"]["torch"]}), ""]
    lines += [format_line(words["head"]), format_line(["---"] * len(words["head"]))]
    for row in data["rows"]:
        cells = [format_cell(row.get(mode)) for mode in ("forward", "training")]
        lines.append(format_line([translate(row["call"], language), translate(row["beside"], language), *cells]))
    return "\n".join(lines) + "\n"


def format_line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def format_cell(record: dict[str, Any] | None) -> str:
    if record is None or "error" in record:
        return "–"
    return f"{record['ratio']:.2f} ({record['ours'] * 1e6:,.0f} / {record['theirs'] * 1e6:,.0f} µs)"


def translate(name: str, language: str) -> str:
    for english, chinese in CHINESE.items() if language == "zh" else ():
        name = name.replace(english, chinese)
    return name.replace(", ", "，") if language == "zh" else name


def describe() -> dict[str, Any]:
    """What the rows were measured with."""
    command = "python benchmarks/everyday.py"
    device, versions = torch.cuda.get_device_name(), machine.versions()
    return {"device": device, "versions": versions, "date": date.today().isoformat(), "command": command}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose name contains this text (several: a, b)")
    parser.add_argument("--profile", action="store_true", help="also the kernels of each call")
    parser.add_argument("--out", type=Path, default=RESULTS, help="JSON file to write")
    parser.add_argument("--write", action="store_true", help="only write the tables of the pages again")
    arguments = parser.parse_args()
    if arguments.write:
        write_pages()
        return
    records = []
    only = [text.strip() for text in arguments.only.split(",") if text.strip()]
    for record in measure(only, arguments.profile):
        print(format_record(record), flush=True)
        records.append(record)
        arguments.out.write_text(json.dumps(describe() | {"rows": records}, indent=1) + "\n")


if __name__ == "__main__":
    main()
