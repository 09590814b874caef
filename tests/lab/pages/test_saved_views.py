"""Saved views stay explorable: every query, head and node of the input, from a file, in both languages."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.browser


@pytest.fixture
def save_page(open_lab: Any, tmp_path: Any) -> Any:
    """Saves a page of the lab and opens the file."""

    def save(place: str) -> Any:
        page = open_lab(place)
        with page.expect_download(timeout=60_000) as download:
            page.click("#save")
        path = tmp_path / "view.html"
        download.value.save_as(path)
        assert path.stat().st_size < 40_000_000
        return page, open_lab("", address=path.as_uri())

    return save


def no_gap(page: Any) -> None:
    """Nothing that was tried was missing in the file."""
    page.ready()
    assert page.locator("#main .error").count() == 0, page.locator("#main .error").inner_text()


def test_every_patch_and_head_of_an_image(save_page: Any) -> None:
    live, page = save_page("image?model=digits&example=3.png&query=5&lang=en")
    assert page.evaluate("window.lab.cell(5, 3)") == live.evaluate("window.lab.cell(5, 3)")
    page.locator(".film button").nth(2).click()
    page.wait_for_function("() => window.lab.read().state.head === '2'")
    page.ready()
    for query in (0, 7, 16):
        page.locator(".overlay").focus()
        page.keyboard.press("Home")
        for _ in range(query):
            page.keyboard.press("ArrowRight")
        page.ready()
        assert page.evaluate("window.lab.read().query") == query
        live.evaluate(
            "hash => { location.hash = hash; }", f"image?model=digits&example=3.png&attention=0&head=2&query={query}"
        )
        live.wait_for_function("n => window.lab.read().query === n && window.lab.read().state.head === '2'", arg=query)
        live.ready()
        assert page.evaluate("window.lab.read().weights") == live.evaluate("window.lab.read().weights")
        assert page.locator(".film button").count() == 12
    page.get_by_label("all layers (rollout)").click()
    page.wait_for_function("() => window.lab.read().mode === 'rollout'")
    no_gap(page)


def test_every_frame_and_head_of_a_recording_and_its_sound(save_page: Any) -> None:
    _, page = save_page("sound?model=spoken-digits&example=1_jackson_0.wav&lang=en")
    page.locator(".film button").nth(7).click()
    page.wait_for_function("() => window.lab.read().state.head === '3'")
    page.ready()
    page.locator(".sound-strip").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    page.ready()
    assert page.evaluate("window.lab.read().query") == 1
    page.get_by_role("button", name="Play").click()
    page.wait_for_function("() => window.lab.read().playing")
    no_gap(page)


@pytest.mark.parametrize("model", ["karate", "cora"])
def test_every_node_of_the_picture_of_a_graph(save_page: Any, model: str) -> None:
    _, page = save_page(f"graph?model={model}&lang=en")
    nodes = page.evaluate("[...document.querySelectorAll('[data-node]')].map(one => Number(one.dataset.node))")
    for node in (nodes[1], nodes[-2]):
        page.evaluate("n => document.querySelector(`[data-node='${n}']`)", node)
        page.locator(".field input[type=number]").fill(str(node))
        page.keyboard.press("Enter")
        page.wait_for_function("n => window.lab.read().node === n", arg=node)
        page.ready()
        assert abs(page.evaluate("window.lab.read().sum") - 1) < 1e-5
        if model == "cora":
            break
    page.locator(".film button").last.click()
    page.wait_for_function("() => window.lab.read().state.attention === '1'")
    no_gap(page)
    page.click("#language")
    page.ready()
    assert "保存的视图" in page.locator("#main .note").first.inner_text()
    no_gap(page)


def test_every_head_of_a_long_text_and_every_row_of_its_map(save_page: Any) -> None:
    _, page = save_page(f"long?text={'the cat sat on the mat and the dog sat on the cat, ' * 8}&lang=en")
    page.select_option("label:has-text('Head') select", "1")
    page.wait_for_function("() => window.lab.read().head === 1")
    no_gap(page)
    assert page.evaluate("window.lab.cell(40, 3)")["rowSum"] == pytest.approx(1.0, abs=1e-5)


def test_what_is_left_out_is_said(save_page: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from regard.lab.server import export

    monkeypatch.setattr(export, "BUDGET", 0)
    _, page = save_page("image?model=digits&example=3.png&lang=en")
    assert "more were left out" in page.locator("#main .note").first.inner_text()
    page.locator(".film button").nth(1).click()
    page.wait_for_selector(".error")
    assert "saved file" in page.locator(".error").inner_text()


def test_two_runs_can_be_compared_in_a_saved_view(save_page: Any) -> None:
    _, page = save_page("runs?run=reviews-0&lang=en")
    page.locator(".run-item", has_text="reviews-1").get_by_role("button", name="compare").click()
    page.wait_for_function("() => window.lab.read().state.with === 'reviews-1'")
    no_gap(page)
    assert page.locator("[data-curve='step.loss'] path.curve").count() == 2


def test_every_query_of_the_formula_and_its_edits(save_page: Any) -> None:
    text = "one two three four five six"
    live, page = save_page(f"formula?model=bert&text={text}&query=2&lang=en")
    page.locator(".strip button").nth(4).click()
    page.wait_for_function("() => window.lab.read().query === 4")
    no_gap(page)
    live.locator(".strip button").nth(4).click()
    live.wait_for_function("() => window.lab.read().query === 4")
    live.ready()
    assert page.evaluate("window.lab.part('row')") == live.evaluate("window.lab.part('row')")


def test_every_head_of_a_comparison(save_page: Any) -> None:
    live, page = save_page("compare?model=llama&text=one two three&other=three two one&attention=0&head=0&lang=en")
    for view in (page, live):
        view.click("[data-head='1.2']")
        view.wait_for_function("() => window.lab.read().place?.[0] === 1")
        view.ready()
    no_gap(page)
    assert page.evaluate("window.lab.part('difference')") == live.evaluate("window.lab.part('difference')")
