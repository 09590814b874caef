"""The n-gram model beside the network: its fit, and the weight that validation data gives it."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from typer.testing import CliRunner

from regard.cli import app
from regard.data import LabelledText
from regard.models.baselines.linear import LOGIT_SCALE, NBLinearConfig
from regard.models.ensemble import EnsembleModel
from regard.tasks.architecture import Architecture
from regard.tasks.classify import Classify, ClassifySettings
from regard.tasks.texts import ngram_linear
from regard.tasks.texts.ngram_linear import choose_weight, suits
from regard.train.run import RunConfig, RunData, train_run

SMALL = Architecture(dim=16, layers=1, heads=2, dropout=0.0)
WORDS = ["apple", "bird", "cloud", "door", "egg", "fish", "gate", "hat"]


def texts(count: int, seed: int = 0) -> list[LabelledText]:
    rng = Random(seed)
    rows = [rng.choices(WORDS, k=5) for _ in range(count)]
    return [LabelledText(" ".join(row), "more" if row.count("egg") > row.count("hat") else "less") for row in rows]


def test_the_fit_is_logistic_regression() -> None:
    """With ratios of 1 and no pairs the optimum is scikit-learn's on the same features."""
    rng = torch.Generator().manual_seed(0)
    tokens = torch.randint(2, 12, (80, 6), generator=rng)
    labels = (tokens.eq(3).sum(1) > tokens.eq(7).sum(1)).long() + (tokens[:, 0] == 5).long()
    model = NBLinearConfig(vocabulary=12, pair_buckets=0, classes=3, pair_columns=()).build()
    model.ratios.fill_(1.0)
    model.fit([(tokens, None, labels)], strength=4.0)
    counts = torch.nn.functional.one_hot(tokens, 12).sum(1).float()
    features = counts / counts.sum(1, keepdim=True).sqrt()
    theirs = LogisticRegression(C=4.0, tol=1e-8, max_iter=2000).fit(features.numpy(), labels.numpy())
    expected = torch.from_numpy(theirs.decision_function(features.numpy())).float()
    with torch.no_grad():
        logits = model(tokens=tokens).logits
    torch.testing.assert_close(logits.softmax(-1), expected.softmax(-1), atol=5e-3, rtol=0.0)
    assert LOGIT_SCALE * float(model.weight[0].detach().abs().sum()) == 0  # no text has the padding


def test_weightings_are_products() -> None:
    batch = (torch.tensor([[2, 3, 0], [2, 4, 4]]), torch.tensor([2, 3]), torch.tensor([0, 1]))
    models = {name: NBLinearConfig(5, 0, 2, pair_columns=()).build() for name in ("nb", "idf", "both")}
    for name, model in models.items():
        model.count([batch], name)  # type: ignore[arg-type]
    idf = 1 + torch.log(torch.tensor([1.0, 2.0, 2.0]))
    torch.testing.assert_close(models["idf"].ratios[2:, 0], idf)
    torch.testing.assert_close(models["both"].ratios, models["nb"].ratios * models["idf"].ratios)


def test_the_better_model_gets_the_weight() -> None:
    examples = texts(600)
    task = Classify.prepare(examples, ClassifySettings(word_dropout=0.0))
    assert suits(examples, task.target) and not suits(examples[:400], task.target)
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
    numbers = [LabelledText(example.text, f"{n / 7:.2f}") for n, example in enumerate(texts(600))]
    assert not Classify.prepare(numbers, ClassifySettings()).linear_examples
    assert not Classify.prepare(texts(600), ClassifySettings(nb_linear=0)).linear_examples
    assert not Classify.prepare(texts(100), ClassifySettings()).linear_examples


def test_few_texts_have_defaults_of_their_own(tmp_path: Path) -> None:
    config, examples = RunConfig.from_changes("classify", {"dropout": 0.15}), texts(600)
    adapted = config.adapt(examples, tmp_path)
    assert (adapted.training.ema, adapted.architecture.dim, adapted.architecture.dropout) == (0.99, 128, 0.15)
    assert adapted.changes_from(config)[0] == "pool=attention" and not adapted.changes_from(adapted)
    tokens = RunConfig.from_changes("classify", {"batch_tokens": 700}).adapt(examples, tmp_path)
    assert (tokens.training.batch_size, adapted.training.batch_size) == (None, 32)
    chinese = [replace(example, text="这家店的味道不错，下次还来。" * 60) for example in examples]
    adapted = config.adapt(chinese, tmp_path)
    assert adapted.architecture.dim == 64 and not adapted.changes_from(config).count("max_affix=4")
    for other in ({"nb_linear": 0}, {"dim": 32, "nb_linear": 64}):
        config = RunConfig.from_changes("classify", other)
        assert config.adapt(examples, tmp_path) == config
    assert RunConfig.from_changes("classify", {}).adapt(examples[:100], tmp_path).training.ema == 0.0
    assert RunConfig.from_changes("classify", {}, adaptive=False).adapt(examples, tmp_path).training.ema == 0.0


def test_the_fit_is_inside_the_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a run that began with other defaults is resumed with them."""
    fit = ngram_linear.fit_linear

    def slow_fit(*given: Any) -> EnsembleModel:
        time.sleep(0.4)
        return fit(*given)

    monkeypatch.setattr(ngram_linear, "fit_linear", slow_fit)
    examples = texts(600)
    config = RunConfig.from_changes("classify", {"dim": 16, "layers": 1, "heads": 2, "steps": 2, "device": "cpu"})
    config = config.adapt(examples, tmp_path)
    task, data = config.prepare(examples), RunData(examples[:500], examples[500:])
    state = train_run(task, config.architecture, config.training, data, tmp_path, config.files)
    assert state.seconds > 0.4
    written = json.loads((tmp_path / "run.json").read_text())
    del written["sha256"]  # changed on purpose
    written["settings"]["word_dropout"], written["training"]["ema"] = 0.1, 0.0
    (tmp_path / "run.json").write_text(json.dumps(written))
    again = RunConfig.from_changes("classify", {}).adapt(examples, tmp_path)
    assert (again.settings.word_dropout, again.training.ema, again.training.label_smoothing) == (0.1, 0.0, 0.1)  # type: ignore[attr-defined]


def test_a_run_keeps_the_weight(tmp_path: Path) -> None:
    """Of sets of labels: which word begins the text is a label too."""
    examples = [replace(e, label="|".join(sorted({e.label, e.text.split()[0]}))) for e in texts(600)]
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
