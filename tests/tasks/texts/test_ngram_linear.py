"""The n-gram model beside the network: its fit, and the weight that validation data gives it."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import onnxruntime
import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from typer.testing import CliRunner

import regard
from regard.cli import app
from regard.data import LabelledText
from regard.models.baselines.tfidf import NgramCounts, NgramLinear, TfidfModel
from regard.tasks.architecture import Architecture
from regard.tasks.classify import Classify, ClassifySettings
from regard.tasks.inputs.words.ngrams import NgramVocabulary, character_ngrams, split_words, word_ngrams
from regard.tasks.losses.choose_target import make_target
from regard.tasks.texts.ngram_linear import NgramFit, choose_weight, suits
from regard.train.run import RunConfig, RunData, open_run, train_run

SMALL = Architecture(dim=16, layers=1, heads=2, dropout=0.0)
WORDS = ["apple", "bird", "cloud", "door", "egg", "fish", "gate", "hat"]


def texts(count: int, seed: int = 0) -> list[LabelledText]:
    rng = Random(seed)
    rows = [rng.choices(WORDS, k=5) for _ in range(count)]
    return [LabelledText(" ".join(row), "more" if row.count("egg") > row.count("hat") else "less") for row in rows]


def labelled(count: int) -> tuple[list[str], list[str]]:
    """Texts of three classes."""
    rows = [example.text for example in texts(count)]
    return rows, [str(min(2, row.split().count("egg"))) for row in rows]


def fit_to(rows: list[str], labels: list[str], target: str, strength: float) -> tuple[TfidfModel, NgramVocabulary]:
    fit = NgramFit(NgramVocabulary.from_texts(rows), make_target(labels, target))  # type: ignore[arg-type]
    fit.strengths = [strength] * len(fit.config.build().linear_parts)
    return fit(rows, labels), fit.vocabulary


def test_tfidf_is_that_of_scikit_learn() -> None:
    """Features, logistic regression and ridge regression have scikit-learn's optimum."""
    rows, labels = labelled(80)
    model, vocabulary = fit_to(rows, labels, "class", 4.0)
    split = lambda text: word_ngrams(split_words(text))  # noqa: E731
    vectorizer = TfidfVectorizer(analyzer=split, vocabulary=vocabulary.words, sublinear_tf=True)
    features = vectorizer.fit_transform(rows)
    theirs = LogisticRegression(C=4.0, tol=1e-8, max_iter=2000).fit(features, labels)
    with torch.no_grad():
        words = model.parts[0](**rename(vocabulary.batch(rows)))
    expected = torch.from_numpy(theirs.predict_proba(features)).float()
    torch.testing.assert_close(words.softmax(-1), expected, atol=5e-3, rtol=0.0)
    model, _ = fit_to(rows, [f"{int(label):.1f}5" for label in labels], "number", 2.0)
    gold = torch.tensor([float(label) for label in labels])
    standard = (gold - gold.mean()) / gold.std(correction=0)
    ridge = Ridge(alpha=0.5).fit(features, standard.numpy())
    with torch.no_grad():
        words = model.parts[0](**rename(vocabulary.batch(rows)))
    torch.testing.assert_close(words[:, 0], torch.from_numpy(ridge.predict(features)).float(), atol=5e-3, rtol=0.0)


