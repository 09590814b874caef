"""Several heads on one encoder: from a TOML file to results of each head."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
import torch
from typer.testing import CliRunner, Result

from regard import BadInput
from regard.cli import app
from regard.tasks.architecture import Architecture
from regard.tasks.texts.heads import read_heads
from regard.tasks.texts.multi import Multi, MultiSettings

WORDS = ["apple", "bird", "cloud", "door", "egg", "fish", "gate", "hat"]


def call(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def heads(tmp_path: Path) -> Path:
    """Whether a text begins with a good word, how many birds it has, and whether two texts have the same first word."""
    rng = Random(0)
    rows, counts, pairs = ["text,label"], ["text,score"], ["sentence1,sentence2,label"]
    for n in range(120):
        words = rng.choices(WORDS, k=4)
        rows.append(f"{'good' if n % 2 else 'bad'} {' '.join(words)},{'yes' if n % 2 else 'no'}")
        counts.append(f"{' '.join(words)},{words.count('bird') + n / 1000}")
        pairs.append(f"{words[0]} {words[1]},{words[0] if n % 2 else 'kite'} {words[2]},{'same' if n % 2 else 'other'}")
    for name, lines in (("rows", rows), ("counts", counts), ("pairs", pairs)):
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "heads.toml").write_text(
        '[opinion]\ntask = "classify"\ntrain = "rows.csv"\n\n[birds]\ntask = "classify"\ntrain = "counts.csv"\n'
        'label = "score"\nweight = 0.5\n\n[alike]\ntask = "pairs"\ntrain = ["pairs.csv"]\n'
    )
    return tmp_path / "heads.toml"


def test_heads_are_trained_together(heads: Path) -> None:
    run = heads.parent / "run"
    sizes = [
        "--set",
        "dim=32",
        "--set",
        "layers=1",
        "--set",
        "heads=2",
        "--set",
        "warmup=10",
        "--set",
        "word_dropout=0",
    ]
    result = call(
        "train", "multi", "--train", heads, "--out", run, "--steps", "120", "--set", "learning_rate=0.005", *sizes
    )
    assert result.exit_code == 0, result.output
    scores = json.loads((run / "scores.json").read_text())
    assert scores["main"] == "mean" and {"opinion accuracy", "birds R2", "alike accuracy"} <= scores["metrics"].keys()
    assert scores["metrics"]["opinion accuracy"] > 0.9
    (one, two) = json.loads(call("predict", run, "good egg", "egg hat\tegg fish", "--json").stdout)
    assert one["opinion"]["label"] == "yes" and "value" in one["birds"] and "alike" not in one
    assert set(two) == {"input", "alike"}
    again = json.loads(call("evaluate", run, "--data", heads, "--json").stdout)
    assert again["metrics"].keys() == scores["metrics"].keys()


def test_the_loss_is_the_weighted_sum_of_the_heads(heads: Path) -> None:
    reading = Multi.read([heads], MultiSettings()).strict()
    task = Multi.prepare(reading.examples, MultiSettings(word_dropout=0.0))
    assert any(
        "birds: 120 examples of classify, a number, weight 0.5." in text for text in task.choices(reading.examples)
    )
    torch.manual_seed(0)
    model = task.config(Architecture(dim=16, layers=1, heads=2, dropout=0.0)).build().eval()
    chosen = reading.examples[::17]
    total = task.loss(model, task.batch(chosen))
    each = 0.0
    for head, numbers in task.by_head(chosen):
        own = [chosen[n].example for n in numbers]
        labels = head.target.tensor([example.label for example in own])
        each += head.spec.weight * head.target.loss(task.logits(model, head, own), labels, 0.0).item()
    assert total.item() == pytest.approx(each, rel=1e-4)
    saved = json.loads(json.dumps(task.as_dict()))
    again = Multi.from_dict(saved, task.settings, task.tokenizer)
    torch.testing.assert_close(again.loss(model, again.batch(chosen)), total)
    rest, held = Multi.split(reading, 0.1, 0)
    assert {example.spec.name for example in held.examples} == {"opinion", "birds", "alike"}
    assert len(rest) + len(held) == len(reading)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "needs task = one of 'classify', 'pairs'"),
        ('[a]\ntask = ["classify"]', "needs task = one of 'classify', 'pairs'"),
        ('[a]\ntask = "classify"', "names no file"),
        ('[a]\ntask = "classify"\ntrain = "x.csv"\nweight = 0', "weight of the head a is 0"),
        ('[a]\ntask = "classify"\ntrain = "x.csv"\nlabl = "y"', "Did you mean 'label'"),
        ('[a]\ntask = "classify"\ntrain = "x.csv"\nunit = "bpe"', "unit belongs to all heads"),
        ("not toml", "cannot be read as TOML"),
        ("", "has no head"),
    ],
)
def test_what_is_wrong_with_heads_is_said(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "heads.toml").write_text(text)
    with pytest.raises(BadInput, match=message):
        read_heads(tmp_path / "heads.toml")
