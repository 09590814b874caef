"""Reports of results: an HTML page in both languages beside the figures, and a table in Markdown."""

from __future__ import annotations

import os
import re
from html import escape
from importlib.resources import files
from pathlib import Path

from .experiment import RULE
from .parameters import Bilingual, Language
from .results import (
    LANGUAGES,
    VERDICT_LABELS,
    VERDICT_SIGNS,
    ResultDocument,
    figure_path,
    read_full_size_results,
    read_results,
)

CORE_LABEL = Bilingual("core", "核心")
SIZE_LABELS = {
    "toy": Bilingual("toy size", "最小规模"),
    "usual": Bilingual("usual size", "通常规模"),
    "full": Bilingual("full size", "完整规模"),
}


def write_report(folder: Path) -> Path:
    """Write `report.html` from the results in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "report.html"
    path.write_text(render_page(read_results(folder), folder), encoding="utf-8")
    return path


def render_page(results: list[ResultDocument], folder: Path) -> str:
    """The HTML page of these results."""
    template = files("regard.experiments").joinpath("report.html").read_text(encoding="utf-8")
    full_size = read_full_size_results(folder)
    kinds = [result["verdict"]["kind"] for result in results]
    fields = {
        "rows": "\n".join(map(render_row, results)),
        "sections": "\n".join(render_section(result, folder, full_size.get(result["name"])) for result in results),
        "rule": render_text(RULE),
        "count": " · ".join(f"{render_badge(kind)} {kinds.count(kind)}" for kind in VERDICT_LABELS),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda field: fields[field[1]], template)


def render_row(result: ResultDocument) -> str:
    """A row of the table at the top."""
    claim, verdict = result["claim"], result["verdict"]
    link = f'<a href="#{escape(result["name"])}">{render_text(claim["title"])}</a>'
    outcome = f"{render_badge(verdict['kind'])} {count_held(result)}<br>{render_text(verdict['key'])}"
    cells = (str(claim["number"]), link, render_text(claim["claim"]), outcome)
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def render_section(result: ResultDocument, folder: Path, full_size: ResultDocument | None = None) -> str:
    """One experiment: its claim, set-up, sub-claims, result and figure; and the result at full size."""
    claim, verdict = result["claim"], result["verdict"]
    parts = [
        f"<h2>{claim['number']} · {render_text(claim['title'])} {render_badge(verdict['kind'])}</h2>",
        f'<p class="claim">{render_text(claim["claim"])}</p>',
        f"<p><b>{render_text(Bilingual('Set-up', '实验设置'))}</b> {render_text(claim['setup'])}</p>",
        render_subclaims(verdict["subclaims"]),
        f"<p><b>{render_text(Bilingual('Result', '结果'))}</b> {render_text(verdict['why'])}</p>",
        *(render_figure(result, folder, language) for language in LANGUAGES),
        f'<p class="small">{render_provenance(result)}</p>',
    ]
    if full_size is not None:
        outcome = f"{render_badge(full_size['verdict']['kind'])} {render_text(full_size['verdict']['why'])}"
        parts.append(f"<p><b>{render_text(Bilingual('At full size', '完整规模'))}</b> {outcome}</p>")
        parts.append(render_subclaims(full_size["verdict"]["subclaims"]))
        parts.append(f'<p class="small">{render_provenance(full_size)}</p>')
    return f'<section id="{escape(result["name"])}">' + "\n".join(parts) + "</section>"


def render_subclaims(subclaims: list[ResultDocument]) -> str:
    """The sub-claims with their signs and figures, as a list; those of the core are marked."""
    core = f' <span class="core">{render_text(CORE_LABEL)}</span>'
    items = [
        f'<li class="{subclaim_kind(subclaim)}"><b>{VERDICT_SIGNS[subclaim_kind(subclaim)]}</b> '
        f"{render_text(subclaim['text'])}: <b>{render_text(subclaim['figures'])}</b>{core if subclaim['core'] else ''}</li>"
        for subclaim in subclaims
    ]
    return f'<ul class="subclaims">{"".join(items)}</ul>'


def subclaim_kind(subclaim: ResultDocument) -> str:
    return "holds" if subclaim["holds"] else "fails"


def count_held(result: ResultDocument) -> str:
    """How many of the sub-claims hold.

    >>> count_held({"verdict": {"subclaims": [{"holds": True}, {"holds": False}]}})
    '1/2'
    """
    subclaims = result["verdict"]["subclaims"]
    return f"{sum(subclaim['holds'] for subclaim in subclaims)}/{len(subclaims)}"


def render_provenance(result: ResultDocument) -> str:
    """The command, size, time and versions of a result."""
    versions = f"torch {result['versions']['torch']} · {', '.join(result['devices'])} · {result['date'][:10]}"
    full = " --full" if result["size"] == "full" else ""
    command = f"<code>regard experiment run {escape(result['name'])} --seed {result['seed']}{full}</code>"
    size = render_text(SIZE_LABELS[result["size"]])
    return f"{command} · {size} · {result['seconds']:.0f} s · {escape(versions)}"


def render_figure(result: ResultDocument, folder: Path, language: Language) -> str:
    """The figure in one language, or the name of the missing file."""
    path = figure_path(folder, result["name"], language)
    title = escape(result["claim"]["title"][language], quote=True)
    if not path.exists():
        return f'<p lang="{language}">({escape(path.name)}?)</p>'
    return f'<img lang="{language}" loading="lazy" alt="{title}" src="{escape(path.name, quote=True)}">'


def render_badge(kind: str) -> str:
    """The verdict as a coloured label with a sign, so that readers need not rely on colour."""
    return f'<span class="badge {kind}">{VERDICT_SIGNS[kind]} {render_text(VERDICT_LABELS[kind])}</span>'


def render_text(text: Bilingual | dict[str, str]) -> str:
    """A text in both languages; the page shows one of them."""
    en, zh = (text.en, text.zh) if isinstance(text, Bilingual) else (text["en"], text["zh"])
    return f'<span lang="en">{escape(en)}</span><span lang="zh">{escape(zh)}</span>'


INDEX_TEXTS = {
    "en": (
        "# Claims about attention, tested",
        "Each claim is divided into sub-claims with a threshold each, and the verdict is computed from the numbers. {rule} "
        "Steps, learning rates and sizes were chosen in trial runs with seed 0, the thresholds of `long-range` and "
        "`additive` were revised after such runs, and the sub-claims were separated after the results were known (the "
        "thresholds stayed; the median gradient of `scaling` was added); run with another seed to test them. "
        "[The report]({report}) has the set-ups, figures and all numbers in English and Chinese. "
        "`regard experiment run all` measures everything again; `regard experiment report` writes this table.",
        ("", "Experiment", "Claim", "Verdict", "Sub-claims", "Figure"),
        "figure",
    ),
    "zh": (
        "# 关于注意力的说法，逐一检验",
        "每个说法分成若干分项，各有判据，结论由测得的数字算出。{rule}步数、学习率和规模在种子 0 的试运行中选定，"
        "`long-range` 和 `additive` 的判据在试运行之后修改过；分项是在得到结果之后划分的（判据未变，只为 `scaling` 加了居中的梯度）。"
        "请换一个种子运行来检验。[报告]({report})含中英文的实验设置、图和全部数字。"
        "`regard experiment run all` 重新测量全部实验，`regard experiment report` 生成本表。",
        ("", "实验", "说法", "结论", "分项", "图"),
        "图",
    ),
}


def render_index(folder: Path, path: Path, language: Language) -> str:
    """The results as a Markdown page to be saved at `path`: claim, verdict, sub-claims, link to the figure."""
    results, relative_folder = read_results(folder), Path(os.path.relpath(folder, path.parent))
    title, opening, head, link_text = INDEX_TEXTS[language]
    rows = [head, ("--:", *["---"] * (len(head) - 1))]
    for result in results:
        claim = result["claim"]
        figure = figure_path(relative_folder, result["name"], language).as_posix()
        texts = (str(claim["number"]), f"`{result['name']}`", claim["claim"][language], verdict_text(result, language))
        rows.append((*texts, subclaim_lines(result, language), f"[{link_text}]({figure})"))
    opening = opening.format(rule=RULE(language), report=(relative_folder / "report.html").as_posix())
    full_size = render_full_size(folder, results, language)
    parts = [title, opening, markdown_table(rows), describe_provenance(results, language), *full_size]
    return "\n\n".join(parts) + "\n"


def subclaim_lines(result: ResultDocument, language: Language) -> str:
    """The sub-claims of a result for a cell of a Markdown table."""
    colon = "：" if language == "zh" else ": "
    return "<br>".join(
        f"{VERDICT_SIGNS[subclaim_kind(subclaim)]} {subclaim['text'][language]}{colon}{subclaim['figures'][language]}"
        for subclaim in result["verdict"]["subclaims"]
    )


def verdict_text(result: ResultDocument, language: Language) -> str:
    """The verdict with its sign."""
    kind = result["verdict"]["kind"]
    return f"{VERDICT_SIGNS[kind]} {VERDICT_LABELS[kind](language)}"


def markdown_table(rows: list[tuple[str, ...]]) -> str:
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


FULL_SIZE_TEXTS = {
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
        "`--full` 训练更久，种子更多，问题更大。已测的 {all} 个实验中，{same} 个的结论与上表相同{other}。{left}",
        "（不同的是：{names}）",
        "未在这一规模上测量：{names}。",
        ("", "实验", "通常规模", "完整规模", "完整规模上测得", "时间"),
    ),
}


def render_full_size(folder: Path, results: list[ResultDocument], language: Language) -> list[str]:
    """The section about results at full size beside the usual ones; empty where there are none."""
    full_size = read_full_size_results(folder)
    pairs = [(result, full_size[result["name"]]) for result in results if result["name"] in full_size]
    if not pairs:
        return []
    title, opening, other, left, head = FULL_SIZE_TEXTS[language]
    rows = [head, ("--:", *["---"] * (len(head) - 1))]
    for usual, full in pairs:
        verdicts = verdict_text(usual, language), verdict_text(full, language)
        texts = (str(usual["claim"]["number"]), f"`{usual['name']}`", *verdicts)
        rows.append((*texts, full["verdict"]["key"][language], f"{full['seconds']:.0f} s"))
    changed = [usual["name"] for usual, full in pairs if usual["verdict"]["kind"] != full["verdict"]["kind"]]
    missing = [result["name"] for result in results if result["name"] not in full_size]
    changed_names, missing_names = (", ".join(f"`{name}`" for name in names) for names in (changed, missing))
    opening = opening.format(
        same=len(pairs) - len(changed),
        all=len(pairs),
        other=other.format(names=changed_names) if changed else "",
        left=left.format(names=missing_names) if missing else "",
    )
    return [title, opening, markdown_table(rows), describe_provenance([full for _, full in pairs], language)]


def describe_provenance(results: list[ResultDocument], language: Language) -> str:
    """The seeds, sizes, machines, versions, time and dates of several results, in one line."""
    seeds = ", ".join(sorted({str(result["seed"]) for result in results}))
    sizes = ", ".join(sorted({SIZE_LABELS[result["size"]](language) for result in results}))
    machines = "; ".join(sorted({", ".join(result["devices"]) for result in results}))
    versions = ", ".join(sorted({f"torch {result['versions']['torch']}" for result in results}))
    dates = ", ".join(sorted({result["date"][:10] for result in results}))
    minutes = sum(result["seconds"] for result in results) / 60
    if all(result.get("device", "cpu") == "cpu" for result in results):
        time = Bilingual(f"{minutes:.0f} minutes of one core in all", f"单核共 {minutes:.0f} 分钟")
    else:
        time = Bilingual(f"{minutes:.0f} minutes in all, several at a time", f"共 {minutes:.0f} 分钟，数个同时运行")
    seed = Bilingual(f"seed {seeds}", f"种子 {seeds}")
    return " · ".join((sizes, seed(language), machines, versions, time(language), dates))
