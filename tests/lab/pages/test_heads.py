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
    assert "1.000" in page.locator(".row-sum").inner_text()
    assert abs(float(page.locator(".row-sum").get_attribute("title")) - 1) < 1e-6


def test_a_cell_is_explained_with_its_scores(open_lab, lab):
    page = open_lab(PLACE)
    attention = lab.capture(ASK, Job()).attentions[1]
    stages, weights = attention.stages(2, (4, 5), (0, attention.keys))
    page.wait_for_selector(".readout dt >> text=similarity")
    key = page.evaluate("window.lab.part('map').column")
    wanted = [weights, stages.raw, stages.scaled, stages.score, attention.value_norms(2, (4, 5))]
    for shown, tensor in zip(page.locator(".readout dd").all(), wanted, strict=True):
        exact, short = (float(words.replace("−", "-")) for words in (shown.get_attribute("title"), shown.inner_text()))
        assert abs(exact - float(tensor[0, key])) < 1e-6
        assert abs(short - exact) <= 0.006 * abs(exact) and len(shown.inner_text()) <= 7


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
        page.ready()
        read = page.evaluate("window.lab.part('map')")
        assert (read["row"], read["column"]) == (row, column % read["columns"])
    page.keyboard.press("Enter")
    page.ready()
    assert page.evaluate("window.lab.part('map').pinned") == 0
    page.keyboard.press("Escape")
    page.ready()
    assert page.evaluate("window.lab.part('map').pinned") is None
    active = page.locator(f"#{grid.get_attribute('aria-activedescendant')}")
    assert "→" in active.inner_text() and active.get_attribute("aria-colindex") == str(read["columns"])
    assert active.inner_text() in page.locator("#spoken").inner_text()


def test_heads_are_previewed_kept_and_stepped_through(open_lab):
    page = open_lab(f"heads?model=bert&text={TEXT}&lang=en&attention=1")
    assert page.evaluate("window.lab.read().kept") is False
    page.locator("#overview").focus()
    page.keyboard.press("ArrowRight")
    page.ready()
    page.keyboard.press("Enter")
    page.ready()
    read = page.evaluate("window.lab.read()")
    assert (read["kept"], read["head"], read["attention"]) == (True, 1, 1) and "head=1" in page.address()
    page.locator("#overview canvas").hover(position={"x": 76, "y": 30})
    page.ready()
    assert page.evaluate("window.lab.read().head") == 1, "a kept head stays while others are pointed at"
    page.locator("#overview").focus()
    page.keyboard.press("Escape")
    page.ready()
    page.locator("#overview canvas").hover(position={"x": 80, "y": 35})
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
    page.ready()
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
    assert read["received"] < 2_000_000 and "sent" in page.locator("#cost").text_content()


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
            page.click(".map .files-open")
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


def test_brushed_tokens_restrict_map_and_lines(open_lab, lab):
    page = open_lab(PLACE)
    weights = lab.capture(ASK, Job()).attentions[1].weights(2)
    tokens = page.locator(".strip .token")
    names = [words.split("\n")[0] for words in tokens.all_inner_texts()]
    start, end = (tokens.nth(n).bounding_box() for n in (3, 7))
    page.mouse.move(start["x"] + 5, start["y"] + 5)
    page.mouse.down()
    page.mouse.move(end["x"] + 5, end["y"] + 5, steps=4)
    page.mouse.up()
    page.ready()
    assert page.evaluate("window.lab.part('map')")["rows"] == page.evaluate("window.lab.part('map')")["columns"] == 5
    assert page.locator("svg .token.pick").count() == 5 and page.locator(".strip .token").count() == len(names)
    assert page.locator(".strip .token.outside").count() == len(names) - 5
    cell = page.evaluate("window.lab.cell(1, 2)")
    assert (cell["row"], cell["column"]) == (names[4], names[5])
    assert abs(cell["value"] - float(weights[4, 5])) < 1e-6
    outside = float(1 - weights[3:8, 3:8].sum() / weights[3:8].sum())
    assert f"{100 * outside:.1f} %" in page.inner_text(".head-options") and "range=source.3.7" in page.address()
    page.click("text=Show all tokens")
    page.ready()
    assert page.evaluate("window.lab.part('map').rows") == len(names) and "range=" not in page.address()
    page.locator(".strip .token").nth(2).focus()
    page.keyboard.press("Shift+ArrowRight")
    page.ready()
    assert page.evaluate("window.lab.part('map').rows") == 2
    page.keyboard.press("Escape")
    page.ready()
    assert page.evaluate("window.lab.part('map').rows") == len(names)


