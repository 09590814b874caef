"""Times the lab's pages in Chromium: page to first picture, click to change, and what a page weighs.

    python benchmarks/lab_pages.py            # every page into results/lab-pages.json, then the tables
    python benchmarks/lab_pages.py --write    # only the tables in docs/lab.md and docs/lab.zh.md

The lab runs on the shipped models. Each visit is a browser context of its own, so nothing is cached in the browser. The
first visit of a page includes loading its model; the later ones find it loaded. A click is one that needs no pass of
the model: it counts from the event to the frame after the page has changed. Needs Chromium and playwright.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import torch

import regard
from regard.bench.result import replace_section
from regard.lab.server.app import PAGES

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "lab-pages.json"
DOCS = {"en": ROOT / "docs" / "lab.md", "zh": ROOT / "docs" / "lab.zh.md"}
GOALS = {"first_picture_ms": 1500, "change_ms": 100}

PICTURES = "#main :is(canvas, svg, img, table, math, .strip, [data-picture])"
WATCH = f"""() => {{
  const look = () => {{
    const shown = [...document.querySelectorAll("{PICTURES}")].some(one => {{
      const box = one.getBoundingClientRect();
      return !one.closest("[popover]") && box.width >= 100 && box.height >= 24 && box.top < innerHeight;
    }});
    if (shown) requestAnimationFrame(() => {{ window.firstPicture = performance.now(); }});
    else requestAnimationFrame(look);
  }};
  requestAnimationFrame(look);
}}"""
"""Records the frame after the first picture stands on the screen, in milliseconds since the navigation began."""

CLICKS = {
    "course": (".course input[type=range]", "input", True),
    "formula": ("[data-slider=temperature]", "input", False),
    "heads": (".strip .token", "click", False),
    "compare": (".compare-heads button, .compare-difference canvas", "click", False),
    "alignment": (".strip .token", "click", False),
    "honest": (".agreement-card input[type=radio]:not(:checked)", "click", False),
    "image": ("canvas.overlay", "click", False),
    "sound": ("canvas.sound-strip", "click", False),
    "graph": (".film button[aria-pressed=false]", "click", False),
    "mechanisms": (".gallery .preset[aria-pressed=false]", "click", True),
    "long": (".map-grid", "key", False),
    "runs": (".stage-tools input[type=radio]:not(:checked)", "click", True),
    "experiments": (".stage-tools input[type=radio]:not(:checked)", "click", True),
}
"""Of each page: what is clicked, dragged (`input`) or moved through (`key`), and whether the server answers first."""

CHANGE = """async ([selector, event, answered]) => {
  const all = [...document.querySelectorAll(selector)], node = all[Math.floor(all.length / 3)];
  if (!node) throw new Error(`Nothing to click: ${selector}`);
  const box = node.getBoundingClientRect(), frame = () => new Promise(requestAnimationFrame);
  const at = { bubbles: true, clientX: box.left + 0.7 * box.width, clientY: box.top + 0.6 * box.height };
  let changed = false;
  const watch = new MutationObserver(() => { changed = true; });
  const everything = { childList: true, subtree: true, attributes: true, characterData: true };
  watch.observe(document.getElementById("main"), everything);
  await frame();
  changed = false;
  const started = performance.now();
  if (event === "input") node.value = Number(node.value) + (node.step >= 1 ? 1 : 0.5);
  if (event === "input") node.dispatchEvent(new Event("input", { bubbles: true }));
  else if (event === "key") node.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowDown", bubbles: true }));
  else node.dispatchEvent(new MouseEvent("click", at));
  const waits = () => !changed || (answered && document.documentElement.dataset.busy !== "no");
  while (waits() && performance.now() - started < 10000) await frame();
  await frame();
  watch.disconnect();
  return changed ? performance.now() - started : null;
}"""
WEIGHT = """() => {
  const sent = performance.getEntriesByType("resource"), size = part => sent.filter(one => one.name.includes(part)).reduce((sum, one) => sum + one.encodedBodySize, 0);
  return { files_bytes: size("/static/"), answers_bytes: size("/api/"), requests: sent.length };
}"""  # noqa: E501

WORDS = {
    "en": {
        "head": ("page", "first picture", "first visit", "click to change", "files sent", "answers sent"),
        "text": "Medians of {visits} visits in Chromium {chromium} at 1440 × 900, on {cores} cores ({device}, load "
        "{load:.0f} of other work, nice {nice}), {date}. The first visit also loads the model. A click needs no pass "
        "of the model: it changes the query, the head, a slider, a mask or a filter, and counts until the changed "
        "frame. Goals: at most {first_picture_ms:,} ms and {change_ms} ms. Measure again: "
        "`python benchmarks/lab_pages.py`.",
    },
    "zh": {
        "head": ("页面", "首图", "首次打开", "点击到变化", "传输的文件", "传输的结果"),
        "text": "在 Chromium {chromium} 中以 1440 × 900 打开 {visits} 次的中位数，{cores} 核（{device}，"
        "同时另有负载 {load:.0f}，nice {nice}），{date}。首次打开还要载入模型。点击都不需要模型计算："
        "改变查询、头、滑块、掩码或筛选，计到变化后的一帧为止。"
        "目标：不超过 {first_picture_ms:,} 毫秒与 {change_ms} 毫秒。重新测量：`python benchmarks/lab_pages.py`。",
    },
}
NAMES = {
    "course": ("Course", "课程"),
    "experiments": ("Experiments", "实验"),
    "formula": ("Formula", "公式"),
    "heads": ("Heads", "注意力头"),
    "compare": ("Compare", "比较"),
    "alignment": ("Alignment", "对齐"),
    "honest": ("Honest reading", "诚实解读"),
    "image": ("Image", "图像"),
    "sound": ("Audio", "音频"),
    "graph": ("Graph", "图网络"),
    "mechanisms": ("Mechanisms", "机制"),
    "long": ("Long text", "长文本"),
    "runs": ("Runs", "训练运行"),
}


def visit(browser: Any, address: str, page_name: str, clicks: int) -> dict[str, Any]:
    """One visit of a page: milliseconds to its first picture, of each click, and the bytes that were sent."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, locale="en-US")
    page = context.new_page()
    page.add_init_script(f"({WATCH})()")
    page.goto(f"{address}#{page_name}?lang=en&theme=light")
    page.wait_for_function("() => window.firstPicture !== undefined", timeout=60_000)
    page.wait_for_selector("html[data-busy=no] #main[data-ready]", timeout=60_000)
    found = {"first_picture_ms": page.evaluate("window.firstPicture"), **page.evaluate(WEIGHT)}
    page.mouse.move(1, 1)
    changes = []
    for _ in range(clicks):
        page.wait_for_timeout(400)
        page.wait_for_selector("html[data-busy=no] #main[data-ready]", timeout=60_000)
        changes.append(page.evaluate(CHANGE, list(CLICKS[page_name])))
    context.close()
    if None in changes:
        raise SystemExit(f"{page_name}: a click on {CLICKS[page_name][0]} changed nothing.")
    return {**found, "change_ms": changes}


