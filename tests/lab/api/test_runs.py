"""Runs: the calls of the page."""

from __future__ import annotations

import pytest

from regard import BadInput
from regard.lab.api import runs
from regard.lab.library import NotFound
from regard.lab.server.jobs import Job
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
    samples = runs.samples(lab, {"run": "pair", "start": 1, "count": 2}, Job())["samples"]
    assert [sample["prediction"] for sample in samples] == ["狗 跑 了", "狗 坐 了"]
    assert runs.about(lab, {"run": "reviews-1"}, Job())["settings"]["training.seed"] == 1


@pytest.mark.parametrize("name", ["../../etc", "/etc", "nothing", None, 7])
def test_only_runs_of_the_folders(lab, name):
    with pytest.raises(NotFound, match="There is no run"):
        runs.curves(lab, {"run": name}, Job())
    with pytest.raises(BadInput, match="start is -1"):
        runs.samples(lab, {"run": "pair", "start": -1}, Job())
