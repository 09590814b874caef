"""The page of experiments in a real browser: the grid, one claim, live parameters, where the verdict turns."""

from __future__ import annotations

import pytest

from regard.experiments import list_experiments, published_verdict
from regard.experiments.sweeps import published_sweep

pytestmark = pytest.mark.browser


def test_grid_has_every_claim_with_its_sub_claims(open_lab):
    page = open_lab("experiments?lang=en")
    names = [experiment.CLAIM.name for experiment in list_experiments()]
    assert page.locator(".claim-card").evaluate_all("all => all.map(one => one.dataset.experiment)") == names
    verdict = published_verdict("grey-ball")
    card = page.locator("[data-experiment=grey-ball]")
    assert verdict is not None and card.locator(".subclaims li").count() == len(verdict.subclaims)
    for subclaim in verdict.subclaims:
        row = card.locator(f"[data-subclaim={subclaim.name}]")
        assert row.locator(".finding-sign").text_content() == ("✓" if subclaim.holds else "✗")
        assert subclaim.figures.en in row.text_content()
    assert card.locator(".claim-pip.yes").count() == sum(subclaim.holds for subclaim in verdict.subclaims)
    assert card.locator(".claim-pip").count() == len(verdict.subclaims)
    page.locator("fieldset.choice label").nth(3).click()
    page.ready()
    failing = [name for name in names if (held := published_verdict(name)) and held.kind == "fails"]
    assert page.locator(".claim-card").evaluate_all("all => all.map(one => one.dataset.experiment)") == failing


def test_each_claim_has_a_picture_of_where_its_verdict_turns_and_its_main_figures(open_lab):
    page = open_lab("experiments?lang=en")
    for experiment in list_experiments():
        name = experiment.CLAIM.name
        card, verdict, sweep = page.locator(f"[data-experiment={name}]"), published_verdict(name), published_sweep(name)
        assert verdict is not None and sweep is not None
        assert card.locator(".claim-turn circle").count() == len(sweep["values"])
    card, sweep = page.locator("[data-experiment=grey-ball]"), published_sweep("grey-ball")
    verdict = published_verdict("grey-ball")
    assert sweep is not None and verdict is not None and verdict.key.en in card.inner_text()
    holds = [point["subclaims"][0]["holds"] for point in sweep["points"]]  # a core one that turns
    assert card.locator(".turn-yes").count() == sum(holds)
    assert f"turns at {sweep['values'][holds.index(True)]}" in card.inner_text()


def test_experiments_are_second_in_the_navigation(open_lab):
    page = open_lab("experiments?lang=en")
    links = page.locator("#nav a").all_inner_texts()
    assert links[:2] == ["Course", "Experiments"]


def test_one_claim_in_both_languages_and_saved(open_lab, tmp_path):
    page = open_lab("experiments?experiment=grey-ball&lang=en")
    assert "◐" in page.locator("section.card .verdict").first.inner_text()
    assert page.locator("img.figure").evaluate("async one => { await one.decode(); return one.naturalWidth; }") > 300
    with page.expect_download() as download:
        page.click("#save")
    download.value.save_as(tmp_path / "view.html")
    page.click("#language")
    page.ready()
    assert "略微发灰的小球" in page.locator("section.card").first.inner_text()
    again = open_lab("", address=(tmp_path / "view.html").as_uri())
    assert "◐" in again.locator("section.card .verdict").first.inner_text()
    assert again.locator("img.figure").count() == 1 and again.locator(".turn").count() > 0


def test_pictures_of_the_sweep_have_its_points(open_lab):
    page = open_lab("experiments?experiment=meaning&lang=en")
    sweep = published_sweep("meaning")
    assert sweep is not None and page.evaluate("window.lab.part('sweep')")["points"] == sweep["points"]
    for n, name in enumerate(part["name"] for part in sweep["points"][0]["subclaims"]):
        held = sum(point["subclaims"][n]["holds"] for point in sweep["points"])
        assert page.locator(f".turn[data-subclaim={name}] .turn-yes").count() == held
        assert page.locator(f".turn[data-subclaim={name}] .turn-no").count() == len(sweep["points"]) - held


def test_a_toy_run_with_another_value_shows_no_cross(open_lab):
    page = open_lab("experiments?experiment=soft-dictionary&lang=en")
    page.fill("[data-parameter=dim]", "2")
    page.press("[data-parameter=dim]", "Tab")
    page.ready()
    assert "p.dim=2" in page.address()
    page.click("#run-toy")
    page.wait_for_selector("#live-result .subclaims", timeout=120_000)  # a process of its own starts
    result = page.evaluate("window.lab.part('tried')")
    assert result["settings"] == {"dim": 2} and result["size"] == "toy"
    shown = page.locator("#live-result")
    assert "too small to judge" in shown.inner_text() and "✗" not in shown.inner_text()
    assert shown.locator(".verdict").count() == 0 and shown.locator(".fails").count() == 0
    assert result["verdict"]["subclaims"][0]["figures"]["en"] in shown.inner_text()


def test_a_slider_changes_the_value_within_its_range(open_lab):
    page = open_lab("experiments?experiment=grey-ball&lang=en")
    page.locator(".live .slider").first.focus()
    page.keyboard.press("End")
    page.ready()
    assert page.locator("[data-parameter=grey]").input_value() == "0.5"
    page.keyboard.press("Home")
    page.ready()
    assert page.locator("[data-parameter=grey]").input_value() == "0.002"
    page.click("text=Reset")
    page.ready()
    assert page.locator("[data-parameter=grey]").input_value() == "0.05" and "p.grey" not in page.address()


def test_a_run_can_be_stopped(open_lab):
    page = open_lab("experiments?experiment=soft-dictionary&seed=3&lang=en", allowed=("499",))
    page.click("#run-usual")
    page.click(".progress button")
    page.wait_for_selector("text=Cancelled.")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_claim_fits_a_phone(open_lab, theme):
    page = open_lab(f"experiments?experiment=scaling&lang=zh&theme={theme}", width=390)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator("#main .error").count() == 0


def test_the_first_line_counts_the_claims_and_leads_to_those_that_fail(open_lab):
    page = open_lab("experiments?lang=en")
    kinds = [verdict.kind for one in list_experiments() if (verdict := published_verdict(one.CLAIM.name))]
    words = page.inner_text(".look-here")
    assert f"{kinds.count('holds')} of {len(list_experiments())} claims hold" in words
    links = page.locator(".look-here button")
    assert links.count() == kinds.count("fails") and "*" not in page.inner_text("#main")
    links.first.click()
    page.ready()
    chosen = page.evaluate("window.lab.read().chosen")
    verdict = published_verdict(chosen)
    assert verdict is not None and verdict.kind == "fails"
