"""What holds for every page of the lab: languages, themes, widths, words, weight, and files that open again."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from regard.lab.server.app import PAGES

pytestmark = pytest.mark.browser
STATIC = Path(str(files("regard.lab").joinpath("static")))
TEXT = "The animal didn't cross the street because it was too tired."
STARTS = {"heads": f"model=bert&text={TEXT}", "formula": f"model=bert&text={TEXT}", "long": f"text={TEXT * 8}"}

UNTRANSLATED = r"""() => {
  const letter = /\p{L}/u, found = [];
  const units = /[\d.,]+ ?(?:[kMG]?B|m?s|px|e[-−+]?\d+)(?!\p{L})/gu;
  const left = words => { const inner = words.replace(/⟦[^⟦⟧]*⟧/g, ""); return inner === words ? words : left(inner); };
  const free = node => node.closest("[translate=no], math, script, style, noscript, title, .unseen[translate]");
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const parent = walk.currentNode.parentElement;
    const words = walk.currentNode.data;
    if (!free(parent) && letter.test(left(words).replace(units, ""))) found.push(words.trim().slice(0, 80));
  }
  for (const node of document.querySelectorAll("[aria-label], [title], [placeholder]"))
    for (const name of ["aria-label", "title", "placeholder"]) {
      const words = node.getAttribute(name) ?? "";
      if (!free(node) && letter.test(left(words).replace(units, ""))) found.push(`${name}=${words}`);
    }
  return found;
}"""


def place(name: str, **more: str) -> str:
    extra = "&".join([STARTS.get(name, ""), *(f"{key}={value}" for key, value in more.items())]).strip("&")
    return f"{name}?{extra}"


@pytest.mark.parametrize("name", PAGES)
def test_every_page_in_every_language_and_on_a_phone(open_lab, name):
    page = open_lab(place(name, lang="xx", theme="dark"), width=390)
    assert page.locator("#main .error").count() == 0, page.locator("#main .error").inner_text()
    assert page.evaluate(UNTRANSLATED) == [], "these words do not come from the dictionaries"
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.click("#language")
    page.ready()
    assert page.locator("html").get_attribute("lang") == "zh-CN"
    assert re.search("[一-鿿]", page.locator("h1").inner_text())
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator("#main .error").count() == 0


def test_both_dictionaries_have_the_same_words(open_lab):
    page = open_lab("mechanisms")
    script = """async names => {
      const found = {};
      for (const name of names) {
        const { text } = await import(`lab/${name}.js`), kinds = held => Object.fromEntries(Object.entries(held).map(([key, value]) => [key, typeof value === "function" ? value.length : "text"]));
        found[name] = [kinds(text.en), kinds(text.zh)];
      }
      return found;
    }"""  # noqa: E501
    found = page.evaluate(script, ["translations", *(f"pages/{name}" for name in PAGES)])
    for name, (english, chinese) in found.items():
        assert english == chinese, name
        assert name == "translations" or {"title", "lead"} <= set(english)


FIRST_PICTURE = """() => {
  const pictures = [...document.querySelectorAll("#main :is(canvas, svg, img, table, math, .strip, [data-picture])")];
  const edges = pictures.filter(one => !one.closest("[popover]")).map(one => one.getBoundingClientRect());
  return Math.min(...edges.filter(edge => edge.width >= 100 && edge.height >= 24).map(edge => edge.top + scrollY));
}"""
LOADED = """() => performance.getEntriesByType("resource").filter(one => one.name.includes("/static/"))
  .map(one => [one.name.split("/static/")[1], one.encodedBodySize])"""


def violations(page) -> list[str]:
    """What axe-core finds wrong, however little it weighs."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    found = axe.run(page, options={"resultTypes": ["violations"]}).response["violations"]
    return [f"{one['id']}: {node['html'][:120]} {node['failureSummary']}" for one in found for node in one["nodes"][:3]]


