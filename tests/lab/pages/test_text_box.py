"""Texts, models and examples in a real browser: what is kept, refused and shown when they change."""

from __future__ import annotations

import re


def test_an_empty_text_is_refused_and_nothing_else_is_shown_instead(open_lab):
    page = open_lab("heads?model=tagger&text=The cat sat")
    page.fill("textarea", "  ")
    page.click("form .strong")
    page.ready()
    assert page.locator("form [role=alert]").inner_text() == "Enter a text, or choose an example."
    assert page.evaluate("window.lab.read().state.text") == "The cat sat" and page.input_value("textarea") == "  "


def test_the_text_is_kept_when_the_model_changes(open_lab):
    page = open_lab("heads?model=tagger&text=one two three")
    page.click("#model")
    page.click("[data-model=bert]")
    page.ready()
    assert page.input_value("textarea") == "one two three" and page.evaluate("window.lab.read().state.model") == "bert"


def test_an_example_text_is_kept_where_the_next_model_reads_its_language(open_lab):
    for name, kept in (("writer", True), ("tagger-zh", False)):
        page = open_lab("heads?model=tagger&lang=en")
        shown = page.input_value("textarea")
        page.click("#model")
        page.click(f"[data-model={name}]")
        page.ready()
        assert (page.input_value("textarea") == shown) == kept


def test_models_are_picked_with_the_keyboard(open_lab):
    page = open_lab("heads?model=tagger&lang=en")
    page.locator("#model").focus()
    page.keyboard.press("Enter")
    page.ready()
    assert page.evaluate("document.activeElement.dataset.model") == "tagger"
    page.keyboard.press("Escape")
    page.ready()
    assert page.evaluate("document.activeElement.id") == "model"
    page.keyboard.press("Enter")
    page.locator("[data-model=bert]").focus()
    page.keyboard.press("Enter")
    page.ready()
    assert page.evaluate("window.lab.read().state.model") == "bert"


def test_the_text_grows_while_it_is_edited(open_lab):
    page = open_lab(f"heads?model=tagger&text={'one two three four ' * 20}")
    area = page.locator("#bar textarea")
    low, picture = area.bounding_box()["height"], page.locator(".map").bounding_box()["y"]
    area.focus()
    page.ready()
    assert area.bounding_box()["height"] > 2 * low and page.locator(".map").bounding_box()["y"] == picture
    area.press("Enter")
    page.ready()
    assert page.evaluate("document.activeElement.dataset.focus") == "text"


def test_an_example_brings_its_head_and_query(open_lab):
    page = open_lab("heads?model=tagger&text=one two three&attention=0&head=1&query=1")
    page.click("text=Examples")
    page.click(".example >> text=too wide")
    page.ready()
    read = page.evaluate("window.lab.read()")
    assert (read["attention"], read["head"], read["query"]) == (2, 2, 11)
    assert page.evaluate("window.lab.part('map')")["row"] == 11 and "“was”" in page.inner_text(".look-here")


def test_a_word_of_3000_letters_does_not_widen_the_page(open_lab):
    for place in ("heads", "formula"):
        page = open_lab(f"{place}?model=tagger&text=The {'a' * 3000} sat")
        assert page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_hiding_special_tokens_keeps_the_query_and_leaves_them_out_everywhere(open_lab):
    page = open_lab("heads?model=bert&text=one two three four&attention=0&head=1&query=3")
    names = page.locator(".strip .token").all_inner_texts()
    page.click("text=Hide special tokens")
    page.ready()
    assert page.evaluate("window.lab.read().query") == 3
    shown = page.evaluate("window.lab.part('map')")
    assert shown["rows"] == len(names) - 2 and shown["row"] == 2  # the first token is special
    assert (
        page.locator(".strip .token").count() == len(names) - 2 and page.locator(".strip .token.special").count() == 0
    )
    assert page.locator("svg .token.pick").count() == len(names) - 2
    assert page.locator("svg .token.pick.lit").get_attribute("aria-label") == names[3].split("\n")[0]


def test_the_size_sent_is_that_of_this_view(open_lab):
    page = open_lab("heads?model=bert&text=one two three")
    page.fill("textarea", "four five six")
    page.click("form .strong")
    page.ready()
    amount, unit = re.match(r"([\d.]+) (\w+)", page.text_content("#cost")).groups()
    sent = float(amount) * {"B": 1, "kB": 1e3, "MB": 1e6}[unit]
    assert 0 < sent < 0.75 * page.evaluate("window.lab.read().received")


def test_the_heaviest_keys_are_never_masked_ones(open_lab):
    page = open_lab("formula?model=llama&text=one two three&attention=0&head=0&query=0&stage=5")
    row = page.evaluate("window.lab.part('row')")
    assert sum(row["allowed"]["data"]) == 1  # the first query of a causal model sees itself
    assert page.inner_text(".look-here").count("“") == 2  # the query, and its one key


def test_a_model_without_its_graph_says_what_to_do(open_lab, lab):
    page = open_lab("graph?model=cora")
    if not lab.library.entry("cora").examples():
        assert "NPZ" in page.inner_text("#main .note")
    else:
        assert page.locator("svg.graph").count() == 1


def test_the_presets_of_methods_are_not_refused(open_lab):
    page = open_lab("mechanisms")
    for name in ("Linformer", "Nystrom", "Performer"):
        page.locator(f"[data-question=method] .preset[data-line^={name}]").click()
        page.ready()
        assert page.locator("[data-question=method] [aria-pressed=true]").get_attribute("data-line").startswith(name)
        assert page.locator("#main .error").count() == 0, name
