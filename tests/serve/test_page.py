"""The page of `regard serve` in a browser: it predicts, in both languages, without a file from elsewhere."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import regard as rg

from .running import running

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

VISIT = """
import json, sys
from playwright.sync_api import sync_playwright
with sync_playwright() as started:
    browser = started.chromium.launch(executable_path=sys.argv[1], args=["--no-sandbox"])
    page = browser.new_page(locale="en-US")
    problems, hosts = [], set()
    page.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: hosts.add(request.url.split("/")[2]))
    page.goto(sys.argv[2])
    page.wait_for_function("() => document.title.includes('tagger')")
    page.fill("#input", "The cat sat .")
    page.click("#send")
    page.wait_for_function("() => document.getElementById('answer').textContent.includes('NOUN')")
    english = page.inner_text("#send")
    page.click("#language")
    page.wait_for_function("() => document.documentElement.lang === 'zh'")
    print(json.dumps({"problems": problems, "hosts": sorted(hosts), "english": english,
                      "chinese": page.inner_text("#send"), "shell": page.inner_text("#shell"),
                      "language": page.evaluate("document.documentElement.lang")}))
    browser.close()
"""


@pytest.mark.browser
def test_the_page_predicts_in_both_languages(chromium: str) -> None:
    """In a process of its own: the lab's tests may hold a browser in this one."""
    with running(rg.open("tagger")) as client:
        command = [sys.executable, "-c", VISIT, chromium, client.address + "/"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["problems"] == [] and seen["hosts"] == [f"127.0.0.1:{client.port}"]
    assert (seen["english"], seen["chinese"], seen["language"]) == ("Predict", "预测", "zh")
    assert seen["shell"].startswith(f"curl {client.address}/predict")
