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
    own = page.locator(".question input").nth(2)
    own.fill("Windrow(before=3)")
    own.press("Enter")
    page.wait_for_selector(".mechanism .error")
    assert "Windrow" in page.locator(".mechanism .error").inner_text()
    own.fill("Window(before=3)")
    own.press("Enter")
    page.ready()
    assert page.locator(".mechanism .error").count() == 0
    page.locator(".question select").nth(3).select_option("Nystrom(landmarks=16)")
    page.ready()  # the preset starts without position and mask
    assert page.locator("text=This combination is refused").count() == 0
    page.locator(".question select").nth(2).select_option("Causal()")
    page.wait_for_selector("text=This combination is refused")


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
