"""`--from` for pairs, rankings, spans, answers, several heads, Llama and Marian: first weights, a run, predictions."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import regard as rg
from regard.models.families.llama import llama
from regard.models.families.marian import marian
from regard.models.generation.rules import TokenRules
from regard.models.tokenizers.tokenizer import Tokenizer
from regard.models.tokenizers.training import Special
from regard.train.commands import train_from_files
from regard.train.run import RunConfig, open_run

from .conftest import sentences

ROWS = sentences(24)
TEXTS = [text for text, _ in ROWS]


def lines(rows: list[Any]) -> str:
    return "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n"


def span_line(text: str, label: str) -> dict[str, Any]:
    start = text.index(text.split()[2])
    return {"text": text, "entities": [[start, start + len(text.split()[2]), label]]}


TABLE = lines(["text\tlabel", *(f"{text}\t{label}" for text, label in ROWS)])
PAIRS = lines(["first\tsecond\tlabel", *(f"{text}\t{TEXTS[0]}\t{label}" for text, label in ROWS)])
RANKING = lines([{"query": a, "positive": [b], "negative": [TEXTS[0]]} for a, b in itertools.pairwise(TEXTS)])
SPANS = lines([span_line(*row) for row in ROWS])
ANSWERS = lines([{"question": "what is it?", "context": text, "answer": text.split()[2]} for text in TEXTS])
HEADS = '[kind]\ntask = "classify"\ntrain = "kind.tsv"\n\n[alike]\ntask = "pairs"\ntrain = "alike.tsv"\n'
PAIR = "the old cat is here\tthe big zinc is there"


@pytest.mark.parametrize(
    ("task", "files", "given", "field"),
    [
        ("pairs", {"data.tsv": PAIRS}, PAIR, "label"),
        ("rank", {"data.jsonl": RANKING}, '{"query": "the old cat", "candidates": ["a dog", "zinc"]}', "candidates"),
        ("spans", {"data.jsonl": SPANS}, "the old cat is here", "spans"),
        ("answer", {"data.jsonl": ANSWERS}, '{"question": "what is it?", "context": "the old cat is here"}', "text"),
        ("multi", {"data.toml": HEADS, "kind.tsv": TABLE, "alike.tsv": PAIRS}, PAIR, "alike"),
    ],
)
def test_encoder_of_the_checkpoint_is_trained(
    bert_folder: Path, tmp_path: Path, task: str, files: dict[str, str], given: str, field: str
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content, "utf8")
    data = [tmp_path / next(iter(files))]
    changes = {"checkpoint": str(bert_folder), "device": "cpu", "steps": 2, "epochs": None, "max_length": 24}
    if task == "spans":
        del changes["max_length"]
    config = RunConfig.from_changes(task, changes, train=data, dev=data)
    prepared = config.prepare(config.task.read(config.train, config.settings).examples)
    model = prepared.config(config.architecture).build()
    prepared.initialize(model)
    own, before = model.state_dict(), rg.load(bert_folder).state_dict()
    same = [name for name, weight in before.items() if name in own and torch.equal(own[name], weight)]
    assert {name for name in before if name.startswith("stack.")} <= set(same) and "embed.tokens.weight" in same
    train_from_files(config, tmp_path / "run")
    opened, trained, _ = open_run(tmp_path / "run")
    assert not torch.equal(
        trained.state_dict()["stack.blocks.0.attention.q.weight"], before["stack.blocks.0.attention.q.weight"]
    )
    (result,) = opened.predict(trained, [given])
    assert field in result.to_dict()


def test_language_model_goes_on_from_llama(tmp_path: Path) -> None:
    torch.manual_seed(0)
    special = Special("<pad>", "<unk>", None, "</s>", None)
    tokenizer = Tokenizer.train(TEXTS * 4, unit="bpe", size=300, special=special)
    tokenizer.settings["model_input_names"] = ["input_ids"]
    model = llama(layers=1, dim=16, heads=2, kv_heads=1, head_dim=8, hidden=24, vocabulary=tokenizer.size).build()
    model.tokenizer = tokenizer
    model.save(tmp_path / "llama", format="huggingface")
    (tmp_path / "text.txt").write_text(lines(TEXTS * 8), "utf8")
    given = {"checkpoint": str(tmp_path / "llama"), "device": "cpu", "steps": 2, "epochs": None, "context": 16}
    config = RunConfig.from_changes("lm", {**given, "max_new": 4}, train=[tmp_path / "text.txt"])
    train_from_files(config, tmp_path / "run")
    task, trained, _ = open_run(tmp_path / "run")
    assert str(task.predict(trained, ["the cat"])[0].to_dict()["text"]).startswith("the cat")


def test_translation_goes_on_from_marian(tmp_path: Path) -> None:
    torch.manual_seed(0)
    special = Special("<pad>", "<unk>", None, "</s>", None)
    tokenizer = Tokenizer.train(TEXTS * 4, unit="unigram", size=60, special=special)
    tokenizer.settings["model_input_names"] = ["input_ids", "attention_mask"]
    assert tokenizer.pad is not None and tokenizer.end is not None
    pad = tokenizer.pad
    model = marian(layers=1, dim=16, heads=2, hidden=32, vocabulary=tokenizer.size, start=pad, padding=pad).build()
    model.tokenizer = tokenizer
    model.rules = TokenRules(start=(tokenizer.pad,), end=(tokenizer.end,), pad=tokenizer.pad)
    model.save(tmp_path / "marian", format="huggingface")
    rows = [f"{text}\t{' '.join(reversed(text.split()))}" for text in TEXTS]
    (tmp_path / "pairs.tsv").write_text(lines(["source\ttarget", *rows]), "utf8")
    given = {"checkpoint": str(tmp_path / "marian"), "device": "cpu", "steps": 2, "epochs": None, "max_length": 24}
    config = RunConfig.from_changes("translate", given, train=[tmp_path / "pairs.tsv"])
    prepared = config.prepare(config.task.read(config.train, config.settings).examples)
    made = prepared.config(config.architecture).build()
    prepared.initialize(made)
    before = rg.load(tmp_path / "marian").state_dict()
    assert all(torch.equal(weight, before[name]) for name, weight in made.state_dict().items())
    train_from_files(config, tmp_path / "run")
    task, trained, _ = open_run(tmp_path / "run")
    assert task.rules == prepared.rules and len(task.predict(trained, ["the cat"])) == 1
