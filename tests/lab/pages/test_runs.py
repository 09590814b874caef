"""The page of runs in a real browser: curves that grow, and two runs compared."""

from __future__ import annotations

import json

import pytest

from regard.lab.records import read_curves
from regard.train.run_folder import RunFolder
from regard.train.trainer import TrainEvent, TrainState

from ..api_call import ask
from .test_shell import UNTRANSLATED

pytestmark = pytest.mark.browser


def test_curves_are_the_logs(open_lab, lab_folder):
    page = open_lab("runs?run=reviews-0&with=reviews-1&lang=en")
    read = page.evaluate("window.lab.read()")
    for n, found in enumerate(read["curves"]):
        wanted = read_curves(lab_folder / f"reviews-{n}")
        for kind, name in (("step", "loss"), ("score", "accuracy")):
            assert found[kind][name]["steps"] == wanted[kind][name]["steps"].tolist()
            assert found[kind][name]["values"] == pytest.approx(wanted[kind][name]["values"].tolist(), abs=1e-6)
    assert page.locator("[data-curve='step.loss'] path.curve").count() == 2
    differ = page.locator("section:has(h2:has-text('differ')) table").first.inner_text()
    assert "training.seed" in differ and "training.rate" not in differ
    assert "good" in page.locator("section:has(h2:has-text('Predictions')) table").inner_text()
    table = page.locator("table.runs").inner_text()
    assert "accuracy 75.0 %" in table and "BLEU 12.5" in table and "finished" in table


def test_all_runs_stand_in_one_chart_and_are_read_by_step(open_lab, lab_folder):
    page = open_lab("runs?run=reviews-0&axis=steps&lang=en")
    logged = page.evaluate("window.lab.read().all")
    assert {"reviews-0", "reviews-1", "pair"} <= set(logged)
    chart = page.locator(".stage svg.chart")
    assert chart.locator("path.curve").count() == sum("step.loss" in kinds for kinds in logged.values())
    chart.focus()
    page.keyboard.press("Home")
    wanted = read_curves(lab_folder / "reviews-0")["step"]["loss"]
    item = page.locator(".run-item", has_text="reviews-0")
    assert f"at step {int(wanted['steps'][0])}" in item.inner_text()
    assert float(item.locator(".at b").get_attribute("title")) == pytest.approx(float(wanted["values"][0]))
    page.locator(".run-item", has_text="reviews-1").get_by_role("button", name="compare").click()
    page.wait_for_function("() => location.hash.includes('with=reviews-1')")
    page.ready()
    assert page.locator("[data-curve='step.loss'] path.curve").count() == 2


def test_tasks_metrics_and_states_are_in_the_pages_language(open_lab):
    page = open_lab("runs?run=pair&lang=zh")
    words = page.locator("#main").inner_text()
    assert all(word in words for word in ("翻译", "分类", "准确率", "已完成", "训练损失")) and "accuracy" not in words


def test_a_place_of_a_curve_is_read_by_keyboard(open_lab):
    page = open_lab("runs?run=reviews-0&lang=en")
    page.locator("[data-curve='step.loss'] svg").focus()
    page.keyboard.press("Home")
    page.ready()
    assert "1 → 3" in page.locator("[data-curve='step.loss'] p").last.inner_text()
    with page.expect_download() as download:
        page.click("[data-curve='step.loss'] .files >> text=CSV")
    rows = download.value.path().read_text("utf-8-sig").splitlines()
    assert rows[:2] == ["run,step,loss", "reviews-0,1,3"] and len(rows) == 31


def test_a_run_that_goes_on_is_followed(open_lab, lab_folder):
    folder = RunFolder(lab_folder / "live")
    folder.write("run.json", {"task": "tag", "architecture": {"model": "transformer"}})
    for step in range(1, 4):
        folder.log_event(TrainEvent("step", TrainState(step=step), 9, {"loss": 1.0}))
    page = open_lab("runs?run=live&lang=en")
    assert "running" in page.locator("table.runs").inner_text()
    folder.log_event(TrainEvent("step", TrainState(step=4), 9, {"loss": 0.25}))
    page.wait_for_function("() => window.lab.read().curves[0].step.loss.values.length === 4", timeout=15_000)
    assert page.evaluate("window.lab.read().curves[0].step.loss.values[3]") == 0.25
    assert "step 4" in page.locator("section [role=status]").first.inner_text()


def test_a_run_that_began_meanwhile_is_listed(open_lab, lab_folder):
    page = open_lab("runs?lang=en")
    RunFolder(lab_folder / "begun").write("run.json", {"task": "tag"})
    page.click("#nav a >> text=Experiments")
    page.wait_for_selector("#main[data-ready=experiments]")
    page.click("#nav a >> text=Runs")
    page.wait_for_selector("#main[data-ready=runs]")
    assert page.locator(".run-item", has_text="begun").count() == 1


def test_predictions_that_differ_from_the_reference_are_marked_and_shown_alone(open_lab, lab_folder):
    folder = lab_folder / "marked"
    RunFolder(folder).write("run.json", {"task": "tag", "data": {"train": ["made.conllu"]}})
    RunFolder(folder).write("scores.json", {"metrics": {"accuracy": 0.75}, "main": "accuracy"})
    gold, wrong = "the/DET cat/NOUN", "the/DET cat/VERB"
    rows = [{"input": "the cat", "gold": gold, "prediction": prediction} for prediction in (gold, wrong)]
    (folder / "hypotheses.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = open_lab("runs?run=marked&lang=en")
    card = page.locator("section:has(h2:has-text('Predictions'))")
    assert "1 of 2 predictions differ" in card.inner_text()
    assert card.locator("tbody tr").count() == 2 and card.locator("[data-wrong]").all_inner_texts() == ["catVERB NOUN"]
    page.get_by_label("those that differ").click()
    page.ready()
    assert card.locator("tbody tr").count() == 1 and "errors=1" in page.address()
    assert card.locator("tbody td").first.inner_text() == "2"


@pytest.mark.parametrize(
    "place",
    [
        "runs?run=reviews-0&with=pair&curve=step.rate",
        "experiments?verdict=limited",
        "experiments?experiment=meaning",
        "experiments?experiment=images",
        "honest?model=reviews-0&text=the cat sat&token=1&baselines=1&edits=0.1.mean&alone=silent",
        "honest?model=llama&text=one two&place=1&ablation=hide",
        "alignment?model=pair&text=the cat sat&step=1&show=norms",
        "alignment?model=pair&text=the cat sat&target=狗",
    ],
)
def test_every_word_of_further_states_is_translated(open_lab, place):
    page = open_lab(f"{place}&lang=xx")
    assert page.locator("#main .error").count() == 0
    assert page.evaluate(UNTRANSLATED) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_the_first_line_says_when_the_loss_fell(open_lab, lab):
    page = open_lab("runs?run=karate&lang=en")
    curve = ask(lab, "runs/overview")["curves"]["karate"]["step.loss"]
    values, steps = curve["values"].tolist(), curve["steps"].tolist()
    at = next(n for n, value in enumerate(values) if value <= values[0] - 0.9 * (values[0] - min(values)))
    words = page.inner_text(".look-here")
    assert words.startswith("Look here: karate reached")  # of another graph no score says anything about this one
    assert f"in the first {int(100 * steps[at] / steps[-1] + 0.5)} % of its steps" in words
