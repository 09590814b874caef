"""Tries settings of fine-tuning on held-out parts of training data, several runs at once on one GPU.

    python benchmarks/finetune_search.py --model MINILM --data DIR --out FOLDER [--processes 6] [--seconds 150]

MINILM and DIR are as for finetune.py. SST-2 is tested on its dev file and TREC on a stratified tenth of its training
data; each run holds another tenth of the rest out, by its seed, and the settings are compared by that tenth alone. The
outputs of each run are kept, so that means of several models can be compared afterwards.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any


def grid() -> list[tuple[str, str]]:
    """(name, settings) of all recipes, the most promising first."""
    base = "epochs=8"
    rows = {
        "4 epochs": "epochs=4",
        "8 epochs": base,
        "8, r_drop 1": f"{base},r_drop=1",
        "8, adversarial .3": f"{base},adversarial=0.3,r_drop=1",
        "8, word dropout .1": f"{base},word_dropout=0.1",
        "8, smoothing .1": f"{base},label_smoothing=0.1",
        "8, ema .995": f"{base},ema=0.995",
        "8, decay .8": f"{base},layer_decay=0.8",
        "8, rate 4e-4": f"{base},learning_rate=4e-4",
        "8, rate 1e-4": f"{base},learning_rate=1e-4",
        "12, all": "epochs=12,r_drop=1,word_dropout=0.1,label_smoothing=0.1,ema=0.99,attention_dropout=0.1",
        "8, adversarial 1": f"{base},adversarial=1,r_drop=1",
        "8, r_drop 4": f"{base},r_drop=4",
        "8, dropout .2": f"{base},dropout=0.2,attention_dropout=0.1",
        "8, first": f"{base},pool=first",
        "8, attention": f"{base},pool=attention",
        "8, batch 16": f"{base},batch_size=16,learning_rate=1.4e-4",
        "16, r_drop 1": "epochs=16,r_drop=1,word_dropout=0.1",
        "8, decay 1, 1e-4": f"{base},layer_decay=1,learning_rate=1e-4",
        "12, adversarial + word dropout": "epochs=12,adversarial=0.3,r_drop=1,word_dropout=0.1,ema=0.99",
    }
    return list(rows.items())


def work(index: int, jobs: Any, results: Any, args: argparse.Namespace, end: float) -> None:
    import torch
    from finetune import find, make_config

    from regard.data.reading import Reading
    from regard.tasks.classify import Classify
    from regard.train.run import read_data
    from regard.train.trainer import Trainer

    torch.set_num_threads(2)
    args.epochs = None
    parts: dict[str, Any] = {}
    while True:
        try:
            name, settings, data, seed = jobs.get(timeout=1)
        except Exception:
            return
        if time.time() > end:
            continue
        changes = dict(change.split("=", 1) for change in settings.split(","))
        config = make_config(data, args, seed, changes)
        if data not in parts:
            every = read_data(make_config(data, args, 0, {}), lambda faults: None)
            parts[data] = every.train, every.validation
        train, test = parts[data]
        own, held = Classify.split(Reading(tuple(train)), 0.1, 100 + seed)
        began = time.perf_counter()
        outputs: dict[str, Any] = {}

        def keep(model: Any, scores: Any) -> None:
            outputs["seconds"] = time.perf_counter() - began
            for part, examples in (("held out", held.examples), ("test", test)):
                logits = task.logits(model, examples)
                outputs[part] = task.target.scores(logits, [e.label for e in examples]).metrics["accuracy"]
                outputs[f"{part} loss"] = task.target.scores(logits, [e.label for e in examples]).metrics["loss"]
                outputs[f"{part} logits"] = [[round(x, 4) for x in row] for row in logits.tolist()]

        try:
            torch.manual_seed(seed)
            task = config.prepare(own.examples)
            model = task.config(config.architecture).build()
            model.tokenizer = task.tokenizer
            task.initialize(model)
            with tempfile.TemporaryDirectory() as folder:
                trainer = Trainer(task, model, own.examples, held.examples, config.training, Path(folder), keep)
                trainer.save = lambda: None
                trainer.fit()
        except Exception as error:
            outputs["error"] = repr(error)[:500]
        results.put({"recipe": name, "settings": settings, "data": data, "seed": seed, **outputs})
        torch.cuda.empty_cache() if torch.cuda.is_available() else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=140.0)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--only", nargs="*", default=["sst2", "trec"])
    parser.add_argument("--recipes", nargs="*")
    args = parser.parse_args()
    import torch.multiprocessing as processes

    context = processes.get_context("spawn")
    jobs, results = context.Queue(), context.Queue()
    recipes = [row for row in grid() if not args.recipes or row[0] in args.recipes]
    total = 0
    for seed in range(args.seeds):
        for name, settings in recipes:
            for data in args.only:
                jobs.put((name, settings, data, seed))
                total += 1
    end = time.time() + args.seconds
    workers = [context.Process(target=work, args=(n, jobs, results, args, end)) for n in range(args.processes)]
    for worker in workers:
        worker.start()
    rows: list[dict[str, Any]] = []
    while any(worker.is_alive() for worker in workers) or not results.empty():
        try:
            rows.append(results.get(timeout=0.5))
        except Exception:
            continue
        row = rows[-1]
        print(f"{row['data']:5} {row['seed']} {row['recipe']:34}", row.get("error") or
              f"{100 * row['held out']:.2f} {100 * row['test']:.2f} {row['seconds']:.1f} s", flush=True)
        if time.time() > end + 25:
            for worker in workers:
                worker.kill()
            break
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "search.json").write_text(json.dumps(rows))
    print(f"{len(rows)} of {total} runs")
    for data in args.only:
        for name, _ in recipes:
            own = [row for row in rows if row["recipe"] == name and row["data"] == data and "error" not in row]
            if own:
                means = [100 * statistics.mean(row[key] for row in own) for key in ("held out", "test")]
                seconds = statistics.mean(row["seconds"] for row in own)
                print(f"{data:5} {name:34} {len(own)} held out {means[0]:.2f} test {means[1]:.2f} {seconds:.1f} s")


if __name__ == "__main__":
    main()