@pytest.mark.parametrize("name", PAGES)
def test_every_page_shows_its_picture_first_weighs_little_and_is_accessible(open_lab, name):
    page = open_lab(place(name, lang="en", theme="light"), width=1440, fresh=True)
    page.mouse.move(1, 1)
    page.ready()
    assert page.evaluate(FIRST_PICTURE) <= 250
    loaded = dict(page.evaluate(LOADED))  # a visitor of one page does not load the others
    assert f"pages/{name}.js" in loaded and all(loaded.values()) and sum(loaded.values()) < 120_000, loaded
    assert violations(page) == []
    page.click("#theme")
    page.ready()
    page.click("#language")
    page.ready()
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_function(f"() => ({FIRST_PICTURE})() <= 480")  # of 844
    assert violations(page) == []  # in Chinese, dark, on a phone


LONG_NUMBERS = r"""() => {
  const found = [], walk = document.createTreeWalker(document.getElementById("main"), NodeFilter.SHOW_TEXT);
  const exact = "table, pre, code, details:not([open]), textarea, [popover], .unseen, title";
  while (walk.nextNode()) if (!walk.currentNode.parentElement.closest(exact))
    for (const [number] of walk.currentNode.data.matchAll(/\d+\.\d+/g)) if (number.replace(".", "").replace(/^0+/, "").length > 4) found.push(number);
  return found;
}"""  # noqa: E501


@pytest.mark.parametrize("name", [page for page in PAGES if page != "course"])  # a step's title is its first line
def test_every_page_starts_with_one_measured_sentence_and_short_numbers(open_lab, name):
    page = open_lab(place(name, lang="en"), width=1440)
    first = page.locator(".look-here")
    assert first.count() == 1 and re.search(r"\d", first.inner_text()), first.all_inner_texts()
    assert first.bounding_box()["y"] < 150
    assert page.evaluate(LONG_NUMBERS) == []


def test_all_pages_together_are_sent_in_less_than_260_kilobytes(lab):
    """The total, all drawings of the course included; it is never sent at once."""
    from starlette.testclient import TestClient

    from regard.lab.server.app import make_app

    client = TestClient(make_app(lab, "T", ("testserver",)), headers={"x-token": "T"})
    size = 0
    for path in STATIC.rglob("*.*"):
        with client.stream("GET", f"/static/{path.relative_to(STATIC).as_posix()}") as answer:
            size += len(b"".join(answer.iter_raw()))
        assert answer.headers["content-encoding"] == "gzip"
    assert size < 260_000


def test_nothing_is_taken_from_elsewhere():
    for path in STATIC.rglob("*.*"):
        known = re.sub(r"http://www\.w3\.org/\S+?(?=[\"'])", "", path.read_text("utf8"))
        assert not re.search(r"https?://|//cdn|eval\(|new Function", known), path


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_words_are_readable_on_every_ground(open_lab, theme):
    page = open_lab(f"mechanisms?theme={theme}")
    script = """() => {
      const look = getComputedStyle(document.documentElement), value = name => look.getPropertyValue(name).trim();
      const light = hex => [1, 3, 5].map(n => parseInt(hex.slice(n, n + 2), 16) / 255).map(x => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4).reduce((sum, x, n) => sum + x * [0.2126, 0.7152, 0.0722][n], 0);
      const ratio = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
      return ["--ink", "--soft", "--accent", "--query", "--key", "--value", "--output"].flatMap(word => ["--paper", "--wash"].map(ground => [word, ground, ratio(value(word), value(ground))]));
    }"""  # noqa: E501
    for word, ground, ratio in page.evaluate(script):
        assert ratio >= 4.5, f"{word} on {ground}: {ratio:.2f}"


def test_language_and_theme_change_in_place_and_stay_in_the_address(open_lab):
    page = open_lab(place("heads", lang="en", theme="light"))
    assert page.locator("h1").inner_text() == "Heads"
    page.click("#language")
    page.ready()
    assert page.locator("h1").inner_text() == "注意力头" and "lang=zh" in page.address()
    page.click("#theme")
    page.ready()
    assert page.locator("html").get_attribute("data-theme") == "dark" and "theme=dark" in page.address()


