"""Runs of every task open in the lab: pictures, recordings, molecules, attention plugged into other layers."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import torch

import regard as rg
from regard.lab.lab import Lab
from regard.lab.library import ModelLibrary
from regard.lab.server.jobs import Job
from regard.train.run import open_run

from .api_call import ask
from .task_runs import RUNS, as_image, as_npy, as_wav, frames, picture, save_other_run, tone

INPUTS: dict[str, dict[str, Any]] = {
    "text": {"text": "the cat sat"},
    "pair": {"text": "the cat sat"},
    "image": {"base64": base64.b64encode(picture(1)).decode()},
    "sound": {"base64": as_wav(tone(500))},
    "graph": {"text": "CC(=O)O"},
}


@pytest.fixture(scope="module", params=list(RUNS))
def task_run(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Lab]:
    """A run's name, its folder, and a lab over it."""
    if request.param == "molecules":
        pytest.importorskip("rdkit")
    root = tmp_path_factory.mktemp("runs")
    save_other_run(root, request.param)
    return request.param, root / request.param, Lab(ModelLibrary([root], shipped=False))


def given_to(lab: Lab, name: str) -> dict[str, Any]:
    if name == "frames":
        return {"base64": as_npy(frames()[1][0].frames)}
    return INPUTS[lab.library.entry(name).modality]


def test_every_map_is_what_the_model_watched_shows(task_run):
    name, folder, lab = task_run
    given = given_to(lab, name)
    arguments = lab.prepare({"model": name, "input": given}, Job())[1].arguments
    _, model, _ = open_run(folder)
    with torch.no_grad(), rg.watch(model, weights=True) as seen:
        model(**arguments)
    listed = ask(lab, "heads/run", model=name, input=given)["attentions"]
    assert [one["name"] for one in listed] == list(seen)
    for one in listed:
        answer = ask(lab, "heads/map", model=name, input=given, attention=one["name"], head=one["heads"] - 1)
        wanted = seen[one["name"]].weights[0, -1].float()
        torch.testing.assert_close(answer["weights"], wanted, atol=1e-6, rtol=0)


def test_it_can_be_read_honestly(task_run):
    name, _, lab = task_run
    given = given_to(lab, name)
    if name in ("committee", "ngrams"):
        with pytest.raises(rg.RegardError, match=f"an ensemble of {3 if name == 'committee' else 2} models"):
            ask(lab, "honest/read", model=name, input=given)
        return
    answer = ask(lab, "honest/read", model=name, input=given)
    readings = answer["attributions"]
    assert float(readings["raw"].sum()) == pytest.approx(1.0, abs=1e-5)
    assert all(len(reading) == len(answer["tokens"]) for reading in readings.values())
    assert 0 < float(readings["rollout"].sum()) < 1 + 1e-5
    baselines = ask(lab, "honest/baselines", model=name, input=given)
    assert {one["change_kind"] for one in baselines["baselines"]} == {"uniform", "mean", "silent"}
    assert len(baselines["shuffled"]) == 5
    alone = ask(lab, "honest/heads", model=name, input=given, change="uniform")["heads"]
    assert alone.shape == (len(answer["attentions"]), max(one["heads"] for one in answer["attentions"]))


@pytest.mark.parametrize("task_run", ["objects", "cells"], indirect=True)
def test_a_detector_tells_what_its_task_tells(task_run):
    name, folder, lab = task_run
    seen = ask(lab, "image/run", model=name, input=INPUTS["image"])
    task, model, _ = open_run(folder)
    (answer,) = task.detect(model, [as_image(1)])
    surest = int(answer.scores.argmax())
    first = seen["prediction"]["items"][0]
    assert (first["query"], first["label"]) == (surest, "square")
    assert first["probability"] == pytest.approx(float(answer.scores[surest]), abs=1e-6)
    assert seen["prediction"]["sure"] == task.settings.threshold
    assert len(seen["crossed"]) == (2 if name == "objects" else 0) and seen["grid"] == [4, 5]


@pytest.mark.parametrize("task_run", ["dictation"], indirect=True)
def test_dictation_is_aligned_with_seconds(task_run):
    name, folder, lab = task_run
    read = ask(lab, "alignment/read", model=name, input=INPUTS["sound"], head=1)
    assert read["side"] == "sound" and read["seconds_per_token"] == pytest.approx(0.02)
    assert read["tokens"][3]["text"] == "0.06 s" and not read["outside"].any()
    task, model, _ = open_run(folder)
    from regard.data.sound import Spoken
    from regard.lab.inputs.audio import read_recording

    heard = Spoken("", sound=read_recording(base64.b64decode(INPUTS["sound"]["base64"])))
    assert read["text"] == task.transcribe(model, [heard])[0]
    forced = ask(lab, "alignment/read", model=name, input=INPUTS["sound"] | {"target": "maybe"})
    assert [one["text"] for one in forced["target_tokens"]][:5] == list("maybe") and not forced["generated"]


@pytest.mark.parametrize("task_run", ["frames"], indirect=True)
def test_a_run_that_learned_from_frames_reads_frames(task_run):
    name, _, lab = task_run
    heard = ask(lab, "sound/run", model=name, input=given_to(lab, name))
    assert heard["heard"] == 15 and heard["seconds_per_token"] == pytest.approx(0.02)
    for bad in (as_wav(tone(300)), as_npy(torch.zeros(4, 5))):
        with pytest.raises(rg.BadInput, match="frames"):
            ask(lab, "sound/run", model=name, input={"base64": bad})


@pytest.mark.parametrize("task_run", ["recurrent"], indirect=True)
def test_a_recurrent_decoder_is_aligned_too(task_run):
    name, _, lab = task_run
    read = ask(lab, "alignment/read", model=name, input=INPUTS["pair"])
    assert read["attentions"][0]["role"] == "cross"
    torch.testing.assert_close(read["weights"].sum(-1), torch.ones(len(read["target_tokens"])))


@pytest.mark.parametrize("task_run", ["molecules"], indirect=True)
def test_a_molecule_is_a_graph(task_run):
    name, _, lab = task_run
    seen = ask(lab, "graph/run", model=name, input=INPUTS["graph"])
    assert seen["nodes"][:4] == ["C 0", "C 1", "O 2", "O 3"] and seen["class"] is None
    assert seen["prediction"]["items"][0]["label"] in ("a", "b", "c")
    with pytest.raises(rg.BadInput, match="no SMILES"):
        ask(lab, "graph/run", model=name, input={"text": "not one"})
