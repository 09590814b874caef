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
    answer = sound.run(lab, {"model": "spoken-digits", "input": {"base64": beep(0.5)}}, Job())
    assert answer["seconds"] == pytest.approx(0.5) and len(answer["tokens"]) * answer[
        "seconds_per_token"
    ] == pytest.approx(0.5, abs=2 * answer["seconds_per_token"])
    attention = lab.capture({"model": "spoken-digits", "input": {"base64": beep(0.5)}}, Job()).attentions[0]
    weight = attention.weights(0).double()
    place = torch.arange(len(weight)).double() * answer["seconds_per_token"]
    wanted = (weight * (place[:, None] - place).abs()).sum(-1).mean()
    assert float(answer["attentions"][0]["distance"][0]) == pytest.approx(float(wanted), rel=1e-4)
    assert sum(item["probability"] for item in answer["prediction"]["items"]) == pytest.approx(1.0, abs=1e-4)


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
    page.ready()
    assert page.evaluate("window.lab.read()")["query"] == read["query"] + 1


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


@pytest.mark.browser
def test_the_frame_under_the_pointer_is_the_query_and_the_recording_is_played(open_lab, lab):
    page = open_lab("sound?model=spoken-digits&example=3_nicolas_0.wav&attention=1&head=2&query=4&lang=en")
    ask = {"model": "spoken-digits", "input": {"example": "3_nicolas_0.wav"}}
    wanted = lab.capture(ask, Job()).attentions[1].weights(2)
    box, count = page.locator(".sound-strip").bounding_box(), len(wanted)
    page.mouse.move(box["x"] + box["width"] * 2.5 / count, box["y"] + 40)
    page.ready()
    read = page.evaluate("window.lab.read()")
    assert read["query"] == 2 and read["pinned"] == 4
    assert read["weights"] == pytest.approx(wanted[2].tolist(), abs=1e-6)
    page.get_by_role("button", name="Play").click()
    page.wait_for_function("() => window.lab.read().playing")
    page.wait_for_function("() => !window.lab.read().playing", timeout=10_000)
    page.wait_for_function("() => window.lab.read().query === 4")


def test_the_played_recording_is_the_one_that_was_read(lab):
    answer = sound.audio(lab, {"model": "spoken-digits", "input": {"base64": beep(0.25)}}, Job())["wav"]
    with wave.open(io.BytesIO(bytes(answer.tolist()))) as file:
        assert (file.getframerate(), file.getnchannels(), file.getnframes()) == (8000, 1, 2000)
        ours = file.readframes(2000)
    with wave.open(io.BytesIO(base64.b64decode(beep(0.25)))) as file:
        theirs = file.readframes(2000)
    both = [torch.frombuffer(bytearray(data), dtype=torch.int16).int() for data in (ours, theirs)]
    assert (both[0] - both[1]).abs().max() <= 1


@pytest.mark.browser
def test_a_letter_of_the_output_shows_where_the_model_listened(open_lab, lab):
    page = open_lab("sound?model=dictation&tone=beeps&lang=zh")
    page.locator(".strip .token").first.click()
    page.wait_for_function("() => location.hash.includes('query=0')")
    page.ready()
    read = page.evaluate("window.lab.read()")
    sent = page.evaluate("""async () => {
      const { modelInput } = await import("lab/inputs.js");
      const lab = { t: () => "", state: { tone: "beeps" }, exported: true };
      return modelInput(lab, null, { modality: "sound", examples: [] }, () => {}).input.base64;
    }""")
    capture = lab.capture({"model": "dictation", "input": {"base64": sent}}, Job())
    cross = sound.cross_attentions(capture)[-1].weights(0)
    assert read["weights"] == pytest.approx(cross[0].tolist(), abs=1e-6) and len(read["written"]) == len(cross)
    assert page.locator(".strip .token[aria-pressed=true]").count() == 1
