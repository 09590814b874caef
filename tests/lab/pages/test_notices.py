"""What the pages say of inputs that a model was not trained for, in a real browser."""

from __future__ import annotations

import base64
import io

import numpy


def notice_types(page) -> list[str]:
    return [note.get_attribute("data-notice") for note in page.locator("[data-notice]").all()]


def test_a_text_of_unknown_tokens_draws_no_map_and_offers_a_model(open_lab, lab):
    page = open_lab("heads?model=tagger&text=猫追狗")
    assert notice_types(page) == ["language", "unknown"] and page.locator(".map, #overview").count() == 0
    assert "no map is drawn" in page.inner_text("[data-notice=unknown]")
    page.click("[data-notice=language] button")
    page.ready()
    state = page.evaluate("window.lab.read().state")
    assert "zh" in lab.library.entry(state["model"]).languages and state["text"] == "猫追狗"
    assert page.locator(".map canvas").count() == 1 and "unknown" not in notice_types(page)


def test_unknown_tokens_are_marked_wherever_they_are_drawn(open_lab):
    text = "The 猫 sat on the mat."
    page = open_lab(f"heads?model=tagger&text={text}&query=1")
    assert (
        page.evaluate("window.lab.cell(1, 2)")["row"] == "⁇猫"
        and page.evaluate("window.lab.cell(2, 1)")["column"] == "⁇猫"
    )
    marked = page.locator(".strip .token.unknown")
    assert marked.count() == 1 and "unknown to this model" in marked.get_attribute("title")
    assert page.locator("svg .token >> text=⁇猫").count() == 2  # as a query and as a key
    assert page.inner_text(".prediction").count("⁇猫") == 1 and notice_types(page) == ["unknown"]
    page = open_lab(f"formula?model=tagger&text={text}&query=1&lang=zh")
    assert "模型不认识" in page.inner_text(".look-here") and "模型不认识这个词" in page.get_attribute(
        ".token.unknown", "title"
    )


def test_no_conclusion_names_an_unknown_token(open_lab):
    page = open_lab("honest?model=tagger&text=猫 The dog&place=2")
    page.wait_for_selector("[data-reading=raw]")
    assert all("⁇" not in line for line in page.locator("[data-reading] .map-head").all_inner_texts())
    assert page.locator("[data-reading=raw] .token.unknown").count() == 1


def test_a_line_shows_where_the_training_length_ends(open_lab, lab):
    longest = lab.library.entry("tagger").training_length
    page = open_lab(f"heads?model=tagger&text={'cat ' * (longest + 3)}")
    shown = page.evaluate("window.lab.part('map')")
    assert (shown["rowBoundary"], shown["columnBoundary"]) == (longest, longest)
    assert page.locator(".strip .token.beyond").count() == 3 and page.locator("svg line.boundary").count() == 2
    assert str(longest) in page.inner_text("[data-notice=length]")


def test_a_picture_unlike_the_training_data_gets_a_hint(open_lab):
    from PIL import Image

    file = io.BytesIO()
    noise = numpy.random.default_rng(0).integers(0, 256, (32, 32), dtype=numpy.uint8)
    Image.fromarray(noise).save(file, "PNG")
    drawing = base64.b64encode(file.getvalue()).decode().replace("+", "%2B")
    page = open_lab(f"image?model=digits&drawing={drawing}&lang=zh")
    assert "训练图像差别很大" in page.inner_text("[data-notice=unlike]")
    assert open_lab("image?model=digits&example=3.png").locator("[data-notice]").count() == 0


def test_a_model_set_by_hand_says_so(open_lab):
    page = open_lab("heads?model=meanings")
    assert notice_types(page)[0] == "hand_made"
    page.click("#model")
    page.ready()
    assert "set by hand" in page.inner_text("[data-model=meanings] .chip")
    assert page.inner_text("[data-model=tagger] .chip") == "trained"


def test_models_of_the_given_folder_come_first_with_its_name(open_lab, lab, lab_folder):
    page = open_lab("heads?model=tagger")
    page.click("#model")
    page.ready()
    names = page.locator(".model-card b").all_inner_texts()
    assert names[0].startswith(f"{lab_folder.name}/")
    assert page.locator(".model-card").last.get_attribute("data-model") == "meanings"
    assert list(lab.library.entries())[-1] == "recall"


def test_a_chinese_page_starts_with_a_chinese_model_and_example(open_lab, lab):
    page = open_lab("heads?lang=zh")
    page.click("#model")
    chosen = page.get_attribute(".model-card[aria-pressed=true]", "data-model")
    if "tagger-zh" in lab.library.entries():
        assert chosen == "tagger-zh" and "在" in page.input_value("textarea")
        assert page.locator(".look-here").count() == 1 and page.evaluate("window.lab.read().query") == 3
    else:
        assert chosen == "tagger"


def test_a_folder_that_cannot_be_used_is_listed_with_its_reason(open_lab, lab, monkeypatch):
    from dataclasses import replace

    entries = lab.library.entries()
    problem = {"en": "its files cannot be read (Permission denied).", "zh": "文件夹无法读取（Permission denied）。"}
    broken = replace(entries["bert"], name="locked", modality="unusable", problem=problem)
    monkeypatch.setattr(lab.library, "entries", lambda: entries | {"locked": broken})
    page = open_lab("heads?model=bert&lang=zh", fresh=True)
    page.click("#model")
    page.ready()
    assert "文件夹无法读取" in page.inner_text("[data-model=locked]")
    assert page.locator("button[data-model=locked]").count() == 0


def test_errors_of_the_server_are_in_the_pages_language_with_the_original_below(open_lab):
    page = open_lab(f"heads?lang=zh&model=bert&text={'word%20' * 2500}", allowed=("status of 400",))
    error = page.locator(".error")
    assert "文本有 10,002 个词元，本页最多 2,000 个" in error.inner_text()
    error.locator("summary").click()
    page.ready()
    assert "The text has 10,002 tokens" in error.inner_text()
    english = open_lab(f"heads?lang=en&model=bert&text={'word%20' * 2500}", allowed=("status of 400",))
    assert english.locator(".error summary").count() == 0


def test_tags_and_classes_have_a_gloss_in_the_pages_language(open_lab):
    page = open_lab("image?model=emoji&example=animal-lion.png&lang=zh")
    assert "动物" in page.inner_text(".prediction")
    page = open_lab("heads?model=tagger&lang=zh")
    assert "名词" in page.inner_text(".prediction") and "NOUN" in page.inner_text(".prediction")
