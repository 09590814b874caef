"""The page of sounds in a real browser, on the shipped model of spoken digits."""

from __future__ import annotations

import base64
import io
import math
import wave

import pytest
import torch

from regard.errors import BadInput
from regard.lab.api import sound
from regard.lab.server.jobs import Job


def beep(seconds: float = 0.5, rate: int = 8000, lie: int = 0) -> str:
    samples = [round(9000 * math.sin(2 * math.pi * 440 * n / rate)) for n in range(round(seconds * rate))]
    held = io.BytesIO()
    with wave.open(held, "wb") as file:
        file.setnchannels(1), file.setsampwidth(2), file.setframerate(rate)
        file.writeframes(b"".join(x.to_bytes(2, "little", signed=True) for x in samples))
    data = bytearray(held.getvalue())
    if lie:
        data[40:44] = lie.to_bytes(4, "little")
    return base64.b64encode(bytes(data)).decode()


def test_times_are_those_of_the_recording(lab):
    found = sound.run(lab, {"model": "spoken-digits", "input": {"base64": beep(0.5)}}, Job())
    assert found["seconds"] == pytest.approx(0.5) and len(found["tokens"]) * found[
        "seconds_per_token"
    ] == pytest.approx(0.5, abs=2 * found["seconds_per_token"])
    attention = lab.capture({"model": "spoken-digits", "input": {"base64": beep(0.5)}}, Job()).attentions[0]
    weight = attention.weights(0).double()
    place = torch.arange(len(weight)).double() * found["seconds_per_token"]
    wanted = (weight * (place[:, None] - place).abs()).sum(-1).mean()
    assert float(found["attentions"][0]["distance"][0]) == pytest.approx(float(wanted), rel=1e-4)
    assert sum(item["probability"] for item in found["prediction"]["items"]) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("bad", [base64.b64encode(b"RIFF").decode(), beep(0.0), beep(0.2, lie=10_000_000)])
def test_a_broken_recording_is_refused(lab, bad):
    with pytest.raises(BadInput):
        sound.run(lab, {"model": "spoken-digits", "input": {"base64": bad}}, Job())


@pytest.mark.browser
def test_the_page_shows_frames_against_frames_in_seconds(open_lab, lab):
    page = open_lab("sound?model=spoken-digits&tone=chirp&head=1&lang=en")
    read = page.evaluate("window.lab.read()")
    assert read["seconds"] == pytest.approx(0.8) and read["count"] > 10
    middle = read["count"] // 2
    cell = page.evaluate(f"window.lab.cell({middle}, 2)")
    assert cell["row"] == f"{middle * read['each']:.2f} s" and abs(cell["rowSum"] - 1) < 1e-5
    sent = page.evaluate("""async () => {
      const { wav } = await import("lab/inputs.js");
      const sample = s => 0.4 * Math.sin(2 * Math.PI * (200 * s + 900 * s * s));
      const samples = Float32Array.from({ length: 6400 }, (_, n) => sample(n / 8000));
      let text = ""; for (const byte of wav(samples, 8000)) text += String.fromCharCode(byte);
      return btoa(text);
    }""")
    wanted = lab.capture({"model": "spoken-digits", "input": {"base64": sent}}, Job()).attentions[0].weights(1)
    assert cell["value"] == pytest.approx(float(wanted[middle, 2]), abs=1e-6)
    assert read["count"] == len(wanted)
    page.locator(".map-grid").focus()
    page.keyboard.press("ArrowDown")
    assert page.evaluate("window.lab.read()")["query"] == middle + 1


@pytest.mark.browser
def test_a_recording_that_lies_is_refused_in_words(open_lab, lab, tmp_path):
    page = open_lab("sound?model=spoken-digits&tone=beeps&lang=en", allowed=("status of 400",))
    path = tmp_path / "lies.wav"
    path.write_bytes(base64.b64decode(beep(0.2, lie=10_000_000)))
    page.locator("input[type=file]").set_input_files(str(path))
    page.wait_for_selector(".error")
    assert "recording" in page.locator(".error").inner_text().lower()


@pytest.mark.browser
def test_what_the_microphone_hears_is_shown(open_lab):
    page = open_lab("sound?model=spoken-digits&lang=en")
    before = page.evaluate("window.lab.read().seconds")
    page.get_by_role("button", name="Record", exact=True).click()
    page.wait_for_timeout(1200)
    page.get_by_role("button", name="Stop").click()
    page.wait_for_function("before => ![null, undefined, before].includes(window.lab.read()?.seconds)", arg=before)
    assert 0.5 < page.evaluate("window.lab.read().seconds") < 20
    assert page.get_by_role("button", name="Record", exact=True).is_visible()
