"""The page of the formula in a real browser: five stages, each number the tensor's own, each explained."""

from __future__ import annotations

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
    assert page.locator(".why tbody tr").count() >= 1


def test_stages_are_stepped_by_keys_and_kept_in_the_address(open_lab):
    page = open_lab(f"formula?model=bert&text={TEXT}&stage=0&lang=en")
    page.locator("h1").click()
    page.keyboard.press("Space")
    assert page.evaluate("window.lab.read().stage") == 1 and "stage=1" in page.url
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.locator("[data-stage='3']").get_attribute("aria-pressed") == "true"
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("window.lab.read().stage") == 2
    assert page.locator(".formula-table td.weight.later").count() > 0
    page.click(".rail >> text=Softmax")
    assert page.locator(".formula-table td.weight.later").count() == 0


def test_every_number_says_how_it_came_about(open_lab):
    page = open_lab(f"formula?model=bert&text={TEXT}&query=5&lang=en")
    for what in ("q", "k", "v", "raw", "scaled", "score", "weight", "output"):
        cell = page.locator(f"[data-what={what}]").first
        cell.click()
        value = float(cell.get_attribute("data-value"))
        stated = page.locator(".why b").evaluate_all("all => all.map(b => b.textContent.replace('−', '-'))")
        assert any(abs(float(one) - value) < 1e-6 for one in stated), page.locator(".why").inner_text()


def test_arrows_move_from_number_to_number(open_lab):
    page = open_lab(f"formula?model=bert&text={TEXT}&query=5&lang=en")
    page.click("[data-what=raw][data-j='2']")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("window.lab.read().cell.what") == "scaled"
    page.keyboard.press("ArrowDown")
    assert page.evaluate("window.lab.read().cell") | {"value": 0} == {"what": "scaled", "j": "3", "value": 0}
    page.keyboard.press("Home")
    assert page.evaluate("window.lab.read().cell.what") == "k"


def test_another_query_is_one_click_away(open_lab, lab):
    page = open_lab(f"formula?model=bert&text={TEXT}&query=5&lang=en")
    page.click(".strip button >> nth=7")
    page.ready()
    attention = lab.capture({"model": "bert", "input": {"text": TEXT}}, Job()).attentions[0]
    check_row(page, attention, 0, 7)
    assert "query=7" in page.url
