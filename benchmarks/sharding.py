"""Sharded attention at volume: random calls beside one process, bytes and time beside the plan and torch, predictions.

    python benchmarks/sharding.py                 # all of it, into benchmarks/results/sharding.json and the page
    python benchmarks/sharding.py --only torch    # one part: calls, predictions, gloo, torch
    python benchmarks/sharding.py --only gpu      # random calls of two processes that share a GPU, in 100 seconds
    python benchmarks/sharding.py --write         # docs/sharding-results.md from the results

`calls` are random calls over 2 to 8 processes in float64 (outputs and all gradients, twice for the same bits); `gloo`
sets the bytes and the time of a forward pass beside the plan's on this machine; `torch` does so beside torch's own
context parallelism, where it can run the mask; `predictions` are the simulator's for five masks. `gpu` are random calls
in float32, bfloat16 and float16 beside the reference in float64, each error a share of what is allowed; what is beyond
it is computed in one process too. The pages are written once there are results of all parts but `gpu`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

import torch

import regard as rg
from regard import machine
from regard.distributed.simulate import simulate
from sharding_page import write_pages

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "sharding.json"
SHARES = {2: 0.3, 3: 0.3, 4: 0.25, 8: 0.15}
"""Ranks, and the part of the calls that they share."""
GPU_RANKS = 2
PARTS = ("predictions", "gloo", "torch", "calls")
"""What the pages need; `gpu` is measured where there is one."""


def random_calls(calls: int, first: int) -> list[dict[str, float | int | bool]]:
    """Random calls over several numbers of processes, numbered from `first` on."""
    sys.path.insert(0, str(ROOT / "tests" / "distributed"))
    from random_shards import run_ranks  # type: ignore[import-not-found]

    rows = []
    for ranks, share in SHARES.items():
        last, started = first + round(calls * share), time.time()
        with tempfile.TemporaryDirectory() as folder:
            found = [one for rank in run_ranks(ranks, Path(folder), first, last) for one in rank["calls"]]
        row = {
            "ranks": ranks,
            "calls": last - first,
            "first": first,
            "greatest error": max(one["error"] for one in found),
            "greatest error of views": max(one["view error"] for one in found),
            "same bits twice": all(one["same bits"] for one in found),
            "bytes equal the plan's": all(one["bytes"][0] == one["bytes"][1] for one in found),
            "seconds": round(time.time() - started),
        }
        print(row, flush=True)
        rows.append(row)
        first = last
    return rows


def gpu_calls(calls: int, first: int, seconds: float, groups: int) -> dict[str, Any]:
    """Random calls over two processes that share one GPU, over gloo, in several such groups at a time.

    No call is begun after so many seconds. Without a GPU the kernels run in Triton's interpreter.
    """
    gpu, started = torch.cuda.is_available(), time.time()
    if not gpu and os.environ.get("TRITON_INTERPRET") != "1":
        sys.exit("Part gpu needs a GPU, or TRITON_INTERPRET=1.")
    starts = [first + calls * n // groups for n in range(groups + 1)]
    with ThreadPoolExecutor(groups) as threads:
        made = list(threads.map(lambda span: gpu_group(span, started + seconds), itertools.pairwise(starts)))
    found, errors = [one for calls, _ in made for one in calls], [error for _, error in made if error]
    rows = []
    for dtype in dict.fromkeys(one["dtype"] for one in found):
        own = [one for one in found if one["dtype"] == dtype]
        worst = max(own, key=lambda one: one["share"])
        row = {"dtype": dtype, "calls": len(own), "tensors": sum(one["tensors"] for one in own)}
        row |= {"greatest share of the allowed error": worst["share"], "worst": f"{worst['worst']} of {worst['call']}"}
        beyond = [one for one in own if one["share"] > 1]
        row["beyond what is allowed"] = len(beyond)
        row["in one process too"] = sum(one["share of one process"] > 1 for one in beyond)
        rows.append(row | {name: all(one[name] for one in own) for name in ("same bits", "same bits on all ranks")})
        print(rows[-1], flush=True)
    options = f"--gpu-calls {calls} --first {first} --gpu-seconds {seconds:g} --gpu-groups {groups}"
    return {
        "date": date.today().isoformat(),
        "device": torch.cuda.get_device_name() if gpu else "Triton's interpreter",
        "versions": machine.versions(),
        "command": f"python benchmarks/sharding.py --only gpu {options}",
        "ranks": GPU_RANKS,
        "calls": len(found),
        "calls by kernels": dict(Counter(one["kernels"] for one in found)),
        "rows": rows,
        "seconds": round(time.time() - started),
    } | ({"errors": errors} if errors else {})


def gpu_group(span: tuple[int, int], end: float) -> tuple[list[dict[str, Any]], str]:
    """What one group found in its calls, and the error that ended them."""
    sys.path.insert(0, str(ROOT))
    from tests.processes import run_processes

    error = ""
    with tempfile.TemporaryDirectory() as folder:
        arguments = ("tests.distributed.random_shards", "check_on_gpu", GPU_RANKS, Path(folder), *span, end)
        try:
            run_processes(*arguments, timeout=end - time.time() + 90)
        except AssertionError as raised:
            error = str(raised).strip()[-1500:]
        found = Path(folder) / "rank0.json"
        return json.loads(found.read_text())["calls"] if found.is_file() else [], error


def masks(tokens: int) -> dict[str, rg.Mask]:
    """The masks whose cost is predicted."""
    starts = torch.rand(1, tokens, generator=torch.Generator().manual_seed(0)) < 1 / 8000
    block = 64 if tokens < 1 << 19 else 512  # random blocks are drawn for every pair of blocks
    return {
        "causal": rg.Causal(),
        "causal window of 4096": rg.Causal() & rg.Window(4095),
        "documents of 8000": rg.Documents(starts.long().cumsum(1)) & rg.Causal(),
        "Longformer 512": rg.longformer(512),
        f"BigBird, blocks of {block}": rg.bigbird(block),
    }


def predictions(sizes: list[tuple[int, int]]) -> list[dict[str, Any]]:
    """What the simulator predicts, by tokens, ranks and mask."""
    rows = []
    for tokens, ranks in sizes:
        for name, mask in masks(tokens).items():
            rows.append({"tokens": tokens, "ranks": ranks, "mask": name, "link": "infiniband"})
            rows[-1]["methods"] = [asdict(one) for one in simulate(mask, tokens, ranks)]
            print(tokens, ranks, name, rows[-1]["methods"][0]["method"], flush=True)
    return rows


def measure(what: str, ranks: int) -> list[list[dict[str, Any]]]:
    """What every process of `sharding_gloo.py` found."""
    program = str(Path(__file__).with_name("sharding_gloo.py"))
    with tempfile.TemporaryDirectory() as folder:
        commands = [[sys.executable, program, str(rank), str(ranks), folder, what] for rank in range(ranks)]
        processes = [subprocess.Popen(command) for command in commands]
        if any([process.wait() for process in processes]):
            sys.exit(f"{what} with {ranks} processes failed.")
        return [json.loads((Path(folder) / f"rank{rank}.json").read_text()) for rank in range(ranks)]


def gloo(ranks: int) -> dict[str, Any]:
    """Plan and measurement of each mask over so many processes."""
    rows = []
    for same in zip(*measure("gloo", ranks), strict=True):
        row = {name: same[0][name] for name in ("mask", "strategy", "seconds", "seconds planned", "link")}
        row["bytes received"] = [one["bytes received"] for one in same]
        row["bytes equal the plan's"] = all(one["bytes received"] == one["bytes planned"] for one in same)
        row["bytes of an all-gather"] = same[0]["bytes of an all-gather"]
        rows.append(row)
        print(ranks, row, flush=True)
    return {"ranks": ranks, "rows": rows}


def beside_torch(ranks: int) -> dict[str, Any]:
    """Ours and torch's context parallelism over so many processes."""
    rows = []
    for same in zip(*measure("torch", ranks), strict=True):
        row = dict(same[0])
        row["greatest difference"] = max(one["greatest difference"] for one in same)
        row["bytes"] = [one["bytes"] for one in same]
        rows.append(row)
        print(ranks, row, flush=True)
    return {"ranks": ranks, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--first", type=int, default=1000, help="the number of the first random call")
    parser.add_argument("--gpu-calls", type=int, default=60)
    parser.add_argument("--gpu-seconds", type=float, default=75, help="no call on the GPU is begun after these")
    parser.add_argument("--gpu-groups", type=int, default=4, help="groups of processes that make calls at once")
    parser.add_argument("--only", choices=[*PARTS, "gpu"])
    parser.add_argument("--write", action="store_true", help="write the pages only")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    parts = {
        "predictions": lambda: predictions([(262_144, 16), (1_000_000, 32), (10_000_000, 32), (10_000_000, 512)]),
        "gloo": lambda: [gloo(ranks) for ranks in (2, 3, 4)],
        "torch": lambda: [beside_torch(ranks) for ranks in (2, 4)],
        "calls": lambda: random_calls(args.calls, args.first),
        "gpu": lambda: gpu_calls(args.gpu_calls, args.first, args.gpu_seconds, args.gpu_groups),
    }
    result = json.loads(args.out.read_text("utf8")) if args.out.is_file() else {}
    all_parts = [name for name in parts if name != "gpu" or torch.cuda.is_available()]
    chosen = [] if args.write else [args.only] if args.only else all_parts
    for name in chosen:
        if name != "gpu":  # which says itself where it was measured
            result |= {"date": date.today().isoformat(), "versions": machine.versions(), "devices": machine.devices()}
        result[name] = parts[name]()
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if all(name in result for name in PARTS):
        write_pages(result)
    if "gpu" in chosen and (reason := gpu_fault(result["gpu"])):
        sys.exit(reason)


def gpu_fault(found: dict[str, Any]) -> str:
    """What is wrong with the calls on the GPU; nothing where they are as right as in one process."""
    if found.get("errors") or not found["rows"]:
        return "\n".join(["Not all calls were made.", *found.get("errors", [])])
    wrong = [row["worst"] for row in found["rows"] if row["beyond what is allowed"] > row["in one process too"]]
    bits = all(row["same bits"] and row["same bits on all ranks"] for row in found["rows"])
    return "\n".join([*wrong, *([] if bits else ["Some calls gave other bits the second time, or on another rank."])])


if __name__ == "__main__":
    main()
