"""What the lab says of inputs that a model was not trained for."""

from __future__ import annotations

import base64
import io
from dataclasses import replace
from typing import Any

import numpy
import pytest

from regard.data.languages import unread_script
from regard.lab.inputs.notices import offer_model
from regard.lab.lab import Lab
from regard.lab.server.jobs import Job


def notices(lab: Lab, model: str, **fields: Any) -> dict[str, dict[str, Any]]:
    """The notices by type."""
    found = lab.prepare({"model": model, "input": fields}, Job())[1].metadata["notices"]
    return {notice["type"]: notice for notice in found}


def png(pixels: numpy.ndarray) -> str:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def test_known_text_has_no_notice(lab: Lab) -> None:
    assert notices(lab, "tagger", text="The cat sat on the mat.") == {}


def test_unknown_tokens_are_counted_and_marked(lab: Lab) -> None:
    request = {"model": "tagger", "input": {"text": "The 猫 sat on the mat."}}
    prepared = lab.prepare(request, Job())[1]
    assert [token.text for token in prepared.tokens["source"] if token.unknown] == ["猫"]
    assert prepared.metadata["notices"] == [{"type": "unknown", "count": 1, "total": 7}]


@pytest.mark.parametrize("model", ["tagger", "shakespeare", "translator"])
def test_a_language_that_is_not_read_is_said_and_another_model_offered(lab: Lab, model: str) -> None:
    notice = notices(lab, model, text="我家门前有小河")["language"]
    assert notice["script"]["en"] == "Chinese characters" and notice["reads"] == [{"en": "English", "zh": "英文"}]
    offered = lab.library.entry(notice["offer"])
    assert "zh" in offered.languages and unread_script("我家门前有小河", offered.languages) is None


def test_the_same_task_is_offered_first(lab: Lab) -> None:
    entries = lab.library.entries()
    tagger = entries["tagger"]
    chinese = {name: replace(tagger, name=name, task=task, languages=("zh",)) for name, task in
               (("poet", "lm"), ("tagger-zh", "tag"))}  # fmt: skip
    assert offer_model(tagger, entries | chinese, "猫追狗") == "tagger-zh"
    assert offer_model(tagger, {"tagger": tagger}, "猫追狗") is None


def test_length_beyond_training_is_said(lab: Lab) -> None:
    longest = lab.library.entry("tagger").training_length
    assert longest == 159  # of the 12,544 sentences of the training split
    assert "length" not in notices(lab, "tagger", text="cat " * longest)
    assert notices(lab, "tagger", text="cat " * (longest + 1))["length"] == {
        "type": "length",
        "training_length": longest,
        "total": longest + 1,
    }
    assert lab.library.entry("shakespeare").training_length == 256  # the context that it was trained with


def test_a_model_set_by_hand_says_so(lab: Lab) -> None:
    assert "hand_made" in notices(lab, "meanings", text="猫追狗")
    assert notices(lab, "meanings", text="The cat googled.")["unknown"]["count"] == 1


def test_images_unlike_digits_are_reported_and_digits_are_not(lab: Lab) -> None:
    assert all("unlike" not in notices(lab, "digits", example=f"{n}.png") for n in range(10))
    noise = numpy.random.default_rng(0).integers(0, 256, (8, 8), dtype=numpy.uint8)
    white = numpy.full((8, 8), 255, numpy.uint8)
    for pixels in (noise, white):
        assert notices(lab, "digits", base64=png(pixels))["unlike"]["distance"] > 1


def test_sounds_unlike_digits_are_reported(lab: Lab) -> None:
    import wave

    seconds = numpy.arange(6400) / 8000
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1), sound.setsampwidth(2), sound.setframerate(8000)
        sound.writeframes((16000 * numpy.sin(2 * numpy.pi * 660 * seconds)).astype("<i2").tobytes())
    assert notices(lab, "spoken-digits", base64=base64.b64encode(file.getvalue()).decode())["unlike"]["distance"] > 1
