"""Pictures of the lab's pages, in both languages, into docs/lab: `python docs/screenshots.py [page …]`.

The lab is started on the shipped models, so the pictures show what `regard lab` shows. Needs Chromium and playwright.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

FOLDER = Path(__file__).parent / "lab"
WIDTH, TALLEST, LARGEST = 1200, 1500, 150_000
"""Pixels across and down at most, and bytes of a picture."""
ANIMAL = "The animal didn't cross the street because it was too tired."
VIEWS = {
    "formula": {"en": f"text={ANIMAL}&stage=4", "zh": "model=meanings&text=猫追狗&query=1&stage=4"},
    "heads": {"en": f"text={ANIMAL}&attention=2&head=0&query=6", "zh": "text=A打了B&model=meanings&head=0"},
    "alignment": {},
    "honest": {},
    "image": {},
    "sound": {},
    "graph": {},
    "mechanisms": {},
    "long": {},
    "runs": {},
}


def main(wanted: list[str]) -> None:
    lab = subprocess.Popen(
        [sys.executable, "-m", "regard.cli", "lab", "--no-open"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert lab.stdout is not None
        address = lab.stdout.readline().strip()
        with sync_playwright() as started:
            browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            FOLDER.mkdir(exist_ok=True)
            for name in wanted or VIEWS:
                for language in ("en", "zh"):
                    place = f"{name}?lang={language}&theme=light&{VIEWS[name].get(language, '')}"
                    save(picture(browser, f"{address}#{place}"), FOLDER / f"{name}-{language}.png")
    finally:
        lab.terminate()


def picture(browser: Browser, address: str) -> Image.Image:
    """The page as it is once it asks for nothing more."""
    page = browser.new_page(viewport={"width": WIDTH, "height": 900})
    page.goto(address)
    page.wait_for_selector("html[data-busy=no] #main[data-ready]", timeout=120_000)
    page.wait_for_timeout(700)
    tall = min(TALLEST, page.evaluate("document.documentElement.scrollHeight"))
    shot = page.screenshot(full_page=True, clip={"x": 0, "y": 0, "width": WIDTH, "height": tall})
    page.close()
    return Image.open(BytesIO(shot)).convert("RGB")


def save(shot: Image.Image, path: Path) -> None:
    """Save with as many colours as fit."""
    for colours in (256, 128, 64, 32):
        held = BytesIO()
        shot.quantize(colours, Image.Quantize.MEDIANCUT, kmeans=3, dither=Image.Dither.NONE).save(
            held, "PNG", optimize=True
        )
        if held.tell() <= LARGEST:
            break
    path.write_bytes(held.getvalue())
    print(f"{path} {shot.width} × {shot.height}, {held.tell():,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
