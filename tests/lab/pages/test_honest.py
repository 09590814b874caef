"""The page of honest reading in a real browser: five readings, their correlations, baselines and edited heads."""

from __future__ import annotations

import pytest

from regard.lab.api import attribution
from regard.lab.attribution.methods import METHODS
from regard.lab.server.jobs import Job

pytestmark = pytest.mark.browser
TEXT = "the cat sat on the mat and the dog ran"
ASK = {"model": "reviews-0", "input": {"text": TEXT}}
PLACE = f"honest?model=reviews-0&lang=en&text={TEXT}"


def read_strip(page, name):
    """A reading as its strip holds it, None where it is not known."""
    found = [one.get_attribute("data-value") for one in page.locator(f"[data-reading={name}] .token").all()]
    return [None if one is None else float(one) for one in found]


@pytest.mark.parametrize(
    ("place", "more"),
    [("", {}), ("&attention=0&head=1&ablation=hide", {"attention": 0, "head": 1, "ablation": "hide"})],
)
def test_readings_and_correlations_equal_the_tensors(open_lab, lab, place, more):
    page = open_lab(PLACE + place)
    wanted = attribution.read(lab, ASK | more, Job())
    for name in METHODS:
        assert read_strip(page, name) == pytest.approx(wanted["attributions"][name].tolist(), abs=1e-6)
    for i, a in enumerate(METHODS):
        for j, b in enumerate(METHODS):
            assert page.evaluate(f"window.lab.cell({i}, {j}).value") == pytest.approx(
                wanted["correlations"]["size"][a][b], abs=1e-6
            )
    assert page.locator(".legend").get_attribute("data-domain") == "-1 1"
    page.check("input[value=signed]")
    page.ready()
    assert page.evaluate("window.lab.cell(0, 4).value") == pytest.approx(
        wanted["correlations"]["signed"]["raw"]["effect"], abs=1e-6
    )
    assert "sign=signed" in page.address()


def test_files_hold_the_readings(open_lab, lab, tmp_path):
    numpy = pytest.importorskip("numpy")
    page = open_lab(PLACE)
    wanted = attribution.read(lab, ASK, Job())["attributions"]
    page.click("summary:has-text('files')")
    for kind in ("CSV", "NPZ"):
        with page.expect_download() as download:
            page.click(f"details .files >> text={kind}")
        download.value.save_as(tmp_path / download.value.suggested_filename)
    with numpy.load(tmp_path / "attributions.npz") as held:
        assert numpy.array_equal(held["effect"], wanted["effect"].numpy())
    rows = (tmp_path / "attributions.csv").read_text("utf-8-sig").splitlines()
    assert rows[0] == ",raw,value,rollout,gradient,effect" and len(rows) == 1 + len(wanted["raw"])
    assert float(rows[2].split(",")[1]) == pytest.approx(float(wanted["raw"][1]), abs=1e-7)
    assert "differ from the executed output" in page.locator(".ran").inner_text()


def test_another_answer_can_be_asked_about(open_lab, lab):
    page = open_lab(PLACE)
    other = 1 - page.evaluate("window.lab.read().question.label")
    page.select_option("label:has-text('Prediction') select", str(other))
    page.ready()
    wanted = attribution.read(lab, ASK | {"label": other}, Job())
    assert f"label={other}" in page.address()
    assert read_strip(page, "effect") == pytest.approx(wanted["attributions"]["effect"].tolist(), abs=1e-6)


def test_a_token_is_asked_about_and_followed_through_all_readings(open_lab, lab):
    page = open_lab("honest?model=llama&lang=en&text=one two three")
    strip = page.locator(".strip").first.locator(".token")
    strip.nth(2).focus()
    page.keyboard.press("Enter")
    page.ready()
    assert "place=2" in page.address()
    wanted = attribution.read(lab, {"model": "llama", "input": {"text": "one two three"}, "place": 2}, Job())
    assert read_strip(page, "gradient") == pytest.approx(wanted["attributions"]["gradient"].tolist(), abs=1e-6)
    page.locator("[data-reading=raw] .token").nth(1).click()
    page.ready()
    assert page.locator(".reading .token[aria-pressed=true]").count() == 5
    assert "rank" in page.locator("[role=status]").first.inner_text()


def test_baselines_are_one_click_away(open_lab, lab):
    page = open_lab(PLACE)
    page.click("#baselines")
    page.wait_for_function("() => window.lab.part('baselines')")
    wanted = attribution.baselines(lab, ASK | {"seed": 0}, Job())
    rows = page.locator("section:has(#baselines) tbody tr").all()
    assert len(rows) == 1 + 3 + len(wanted["shuffled"]) + 1
    numbers = [
        row.locator("td.number").evaluate_all("all => all.slice(0, 3).map(one => Number(one.dataset.value))")
        for row in rows[1:-1]
    ]
    for found, one in zip(numbers, wanted["baselines"] + wanted["shuffled"], strict=True):
        assert found == pytest.approx([one["probability"], one["change"], one["distance"]], abs=1e-6)
    assert "trained from seed 1" in rows[-1].inner_text() and "baselines=1" in page.address()


