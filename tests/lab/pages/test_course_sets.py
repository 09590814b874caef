"""Drawings of chapter 3 and of the limits in a real browser: people, words, nodes and outputs obey mouse and keys."""

from __future__ import annotations

import numpy as np
import pytest

from regard.course import find_step

pytestmark = pytest.mark.browser


def read_step(page) -> dict:
    """The step as the page holds it, once nothing is being computed."""
    return page.ready().evaluate("window.lab.read()")


def read_numbers(page, name: str) -> list[float]:
    """The numbers of that name in the drawing, in order."""
    drawn = page.locator(f".picture-drawing [data-name={name}]")
    return [float(x) for x in drawn.evaluate_all("all => all.map(one => one.dataset.value)")]


def test_people_join_the_round_table_and_a_click_chooses_who_listens(open_lab):
    page, step = open_lab("course?step=round-table&lang=en"), find_step("round-table")
    assert read_numbers(page, "views") == [step.run()["views"][0]]
    page.locator("[data-guest='3']").click()
    assert read_step(page)["values"]["listener"] == 4
    page.get_by_role("button", name="One more joins").click()
    held = read_step(page)
    assert held["values"]["count"] == 6 == page.locator("[data-guest]").count()
    expected = step.run({"count": 6, "listener": 4})
    assert read_numbers(page, "views") == [expected["views"][3]] and read_numbers(page, "opinions") == list(
        expected["opinions"]
    )
    assert read_numbers(page, "weights") == [x for n, x in enumerate(expected["weights"][3]) if n != 3]
    page.locator("[data-guest='5']").focus()
    page.keyboard.press("ArrowRight")  # around the table
    assert read_step(page)["values"]["listener"] == 1
    page.get_by_role("button", name="One leaves").click()
    assert read_step(page)["values"]["count"] == 5 == page.locator("[data-guest]").count()


def test_fifty_people_fit(open_lab):
    page = open_lab("course?step=round-table&lang=zh", width=400)
    slider = page.locator("input[type=range]").first
    slider.focus()
    page.keyboard.press("End")
    assert read_step(page)["values"]["count"] == 50 == page.locator("[data-guest]").count()
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert page.locator("canvas.heat-canvas").count() == 1 and not page.locator(".heat-cell").count()
    page.keyboard.press("Home")
    assert read_step(page)["values"]["count"] == 1 == page.locator(".heat-cell").count()


@pytest.mark.parametrize("language", ["en", "zh"])
def test_words_are_reordered_by_dragging_and_by_keys(open_lab, language):
    page, step = open_lab(f"course?step=reorder&lang={language}"), find_step("reorder")
    words = step.start_values(language)["sentence"].split()
    boxes = [page.locator(f"[data-word='{n}']").bounding_box() for n in (0, 2)]
    page.mouse.move(boxes[0]["x"] + 8, boxes[0]["y"] + 8)
    page.mouse.down()
    page.mouse.move(boxes[1]["x"] + boxes[1]["width"] - 4, boxes[1]["y"] + 8, steps=12)
    page.mouse.up()
    dragged = read_step(page)["values"]["sentence"].split()
    assert dragged == [words[1], words[2], words[0]]
    page.locator("[data-word='0']").focus()
    page.keyboard.press("ArrowRight")
    held = read_step(page)
    assert held["values"]["sentence"].split() == [words[2], words[1], words[0]]
    assert np.allclose(held["result"]["by_word"], step.run(language=language)["by_word"])


def test_two_clicks_connect_two_people_of_the_graph(open_lab):
    page, step = open_lab("course?step=graph-edges&lang=en"), find_step("graph-edges")
    for node in (0, 4):
        page.locator(f"[data-node='{node}']").click()
    held = read_step(page)
    edges = np.array(held["values"]["edges"], bool)
    assert edges[0, 4] and edges[4, 0]
    assert np.allclose(read_numbers(page, "state"), step.run({"edges": edges.tolist()})["state"])
    assert read_numbers(page, "state")[4] > 0.1
    for node in (4, 0):
        page.locator(f"[data-node='{node}']").focus()
        page.keyboard.press("Enter")
    assert not np.array(read_step(page)["values"]["edges"], bool)[0, 4]


def test_an_output_shows_where_it_comes_from(open_lab):
    page = open_lab("course?step=flow&lang=en")
    page.locator("[data-output='2']").click()
    scores, weights = (find_step("flow").run()[name][2] for name in ("scores", "weights"))
    lines = page.locator(".picture-drawing svg text").all_text_contents()
    for score, weight in zip(scores, weights, strict=True):
        assert f"α {score:.2f} → α̂ {weight:.2f}".replace("-", "−") in lines
    page.keyboard.press("ArrowRight")
    page.ready()
    assert page.locator("[data-output='3']").get_attribute("aria-pressed") == "true"


@pytest.mark.parametrize(("language", "tagger"), [("en", "tagger"), ("zh", "tagger-zh")])
def test_tasks_link_to_models_that_are_installed(open_lab, language, tagger):
    page = open_lab(f"course?step=output-counts&lang={language}")
    models = {model["name"] for model in page.evaluate("fetch('/api/models').then(answer => answer.json())")}
    links = page.locator(".picture-drawing a").evaluate_all("all => all.map(one => one.getAttribute('href'))")
    assert len(links) == 3 and (f"model={tagger}&" in links[0]) == (tagger in models)
    page = open_lab(f"course?step=applications&lang={language}")
    linked = page.locator(".picture-drawing a").all_text_contents()
    assert {"translator", "tagger", "digits", "spoken-digits"} <= set(linked) <= models
    page.locator("tr[data-task=detection] button").click()
    assert read_step(page)["values"]["task"] == "detection"
