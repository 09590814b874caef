"""The same task, data and updates with five kinds of layers, from mlp to transformer.

    python benchmarks/compare.py --data DIR                     all fifteen, one after another
    python benchmarks/compare.py --data DIR --at-once 15 --seeds 3
    python benchmarks/compare.py --data DIR --times             two epochs of each, alone, to time the second
    python benchmarks/compare.py --data DIR ewt sst2 --set epochs=2 --out runs/compare
    python benchmarks/compare.py --write                        docs/compare.md from results/compare.json

What is the same and what is not is told in `ABOUT`. DIR is as for tasks.py, whose runs these are.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import tasks

RESULTS = tasks.HERE / "results" / "compare.json"
PAGE = tasks.HERE.parent / "docs" / "compare.md"
MODELS = ("mlp", "cnn", "lstm", "lstm+attention", "transformer")

ABOUT = """\
Everything but the layers is the same: embedding, width, depth, head, batches, rate, how often the data is seen. Each
kind knows the order of words by its own means: a transformer by distances, a convolution and an LSTM by how they go
through the text, the mlp (which sees one word at a time) not at all; in translation all are told each word's place. A
decoder reads the source by attention if it is a transformer or has "+attention" (Luong's, after the last LSTM), and the
mean of the encoded source if not: that is what attention was invented to replace. In tagging and sentiment "+attention"
looks at the LSTM's own states. Embedding and head have the same dropout; between layers the LSTM and the transformer
have it too, the mlp and the convolution do not. The LSTM's last states have the norm that the transformer has; the mlp
and the convolution have residuals and no norm."""

LAYERS = {"dim": 256, "hidden": 512, "layers": 2, "heads": 4, "dropout": 0.3, "attention_dropout": 0.0}
LEARNING = {"rate": 1e-3, "schedule": "cosine", "warmup": 200, "ema": 0.995, "weight_decay": 0.01, "clip": 1.0}
ORDER = {"places": "none", "position": "T5Bias()"}
SAME: dict[str, dict[str, Any]] = {
    "ewt": {**LAYERS, **LEARNING, **ORDER, "batch_tokens": 1024, "epochs": 10},
    "sst2": {
        **LAYERS,
        **LEARNING,
        **ORDER,
        **{"members": 1, "wide": 0, "grams": 0, "pool": "mean", "batch_size": 64, "epochs": 10},
    },
    "multi30k-en-de": {
        **LAYERS,
        **LEARNING,
        **{"places": "sinusoidal", "pre_norm": "true", "agreement": 0, "batch_tokens": 8192},
        **{"epochs": 20, "steps": "none", "evaluate_every": 500, "save_every": 1000},
    },
}
"""The settings of each task that all models share, on top of its recipe."""
ALONE = {"epochs": 2, "evaluate_every": 10**6}
"""What differs in a run that is only timed: in its first epoch kernels are compiled, its second is the one to time."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", help=f"{', '.join(SAME)}; all unless given")
    parser.add_argument("--data", type=Path, help="where the data sets are")
    parser.add_argument("--out", type=Path, default=Path("runs/compare"), help="where the runs go")
    parser.add_argument("--seeds", type=int, default=1, help="how many times each is trained")
    parser.add_argument("--at-once", type=int, default=1, help="how many processes share the device")
    parser.add_argument("--set", action="append", default=[], help="a setting of every run, name=value")
    parser.add_argument("--times", action="store_true", help="time an epoch of each, alone")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--write", action="store_true", help="write docs/compare.md from results/compare.json")
    given = parser.parse_args()
    if given.write:
        PAGE.write_text(page(json.loads(RESULTS.read_text("utf8"))), "utf8")
        return
    if given.data is None:
        parser.error("--data DIR says where the data sets are")
    extra = dict(pair.split("=", 1) for pair in given.set)
    if given.worker:
        job = Compared.read(given.worker)
        if given.times:
            job = replace(job, settings=job.settings | ALONE | extra)
            job.train(0, given.data, given.out / "alone" / job.name, {})
        else:
            tasks.work(replace(job, settings=job.settings | extra), given.data, given.out, {})
        return
    share(jobs(given.tasks or list(SAME), 1 if given.times else given.seeds), given)
    found = gathered(given.out, given.at_once)
    if not found["rows"]:
        return  # timed, and nothing was trained yet that the times belong to
    for path in (given.out / "compare.json", RESULTS):
        path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf8")
    print(page(found))


@dataclass(frozen=True)
class Compared(tasks.Job):
    """A task with one of the models."""

    @classmethod
    def read(cls, text: str) -> Compared:
        """The job that TASK:MODEL:SEED names."""
        name, model, seed = text.split(":")
        row = next(row for row in tasks.ROWS if row.recipe == name)
        return cls(row, (int(seed),), {"model": model, **SAME[name]})

    @property
    def name(self) -> str:
        return f"{self.row.recipe}-{self.settings['model']}"


def jobs(names: list[str], seeds: int) -> list[str]:
    """TASK:MODEL:SEED of each, the slow ones first."""
    unknown = [name for name in names if name not in SAME]
    if unknown:
        raise SystemExit(f"There is no comparison {unknown[0]!r}. There are {', '.join(SAME)}.")
    return [f"{name}:{model}:{seed}" for seed in range(seeds) for name in reversed(names) for model in reversed(MODELS)]


