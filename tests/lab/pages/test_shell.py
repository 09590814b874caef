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


@pytest.mark.parametrize("name", PAGES)
def test_a_page_weighs_less_than_200_kilobytes(name):
    shared = sum(path.stat().st_size for path in STATIC.iterdir() if path.is_file())
    assert shared + (STATIC / "pages" / f"{name}.js").stat().st_size < 200_000


def test_all_pages_together_are_sent_in_less_than_200_kilobytes(lab):
    from starlette.testclient import TestClient

    from regard.lab.server.app import make_app

    client = TestClient(make_app(lab, "T", ("testserver",)), headers={"x-token": "T"})
    size = 0
    for path in STATIC.rglob("*.*"):
        with client.stream("GET", f"/static/{path.relative_to(STATIC).as_posix()}") as answer:
            size += len(b"".join(answer.iter_raw()))
        assert answer.headers["content-encoding"] == "gzip"
    assert size < 200_000


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
    assert page.locator("h1").inner_text() == "注意力头" and "lang=zh" in page.url
    page.click("#theme")
    page.ready()
    assert page.locator("html").get_attribute("data-theme") == "dark" and "theme=dark" in page.url


def test_going_back_shows_what_was_there(open_lab):
    page = open_lab(place("heads", lang="en"))
    page.click("#nav a >> text=Mechanisms")
    page.wait_for_selector("#main[data-ready=mechanisms]")
    page.go_back()
    page.wait_for_selector("#main[data-ready=heads]")
    assert "model=bert" in page.url


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
