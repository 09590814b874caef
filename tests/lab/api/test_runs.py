"""Runs and experiments: the calls of the page."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from regard import BadInput
from regard.experiments import results
from regard.lab.api import runs
from regard.lab.lab import Lab
from regard.lab.library import ModelLibrary, NotFound
from regard.lab.server.jobs import Cancelled, Job
from regard.lab.server.wire import pack, unpack


def test_the_list_says_what_the_folders_hold(lab):
    listed = {run["name"]: run for run in runs.list_runs(lab, {}, Job())["runs"]}
    one = listed["reviews-1"]
    assert (one["task"], one["main"], one["value"], one["step"], one["state"]) == (
        "classify",
        "accuracy",
        0.75,
        30,
        "finished",
    )
    assert listed["pair"]["task"] == "translate" and listed["pair"]["sizes"]["layers"] == 2


def test_calls_answer_in_packs(lab):
    found = unpack(pack(runs.curves(lab, {"run": "pair"}, Job())))
    assert found["lines"] == 34 and found["step"]["rate"]["values"].shape == (30,)
    assert runs.samples(lab, {"run": "pair", "start": 1, "count": 2}, Job())["said"] == ["狗 跑 了", "狗 坐 了"]
    assert runs.about(lab, {"run": "reviews-1"}, Job())["settings"]["training.seed"] == 1


@pytest.mark.parametrize("name", ["../../etc", "/etc", "nothing", None, 7])
def test_only_runs_of_the_folders(lab, name):
    with pytest.raises(NotFound, match="There is no run"):
        runs.curves(lab, {"run": name}, Job())
    with pytest.raises(BadInput, match="start is -1"):
        runs.samples(lab, {"run": "pair", "start": -1}, Job())


def kept(folder: Path) -> Lab:
    """A lab over a folder with one kept result."""
    words = {"en": "yes", "zh": "是"}
    claim = {name: words for name in ("title", "claim", "setup", "threshold")} | {"number": 2, "name": "grey-ball"}
    document = {
        "name": "grey-ball",
        "claim": claim,
        "numbers": {"x": [1.0]},
        "verdict": {"kind": "limited", "key": words, "why": words},
    }
    results.save_result(
        document
        | {
            "seed": 0,
            "size": "usual",
            "seconds": 3.0,
            "date": "2026-01-01T00:00:00",
            "versions": {},
            "devices": ["a CPU"],
        },
        folder,
    )
    (folder / "grey-ball.zh.png").write_bytes(b"\x89PNG\r\n\x1a\nnot much of a picture")
    return Lab(ModelLibrary([folder], shipped=False))


def test_experiments_with_their_verdicts(tmp_path):
    lab = kept(tmp_path)
    found = runs.experiments(lab, {}, Job())
    rows = {row["name"]: row for row in found["experiments"]}
    assert rows["grey-ball"]["verdict"]["kind"] == "limited" and "numbers" not in rows["grey-ball"]
    assert found["kinds"]["limited"]["sign"] == "◐"
    assert len(rows) >= 20 and all(set(row["claim"]["claim"]) == {"en", "zh"} for row in rows.values())
    numbers = [row["claim"]["number"] for row in found["experiments"]]
    assert numbers == sorted(numbers)
    picture = runs.figure(lab, {"name": "grey-ball", "language": "zh"}, Job())["png"]
    assert bytes(picture.tolist()) == (tmp_path / "grey-ball.zh.png").read_bytes()
    for ask in (
        {"name": "grey-ball", "language": "en"},
        {"name": "../secret", "language": "zh"},
        {"name": "grey-ball", "language": "../zh"},
    ):
        with pytest.raises(NotFound):
            runs.figure(lab, ask, Job())


def test_an_experiment_runs_small_and_apart(lab):
    threads = torch.get_num_threads()
    state = torch.get_rng_state()
    job = Job()
    found = runs.try_experiment(lab, {"name": "soft-dictionary", "seed": 1}, job)
    assert found["result"]["size"] == "toy" and found["result"]["seed"] == 1 and job.total == 1000
    assert found["figures"]["en"][:4].tolist() == list(b"\x89PNG")
    assert torch.equal(state, torch.get_rng_state()) and threads == torch.get_num_threads()
    assert runs.try_experiment(lab, {"name": "soft-dictionary", "seed": 1}, Job())["result"] == found["result"]
    stopped = Job()
    stopped.cancel()
    with pytest.raises(Cancelled):
        runs.try_experiment(lab, {"name": "soft-dictionary", "seed": 2}, stopped)
    with pytest.raises(BadInput, match="There is no experiment"):
        runs.try_experiment(lab, {"name": "nothing"}, Job())
