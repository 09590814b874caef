"""Runs and experiments as the lab tells of them: what the folders hold, live, and nothing outside them."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import pytest
import torch

from regard import BadInput
from regard.experiments import results
from regard.lab.api import honest, runs
from regard.lab.lab import Lab
from regard.lab.library import Library, Unknown
from regard.lab.records import MOST_POINTS, curves, summary
from regard.lab.server.jobs import Cancelled, Job
from regard.lab.server.wire import pack, unpack
from regard.train.loop import Event, Place
from regard.train.run import RunFolder


def note(folder: RunFolder, kind: str, step: int, **values: float) -> None:
    folder.log(Event(kind, Place(step=step), 100, values))


def test_the_list_says_what_the_folders_hold(lab):
    listed = {run["name"]: run for run in runs.listed(lab, {}, Job())["runs"]}
    one = listed["reviews-1"]
    assert (one["task"], one["main"], one["value"], one["step"], one["state"]) == (
        "classify",
        "accuracy",
        0.75,
        30,
        "finished",
    )
    assert listed["pair"]["task"] == "translate" and listed["pair"]["sizes"]["layers"] == 2


def test_curves_are_the_log_and_grow_with_it(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write("run.json", {"task": "tag"})
    for step in range(1, 6):
        note(folder, "step", step, loss=1 / step)
    note(folder, "score", 5, accuracy=0.5)
    first = curves(tmp_path)
    assert first["step"]["loss"]["steps"].tolist() == [1, 2, 3, 4, 5]
    assert torch.allclose(first["step"]["loss"]["values"], torch.tensor([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5]), atol=1e-6)
    assert first["score"]["accuracy"]["values"].tolist() == [0.5]
    assert first["state"] == "running"
    note(folder, "step", 6, loss=0.1)
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"kind": "step", "st')  # a line that is being written
    more = curves(tmp_path, first["lines"])
    assert not more["anew"] and more["step"]["loss"]["steps"].tolist() == [6] and not more["score"]
    folder.forget_after(2)  # the run goes on from an earlier checkpoint
    again = curves(tmp_path, more["lines"])
    assert again["anew"] and again["step"]["loss"]["steps"].tolist() == [1, 2]


def test_the_state_of_a_run(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write("run.json", {"task": "tag"})
    note(folder, "step", 1, loss=1.0)
    assert summary(tmp_path)["state"] == "running"
    assert summary(tmp_path, now=time.time() + 1000)["state"] == "left"
    note(folder, "stopped", 1)
    assert summary(tmp_path, now=time.time() + 1000)["state"] == "stopped"
    (tmp_path / "run.json").write_text("{ not json")
    assert summary(tmp_path)["task"] is None


def test_a_long_log_is_thinned_and_keeps_its_ends(tmp_path):
    folder = RunFolder(tmp_path)
    lines = [{"kind": "step", "step": n, "epoch": 0, "time": 0.0, "loss": float(n)} for n in range(3 * MOST_POINTS)]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    steps = curves(folder.path)["step"]["loss"]["steps"]
    assert len(steps) == MOST_POINTS and steps[0] == 0 and steps[-1] == 3 * MOST_POINTS - 1


def test_calls_answer_in_packs(lab):
    found = unpack(pack(runs.curves(lab, {"run": "pair"}, Job())))
    assert found["lines"] == 34 and found["step"]["rate"]["values"].shape == (30,)
    assert runs.samples(lab, {"run": "pair", "start": 1, "count": 2}, Job())["said"] == ["狗 跑 了", "狗 坐 了"]
    assert runs.about(lab, {"run": "reviews-1"}, Job())["settings"]["training.seed"] == 1


@pytest.mark.parametrize("name", ["../../etc", "/etc", "nothing", None, 7])
def test_only_runs_of_the_folders(lab, name):
    with pytest.raises(Unknown, match="There is no run"):
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
    results.save(
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
    return Lab(Library([folder], shipped=False))


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
        with pytest.raises(Unknown):
            runs.figure(lab, ask, Job())


def test_an_experiment_runs_small_and_apart(lab):
    threads = torch.get_num_threads()
    state = torch.get_rng_state()
    job = Job()
    found = runs.attempt(lab, {"name": "soft-dictionary", "seed": 1}, job)
    assert found["result"]["size"] == "toy" and found["result"]["seed"] == 1 and job.total == 1000
    assert found["figures"]["en"][:4].tolist() == list(b"\x89PNG")
    assert torch.equal(state, torch.get_rng_state()) and threads == torch.get_num_threads()
    assert runs.attempt(lab, {"name": "soft-dictionary", "seed": 1}, Job())["result"] == found["result"]
    stopped = Job()
    stopped.cancel()
    with pytest.raises(Cancelled):
        runs.attempt(lab, {"name": "soft-dictionary", "seed": 2}, stopped)
    with pytest.raises(BadInput, match="There is no experiment"):
        runs.attempt(lab, {"name": "nothing"}, Job())


REVIEW = {"model": "reviews-0", "input": {"text": "the cat sat"}}


def test_models_from_other_seeds_stand_beside(lab):
    found = honest.baselines(lab, REVIEW, Job())
    assert [(one["model"], one["seed"]) for one in found["others"]] == [("reviews-1", 1)]
    assert -1 <= found["others"][0]["correlation"] <= 1
    assert [one["change_kind"] for one in found["baselines"]] == ["uniform", "mean", "silent"]
    assert len({one["score"] for one in found["shuffled"]}) > 1
    other = honest.read(lab, {**REVIEW, "model": "reviews-1"}, Job())["question"]
    assert found["others"][0]["question"] == other


def test_honest_reading_of_every_kind_of_text_model(lab):
    for model, kind in (("reviews-0", "class"), ("llama", "next"), ("meanings", "vector"), ("bert", None)):
        found = unpack(pack(honest.read(lab, {"model": model, "input": {"text": "one two three"}}, Job())))
        assert kind in (None, found["question"]["kind"])
        sizes = {values.shape for values in found["readings"].values()}
        assert sizes == {(len(found["tokens"]),)} and list(found["readings"]) == [
            "raw",
            "value",
            "rollout",
            "gradient",
            "effect",
        ]
        assert math.isclose(float(found["read"].sum()), 1.0, rel_tol=1e-5)
        assert all(abs(value) <= 1 + 1e-9 for row in found["correlations"]["size"].values() for value in row.values())


def test_honest_calls_that_cannot_be(lab):
    for ask, words in (
        ({**REVIEW, "attention": 9}, "attention is 9"),
        ({**REVIEW, "head": 9}, "head is 9"),
        ({**REVIEW, "label": "x"}, "label is 'x'"),
        ({**REVIEW, "removal": "burn"}, "must be"),
    ):
        with pytest.raises(BadInput, match=words):
            honest.read(lab, ask, Job())
    with pytest.raises(BadInput, match="An edit is"):
        honest.change(lab, {**REVIEW, "edits": [{"head": 1}]}, Job())
    with pytest.raises(BadInput, match="The change is"):
        honest.heads(lab, {**REVIEW, "change": "loud"}, Job())
