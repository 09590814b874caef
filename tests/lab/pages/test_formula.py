"""The page of the formula in a real browser: five stages, each number the tensor's own, each explained."""

from __future__ import annotations

import re

import pytest
import torch

from regard.lab.server.jobs import Job

pytestmark = pytest.mark.browser
TEXT = "The animal didn't cross the street because it was too tired."


def numbers(page, what: str) -> torch.Tensor:
    """The numbers of one column as they stand in the page's table."""
    found = page.locator(f".formula-table [data-what={what}]").evaluate_all("all => all.map(one => one.dataset.value)")
    return torch.tensor([float(one) for one in found], dtype=torch.float64)


def check_row(page, attention, head: int, query: int) -> dict:
    """Compare everything on the page with one row of an attention."""
    row = attention.row(head, query)
    dims = page.evaluate("window.lab.read().dims")
    for name in ("raw", "scaled", "weight"):
        assert torch.allclose(numbers(page, name), row[name].double(), atol=1e-6, rtol=1e-6), name
    width = min(dims, row["k"].shape[1])
    assert torch.allclose(numbers(page, "q"), row["q"].double()[:width], atol=1e-6)
    assert torch.allclose(numbers(page, "k").view(-1, width), row["k"].double()[:, :width], atol=1e-6)
    wide = min(dims, row["v"].shape[1])
    assert torch.allclose(numbers(page, "v").view(-1, wide), row["v"].double()[:, :wide], atol=1e-6)
    assert torch.allclose(numbers(page, "output"), row["output"].double()[:wide], atol=1e-6)
    return row


def test_stages_hold_the_numbers_of_the_model(open_lab, lab):
    page = open_lab(f"formula?model=bert&text={TEXT}&attention=1&head=2&query=5&dims=4&lang=en")
    attention = lab.capture({"model": "bert", "input": {"text": TEXT}}, Job()).attentions[1]
    row = check_row(page, attention, 2, 5)
    assert page.locator("[data-sum]").inner_text() == "1.0000"
    assert "K: 4 of 8" in page.locator(".formula-table").inner_text()
    exact = torch.softmax(row["q"].double() @ row["k"].double().T / 8**0.5, -1)
    assert torch.allclose(numbers(page, "weight"), exact, atol=1e-6)
    assert torch.allclose(row["mixed"].double(), exact @ row["v"].double(), atol=1e-6)


def test_masked_keys_are_hatched_not_small(open_lab, lab):
    page = open_lab(f"formula?model=llama&text={TEXT}&attention=0&head=1&query=3&lang=en")
    attention = lab.capture({"model": "llama", "input": {"text": TEXT}}, Job()).attentions[0]
    check_row(page, attention, 1, 3)
    assert page.locator(".formula-table td.weight.hatched").count() == attention.keys - 4
    page.click("[data-what=score][data-j='4']")
    page.ready()
    assert "masked by Causal()" in page.locator(".why").inner_text()
    assert "Rotary" in page.locator("#main").inner_text()


def test_positions_by_hand_are_shown(open_lab, lab):
    page = open_lab("formula?model=meanings&text=猫追狗&head=1&query=0&lang=zh")
    attention = lab.capture({"model": "meanings", "input": {"text": "猫追狗"}}, Job()).attentions[0]
    row = check_row(page, attention, 1, 0)
    assert torch.allclose(numbers(page, "position"), row["position"].double(), atol=1e-6)
    assert "Alibi" in page.locator("[data-stage='3'] >> xpath=../..").inner_text() or row["position"].abs().sum() > 0


def test_graphs_with_additive_scores(open_lab, lab):
    page = open_lab("formula?model=karate&attention=0&head=1&query=5&lang=en")
    attention = lab.capture({"model": "karate", "input": {"example": "karate.npz"}}, Job()).attentions[0]
    row = attention.row(1, 5)
    shown = [int(one) for one in page.locator("[data-what=raw]").evaluate_all("all => all.map(one => one.dataset.j)")]
    allowed = row["allowed"].nonzero().flatten().tolist()
    assert shown == allowed
    for name in ("raw", "weight"):
        assert torch.allclose(numbers(page, name), row[name][allowed].double(), atol=1e-6)
    assert "LeakyReLU" in page.locator("math").first.text_content()
    page.click(f"[data-what=raw][data-j='{allowed[0]}']")
    page.ready()
    assert page.locator(".why tbody tr").count() >= 1


def test_stages_are_stepped_by_keys_and_kept_in_the_address(open_lab):
    page = open_lab(f"formula?model=bert&text={TEXT}&stage=0&lang=en")
    page.locator("h1").click()
    page.keyboard.press("Space")
    page.ready()
    assert page.evaluate("window.lab.read().stage") == 1 and "stage=1" in page.address()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.ready()
    assert page.locator("[data-stage='3']").get_attribute("aria-pressed") == "true"
    page.keyboard.press("ArrowLeft")
    page.ready()
    assert page.evaluate("window.lab.read().stage") == 2
    assert page.locator(".formula-picture").get_attribute("data-lit") == "2"
    ground = "node => getComputedStyle(node).backgroundColor"
    lit, other = (page.locator(f".formula-table td.{name}").first.evaluate(ground) for name in ("scaled", "raw"))
    assert lit != other
    page.click(".rail >> text=Softmax")
    page.ready()
    assert (
        page.locator(".formula-table th[data-part='4']").evaluate("node => getComputedStyle(node).fontWeight") == "700"
    )
    assert "divided by the sum" in page.locator(".look-here").inner_text()


