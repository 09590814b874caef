"""Pictures of views and masks say what the tensors say: their numbers are read back and compared."""

import base64
import importlib
import json
import re
import subprocess
import sys
import warnings
from xml.etree import ElementTree

import pytest
import torch
from matplotlib import font_manager
from matplotlib.figure import Figure

import regard as rg
from regard.plots import figures as draw
from regard.plots import page

ENGLISH = ["The", "animal", "was", "too", "tired"]
CHINESE = ["那只", "动物", "因为", "十字路口", "疲倦"]
HOSTILE = ["</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "$\\frac$", "{{data}}", "a&b\"c'"]
TYPES = {"float32": torch.float32, "float64": torch.float64, "int32": torch.int32}


def view_of(queries=5, keys=5, heads=3, batch=2, dtype=torch.float32, **options):
    q, k = torch.randn(batch, heads, queries, 8, dtype=dtype), torch.randn(batch, heads, keys, 8, dtype=dtype)
    return rg.look(2 * q, k, **options)


def data_of(html):
    """What the page's script reads."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)[1])


def decode(held):
    raw = bytearray(base64.b64decode(held["bytes"]))
    if held["type"] != "bits":
        return torch.frombuffer(raw, dtype=TYPES[held["type"]]).view(held["shape"])
    bits = torch.tensor(raw)[:, None].bitwise_right_shift(torch.arange(8)) & 1
    return bits.flatten()[: torch.Size(held["shape"]).numel()].bool().view(held["shape"])


def texts(figure):
    """Everything that is written on a figure, line breaks as spaces."""
    found = figure.findobj(match=lambda artist: hasattr(artist, "get_text"))
    return [artist.get_text().replace("\n", " ") for artist in found]


def image_of(figure, n=0):
    return figure.axes[n].images[0].get_array()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (1, 1), (3, 11), (53, 7)])
def test_the_page_holds_the_tensors_bits(queries, keys, dtype):
    view = view_of(queries, keys, dtype=dtype, mask=rg.Causal(), weights=True)
    data = data_of(page.view_html(view, batch=1))
    assert torch.equal(decode(data["cells"]), view.weights[1])
    assert torch.equal(decode(data["masked"])[0], ~rg.Causal().dense(queries, keys))
    for name in ("entropy", "distance", "peak", "received"):
        assert torch.equal(decode(data[name]), getattr(view, name)[1])


def test_the_page_holds_a_mask_by_batch_and_head():
    allowed = torch.rand(2, 3, 5, 5) > 0.4
    view = view_of(mask=rg.Pairs(allowed), weights=True)
    assert torch.equal(decode(data_of(page.view_html(view, batch=1))["masked"]), ~allowed[1])
    assert torch.equal(decode(data_of(page.view_html(view, batch=1, head=2))["masked"]), ~allowed[1, 2:])
    view = view_of(mask=rg.Lengths(torch.tensor([2, 5])), weights=True)
    assert decode(data_of(page.view_html(view))["masked"])[0, 0].tolist() == [False, False, True, True, True]


@pytest.mark.parametrize("size", [(4, 4), (3, 5), (12, 12), (13, 2)])
def test_a_pooled_page_says_which_cells_are_masked(size):
    view = view_of(12, 12, mask=rg.Causal() & rg.Window(3), map=size)
    data = data_of(page.view_html(view))
    assert data["kind"] == "map" and torch.equal(decode(data["cells"]), view.map[0])
    allowed, (rows, columns) = view.mask.dense(12, 12), size
    for r, c in torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).tolist():
        pairs = allowed[r * 12 // rows : (r + 1) * 12 // rows, c * 12 // columns : (c + 1) * 12 // columns]
        assert decode(data["masked"])[0, r, c] == (not pairs.any())


def test_a_long_map_asks_tiles_or_says_that_it_does_not_know(monkeypatch):
    monkeypatch.setattr(page, "FEW_PAIRS", 0)
    view = view_of(12, 12, mask=rg.Causal(), map=(4, 4))
    assert torch.equal(page.masked_cells(view, 0, [0])[0], torch.ones(4, 4).triu(1).bool())
    view = view_of(12, 12, mask=rg.Causal(), map=(5, 5))
    assert page.masked_cells(view, 0, [0]) is None
    assert data_of(page.view_html(view))["masked"] is None
    assert any("masked cells are not marked" in text for text in texts(draw.draw_view(view)))


def test_statistics_of_a_map_are_means_of_buckets():
    view = view_of(12, 12, map=(4, 4))
    assert torch.allclose(
        decode(data_of(page.view_html(view))["entropy"]), view.entropy[0].unflatten(-1, (4, 3)).mean(-1)
    )


def test_a_page_without_weights_holds_curves_and_top_keys():
    view = view_of(mask=rg.Causal(), top=3)
    data = data_of(page.view_html(view))
    assert data["kind"] == "curves" and data["cells"] is None
    assert torch.equal(decode(data["top"]["keys"]), view.top_keys[0].int())
    assert torch.equal(decode(data["top"]["weights"]), view.top_weights[0])


def test_the_page_is_alone_and_its_words_are_harmless():
    html = page.view_html(view_of(weights=True), queries=HOSTILE, keys=HOSTILE, title="<b>{{data}}</b>")
    assert data_of(html)["words"] == {"queries": HOSTILE, "keys": HOSTILE}
    assert html.count("<script") == 2 and "<img" not in html and "<b>" not in html
    assert not re.search(r"https?:|//cdn|@import|url\(|<link rel=.stylesheet", html)
    assert "default-src 'none'" in html


def test_words_that_cannot_be_seen_get_a_sign():
    words = ["\n", " ", "\t", "\ud800", "a\x00b"]
    view = view_of(weights=True)
    assert data_of(page.view_html(view, keys=words))["words"]["keys"] == ["↵", "␣", "⇥", "\ufffd", "a\ufffdb"]
    page.view_html(view, keys=words).encode("utf-8")


def test_both_languages_say_everything():
    script = page.view_html(view_of(weights=True)).split("const TEXT = {")[1].split("const TICKS")[0]
    english, chinese = (re.findall(r"\b(\w+): (?:\"|\(|\w+ =>|\{|s =>)", part) for part in script.split("\n  zh: {"))
    assert english[1:] == chinese and len(chinese) > 30


def test_a_notebook_gets_a_frame_or_a_sentence(monkeypatch):
    view = view_of(weights=True)
    assert page.notebook_html(view, queries=ENGLISH).startswith('<iframe sandbox="allow-scripts"')
    assert view._repr_html_().count("<iframe") == 1
    monkeypatch.setattr(page, "NOTEBOOK_NUMBERS", 10)
    assert "75 numbers are too many" in page.notebook_html(view)
    assert "<iframe" not in page.notebook_html(rg.look(torch.ones(1, 1, 0, 4), torch.ones(1, 1, 3, 4)))


def test_a_page_has_a_limit(monkeypatch):
    monkeypatch.setattr(page, "PAGE_NUMBERS", 30)
    view = view_of(weights=True)
    with pytest.raises(rg.TooLarge, match=r"75 numbers; it can hold 30.*head="):
        page.view_html(view)
    page.view_html(view, head=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"queries": ["a", "b"]}, "queries has 2 words; there are 5 queries. Give one word for each"),
        ({"keys": ENGLISH * 2}, "keys has 10 words; there are 5 keys"),
        ({"keys": "hello"}, "keys is the text 'hello'; it must be a list of 5 words"),
        ({"head": 3}, "head is 3; there are 3, so it must be a whole number from 0 to 2"),
        ({"head": -1}, "head is -1"),
        ({"head": True}, "head is True"),
        ({"batch": 2}, "batch is 2; there are 2"),
        ({"batch": 0.0}, "batch is 0.0"),
    ],
)
@pytest.mark.parametrize("make", [draw.draw_view, page.view_html])
def test_what_does_not_fit_is_said(make, options, message):
    with pytest.raises(rg.BadInput, match=re.escape(message)):
        make(view_of(weights=True), **options)


def test_nothing_cannot_be_drawn():
    with pytest.raises(rg.BadInput, match="nothing to draw"):
        draw.draw_view(rg.look(torch.ones(1, 1, 0, 4), torch.ones(1, 1, 3, 4)))


def test_the_image_is_the_tensor_and_masked_cells_are_hatched():
    view = view_of(mask=rg.Causal(), weights=True)
    figure = draw.draw_view(view, batch=1)
    assert isinstance(figure, Figure)
    for head in range(3):
        held = image_of(figure, head)
        assert torch.equal(torch.from_numpy(held.data), view.weights[1, head])
        assert torch.equal(torch.from_numpy(held.mask), ~rg.Causal().dense(5, 5))
        assert figure.axes[head].patch.get_hatch()
    norm = figure.axes[0].images[0].norm
    assert (norm.vmin, norm.vmax) == (0.0, 1.0)


def test_nothing_masked_needs_no_swatch():
    assert not any("masked" in text for text in texts(draw.draw_view(view_of(weights=True))))
    assert "masked: may not look" in texts(draw.draw_view(view_of(weights=True, mask=rg.Causal())))


def test_a_figure_of_one_head_writes_its_numbers():
    view = view_of(weights=True, mask=rg.Causal())
    found = texts(draw.draw_view(view, head=1))
    assert "head 1" in found and "head 0" not in found
    numbers = sorted(text for text in found if re.fullmatch(r"\d\.\d\d", text) and text not in ("0.01", "0.05", "0.25"))
    wanted = [f"{w:.2f}" for w in view.weights[0, 1][rg.Causal().dense(5, 5)].tolist()]
    assert numbers == sorted(w for w in wanted if w not in ("0.01", "0.05", "0.25"))


def test_the_figure_says_how_to_read_it():
    view = view_of(mask=rg.Lengths(torch.tensor([5, 5]), torch.tensor([3, 5])), weights=True)
    written = " | ".join(texts(draw.draw_view(view)))
    assert "rows: queries (who looks) · columns: keys (looked at) · each row sums to 1 (measured 1.000000 …" in written
    assert "2 rows may look at nothing" in written
    assert "not why the model answered" in written
    assert "weight, 0 … 1 · colour: √ weight" in written
    assert "nothing" not in " | ".join(texts(draw.draw_view(view, batch=1)))


def test_many_heads_are_counted():
    figure = draw.draw_view(view_of(heads=20, weights=True))
    assert any("16 of 20 heads" in text for text in texts(figure))
    assert sum(bool(axes.images) for axes in figure.axes) == 16


def test_rows_that_stand_elsewhere_are_explained():
    assert any("row r stands at place i = r + 6" in text for text in texts(draw.draw_view(view_of(3, 9, weights=True))))


def test_words_stand_on_the_axes_and_long_chinese_ones_upright():
    figure = draw.draw_view(view_of(weights=True), queries=ENGLISH, keys=CHINESE)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ENGLISH
    labels = figure.axes[2].get_xticklabels()
    assert [label.get_text().replace("\n", "") for label in labels] == CHINESE
    assert {label.get_rotation() for label in labels} == {0.0}


def test_hostile_words_are_drawn_as_they_are(tmp_path):
    figure = draw.draw_view(view_of(weights=True), queries=HOSTILE, keys=HOSTILE, title="$\\bad{")
    ElementTree.parse(draw.save_figure(figure, tmp_path / "x.svg"))
    assert "$\\frac$" in texts(figure)


@pytest.mark.parametrize("count", [65, 300])
def test_many_labels_are_thinned(count):
    figure = draw.draw_view(view_of(count, count, heads=1, batch=1, weights=True), keys=[f"w{n}" for n in range(count)])
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert 5 <= len(labels) <= 64 and labels[0] == "w0"
    places = figure.axes[0].get_xticks()
    assert labels == [f"w{int(place)}" for place in places]


def test_buckets_are_named_by_their_ends():
    figure = draw.draw_view(view_of(10, 10, heads=1, map=(4, 3)), queries=list("abcdefghij"))
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["a–b", "c–e", "f–g", "h–j"]
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["0–2", "3–5", "6–9"]
    assert any("pooled" in text for text in texts(figure))


def test_without_weights_the_statistics_are_drawn():
    view = view_of(mask=rg.Causal())
    figure = draw.draw_view(view, queries=ENGLISH)
    for axes, name in zip(figure.axes, ("entropy", "distance", "peak", "received"), strict=True):
        for head, line in enumerate(axes.lines):
            assert torch.equal(torch.as_tensor(line.get_ydata()), getattr(view, name)[0, head])


def test_long_curves_are_means_and_say_so():
    view = view_of(300, 300, heads=1)
    figure = draw.draw_view(view)
    assert figure.axes[0].get_title().endswith("means of 3")
    line = figure.axes[0].lines[0]
    assert torch.allclose(torch.as_tensor(line.get_ydata()), view.entropy[0, 0].unflatten(0, (100, 3)).mean(-1))
    assert line.get_xdata()[:2].tolist() == [1.0, 4.0]


def test_an_svg_keeps_chinese_as_text(tmp_path):
    path = draw.save_figure(draw.draw_view(view_of(weights=True), keys=CHINESE, title="动物"), tmp_path / "x.svg")
    written = path.read_text(encoding="utf-8")
    assert "动物" in written and "疲" in written


def test_a_picture_of_chinese_needs_a_font_and_says_which(tmp_path, monkeypatch):
    monkeypatch.setattr(draw, "cjk_font", lambda: None)
    figure = draw.draw_view(view_of(weights=True), keys=CHINESE)
    with pytest.warns(UserWarning, match="fonts-wqy-zenhei") as caught:
        draw.save_figure(figure, tmp_path / "x.png")
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw.save_figure(figure, tmp_path / "x.svg")


def test_an_installed_chinese_font_is_found_and_used(tmp_path, chinese_font, caplog):
    figure = draw.draw_view(view_of(weights=True), keys=CHINESE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw.save_figure(figure, tmp_path / "x.png")
    assert draw.cjk_font() in figure.axes[0].get_xticklabels()[0].get_family()
    assert not caplog.records


def test_a_font_newer_than_matplotlibs_list_is_found(monkeypatch, chinese_font):
    known = [font for font in font_manager.fontManager.ttflist if font.name not in draw.CJK_FONTS]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", known)
    assert draw.known_font() is None
    assert draw.cjk_font() in draw.CJK_FONTS


@pytest.mark.parametrize("suffix", [".html", ".png", ".svg"])
@pytest.mark.parametrize("options", [{"weights": True}, {"map": (2, 2)}, {}])
def test_files_are_written(tmp_path, suffix, options):
    view_of(**options).save(tmp_path / f"x{suffix}", keys=ENGLISH)
    start = {".html": b"<!doctype html>", ".png": b"\x89PNG", ".svg": b"<?xml"}[suffix]
    assert (tmp_path / f"x{suffix}").read_bytes().startswith(start)


def test_a_notebook_shows_a_figure_by_itself():
    assert draw.draw_view(view_of(weights=True), head=0)._repr_png_().startswith(b"\x89PNG")


def test_without_matplotlib_the_install_line_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "regard.plots.figures")
    with pytest.raises(rg.Missing, match=re.escape('pip install "regard[figures]"')):
        importlib.import_module("regard.plots.figures")


def test_a_mask_is_drawn_pair_by_pair():
    mask = rg.Window(1, 2) | rg.Global(1)
    figure = mask.plot(7, 9)
    held = image_of(figure)
    assert torch.equal(torch.from_numpy(~held.mask), mask.dense(7, 9)) and set(held.compressed()) == {2}
    assert figure.axes[0].patch.get_hatch()
    written = texts(figure)
    assert repr(mask) in written
    assert f"i may look at j where {mask.formula} {int(mask.dense(7, 9).sum())} of 63 pairs are allowed" in written
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == [str(i) for i in range(2, 9)]


def test_a_mask_is_drawn_with_words():
    figure = rg.Causal().plot(ENGLISH, CHINESE, title="who looks")
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ENGLISH
    assert [label.get_text().replace("\n", "") for label in figure.axes[0].get_xticklabels()] == CHINESE
    assert "who looks" in texts(figure)
    same = rg.Causal().plot(ENGLISH)
    assert [label.get_text() for label in same.axes[0].get_xticklabels()] == ENGLISH


def test_a_mask_is_drawn_for_a_batch_and_a_head():
    allowed = torch.rand(2, 3, 4, 4) > 0.5
    held = image_of(rg.Pairs(allowed).plot(4, batch=1, head=2))
    assert torch.equal(torch.from_numpy(~held.mask), allowed[1, 2])
    with pytest.raises(rg.BadInput, match="head is 3; there are 3"):
        rg.Pairs(allowed).plot(4, head=3)


@pytest.mark.parametrize(("queries", "keys", "tile"), [(1000, 1000, 4), (700, 513, 3)])
def test_a_large_mask_is_drawn_by_tiles(queries, keys, tile):
    mask = rg.Causal() & rg.Window(100)
    figure = mask.plot(queries, keys)
    held = image_of(figure)
    dense = mask.dense(queries, keys)
    for row, column in ((0, 0), (100, 20), (100, 100), (held.shape[0] - 1, held.shape[1] - 1)):
        pairs = dense[row * tile : (row + 1) * tile, column * tile : (column + 1) * tile]
        assert held.data[row, column] == (2 if pairs.all() else 1 if pairs.any() else 0)
    first = keys - queries
    assert figure.axes[0].get_yticklabels()[0].get_text() == f"{first}–{first + tile - 1}"
    assert {"all allowed", "some, or not known", "none allowed"} <= set(texts(figure))


def test_a_mask_of_a_hundred_thousand_tokens_is_drawn():
    figure = ((rg.Causal() & rg.Window(512)) | rg.Global(4)).plot(100_000)
    assert max(image_of(figure).shape) <= 256


@pytest.mark.parametrize(
    ("mask", "queries", "message"),
    [
        (rg.Pairs(torch.ones(4, 4, dtype=torch.bool)), 5, "does not fit 5 queries and 5 keys"),
        (rg.Causal(), "words", "queries is the text 'words'"),
        (rg.Causal(), 0, "queries is 0; a picture needs at least one"),
        (rg.Causal(), [], "at least one"),
    ],
)
def test_a_mask_that_cannot_be_drawn_is_refused(mask, queries, message):
    with pytest.raises(rg.BadInput, match=message):
        mask.plot(queries)


DRIVER = """
<script>
{
  const map = document.getElementById("map"), buttons = [...document.querySelectorAll("#heads button")];
  const press = key => map.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  const words = id => document.getElementById(id).textContent, seen = { cells: [], errors: [] };
  window.onerror = message => seen.errors.push(message);
  regard.state.row = regard.state.column = 0;
  for (let row = 0; row < 5; row++, press("ArrowDown")) {
    press("Home");
    for (let column = 0; column < 5; column++, press("ArrowRight")) {
      seen.cells.push(document.querySelector(".weight").textContent);
    }
  }
  Object.assign(regard.state, { row: 2, column: 1 });
  press("Enter"), seen.locked = regard.state.locked;
  press("Escape"), seen.unlocked = !regard.state.locked;
  press("]"), seen.head = regard.state.head, seen.spoken = words("spoken");
  press("["), press("["), seen.around = regard.state.head;
  seen.pressed = buttons.map(button => button.getAttribute("aria-pressed"));
  buttons[0].click();
  const edge = map.getBoundingClientRect();
  map.dispatchEvent(new MouseEvent("click", { clientX: edge.right - 60, clientY: edge.bottom - 10, bubbles: true }));
  seen.clicked = [regard.state.row, regard.state.locked];
  for (const id of ["readout", "orientation", "legend"]) seen[id] = words(id);
  document.getElementById("language").click();
  seen.other = words("honest"), seen.lang = document.documentElement.lang, seen.focusable = map.tabIndex === 0;
  document.title = "done " + btoa(unescape(encodeURIComponent(JSON.stringify(seen))));
}
</script>
"""


def open_page(chromium, html, folder):
    """The document after a browser has run the page; fails when the page complained."""
    path = folder / "x.html"
    path.write_text(html, encoding="utf-8")
    flags = "--headless --no-sandbox --disable-gpu --accept-lang=en-US --enable-logging=stderr --window-size=1200,900"
    command = [chromium, *flags.split(), f"--user-data-dir={folder}/profile", "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=120, check=True)
    assert "CONSOLE" not in done.stderr, done.stderr
    return done.stdout


def test_the_page_in_a_browser_shows_the_tensors_numbers(chromium, tmp_path):
    view = view_of(mask=rg.Causal(), weights=True)
    html = page.view_html(view, queries=ENGLISH, keys=[*HOSTILE[:4], "猫"])
    document = open_page(chromium, html.replace("</body>", DRIVER + "</body>"), tmp_path)
    seen = json.loads(base64.b64decode(re.search("<title>done ([A-Za-z0-9+/=]+)</title>", document)[1]))
    allowed = rg.Causal().dense(5, 5).flatten().tolist()
    for text, weight, may in zip(seen["cells"], view.weights[0, 0].flatten().tolist(), allowed, strict=True):
        assert torch.tensor(float(text)).item() == weight if may else text.startswith("masked")
    assert seen["locked"] and seen["unlocked"] and seen["clicked"][1] and seen["focusable"] and not seen["errors"]
    assert seen["head"] == 1 and seen["around"] == 2 and seen["pressed"] == ["false", "false", "true"]
    assert seen["spoken"].startswith("head 1: was → <img src=x onerror=alert(1)>, weight 0.")
    assert "each row sums to 1 (this head: 1.000000 …" in seen["orientation"]
    assert "0 … 1" in seen["legend"] and "√ weight" in seen["legend"] and "masked" in seen["legend"]
    assert seen["other"] == "图中是每个头看向哪里，而不是模型为何这样回答。" and seen["lang"] == "zh-CN"
    assert seen["clicked"][0] == 4 and seen["readout"].startswith("tired")


@pytest.mark.parametrize(
    ("options", "row"),
    [({"map": (4, 4)}, lambda x: x[0, 0].unflatten(-1, (4, 3)).mean(-1)[2]), ({"top": 2}, lambda x: x[0, 0, 6])],
)
def test_pages_without_weights_work_in_a_browser(chromium, tmp_path, options, row):
    view = view_of(12, 12, mask=rg.Causal(), **options)
    document = open_page(chromium, page.view_html(view), tmp_path)
    for name, label in (("entropy", "entropy (nats)"), ("peak", "largest weight")):
        shown = re.search(rf"<dt>{re.escape(label)}[^<]*</dt><dd>([^<]*)</dd>", document)[1]
        assert float(shown) == pytest.approx(row(getattr(view, name)).item(), rel=1e-6)
