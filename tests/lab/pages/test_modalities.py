"""Detectors on Image, dictation on Alignment, and every modality on Honest reading, in a real browser."""

from __future__ import annotations

import base64

import pytest

from regard.lab.api import alignment, attribution, image
from regard.lab.server.jobs import Job

from .test_honest import read_strip
from .test_shell import UNTRANSLATED

pytestmark = pytest.mark.browser
OBJECTS = {"model": "objects", "input": {"example": "square.png"}}


def sent_tone(page, name: str = "beeps") -> dict:
    """The recording that the page makes itself, as it sends it."""
    data = page.evaluate(
        """async name => {
      const { modelInput } = await import("lab/inputs.js");
      const lab = { t: () => "", state: { tone: name }, exported: true };
      return modelInput(lab, null, { modality: "sound", examples: [] }, () => {}).input.base64;
    }""",
        name,
    )
    assert base64.b64decode(data)[:4] == b"RIFF"
    return {"base64": data}


def test_a_detector_shows_where_its_queries_looked(open_lab, lab):
    page = open_lab("image?model=objects&lang=en")
    read = page.evaluate("window.lab.read()")
    seen = image.run(lab, OBJECTS, Job())
    assert read["across"] and read["query"] == seen["prediction"]["items"][0]["query"]
    assert [one["box"] for one in read["found"]] == [
        pytest.approx(one["box"], abs=1e-6) for one in seen["prediction"]["items"]
    ]
    cross = lab.capture(OBJECTS, Job()).attention(seen["crossed"][-1]["name"])
    weights = cross.weights(0)
    assert read["weights"] == pytest.approx(weights[read["query"]].tolist(), abs=1e-6)
    assert "Detected objects" in page.locator("#main").inner_text() and "square" in page.locator("#main").inner_text()
    page.locator("canvas[role=application]").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    page.ready()
    assert page.evaluate("window.lab.read().query") == 1 and "query=1" in page.address()
    assert page.evaluate("window.lab.cell(1, 3).value") == pytest.approx(float(weights[1, 3]), abs=1e-6)
    page.select_option("label:has-text('Attention') select", "0")
    page.ready()
    read = page.evaluate("window.lab.read()")
    own = lab.capture(OBJECTS, Job()).attentions[0].weights(0)
    assert not read["across"] and read["count"] == 20
    assert read["weights"] == pytest.approx(own[read["query"]].tolist(), abs=1e-6)


def test_what_is_dictated_is_aligned_with_seconds(open_lab, lab):
    page = open_lab("alignment?model=dictation&tone=beeps&beams=2&head=1&lang=en")
    given = sent_tone(page)
    tokens = page.evaluate("window.lab.read().search.finished[0].tokens")
    wanted = alignment.read(lab, {"model": "dictation", "input": given | {"target": tokens}, "head": 1}, Job())
    found = page.evaluate("window.lab.read().read")
    assert found["weights"] == pytest.approx(wanted["weights"].flatten().tolist(), abs=1e-6)
    cell = page.evaluate("window.lab.cell(0, 2)")
    assert cell["column"] == "0.04 s" and cell["rowSum"] == pytest.approx(1.0, abs=1e-5)
    assert "seconds of the recording" in page.locator(".orientation").inner_text()
    chinese = open_lab("sound?model=dictation&tone=beeps&lang=zh")
    assert chinese.locator("#main a[href*='#alignment?']").count() == 1


