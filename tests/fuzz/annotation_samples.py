"""Valid files with annotations of texts: spans, answers, pairs, rankings, similar texts, heads of several tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from samples import Family, at

from regard.data.annotations.answers import read_answers
from regard.data.annotations.pairs import read_pairs, read_rankings
from regard.data.annotations.similarity import read_similarity
from regard.data.annotations.spans import read_spans
from regard.tasks.texts.multi import Multi, MultiSettings

DOCCANO = [
    {"text": "Ada Lovelace wrote 猫", "label": [[0, 12, "PER"], [19, 20, "X"]]},
    {"text": "in Paris", "entities": [{"start": 3, "end": 8, "label": "LOC"}], "split": "dev"},
]
SPACY = [["Ada wrote", {"entities": [[0, 3, "PER"]]}], ["nothing", {"entities": []}]]
TOKENS = [{"orth": "Ada", "ner": "U-PER"}, {"orth": "wrote", "ner": "O"}]
PARAGRAPHS = [{"id": 1, "paragraphs": [{"sentences": [{"tokens": TOKENS}]}]}]
BIO = "Ada B-PER\nLovelace I-PER\nwrote O\n\n猫 S-X\n坐 O\n"
SQUAD = {
    "version": "1.1",
    "data": [
        {
            "title": "cats",
            "paragraphs": [
                {
                    "context": "The cat sat on the mat.",
                    "qas": [
                        {"id": "1", "question": "Who sat?", "answers": [{"text": "cat", "answer_start": 4}]},
                        {"id": "2", "question": "Why?", "is_impossible": True, "answers": []},
                    ],
                }
            ],
        }
    ],
}
ANSWERS = "question,context,answer,answer_start\nWho?,The cat sat.,cat,4\nWhere?,on a mat,mat,\n谁?,猫坐,猫,0\n"
PAIRS = "sentence1,sentence2,label,split\na cat,a dog,0.5,train\n一,二,1,dev\nx,y,0.25,train\n"
TRIPLETS = [
    {"anchor": "a cat", "positive": "the cat", "negative": "a dog"},
    {"anchor": "一", "positive": "二", "negative": "三"},
]
RANKINGS = [
    {"query": "who?", "candidates": ["a cat", "a dog"], "relevance": [1, 0]},
    {"query": "谁?", "candidates": ["猫"], "relevance": [0.5]},
]
HEADS = (
    b'[topic]\ntask = "classify"\ntrain = "topic.csv"\nweight = 2.0\n\n'
    b'[alike]\ntask = "pairs"\ntrain = ["pairs.csv"]\nfirst = "sentence1"\n'
)


def lines(items: list[Any]) -> bytes:
    return "\n".join(json.dumps(item, ensure_ascii=False) for item in items).encode()


def read_heads(folder: Path) -> Any:
    return Multi.read([folder / "heads.toml"], MultiSettings())


def families() -> dict[str, Family]:
    """Every family by its name."""
    spans = {
        "a.jsonl": lines(DOCCANO),
        "b.json": json.dumps(SPACY).encode(),
        "c.json": json.dumps(PARAGRAPHS).encode(),
        "d.txt": BIO.encode(),
    }
    answers = {"a.json": json.dumps(SQUAD, indent=1).encode(), "b.csv": ANSWERS.encode()}
    pairs = {"a.csv": PAIRS.encode(), "b.jsonl": lines(TRIPLETS), "c.jsonl": lines(RANKINGS)}
    return {
        "spans": Family(spans, tuple(spans), tuple(read for name in spans for read in at(name, read_spans))),
        "answers": Family(answers, tuple(answers), tuple(read for name in answers for read in at(name, read_answers))),
        "pairs, rankings": Family(
            pairs,
            tuple(pairs),
            (
                *at("a.csv", read_pairs, read_rankings, read_similarity),
                *at("b.jsonl", read_similarity),
                *at("c.jsonl", read_rankings),
            ),
        ),
        "heads of several tasks": Family(
            {"heads.toml": HEADS, "topic.csv": b"text,label\na,x\nb,y\n", "pairs.csv": PAIRS.encode()},
            ("heads.toml", "topic.csv", "pairs.csv"),
            (read_heads,),
        ),
    }
