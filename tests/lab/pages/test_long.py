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
    page = open_lab(f"long?model=recall&text={TEXT}&cells=128&lang=en")
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
    page = open_lab(f"long?model=recall&text={TEXT}&lang=en&head=1")
    page.locator(".map [role=grid]").focus()
    for _ in range(4):
        page.keyboard.press("+")
        page.ready()
    read = page.evaluate("window.lab.read()")
    (a, b), (c, d) = read["rows"], read["keys"]
    assert read["shape"] == [b - a, d - c] and f"rows={a}-{b}" in page.address()
    weights = capture(lab).weights(1, (a, b), (c, d))
    found = page.evaluate("([r, k]) => window.lab.cell(r, k)", [5, 3])
    assert found["masked"] or abs(found["value"] - float(weights[5, 3])) < 1e-6
    again = open_lab(page.address().split("#")[1])
    assert again.evaluate("window.lab.read().rows") == [a, b]
    again.locator(".map [role=grid]").focus()
    again.keyboard.press("0")
    again.ready()
    assert again.evaluate("window.lab.read().rows") == [0, len(TEXT)]


def region(page) -> tuple[int, int, int, int]:
    (a, b), (c, d) = (page.evaluate(f"window.lab.read().{name}") for name in ("rows", "keys"))
    return a, b, c, d


def until_region(page, condition: str) -> tuple[int, int, int, int]:
    """Wait until rows [a, b] and keys [c, d] of the shown map satisfy a condition in JavaScript."""
    script = "() => { const { rows: [a, b], keys: [c, d], shape } = window.lab.read(); return shape && (%s); }"
    page.wait_for_function(script % condition, timeout=15_000)
    page.ready()
    return region(page)


def test_wheel_drag_and_rectangle_zoom_and_move(open_lab, lab):
    page = open_lab(f"long?model=recall&text={TEXT}&lang=en")
    size = len(TEXT)
    box = page.locator(".map canvas").first.bounding_box()
    middle = box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.6
    page.mouse.move(*middle)
    page.mouse.wheel(0, -400)
    a, b, c, d = until_region(page, f"b - a < {size}")
    assert 0 < a < b < size and b - a == pytest.approx(size * 0.562, rel=0.05)
    page.mouse.down()
    page.mouse.move(middle[0], middle[1] - 120, steps=5)
    page.mouse.up()
    moved = until_region(page, f"a > {a}")
    assert moved[1] - moved[0] == b - a and moved[2:] == (c, d), "dragging up goes down in the text"
    page.keyboard.down("Shift")
    page.mouse.move(middle[0] - 60, middle[1] - 60)
    page.mouse.down()
    page.mouse.move(middle[0] + 20, middle[1] + 10, steps=4)
    page.mouse.up()
    page.keyboard.up("Shift")
    e, f, g, h = until_region(page, f"b - a < {(b - a) // 2}")
    assert moved[0] <= e < f <= moved[1] and c <= g < h <= d
    weights = capture(lab).weights(0, (e, f), (g, h))
    found = page.evaluate("window.lab.cell(2, 1)")
    assert found["masked"] or abs(found["value"] - float(weights[2, 1])) < 1e-6
    page.locator(".minimap").click(position={"x": 20, "y": 120})
    at = until_region(page, f"a > {f} || a < {e}")
    assert at[1] - at[0] == f - e


def test_two_fingers_zoom(open_lab):
    page = open_lab(f"long?model=recall&text={TEXT}&lang=en")
    page.evaluate("""() => {
      const canvas = document.querySelector(".map canvas"), edge = canvas.getBoundingClientRect();
      const send = (type, id, x, y) => canvas.dispatchEvent(new PointerEvent(type, { pointerId: id, pointerType: "touch", bubbles: true, clientX: edge.left + x, clientY: edge.top + y }));
      send("pointerdown", 1, 200, 200), send("pointerdown", 2, 260, 260);
      for (let n = 1; n <= 6; n++) send("pointermove", 1, 200 - 10 * n, 200 - 10 * n), send("pointermove", 2, 260 + 10 * n, 260 + 10 * n);
      send("pointerup", 1, 140, 140), send("pointerup", 2, 320, 320);
    }""")  # noqa: E501
    a, b, _, _ = until_region(page, f"b - a < {len(TEXT)}")
    assert b - a == pytest.approx(len(TEXT) / 3, rel=0.1)


