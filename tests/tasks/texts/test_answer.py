"""Question answering: from SQuAD's JSON and tables to parts of passages."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
import torch
from typer.testing import CliRunner, Result

from regard import BadInput
from regard.cli import app
from regard.data.annotations.answers import QuestionAnswer, read_answers
from regard.tasks.architecture import Architecture
from regard.tasks.metrics.answers import answer_f1, exact_match
from regard.tasks.texts.answer import AnswerQuestions, AnswerSettings

NAMES = ["Ada", "Alan", "Grace", "Linus", "Edsger", "Barbara", "Donald", "Tony"]
PLACES = ["Rome", "Oslo", "Paris", "Lima", "Cairo", "Delhi"]


def call(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def make(count: int, seed: int = 0) -> list[QuestionAnswer]:
    """Two people who live somewhere; the question names one of them."""
    rng, made = Random(seed), []
    for _ in range(count):
        people, places = rng.sample(NAMES, 2), rng.sample(PLACES, 2)
        context = " ".join(f"{name} lives in {place} ." for name, place in zip(people, places, strict=True))
        n = rng.randrange(2)
        made.append(QuestionAnswer(f"Where is {people[n]} ?", context, ((context.index(places[n]), places[n]),)))
    return made


def squad(examples: list[QuestionAnswer]) -> str:
    paragraphs = []
    for example in examples:
        answers = [{"text": text, "answer_start": start} for start, text in example.answers]
        paragraphs.append({"context": example.context, "qas": [{"question": example.question, "answers": answers}]})
    return json.dumps({"version": "1.1", "data": [{"title": "x", "paragraphs": paragraphs}]})


def test_scores_are_squads() -> None:
    assert exact_match("The Tower!", ["tower"]) == 1 and exact_match("a tower of", ["tower"]) == 0
    assert answer_f1("city of Paris", ["Paris", "Rome"]) == pytest.approx(0.5)
    assert answer_f1("", []) == 1 and exact_match("", []) == 1 and answer_f1("Rome", []) == 0
    assert answer_f1("北京市", ["北京"]) == pytest.approx(0.8)


def test_files_of_every_format_give_the_same(tmp_path: Path) -> None:
    examples = make(3)
    (tmp_path / "squad.json").write_text(squad(examples))
    rows = ["question\tcontext\tanswer", *(f"{e.question}\t{e.context}\t{e.answers[0][1]}" for e in examples)]
    (tmp_path / "rows.tsv").write_text("\n".join(rows) + "\n")
    lists = [
        {"question": e.question, "context": e.context, "answers": {"text": [t], "answer_start": [s]}}
        for e in examples
        for s, t in e.answers
    ]
    (tmp_path / "hub.jsonl").write_text("\n".join(map(json.dumps, lists)))
    for name in ("squad.json", "rows.tsv", "hub.jsonl"):
        assert read_answers([tmp_path / name]).strict().examples == tuple(examples), name


def test_faults_say_where(tmp_path: Path) -> None:
    (tmp_path / "rows.tsv").write_text("question\tcontext\tanswer\nWho ?\tAda wrote it .\tAlan\n")
    (fault,) = read_answers([tmp_path / "rows.tsv"]).faults
    assert "rows.tsv:2:22: the answer 'Alan' is not in the context" in str(fault)
    bad = QuestionAnswer("Who ?", "Ada wrote it .", ((4, "Ada"),))
    (tmp_path / "squad.json").write_text(squad([bad]))
    (fault,) = read_answers([tmp_path / "squad.json"]).faults
    assert "squad.json:1: the question 'Who ?': the answer is 'Ada', but the context has 'wro' at 4" in str(fault)


def test_an_offset_of_too_many_digits(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"question,context,answer,answer_start\nWho sat?,The cat sat.,cat,{'4' * 5000}\n")
    (fault,) = read_answers([path]).faults
    assert not fault.cause and "wanted a character of the context" in str(fault)


def test_a_small_model_answers(tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text(squad(make(300)))
    (tmp_path / "test.json").write_text(squad(make(40, seed=1)))
    sizes = ["--set", "dim=32", "--set", "layers=2", "--set", "heads=2", "--set", "dropout=0", "--set", "warmup=10"]
    command = ["train", "answer", "--train", tmp_path / "train.json", "--out", tmp_path / "run", "--steps", "200"]
    result = call(*command, "--set", "learning_rate=0.005", "--set", "word_dropout=0", *sizes)
    assert result.exit_code == 0, result.output
    scores = json.loads(call("evaluate", tmp_path / "run", "--data", tmp_path / "test.json", "--json").stdout)
    assert scores["metrics"]["exact match"] > 0.8
    given = json.dumps({"question": "Where is Tony ?", "context": "Ada lives in Rome . Tony lives in Lima ."})
    (answer,) = json.loads(call("predict", tmp_path / "run", given, "--json").stdout)
    assert answer["text"] == answer_text(given, answer) and 0 < answer["probability"] <= 1
    refused = call("predict", tmp_path / "run", "no passage")
    assert refused.exit_code == 1 and "answers questions about passages" in refused.output


def answer_text(given: str, answer: dict[str, int]) -> str:
    return json.loads(given)["context"][answer["start"] : answer["end"]]


def test_long_passages_are_read_in_windows() -> None:
    context = " ".join(f"w{n}" for n in range(100)) + " Lima"
    example = QuestionAnswer("Where ?", context, ((context.index("Lima"), "Lima"),))
    task = AnswerQuestions.prepare([example], AnswerSettings(max_length=32, stride=8))
    windows = task.encode_windows(example)
    assert len(windows) > 3 and max(len(window.tokens) for window in windows) == 32
    assert [window.first > 0 for window in windows] == [False] * (len(windows) - 1) + [True]
    last = windows[-1]
    place = last.places[last.first]
    assert place is not None and context[slice(*place)] == "Lima"
    covered = {p for window in windows for p in window.places if p is not None}
    assert len(covered) == 101  # every word is in a window
    model = task.config(Architecture(dim=16, layers=1, heads=2)).build().eval()
    (answer,) = task.find_answers(model, [example])
    assert context[answer.start : answer.end] == answer.text != ""
    assert any("1 of 1 passages are read in several windows" in text for text in task.choices([example]))


def test_the_best_span_is_the_best_of_all() -> None:
    examples = make(4)
    task = AnswerQuestions.prepare([*examples, QuestionAnswer("Who ?", "Nobody .", ())], AnswerSettings(max_answer=2))
    window = task.encode_windows(examples[0])[0]
    torch.manual_seed(0)
    logits = torch.randn(2, len(window.tokens)).masked_fill(task.batch([window])["allowed"].logical_not(), -torch.inf)
    inside = [n for n, place in enumerate(window.places) if place]
    best = max((float(logits[0, a] + logits[1, b]), a, b) for a in inside for b in inside if 0 <= b - a < 2)
    score, probability, place = task.best_span(logits, window)
    empty = float(logits[:, 0].sum())
    assert score == pytest.approx(best[0] - empty)
    assert (place is None) == (empty > best[0])
    logits[:, 0] = 100.0
    assert task.best_span(logits, window)[2] is None and probability <= 1
    with pytest.raises(BadInput, match="None of the 1 questions has an answer"):
        AnswerQuestions.prepare([QuestionAnswer("Who ?", "Nobody .", ())], AnswerSettings())