def rename(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {"ngrams": batch["ngrams"], "counts": batch["ngram_counts"]}


def test_naive_bayes_ratios_by_hand() -> None:
    part = NgramLinear((1, 4), 2, naive_bayes=True)
    counts = NgramCounts.from_texts([{1: 3, 2: 1, 9: 1}, {2: 2}, {2: 1, 3: 1}])  # 9 is a feature of another part
    problem = part.prepare(counts, torch.tensor([0, 0, 1]))
    own = torch.tensor([[0.3, 0.3], [1.3, 0.3], [2.3, 1.3], [0.3, 1.3]])
    other = own.flip(1)
    expected = (own / own.sum(0)).log() - (other / other.sum(0)).log()
    torch.testing.assert_close(part.ratios[1:], expected[1:])
    assert part.ratios[0].tolist() == [0, 0]
    torch.testing.assert_close(problem.size[1], part.ratios[2].abs())


@pytest.mark.parametrize("kind", ["class", "labels", "number"])
def test_sparse_and_dense_logits_are_equal(kind: str) -> None:
    rows, labels = labelled(60)
    labels = [f"{label}.5" for label in labels] if kind == "number" else [f"a{label}|b" for label in labels]
    model, vocabulary = fit_to(rows, labels, kind, 10.0)
    counts = NgramCounts.from_texts([vocabulary.count(row) for row in rows])
    for part in model.linear_parts:
        matrix = part.matrix(counts)
        with torch.no_grad():
            sparse = part.product(matrix, part.weight) / part.size(matrix) + part.bias
            torch.testing.assert_close(part(**rename(vocabulary.batch(rows))), sparse)
    assert len(model.linear_parts) == (2 if kind == "number" else 3)


def test_ngrams_of_every_script() -> None:
    assert split_words("I'm 25€, 很好。カ") == ["i", "'", "m", "25", "€", ",", "很", "好", "。", "カ"]
    assert character_ngrams(["很", "好", "。"])[-3:] == ["很好", "好。", "很好。"]
    vocabulary = NgramVocabulary.from_texts(["很好", "很好", "不好"])
    assert "很好" in vocabulary.characters and "不" not in vocabulary.characters  # only one text has it
    assert vocabulary.batch(["", "全新"])["ngrams"].shape[0] == 2  # texts of unknown n-grams
    copied = NgramVocabulary.from_dict(json.loads(json.dumps(vocabulary.as_dict())))
    assert copied.batch(["很好"])["ngrams"].tolist() == vocabulary.batch(["很好"])["ngrams"].tolist()


def test_the_better_model_gets_the_weight() -> None:
    examples = texts(600)
    task = Classify.prepare(examples, ClassifySettings(word_dropout=0.0))
    assert suits(600) and not suits(10) and not suits(10**6)
    assert any("an n-gram model is fitted beside the network" in text for text in task.choices(examples))
    model = task.config(SMALL).build()
    task.initialize(model)
    assert model.trained_models == [model.members[0]] and not any(p.requires_grad for p in model.beside.parameters())
    assert len(task.batch(examples[:4], Random(0))["labels"]) == 4  # no copy for the fitted model
    labels = [example.label for example in examples[:100]]
    gold = task.target.tensor(labels)
    right = torch.nn.functional.one_hot(gold, 2).float() * 8
    wrong = -right
    scores = choose_weight(model, torch.stack([right, wrong]), labels, task.target)
    assert model.config.extra_weight == 0.0 and scores.metrics["accuracy"] == 1
    scores = choose_weight(model, torch.stack([wrong, right]), labels, task.target)
    assert (
        model.config.extra_weight == 1.0 and "weight 1, chosen on the validation data" in scores.details["summary"][0]
    )
    assert task.validate(model.eval(), examples[:100]).metrics["accuracy"] > 0.9  # the fitted model has learned it


def test_no_linear_model_where_none_fits() -> None:
    assert Classify.prepare(texts(10), ClassifySettings()).ngram_fit is None
    task = Classify.prepare(texts(600), ClassifySettings(nb_linear=0))
    assert task.ngram_fit is None and "ngrams" not in task.batch(texts(2))


def test_numbers_of_texts_have_a_linear_model_too() -> None:
    examples = [replace(e, label=f"{e.text.split().count('egg')}.25") for e in texts(200)]
    task = Classify.prepare(examples, ClassifySettings(word_dropout=0.0))
    model = task.config(SMALL).build()
    task.initialize(model)
    scores = task.validate(model.eval(), examples)
    assert scores.metrics["R2"] > 0.9 and model.config.extra_weight == 1.0  # the network is not trained


def test_few_texts_have_defaults_of_their_own(tmp_path: Path) -> None:
    config, examples = RunConfig.from_changes("classify", {"dropout": 0.15}), texts(600)
    adapted = config.adapt(examples, tmp_path)
    assert (adapted.training.ema, adapted.architecture.dim, adapted.architecture.dropout) == (0.99, 128, 0.15)
    assert adapted.changes_from(config)[0] == "pool=attention" and adapted.architecture.model == "cnn+attention"
    assert not adapted.changes_from(adapted)
    tokens = RunConfig.from_changes("classify", {"batch_tokens": 700}).adapt(examples, tmp_path)
    assert (tokens.training.batch_size, adapted.training.batch_size) == (None, 32)
    chinese = [replace(example, text="这家店的味道不错，下次还来。" * 60) for example in examples]
    adapted = config.adapt(chinese, tmp_path)
    assert adapted.architecture.dim == 64 and not adapted.changes_from(config).count("max_affix=4")
    for other in ({"nb_linear": 0}, {"dim": 32, "nb_linear": 64}):
        config = RunConfig.from_changes("classify", other)
        assert config.adapt(examples, tmp_path) == config
    assert RunConfig.from_changes("classify", {}).adapt(examples[:10], tmp_path).training.ema == 0.0
    assert RunConfig.from_changes("classify", {"model": "lstm"}).adapt(examples, tmp_path).training.ema == 0.0
    assert RunConfig.from_changes("classify", {}, adaptive=False).adapt(examples, tmp_path).training.ema == 0.0


def test_the_fit_is_inside_the_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a run that began with other defaults is resumed with them."""
    fit = NgramFit.__call__

    def slow_fit(*given: Any) -> TfidfModel:
        time.sleep(0.4)
        return fit(*given)

    monkeypatch.setattr(NgramFit, "__call__", slow_fit)
    examples = texts(120)
    config = RunConfig.from_changes("classify", {"dim": 16, "layers": 1, "steps": 2, "device": "cpu"})
    config = config.adapt(examples, tmp_path)
    task, data = config.prepare(examples), RunData(examples[:100], examples[100:])
    state = train_run(task, config.architecture, config.training, data, tmp_path, config.files)
    assert state.seconds > 0.4
    written = json.loads((tmp_path / "run.json").read_text())
    del written["sha256"]  # changed on purpose
    written["settings"]["word_dropout"], written["training"]["ema"] = 0.1, 0.0
    (tmp_path / "run.json").write_text(json.dumps(written))
    again = RunConfig.from_changes("classify", {}).adapt(examples, tmp_path)
    assert (again.settings.word_dropout, again.training.ema, again.training.label_smoothing) == (0.1, 0.0, 0.1)  # type: ignore[attr-defined]


def test_a_label_that_was_held_out_alone_is_no_part_of_the_fit() -> None:
    examples = texts(80)
    config = RunConfig.from_changes("classify", {"dim": 16, "layers": 1, "heads": 2, "device": "cpu"})
    task = config.prepare(examples)
    model = task.config(config.architecture).build().eval()
    with task.refit(model, [*examples, LabelledText("egg egg", "single")]) as sentence:
        assert "all 80 texts" in sentence
        torch.testing.assert_close(dict(model.beside.state_dict()), dict(task.fit_ngrams(examples)))


@pytest.mark.parametrize("held_out", [True, False])
def test_the_saved_model_has_seen_what_was_held_out(tmp_path: Path, held_out: bool) -> None:
    """Unless the validation data are files of their own. The scores are those from before."""
    examples = texts(100)
    changes = {"dim": 16, "layers": 1, "heads": 2, "steps": 2, "device": "cpu"}
    config = RunConfig.from_changes("classify", changes).adapt(examples, tmp_path)
    task, data = config.prepare(examples[:80]), RunData(examples[:80], examples[80:], held_out=held_out)
    train_run(task, config.architecture, config.training, data, tmp_path, config.files)
    opened, model, _ = open_run(tmp_path)
    expected = task.fit_ngrams(examples if held_out else examples[:80])
    torch.testing.assert_close(dict(model.beside.state_dict()), dict(expected))
    saved = json.loads((tmp_path / "scores.json").read_text())
    assert any("fitted to all 100 texts" in sentence for sentence in saved["summary"]) == held_out
    model.beside.load_state_dict(task.fit_ngrams(examples[:80]))
    assert opened.evaluate(model, examples[80:]).metrics == pytest.approx(saved["metrics"])


def test_the_whole_model_is_exported(tmp_path: Path) -> None:
    examples = texts(60)
    config = RunConfig.from_changes("classify", {"dim": 16, "layers": 1, "heads": 2, "steps": 1, "device": "cpu"})
    config = config.adapt(examples, tmp_path)
    task = config.prepare(examples)
    data = RunData(examples[:50], examples[50:])
    train_run(task, config.architecture, config.training, data, tmp_path / "run", config.files)
    exported = regard.export(tmp_path / "run", tmp_path / "model.onnx")
    assert exported.inputs == ("tokens", "lengths", "ngrams", "ngram_counts") and exported.error is not None
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    opened = regard.open(tmp_path / "run")
    given = opened.task.inputs.batch(examples[:7], None)  # another batch size, another number of n-grams
    (logits,) = session.run(None, {name: x.numpy() for name, x in given.items()})
    probabilities = [result.probability for result in opened.predict([e.text for e in examples[:7]])]
    assert torch.from_numpy(logits).softmax(-1).amax(1).tolist() == pytest.approx(probabilities, abs=1e-4)


def test_a_run_keeps_the_weight(tmp_path: Path) -> None:
    """Of sets of labels: which word begins the text is a label too."""
    examples = [replace(e, label="|".join(sorted({e.label, e.text.split()[0]}))) for e in texts(300)]
    rows = [json.dumps({"text": e.text, "label": e.label}) for e in examples]
    (tmp_path / "train.jsonl").write_text("\n".join(rows))
    sizes = [word for item in ("dim=16", "layers=1", "heads=2") for word in ("--set", item)]
    command = ["train", "classify", "--train", str(tmp_path / "train.jsonl"), "--out", str(tmp_path / "run")]
    result = CliRunner().invoke(app, [*command, "--steps", "5", *sizes])
    assert result.exit_code == 0, result.output
    scores = json.loads((tmp_path / "run" / "scores.json").read_text())
    config = json.loads((tmp_path / "run" / "model" / "regard.json").read_text())
    assert config["model"]["extra_weight"] == scores["n-gram weight"] > 0.5
    assert scores["metrics"][scores["main"]] > 0.8
    told = CliRunner().invoke(app, ["predict", str(tmp_path / "run"), "egg egg egg egg egg", "--json"])
    (prediction,) = json.loads(told.stdout)
    assert prediction["labels"] == ["egg", "more"]
