"""The page of mechanisms in a real browser: the mask drawn is the mask, the plan is the plan, the Python runs."""

from __future__ import annotations

import pytest
import torch

import regard as rg

pytestmark = pytest.mark.browser


def test_the_mask_drawn_is_the_mask(open_lab):
    page = open_lab("mechanisms?lang=en&mask=Causal() %26 Window(before=3)&queries=20&keys=25&position=-")
    wanted = (rg.Causal() & rg.Window(before=3)).dense(20, 25)
    read = "([r, c]) => Array.from({length: r * c}, (_, n) => window.lab.cell(Math.floor(n / c), n % c).masked)"
    found = torch.tensor(page.evaluate(read, [20, 25])).view(20, 25)
    assert torch.equal(~found, wanted.view(20, 25))
    assert f"{100 * wanted.float().mean():.1f} %" in page.locator("#main").inner_text()


def test_large_masks_are_drawn_by_tiles(open_lab):
    page = open_lab("mechanisms?lang=en&mask=Causal()&queries=65536&keys=65536&heads=1&position=-")
    assert "tile of 512 × 512" in page.locator("#main").inner_text()
    words = [page.evaluate("([i, j]) => window.lab.cell(i, j)", pair) for pair in ([3, 1], [3, 3], [1, 3])]
    assert [one["masked"] for one in words] == [False, False, True] and words[0]["value"] > words[1]["value"]


def test_the_python_runs_and_the_plan_is_the_callers(open_lab):
    page = open_lab(
        "mechanisms?lang=en&score=Additive(activation='tanh')&position=Alibi()&mask=Causal()&queries=12&keys=12"
    )
    read = page.evaluate("window.lab.read()")
    made: dict = {}
    exec(read["python"], made)
    assert made["y"].shape == (1, 8, 12, 32)
    planned = rg.plan(
        made["q"], made["k"], made["v"], score=rg.Additive(made["weight"]), position=rg.Alibi(), mask=rg.Causal()
    )
    assert read["plan"]["backend"] == planned.backend and read["plan"]["operations"] == planned.operations
    assert planned.backend in page.locator(".plan").inner_text()


def test_a_wrong_line_is_refused_in_words_and_can_be_mended(open_lab):
    page = open_lab("mechanisms?lang=en", allowed=("status of 400",))
    own = page.locator("[data-question=mask] input")
    own.fill("Windrow(before=3)")
    own.press("Enter")
    page.wait_for_selector(".mechanism .error")
    assert "Windrow" in page.locator(".mechanism .error").inner_text()
    own.fill("Window(before=3)")
    own.press("Enter")
    page.locator(".mechanism .error").wait_for(state="detached")
    page.ready()
    page.click("[data-line='Nystrom(landmarks=16)']")
    page.ready()  # the preset starts without position and mask
    assert page.locator("text=This combination is refused").count() == 0
    page.click("[data-line='Causal()']")
    page.wait_for_selector("text=This combination is refused")


def read_masked(page, rows: int, columns: int) -> torch.Tensor:
    read = "([r, c]) => Array.from({length: r * c}, (_, n) => window.lab.cell(Math.floor(n / c), n % c).masked)"
    return torch.tensor(page.evaluate(read, [rows, columns])).view(rows, columns)


def test_presets_are_pictures_and_the_map_follows_them(open_lab):
    page = open_lab("mechanisms?lang=en&queries=20&keys=20&position=-")
    assert page.locator("[data-question=mask] .preset canvas").count() == 10
    assert page.locator(".mechanism-map").bounding_box()["y"] <= 250
    page.click("[data-line='Dilated(before=4, after=4, step=3)']")
    page.ready()
    assert torch.equal(~read_masked(page, 20, 20), rg.Dilated(before=4, after=4, step=3).dense(20, 20).view(20, 20))
    assert page.locator("[data-question=mask] [aria-pressed=true]").get_attribute("data-line").startswith("Dilated")
    code = page.locator(".code-line").inner_text()
    assert code == "rg.attend(q, k, v, score=rg.Dot(), mask=rg.Dilated(before=4, after=4, step=3))"
    made: dict = {}
    exec(page.evaluate("window.lab.read().python"), made)
    assert torch.equal(made["y"], eval(code, made))


