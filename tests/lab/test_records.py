"""Records of training runs: summaries, curves, states."""

from __future__ import annotations

import json
import math
import time

import torch

from regard.lab.records import FEW_POINTS, MAX_POINTS, overview_curves, read_curves, read_samples, summarize_run
from regard.train.run_folder import RunFolder
from regard.train.trainer import TrainEvent, TrainState


def note(folder: RunFolder, kind: str, step: int, **values: float) -> None:
    folder.log_event(TrainEvent(kind, TrainState(step=step), 100, values))


def test_curves_are_the_log_and_grow_with_it(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write("run.json", {"task": "tag"})
    for step in range(1, 6):
        note(folder, "step", step, loss=1 / step)
    note(folder, "score", 5, accuracy=0.5)
    first = read_curves(tmp_path)
    assert first["step"]["loss"]["steps"].tolist() == [1, 2, 3, 4, 5]
    assert torch.allclose(first["step"]["loss"]["values"], torch.tensor([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5]), atol=1e-6)
    assert first["score"]["accuracy"]["values"].tolist() == [0.5]
    assert first["state"] == "running"
    note(folder, "step", 6, loss=0.1)
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"kind": "step", "st')  # a line that is being written
    more = read_curves(tmp_path, first["lines"])
    assert not more["anew"] and more["step"]["loss"]["steps"].tolist() == [6] and not more["score"]
    folder.truncate_log(2)  # the run goes on from an earlier checkpoint
    again = read_curves(tmp_path, more["lines"])
    assert again["anew"] and again["step"]["loss"]["steps"].tolist() == [1, 2]


def test_the_state_of_a_run(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write("run.json", {"task": "tag"})
    note(folder, "step", 1, loss=1.0)
    assert summarize_run(tmp_path)["state"] == "running"
    assert summarize_run(tmp_path, now=time.time() + 1000)["state"] == "left"
    note(folder, "stopped", 1)
    assert summarize_run(tmp_path, now=time.time() + 1000)["state"] == "stopped"
    (tmp_path / "run.json").write_text("{ not json")
    assert summarize_run(tmp_path)["task"] is None


def test_a_long_log_is_thinned_and_keeps_its_ends(tmp_path):
    folder = RunFolder(tmp_path)
    lines = [{"kind": "step", "step": n, "epoch": 0, "time": 0.0, "loss": float(n)} for n in range(3 * MAX_POINTS)]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    steps = read_curves(folder.path)["step"]["loss"]["steps"]
    assert len(steps) == MAX_POINTS and steps[0] == 0 and steps[-1] == 3 * MAX_POINTS - 1


def test_a_run_whose_loss_is_no_number_is_told(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write("run.json", {"task": "tag"})
    note(folder, "step", 1, loss=2.0)
    assert summarize_run(tmp_path)["state"] == "running"
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "step", "step": 2, "loss": math.nan, "time": time.time()}) + "\n")
    assert summarize_run(tmp_path)["state"] == "diverged"


def test_the_overview_has_the_loss_and_the_main_score(tmp_path):
    folder = RunFolder(tmp_path)
    assert overview_curves(tmp_path, "accuracy") == {}
    folder.write("run.json", {"task": "tag"})
    for step in range(1, 1001):
        note(folder, "step", step, loss=1 / step, rate=0.1)
    note(folder, "score", 1000, accuracy=0.5, loss=0.3)
    found = overview_curves(tmp_path, "accuracy")
    assert set(found) == {"step.loss", "score.accuracy"}
    steps, values = found["step.loss"]["steps"], found["step.loss"]["values"]
    assert len(steps) == FEW_POINTS and steps[[0, -1]].tolist() == [1, 1000]
    assert torch.allclose(values, 1 / steps.float(), atol=1e-6)  # the log has six decimals
    assert found["score.accuracy"]["values"].tolist() == [0.5]


def test_samples_come_with_input_and_gold_where_they_are_saved(tmp_path):
    (tmp_path / "hypotheses.txt").write_text("1\n0\n")
    plain = read_samples(tmp_path)
    assert [sample["prediction"] for sample in plain["samples"]] == ["1", "0"] and plain["wrong"] is None
    rows = [{"input": "好", "gold": "1", "prediction": "1"}, {"input": ["a", 2], "gold": "1", "prediction": "0"}]
    (tmp_path / "hypotheses.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read_samples(tmp_path, errors=True)
    assert found["wrong"] == found["total"] == 1 and found["all"] == 2
    assert found["samples"] == [{"number": 1, "input": '["a", 2]', "gold": "1", "prediction": "0"}]
    (tmp_path / "hypotheses.jsonl").write_text('{"half')  # a run that is being written
    assert read_samples(tmp_path)["total"] == 2


def test_lines_that_are_no_records_are_left_out(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write("run.json", {"task": "tag"})
    note(folder, "step", 1, loss=1.0)
    wrong = ["[" * 5000, "7", '{"kind": "step"}', '{"kind": [], "step": 2}', '{"kind": "step", "step": 1e999}']
    wrong += [
        '{"kind": "step", "step": 4294967296, "loss": 1}',
        '{"kind": "step", "step": 2, "loss": 1' + "0" * 400 + "}",
    ]
    with (tmp_path / "log.jsonl").open("ab") as file:
        file.write("\n".join(wrong).encode() + b"\n\xff\xfe\n")
    assert read_curves(tmp_path)["step"]["loss"]["steps"].tolist() == [1]
    assert overview_curves(tmp_path, None)["step.loss"]["steps"].tolist() == [1]
    assert summarize_run(tmp_path)["step"] == 2
