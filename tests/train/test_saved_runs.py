"""Runs, recipes and settings written before the settings were renamed still work."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import regard as rg
from regard.cli import app

SAVED = Path(__file__).parents[1] / "saved_runs"
NAMES = sorted(path.parent.name for path in SAVED.glob("*/expected.json"))
RESUMABLE = sorted(path.parent.name for path in SAVED.glob("*/checkpoints"))


def call(*arguments: str) -> Any:
    """The JSON document that a command prints."""
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def read_expected(name: str) -> dict[str, Any]:
    return json.loads((SAVED / name / "expected.json").read_text("utf8"))


def assert_same(found: Any, wanted: Any) -> None:
    """Equal, numbers up to rounding."""
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for name in wanted:
            assert_same(found[name], wanted[name])
    elif isinstance(wanted, list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other)
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, rel=1e-4, abs=2e-4)
    else:
        assert found == wanted


def predict(run: str, inputs: list[str]) -> Any:
    """The predictions, without what is newer than these runs: probabilities of all classes, inputs beside texts."""
    predictions = call("predict", run, *inputs)
    for prediction in predictions:
        if "probabilities" in prediction:
            assert sum(prediction.pop("probabilities").values()) == pytest.approx(1.0, abs=1e-3)
    return [row["text"] if set(row) == {"input", "text"} else row for row in predictions]


@pytest.mark.parametrize("name", NAMES)
def test_saved_run_evaluates_and_predicts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(SAVED)
    wanted = read_expected(name)
    assert_same(call("evaluate", name, "--data", wanted["data"])["metrics"], wanted["evaluated"])
    assert_same(predict(name, wanted["inputs"]), wanted["predictions"])
    assert not rg.load(SAVED / name).training


@pytest.mark.parametrize("name", RESUMABLE)
def test_saved_run_resumes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the settings' names of that time the run goes on from its checkpoint to the same losses and predictions."""
    monkeypatch.chdir(SAVED)
    wanted, out = read_expected(name), tmp_path / name
    shutil.copytree(SAVED / name, out)
    settings = [word for text in wanted["settings"] for word in ("--set", text)]
    files = ["--train", wanted["data"], "--dev", wanted["data"]]
    call("train", wanted["task"], *files, "--out", str(out), "--device", "cpu", "--steps", "4", *settings)
    log = [json.loads(line) for line in (out / "log.jsonl").read_text("utf8").splitlines()]
    assert_same([{k: v for k, v in line.items() if k != "time"} for line in log], wanted["resumed"]["log"])
    assert_same(predict(str(out), wanted["inputs"]), wanted["resumed"]["predictions"])


def test_recipe_and_config_with_former_names(tmp_path: Path) -> None:
    data, out = str(SAVED / "data" / "reviews.csv"), tmp_path / "run"
    call("train", "--recipe", str(SAVED / "recipe.toml"), "--train", data, "--out", str(out), "--device", "cpu")
    config = tmp_path / "config.toml"
    config.write_text('places = "none"\nrate = 0.02\nleast = 2\nletters = 5\ndim = 8\nheads = 2\nlayers = 1\n', "utf8")
    tags = str(SAVED / "data" / "tags.conllu")
    call("train", "tag", "--config", str(config), "--train", tags, "--out", str(tmp_path / "tags"), "--steps", "1")