def test_a_trained_model_reads_by_windows_with_a_line_at_its_training_length(open_lab, lab):
    page = open_lab("long?model=shakespeare&lang=en&attention=1&head=1")
    length = lab.library.entry("shakespeare").training_length
    shown, read = page.evaluate("window.lab.part('map')"), page.evaluate("window.lab.read()")
    assert read["rows"] == [0, 5 * length]
    assert shown["rowBoundary"] == pytest.approx(length * shown["rows"] / (5 * length))
    words = page.locator("#main").inner_text()
    assert f"windows of {length} tokens" in words and "overlap by half" in words
    text = page.evaluate("document.querySelector('#bar textarea').value")
    body = {"model": "shakespeare", "input": {"text": text}, "windows": True}
    weights = long.read_text(lab, body, Job()).attentions[1].weights(1, (0, 5 * length), (0, 5 * length))
    pooled = weights.view(shown["rows"], 5, shown["columns"], 5).sum(-1).mean(1)
    for i, j in ((3, 1), (100, 90), (200, 180)):
        assert page.evaluate("([i, j]) => window.lab.cell(i, j)", [i, j])["value"] == pytest.approx(
            float(pooled[i, j]), abs=1e-6
        )
    page.get_by_label("at once", exact=True).click()
    page.wait_for_function("() => location.hash.includes('once=1')")


def test_a_heavy_pass_can_be_stopped(open_lab, lab, monkeypatch):
    import time as clock

    page = open_lab(f"long?model=recall&text={TEXT}&lang=en")
    summarize = long.CapturedAttention.summarize

    def slow(self, head, shape, rows, keys, job, **options):
        for n in range(200):
            job.report(n, 200, {"en": "queries computed", "zh": "已计算的查询"})
            clock.sleep(0.05)
        return summarize(self, head, shape, rows, keys, job, **options)

    monkeypatch.setattr(long.CapturedAttention, "summarize", slow)
    page.get_by_role("button", name="Zoom in").click()
    page.wait_for_selector(".progress progress[value]")
    page.locator(".progress").get_by_role("button", name="Cancel").click()
    page.wait_for_selector("text=Cancelled")
    page.wait_for_function("() => document.documentElement.dataset.busy === 'no'", timeout=5000)


def test_one_query_lists_its_largest_weights(open_lab, lab):
    page = open_lab(f"long?model=recall&text={TEXT}&lang=en")
    page.wait_for_selector("section >> text=Largest weights of the query")
    page.ready()
    read = page.evaluate("window.lab.read().query")
    best = capture(lab).weights(0, (read["query"], read["query"] + 1))[0].topk(len(read["keys"]))
    assert torch.allclose(torch.tensor(read["weights"]).double(), best.values.double(), atol=1e-6)


def test_16384_tokens_come_in_time_and_little_is_sent(open_lab):
    """The server is a thread of this process: its processor time does not depend on what else the machine does."""
    page = open_lab(f"long?model=recall&text={TEXT}&lang=en")
    text = ("What stood here stood here before. " * 500)[:16_384]
    page.evaluate("text => sessionStorage.setItem('regard.long.mine', text)", text)
    started = time.process_time()
    page.evaluate(GO, "long?model=recall&lang=en&kept=mine")
    page.ready()
    spent = time.process_time() - started
    read = page.evaluate("window.lab.read()")
    assert read["shape"] == [256, 256] and read["rows"] == [0, 16_384]
    assert read["took"]["bytes"] < 400_000, "a map is sent, not the square"
    assert spent + read["took"]["draw"] / 1000 <= 3


def test_the_page_starts_with_a_trained_head_that_finds_repetitions(open_lab, lab):
    page = open_lab("long?lang=en")
    start = lab.library.entry("writer").card["long"]
    read = page.evaluate("window.lab.read()")
    assert "model=writer" in page.address()
    assert (read["attention"], read["head"]) == (start["attention"], start["head"])
    assert "This is the house that Jack built." in page.locator("#bar textarea").input_value()
    words = page.inner_text(".look-here")
    assert float(words.split("of this view, ")[1].split(",")[0]) > 0.9
    page.click("#language")
    page.ready()
    page.locator("#bar").get_by_role("button", name="示例").click()
    page.click("[data-sample=source]")
    page.wait_for_function("() => location.hash.includes('sample=source')")
    page.ready()
    assert page.evaluate("window.lab.read().of") > 100


def test_a_short_text_is_shown_too(open_lab):
    page = open_lab("long?model=recall&text=a short one&lang=en")
    assert page.locator("#main .error").count() == 0 and page.evaluate("window.lab.read().shape") == [11, 11]
