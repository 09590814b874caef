"""Greedy decoding beside transformers: a random Llama, and a Mistral with a window, every kind of cache, in one run.

    python benchmarks/decoding.py                  # measures, writes results/decoding.json and the table of the pages
    python benchmarks/decoding.py --device cuda    # larger models on a GPU, results/decoding-cuda.json
    python benchmarks/decoding.py --write          # writes the tables of docs/how-to/decoding.md and .zh.md again

Both read the same weights. Before a model is timed, the tokens of every cache without rounding must be those of
transformers in float32, up to a tie of two logits. The contestants take turns, on a CPU on one thread; the table has
medians over the rounds, of CPU time on a CPU, and what a cache of the prompt and the new tokens takes in memory.
transformers does not compile.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch

import regard as rg
from regard import machine

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = {"en": ROOT / "docs/how-to/decoding.md", "zh": ROOT / "docs/how-to/decoding.zh.md"}
TINY = {"num_hidden_layers": 4, "hidden_size": 128, "intermediate_size": 352, "num_attention_heads": 4}
MEDIUM = {"num_hidden_layers": 8, "hidden_size": 512, "intermediate_size": 1408, "num_attention_heads": 8}
LARGE = {"num_hidden_layers": 4, "hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 16}
EXACT = ("dynamic", "static", "paged")
QUANTIZED = ("int8", "fp8")
TIE = 1e-3


class WrongTokens(Exception):
    """Caches without rounding that differ: such a model is not measured."""


@dataclass(frozen=True)
class Setup:
    """What is measured on a device; a model with a `sliding_window` is a Mistral, the others are Llamas."""

    sizes: dict[str, dict[str, int]]
    kv_heads: int
    dtype: torch.dtype
    prompt: int
    new: int
    result: str


SETUPS = {
    "cpu": Setup(
        {"tiny": TINY, "tiny, window 128": TINY | {"sliding_window": 128}, "medium": MEDIUM},
        2, torch.float32, 512, 64, "decoding.json",
    ),
    "cuda": Setup(
        {"large": LARGE, "large, window 512": LARGE | {"sliding_window": 512}},
        4, torch.bfloat16, 4096, 32, "decoding-cuda.json",
    ),
}  # fmt: skip


def make_models(setup: Setup, size: str, folder: Path, device: str) -> tuple[Any, Any]:
    """transformers' model and ours, with the same random weights, in float32."""
    import transformers

    sizes = setup.sizes[size]
    kind = "Mistral" if "sliding_window" in sizes else "Llama"
    config = getattr(transformers, f"{kind}Config")(
        **sizes, num_key_value_heads=setup.kv_heads, vocab_size=4096, max_position_embeddings=8192, eos_token_id=None
    )
    torch.manual_seed(0)
    with torch.device(device):
        theirs = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    theirs.save_pretrained(folder)
    return theirs, rg.load(folder).to(device)


def list_caches(setup: Setup, size: str) -> dict[str, rg.nn.CacheConfig]:
    """Regard's kinds of cache; those of a model with a window drop what it will not allow again."""
    sliding = "sliding_window" in setup.sizes[size]
    kinds: tuple[Any, ...] = ("dynamic", "paged", *QUANTIZED) if sliding else (*EXACT, *QUANTIZED)
    length = setup.prompt + setup.new
    caches = {k: rg.nn.CacheConfig(k, sliding, length if k == "static" else None) for k in kinds}
    return {f"{kind}, sliding" if sliding else kind: config for kind, config in caches.items()}


def list_contestants(
    theirs: Any, ours: Any, tokens: torch.Tensor, caches: dict[str, rg.nn.CacheConfig]
) -> dict[str, Callable[[int], torch.Tensor]]:
    """What generates so many tokens after the prompt, by name."""

    def run_theirs(attention: str, cache: str) -> Callable[[int], torch.Tensor]:
        def generate(new: int) -> torch.Tensor:
            theirs.set_attn_implementation(attention)
            return theirs.generate(
                input_ids=tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=new, do_sample=False,
                cache_implementation=cache, pad_token_id=0, disable_compile=True,
            )  # fmt: skip

        return generate

    def run_ours(cache: rg.nn.CacheConfig) -> Callable[[int], torch.Tensor]:
        return lambda new: ours.generate(tokens=tokens, max_new=new, cache=cache, end=())

    contestants = {f"transformers, {cache}": run_theirs("sdpa", cache) for cache in ("dynamic", "static")}
    contestants["transformers, eager"] = run_theirs("eager", "dynamic")
    return contestants | {f"Regard, {name}": run_ours(cache) for name, cache in caches.items()}


def names_that_differ(theirs: Any, contestants: dict[str, Callable[[int], torch.Tensor]], new: int) -> list[str]:
    """The contestants without rounding that generate other tokens than transformers' eager attention.

    Tokens may part where eager's logits of both are within `TIE` of the largest: transformers rounds the angles of
    rotary positions to float32, Regard computes them exactly.
    """
    expected = contestants["transformers, eager"](new)
    exact = {name: make for name, make in contestants.items() if not any(kind in name for kind in QUANTIZED)}
    return [name for name, generate in exact.items() if not same_but_for_ties(theirs, generate(new), expected)]


