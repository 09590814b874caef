"""Drawings of chapters 1 and 4 in a real browser: what is dragged, pressed or painted changes the numbers."""

from __future__ import annotations

import numpy as np
import pytest

from regard.course import find_step

pytestmark = pytest.mark.browser


def read_step(page) -> dict:
    """The step as the page holds it, once nothing is being computed."""
    return page.ready().evaluate("window.lab.read()")


def read_numbers(page, name: str) -> np.ndarray:
    """The numbers of that name as they stand in the drawing."""
    return np.array(
        [
            float(x)
            for x in page.locator(f".picture-drawing [data-name={name}]").evaluate_all(
                "all => all.map(one => one.dataset.value)"
            )
        ]
    )


def drag(page, start, end) -> None:
    """Press in the middle of one element, release in the middle of the other."""
    start.scroll_into_view_if_needed()
    boxes = [element.bounding_box() for element in (start, end)]
    points = [(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2) for box in boxes]
    page.mouse.move(*points[0])
    page.mouse.down()
    page.mouse.move(*points[1], steps=6)
    page.mouse.up()


@pytest.mark.parametrize("width", [1280, 400])
def test_a_ball_dragged_into_the_left_hand_is_the_query(open_lab, width):
    page = open_lab("course?step=grey-ball&lang=en", width=width)
    assert np.allclose(read_numbers(page, "weights"), find_step("grey-ball").run()["weights"])
    drag(page, page.locator("[data-ball='6'] circle").nth(1), page.locator(".left-ball"))
    held = read_step(page)
    paint = find_step("grey-ball").run()["paint"][5]
    assert held["values"]["hand"] == pytest.approx(paint, abs=0.0026)
    expected = find_step("grey-ball").run({"hand": held["values"]["hand"]})
    assert np.allclose(read_numbers(page, "weights"), expected["weights"])
    assert read_numbers(page, "pick") == expected["pick"] != 6
    assert read_numbers(page, "hand") == held["values"]["hand"]


def test_the_left_hand_and_the_bag_obey_the_keyboard(open_lab):
    page = open_lab("course?step=grey-ball&lang=zh")
    page.locator("[data-grip=hand]").focus()
    page.keyboard.press("Shift+ArrowDown")
    assert read_step(page)["values"]["hand"] == pytest.approx(0.9)
    page.locator("[data-ball='1']").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert read_step(page)["values"]["hand"] == pytest.approx(0.955)
    assert read_numbers(page, "difference") == pytest.approx(0, abs=1e-9)
    assert "左手：查询" in page.locator(".picture-drawing").inner_text()


def test_balls_are_compared_one_by_one(open_lab):
    page = open_lab("course?step=grey-ball&lang=en", motion="no-preference")
    differences = find_step("grey-ball").run()["differences"][-1]
    page.get_by_role("button", name="Compare one by one").click()
    page.wait_for_function("() => document.querySelector('[data-name=difference]').dataset.value < 0.1")
    script = """() => {
      const value = document.querySelector("[data-name=difference]").dataset.value;
      (window.seen ??= new Set()).add(Number(value));
      return window.seen.size > 2;
    }"""
    page.wait_for_function(script)
    seen = page.evaluate("[...window.seen]")
    assert all(np.isclose(differences, x).any() for x in seen)


def test_a_dragged_point_moves_the_boundary(open_lab):
    page = open_lab("course?step=decision-boundary&lang=en")
    start = read_step(page)
    drag(page, page.locator("[data-grip=points][data-i='5']"), page.locator("[data-grip=points][data-i='0']"))
    moved = read_step(page)
    assert np.allclose(moved["values"]["points"][5], start["values"]["points"][0], atol=0.11)
    assert moved["result"]["surface"] != start["result"]["surface"]
    page.keyboard.press("ArrowRight")
    assert read_step(page)["values"]["points"][5][0] == pytest.approx(moved["values"]["points"][5][0] + 0.1)


def test_a_painted_connection_closes_a_loop(open_lab):
    page = open_lab("course?step=feed-forward-family&lang=en")
    assert page.locator("[data-family='2'][data-on]").count() == 1
    page.locator("[data-control=reads][data-i='2'][data-j='4']").click()
    assert read_step(page)["result"]["family"] == 0
    assert page.locator("[data-loop]").count() == 2
    assert page.locator("[data-family='0'][data-on]").count() == 1


def test_a_neuron_shows_what_the_library_computes(open_lab):
    page = open_lab("course?step=mlp&lang=en")
    result = find_step("mlp").run()
    for name in ("inputs", "hidden", "output", "hidden_carried", "output_carried"):
        assert np.allclose(read_numbers(page, name), result[name].ravel())


def test_rows_of_a_comparison_lead_to_their_source(open_lab):
    page = open_lab("course?step=comparison&lang=en")
    sources = page.locator("[data-source]").evaluate_all("all => all.map(one => one.dataset.source)")
    assert sources == find_step("comparison").run()["links"]
    page.locator("[data-source='step:reach']").click()
    assert read_step(page)["step"] == "reach"
