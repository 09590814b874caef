"""All results of a folder as one page in both languages that needs nothing else: claims, verdicts, figures."""

from __future__ import annotations

import base64
import re
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from .experiment import Language
from .runner import LANGUAGES, figure_path, read

KINDS = {
    "holds": ("holds", "成立"),
    "limited": ("holds with a limit", "有条件成立"),
    "fails": ("does not hold", "不成立"),
}
SIZES = {"toy": ("toy size", "玩具规模"), "usual": ("usual size", "通常规模"), "full": ("full size", "完整规模")}
SIGNS = {"holds": "✓", "limited": "◐", "fails": "✗"}


def write(folder: Path) -> Path:
    """Make `report.html` of the results in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "report.html"
    path.write_text(page(results(folder), folder), encoding="utf-8")
    return path


def results(folder: Path) -> list[dict[str, Any]]:
    """The kept results, by number."""
    read_ones = [document for path in sorted(folder.glob("*.json")) if (document := read(path))]
    return sorted(read_ones, key=lambda document: document["claim"]["number"])


def page(documents: list[dict[str, Any]], folder: Path) -> str:
    """The whole HTML document."""
    template = files("regard.experiments").joinpath("report.html").read_text(encoding="utf-8")
    places = {
        "rows": "\n".join(map(row, documents)),
        "sections": "\n".join(section(document, folder) for document in documents),
        "count": counts(documents),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda place: places[place[1]], template)


def row(document: dict[str, Any]) -> str:
    """A line of the table at the top."""
    claim = document["claim"]
    cells = (str(claim["number"]), link(document), both(claim["claim"]), badge(document["verdict"]["kind"]))
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def section(document: dict[str, Any], folder: Path) -> str:
    """One experiment: its claim, how it was tested, what came out."""
    claim, verdict = document["claim"], document["verdict"]
    parts = [
        f"<h2>{claim['number']} · {both(claim['title'])} {badge(verdict['kind'])}</h2>",
        f'<p class="claim">{both(claim["claim"])}</p>',
        f"<p><b>{words('What was done', '做法')}</b> {both(claim['setup'])}</p>",
        f"<p><b>{words('When it counts as true', '判据')}</b> {both(claim['threshold'])}</p>",
        f"<p><b>{words('What came out', '结果')}</b> {both(verdict['why'])}</p>",
        *(figure(document, folder, language) for language in LANGUAGES),
        f'<p class="small">{origin(document)}</p>',
    ]
    return f'<section id="{escape(document["name"])}">' + "\n".join(parts) + "</section>"


def origin(document: dict[str, Any]) -> str:
    """Where the numbers come from: seed, size, time, versions."""
    made = escape(f"torch {document['versions']['torch']} · {', '.join(document['devices'])} · {document['date'][:10]}")
    command = f"<code>regard experiment run {escape(document['name'])} --seed {document['seed']}</code>"
    seconds = f"{document['seconds']:.0f} s"
    return f"{command} · {words(*SIZES[document['size']])} · {seconds} · {made}"


def figure(document: dict[str, Any], folder: Path, language: Language) -> str:
    """The figure of one language inside the page; a word in its place where the file is missing."""
    path = figure_path(folder, document["name"], language)
    title = escape(document["claim"]["title"][language], quote=True)
    if not path.exists():
        return f'<p lang="{language}">({escape(path.name)}?)</p>'
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<img lang="{language}" alt="{title}" src="data:image/png;base64,{data}">'


def counts(documents: list[dict[str, Any]]) -> str:
    """How many claims have which verdict."""
    kinds = [document["verdict"]["kind"] for document in documents]
    return " · ".join(f"{badge(kind)} {kinds.count(kind)}" for kind in KINDS)


def link(document: dict[str, Any]) -> str:
    return f'<a href="#{escape(document["name"])}">{both(document["claim"]["title"])}</a>'


def badge(kind: str) -> str:
    """The verdict as a coloured word with a sign, so that colour alone says nothing."""
    return f'<span class="badge {kind}">{SIGNS[kind]} {words(*KINDS[kind])}</span>'


def both(text: dict[str, str]) -> str:
    """A text in both languages, of which the page shows one."""
    return words(text["en"], text["zh"])


def words(en: str, zh: str) -> str:
    return f'<span lang="en">{escape(en)}</span><span lang="zh">{escape(zh)}</span>'
