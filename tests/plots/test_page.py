"""Pages hold the bits of the tensors: they are read back and compared."""

import base64
import json
import re
import subprocess

import pytest
import torch

import regard as rg
from regard.attention import plotting
from regard.plots import page

from .test_figures import texts
from .views import ENGLISH, HOSTILE, view_of

TYPES = {"float32": torch.float32, "float64": torch.float64, "int32": torch.int32}


def html_of(view, title=None, **options):
    return page.heads_html(plotting.view_arrays(view, **options), title)


def data_of(html):
    """What the page's script reads."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)[1])


def decode(held):
    raw = bytearray(base64.b64decode(held["bytes"]))
    if held["type"] != "bits":
        return torch.frombuffer(raw, dtype=TYPES[held["type"]]).view(held["shape"])
    bits = torch.tensor(raw)[:, None].bitwise_right_shift(torch.arange(8)) & 1
    return bits.flatten()[: torch.Size(held["shape"]).numel()].bool().view(held["shape"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (1, 1), (3, 11), (53, 7)])
def test_page_holds_the_bits_of_the_tensors(queries, keys, dtype):
    view = view_of(queries, keys, dtype=dtype, mask=rg.Causal(), weights=True)
    data = data_of(html_of(view, batch=1))
    assert torch.equal(decode(data["cells"]), view.weights[1])
    assert torch.equal(decode(data["masked"])[0], ~rg.Causal().dense(queries, keys))
    for name in ("entropy", "distance", "peak", "received"):
        assert torch.equal(decode(data[name]), getattr(view, name)[1])


def test_page_holds_masked_cells_by_batch_and_head():
    allowed = torch.rand(2, 3, 5, 5) > 0.4
    view = view_of(mask=rg.Pairs(allowed), weights=True)
    assert torch.equal(decode(data_of(html_of(view, batch=1))["masked"]), ~allowed[1])
    assert torch.equal(decode(data_of(html_of(view, batch=1, head=2))["masked"]), ~allowed[1, 2:])
    view = view_of(mask=rg.Lengths(torch.tensor([2, 5])), weights=True)
    assert decode(data_of(html_of(view))["masked"])[0, 0].tolist() == [False, False, True, True, True]


@pytest.mark.parametrize("size", [(4, 4), (3, 5), (12, 12), (13, 2)])
def test_page_of_a_map_marks_masked_cells(size):
    view = view_of(12, 12, mask=rg.Causal() & rg.Window(3), map=size)
    data = data_of(html_of(view))
    assert data["content"] == "map" and torch.equal(decode(data["cells"]), view.map[0])
    allowed, (rows, columns) = view.mask.dense(12, 12), size
    for r, c in torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).tolist():
        pairs = allowed[r * 12 // rows : (r + 1) * 12 // rows, c * 12 // columns : (c + 1) * 12 // columns]
        assert decode(data["masked"])[0, r, c] == (not pairs.any())


def test_masked_cells_of_a_large_map_come_from_tiles_or_are_unknown(monkeypatch):
    monkeypatch.setattr(plotting, "DENSE_PAIRS", 0)
    view = view_of(12, 12, mask=rg.Causal(), map=(4, 4))
    assert torch.equal(plotting.masked_cells(view, 0, [0])[0], torch.ones(4, 4).triu(1).bool())
    view = view_of(12, 12, mask=rg.Causal(), map=(5, 5))
    assert plotting.masked_cells(view, 0, [0]) is None
    assert data_of(html_of(view))["masked"] is None
    assert any("masked cells are not marked" in text for text in texts(view.plot()))


def test_statistics_of_a_map_are_bucket_means():
    view = view_of(12, 12, map=(4, 4))
    assert torch.allclose(decode(data_of(html_of(view))["entropy"]), view.entropy[0].unflatten(-1, (4, 3)).mean(-1))


def test_page_without_weights_holds_curves_and_top_keys():
    view = view_of(mask=rg.Causal(), top=3)
    data = data_of(html_of(view))
    assert data["content"] == "curves" and data["cells"] is None
    assert torch.equal(decode(data["top"]["keys"]), view.top_keys[0].int())
    assert torch.equal(decode(data["top"]["weights"]), view.top_weights[0])


def test_page_is_self_contained_and_escapes_labels():
    html = html_of(view_of(weights=True), queries=HOSTILE, keys=HOSTILE, title="<b>{{data}}</b>")
    assert data_of(html)["words"] == {"queries": HOSTILE, "keys": HOSTILE}
    assert html.count("<script") == 2 and "<img" not in html and "<b>" not in html
    assert not re.search(r"https?:|//cdn|@import|url\(|<link rel=.stylesheet", html)
    assert "default-src 'none'" in html


def test_invisible_labels_get_a_sign():
    words = ["\n", " ", "\t", "\ud800", "a\x00b"]
    view = view_of(weights=True)
    assert data_of(html_of(view, keys=words))["words"]["keys"] == ["↵", "␣", "⇥", "\ufffd", "a\ufffdb"]
    html_of(view, keys=words).encode("utf-8")


def test_page_has_every_text_in_both_languages():
    script = html_of(view_of(weights=True)).split("const TEXT = {")[1].split("const TICKS")[0]
    english, chinese = (re.findall(r"\b(\w+): (?:\"|\(|\w+ =>|\{|s =>)", part) for part in script.split("\n  zh: {"))
    assert english[1:] == chinese and len(chinese) > 30


def test_notebook_html_is_an_iframe_or_a_summary(monkeypatch):
    view = view_of(weights=True)
    assert page.notebook_html(plotting.view_arrays(view, queries=ENGLISH), "").startswith(
        '<iframe sandbox="allow-scripts"'
    )
    assert view._repr_html_().count("<iframe") == 1
    monkeypatch.setattr(page, "NOTEBOOK_NUMBERS", 10)
    assert "75 numbers are too many" in view._repr_html_()
    assert "<iframe" not in rg.look(torch.ones(1, 1, 0, 4), torch.ones(1, 1, 3, 4))._repr_html_()


def test_page_refuses_too_many_numbers(monkeypatch):
    monkeypatch.setattr(page, "PAGE_NUMBERS", 30)
    view = view_of(weights=True)
    with pytest.raises(rg.TooLarge, match=r"75 numbers; it can hold 30.*head="):
        html_of(view)
    html_of(view, head=0)


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
  seen.other = words("caution"), seen.lang = document.documentElement.lang, seen.focusable = map.tabIndex === 0;
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


def test_page_in_a_browser_shows_the_numbers_of_the_tensors(chromium, tmp_path):
    view = view_of(mask=rg.Causal(), weights=True)
    html = html_of(view, queries=ENGLISH, keys=[*HOSTILE[:4], "猫"])
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
    assert seen["other"] == "权重表示每个头关注哪里，而不是模型为什么这样回答。" and seen["lang"] == "zh-CN"
    assert seen["clicked"][0] == 4 and seen["readout"].startswith("tired")


@pytest.mark.parametrize(
    ("options", "row"),
    [({"map": (4, 4)}, lambda x: x[0, 0].unflatten(-1, (4, 3)).mean(-1)[2]), ({"top": 2}, lambda x: x[0, 0, 6])],
)
def test_pages_without_weights_work_in_a_browser(chromium, tmp_path, options, row):
    view = view_of(12, 12, mask=rg.Causal(), **options)
    document = open_page(chromium, html_of(view), tmp_path)
    for name, label in (("entropy", "entropy (nats)"), ("peak", "largest weight")):
        shown = re.search(rf"<dt>{re.escape(label)}[^<]*</dt><dd>([^<]*)</dd>", document)[1]
        assert float(shown) == pytest.approx(row(getattr(view, name)).item(), rel=1e-6)