def test_small_inputs_are_measured_at_once(open_lab, lab):
    page = open_lab(PLACE)
    page.wait_for_function("() => window.lab.part('baselines') && window.lab.part('alone')")
    wanted = attribution.heads(lab, ASK | {"change": "silent", "seed": 0}, Job())["heads"]
    assert page.evaluate("window.lab.part('alone')")[:2] == pytest.approx(wanted[0].tolist(), abs=1e-6)


def test_heads_are_changed_and_the_answer_changes(open_lab, lab):
    page = open_lab(PLACE)
    page.get_by_label("uniform", exact=True).click()
    page.locator("[data-head='1.0']").focus()
    page.keyboard.press("Enter")
    page.wait_for_function("() => window.lab.part('change')")
    assert (
        "edits=1.0.uniform" in page.address()
        and page.locator("[data-head='1.0']").get_attribute("aria-pressed") == "true"
    )
    name = attribution.read(lab, ASK, Job())["attentions"][1]["name"]
    wanted = attribution.change(
        lab, ASK | {"edits": [{"attention": name, "head": 0, "change": "uniform"}], "seed": 0}, Job()
    )
    found = page.evaluate("window.lab.part('change').after")
    assert found["score"] == pytest.approx(wanted["after"]["score"], abs=1e-6) != wanted["before"]["score"]
    page.click("#each")
    page.wait_for_function("() => window.lab.part('alone')")
    alone = attribution.heads(lab, ASK | {"change": "uniform", "seed": 0}, Job())["heads"]
    assert page.evaluate("window.lab.part('alone')")[:2] == pytest.approx(alone[0].tolist(), abs=1e-6)
    layer, head = divmod(int(alone.nan_to_num().abs().argmax()), alone.shape[1])
    darkest = page.inner_text(f"[data-head='{layer}.{head}']")  # as small as it may be, it is not written as zero
    if darkest != "uniform":
        assert float(darkest.replace("−", "-")) == pytest.approx(float(alone[layer, head]), rel=0.06)


def test_a_saved_view_opens_again(open_lab, tmp_path):
    page = open_lab(PLACE + "&edits=0.1.silent")
    before = page.evaluate("window.lab.read().attributions")
    with page.expect_download() as download:
        page.click("#save")
    download.value.save_as(tmp_path / "view.html")
    again = open_lab("", address=(tmp_path / "view.html").as_uri())
    assert again.evaluate("window.lab.read().attributions") == before
    again.click("#language")
    again.ready()
    assert again.locator("h1").inner_text() == "诚实解读" and again.locator("#main .error").count() == 0


def test_agreement_stands_at_the_top_beside_its_noise_floor(open_lab, lab):
    page = open_lab(PLACE)
    wanted = attribution.read(lab, ASK, Job())["agreement"]
    line = page.locator(".look-here [data-agreement]")
    assert float(line.get_attribute("data-agreement")) == pytest.approx(wanted["mean"], abs=1e-6)
    assert float(line.get_attribute("data-floor")) == pytest.approx(wanted["floor"], abs=1e-6)
    trusted = wanted["mean"] > wanted["floor"]
    assert ("carry information" if trusted else "do not trust") in line.inner_text()
    bars = page.locator(".agreement-bar [data-r]").evaluate_all("all => all.map(one => Number(one.dataset.r))")
    assert bars == pytest.approx([wanted["each"][name] for name in METHODS[:4]], abs=1e-6)
    assert page.locator(".look-here").bounding_box()["y"] < page.locator(".readings").bounding_box()["y"]
    assert page.locator(".readings").bounding_box()["y"] <= 250


def test_few_tokens_are_not_judged(open_lab):
    page = open_lab("honest?model=reviews-0&lang=en&text=the cat sat")
    assert "too few to judge" in page.locator(".look-here").inner_text()
    assert page.locator("#refused").count() == 1 and page.locator(".agreement-bar").count() == 0
    assert page.locator("[data-reading=effect] .token").count() == 5  # the attributions themselves are there


def test_the_page_starts_with_a_question_where_something_happens(open_lab):
    page = open_lab("honest?lang=en&model=tagger")
    found = page.evaluate("window.lab.read()")
    place, effect = found["question"]["place"], found["attributions"]["effect"]
    assert found["question"]["probability"] < 0.7
    assert max(abs(x) for n, x in enumerate(effect) if n != place) > 0.5
