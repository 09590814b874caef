"""Experiments: the calls of the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from regard import BadInput
from regard.experiments import find_experiment, published_verdict, results
from regard.experiments.results import dump_verdict
from regard.lab.api import experiments
from regard.lab.lab import Lab
from regard.lab.library import ModelLibrary, NotFound
from regard.lab.server.jobs import Cancelled, Job

PNG = list(b"\x89PNG")


def make_lab(folder: Path) -> Lab:
    """A lab over a folder with one saved result, which has a figure in Chinese only."""
    words = {"en": "yes", "zh": "是"}
    claim = {name: words for name in ("title", "claim", "setup")} | {"number": 2, "name": "grey-ball", "criteria": []}
    part = {"name": "a", "text": words, "figures": words, "holds": False, "value": 0.5, "bound": 1.0, "core": False}
    verdict = {"kind": "limited", "key": words, "why": words, "subclaims": [part]}
    more = {"seed": 0, "size": "usual", "seconds": 3.0, "date": "2026-01-01T00:00:00", "devices": ["a CPU"]}
    document = {"name": "grey-ball", "claim": claim, "numbers": {}, "verdict": verdict}
    results.save_result(document | more, folder)
    (folder / "grey-ball.zh.png").write_bytes(b"\x89PNG\r\n\x1a\nnot much of a picture")
    return Lab(ModelLibrary([folder], shipped=False))


def test_every_claim_has_verdict_parameters_and_both_languages(tmp_path: Path) -> None:
    answer = experiments.list_claims(make_lab(tmp_path), {}, Job())
    rows = {row["name"]: row for row in answer["experiments"]}
    assert rows["grey-ball"]["verdict"]["kind"] == "limited" and "numbers" not in rows["grey-ball"]
    assert rows["grey-ball"]["devices"] == ["a CPU"], "the folder's own result comes first"
    assert answer["kinds"]["limited"]["sign"] == "◐" and answer["rule"]["zh"]
    assert len(rows) >= 22 and all(set(row["claim"]["claim"]) == {"en", "zh"} for row in rows.values())
    assert all(row["parameters"] and row["verdict"] for row in rows.values())
    numbers = [row["claim"]["number"] for row in answer["experiments"]]
    assert numbers == sorted(numbers)
    assert [one["name"] for one in rows["grey-ball"]["parameters"]][:2] == ["grey", "noise"]


def test_verdicts_are_shown_without_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(results, "REPOSITORY_FOLDER", tmp_path / "none")
    lab = Lab(ModelLibrary([], shipped=False))
    rows = {row["name"]: row for row in experiments.list_claims(lab, {}, Job())["experiments"]}
    published = published_verdict("scaling")
    assert published is not None and rows["scaling"]["verdict"] == dump_verdict(published)
    drawn = experiments.figure(lab, {"name": "soft-dictionary", "language": "zh"}, Job())["png"]
    assert drawn[:4].tolist() == PNG and len(drawn) > 5000


def test_figures_are_those_of_the_folder(tmp_path: Path) -> None:
    lab = make_lab(tmp_path)
    picture = experiments.figure(lab, {"name": "grey-ball", "language": "zh"}, Job())["png"]
    assert bytes(picture.tolist()) == (tmp_path / "grey-ball.zh.png").read_bytes()
    for request in (
        {"name": "grey-ball", "language": "en"},
        {"name": "../secret", "language": "zh"},
        {"name": "grey-ball", "language": "../zh"},
    ):
        with pytest.raises(NotFound):
            experiments.figure(lab, request, Job())


def test_an_experiment_runs_with_settings_in_a_process_of_its_own(lab: Any) -> None:
    threads, state, job = torch.get_num_threads(), torch.get_rng_state(), Job()
    request = {"name": "soft-dictionary", "seed": 1, "settings": {"dim": 2}}
    answer = experiments.run(lab, request, job)
    assert answer["result"]["size"] == "toy" and answer["result"]["settings"] == {"dim": 2} and job.total == 1000
    assert answer["figures"]["en"][:4].tolist() == PNG
    assert torch.equal(state, torch.get_rng_state()) and threads == torch.get_num_threads()
    numbers = find_experiment("soft-dictionary").measure("toy", 1, lambda fraction, text: None, {"dim": 2})
    wanted = find_experiment("soft-dictionary").verdict(numbers).subclaims[0].value
    assert answer["result"]["verdict"]["subclaims"][0]["value"] == pytest.approx(wanted, rel=1e-3)
    assert experiments.run(lab, request, Job())["result"] == answer["result"], "the answer is kept"
    stopped = Job()
    stopped.cancel()
    with pytest.raises(Cancelled):
        experiments.run(lab, {"name": "soft-dictionary", "seed": 2}, stopped)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"name": "nothing"}, "There is no experiment"),
        ({"name": "heads", "size": "full"}, "size is 'full'"),
        ({"name": "heads", "settings": {"token": 3}}, "Did you mean 'tokens'"),
        ({"name": "heads", "settings": {"tokens": 1000}}, "tokens is 1000; wanted: 3 to 64"),
        ({"name": "heads", "settings": {"dim": 20}}, "a multiple of 8"),
        ({"name": "heads", "settings": {"dim": "many"}}, "dim is 'many'"),
        ({"name": "heads", "settings": [1]}, "an object of names and numbers"),
    ],
)
def test_a_wrong_run_is_refused(lab: Any, request_: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        experiments.run(lab, request_, Job())


def test_sweeps_come_from_the_results(lab: Any) -> None:
    sweep = experiments.sweep(lab, {"name": "meaning"}, Job())["sweep"]
    assert sweep["parameter"] == "dim" and len(sweep["points"]) == len(sweep["values"])
    with pytest.raises(BadInput, match="There is no experiment"):
        experiments.sweep(lab, {"name": "../etc"}, Job())
