"""The page of alignment in a real browser: beams, steps, and the decoder's weights as the tensors hold them."""

from __future__ import annotations

import pytest
import torch

from regard.lab.api import alignment
from regard.lab.server.jobs import Job

pytestmark = pytest.mark.browser
ASK = {"model": "pair", "input": {"text": "the cat sat"}}
PLACE = "alignment?model=pair&beams=3&lang=en&text=the cat sat"


def cells(page, rows, columns):
    script = "([r, c]) => Array.from({length: r * c}, (_, n) => window.lab.cell(Math.floor(n / c), n % c))"
    return page.evaluate(script, [rows, columns])


def read_of(lab, target, **more):
    return alignment.read(lab, {"model": "pair", "input": {"text": "the cat sat", "target": target}, **more}, Job())


def assert_cells(page, wanted):
    found = torch.tensor([one["value"] for one in cells(page, *wanted.shape)], dtype=torch.float64).view(wanted.shape)
    assert torch.allclose(found, wanted.double(), atol=1e-6, rtol=0)


def test_the_map_of_the_answer_equals_the_tensor(open_lab, lab):
    page = open_lab(PLACE + "&attention=0&head=1")
    search = alignment.write(lab, {**ASK, "beams": 3}, Job())
    shown = page.evaluate("window.lab.read().search.finished")
    assert [one["tokens"] for one in shown] == [one["tokens"] for one in search["finished"]]
    wanted = read_of(lab, search["finished"][0]["tokens"], attention=0, head=1)
    assert_cells(page, wanted["weights"])
    assert all(abs(one["rowSum"] - 1) < 1e-5 for one in cells(page, *wanted["weights"].shape))
    assert page.locator(".legend").first.get_attribute("data-domain") == "0 1"
    assert "the query is at the position before" in page.locator(".orientation").inner_text()
    chances = [float(one.get_attribute("data-value")) for one in page.locator(".lines .note-text").all()]
    assert chances == pytest.approx([token["probability"] for token in wanted["target_tokens"]], abs=1e-6)


def test_beam_by_beam_as_the_decoder_writes(open_lab, lab):
    page = open_lab(PLACE)
    steps = alignment.write(lab, {**ASK, "beams": 3}, Job())["steps"]
    page.locator(".step-range").focus()
    page.keyboard.press("Home")
    page.ready()
    assert "step=0" in page.address() and "Step 1 of" in page.locator(".step-words").inner_text()
    rows = page.locator(".beam-card .table-scroll tbody tr")
    assert rows.count() == len(steps[0])
    numbers = [float(row.locator(".number .digits").nth(1).get_attribute("data-value")) for row in rows.all()]
    assert numbers == pytest.approx([one["score"] for one in steps[0]], abs=1e-6)
    page.keyboard.press("ArrowRight")
    page.ready()
    assert page.evaluate("window.lab.part('map').rows") == 2
    page.locator(".beam-text").nth(1).click()
    page.ready()
    assert "beam=1" in page.address()
    place = steps[1][1]
    first = next(one for one in steps[0] if one.get("slot") == place["parent"])
    assert_cells(page, read_of(lab, [first["token"], place["token"]])["weights"])
    page.click("text=Finished hypotheses")
    page.ready()
    assert "step=" not in page.address()


def test_a_translation_of_ones_own_and_the_norms(open_lab, lab):
    page = open_lab(PLACE + "&target=狗 跑 了&show=norms&head=0")
    wanted = read_of(lab, "狗 跑 了", head=0)
    assert_cells(page, wanted["norms"])
    assert "Rows do not sum to 1" in page.locator(".orientation").inner_text()
    assert "norm-weighted" in page.locator(".legend").first.inner_text()
    query = page.evaluate("window.lab.part('map').row")
    titles = page.locator(".lines .token.number title").all_text_contents()
    assert max(map(float, titles)) == pytest.approx(float(wanted["weights"][query].max()), abs=1e-6)
    page.check("input[value=weights]")
    page.ready()
    assert_cells(page, wanted["weights"])


def test_a_saved_view_has_every_head(open_lab, tmp_path, lab):
    page = open_lab(PLACE)
    with page.expect_download() as download:
        page.click("#save")
    download.value.save_as(tmp_path / "view.html")
    again = open_lab("", address=(tmp_path / "view.html").as_uri())
    best = alignment.write(lab, {**ASK, "beams": 3}, Job())["finished"][0]["tokens"]
    assert_cells(again, read_of(lab, best)["weights"])
    again.click("fieldset:has-text('Head') label:has-text('1')")
    again.ready()
    assert_cells(again, read_of(lab, best, head=1)["weights"])
    again.click("#language")
    again.ready()
    assert again.locator("h1").inner_text() == "对齐" and again.locator("#main .error").count() == 0


def test_the_whole_sentence_is_seen_at_once(open_lab, lab):
    page = open_lab(PLACE + "&attention=0&head=1")
    best = alignment.write(lab, {**ASK, "beams": 3}, Job())["finished"][0]["tokens"]
    weights = read_of(lab, best, attention=0, head=1)["weights"]
    assert page.locator(".lines .all-links .link").count() == int((weights >= 0.03).sum())
    assert page.locator(".lines .axis").all_text_contents() == ["Output", "Source", "← looks at"]
    page.locator(".lines .token.pick").nth(0).click()
    page.ready()
    assert page.evaluate("window.lab.part('map').row") == 0 and "query=0" in page.address()
    words = page.inner_text(".look-here")
    assert f"{100 * float(weights[0].max()):.1f} %" in words and "layer 0, head 1" in words
    page.locator(".lines .token.key").nth(2).hover()
    strong = [float(one.get_attribute("stroke-width")) for one in page.locator(".strong-links .link").all()]
    wanted = [9 * float(x) if x >= 0.005 else 0 for x in weights[:, 2]]
    assert strong[: len(wanted)] == pytest.approx([max(x, 0.8) if x else 0 for x in wanted], abs=1e-4)


def test_the_search_is_a_tree_whose_tokens_can_be_chosen(open_lab, lab):
    page = open_lab(PLACE)
    trace = alignment.write(lab, {**ASK, "beams": 3}, Job())
    assert page.locator(".beam-node").count() == sum(len(step) for step in trace["steps"])
    path = page.locator(".beam-node.chosen text").evaluate_all("all => all.map(one => one.textContent)")
    assert "".join(path[:-1]) == trace["finished"][0]["text"]
    assert page.locator(".beam-node.later").count() == 0
    page.locator(".beam-node").nth(len(trace["steps"][0]) + 1).click()
    page.ready()
    assert "step=1" in page.address() and "beam=1" in page.address()
    assert page.locator(".beam-node.chosen").count() == 2
    later = sum(len(step) for step in trace["steps"][2:])
    assert page.locator(".beam-node.later").count() == later
