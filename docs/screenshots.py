"""Pictures of the lab's pages, in both languages, into docs/lab: `python docs/screenshots.py [page …]`.

`python docs/screenshots.py --course FOLDER [step …]` makes contact sheets of the course instead, to look at: every step
in both languages, light and dark, on a desktop and on a phone, a sheet for each six or eight steps.

The lab is started on the shipped models, so the pictures show what `regard lab` shows. Needs Chromium and playwright.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

FOLDER = Path(__file__).parent / "lab"
WIDTH, TALLEST, LARGEST = 1200, 1500, 150_000
"""Pixels across and down at most, and bytes of a picture."""
ANIMAL = "The animal didn't cross the street because it was too tired."
VIEWS = {
    "course": {},
    "formula": {"en": f"text={ANIMAL}"},
    "heads": {},
    "compare": {},
    "alignment": {},
    "honest": {},
    "image": {},
    "sound": {},
    "graph": {},
    "mechanisms": {},
    "long": {},
    "runs": {},
    "experiments": {},
}


DEVICES = {"desktop": (1440, 900, 3, 6), "phone": (390, 844, 8, 8)}
"""Width and height of a course's page, and how many stand in a row and on a sheet."""


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
            if wanted[:1] == ["--course"]:
                save_course(browser, address, Path(wanted[1]), wanted[2:])
                return
            FOLDER.mkdir(exist_ok=True)
            for name in wanted or VIEWS:
                for language in ("en", "zh"):
                    place = f"{name}?lang={language}&theme=light&{VIEWS[name].get(language, '')}"
                    save(picture(browser, f"{address}#{place}"), FOLDER / f"{name}-{language}.png")
    finally:
        lab.terminate()


def picture(browser: Browser, address: str) -> Image.Image:
    """The page as it is once it asks for nothing more."""
    page = browser.new_page(viewport={"width": WIDTH, "height": 900}, reduced_motion="reduce")
    page.goto(address)
    page.wait_for_selector("html[data-busy=no] #main[data-ready]", timeout=120_000)
    page.wait_for_timeout(700)
    tall = min(TALLEST, page.evaluate("document.documentElement.scrollHeight"))
    shot = page.screenshot(full_page=True, clip={"x": 0, "y": 0, "width": WIDTH, "height": tall})
    page.close()
    return Image.open(BytesIO(shot)).convert("RGB")


def save_course(browser: Browser, address: str, folder: Path, wanted: list[str]) -> None:
    """Contact sheets of the course's steps; says where a page is too wide or its first picture too far down."""
    from regard.course import list_steps

    folder.mkdir(parents=True, exist_ok=True)
    steps = [step.name for step in list_steps() if not wanted or step.name in wanted]
    for device, (width, height, across, count) in DEVICES.items():
        for language in ("en", "zh"):
            for theme in ("light", "dark"):
                page = browser.new_page(viewport={"width": width, "height": height}, reduced_motion="reduce")
                page.goto(f"{address}#course?lang={language}&theme={theme}")
                shots = [course_picture(page, step, f"lang={language}&theme={theme}") for step in steps]
                page.close()
                for n in range(0, len(shots), count):
                    path = folder / f"{device}-{language}-{theme}-{n // count:02d}.png"
                    contact_sheet(shots[n : n + count], across).save(path)
                    print(path)


def course_picture(page: Page, step: str, state: str) -> Image.Image:
    """A step from its title to its verdicts; the code below is the same on all."""
    script = "place => { delete document.getElementById('main').dataset.ready; location.hash = place; }"
    page.evaluate(script, f"course?{state}&step={step}")
    page.wait_for_selector("html[data-busy=no] #main[data-ready]", timeout=120_000)
    page.wait_for_timeout(200)
    measure = "[document.documentElement.scrollWidth, document.querySelector('.picture').getBoundingClientRect().top]"
    wide, top = page.evaluate(measure)
    size = page.viewport_size or {"width": WIDTH, "height": 900}
    if wide > size["width"] or (top > 250 and size["width"] > 1000) or top > size["height"] / 2:
        print(f"{step} ({state}): {wide} pixels wide, first picture at {top:.0f}")
    tall = page.evaluate("document.querySelector('.course-code').offsetTop")
    left = 210 if size["width"] > 1000 else 0
    clip = {"x": left, "y": 0, "width": size["width"] - left, "height": min(tall, 2400)}
    return Image.open(BytesIO(page.screenshot(full_page=True, clip=clip))).convert("RGB")  # type: ignore[arg-type]


def contact_sheet(shots: list[Image.Image], across: int) -> Image.Image:
    """The pictures in rows, 1800 pixels wide together."""
    rows = [shots[n : n + across] for n in range(0, len(shots), across)]
    heights = [max(shot.height for shot in row) for row in rows]
    sheet = Image.new("RGB", (shots[0].width * across, sum(heights)), "grey")
    for n, row in enumerate(rows):
        for column, shot in enumerate(row):
            sheet.paste(shot, (column * shot.width, sum(heights[:n])))
    return sheet.resize((1800, sheet.height * 1800 // sheet.width))


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
