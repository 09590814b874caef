"""The page of heads in a real browser: what it shows is what the tensors hold."""

from __future__ import annotations

import pytest
import torch

from regard.lab.api.heads import overview
from regard.lab.server.jobs import Job

pytestmark = pytest.mark.browser
TEXT = "The animal didn't cross the street because it was too tired."
ASK = {"model": "bert", "input": {"text": TEXT}}
PLACE = f"heads?model=bert&attention=1&head=2&query=4&text={TEXT}"


def cells(page, rows, columns):
    """Every cell that the page holds, as it is read from it."""
    script = "([r, c]) => Array.from({length: r * c}, (_, n) => window.lab.cell(Math.floor(n / c), n % c))"
    return page.evaluate(script, [rows, columns])


def test_every_cell_equals_the_tensor(open_lab, lab):
    page = open_lab(PLACE)
    wanted = lab.capture(ASK, Job()).attentions[1].weights(2)
    found = cells(page, *wanted.shape)
    values = torch.tensor([one["value"] for one in found], dtype=torch.float64).view(wanted.shape)
    assert torch.allclose(values, wanted.double(), atol=1e-6, rtol=0)
    assert all(abs(one["rowSum"] - 1) < 1e-5 for one in found)
    assert page.locator(".legend").get_attribute("data-domain") == "0 1"
    assert "each row sums to 1" in page.locator(".orientation").inner_text()
    assert "1.000000" in page.locator(".row-sum").inner_text()


def test_a_cell_is_explained_with_its_scores(open_lab, lab):
    page = open_lab(PLACE)
    attention = lab.capture(ASK, Job()).attentions[1]
    stages, weights = attention.stages(2, (4, 5), (0, attention.keys))
    page.wait_for_selector(".readout dt >> text=similarity")
    key = page.evaluate("window.lab.part('map').column")
    shown = page.locator(".readout dd").all_inner_texts()
    wanted = [weights, stages.raw, stages.scaled, stages.score, attention.value_norms(2, (4, 5))]
    for words, tensor in zip(shown, wanted, strict=True):
        assert abs(float(words.replace("−", "-")) - float(tensor[0, key])) < 1e-5


def test_statistics_are_those_of_the_head(open_lab, lab):
    page = open_lab(PLACE)
    stats = lab.capture(ASK, Job()).attentions[1].stats([0, 14])
    read = page.evaluate("window.lab.read()")
    for name, key in (("entropy", "entropy"), ("distance", "distance"), ("entropy_share", "share")):
        assert abs(read[key] - float(stats[name][2])) < 1e-5
    assert page.locator(".dot.here").count() == 2


def test_the_keyboard_reaches_every_cell(open_lab):
    page = open_lab(PLACE)
    grid = page.locator(".map [role=grid]")
    grid.focus()
    for key, row, column in (
        ("Home", 4, 0),
        ("ArrowRight", 4, 1),
        ("ArrowDown", 5, 1),
        ("End", 5, -1),
        ("PageUp", 0, -1),
    ):
        page.keyboard.press(key)
        read = page.evaluate("window.lab.part('map')")
        assert (read["row"], read["column"]) == (row, column % read["columns"])
    page.keyboard.press("Enter")
    assert page.evaluate("window.lab.part('map').pinned") == 0
    page.keyboard.press("Escape")
    assert page.evaluate("window.lab.part('map').pinned") is None
    active = page.locator(f"#{grid.get_attribute('aria-activedescendant')}")
    assert "→" in active.inner_text() and active.get_attribute("aria-colindex") == str(read["columns"])
    assert active.inner_text() in page.locator("#spoken").inner_text()


def test_heads_are_previewed_kept_and_stepped_through(open_lab):
    page = open_lab(f"heads?model=bert&text={TEXT}&lang=en")
    assert page.evaluate("window.lab.read().kept") is False
    page.locator("#overview").focus()
    page.keyboard.press("ArrowRight")
    page.ready()
    page.keyboard.press("Enter")
    page.ready()
    read = page.evaluate("window.lab.read()")
    assert (read["kept"], read["head"], read["attention"]) == (True, 1, 1) and "head=1" in page.url
    page.locator("#overview canvas").hover(position={"x": 40, "y": 30})
    page.ready()
    assert page.evaluate("window.lab.read().head") == 1, "a kept head stays while others are pointed at"
    page.locator("#overview").focus()
    page.keyboard.press("Escape")
    page.ready()
    page.locator("#overview canvas").hover(position={"x": 45, "y": 35})
    page.ready()
    read = page.evaluate("window.lab.read()")
    assert (read["attention"], read["head"], read["kept"]) == (0, 0, False)


