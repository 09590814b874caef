"""Drawings of chapters 2 and 5 in a real browser: stages of attention, paths of three networks, patches."""

from __future__ import annotations

import numpy as np
import pytest

from regard.course import find_step

pytestmark = pytest.mark.browser


def read_step(page) -> dict:
    """The step as the page holds it, once nothing is being computed."""
    return page.ready().evaluate("window.lab.read()")


def read_numbers(page, name: str, within: str = "") -> np.ndarray:
    """The numbers of that name in the drawing, as a matrix of their places i and j."""
    script = "all => all.map(one => [one.dataset.i, one.dataset.j ?? 0, one.dataset.value].map(Number))"
    cells = page.locator(f".picture-drawing {within} [data-name={name}]").evaluate_all(script)
    array = np.full((1 + max(int(i) for i, _, _ in cells), 1 + max(int(j) for _, j, _ in cells)), np.nan)
    for i, j, value in cells:
        array[int(i), int(j)] = value
    return array


def line(page, stage: str) -> str:
    return page.locator(f"[data-stage={stage}] .stage-line").inner_text()


@pytest.mark.parametrize(("name", "stages"), [("scaled-dot-product", 4), ("four-steps", 5)])
def test_every_matrix_of_the_stages_is_the_librarys(open_lab, name, stages):
    page = open_lab(f"course?step={name}&lang=en")
    result = find_step(name).run()
    assert page.locator("[data-stage]").count() == stages
    for matrix in ("queries", "keys", "values", "products", "scaled", "weights", "output"):
        assert np.allclose(read_numbers(page, matrix), result[matrix]), matrix


def test_a_cell_writes_out_its_arithmetic(open_lab):
    page = open_lab("course?step=scaled-dot-product&lang=en")
    assert line(page, "dot").endswith("= 1·0 + 2·1 + 0·1 + 1·0 = 2")
    page.locator("[data-stage=dot] [data-name=products][data-i='1'][data-j='2']").click()
    page.ready()
    assert line(page, "dot").endswith("= 0·2 + 1·0 + 2·(−1) + −1·1 = −3")
    assert line(page, "scale") == "−3 ÷ 2 = −1.50"
    page.keyboard.press("ArrowRight")
    page.ready()
    assert line(page, "scale") == "5 ÷ 2 = 2.50"
    assert line(page, "softmax").endswith("= 0.657")
    page.locator("[data-stage=sum] [data-name=output][data-i='0'][data-j='1']").click()
    page.ready()
    assert line(page, "sum").endswith("= 1.79")


def test_a_changed_number_runs_through_all_stages(open_lab):
    page = open_lab("course?step=scaled-dot-product&lang=zh")
    page.get_by_role("radio", name="1（不缩放）").check()
    read_step(page)
    result = find_step("scaled-dot-product").run({"scale": "none"})
    assert np.allclose(read_numbers(page, "output"), result["output"])
    assert "÷ 1" in page.locator("[data-stage=scale]").inner_text()


@pytest.mark.parametrize("width", [1280, 400])
def test_an_output_shows_which_inputs_reach_it(open_lab, width):
    page = open_lab("course?step=paths&lang=en", width=width)
    assert np.array_equal(read_numbers(page, "hops"), find_step("paths").run()["hops"])
    page.locator("[data-network='0'] [data-pick=output][data-j='4']").click()
    held = read_step(page)
    assert held["values"]["output"] == 5
    result = find_step("paths").run({"output": 5})
    assert np.array_equal(read_numbers(page, "hops"), result["hops"])
    assert np.allclose(read_numbers(page, "influence"), result["influence"])
    assert "reaches 5 of 9 inputs" in page.locator("section[data-network='0']").inner_text()


def test_an_input_shows_its_path_and_layers_widen_the_view(open_lab):
    page = open_lab("course?step=paths&lang=zh")
    strong = "section[data-network='{}'] svg line[style*='--accent']"
    assert [page.locator(strong.format(n)).count() for n in (0, 1, 2)] == [0, 10, 2]
    page.locator("[data-network='0'] [data-pick=input][data-j='6']").focus()
    page.keyboard.press("Enter")
    page.ready()
    assert [page.locator(strong.format(n)).count() for n in (0, 1, 2)] == [2, 4, 2]
    page.locator("input[type=range]").nth(1).fill("6")
    assert read_step(page)["values"]["layers"] == 6
    assert "到达 9 个输入中的 7 个" in page.locator("section[data-network='0']").inner_text()


def test_a_patch_is_chosen_in_the_picture(open_lab):
    page = open_lab("course?step=image-patches&lang=en")
    page.locator("[data-patch='9']").click()
    assert read_step(page)["values"]["patch"] == 10
    expected = find_step("image-patches").run({"patch": 10})
    assert np.allclose(read_numbers(page, "weights")[:, 0], expected["weights"])
    page.keyboard.press("ArrowUp")
    assert read_step(page)["values"]["patch"] == 6
