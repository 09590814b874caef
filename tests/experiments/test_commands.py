"""The commands `regard experiment list`, `run` and `report`."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from regard import experiments
from regard.cli import app
from regard.errors import Missing


def call(*words: str) -> Any:
    return CliRunner().invoke(app, ["experiment", *words])


@pytest.mark.parametrize("command", ["list", "run", "report", "parameters", "sweep", "refresh"])
def test_help_has_an_example(command: str) -> None:
    done = call(command, "--help")
    assert done.exit_code == 0
    assert f"Example: regard experiment {command}" in done.stdout
    assert "--json" in done.stdout


def test_list_names_every_experiment() -> None:
    assert "grey-ball" in call("list").stdout
    assert json.loads(call("list", "--json").stdout)[0]["name"] == "soft-dictionary"


def test_run_writes_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, experiment_factory: Any) -> None:
    monkeypatch.setattr(experiments, "find_experiment", lambda name: experiment_factory())
    done = call("run", "made", "--size", "toy", "--seed", "5", "--out", str(tmp_path / "x"), "--json")
    assert done.exit_code == 0, done.stderr
    output = json.loads(done.stdout)
    assert Path(output["report"]).exists()
    assert output["experiments"][0]["numbers"]["value"] == 10
    text = call("run", "made", "--size", "toy", "--seed", "1", "--out", str(tmp_path / "x"))
    assert text.exit_code == 0, "a claim that does not hold is a result"
    assert "fails" in text.stdout and "report.html" in text.stdout


def test_run_all_exits_with_1_if_one_cannot_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, experiment_factory: Any
) -> None:
    def refuse(size: str, seed: int, progress: Any, settings: Any) -> dict[str, Any]:
        raise Missing("pip install something")

    monkeypatch.setattr(
        experiments, "list_experiments", lambda: [experiment_factory("first", 1, measure=refuse), experiment_factory()]
    )
    done = call("run", "all", "--out", str(tmp_path), "--json", "--jobs", "1")
    assert done.exit_code == 1
    assert "first did not run: pip install something" in done.stderr
    assert [result["name"] for result in json.loads(done.stdout)["experiments"]] == ["made"]


@pytest.mark.parametrize("words", [("--size", "huge"), ("--full", "--size", "toy")])
def test_wrong_size_exits_with_2(words: tuple[str, ...], tmp_path: Path) -> None:
    assert call("run", "order", *words, "--out", str(tmp_path)).exit_code == 2


def test_wrong_name_exits_with_1(tmp_path: Path) -> None:
    done = call("run", "gray-ball", "--out", str(tmp_path))
    assert done.exit_code == 1
    assert "Did you mean 'grey-ball'?" in done.stderr


def test_report_index_is_a_table_with_figures(tmp_path: Path, experiment_factory: Any, run: Any) -> None:
    assert call("report", str(tmp_path / "kept")).exit_code == 1
    run(experiment_factory(), tmp_path / "kept")
    run(experiment_factory("other", 7), tmp_path / "kept", seed=1)
    done = call("report", str(tmp_path / "kept"), "--index", str(tmp_path / "index.md"), "--json")
    assert done.exit_code == 0, done.stderr
    page, english, chinese = (Path(path) for path in json.loads(done.stdout)["files"])
    assert page.exists() and chinese.name == "index.zh.md"
    rows = [line.split(" | ") for line in english.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    assert [row[1] for row in rows[2:]] == ["`other`", "`made`"]
    assert [row[3] for row in rows[2:]] == ["✗ does not hold", "✓ holds"]
    assert all(len(row) == 6 for row in rows)
    for path, language in ((english, "en"), (chinese, "zh")):
        linked = re.findall(r"\(([^)]*\.png)\)", path.read_text(encoding="utf-8"))
        assert linked == [f"kept/other.{language}.png", f"kept/made.{language}.png"]
        assert all((tmp_path / link).exists() for link in linked)


def test_parameters_are_set_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, experiment_factory: Any
) -> None:
    monkeypatch.setattr(experiments, "find_experiment", lambda name: experiment_factory())
    done = call("run", "made", "--size", "toy", "--seed", "5", "--set", "factor=3", "--out", str(tmp_path), "--json")
    assert done.exit_code == 0, done.stderr
    result = json.loads(done.stdout)["experiments"][0]
    assert result["numbers"]["value"] == 15 and result["settings"] == {"factor": 3}
    assert "factor" in call("parameters", "made").stdout and "1 to 10, default 2" in call("parameters", "made").stdout
    for words, message in (("factor=much", "name=number"), ("factor=11", "1 to 10"), ("size=2", "no parameter 'size'")):
        wrong = call("run", "made", "--size", "toy", "--set", words, "--out", str(tmp_path))
        assert wrong.exit_code != 0 and message in " ".join(wrong.stderr.split()), wrong.stderr


def test_sweep_says_where_the_verdict_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, experiment_factory: Any
) -> None:
    monkeypatch.setattr(experiments, "find_experiment", lambda name: experiment_factory())
    done = call("sweep", "made", "factor", "1", "2", "--size", "toy", "--seed", "3", "--out", str(tmp_path))
    assert done.exit_code == 0, done.stderr
    assert "factor = 1: fails" in done.stdout and "factor = 2: holds" in done.stdout
    assert (tmp_path / "sweeps/made.zh.png").exists()


def test_refresh_judges_again_without_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, experiment_factory: Any, run: Any
) -> None:
    experiment = experiment_factory()
    run(experiment, tmp_path)
    saved = (tmp_path / "made.json").read_text("utf-8").replace('"kind": "holds"', '"kind": "fails"')
    (tmp_path / "made.json").write_text(saved, "utf-8")
    (tmp_path / "made.zh.png").unlink()
    monkeypatch.setattr(experiments.runner, "find_experiment", lambda name: experiment)
    done = call("refresh", str(tmp_path))
    assert done.exit_code == 0, done.stderr
    assert '"kind": "holds"' in (tmp_path / "made.json").read_text("utf-8") and (tmp_path / "made.zh.png").exists()
    assert experiment.calls == [3]
