"""Labelled spans: from files in each format to spans with offsets."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from seqeval.metrics import sequence_labeling as labels
from typer.testing import CliRunner, Result

from regard import BadInput
from regard.cli import app
from regard.data.annotations.spans import LabelledSpan, SpannedText, read_spans, spans_of_tags
from regard.tasks.inputs.words.boundaries import best_labels, boundary_labels
from regard.tasks.metrics.spans import span_scores
from regard.tasks.texts.spans import SpansSettings, SpanTagger

SMALL = ["--set", "dim=16", "--set", "layers=1", "--set", "heads=2", "--set", "word_dim=16"]


def call(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def sentence(rng: Random) -> list[tuple[str, str]]:
    """A name of one or two words before `met`, a place after `in`."""
    person = [(rng.choice(["Ada", "Alan", "Grace"]), "B-PER")]
    person += [(rng.choice(["Byron", "Hopper"]), "I-PER")] if rng.random() < 0.5 else []
    place = [(rng.choice(["Rome", "Oslo"]), "B-LOC")]
    return [*person, ("met", "O"), (rng.choice(["him", "her"]), "O"), ("in", "O"), *place, (".", "O")]


def write_conll(path: Path, count: int, seed: int = 0) -> Path:
    rng = Random(seed)
    blocks = ["\n".join(f"{word} {tag}" for word, tag in sentence(rng)) for _ in range(count)]
    path.write_text("\n\n".join(blocks) + "\n")
    return path


def test_tags_are_read_as_seqeval_reads_them() -> None:
    """Random tags of every scheme, well formed or not; entities, F1, precision, recall and macro F1 agree."""
    rng = Random(0)
    tags = ["O", *(f"{prefix}-{label}" for prefix in "BIES" for label in ("PER", "LOC"))]
    gold = [[rng.choice(tags) for _ in range(rng.randint(1, 9))] for _ in range(200)]
    predicted = [[tag if rng.random() < 0.7 else rng.choice(tags) for tag in row] for row in gold]
    for row in gold:
        assert spans_of_tags(row) == [(a, b + 1, label) for label, a, b in labels.get_entities(row)]
    metrics, per_label = span_scores([spans_of_tags(row) for row in gold], [spans_of_tags(row) for row in predicted])
    assert metrics["F1"] == pytest.approx(labels.f1_score(gold, predicted))
    assert metrics["precision"] == pytest.approx(labels.precision_score(gold, predicted))
    assert metrics["recall"] == pytest.approx(labels.recall_score(gold, predicted))
    assert metrics["macro F1"] == pytest.approx(labels.f1_score(gold, predicted, average="macro"))
    report = labels.classification_report(gold, predicted, output_dict=True)
    assert per_label["PER"]["F1"] == pytest.approx(report["PER"]["f1-score"])


def test_no_sequence_is_predicted_that_is_no_span() -> None:
    labels = ["O", *boundary_labels(["X", "Y"])]
    torch.manual_seed(0)
    logits = torch.randn(50, 6, len(labels)) * 3
    for row in best_labels(logits, torch.full((50,), 6), labels):
        names = [labels[n] for n in row]
        for before, after in zip(["O", *names], [*names, "O"], strict=True):
            inside = before[0] in "BM"
            assert inside == (after[0] in "ME") and (not inside or before[2:] == after[2:])


FORMATS = {
    "spacy.jsonl": '{"text": "Ada met Al", "entities": [[0, 3, "PER"], [8, 10, "PER"]]}\n',
    "objects.jsonl": '{"text": "Ada met Al", "spans": [{"start": 0, "end": 3, "label": "PER"},'
    ' {"start": 8, "end": 10, "label": "PER"}]}\n',
    "doccano.jsonl": '{"id": 1, "text": "Ada met Al", "label": [[0, 4, "PER"], [8, 10, "PER"]]}\n',
    "offsets.jsonl": '{"text": "Ada met Al", "entities": [{"start_offset": 0, "end_offset": 3, "label": "PER"},'
    ' {"start_offset": 8, "end_offset": 10, "label": "PER"}]}\n',
    "words.jsonl": '{"tokens": ["Ada", "met", "Al"], "ner_tags": ["B-PER", "O", "B-PER"]}\n',
    "bio.txt": "Ada B-PER\nmet O\nAl I-PER\n",
    "lists.json": '[\n["Ada met Al", {"entities": [[0, 3, "PER"], [8, 10, "PER"]]}]\n]\n',
    "lists.jsonl": '["Ada met Al", {"entities": [[0, 3, "PER"], [8, 10, "PER"]]}]\n',
    "paragraphs.json": '[{"id": 0, "paragraphs": [{"raw": "Ada met Al", "sentences": [{"tokens": [{"orth": "Ada",'
    ' "ner": "U-PER"}, {"orth": "met", "ner": "O"}, {"orth": "Al", "ner": "U-PER"}]}]}]}]\n',
    "bioes.conll": "Ada\tNNP\tS-PER\nmet\tVBD\tO\nAl\tNNP\tU-PER\n",
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_spans(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(FORMATS[name])
    (example,) = read_spans([tmp_path / name]).strict().examples
    assert example.text == "Ada met Al"
    assert example.spans == (LabelledSpan(0, 3, "PER"), LabelledSpan(8, 10, "PER"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.jsonl",
            '{"text": "Ada", "entities": [[0, 4, "PER"]]}\n',
            "a.jsonl:1:17: span 1 (PER) has the characters 0 to 4",
        ),
        ("a.jsonl", '{"text": "Ada met", "entities": [[0, 5, "A"], [4, 7, "B"]]}\n', "overlap"),
        ("a.jsonl", '{"text": "Ada", "entities": [["0", 3, "PER"]]}\n', "wanted two whole numbers and a label"),
        ("a.jsonl", '{"text": "Ada", "entities": 3}\n', "wanted a list of"),
        ("a.json", '[\n["Ada", {"entities": [[0, 4, "PER"]]}]\n]\n', "a.json:2"),
        (
            "a.json",
            '[{"paragraphs": [{"sentences": [{"tokens": [{"orth": "Ada"}]}]}]}]\n',
            "lack 'ner'; wanted",
        ),
        ("a.jsonl", '{"text": "A  b", "entities": [[1, 3, "X"]]}\n', "has blanks only"),
        ("a.txt", "Ada B-PER\nmet VERB\n", "a.txt:2:5: the tag is 'VERB'; wanted O, or a prefix and a label"),
    ],
)
def test_faults_say_where(name: str, content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    reading = read_spans([tmp_path / name])
    assert message in str(reading.faults[0]) and not reading.examples


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("spans")
    write_conll(folder / "train.txt", 120)
    result = call(
        "train", "spans", "--train", folder / "train.txt", "--out", folder / "run", "--steps", "60", "--set",
        "learning_rate=0.01", "--set", "rare_word_dropout=0", *SMALL,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    return folder / "run"


def test_a_small_model_finds_names(run: Path, tmp_path: Path) -> None:
    result = call("evaluate", run, "--data", write_conll(tmp_path / "test.txt", 40, seed=1), "--json")
    scores = json.loads(result.stdout)
    assert scores["metrics"]["F1"] > 0.9 and set(scores["per label"]) == {"PER", "LOC"}
    (found,) = json.loads(call("predict", run, "Ada Byron met her in Rome.", "--json").stdout)
    spans = [(span["start"], span["end"], span["label"], span["text"]) for span in found["spans"]]
    assert spans == [(0, 9, "PER", "Ada Byron"), (21, 25, "LOC", "Rome")]
    assert all(0.3 < span["probability"] <= 1 for span in found["spans"])


def test_a_run_is_resumed_and_checked(run: Path, tmp_path: Path) -> None:
    again = call(
        "train", "spans", "--train", run.parent / "train.txt", "--out", run, "--steps", "62", "--set",
        "learning_rate=0.01", "--set", "rare_word_dropout=0", *SMALL,
    )  # fmt: skip
    assert again.exit_code == 0, again.output
    facts = json.loads(call("check", run.parent / "train.txt", "--task", "spans", "--json").stdout)
    assert facts["labels"].keys() == {"PER", "LOC"} and facts["unit"] == "words"
    (tmp_path / "none.txt").write_text("Ada O\nmet O\n\n" * 4)
    assert "There is no span in 4 texts" in call("check", tmp_path / "none.txt", "--task", "spans").output


def test_texts_without_words_are_split_at_characters_or_words() -> None:
    chinese = [SpannedText("王小明住在北京", (LabelledSpan(0, 3, "PER"), LabelledSpan(5, 7, "LOC")))] * 3
    task = SpanTagger.prepare(chinese, SpansSettings())
    assert task.settings.unit == "characters"
    assert task.as_tokens(chinese[0]).tags == ("B-PER", "M-PER", "E-PER", "O", "O", "B-LOC", "E-LOC")
    inside = [SpannedText("unbelievable", (LabelledSpan(2, 9, "ROOT"),))]
    words = SpanTagger.prepare(inside, SpansSettings())
    assert words.as_tokens(inside[0]).tags == ("S-ROOT",)
    assert any("1 of 1 spans begin or end inside a word" in text for text in words.choices(inside))
    with pytest.raises(BadInput, match="no span"):
        SpanTagger.prepare([SpannedText("x", ())], SpansSettings())


def test_saved_task_is_the_same() -> None:
    examples = [SpannedText("Ada met Al", (LabelledSpan(0, 3, "PER"),))] * 4
    task = SpanTagger.prepare(examples, SpansSettings())
    again: Any = SpanTagger.from_dict(json.loads(json.dumps(task.as_dict())), task.settings)
    assert again.labels == task.labels and not again.given_words
    assert torch.equal(again.batch(examples)["tokens"], task.batch(examples)["tokens"])
    assert again.token_spans("Ada's cat") == [(0, 3), (3, 4), (4, 5), (6, 9)]