def test_going_back_shows_what_was_there(open_lab):
    page = open_lab(place("heads", lang="en"))
    page.click("#nav a >> text=Mechanisms")
    page.wait_for_selector("#main[data-ready=mechanisms]")
    page.go_back()
    page.wait_for_selector("#main[data-ready=heads]")
    assert "model=bert" in page.address()


def test_a_refusal_is_shown_in_words(open_lab):
    page = open_lab(f"heads?lang=en&model=bert&text={'word%20' * 2500}", allowed=("status of 400",))
    assert "tokens" in page.locator(".error").inner_text()
    page = open_lab("nowhere?lang=en")
    assert "nowhere" in page.locator(".error").inner_text()


@pytest.mark.parametrize("name", ["heads", "formula", "long", "mechanisms"])
def test_a_saved_view_opens_again_without_a_server(open_lab, name, tmp_path):
    page = open_lab(place(name, lang="en"))
    with page.expect_download() as download:
        page.click("#save")
    saved = tmp_path / f"{name}.html"
    download.value.save_as(saved)
    assert saved.stat().st_size < 4_000_000
    before = page.evaluate("window.lab.cell(1, 1)") if name != "formula" else page.evaluate("window.lab.part('row')")
    again = open_lab("", address=saved.as_uri())
    after = again.evaluate("window.lab.cell(1, 1)") if name != "formula" else again.evaluate("window.lab.part('row')")
    assert after == before and again.locator("#main .error").count() == 0
    again.click("#language")
    again.ready()
    assert again.locator("html").get_attribute("lang") == "zh-CN"


def test_a_server_that_is_gone_is_told(open_lab):
    page = open_lab(place("heads", lang="en"), allowed=("ERR_FAILED",))
    page.route("**/api/**", lambda route: route.abort())
    page.fill("textarea", "Another sentence.")
    page.click("form button[type=submit]")
    page.wait_for_selector(".error")
    assert "does not answer" in page.locator(".error").inner_text()


HEAD_NUMBERS = """() => {
  const text = nodes => [...nodes].map(one => one.textContent.trim()), found = [];
  const field = words => words?.closest("label, fieldset") ?? document.createElement("p");
  for (const words of document.querySelectorAll("label.field > span, fieldset.choice > legend"))
    if (["Head", "Layer"].includes(words.textContent)) found.push(text(field(words).querySelectorAll("option, label")));
  for (const grid of document.querySelectorAll(".head-grid")) found.push(text(grid.querySelectorAll("thead th")));
  for (const film of document.querySelectorAll(".film")) found.push([...film.querySelectorAll("button")].map(one => one.title));
  for (const finder of document.querySelectorAll(".finder-list")) found.push(text(finder.querySelectorAll("[data-head]")).sort());
  return found;
}"""  # noqa: E501


def test_heads_and_layers_count_from_zero_everywhere(open_lab):
    """As in `rg.edit` and `regard look --layer 0 --head 0`: of every list of heads the first is 0."""
    text = "text=one two three four five six seven"
    places = {
        "heads": f"model=bert&{text}",
        "formula": f"model=bert&{text}",
        "compare": f"model=bert&{text}",
        "alignment": "model=pair&text=the cat sat",
        "honest": f"model=bert&{text}",
        "image": "model=digits",
        "sound": "model=spoken-digits",
        "graph": "model=karate",
        "long": f"model=bert&{text}",
    }
    for name, more in places.items():
        page = open_lab(f"{name}?{more}&lang=en", same=True)
        lists = [
            [re.findall(r"\d+", words) for words in each if re.search(r"\d", words)]
            for each in page.evaluate(HEAD_NUMBERS)
        ]
        assert lists and all(each and set(each[0][:2]) == {"0"} for each in lists), (name, lists)
