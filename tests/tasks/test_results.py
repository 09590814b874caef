"""Results: JSON of every type, rounding, lines; inputs that are texts, paths, arrays and dictionaries."""

from __future__ import annotations

import io
import json
from base64 import b64encode
from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import regard as rg
from regard.data.images import load_image
from regard.data.sound import Samples, SoundFile
from regard.tasks.inputs.given import as_picture, as_sound, as_text, name_of
from regard.tasks.results import (
    Answer,
    Classification,
    DetectedObject,
    Detection,
    GeneratedText,
    Matches,
    MultiLabel,
    NodeLabel,
    NodeLabels,
    Regression,
    Similar,
    Span,
    Spans,
    Tagging,
    Transcript,
)

THIRD = 1 / 3

RESULTS = [
    (
        Classification("x", "a", 2 * THIRD, {"a": 2 * THIRD, "b": THIRD}),
        {"input": "x", "label": "a", "probability": 0.6667, "probabilities": {"a": 0.6667, "b": 0.3333}},
    ),
    (MultiLabel("x", ("a",), {"a": 1.0}), {"input": "x", "labels": ["a"], "probabilities": {"a": 1.0}}),
    (Regression("x", (THIRD,)), {"input": "x", "value": 0.3333}),
    (Regression("x", (THIRD, 2.0)), {"input": "x", "values": [0.3333, 2.0]}),
    (Tagging(("the", "cat"), ("DET", "NOUN")), {"words": ["the", "cat"], "tags": ["DET", "NOUN"]}),
    (
        Spans("Ada", (Span("PER", "Ada", 0, 3),)),
        {"input": "Ada", "spans": [{"label": "PER", "text": "Ada", "start": 0, "end": 3}]},
    ),
    (Answer("who?", "Ada", 0, 3, 1.0), {"input": "who?", "text": "Ada", "start": 0, "end": 3, "probability": 1.0}),
    (GeneratedText("a", "ab"), {"input": "a", "text": "ab"}),
    (Transcript("a.wav", "ab"), {"file": "a.wav", "text": "ab"}),
    (
        Detection("a.png", (DetectedObject("cat", THIRD, (0.0, 1.0, 2.0, 3.0)),)),
        {"file": "a.png", "objects": [{"label": "cat", "score": 0.3333, "box": [0.0, 1.0, 2.0, 3.0]}]},
    ),
    (Matches("text", "a", (Similar("a.png", THIRD),)), {"text": "a", "images": [{"what": "a.png", "cosine": 0.3333}]}),
]


@pytest.mark.parametrize(("result", "wanted"), RESULTS)
def test_a_result_is_json_and_frozen(result, wanted) -> None:
    assert result.to_dict() == wanted == json.loads(json.dumps(result.to_dict()))
    assert result.records() == (result,) and isinstance(str(result), str)
    with pytest.raises(FrozenInstanceError):
        result.input = "other"


def test_lines() -> None:
    assert str(Tagging(("the", "cat"), ("DET", "NOUN"))) == "the/DET cat/NOUN"
    assert str(GeneratedText("a", "ab")) == "ab"
    assert "probabilities" not in str(RESULTS[0][0])


def test_nodes_are_a_row_each() -> None:
    nodes = tuple(NodeLabel(name, "a", 1.0, {"a": 1.0}) for name in ("n1", "n2"))
    assert NodeLabels("g.npz", nodes).records() == nodes


def test_texts() -> None:
    assert as_text("a b") == as_text({"text": "a b"}) == as_text({"anything": "a b"}) == "a b"
    assert as_text({"review": "a", "text": "b"}, "review") == "a"
    with pytest.raises(rg.BadInput, match="This model reads texts: give a str"):
        as_text(7)
    with pytest.raises(rg.BadInput, match="has the keys a, b; this model reads text"):
        as_text({"a": "x", "b": "y"})


def test_images_of_every_form_are_the_same(tmp_path: Path) -> None:
    array = np.random.default_rng(0).integers(0, 255, (5, 7, 3), dtype=np.uint8)
    path, buffer = tmp_path / "a.png", io.BytesIO()
    Image.fromarray(array).save(path)
    Image.fromarray(array).save(buffer, "PNG")
    encoded = b64encode(buffer.getvalue()).decode()
    forms = [
        *(path, str(path), array, torch.tensor(array), array.transpose(2, 0, 1), array / 255, array.tolist()),
        *(Image.fromarray(array), buffer.getvalue(), {"image": encoded}, {"image": f"data:image/png;base64,{encoded}"}),
        {"path": str(path)},
    ]
    wanted = torch.tensor(array).permute(2, 0, 1)
    for form in forms:
        assert torch.equal(load_image(as_picture(form), 3), wanted)


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ("none.png", "none.png does not exist. This model reads images"),
        (np.zeros((2, 2, 5, 3)), "has the shape"),
        (np.full((2, 2), 7.0), "not all from 0 to 1"),
        (np.full((2, 2), 300), "not all from 0 to 255"),
        (np.full((2, 2), np.nan), "not all from 0 to 1"),
        ({"image": "no base64 !"}, "neither the path of an image nor base64"),
        (object(), "This model reads images: give a path or an array"),
    ],
)
def test_what_is_no_image(form, message: str) -> None:
    with pytest.raises(rg.BadInput, match=message):
        as_picture(form)


def test_recordings(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"RIFF")
    assert as_sound(tmp_path / "a.wav") == as_sound({"audio": str(tmp_path / "a.wav")}) == SoundFile(tmp_path / "a.wav")
    memory = as_sound({"samples": np.zeros(9, np.int16), "sample_rate": 8000})
    assert isinstance(memory, Samples) and memory.rate == 8000 and len(memory.values) == 9
    for given, message in (
        ({"samples": [0.0]}, "sample_rate is None"),
        ({"samples": [[0.0]], "sample_rate": 8000}, "one row of samples"),
        (np.zeros(9), "reads recordings"),
        ("none.wav", "none.wav does not exist"),
    ):
        with pytest.raises(rg.BadInput, match=message):
            as_sound(given)


def test_names_of_inputs() -> None:
    assert name_of({"text": "a"}) == name_of("a") == "a" and name_of(np.zeros((2, 3))) == "array [2, 3]"
