"""Tries settings of fine-tuning on held-out parts of training data, several runs at once on one GPU.

    python benchmarks/finetune_search.py --model MINILM --data DIR --out FOLDER [--processes 4] [--seconds 150]

MINILM and DIR are as for finetune.py. SST-2 is tested on its dev file and TREC on a stratified tenth of its training
data; each run holds a further part out, by its seed, and only that part is used to compare settings. The outputs of
each model of a run are kept, so that means of several models can be compared afterwards.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from queue import Empty
from typing import Any

import torch
import torch.multiprocessing as processes

from finetune import make_config
from regard.data.reading import Reading
from regard.models.ensemble import EnsembleModel
from regard.tasks.classify import Classify
from regard.train.run import RunConfig, read_data
from regard.train.trainer import Trainer

Parts = dict[str, Sequence[Any]]


def search_work(jobs: Any, results: Any, args: argparse.Namespace, end: float) -> None:
    """Train one run after another until no job or no time is left."""
    torch.set_num_threads(2)
    data: dict[str, Any] = {}
    while time.time() < end:
        try:
            settings, name, seed = jobs.get(timeout=2)
        except Empty:
            return
        if name not in data:
            data[name] = read_data(make_config(name, args, 0, {}), lambda faults: None)
        config = make_config(name, args, seed, dict(change.split("=", 1) for change in settings.split(",") if change))
        own, held = Classify.split(Reading(tuple(data[name].train)), args.held_out, 100 + seed)
        parts = {"train": own.examples, "held out": held.examples, "test": data[name].validation}
        row = {"settings": settings, "data": name, "seed": seed}
        try:
            row |= train_once(config, parts)
        except Exception as error:  # one recipe that fails does not end the others
            row["error"] = repr(error)[:500]
        results.put(row)


def train_once(config: RunConfig, parts: Parts) -> dict[str, Any]:
    """Seconds of training, and the accuracy on the other parts with the outputs of each model."""
    began, row = time.perf_counter(), {}
    torch.manual_seed(config.training.seed)
    task = config.prepare(parts["train"])
    model = task.config(config.architecture).build()
    model.tokenizer = task.tokenizer
    task.initialize(model)

    def score(model: Any, scores: Any) -> None:
        row["seconds"] = time.perf_counter() - began
        for part in ("held out", "test"):
            own = getattr(model, "model_logits", None)
            forward = own if isinstance(model, EnsembleModel) else lambda inputs: model(**inputs).logits[None]
            logits = task.collect(forward, parts[part], model.device)
            combined = model.combine(logits) if isinstance(model, EnsembleModel) else logits[0]
            gold = task.target.tensor([example.label for example in parts[part]])
            row[part] = float((combined.argmax(-1) == gold).float().mean())
            row[f"{part} logits"] = [[[round(x, 3) for x in line] for line in one] for one in logits.tolist()]
            row[f"{part} labels"] = gold.tolist()

    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(task, model, parts["train"], parts["held out"], config.training, Path(folder), score)
        trainer.save = partial(int)  # type: ignore[method-assign]
        trainer.fit()
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--held-out", type=float, default=0.1)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=140.0, help="no run begins after these")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--only", nargs="*", default=["sst2", "trec"])
    parser.add_argument("--settings", nargs="*", default=["epochs=4", "epochs=8"], metavar="NAME=VALUE,…")
    args = parser.parse_args()
    context = processes.get_context("spawn")
    jobs, results = context.Queue(), context.Queue()
    runs = [(settings, name, seed) for seed in range(args.seeds) for settings in args.settings for name in args.only]
    for run in runs:
        jobs.put(run)
    given = jobs, results, args, time.time() + args.seconds
    workers = [context.Process(target=search_work, args=given) for _ in range(args.processes)]
    for worker in workers:
        worker.start()
    rows: list[dict[str, Any]] = []
    args.out.mkdir(parents=True, exist_ok=True)
    while any(worker.is_alive() for worker in workers) or not results.empty():
        try:
            row = results.get(timeout=0.5)
        except Empty:
            continue
        rows.append(row)
        scores = row.get("error") or f"{100 * row['held out']:.2f} {100 * row['test']:.2f} {row['seconds']:.1f} s"
        print(f"{row['data']:5} {row['seed']} {row['settings']:40} {scores}", flush=True)
        (args.out / "search.json").write_text(json.dumps(rows))
    print(f"{len(rows)} of {len(runs)} runs")
    for name in args.only:
        for settings in args.settings:
            own = [r for r in rows if (r["settings"], r["data"]) == (settings, name) and "error" not in r]
            if own:
                means = [100 * statistics.mean(row[part] for row in own) for part in ("held out", "test")]
                print(f"{name:5} {settings:40} {len(own)} runs, held out {means[0]:.2f}, test {means[1]:.2f}")


if __name__ == "__main__":
    main()