@pytest.mark.parametrize("kind", ["pair", "image", "sound", "graph", "objects"])
def test_every_kind_of_input_is_read_honestly(open_lab, lab, kind):
    places = {
        "pair": (
            "model=pair&text=the cat sat&place=1",
            {"model": "pair", "input": {"text": "the cat sat"}, "place": 1},
        ),
        "image": ("model=digits&example=3.png", {"model": "digits", "input": {"example": "3.png"}}),
        "sound": ("model=spoken-digits&tone=beeps", None),
        "graph": ("model=karate&place=33", {"model": "karate", "input": {"example": "karate.npz"}, "place": 33}),
        "objects": ("model=objects&place=2", OBJECTS | {"place": 2}),
    }
    address, ask = places[kind]
    page = open_lab(f"honest?{address}&lang=en")
    if ask is None:
        ask = {"model": "spoken-digits", "input": sent_tone(page)}
    wanted = attribution.read(lab, ask, Job())
    for name, values in wanted["attributions"].items():
        numbers = [None if x != x else x for x in values.tolist()]
        assert read_strip(page, name) == pytest.approx(numbers, abs=1e-6)
    question = page.evaluate("window.lab.read().question")
    assert (question["place"], question["label"]) == (wanted["question"]["place"], wanted["question"]["label"])
    page.locator("[data-reading=effect] .token").nth(1).click()
    page.ready()
    assert page.locator(".reading .token[aria-pressed=true]").count() == 5
    page.locator("[data-head='0.0']").click()
    page.wait_for_function("() => window.lab.part('change')")
    edits = [{"attention": wanted["attentions"][0]["name"], "head": 0, "change": "silent"}]
    changed = attribution.change(lab, ask | {"edits": edits, "seed": 0}, Job())
    assert page.evaluate("window.lab.part('change').after.score") == pytest.approx(changed["after"]["score"], abs=1e-5)


def test_where_a_reading_means_nothing_a_sentence_stands(open_lab):
    page = open_lab("honest?model=pair&text=the cat sat&attention=2&lang=zh")
    assert "正在生成" in page.locator("[data-reading=raw] .note").inner_text()
    assert page.locator("[data-reading=effect] .token").count() > 2 and page.locator("#main .error").count() == 0


def test_keys_far_away_can_be_reached(open_lab, lab):
    text = "one two three four five six seven eight " * 70
    page = open_lab(f"formula?model=bert&text={text}&query=550&lang=en")
    page.fill("label:has-text('keys around') input", "30")
    page.keyboard.press("Enter")
    page.ready()
    shown_keys = page.locator(".formula-table th.key .at").all_inner_texts()
    assert {str(n) for n in range(24, 37)} <= set(shown_keys) and "key=30" in page.address()
    weights = lab.capture({"model": "bert", "input": {"text": text}}, Job()).attentions[0].weights(0)[550]
    row = page.locator("tr:has(th.key .at:text-is('30')) [data-what=weight]").get_attribute("data-value")
    assert float(row) == pytest.approx(float(weights[30]), abs=1e-6)


@pytest.mark.parametrize(
    "place",
    [
        "image?model=objects",
        "alignment?model=dictation",
        "sound?model=dictation",
        "honest?model=objects",
        "honest?model=digits&baselines=1",
        "honest?model=spoken-digits",
        "honest?model=karate",
        "honest?model=pair&text=the cat sat&attention=2",
    ],
)
def test_both_languages_and_a_phone(open_lab, place):
    page = open_lab(f"{place}&lang=xx&theme=dark", width=390)
    assert page.locator("#main .error").count() == 0, page.locator("#main .error").inner_text()
    assert page.evaluate(UNTRANSLATED) == [], "these words do not come from the dictionaries"
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.click("#language")
    page.ready()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390 and page.locator("#main .error").count() == 0


def test_a_saved_reading_of_a_picture_opens_again(open_lab, tmp_path):
    page = open_lab("honest?model=digits&example=3.png&lang=en")
    before = page.evaluate("window.lab.read().attributions.raw")
    with page.expect_download() as download:
        page.click("#save")
    download.value.save_as(tmp_path / "view.html")
    again = open_lab("", address=(tmp_path / "view.html").as_uri())
    assert again.evaluate("window.lab.read().attributions.raw") == before
    assert again.locator("#main .error").count() == 0 and again.locator(".units-picture").count() == 1