def share(jobs: list[str], given: argparse.Namespace) -> None:
    """Run the jobs in processes of their own, so many at once."""
    given.out.mkdir(parents=True, exist_ok=True)
    changed = [word for one in given.set for word in ("--set", one)]
    options = ["--data", str(given.data), "--out", str(given.out), *changed, *(["--times"] if given.times else [])]

    def run(job: str) -> None:
        with (given.out / f"{job.replace(':', '-')}{'-alone' if given.times else ''}.log").open("w") as log:
            command = [sys.executable, __file__, "--worker", job, *options]
            ended = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT)
        print(f"{time.strftime('%H:%M:%S')} {job}: {'FAILED' if ended.returncode else 'done'}", flush=True)

    with ThreadPoolExecutor(1 if given.times else given.at_once) as pool:
        list(pool.map(run, jobs))


def gathered(out: Path, at_once: int) -> dict[str, Any]:
    """What the runs in a folder found, a row a task and model, and how long an epoch of each takes alone, if known."""
    runs = []
    for path in sorted(out.glob("*/result.json")):
        runs.append({**json.loads(path.read_text("utf8")), "epoch": seconds_of_an_epoch(path.parent)})
    alone = {path.parent.name: seconds_of_an_epoch(path.parent, -1) for path in out.glob("alone/*/log.jsonl")}
    rows, same = [], {}
    for name, model in ((name, model) for name in SAME for model in MODELS):
        own = [run for run in runs if run["recipe"] == name and run["settings"].get("model") == model]
        row = next(row for row in tasks.ROWS if row.recipe == name)
        scores = [row.times * (run["test"] or run["dev"])[row.metric] for run in own]
        if own:
            same.setdefault(name, {key: value for key, value in own[0]["settings"].items() if key != "model"})
            spread = {"sd": stdev(scores)} if len(scores) > 1 else {}
            sizes = {name: median(run[name] for run in own) for name in ("parameters", "steps", "epoch")}
            timed = {"alone": alone[f"{name}-{model}"]} if f"{name}-{model}" in alone else {}
            rows.append(
                {"task": name, "model": model, "scores": scores, "mean": mean(scores), **spread, **sizes, **timed}
            )
    said = {key: runs[0][key] for key in ("device", "versions", "date")} if runs else {}
    return {**said, "at once": at_once, "same": same, "rows": rows}


def seconds_of_an_epoch(folder: Path, which: int | None = None) -> float:
    """The time of an epoch's updates, without reading files, evaluation and checkpoints: of one of them, or the median.

    For the median the last epoch, which may have been cut short, counts only if there is no other.
    """
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text("utf8").splitlines()]
    epochs: dict[int, list[float]] = {}
    for line in lines:
        if line["kind"] == "step":
            epochs.setdefault(line["epoch"], []).append(line["time"])
    every = list(epochs.values())
    whole = (every[:-1] or every) if which is None else [every[which]]
    spans = [(times[-1] - times[0]) * len(times) / (len(times) - 1) for times in whole if len(times) > 1]
    return median(spans) if spans else 0.0


def page(found: dict[str, Any]) -> str:
    """The page that shows the table."""
    rows = {(row["task"], row["model"]): row for row in found["rows"]}
    titles = {row.recipe: row.what for row in tasks.ROWS}
    lines = ["# Attention beside other layers", "", *ABOUT.splitlines(), ""]
    for name in (name for name in SAME if any(task == name for task, _ in rows)):
        lines += [
            f"## {titles[name]}",
            "",
            "| layers | score | parameters | updates | seconds an epoch |",
            "| --- | --- | --- | --- | --- |",
        ]
        lines += [f"| {model} | {shown(rows[name, model])} |" for model in MODELS if (name, model) in rows]
        same = ", ".join(f"{key} {value}" for key, value in found["same"][name].items())
        lines += ["", f"The same for all: {same}.", ""]
    missing = [titles[name] for name in SAME if not any(task == name for task, _ in rows)]
    lines += [f"Not measured yet: {'; '.join(missing)}.", ""] if missing else []
    lines += [line for note in found.get("notes", ()) for line in (note, "")]
    counts = sorted({len(row["scores"]) for row in found["rows"]})
    how = f"{found.get('device', 'no device')}, {found.get('date', '')}, {found['at once']} runs at a time"
    timed = "An epoch's seconds are those of a run that had the device to itself."
    if not all("alone" in row for row in found["rows"]):
        timed = "Runs that share a device wait for each other: trust the order of the times and not the seconds."
    lines += [f"Seeds: {', '.join(map(str, counts))}. Measured on {how}. {timed}"]
    lines += ["Made by `benchmarks/compare.py`."]
    return "\n".join(lines) + "\n"


def shown(row: dict[str, Any]) -> str:
    spread = f" ± {row['sd']:.2f}" if "sd" in row else ""
    size, seconds = row["parameters"] / 1e6, row.get("alone", row["epoch"])
    return f"{row['mean']:.2f}{spread} | {size:.2f}M | {row['steps']:,.0f} | {seconds:.1f}"


if __name__ == "__main__":
    main()
