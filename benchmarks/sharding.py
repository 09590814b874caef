"""Sharded attention at volume: random calls beside one process, bytes and time beside the plan and torch, predictions.

    python benchmarks/sharding.py                 # all of it, into benchmarks/results/sharding.json and the page
    python benchmarks/sharding.py --only torch    # one part: calls, predictions, gloo, torch
    python benchmarks/sharding.py --only gpu      # processes that share a GPU: random calls over gloo; and NCCL
    python benchmarks/sharding.py --write         # docs/sharding-results.md from the results

`calls` are random calls over 2 to 8 processes in float64 (outputs and all gradients, twice for the same bits); `gloo`
sets the bytes and the time of a forward pass beside the plan's on this machine; `torch` does so beside torch's own
context parallelism, where it can run the mask; `predictions` are the simulator's for five masks.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
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


def gpu_calls(calls: int, first: int) -> dict[str, Any]:
    """Random calls in float32 over processes that share one GPU, over gloo; NCCL takes one process a GPU."""
    sys.path.insert(0, str(ROOT / "tests" / "distributed"))
    from random_shards import run_ranks  # type: ignore[import-not-found]

    rows: list[dict[str, Any]] = []
    runs = (("gloo", 2, calls), ("gloo", 4, calls // 2), ("nccl", 1, calls // 4), ("nccl", 2, 1))
    for messages, ranks, count in runs:
        started, row = time.time(), {"messages": messages, "ranks": ranks, "calls": count, "first": first}
        with tempfile.TemporaryDirectory() as folder:
            try:
                found = [
                    one
                    for rank in run_ranks(ranks, Path(folder), first, first + count, "check_on_gpu", messages)
                    for one in rank["calls"]
                ]
            except Exception as error:
                row["refused"] = str(error).strip()[-600:]
            else:
                worst = max(found, key=lambda one: one["share"])
                row |= {"greatest share of the allowed error": worst["share"], "worst": worst["call"]}
                row["same bits twice"] = all(one["same bits"] for one in found)
        rows.append(row | {"seconds": round(time.time() - started)})
        print(rows[-1], flush=True)
        first += count
    return {"device": torch.cuda.get_device_name(), "rows": rows}


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
    parser.add_argument("--only", choices=["calls", "predictions", "gloo", "torch", "gpu"])
    parser.add_argument("--write", action="store_true", help="write the pages only")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    parts = {
        "predictions": lambda: predictions([(262_144, 16), (1_000_000, 32), (10_000_000, 32), (10_000_000, 512)]),
        "gloo": lambda: [gloo(ranks) for ranks in (2, 3, 4)],
        "torch": lambda: [beside_torch(ranks) for ranks in (2, 4)],
        "calls": lambda: random_calls(args.calls, args.first),
        "gpu": lambda: gpu_calls(args.calls // 5, args.first),
    }
    result = json.loads(args.out.read_text("utf8")) if args.out.is_file() else {}
    all_parts = [name for name in parts if name != "gpu" or torch.cuda.is_available()]
    chosen = [] if args.write else [args.only] if args.only else all_parts
    for name in chosen:
        result |= {"date": date.today().isoformat(), "versions": machine.versions(), "devices": machine.devices()}
        result[name] = parts[name]()
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    write_pages(result)


if __name__ == "__main__":
    main()
