"""Finds names in texts with `regard train spans` and with a dictionary, on the same sentences.

    python benchmarks/spans.py --data DIR [--minutes 3] [--steps N] [--threads 2]

DIR has ud_english_ewt/en_ewt-ud-{train,dev}.conllu. There is no gold of names: a span is a run of proper nouns (PROPN),
with the label NAME, or a run of numbers (NUM), with the label NUMBER. A tenth of the training sentences is held out to
choose by; the dev file is scored. The dictionary gives each word its most frequent tag of the training data. Results
are written to results/spans.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from regard.data.annotations.spans import SpannedText, from_tags, spans_of_tags
from regard.data.reading import Reading
from regard.data.tagged import Tagged, read_tagged
from regard.machine import devices, versions
from regard.tasks.metrics.spans import span_scores
from regard.tasks.texts.spans import SpanTagger
from regard.train.run import RunConfig, RunData, open_run, train_run

RESULTS = Path(__file__).parent / "results" / "spans.json"
LABELS = {"PROPN": "NAME", "NUM": "NUMBER"}


def read(data: Path, split: str) -> list[Tagged]:
    """The sentences of a file, with BIO tags of runs of proper nouns and of numbers."""
    path = data / f"ud_english_ewt/en_ewt-ud-{split}.conllu"
    path = path if path.is_file() else path.with_name(path.name + ".gz")
    return [name_tags(sentence) for sentence in read_tagged([path]).strict().examples]


def name_tags(sentence: Tagged) -> Tagged:
    """The sentence with BIO tags of its runs of proper nouns and of numbers."""
    tags, before = [], ""
    for tag in sentence.tags:
        label = LABELS.get(tag, "")
        tags.append("O" if not label else f"{'I' if label == before else 'B'}-{label}")
        before = label
    return Tagged(sentence.words, tuple(tags))


def score_dictionary(train: Sequence[Tagged], dev: Sequence[Tagged]) -> dict[str, float]:
    """Scores of the most frequent tag of each word; unknown words are outside of spans."""
    counts: dict[str, Counter[str]] = {}
    for sentence in train:
        for word, tag in zip(sentence.words, sentence.tags, strict=True):
            counts.setdefault(word, Counter())[tag] += 1
    best = {word: own.most_common(1)[0][0] for word, own in counts.items()}
    predicted = [spans_of_tags([best.get(word, "O") for word in sentence.words]) for sentence in dev]
    return span_scores([spans_of_tags(sentence.tags) for sentence in dev], predicted)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    train, dev = read(args.data, "train"), read(args.data, "dev")
    baseline = score_dictionary(train, dev)
    texts: list[SpannedText] = [from_tags(sentence.words, sentence.tags) for sentence in train]
    own, validation = SpanTagger.split(Reading(tuple(texts)), 0.1, 0)
    changes: dict[str, Any] = {"minutes": args.minutes, "steps": args.steps, "device": "cpu"}
    config = RunConfig.from_changes("spans", {name: value for name, value in changes.items() if value is not None})
    task, began = config.prepare(own.examples), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        data = RunData(own.examples, validation.examples)
        train_run(task, config.architecture, config.training, data, folder, config.files)
        seconds = time.monotonic() - began
        opened, model, _ = open_run(folder)
        scores = opened.evaluate(model, [from_tags(sentence.words, sentence.tags) for sentence in dev])
    document = {
        "regard": {**scores.metrics, "seconds": seconds, "per label": scores.details["per label"]},
        "most frequent tag of each word": baseline,
        **changes,
        "threads": args.threads,
        "versions": versions(),
        "devices": devices(),
    }
    print(json.dumps({"regard": scores.metrics, "dictionary": baseline}))
    args.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
