"""One long sequence trained on several processes: losses beside one process, and the memory of each.

    python benchmarks/long_training.py --tokens 131072 --ranks 1 2 4

A small language model with rotary positions and a causal window reads blocks of that many tokens, with
`sequence_parallel` set to the number of processes (gloo). Written to `benchmarks/results/long_training.json`: losses
of every step, their greatest difference from one process and that of the weights after the last, and the peak memory
of a process above what it had after training on short blocks, as `peak_memory.py` measures it. `resident` is measured
twice: with malloc as it is, which keeps freed blocks for the next ones, and with blocks of a megabyte or more given
back at once (`MALLOC_MMAP_THRESHOLD_`), which takes time. Losses are float32 sums over the block: 131,072 of them are
exact to 2.4e-7.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

import torch
from torch import Tensor

from peak_memory import PeakMemory
from regard import machine
from regard.data.text import Document
from regard.settings import Training
from regard.tasks import find_task
from regard.tasks.architecture import Architecture
from regard.train.checkpoints import CheckpointStore, read_tensors
from regard.train.trainer import Trainer, TrainEvent

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "long_training.json"
WINDOW, DIM, LAYERS, HEADS = 255, 64, 2, 4
WARM_TOKENS = 1024
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
"""Makes glibc map every block of a megabyte by itself, and unmap it when it is freed."""


def make_trainer(tokens: int, steps: int, ranks: int, folder: Path, losses: list[float]) -> Trainer:
    """The trainer of the small language model on blocks of so many tokens; `losses` get those of every step."""
    draw = random.Random(0)
    text = "".join(draw.choice("abcdefgh \n") for _ in range(2 * tokens + tokens // 2))
    task_class = find_task("lm")
    task = task_class.prepare([Document(text, "a")], task_class.Settings(context=tokens))
    shape = {"dim": DIM, "layers": LAYERS, "heads": HEADS, "dropout": 0.0, "positions": "none"}
    torch.manual_seed(0)
    model = task.config(Architecture(**shape, position="Rotary()", mask=f"Window({WINDOW})")).build()
    limits = {"epochs": None, "steps": steps, "batch_size": 1, "warmup": 1, "evaluate_every": 10**6}
    training = Training(**limits, save_every=10**6, device="cpu", sequence_parallel=ranks)

    def on_event(event: TrainEvent) -> None:
        if event.name == "step":
            losses.append(event.values["loss"])

    data = [Document(text, "a")], [Document(text[:2000], "b")]
    return Trainer(task, model, *data, training, folder, lambda m, s: None, on_event)


def train(tokens: int, steps: int, ranks: int, out: Path) -> None:
    """Train in this process, one of `ranks`, first on short blocks: what is loaded and kept then does not count."""
    losses: list[float] = []
    make_trainer(WARM_TOKENS, 1, ranks, out / "warm", []).fit()
    trainer = make_trainer(tokens, steps, ranks, out / "run", losses)
    started = time.time()
    with PeakMemory() as memory:
        trainer.fit()
    seconds = time.time() - started
    own = {"allocated": memory.allocated, "resident": memory.resident, "seconds": seconds, "losses": losses}
    (out / f"rank{os.environ.get('RANK', '0')}.json").write_text(json.dumps(own))


def measure(tokens: int, steps: int, ranks: int) -> tuple[dict, dict[str, Tensor]]:
    """What so many processes found, and the weights after the last step."""
    found, weights = run_ranks(tokens, steps, ranks, {})
    returned, _ = run_ranks(tokens, steps, ranks, GIVE_BACK)
    if returned[0]["losses"] != found[0]["losses"]:
        raise SystemExit(f"{ranks} processes: two runs have different losses")
    row = {
        "ranks": ranks,
        "losses": found[0]["losses"],
        "allocated by a rank, MB": [one["allocated"] for one in found],
        "resident of a rank, MB": [one["resident"] for one in found],
        "seconds": round(found[0]["seconds"], 1),
        "freed blocks given back": {
            "resident of a rank, MB": [one["resident"] for one in returned],
            "seconds": round(returned[0]["seconds"], 1),
        },
    }
    return row, weights


def run_ranks(tokens: int, steps: int, ranks: int, variables: dict[str, str]) -> tuple[list[dict], dict[str, Tensor]]:
    """What each of so many processes found, and the weights after the last step."""
    with tempfile.TemporaryDirectory() as folder:
        own = [
            __file__,
            "--out",
            folder,
            "--tokens",
            str(tokens),
            "--steps",
            str(steps),
            "--ranks",
            str(ranks),
            "--child",
        ]
        launcher = ["-m", "torch.distributed.run", f"--nproc_per_node={ranks}", "--standalone"] if ranks > 1 else []
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", **variables}
        subprocess.run([sys.executable, *launcher, *own], check=True, env=environment)
        found = [json.loads((Path(folder) / f"rank{rank}.json").read_text()) for rank in range(ranks)]
        latest = CheckpointStore(Path(folder) / "run" / "checkpoints").latest()
        assert latest is not None
        weights = {name: x.clone() for name, x in read_tensors(latest[1] / "model.safetensors").items()}
    return found, weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=131_072)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        train(args.tokens, args.steps, args.ranks[0], args.out)
        return
    runs = [measure(args.tokens, args.steps, ranks) for ranks in args.ranks]
    rows, (first, single) = [row for row, _ in runs], runs[0]
    for row, weights in runs:
        pairs = zip(row["losses"], first["losses"], strict=True)
        row["greatest difference of a loss"] = max(abs(a - b) for a, b in pairs)
        row["greatest difference of a weight"] = max(float((weights[n] - x).abs().max()) for n, x in single.items())
        print(row, flush=True)
    result = {
        "date": date.today().isoformat(),
        "versions": machine.versions(),
        "devices": machine.devices(),
        "tokens": args.tokens,
        "model": f"{LAYERS} layers, dim {DIM}, {HEADS} heads, Rotary(), Causal() & Window({WINDOW}), float32",
        "runs": rows,
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