def same_but_for_ties(theirs: Any, tokens: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether the rows are equal up to the first token, if any, at which two logits are as good as equal."""
    theirs.set_attn_implementation("eager")
    for row, wanted in zip(tokens, expected, strict=True):
        if not torch.equal(row, wanted):
            first = int((row != wanted).nonzero()[0])
            with torch.inference_mode():
                logits = theirs(wanted[None, :first], logits_to_keep=1).logits[0, -1]
            gap = float((logits[row[first]] - logits[wanted[first]]).abs() / logits.abs().max())
            print(f"tokens part at {first}, logits {gap:.1e} of the largest apart", flush=True)
            if gap > TIE:
                return False
    return True


def measure_cache(ours: Any, tokens: torch.Tensor, config: rg.nn.CacheConfig, new: int) -> dict[str, float]:
    """What a cache holds after the prompt and the new tokens."""
    with torch.inference_mode():
        cache = ours(tokens=tokens, cache=rg.nn.Cache(config=config)).cache
        for _ in range(new - 1):
            cache = ours(tokens=tokens[:, :1], cache=cache).cache
    planned = cache.plan()
    return {"bytes": planned.bytes, "key_error": planned.key_error, "value_error": planned.value_error}


def measure(device: str, size: str, batches: list[int], rounds: int) -> Iterator[dict[str, Any]]:
    """A row for each batch size and contestant: seconds for the prompt, milliseconds for each further token."""
    setup, draw = SETUPS[device], torch.Generator().manual_seed(1)
    with tempfile.TemporaryDirectory() as folder:
        theirs, ours = make_models(setup, size, Path(folder), device)
    prompts = [torch.randint(3, 4096, (batch, setup.prompt), generator=draw).to(device) for batch in batches]
    caches = list_caches(setup, size)
    for tokens in prompts:
        if wrong := names_that_differ(theirs, list_contestants(theirs, ours, tokens, caches), setup.new):
            raise WrongTokens(f"{size}: {', '.join(wrong)} generate other tokens than transformers' eager attention.")
    theirs.to(setup.dtype)
    ours.to(setup.dtype)
    for tokens in prompts:
        contestants = list_contestants(theirs, ours, tokens, caches)
        held = {f"Regard, {name}": measure_cache(ours, tokens, config, setup.new) for name, config in caches.items()}
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
        for turn in range(rounds + 1):  # the first warms up
            for name, generate in contestants.items():
                taken = clock(generate, 1, device), clock(generate, setup.new, device)
                times[name] += [taken] if turn else []
        for name, measured in times.items():
            prompt = statistics.median(first for first, _ in measured)
            step = statistics.median((whole - first) / (setup.new - 1) for first, whole in measured)
            print(
                f"{size:18} {len(tokens):2} {name:26} prompt {prompt:6.3f} s  token {1000 * step:7.2f} ms", flush=True
            )
            row = {"size": size, "batch": len(tokens), "name": name, "prompt_s": prompt, "token_ms": 1000 * step}
            yield row | held.get(name, {})


def clock(generate: Callable[[int], torch.Tensor], new: int, device: str) -> float:
    """Seconds; of the CPU's own time on a CPU, which other processes do not lengthen as they do the wall clock's."""
    now = time.process_time if device == "cpu" else time.perf_counter
    started = now()
    generate(new)
    if device == "cuda":
        torch.cuda.synchronize()
    return now() - started


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
    """Put the tables of the results that are stored between the marks of the pages."""
    for device, setup in SETUPS.items():
        if not (RESULTS / setup.result).exists():
            continue
        stored = json.loads((RESULTS / setup.result).read_text("utf8"))
        start, end = (f"<!-- {slash}decoding:{device} -->\n" for slash in ("", "/"))
        for language, path in PAGES.items():
            before, rest = path.read_text("utf8").split(start)
            path.write_text(before + start + write_table(stored, language) + end + rest.split(end)[1], "utf8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=SETUPS)
    parser.add_argument("--sizes", nargs="*", help="models whose rows are measured anew; all without")
    parser.add_argument("--batches", nargs="*", type=int, default=[1, 8])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="folder of the result, instead of results/ and the pages")
    parser.add_argument("--write", action="store_true", help="only write the tables")
    args = parser.parse_args()
    setup = SETUPS[args.device]
    if not args.write:
        torch.set_num_threads(1)
        sizes = args.sizes or list(setup.sizes)
        processor = torch.cuda.get_device_name() if args.device == "cuda" else machine.processor()
        stored: dict[str, Any] = {"date": str(date.today()), "processor": processor, "versions": machine.versions()}
        path = (args.out or RESULTS) / setup.result
        before = json.loads(path.read_text("utf8"))["rows"] if args.sizes and path.exists() else []
        stored |= {"rows": [row for row in before if row["size"] not in sizes], "failed": []}
        for size in sizes:
            try:
                stored["rows"] += list(measure(args.device, size, args.batches, args.rounds))
            except WrongTokens as error:
                stored["failed"].append(str(error))
            path.write_text(json.dumps(stored, indent=1) + "\n", "utf8")
    if args.out is None:
        write_pages()
    if not args.write and stored["failed"]:
        sys.exit("\n".join(stored["failed"]))


if __name__ == "__main__":
    main()
