"""Greedy decoding on the CPU beside transformers: one random Llama, every kind of cache, in one run.

    python benchmarks/decoding.py            # measures, writes results/decoding.json and the table of the pages
    python benchmarks/decoding.py --write    # writes the table of docs/how-to/decoding.md and .zh.md again

Both read the same weights. Before anything is timed, the tokens of every cache without rounding must be those of
transformers. The contestants take turns on one thread; the table has medians of CPU time over the rounds, and what a
cache of 512 + 64 tokens takes in memory.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch

import regard as rg
from regard import machine

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "decoding.json"
PAGES = {"en": ROOT / "docs/how-to/decoding.md", "zh": ROOT / "docs/how-to/decoding.zh.md"}
MARKS = ("<!-- decoding:numbers -->\n", "<!-- /decoding:numbers -->\n")
SIZES = {
    "tiny": {"num_hidden_layers": 4, "hidden_size": 128, "intermediate_size": 352, "num_attention_heads": 4},
    "medium": {"num_hidden_layers": 8, "hidden_size": 512, "intermediate_size": 1408, "num_attention_heads": 8},
}
PROMPT, NEW, ROUNDS = 512, 64, 5
EXACT = ("dynamic", "static", "paged")
QUANTIZED = ("int8", "fp8")


def make_models(size: str, folder: Path) -> tuple[Any, Any]:
    """transformers' model and ours, with the same random weights."""
    import transformers

    config = transformers.LlamaConfig(
        **SIZES[size], num_key_value_heads=2, vocab_size=4096, max_position_embeddings=1024, eos_token_id=None
    )
    torch.manual_seed(0)
    theirs = transformers.LlamaForCausalLM(config).eval()
    theirs.save_pretrained(folder)
    return theirs, rg.load(folder)


def list_contestants(theirs: Any, ours: Any, tokens: torch.Tensor) -> dict[str, Callable[[int], torch.Tensor]]:
    """What generates so many tokens after the prompt, by name."""

    def run_theirs(attention: str, cache: str) -> Callable[[int], torch.Tensor]:
        def generate(new: int) -> torch.Tensor:
            theirs.set_attn_implementation(attention)
            return theirs.generate(
                input_ids=tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=new, do_sample=False,
                cache_implementation=cache, pad_token_id=0,
            )  # fmt: skip

        return generate

    def run_ours(cache: str) -> Callable[[int], torch.Tensor]:
        return lambda new: ours.generate(tokens=tokens, max_new=new, cache=cache, end=())

    contestants = {f"transformers, {cache}": run_theirs("sdpa", cache) for cache in ("dynamic", "static")}
    contestants["transformers, eager"] = run_theirs("eager", "dynamic")
    return contestants | {f"Regard, {cache}": run_ours(cache) for cache in (*EXACT, *QUANTIZED)}


def check_tokens(contestants: dict[str, Callable[[int], torch.Tensor]]) -> None:
    """End the run unless all caches without rounding generate the same tokens."""
    expected = contestants["transformers, eager"](NEW)
    for name, generate in contestants.items():
        if not name.endswith(QUANTIZED) and not torch.equal(generate(NEW), expected):
            raise SystemExit(f"{name} generates other tokens than transformers' eager attention.")


def measure_cache(ours: Any, tokens: torch.Tensor) -> dict[str, dict[str, float]]:
    """What each kind of cache holds after the prompt and the new tokens."""
    sizes = {}
    for kind in (*EXACT, *QUANTIZED):
        config = rg.nn.CacheConfig(kind, tokens=PROMPT + NEW if kind == "static" else None)  # type: ignore[arg-type]
        with torch.inference_mode():
            cache = ours(tokens=tokens, cache=rg.nn.Cache(config=config)).cache
            for _ in range(NEW - 1):
                cache = ours(tokens=tokens[:, :1], cache=cache).cache
        planned = cache.plan()
        sizes[kind] = {"bytes": planned.bytes, "key_error": planned.key_error, "value_error": planned.value_error}
    return sizes


def measure(size: str, batch: int, rounds: int) -> list[dict[str, Any]]:
    """A row for each contestant: seconds for the prompt, milliseconds for each further token."""
    with tempfile.TemporaryDirectory() as folder:
        theirs, ours = make_models(size, Path(folder))
        tokens = torch.randint(3, 4096, (batch, PROMPT), generator=torch.Generator().manual_seed(1))
        contestants = list_contestants(theirs, ours, tokens)
        check_tokens(contestants)
        held = measure_cache(ours, tokens)
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
        for _ in range(rounds):
            for name, generate in contestants.items():
                times[name].append((clock(generate, 1), clock(generate, NEW)))
    rows = []
    for name, measured in times.items():
        prompt = statistics.median(first for first, _ in measured)
        step = statistics.median((whole - first) / (NEW - 1) for first, whole in measured)
        row = {"size": size, "batch": batch, "name": name, "prompt_s": prompt, "token_ms": 1000 * step}
        rows.append(row | (held[name.split(", ")[1]] if name.startswith("Regard") else {}))
        print(f"{size:7} {batch:2} {name:24} prompt {prompt:6.2f} s  token {1000 * step:7.2f} ms", flush=True)
    return rows


def clock(generate: Callable[[int], torch.Tensor], new: int) -> float:
    """CPU seconds, which other processes on the machine do not lengthen as they do the wall clock's."""
    started = time.process_time()
    generate(new)
    return time.process_time() - started


def write_table(stored: dict[str, Any], language: str) -> str:
    """The table of a page, with each row beside transformers' dynamic cache."""
    head = {
        "en": "| model | batch | cache | prompt | each token | beside transformers | memory | error of keys, values |",
        "zh": "| 模型 | 批大小 | 缓存 | 提示 | 每个词元 | 与 transformers 相比 | 内存 | 键、值的误差 |",
    }[language]
    lines = [head, "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    for row in stored["rows"]:
        base = next(
            other["token_ms"]
            for other in stored["rows"]
            if (other["size"], other["batch"], other["name"]) == (row["size"], row["batch"], "transformers, dynamic")
        )
        memory = f"{row['bytes'] / 2**20:.1f} MiB" if "bytes" in row else ""
        error = f"{row['key_error']:.2g}, {row['value_error']:.2g}" if row.get("key_error") else ""
        lines.append(
            f"| {row['size']} | {row['batch']} | {row['name']} | {row['prompt_s']:.2f} s | {row['token_ms']:.1f} ms | "
            f"{base / row['token_ms']:.2f}× | {memory} | {error} |"
        )
    return "\n".join(lines) + "\n"


def write_pages() -> None:
    """Put the tables between the marks of the pages."""
    stored = json.loads(RESULTS.read_text("utf8"))
    for language, path in PAGES.items():
        before, rest = path.read_text("utf8").split(MARKS[0])
        after = rest.split(MARKS[1])[1]
        path.write_text(before + MARKS[0] + write_table(stored, language) + MARKS[1] + after, "utf8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="*", default=list(SIZES), choices=SIZES)
    parser.add_argument("--batches", nargs="*", type=int, default=[1, 8])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--write", action="store_true", help="only write the tables")
    args = parser.parse_args()
    if not args.write:
        torch.set_num_threads(1)
        rows = [row for size in args.sizes for batch in args.batches for row in measure(size, batch, args.rounds)]
        stored = {
            "date": str(date.today()),
            "processor": machine.processor(),
            "versions": machine.versions(),
            "rows": rows,
        }
        RESULTS.write_text(json.dumps(stored, indent=1) + "\n", "utf8")
    write_pages()


if __name__ == "__main__":
    main()