def test_hidden_tokens_are_counted(open_lab, lab):
    page = open_lab(f"{PLACE}&lang=en&hide=1")
    capture = lab.capture(ASK, Job())
    special = capture.special("source")
    weights = capture.attentions[1].weights(2)
    words = [n for n in range(len(weights)) if n not in special]
    removed = float(weights[words][:, special].sum() / weights[words].sum())
    assert special and f"{100 * removed:.1f} %" in page.locator("#hidden-mass").inner_text()
    assert "less than 1" in page.locator(".orientation").inner_text()
    page.check("text=renormalise rows to sum to 1")
    assert abs(page.evaluate("window.lab.cell(2, 0).rowSum") - 1) < 1e-5


def test_fewer_key_heads_and_masked_cells_are_told(open_lab, lab):
    page = open_lab(f"heads?model=llama&text={TEXT}&attention=0&head=3&query=3&lang=en")
    assert "key/value head 1" in page.locator(".headline").inner_text()
    wanted = lab.capture({"model": "llama", "input": {"text": TEXT}}, Job()).attentions[0].weights(3)
    assert page.evaluate("window.lab.cell(3, 5)")["masked"] is True
    assert abs(page.evaluate("window.lab.cell(5, 3)")["value"] - float(wanted[5, 3])) < 1e-6
    assert "masked" in page.locator(".legend").inner_text()


def test_144_heads_of_64_tokens_are_drawn_in_time(open_lab):
    words = "one two three four five six seven eight " * 8
    page = open_lab(f"heads?model=large&text={' '.join(words.split()[:62])}")
    read = page.evaluate("window.lab.read()")
    assert read["thumbs"] == 144 and read["overviewDrawn"] <= 1500
    assert page.evaluate("window.lab.part('map').rows") == 64
    assert read["received"] < 2_000_000 and "sent" in page.locator("#cost").inner_text()


def test_one_head_of_512_tokens_is_drawn_in_time(open_lab, lab):
    words = " ".join(("one two three four five six seven eight " * 64).split()[:510])
    page = open_lab(f"heads?model=bert&attention=1&head=3&text={words}")
    read = page.evaluate("window.lab.part('map')")
    assert read["rows"] == read["columns"] == 512 and read["painted"] <= 1000
    wanted = lab.capture({"model": "bert", "input": {"text": words}}, Job()).attentions[1].weights(3)
    assert abs(page.evaluate("window.lab.cell(500, 17)")["value"] - float(wanted[500, 17])) < 1e-6


def test_files_hold_the_same_numbers(open_lab, lab, tmp_path):
    numpy = pytest.importorskip("numpy")
    page = open_lab(PLACE)
    wanted = lab.capture(ASK, Job()).attentions[1].weights(2).float().numpy()
    found = {}
    for kind in ("NPZ", "CSV", "SVG", "PNG"):
        with page.expect_download() as download:
            page.click(f".map .files >> text={kind}")
        found[kind] = tmp_path / download.value.suggested_filename
        download.value.save_as(found[kind])
    with numpy.load(found["NPZ"]) as held:
        assert numpy.array_equal(held["values"], wanted)
    rows = found["CSV"].read_text("utf-8-sig").splitlines()
    assert abs(float(rows[3].rsplit(",", 1)[1]) - wanted[2, -1]) < 1e-7 and len(rows) == len(wanted) + 1
    assert found["SVG"].read_text().count("<rect") > wanted.size
    assert found["PNG"].read_bytes().startswith(b"\x89PNG") and found["PNG"].stat().st_size > 5000


def test_thumbnails_know_what_is_masked(lab):
    ask = {"model": "llama", "input": {"text": TEXT}}
    found = overview(lab, ask, Job())
    allowed = torch.ones_like(found["maps"][0], dtype=torch.bool).tril()
    assert torch.equal(found["masked"][0], ~allowed)
    long = overview(lab, {"model": "llama", "input": {"text": TEXT * 8}}, Job())
    assert long["maps"][0].shape[1:] == (64, 64) and long["masked"][0][0, 0, 63] and not long["masked"][0][0, 63, 63]
    assert overview(lab, ASK, Job())["masked"] == [None, None]