def test_the_window_is_dragged_by_a_slider_and_in_the_map(open_lab):
    page = open_lab("mechanisms?lang=en&queries=24&keys=24&position=-&mask=Causal() %26 Window(before=3)")
    page.locator("[data-slider=before]").evaluate(
        "node => { node.value = 7; node.dispatchEvent(new Event('input', {bubbles: true})); }"
    )
    page.ready()
    assert torch.equal(~read_masked(page, 24, 24), (rg.Causal() & rg.Window(before=7)).dense(24, 24).view(24, 24))
    assert "before=7" in page.locator(".code-line").inner_text() and "before%3D7" in page.address()
    box = page.evaluate("window.lab.part('map')")
    place = page.locator(".mechanism-map canvas").bounding_box()
    side = box["cellWidth"]
    left, top = place["x"] + place["width"] - 24 * side - 6, place["y"] + place["height"] - 24 * side - 6
    page.mouse.move(left + 15.5 * side, top + 18.5 * side)
    page.mouse.down()
    page.mouse.move(left + 8.5 * side, top + 18.5 * side, steps=5)
    page.mouse.up()
    page.ready()
    reach = int(page.evaluate("window.lab.read().lines.mask").split("before=")[1].split(")")[0])
    assert abs(reach - 10) <= 1
    assert torch.equal(~read_masked(page, 24, 24), (rg.Causal() & rg.Window(before=reach)).dense(24, 24).view(24, 24))


def test_a_slider_that_outruns_its_requests_leaves_no_error(open_lab):
    page = open_lab("mechanisms?lang=en&queries=24&keys=24&position=-&mask=Causal() %26 Window(before=3)")
    page.locator("[data-slider=before]").evaluate(
        "node => { for (let n = 0; n < 30; n++) {"
        " node.value = 3 + n % 9; node.dispatchEvent(new Event('input', {bubbles: true})); } }"
    )
    page.ready()
    assert torch.equal(~read_masked(page, 24, 24), (rg.Causal() & rg.Window(before=5)).dense(24, 24).view(24, 24))


def test_the_bias_of_the_chosen_head_is_in_the_map(open_lab):
    page = open_lab("mechanisms?lang=en&queries=16&keys=16&position=Alibi()&mask=Causal()&shown=2")
    read = "() => Array.from({length: 256}, (_, n) => window.lab.cell(Math.floor(n / 16), n % 16).value)"
    i, j = torch.arange(16)[:, None], torch.arange(16)[None, :]
    assert torch.allclose(torch.tensor(page.evaluate(read)).view(16, 16), -(2.0**-3) * (i - j).abs(), atol=1e-6)
    assert "head 2" in page.locator(".mechanism-map h3").inner_text()


def test_the_soft_dictionary_answers_with_true_weights(open_lab):
    page = open_lab("mechanisms?lang=en")
    read = page.evaluate("window.lab.read().dictionary")
    q = torch.tensor([0.6, 0.4]).log()
    weights = torch.cat([q, torch.tensor([-12.0])]).softmax(0)
    assert read["words"] == ["apple", "banana", "chair"]
    assert torch.allclose(torch.tensor(read["weights"]), weights, atol=1e-6)
    assert abs(read["answer"] - float(weights @ torch.tensor([10.0, 5.0, 2.0]))) < 1e-5
    page.locator("#dictionary input[type=number]").nth(0).fill("20")
    page.locator("#dictionary input[type=number]").nth(0).press("Enter")
    page.ready()
    assert abs(float(page.locator("[data-answer]").get_attribute("data-answer")) - 14) < 0.01
    page.click(".chips >> text=furniture")
    page.ready()
    assert page.evaluate("window.lab.read().dictionary.weights[2]") > 0.9


def test_the_soft_dictionary_is_not_written_with_seven_digits(open_lab):
    page = open_lab("mechanisms?lang=en")
    shown = page.locator("#dictionary [data-answer]")
    assert shown.inner_text() == "8.000"
    exact = float(shown.get_attribute("title"))
    assert exact != 8 and exact == pytest.approx(page.evaluate("window.lab.read().dictionary.answer"), abs=1e-6)


def test_the_formula_is_shown_whole(open_lab):
    page = open_lab("mechanisms?lang=en", width=1440)  # a causal window with ALiBi: the longest of the presets
    seen, whole = page.locator(".math").evaluate("one => [one.clientWidth, one.scrollWidth]")
    assert whole <= seen


def test_the_first_line_counts_the_keys_of_a_query(open_lab):
    page = open_lab("mechanisms?mask=Causal() %26 Window(before=8)&queries=20&keys=20&position=-&lang=en")
    pairs = sum(min(i, 8) + 1 for i in range(20))
    assert f"at most 9 of 20 keys; {100 * pairs / 400:.1f} % of all pairs" in page.inner_text(".look-here")
    assert "tiles" not in page.inner_text(".look-here")