def test_the_line_above_the_picture_is_measured(open_lab, lab):
    page = open_lab(PLACE)
    row = lab.capture(ASK, Job()).attentions[1].weights(2)[4]
    names = [words.split("\n")[0] for words in page.locator(".strip .token").all_inner_texts()]
    words = page.inner_text(".look-here")
    assert (
        int(row.argmax()) != 4
        and f"{100 * float(row.max()):.1f} %" in words
        and f"“{names[int(row.argmax())]}”" in words
    )
    assert "head 2 of layer 1" in words
    page.locator("svg .token.pick").nth(6).click()
    page.ready()
    assert page.inner_text(".look-here") != words and f"“{names[6]}”" in page.inner_text(".look-here")
    page = open_lab("heads?model=meanings&text=猫 坐在 垫子&head=0&query=0&lang=en")
    assert page.inner_text(".look-here").startswith("Look here: “猫” keeps 80.3 % of its weight for itself")


def test_a_token_under_the_pointer_is_lit_everywhere(open_lab):
    page = open_lab(PLACE)
    page.locator("svg .token.key").nth(6).hover()
    page.ready()
    assert page.locator(".strip .token.hover").count() == 1
    assert page.locator("svg .token.hover").count() == 2  # as a query and as a key
    shown = page.locator(".strip .token.hover").inner_text().split("\n")[0]
    assert set(page.locator("svg .token.hover text").all_text_contents()) == {shown}
    page.mouse.move(0, 0)
    page.ready()
    assert page.locator(".hover").count() == 0


def test_heads_are_counted_from_zero_everywhere(open_lab):
    page = open_lab(PLACE)
    assert "head 2" in page.inner_text(".headline h2") and "head 2 of" in page.inner_text(".look-here")
    assert "head 2" in page.inner_text("#overview [role=gridcell]") and "head=2" in page.address()
    assert "head 2:" in page.locator(".dot.here").first.get_attribute("aria-label")
    rows = page.locator(".fold tbody tr").all_text_contents()
    assert rows[0].startswith("layer 0 · self-attention0") and rows[6].startswith("layer 1 · self-attention2")


def test_the_roles_of_heads_are_shown_and_filter_the_grid(open_lab):
    page = open_lab(f"heads?model=tagger&text={TEXT}&attention=2&head=2")
    page.wait_for_selector(".head-finder .role-chips [data-role]:nth-child(2)")
    roles = {(one["attention"], one["head"]): one["label"] for one in page.evaluate("window.lab.part('roles')")}
    listed = page.locator(".finder tbody tr")
    assert listed.count() == len(roles) == 12
    chip = page.locator(".role-chips [data-role]").nth(1)
    role = chip.get_attribute("data-role")
    chip.click()
    page.ready()
    assert listed.count() == sum(label == role for label in roles.values()) and f"role={role}" in page.address()
    page.locator(".finder tbody button").first.click()
    page.ready()
    read = page.evaluate("window.lab.read()")
    assert read["kept"] and roles[read["attention"], read["head"]] == role
    assert page.inner_text(".headline .role") == chip.inner_text().rsplit(" ", 1)[0]


def test_a_click_changes_the_pictures_within_100_milliseconds(open_lab):
    page = open_lab(PLACE)
    script = """selector => [...document.querySelectorAll(selector)].slice(0, 9).map(one => {
      const started = performance.now();
      one.dispatchEvent(new MouseEvent("click", { bubbles: true }));
      return performance.now() - started;
    }).sort((a, b) => a - b)"""
    for selector in (".strip .token", "svg .token.pick"):
        before = page.evaluate("window.lab.part('map').row")
        times = page.evaluate(script, selector)
        assert times[0] < 100, times  # the fastest: a busy machine delays the others
        assert page.evaluate("window.lab.part('map').row") != before
        page.locator(selector).nth(4).click()


@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_pictures_ease_unless_motion_is_to_be_reduced(open_lab, motion):
    page = open_lab(PLACE, motion=motion)
    script = """async () => {
      const canvas = document.querySelector(".map canvas"), shown = () => canvas.toDataURL();
      document.querySelector("[aria-label='Next head']").click();
      while (window.lab.part("head").head !== 3) await new Promise(requestAnimationFrame);
      const first = shown(), moving = document.getAnimations().length;
      await new Promise(done => setTimeout(done, 400));
      return [first !== shown(), moving > 0];
    }"""
    assert page.evaluate(script) == [motion == "no-preference"] * 2


def test_lines_and_their_weights_are_shown_whole(open_lab):
    page = open_lab("heads?model=tagger&lang=en")
    for width in (1190, 1280, 1440):
        page.set_viewport_size({"width": width, "height": 900})
        page.ready()
        seen, whole = page.locator(".lines-scroll").first.evaluate("node => [node.clientWidth, node.scrollWidth]")
        assert whole <= seen, f"{whole} px of lines stand in {seen} px at {width} px"
