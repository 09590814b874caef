"""Classifies few texts with the defaults of `regard train classify` and with scikit-learn, on the same held-out texts.

    python benchmarks/small_text.py --data DIR [--minutes 2] [--only trec] [--seeds 0 1 2]
        [--threads 2] [--set name=value]

DIR has trec6/train.tsv, waimai_10k/train.csv and chnsenticorp/train.tsv. Texts that repeat are taken once, and a
stratified share of 0.15 is held out from both sides. Regard trains for the minutes at most (the seconds reported
include the fit of its n-gram model) and holds out a tenth of its training texts to choose by; scikit-learn trains on
all of them, with defaults, and with three other kinds of TF-IDF. The minutes are those of the CPU, not of the wall
clock, so that other processes on the machine do not matter. A row replaces the row of the same data and seed in
results/small_text.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from regard.data.reading import Reading
from regard.data.text import LabelledText, read_texts
from regard.machine import devices, versions
from regard.tasks.classify import Classify
from regard.train import run, trainer
from regard.train.run import RunConfig, RunData, open_run, train_run


class ProcessorClock:
    """The module `time` with a monotonic clock that counts the CPU seconds of this process."""

    monotonic = staticmethod(time.process_time)
    time = staticmethod(time.time)


RESULTS = Path(__file__).parent / "results" / "small_text.json"
FILES = {"trec": "trec6/train.tsv", "waimai": "waimai_10k/train.csv", "chnsenticorp": "chnsenticorp/train.tsv"}
HELD_OUT = 0.15


def read_split(path: Path, seed: int) -> tuple[Sequence[LabelledText], Sequence[LabelledText]]:
    """(training texts, held-out texts), each text once."""
    reading = read_texts([path]).strict()
    unique = {example.text: example for example in reading.examples}
    train, held = Classify.split(Reading(tuple(unique.values())), HELD_OUT, seed)
    return train.examples, held.examples


def run_regard(train: Sequence[LabelledText], held: Sequence[LabelledText], args: argparse.Namespace, seed: int) -> Any:
    """Accuracy of the defaults on the held-out texts, and what was chosen."""
    changes = {"minutes": args.minutes, "seed": seed, "device": "cpu", **dict(item.split("=", 1) for item in args.set)}
    config = RunConfig.from_changes("classify", changes)
    own, validation = Classify.split(Reading(tuple(train)), 0.1, seed)
    began, used = time.monotonic(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        config = config.adapt(own.examples, out)
        task = config.prepare(own.examples)
        data = RunData(own.examples, validation.examples, held_out=True)
        train_run(task, config.architecture, config.training, data, out, config.files)
        seconds, used = time.monotonic() - began, time.process_time() - used
        opened, model, _ = open_run(out)
        scores = opened.evaluate(model, held)
        saved = json.loads((out / "scores.json").read_text())
    return {
        "accuracy": scores.metrics["accuracy"],
        "seconds": seconds,
        "CPU seconds": used,
        "summary": saved.get("summary"),
        "n-gram weight": saved.get("n-gram weight"),
        "validation accuracy": saved["metrics"]["accuracy"],
    }


def run_scikit_learn(train: Sequence[LabelledText], held: Sequence[LabelledText], chinese: bool) -> dict[str, float]:
    """Accuracy of logistic regression over four kinds of TF-IDF features, the first with all defaults."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    token = r"(?u)[^\s]" if chinese else r"(?u)\S+"
    vectorizers = {
        "defaults": TfidfVectorizer(analyzer="char") if chinese else TfidfVectorizer(),
        "words 1-2": TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=token),
        "words 1-3": TfidfVectorizer(ngram_range=(1, 3), sublinear_tf=True, token_pattern=token),
        "characters 1-5": TfidfVectorizer(
            analyzer="char" if chinese else "char_wb", ngram_range=(1, 5), sublinear_tf=True, min_df=2
        ),
    }
    texts, labels = [e.text for e in train], [e.label for e in train]
    scores = {}
    for name, vectorizer in vectorizers.items():
        regression = LogisticRegression() if name == "defaults" else LogisticRegression(C=10, max_iter=500)
        model = make_pipeline(vectorizer, regression).fit(texts, labels)
        scores[name] = float(model.score([e.text for e in held], [e.label for e in held]))
    return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=list(FILES))
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for module in (run, trainer):
        module.time = ProcessorClock  # type: ignore[attr-defined]
    rows = []
    for name in [args.only] if args.only else FILES:
        for seed in args.seeds:
            train, held = read_split(args.data / FILES[name], seed)
            row: dict[str, Any] = {"data": name, "seed": seed, "train": len(train), "held out": len(held)}
            row["scikit-learn"] = run_scikit_learn(train, held, name != "trec")
            row["regard"] = run_regard(train, held, args, seed)
            rows.append(row)
            print(json.dumps(row))
    before = json.loads(args.out.read_text())["rows"] if args.out.is_file() else []
    merged = {(row["data"], row["seed"]): row for row in (*before, *rows)}
    rows = sorted(merged.values(), key=lambda row: (list(FILES).index(row["data"]), row["seed"]))
    document = {"minutes": args.minutes, "threads": args.threads, "rows": rows}
    document |= {"versions": versions(), "devices": devices()}
    for name in dict.fromkeys(row["data"] for row in rows):
        own = [row for row in rows if row["data"] == name]
        ours = statistics.mean(row["regard"]["accuracy"] for row in own)
        theirs = statistics.mean(max(row["scikit-learn"].values()) for row in own)
        print(f"{name}: regard {ours:.4f}, best TF-IDF {theirs:.4f}")
    args.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
