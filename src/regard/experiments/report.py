"""The results of a folder for readers: a page in both languages beside the figures, and a table in Markdown."""

from __future__ import annotations

import os
import re
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from .experiment import Both, Language
from .results import KINDS, LANGUAGES, SIGNS, at_full_size, figure_path, saved

SIZES = {
    "toy": Both("toy size", "玩具规模"),
    "usual": Both("usual size", "通常规模"),
    "full": Both("full size", "完整规模"),
}


def write(folder: Path) -> Path:
    """Make `report.html` of the results in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "report.html"
    path.write_text(page(saved(folder), folder), encoding="utf-8")
    return path


def page(documents: list[dict[str, Any]], folder: Path) -> str:
    """The whole HTML document."""
    template = files("regard.experiments").joinpath("report.html").read_text(encoding="utf-8")
    larger = at_full_size(folder)
    places = {
        "rows": "\n".join(map(row, documents)),
        "sections": "\n".join(section(document, folder, larger.get(document["name"])) for document in documents),
        "count": counts(documents),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda place: places[place[1]], template)


def row(document: dict[str, Any]) -> str:
    """A line of the table at the top."""
    claim = document["claim"]
    verdict = document["verdict"]
    outcome = f"{badge(verdict['kind'])}<br>{both(verdict['key'])}"
    cells = (str(claim["number"]), link(document), both(claim["claim"]), outcome)
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def section(document: dict[str, Any], folder: Path, larger: dict[str, Any] | None = None) -> str:
    """One experiment: its claim, how it was tested, what came out; and what came out at full size."""
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
    if larger is not None:
        outcome = f"{badge(larger['verdict']['kind'])} {both(larger['verdict']['why'])}"
        parts.append(f"<p><b>{words('At full size', '完整规模')}</b> {outcome}</p>")
        parts.append(f'<p class="small">{origin(larger)}</p>')
    return f'<section id="{escape(document["name"])}">' + "\n".join(parts) + "</section>"


def origin(document: dict[str, Any]) -> str:
    """Where the numbers come from: seed, size, time, versions."""
    made = escape(f"torch {document['versions']['torch']} · {', '.join(document['devices'])} · {document['date'][:10]}")
    full = " --full" if document["size"] == "full" else ""
    command = f"<code>regard experiment run {escape(document['name'])} --seed {document['seed']}{full}</code>"
    seconds = f"{document['seconds']:.0f} s"
    return f"{command} · {text_of(SIZES[document['size']])} · {seconds} · {made}"


def figure(document: dict[str, Any], folder: Path, language: Language) -> str:
    """The figure of one language; a word in its place where the file is missing."""
    path = figure_path(folder, document["name"], language)
    title = escape(document["claim"]["title"][language], quote=True)
    if not path.exists():
        return f'<p lang="{language}">({escape(path.name)}?)</p>'
    return f'<img lang="{language}" loading="lazy" alt="{title}" src="{escape(path.name, quote=True)}">'


def counts(documents: list[dict[str, Any]]) -> str:
    """How many claims have which verdict."""
    kinds = [document["verdict"]["kind"] for document in documents]
    return " · ".join(f"{badge(kind)} {kinds.count(kind)}" for kind in KINDS)


def link(document: dict[str, Any]) -> str:
    return f'<a href="#{escape(document["name"])}">{both(document["claim"]["title"])}</a>'


def badge(kind: str) -> str:
    """The verdict as a coloured word with a sign, so that colour alone says nothing."""
    return f'<span class="badge {kind}">{SIGNS[kind]} {text_of(KINDS[kind])}</span>'


def both(text: dict[str, str]) -> str:
    """A text in both languages, of which the page shows one."""
    return words(text["en"], text["zh"])


def text_of(text: Both) -> str:
    return words(text.en, text.zh)


def words(en: str, zh: str) -> str:
    return f'<span lang="en">{escape(en)}</span><span lang="zh">{escape(zh)}</span>'


INDEX = {
    "en": (
        "# What is said of attention, put to the test",
        "Each claim has a threshold, by which its verdict is computed from the numbers. Steps, rates and sizes were settled "
        "in trial runs with seed 0, and the thresholds of `long-range` and `additive` restated after such runs: a run with "
        "another seed puts them to the test. "
        "[The report]({report}) has the set-ups, thresholds, figures and all numbers, in English and Chinese. "
        "`regard experiment run all` measures everything again, and `regard experiment report` makes this table.",
        ("", "Experiment", "Claim", "Verdict", "Measured", "Figure"),
        "figure",
    ),
    "zh": (
        "# 关于注意力的说法，逐一检验",
        "每个说法都有判据，结论按判据由测得的数字算出。步数、学习率和规模是在种子 0 的试运行中定下的，"
        "`long-range` 和 `additive` 的判据在试运行之后重新写过；用别的种子再跑，才是检验。[报告]({report})有中英文的做法、判据、图和全部数字。"
        "`regard experiment run all` 重新测量一切，`regard experiment report` 生成本表。",
        ("", "实验", "说法", "结论", "测得", "图"),
        "图",
    ),
}


def index(folder: Path, path: Path, language: Language) -> str:
    """The results as a Markdown document that is to stand at `path`: claim, verdict, key number, link to the figure."""
    documents, near = saved(folder), Path(os.path.relpath(folder, path.parent))
    title, opening, head, word = INDEX[language]
    rows = [head, ("--:", *["---"] * (len(head) - 1))]
    for document in documents:
        claim, verdict = document["claim"], document["verdict"]
        picture = figure_path(near, document["name"], language).as_posix()
        texts = (str(claim["number"]), f"`{document['name']}`", claim["claim"][language], outcome(document, language))
        rows.append((*texts, verdict["key"][language], f"[{word}]({picture})"))
    opening = opening.format(report=(near / "report.html").as_posix())
    parts = [title, opening, table_of(rows), made_of(documents, language), *full_size(folder, documents, language)]
    return "\n\n".join(parts) + "\n"


def outcome(document: dict[str, Any], language: Language) -> str:
    """The verdict in words."""
    kind = document["verdict"]["kind"]
    return f"{SIGNS[kind]} {KINDS[kind](language)}"


def table_of(rows: list[tuple[str, ...]]) -> str:
    """Rows as a table in Markdown."""
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


FULL = {
    "en": (
        "## At full size",
        "`--full` trains longer, with more seeds and on larger problems. {all} were measured; the verdict is the "
        "same as above in {same} of them{other}.{left}",
        " (others: {names})",
        " Not measured at this size: {names}.",
        ("", "Experiment", "Usual size", "Full size", "Measured at full size", "Time"),
    ),
    "zh": (
        "## 完整规模",
        "`--full` 训练更久，种子更多，问题更大。测过的 {all} 个实验中，{same} 个的结论与上表相同{other}。{left}",
        "（不同的是：{names}）",
        "这一规模上没有测：{names}。",
        ("", "实验", "通常规模", "完整规模", "完整规模上测得", "时间"),
    ),
}


def full_size(folder: Path, documents: list[dict[str, Any]], language: Language) -> list[str]:
    """The section about results at full size, beside the usual ones; nothing where there are none."""
    larger = at_full_size(folder)
    both_sizes = [(document, larger[document["name"]]) for document in documents if document["name"] in larger]
    if not both_sizes:
        return []
    title, opening, other, left, head = FULL[language]
    rows = [head, ("--:", *["---"] * (len(head) - 1))]
    for usual, full in both_sizes:
        texts = (str(usual["claim"]["number"]), f"`{usual['name']}`", outcome(usual, language), outcome(full, language))
        rows.append((*texts, full["verdict"]["key"][language], f"{full['seconds']:.0f} s"))
    changed = [usual["name"] for usual, full in both_sizes if usual["verdict"]["kind"] != full["verdict"]["kind"]]
    missing = [document["name"] for document in documents if document["name"] not in larger]
    told = opening.format(
        same=len(both_sizes) - len(changed),
        all=len(both_sizes),
        other=other.format(names=listed(changed)) if changed else "",
        left=left.format(names=listed(missing)) if missing else "",
    )
    return [title, told, table_of(rows), made_of([full for _, full in both_sizes], language)]


def listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def made_of(documents: list[dict[str, Any]], language: Language) -> str:
    """Where the numbers of a table come from: seeds, sizes, machine, versions, time."""
    seeds = ", ".join(sorted({str(document["seed"]) for document in documents}))
    sizes = ", ".join(sorted({SIZES[document["size"]](language) for document in documents}))
    machines = "; ".join(sorted({", ".join(document["devices"]) for document in documents}))
    torches = ", ".join(sorted({f"torch {document['versions']['torch']}" for document in documents}))
    dates = ", ".join(sorted({document["date"][:10] for document in documents}))
    minutes = sum(document["seconds"] for document in documents) / 60
    if all(document.get("device", "cpu") == "cpu" for document in documents):
        spent = Both(f"{minutes:.0f} minutes of one core in all", f"单核共 {minutes:.0f} 分钟")(language)
    else:
        spent = Both(f"{minutes:.0f} minutes in all, several at a time", f"共 {minutes:.0f} 分钟，数个同时运行")(
            language
        )
    seed = Both(f"seed {seeds}", f"种子 {seeds}")(language)
    return " · ".join((sizes, seed, machines, torches, spent, dates))
