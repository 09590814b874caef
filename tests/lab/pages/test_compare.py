"""The page that compares two maps in a real browser: numbers, linked cells, modes, and the head that changes most."""

from __future__ import annotations

import pytest
import torch

from regard.lab.server.jobs import Job

from ..api_call import ask

pytestmark = pytest.mark.browser
A, B = "one two three four", "four two three one"
PLACE = f"compare?model=llama&lang=en&text={A}&other={B}"


def side_fields(text: str, attention: int, head: int) -> dict:
    return {"model": "llama", "input": {"text": text}, "attention": attention, "head": head}


def test_the_difference_drawn_is_the_difference_of_the_tensors(open_lab, lab):
    page = open_lab(PLACE + "&attention=1&head=2")
    answer = ask(lab, "compare/maps", a=side_fields(A, 1, 2), b=side_fields(B, 1, 2))
    rows, columns = answer["difference"].shape
    shown = page.evaluate(
        "([r, c]) => Array.from({length: r * c}, (_, n) => window.lab.cell(Math.floor(n / c), n % c).value)",
        [rows, columns],
    )
    assert shown == pytest.approx(answer["difference"].flatten().tolist(), abs=1e-6)
    first, second = (lab.capture(side_fields(text, 1, 2), Job()).attentions[1].weights(2) for text in (A, B))
    i, j = 1, 0
    pair = page.evaluate("([i, j]) => window.lab.part('cells', i, j)", [i, j])
    at = [answer["rows"]["places_a"][i], answer["columns"]["places_a"][j]]
    assert pair["a"] == pytest.approx(float(first[at[0], at[1]]), abs=1e-6)
    at = [answer["rows"]["places_b"][i], answer["columns"]["places_b"][j]]
    assert pair["b"] == pytest.approx(float(second[at[0], at[1]]), abs=1e-6)
    low, high = map(float, page.locator(".compare-difference .legend").get_attribute("data-domain").split())
    assert low == -high < 0  # the scale is centred on zero
    assert page.locator(".compare-maps").bounding_box()["y"] <= 250


def test_a_pair_is_followed_through_all_three_maps(open_lab):
    page = open_lab(PLACE + "&attention=1&head=2")
    names = page.evaluate("window.lab.read().shape")
    page.locator(".compare-b [role=grid]").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    page.ready()
    cells = [page.locator(f".compare-{one} [role=gridcell]").inner_text() for one in ("a", "b", "difference")]
    assert len({cell.split(":")[0] for cell in cells}) == 1, cells
    shown = page.locator(".compare-readout").inner_text()
    assert cells[0].split(" → ")[0] in shown and names[0] > 2
    values = [
        float(one) for one in page.locator(".compare-readout b").evaluate_all("all => all.map(b => b.dataset.value)")
    ]
    assert values[1] - values[0] == pytest.approx(values[2], abs=1e-6)


def test_without_a_choice_the_head_that_changes_most_is_shown(open_lab, lab):
    page = open_lab(PLACE)
    grid = torch.stack([torch.tensor(row) for row in page.evaluate("window.lab.part('grid')")])
    wanted = ask(lab, "compare/maps", a=side_fields(A, 0, 0), b=side_fields(B, 0, 0))["grid"]
    assert torch.allclose(grid, torch.stack(wanted), atol=1e-6)
    assert page.evaluate("window.lab.read().place") == list(divmod(int(grid.argmax()), grid.shape[1]))
    assert "changes most" in page.locator(".look-here").inner_text()
    page.click("[data-head='0.1']")
    page.ready()
    assert "attention=0&head=1" in page.address() and page.evaluate("window.lab.read().place") == [0, 1]
    page.check("input[value=places]")
    page.ready()
    assert page.evaluate("window.lab.read().alignment") == "places"


def test_two_heads_and_two_models(open_lab, lab):
    page = open_lab(f"compare?model=llama&lang=en&text={A}&mode=heads&attention=0&head=1&attention2=1&head2=3")
    answer = ask(lab, "compare/maps", a=side_fields(A, 0, 1), b=side_fields(A, 1, 3))
    assert page.evaluate("window.lab.part('difference')") == pytest.approx(
        answer["difference"].flatten().tolist(), abs=1e-6
    )
    assert "differs from this head of A" in page.locator("#main").inner_text()
    page = open_lab(f"compare?model=llama&lang=zh&text={A}&mode=models&model2=bert")
    layer, head = page.evaluate("window.lab.read().place2")
    answer = ask(lab, "compare/maps", a=side_fields(A, 0, 0), b={**side_fields(A, layer, head), "model": "bert"})
    grid = torch.stack(answer["grid"])
    assert [layer, head] == list(divmod(int(grid.argmin()), grid.shape[1]))  # the head of B that is most alike
    assert page.evaluate("window.lab.part('difference')") == pytest.approx(
        answer["difference"].flatten().tolist(), abs=1e-6
    )


def test_the_default_example_needs_no_question(open_lab):
    for language, words in (("en", "dog"), ("zh", "打")):
        page = open_lab(f"compare?lang={language}&model=meanings")
        assert words in page.locator("#bar textarea").first.input_value()
        assert page.locator("#main .error").count() == 0


def test_predictions_of_aligned_tokens_stand_beside_each_other(open_lab, lab):
    page = open_lab("compare?model=tagger&text=The dog bit the man.&other=The man can dog it.&lang=en")
    found = page.locator("section:has(h3:has-text('Predictions'))")
    asks = [{"model": "tagger", "input": {"text": text}} for text in ("The dog bit the man.", "The man can dog it.")]
    items = [lab.capture(given, Job()).prediction["items"] for given in asks]
    labels = [{item["token"]: item["label"] for item in each} for each in items]
    rows = {row.locator("th").inner_text(): row for row in found.locator("tbody tr").all()}
    assert set(rows) == {"The", "dog", "man", "."}
    for word, (a, b) in {"dog": (1, 3), "man": (4, 1)}.items():
        cells = rows[word].locator("td").all_inner_texts()
        assert cells[0].startswith(labels[0][a]) and cells[1].startswith(labels[1][b])
        assert (rows[word].get_attribute("class") == "turned-row") == (labels[0][a] != labels[1][b])