def measure_page(browser: Any, address: str, name: str, visits: int, clicks: int) -> dict[str, Any]:
    first, *later = (visit(browser, address, name, clicks if n else 0) for n in range(visits + 1))
    times = [one["first_picture_ms"] for one in later]
    changes = [ms for one in later for ms in one["change_ms"]]
    return {
        "first_visit_ms": round(first["first_picture_ms"], 1),
        "first_picture_ms": round(median(times), 1),
        "first_picture_fastest_ms": round(min(times), 1),
        "change_ms": round(median(changes), 1),
        "change_fastest_ms": round(min(changes), 1),
        "changes": len(changes),
        **{key: first[key] for key in ("files_bytes", "answers_bytes", "requests")},
    }


def measure(pages: list[str], visits: int, clicks: int) -> dict[str, Any]:
    """All pages, measured one after another on a lab that was just started."""
    from playwright.sync_api import sync_playwright

    command = [sys.executable, "-m", "regard.cli", "lab", "--no-open"]
    lab = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert lab.stdout is not None
        address = lab.stdout.readline().strip()
        with sync_playwright() as started:
            browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            found, loads = {}, []
            for name in pages:
                found[name] = measure_page(browser, address, name, visits, clicks)
                loads.append(os.getloadavg()[0])
                print(name, found[name], f"load {loads[-1]:.1f}", flush=True)
            return {**describe(browser.version, visits, clicks, median(loads)), "pages": found}
    finally:
        lab.terminate()


def describe(chromium: str, visits: int, clicks: int, load: float) -> dict[str, Any]:
    return {
        "command": "python benchmarks/lab_pages.py",
        "device": processor(),
        "cores": os.cpu_count(),
        "load_average": round(load, 1),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "date": datetime.now(UTC).date().isoformat(),
        "versions": {
            "regard": regard.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "chromium": chromium,
        },
        "goals": GOALS,
        "visits": visits,
        "clicks_per_visit": clicks,
    }


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf8").splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def table(result: dict[str, Any], language: str) -> str:
    """The measured pages as a Markdown table under a paragraph that says how."""
    words, chosen = WORDS[language], 0 if language == "en" else 1
    chromium = result["versions"]["chromium"].split(".")[0]
    about = words["text"].format(**result, **result["goals"], chromium=chromium, load=result["load_average"])
    rows = [words["head"], tuple("---" for _ in words["head"])]
    for name, one in result["pages"].items():
        times = (f"{one[key]:,.0f} ms" for key in ("first_picture_ms", "first_visit_ms", "change_ms"))
        sizes = (f"{one[key] / 1000:,.0f} kB" for key in ("files_bytes", "answers_bytes"))
        rows.append((NAMES[name][chosen], *times, *sizes))
    return "\n".join([about, "", *("| " + " | ".join(row) + " |" for row in rows)])


def pages() -> dict[Path, str]:
    """The documentation's pages as they should be."""
    result = json.loads(RESULTS.read_text("utf8"))
    return {
        path: replace_section(path.read_text("utf8"), table(result, language), "lab-pages")
        for language, path in DOCS.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--write", action="store_true", help="only write the tables from the kept results")
    parser.add_argument("--visits", type=int, default=5, help="visits of a page after its first one")
    parser.add_argument("--clicks", type=int, default=5, help="clicks in each visit")
    parser.add_argument("--pages", nargs="*", default=list(PAGES), help="only these pages; nothing is kept")
    given = parser.parse_args()
    if not given.write:
        result = measure(given.pages, given.visits, given.clicks)
        if set(given.pages) != set(PAGES):
            return
        RESULTS.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", "utf8")
    for path, text in pages().items():
        path.write_text(text, "utf8")


if __name__ == "__main__":
    main()
