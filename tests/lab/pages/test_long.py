"""The page of long texts in a real browser: pooled, zoomed, and never n²."""

from __future__ import annotations

import time

import pytest
import torch

from regard.lab.api import long
from regard.lab.server.jobs import Job

pytestmark = pytest.mark.browser
GO = """place => new Promise(done => {
  addEventListener("hashchange", () => setTimeout(done), { once: true });
  location.hash = place;
})"""
TEXT = "the cat sat on the mat and the dog sat on the cat, " * 12


def capture(lab, text=TEXT):
    return long.capture(lab, {"model": "recall", "input": {"text": text}}, Job()).attentions[0]


def test_pooled_cells_equal_the_pooled_weights(open_lab, lab):
    page = open_lab(f"long?text={TEXT}&cells=128&lang=en")
    weights = capture(lab).weights(0)
    size = len(TEXT)
    ends = [n * size // 128 for n in range(129)]
    for i, j in ((0, 0), (60, 12), (127, 127), (100, 40)):
        wanted = weights[ends[i] : ends[i + 1], ends[j] : ends[j + 1]].sum(1).mean()
        cell = page.evaluate("([i, j]) => window.lab.cell(i, j)", [i, j])
        assert abs(cell["value"] - float(wanted)) < 1e-6
        assert abs(cell["rowSum"] - 1) < 1e-5
    assert page.evaluate("window.lab.cell(3, 90)")["masked"] is True
    assert (
        "Pooled" in page.locator("#main").inner_text() and page.locator(".legend").get_attribute("data-scale") == "log"
    )


def test_zooming_reaches_single_tokens_and_stays_in_the_address(open_lab, lab):
    page = open_lab(f"long?text={TEXT}&lang=en&head=1")
    page.locator(".map [role=grid]").focus()
    for _ in range(4):
        page.keyboard.press("+")
        page.ready()
    read = page.evaluate("window.lab.read()")
    (a, b), (c, d) = read["rows"], read["keys"]
    assert read["shape"] == [b - a, d - c] and f"rows={a}-{b}" in page.url
    weights = capture(lab).weights(1, (a, b), (c, d))
    found = page.evaluate("([r, k]) => window.lab.cell(r, k)", [5, 3])
    assert found["masked"] or abs(found["value"] - float(weights[5, 3])) < 1e-6
    again = open_lab(page.url.split("#")[1])
    assert again.evaluate("window.lab.read().rows") == [a, b]
    again.locator(".map [role=grid]").focus()
    again.keyboard.press("0")
    again.ready()
    assert again.evaluate("window.lab.read().rows") == [0, len(TEXT)]


def test_a_rectangle_drawn_zooms_there(open_lab):
    page = open_lab(f"long?text={TEXT}&lang=en")
    page.locator(".map canvas").scroll_into_view_if_needed()
    box = page.locator(".map canvas").bounding_box()
    page.mouse.move(box["x"] + 150, box["y"] + 250)
    page.mouse.down()
    page.mouse.move(box["x"] + 220, box["y"] + 330, steps=4)
    page.mouse.up()
    page.ready()
    (a, b), (c, d) = (page.evaluate(f"window.lab.read().{name}") for name in ("rows", "keys"))
    assert 0 < b - a < len(TEXT) / 2 and 0 < d - c < len(TEXT) / 2


def test_one_query_lists_its_largest_weights(open_lab, lab):
    page = open_lab(f"long?text={TEXT}&lang=en")
    page.wait_for_selector("section >> text=Largest weights of the query")
    page.ready()
    read = page.evaluate("window.lab.read().query")
    best = capture(lab).weights(0, (read["query"], read["query"] + 1))[0].topk(len(read["keys"]))
    assert torch.allclose(torch.tensor(read["weights"]).double(), best.values.double(), atol=1e-6)


def test_16384_tokens_come_in_time_and_little_is_sent(open_lab):
    """The server is a thread of this process: its processor time does not depend on what else the machine does."""
    page = open_lab(f"long?text={TEXT}&lang=en")
    text = ("What stood here stood here before. " * 500)[:16_384]
    page.evaluate("text => sessionStorage.setItem('regard.long.mine', text)", text)
    started = time.process_time()
    page.evaluate(GO, "long?lang=en&kept=mine")
    page.ready()
    spent = time.process_time() - started
    read = page.evaluate("window.lab.read()")
    assert read["shape"] == [256, 256] and read["rows"] == [0, 16_384]
    assert read["took"]["bytes"] < 400_000, "a map is sent, not the square"
    assert spent + read["took"]["draw"] / 1000 <= 3