def test_every_stage_is_in_the_picture_from_the_first(open_lab, lab):
    page = open_lab(f"formula?model=bert&text={TEXT}&stage=0&query=5&lang=en")
    page.wait_for_selector(".band canvas")
    assert page.locator(".band-product").count() == 3 and page.locator(".band-heads span").count() == 4
    assert page.locator(".band-heads .own").count() == 1
    assert page.locator(".formula-table td.weight").first.is_visible()
    captions = page.locator(".band figcaption").all_inner_texts()
    assert captions == ["x", "Wq", "q", "X", "Wk", "K", "X", "Wv", "V", "o of 4 heads; head 0 is framed", "Wo", "y"]
    assert page.locator(".formula-strip").bounding_box()["y"] <= 250


def read_edited(page) -> dict:
    return {name: torch.tensor(held) for name, held in page.evaluate("window.lab.part('now')").items() if name != "sum"}


def slide(page, name: str, to: float) -> None:
    page.locator(f"[data-slider={name}]").evaluate(
        "(node, to) => { node.value = to; node.dispatchEvent(new Event('input', {bubbles: true})); }", to
    )


def test_temperature_and_scale_are_dragged_and_the_numbers_follow(open_lab, lab):
    page = open_lab(f"formula?model=bert&text={TEXT}&attention=1&head=2&query=5&dims=4&lang=en")
    row = lab.capture({"model": "bert", "input": {"text": TEXT}}, Job()).attentions[1].row(2, 5)
    assert page.locator("#reset").is_disabled()
    slide(page, "temperature", 1)
    now, score = read_edited(page), row["score"].double()
    wanted = (score / 2).softmax(-1)
    assert torch.allclose(now["weight"].double(), wanted, atol=1e-6)
    assert torch.allclose(now["output"].double(), wanted @ row["v"].double(), atol=1e-6)
    assert torch.allclose(numbers(page, "weight"), wanted, atol=1e-6)
    slide(page, "temperature", 0)
    slide(page, "scale", -1)
    wanted = (row["raw"].double() * float(row["scale"]) / 2).softmax(-1)
    assert torch.allclose(numbers(page, "weight"), wanted, atol=1e-6)
    assert "scale=" in page.address() and "temperature=" not in page.address()
    page.click("#reset")
    check_row(page, lab.capture({"model": "bert", "input": {"text": TEXT}}, Job()).attentions[1], 2, 5)
    assert page.evaluate("window.lab.read().edited") is False and "scale=" not in page.address()


def test_a_score_is_dragged_and_typed_and_the_prediction_is_the_models(open_lab, lab):
    page = open_lab(f"formula?model=bert&text={TEXT}&attention=1&head=2&query=5&dims=4&lang=en")
    attention = lab.capture({"model": "bert", "input": {"text": TEXT}}, Job()).attentions[1]
    row = attention.row(2, 5)
    box = page.locator("[data-what=score][data-j='3']").bounding_box()
    page.mouse.move(box["x"] + 10, box["y"] + 8)
    page.mouse.down()
    page.mouse.move(box["x"] + 10, box["y"] - 60, steps=4)
    page.mouse.up()
    dragged = float(read_edited(page)["score"][3])
    assert dragged > float(row["score"][3]) + 0.5
    page.locator("[data-own=score]").fill("4.5")
    score = row["score"].double().clone()
    score[3] = 4.5
    wanted = score.softmax(-1)
    now = read_edited(page)
    assert torch.allclose(now["weight"].double(), wanted, atol=1e-6)
    output = wanted @ row["v"].double()
    assert torch.allclose(now["output"].double(), output, atol=1e-6)
    found = page.evaluate("window.lab.part('now').y")
    weights = lab.open("bert", Job()).model.get_submodule(attention.name).out.weight.double().detach()
    y = lab_projection(lab, 5)["y"].double() + weights[:, 16:24] @ (output - row["output"].double())
    assert torch.allclose(torch.tensor(found, dtype=torch.float64), y, atol=1e-5)
    assert "edits=3%3D4.5" in page.address()
    page.wait_for_function("() => document.querySelector('.answer-change p')")
    page.reload()
    page.ready()
    assert torch.allclose(numbers(page, "weight"), wanted, atol=1e-6)


def lab_projection(lab, query: int) -> dict:
    from regard.lab.api.formula import projections

    return projections(
        lab, {"model": "bert", "input": {"text": TEXT}, "attention": 1, "head": 2, "query": query}, Job()
    )


