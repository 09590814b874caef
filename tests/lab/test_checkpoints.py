"""Every family of checkpoints that is supported opens in the lab and gives its pictures, with the tensors' numbers."""

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

from .api_call import ask
from .checkpoints import FAMILIES, save
from .task_runs import as_wav, picture, tone

pytest.importorskip("transformers")
KINDS = {"t5": "pair", "marian": "pair", "whisper": "sound", "vit": "image", "clip": "image", "detr": "image"}
INPUTS = {
    "text": {"text": "the cat sat on the mat"},
    "pair": {"text": "the cat sat on the mat", "target": "a dog ran"},
    "image": {"base64": base64.b64encode(picture()).decode()},
    "sound": {"base64": as_wav(tone(440, 0.3)), "target": "a dog"},
}
CLOSE = {"atol": 2e-5, "rtol": 0.0}


@pytest.fixture(scope="module", params=list(FAMILIES))
def checkpoint(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any, Path, Lab]:
    """A family's name, transformers' model, the folder that it was saved into, and a lab over it."""
    root = tmp_path_factory.mktemp("checkpoints")
    theirs = save(root, request.param)
    return request.param, theirs, root / request.param, Lab(ModelLibrary([root], shipped=False))


def prepare_input(lab: Lab, name: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """The kind of a model, an input for it, and the arguments that the lab makes of that."""
    kind = lab.library.entry(name).modality
    assert kind == KINDS.get(name, "text")
    given = INPUTS[kind]
    return kind, given, lab.prepare({"model": name, "input": given}, Job())[1].arguments


def test_every_map_is_what_the_model_watched_shows(checkpoint):
    name, _, folder, lab = checkpoint
    kind, given, arguments = prepare_input(lab, name)
    model = rg.load(folder)
    with torch.no_grad(), rg.watch(model, weights=True) as seen:
        model(**arguments)
    page = {"text": "heads", "pair": "heads", "image": "image", "sound": "sound"}[kind]
    run = ask(lab, f"{page}/run", model=name, input=given)
    assert run["attentions"] and run["backend"] if page != "heads" else run["attentions"][0]["backend"]
    for one in ask(lab, "heads/run", model=name, input=given)["attentions"]:
        wanted = seen[one["name"]].weights
        for head in range(one["heads"]):
            found = ask(lab, "heads/map", model=name, input=given, attention=one["name"], head=head)
            assert not found["pooled"]
            torch.testing.assert_close(found["weights"], wanted[0, head].float(), atol=1e-6, rtol=0)


def theirs_call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The same input in transformers' words."""
    if name == "whisper":
        return {"input_features": arguments["sound"].mT, "decoder_input_ids": arguments["targets"]}
    if name in ("t5", "marian"):
        return {"input_ids": arguments["tokens"], "decoder_input_ids": arguments["targets"]}
    if name in ("vit", "detr", "clip"):
        return {"pixel_values": arguments["images"]}
    return {"input_ids": arguments["tokens"]}


@pytest.mark.parametrize(
    "checkpoint", [name for name in FAMILIES if name not in ("longformer", "bigbird")], indirect=True
)
def test_maps_are_those_of_transformers(checkpoint):
    """Where they show weights as queries × keys, which Longformer and BigBird do not."""
    name, theirs, _, lab = checkpoint
    _, given, arguments = prepare_input(lab, name)
    theirs.set_attn_implementation("eager")
    model = theirs.vision_model if name == "clip" else theirs
    with torch.no_grad():
        output = model(**theirs_call(name, arguments), output_attentions=True)
    capture = lab.capture({"model": name, "input": given}, Job())
    sides = {"stack": ("encoder_attentions", "attentions"), "image": ("attentions",)}
    compared = 0
    for one in capture.attentions:
        front = one.name.split(".")[0]
        names = ("cross_attentions" if one.role == "cross" else "decoder_attentions",)
        weights = next(held for key in sides.get(front, names) if (held := getattr(output, key, None)) is not None)
        torch.testing.assert_close(one.weights(None).float(), weights[one.layer][0], **CLOSE)
        compared += 1
    assert compared >= 2


def test_the_page_that_is_meant_for_it_shows_it(checkpoint):
    name, _, _, lab = checkpoint
    kind, given, _ = prepare_input(lab, name)
    body = {"model": name, "input": given}
    if kind in ("pair", "sound"):
        assert lab.library.entry(name).generates
        read = ask(lab, "alignment/read", **body, head=1)
        cross = [one for one in lab.capture(body, Job()).attentions if one.role == "cross"][-1]
        columns = read["weights"].shape[1]
        torch.testing.assert_close(read["weights"], cross.weights(1)[:, :columns].float(), atol=1e-6, rtol=0)
        torch.testing.assert_close(read["weights"].sum(-1) + read["outside"], torch.ones(len(read["target_tokens"])))
        free = {key: value for key, value in given.items() if key != "target"}
        written = ask(lab, "alignment/write", model=name, input=free, beams=2)
        again = ask(lab, "alignment/read", model=name, input=free | {"target": written["finished"][0]["tokens"]})
        assert again["weights"].shape[0] == len(written["finished"][0]["tokens"]) == len(again["target_tokens"])
    if kind == "sound":
        heard = ask(lab, "sound/run", **body)
        assert heard["heard"] == 15 and len(heard["tokens"]) == 25  # 0.3 of the 0.5 seconds that it hears at once
        region = ask(lab, "heads/map", **body, attention=0, head=2, rows=[0, 15], keys=[0, 15])
        torch.testing.assert_close(region["weights"].sum(-1) + region["outside"], torch.ones(15))
    if kind == "image":
        seen = ask(lab, "image/run", **body)
        assert seen["grid"] == ([3, 4] if name == "detr" else [3, 3])
        assert (len(seen["crossed"]), seen["queries"]) == ((3, 7) if name == "detr" else (0, 0))
    if name == "vit":
        assert seen["prediction"]["items"][0]["label"] in ("cat", "dog", "mat")


def test_it_can_be_read_honestly(checkpoint):
    """Five readings over the units of what was read; the raw one is the tensor's own row."""
    name, _, _, lab = checkpoint
    _, given, _ = prepare_input(lab, name)
    found = ask(lab, "honest/read", model=name, input=given)
    assert set(found["attributions"]) == {"raw", "value", "rollout", "gradient", "effect"} and not found["reasons"]
    raw, effect = found["attributions"]["raw"], found["attributions"]["effect"]
    assert float(raw.sum()) == pytest.approx(1.0, abs=1e-5) and len(effect) == len(found["tokens"])
    assert int(effect.isnan().sum()) == int(name in ("vit", "clip"))  # the class token has no pixels
    body = {"model": name, "input": given, "edits": [{"attention": found["attentions"][0]["name"], "head": 0}]}
    body["edits"][0]["change"] = "silent"
    changed = ask(lab, "honest/change", **body)
    assert changed["after"]["change"] != 0.0 and changed["before"]["change"] == pytest.approx(0.0, abs=1e-6)


def test_detr_tells_boxes_and_classes(tmp_path):
    theirs = save(tmp_path, "detr")
    lab = Lab(ModelLibrary([tmp_path], shipped=False))
    _, given, arguments = prepare_input(lab, "detr")
    found = ask(lab, "image/run", model="detr", input=given)["prediction"]
    with torch.no_grad():
        output = theirs(pixel_values=arguments["images"])
    chances = output.logits[0].softmax(-1)[:, :-1]
    assert [one["query"] for one in found["items"]] == chances.amax(-1).argsort(descending=True).tolist()
    first = found["items"][0]
    x, y, w, h = output.pred_boxes[0, first["query"]].tolist()
    wanted = [max(0.0, x - w / 2), max(0.0, y - h / 2), min(1.0, x + w / 2), min(1.0, y + h / 2)]
    assert first["box"] == pytest.approx(wanted, abs=1e-4)
    assert first["probability"] == pytest.approx(float(chances.max()), abs=1e-4)


def test_a_recording_longer_than_whisper_hears_is_told(tmp_path):
    save(tmp_path, "whisper")
    lab = Lab(ModelLibrary([tmp_path], shipped=False))
    with pytest.raises(rg.BadInput, match=r"0\.8 s long; this model takes at most 0\.5 s"):
        ask(lab, "sound/run", model="whisper", input={"base64": as_wav(tone(440, 0.8))})


def test_a_headless_encoder_decoder_reads_a_text_that_is_given(tmp_path):
    import transformers

    model = save(tmp_path, "t5")
    transformers.T5Model(model.config).save_pretrained(tmp_path / "t5")
    lab = Lab(ModelLibrary([tmp_path], shipped=False))
    found = ask(lab, "alignment/read", model="t5", input=INPUTS["pair"])
    assert found["weights"].shape[0] == len(found["target_tokens"]) and found["target_tokens"][0]["probability"] is None
    with pytest.raises(rg.BadInput, match="no head over a vocabulary"):
        ask(lab, "alignment/write", model="t5", input=INPUTS["pair"])
    assert ask(lab, "honest/read", model="t5", input=INPUTS["pair"])["question"]["type"] == "vector"


def test_recordings_become_whispers_own_frames():
    from transformers import WhisperFeatureExtractor

    from regard.lab.inputs.audio import audio_source, read_recording
    from regard.models.families.whisper import whisper

    model = whisper(layers=1, dim=12, heads=2, hidden=8, vocabulary=9, start=1, padding=0).build().eval()
    data = base64.b64decode(as_wav(tone(440, 1.0)))
    source = audio_source(model, None, data)
    samples, _ = read_recording(data).load(16000)
    wanted = WhisperFeatureExtractor()(samples.numpy(), sampling_rate=16000, return_tensors="pt")["input_features"]
    torch.testing.assert_close(source.arguments["sound"], wanted.mT, atol=1e-5, rtol=0)
    assert (source.metadata["heard"], len(source.tokens), source.metadata["seconds_per_token"]) == (50, 1500, 0.02)


@pytest.mark.parametrize("size", [(48, 64), (64, 48), (20, 100)])
def test_pictures_become_detrs_own_pixels(tmp_path, size):
    """But for a grey level where rounding differs."""
    import io

    from PIL import Image
    from transformers import DetrImageProcessor

    from regard.data.images import ImageBytes
    from regard.lab.inputs.images import image_arguments
    from regard.models.families.detr import detr

    said = {"size": {"shortest_edge": 60, "longest_edge": 100}}
    model = detr(layers=1, dim=8, heads=2, hidden=8, queries=2, classes=3, backbone=(4, 8)).build()
    model.preprocessor = said
    data = picture(0, *size)
    held = ImageBytes(torch.frombuffer(bytearray(data), dtype=torch.uint8), "x")
    ours = image_arguments(model, None, held)["images"]
    theirs = DetrImageProcessor(**said)(Image.open(io.BytesIO(data)), return_tensors="pt")["pixel_values"]
    assert ours.shape == theirs.shape and float((ours - theirs).abs().max()) < 1.01 / 255 / 0.224
