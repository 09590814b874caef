"""Trains the recipes and scores them: every result of docs/results.md, on your own copy of the data.

    python benchmarks/tasks.py --data DIR                    all of them, one after another
    python benchmarks/tasks.py --data DIR --at-once 12 multi30k-en-de:0,1,2 cora:0-99
    python benchmarks/tasks.py --data DIR mnist-vit:0:epochs=2,learning_rate=1e-3 --out runs
    python benchmarks/tasks.py --write                       the pages from results/tasks.json

A job is RECIPE[:SEEDS[:name=value,…]]. Small models leave a GPU waiting for the processor, so several may share it
(`--at-once`). Each run has a folder as `regard train` writes it; scores, size and time are collected in OUT/tasks.json.
The same command again runs the jobs that have no result in OUT.
`ROWS` lists the files in DIR, named as the data sets are published; `make_split_file` and prepare.py write the others.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "tasks.json"


@dataclass(frozen=True)
class TaskBenchmark:
    """A row of the table: a recipe, its training, validation and test files, its metric and its goal.

    `test` is evaluated once, at the end; without it `split` names the test split of the files, or `dev` is reported.
    `metric` is multiplied by `factor`. `anchor` is a published result, `goal` a minimum (a maximum if
    `lower_is_better`).
    """

    recipe: str
    title: str
    train: tuple[str, ...]
    dev: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    split: str = ""
    metric: str = "accuracy"
    factor: float = 100.0
    seeds: int = 3
    anchor: str = ""
    goal: float | None = None
    lower_is_better: bool = False


def multi30k_files(language: str) -> dict[str, Any]:
    files = {"train": "train", "dev": "val", "test": "test_2016_flickr"}
    return {k: tuple(f"multi30k/{name}.{code}.gz" for code in ("en", language)) for k, name in files.items()}


ROWS = (
    TaskBenchmark(
        "multi30k-en-de",
        "Multi30k en→de, test 2016, tokenised lower-case BLEU",
        **multi30k_files("de"),
        metric="bleu",
        factor=1,
        anchor="41.02 (Wu et al. 2021, 2.6M)",
        goal=41.5,
    ),
    TaskBenchmark(
        "multi30k-en-fr",
        "Multi30k en→fr, test 2016, tokenised lower-case BLEU",
        **multi30k_files("fr"),
        metric="bleu",
        factor=1,
        anchor="61.8 (Wu et al. 2021, 2.6M)",
        goal=62.2,
    ),
    TaskBenchmark(
        "tatoeba-en-zh",
        "Tatoeba en→zh, dev, BLEU of characters",
        ("tatoeba-en-zh/train.tsv",),
        ("tatoeba-en-zh/dev.tsv",),
        metric="bleu",
        factor=1,
    ),
    TaskBenchmark(
        "tatoeba-zh-en",
        "Tatoeba zh→en, dev, BLEU",
        ("tatoeba-en-zh/train.tsv",),
        ("tatoeba-en-zh/dev.tsv",),
        metric="bleu",
        factor=1,
        seeds=1,
        anchor="19.7 (the nearest training sentence)",
    ),
    TaskBenchmark(
        "ewt",
        "UD English EWT, universal tags, dev",
        ("ud_english_ewt/en_ewt-ud-train.conllu.gz",),
        ("ud_english_ewt/en_ewt-ud-dev.conllu.gz",),
        anchor="94.5 (UDPipe 1.2, test); 86.1 most frequent tag",
        goal=95.0,
    ),
    TaskBenchmark(
        "chinese-gsd",
        "UD Chinese GSD 1.4, universal tags, dev",
        ("ud_chinese_gsd_v1.4/zh-ud-train.conllu.gz",),
        ("ud_chinese_gsd_v1.4/zh-ud-dev.conllu.gz",),
        anchor="92.0 (UDPipe 1.2, UD 2.5); 84.0 most frequent tag",
        goal=92.0,
    ),
    TaskBenchmark(
        "chinese-characters",
        "UD Chinese, unsegmented text, F1 of tagged words, dev",
        ("ud_chinese_small/train.conllu.gz",),
        ("ud_chinese_small/dev.conllu.gz",),
        metric="tagged_f1",
        seeds=1,
        anchor="64.2 (longest match, most frequent tag)",
    ),
    TaskBenchmark(
        "sst2",
        "SST-2, whole sentences, dev",
        ("sst2/train.tsv",),
        ("sst2/dev.tsv",),
        anchor="82.7 (CNN without vectors, trained on phrases)",
        goal=82.0,
    ),
    TaskBenchmark(
        "cora",
        "Cora, public split, GAT, test",
        ("graphs/cora.npz",),
        split="test",
        seeds=100,
        anchor="83.0 ± 0.7 (GAT paper)",
        goal=83.3,
    ),
    TaskBenchmark(
        "shakespeare-char",
        "tiny Shakespeare by the character, nats over the whole last tenth",
        ("tiny_shakespeare/input.txt.gz",),
        metric="loss",
        factor=1,
        anchor="1.4697 (nanoGPT, 10.7M)",
        goal=1.455,
        lower_is_better=True,
    ),
    TaskBenchmark(
        "tang-poems",
        "Tang poems by the character, nats, dev",
        ("tang_poems/train.txt",),
        ("tang_poems/dev.txt",),
        metric="loss",
        factor=1,
        seeds=1,
        anchor="5.26 (3-gram)",
        lower_is_better=True,
    ),
    TaskBenchmark(
        "english-induction",
        "English by word pieces with repeated passages, nats, dev",
        ("writer/train.txt",),
        ("writer/dev.txt",),
        metric="loss",
        factor=1,
        seeds=1,
        anchor="4.44 (3-gram)",
        lower_is_better=True,
    ),
    TaskBenchmark(
        "mnist-vit",
        "MNIST, ViT, test",
        ("mnist/mnist_train.npz",),
        test=("mnist/mnist_test.npz",),
        anchor="99.5 (ViT, 0.21M)",
        goal=99.5,
    ),
    TaskBenchmark("digits", "scikit-learn's digits, ViT, test on the last 360", ("digits/digits.npz",), split="test"),
    TaskBenchmark(
        "cifar-vit",
        "CIFAR-10, 18,000 JPEGs, ViT over convolved patches, test on 2,000",
        ("cifar10_jpeg/parts.npz",),
        split="test",
        anchor="86.12 (the CNN below)",
        goal=83.12,
    ),
    TaskBenchmark(
        "cifar-patches",
        "CIFAR-10, 18,000 JPEGs, ViT over plain patches, test on 2,000",
        ("cifar10_jpeg/parts.npz",),
        split="test",
    ),
    TaskBenchmark("cifar-cnn", "CIFAR-10, 18,000 JPEGs, CNN, test on 2,000", ("cifar10_jpeg/parts.npz",), split="test"),
    TaskBenchmark(
        "fsdd",
        "Spoken digits (FSDD), official split, test",
        ("fsdd/fsdd.npz",),
        split="test",
        anchor="97 (CNN, random split)",
        goal=98.7,
    ),
    TaskBenchmark(
        "an4",
        "AN4 speech from 13 cepstra, word error rate, dev (a tenth of train)",
        ("an4_mfcc/an4_train.npz",),
        metric="wer",
        lower_is_better=True,
        anchor="100 (saying nothing)",
    ),
    TaskBenchmark(
        "emoji",
        "Emoji and their names, image found by name among the first ten of 328, test",
        ("emoji_text/emoji_text.npz",),
        split="test",
        metric="image@10",
        anchor="3.0 (chance)",
    ),
    TaskBenchmark(
        "emoji-classes",
        "Emoji in two drawing styles, 12 classes, test on held-out emoji",
        ("emoji_text/classes.npz",),
        split="test",
        seeds=1,
        anchor="72.4 (nearest image)",
    ),
    TaskBenchmark(
        "bccd",
        "Blood cells (BCCD), AP50, test",
        ("bccd/bccd_boxes.csv", "bccd/bccd_images.tar"),
        split="test",
        metric="AP50",
        anchor="2.4 (boxes of the middle size on a grid)",
    ),
    TaskBenchmark(
        "scitldr",
        "SciTLDR abstracts, ROUGE-1, dev",
        ("scitldr_a/train.jsonl.gz",),
        ("scitldr_a/dev.jsonl.gz",),
        metric="rouge1",
        anchor="27.2 (the first sentence)",
    ),
    TaskBenchmark(
        "esol",
        "Solubility (ESOL), RMSE, test on other scaffolds",
        ("molecules/esol_delaney-processed.csv",),
        split="test",
        metric="RMSE",
        factor=1,
        lower_is_better=True,
        anchor="2.3 (the mean)",
    ),
    TaskBenchmark(
        "bbbp",
        "Blood–brain barrier (BBBP), ROC-AUC, test on other scaffolds",
        ("molecules/bbbp.csv",),
        split="test",
        metric="ROC-AUC",
        anchor="50",
    ),
)


@dataclass(frozen=True)
class Job:
    """A recipe with seeds and settings."""

    row: TaskBenchmark
    seeds: tuple[int, ...]
    settings: dict[str, str]

    @classmethod
    def read(cls, text: str) -> Job:
        """Parse RECIPE[:SEEDS[:name=value,…]]; seeds are 0,1,2 or 0-99."""
        recipe, seeds, settings = [*text.split(":", 2), "", ""][:3]
        row = next((row for row in ROWS if row.recipe == recipe), None)
        if row is None:
            raise SystemExit(f"There is no row {recipe!r}. There are {', '.join(row.recipe for row in ROWS)}.")
        numbers: list[int] = []
        for interval in filter(None, seeds.split(",")):
            first, _, last = interval.partition("-")
            numbers += range(int(first), int(last or first) + 1)
        changes = dict(pair.split("=", 1) for pair in settings.split(",") if pair)
        return cls(row, tuple(numbers) or tuple(range(row.seeds)), changes)

    @property
    def name(self) -> str:
        return "-".join([self.row.recipe, *(f"{k}_{v}" for k, v in self.settings.items())]).replace("/", "_")

    def files(self, data: Path) -> dict[str, list[Path]]:
        """The files of its row in a folder of data sets, by split."""
        return {name: [data / path for path in getattr(self.row, name)] for name in ("train", "dev", "test")}

    def train(self, seed: int, data: Path, folder: Path, extra: dict[str, Any]) -> None:
        """Train as `regard train --recipe` does, into a folder."""
        from regard.train.commands import train_from_files
        from regard.train.recipes import find_recipe
        from regard.train.run import RunConfig

        make_split_file(self.row, data)
        recipe, paths = find_recipe(self.row.recipe), self.files(data)
        sources = recipe.settings, extra, self.settings, {"seed": seed}
        train_from_files(
            RunConfig.from_changes(recipe.task, *sources, train=paths["train"], dev=paths["dev"], adaptive=False),
            folder,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", help="RECIPE[:SEEDS[:name=value,…]]; every row unless given")
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument("--out", type=Path, default=Path("runs/tasks"), help="folder of the runs")
    parser.add_argument("--at-once", type=int, default=1, help="how many processes share the device")
    parser.add_argument("--minutes", type=float, help="maximum minutes of a run")
    parser.add_argument("--set", action="append", default=[], help="a setting of every run, name=value")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--write", action="store_true", help="write docs/results.md from results/tasks.json")
    arguments = parser.parse_args()
    if arguments.write:
        import task_pages

        task_pages.write(read_results(), ROWS)
        return
    if arguments.data is None:
        parser.error("--data DIR, the folder of the data sets, is required")
    extra = dict(pair.split("=", 1) for pair in arguments.set)
    if arguments.minutes is not None:
        extra["minutes"] = str(arguments.minutes)
    if arguments.worker:
        train_and_score(Job.read(arguments.jobs[0]), arguments.data, arguments.out, extra)
        return
    run_jobs(arguments.jobs or [row.recipe for row in ROWS], arguments)


def read_results() -> dict[str, Any]:
    """The measured `runs`, each as in its result.json, and `notes` by recipe."""
    return json.loads(RESULTS.read_text("utf8"))


def run_jobs(jobs: list[str], arguments: argparse.Namespace) -> None:
    """Run each job in its own process, `--at-once` of them in parallel, and collect the results."""
    arguments.out.mkdir(parents=True, exist_ok=True)
    queue, running = list(jobs), {}
    options = [
        "--data",
        arguments.data,
        "--out",
        arguments.out,
        *(word for setting in arguments.set for word in ("--set", setting)),
    ]
    options += ["--minutes", str(arguments.minutes)] if arguments.minutes else []
    while queue or running:
        while queue and len(running) < arguments.at_once:
            job = queue.pop(0)
            log = (arguments.out / f"{Job.read(job).name}-{Job.read(job).seeds[0]}.log").open("w")
            command = [sys.executable, __file__, job, "--worker", *map(str, options)]
            running[job] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        for job, process in list(running.items()):
            if process.poll() is not None:
                running.pop(job)
                print(
                    f"{time.strftime('%H:%M:%S')} {job}: {'done' if process.returncode == 0 else 'FAILED'}", flush=True
                )
        time.sleep(0.5)
    runs = [json.loads(path.read_text("utf8")) for path in sorted(arguments.out.glob("*/result.json"))]
    document = {"notes": {}, "runs": runs}
    (arguments.out / "tasks.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf8")
    for run in runs:
        print(
            run["name"],
            run["seed"],
            run["steps"],
            f"{run['seconds']:.0f} s",
            format_metrics(run["dev"]),
            format_metrics(run["test"]),
        )


def format_metrics(metrics: dict[str, float]) -> str:
    return " ".join(f"{name} {value:.4f}" for name, value in metrics.items()) or "-"


def train_and_score(job: Job, data: Path, out: Path, extra: dict[str, Any]) -> None:
    """Train and evaluate each seed of a job."""
    import torch

    from regard.tasks.splits import select_split
    from regard.train.run import open_run, versions

    row, paths = job.row, job.files(data)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for seed in job.seeds:
        folder = out / f"{job.name}-{seed}"
        if (folder / "result.json").is_file():
            continue
        start = time.time()
        job.train(seed, data, folder, extra)
        seconds = time.time() - start
        task, model, record = open_run(folder)
        model = model.to(device)
        scored: dict[str, dict[str, float]] = {"dev": {}, "test": {}}
        for name in scored:
            if name == "dev" and not (row.dev and task.name == "translate"):
                continue  # the saved score is that of dev, except where training generates text in another way
            files = paths[name] or (paths["train"] if name == "test" and row.split else [])
            if files:
                reading = task.read(files, task.settings)
                reading = reading.select(row.split) if row.split else select_split(reading, "test", "dev")
                scored[name] = task.evaluate(model, reading.examples).metrics
        saved_metrics = json.loads((folder / "scores.json").read_text("utf8"))["metrics"]
        result = {
            "recipe": row.recipe,
            "name": job.name,
            "seed": seed,
            "settings": {**extra, **job.settings},
            "parameters": sum(p.numel() for p in model.parameters()),
            "steps": last_step(folder),
            "seconds": round(seconds, 1),
            "kept": saved_metrics,
            "dev": scored["dev"] or saved_metrics,
            "test": scored["test"],
            "device": torch.cuda.get_device_name() if device == "cuda" else "CPU",
            "versions": record["versions"] | versions(),
            "date": time.strftime("%Y-%m-%d"),
        }
        (folder / "result.json").write_text(json.dumps(result, ensure_ascii=False) + "\n", "utf8")


def last_step(folder: Path) -> int:
    return json.loads((folder / "log.jsonl").read_text("utf8").splitlines()[-1])["step"]


def make_split_file(row: TaskBenchmark, data: Path) -> None:
    """Write the file with a test split that a row needs, unless it exists.

    Of the CIFAR-10 JPEGs (arrays jpeg, offsets, y, classes) the last 2,000 become the test set; of scikit-learn's
    digits the last 360, whose writers wrote none of the others.
    """
    make = SPLIT_MAKERS.get(row.train[0])
    target = data / row.train[0]
    if make is None or target.exists():
        return
    import numpy as np

    arrays, test = make(data)
    count = len(arrays["y"])
    target.parent.mkdir(parents=True, exist_ok=True)
    half = target.with_name(f".{os.getpid()}-{target.name}")
    np.savez(half, **arrays, is_test=np.arange(count) >= count - test)
    half.replace(target)


def load_cifar(data: Path) -> tuple[dict[str, Any], int]:
    import numpy as np

    return dict(np.load(data / "cifar10_jpeg/cifar10_train_jpeg.npz")), 2000


def load_digits_data(data: Path) -> tuple[dict[str, Any], int]:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return {"x": (x.reshape(-1, 8, 8) / 16 * 255).astype("uint8"), "y": y.astype("uint8")}, 360


SPLIT_MAKERS = {"cifar10_jpeg/parts.npz": load_cifar, "digits/digits.npz": load_digits_data}


if __name__ == "__main__":
    main()