def test_a_key_is_masked_by_a_click_and_by_a_key(open_lab, lab):
    page = open_lab(f"formula?model=llama&text={TEXT}&attention=0&head=1&query=3&lang=en")
    row = lab.capture({"model": "llama", "input": {"text": TEXT}}, Job()).attentions[0].row(1, 3)
    page.click("[data-mask='1']")
    page.click("[data-what=weight][data-j='1']")
    allowed = row["allowed"].clone()
    allowed[1] = False
    score = (row["scaled"] if row["position"] is None else row["scaled"] + row["position"]).double()
    wanted = score.masked_fill(~allowed, -torch.inf).softmax(-1)
    assert torch.allclose(numbers(page, "weight"), wanted, atol=1e-6)
    assert "masked by you" in page.locator(".why").inner_text()
    page.locator("[data-what=raw][data-j='4']").focus()
    page.keyboard.press("m")  # a key that the causal mask hides may be shown
    allowed[4] = True
    assert torch.allclose(numbers(page, "weight"), score.masked_fill(~allowed, -torch.inf).softmax(-1), atol=1e-6)
    page.wait_for_function("() => window.lab.part('answer')")
    after = page.evaluate("window.lab.part('answer').items[0].probability")
    weights = score.masked_fill(~allowed, -torch.inf).softmax(-1)
    edits = [{"attention": 0, "head": 1, "query": 3, "weights": weights.tolist()}]
    given = {"model": "llama", "input": {"text": TEXT}, "edits": edits}
    assert after == pytest.approx(lab.capture(given, Job()).prediction["items"][0]["probability"], abs=1e-5)


def test_an_edit_is_drawn_within_a_tenth_of_a_second(open_lab):
    page = open_lab(f"formula?model=bert&text={TEXT}&query=5&lang=en")
    took = page.evaluate("""() => { const node = document.querySelector("[data-slider=temperature]"), times = [];
      for (const to of [1, -1, 2, 0.5, -2]) { const begin = performance.now();
        node.value = to, node.dispatchEvent(new Event("input", { bubbles: true })), document.body.offsetHeight;
        times.push(performance.now() - begin); }
      return times.sort((a, b) => a - b)[2]; }""")
    assert took < 100, took


def test_every_number_says_how_it_came_about(open_lab):
    page = open_lab(f"formula?model=bert&text={TEXT}&query=5&lang=en")
    for what in ("q", "k", "v", "raw", "scaled", "score", "weight", "output"):
        cell = page.locator(f"[data-what={what}]").first
        cell.click()
        value = float(cell.get_attribute("data-value"))
        stated = page.locator(".why b").evaluate_all("all => all.map(b => [b.dataset.value, b.textContent])")
        assert any(abs(float(exact) - value) < 1e-6 for exact, _ in stated), page.locator(".why").inner_text()
        assert all(len(re.sub(r"\D", "", shown).lstrip("0")) <= 4 for _, shown in stated if "·" not in shown), stated


def test_arrows_move_from_number_to_number(open_lab):
    page = open_lab(f"formula?model=bert&text={TEXT}&query=5&lang=en")
    page.click("[data-what=raw][data-j='2']")
    page.keyboard.press("ArrowRight")
    page.ready()
    assert page.evaluate("window.lab.read().cell.what") == "scaled"
    page.keyboard.press("ArrowDown")
    page.ready()
    assert page.evaluate("window.lab.read().cell") | {"value": 0} == {"what": "scaled", "j": "3", "value": 0}
    page.keyboard.press("Home")
    page.ready()
    assert page.evaluate("window.lab.read().cell.what") == "k"


def test_another_query_is_one_click_away(open_lab, lab):
    page = open_lab(f"formula?model=bert&text={TEXT}&query=5&lang=en")
    page.click(".strip button >> nth=7")
    page.ready()
    attention = lab.capture({"model": "bert", "input": {"text": TEXT}}, Job()).attentions[0]
    check_row(page, attention, 0, 7)
    assert "query=7" in page.address()


def test_every_weight_stands_on_the_screen_of_a_phone(open_lab):
    text = "The animal because of the streets"
    page = open_lab(f"formula?model=bert&text={text}&attention=0&head=0&lang=en", width=390)
    edges = page.locator(".formula-table td.weight").evaluate_all(
        "all => all.map(one => one.getBoundingClientRect().right)"
    )
    assert len(edges) >= 8 and max(edges) <= 390


@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_the_numbers_of_a_stage_arrive_one_after_another(open_lab, motion):
    page = open_lab(f"formula?model=bert&text={TEXT}&query=5&lang=en", motion=motion)
    names = "() => [...document.querySelectorAll('td.raw')].map(one => getComputedStyle(one).animationName)"
    assert set(page.evaluate(names)) == {"none"}  # nothing moves before a stage is chosen
    page.click("[data-stage='1']")
    page.ready()
    assert set(page.evaluate(names)) == {"arrive" if motion == "no-preference" else "none"}
