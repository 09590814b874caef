"""A view of the lab as one HTML file that works by itself: the page's own modules, and the answers that it shows.

Every question that the view has asked is asked again here (answers are kept, so that costs little) and its answer is
written into the file, where the page finds it instead of a server.
"""

from __future__ import annotations

import base64
import re
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from ...errors import BadInput, TooLarge
from ...plots.page import script_json
from ..inputs.examples import EXAMPLES
from ..lab import Lab
from .jobs import Job
from .wire import cleaned, has_tensors, pack

ASKS, LARGEST = 256, 64 << 20
"""Questions of a view, and bytes of a file."""
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data: blob:; "
    "media-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'"
)
STATIC = Path(str(files("regard.lab").joinpath("static")))


def page_for(lab: Lab, ask: dict[str, Any], job: Job) -> str:
    """The file for a view, `{"state": {...}, "asks": [{"path": "heads/run", "body": {...}}, ...]}`."""
    state, asks = ask.get("state"), ask.get("asks", [])
    if not isinstance(state, dict) or not isinstance(asks, list) or len(asks) > ASKS:
        raise BadInput(f"A page needs its state, an object, and its asks, a list of at most {ASKS}.")
    answers = []
    for n, one in enumerate(asks):
        job.tell(n, len(asks), {"en": "answers written", "zh": "已写入的答案"})
        answers.append(recorded(lab, one, job))
    return page(state, answers, lab)


def recorded(lab: Lab, one: Any, job: Job) -> dict[str, Any]:
    """A question with its answer, as the page keeps it."""
    from .app import find_call

    path, body = (one.get("path"), one.get("body", {})) if isinstance(one, dict) else (None, None)
    if not isinstance(path, str) or path.count("/") != 1 or not isinstance(body, dict):
        raise BadInput(f"An ask is {one!r:.80}; it must have a path, such as heads/run, and a body.")
    answer = find_call(*path.split("/"))(lab, body, job)
    if has_tensors(answer):
        return {"path": path, "body": body, "pack": base64.b64encode(pack(answer)).decode()}
    return {"path": path, "body": body, "json": cleaned(answer)}


def page(state: dict[str, Any], answers: list[dict[str, Any]], lab: Lab) -> str:
    """The whole document."""
    models = [entry.as_dict() for entry in lab.library.entries().values()]
    kept = {"state": state, "models": models, "examples": EXAMPLES, "answers": answers}
    data = f'<script type="application/json" id="recorded">{script_json(kept)}</script>'
    text = (STATIC / "index.html").read_text("utf8")
    for pattern, other in (
        (
            r"<meta charset=[^>]*>",
            f'<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">',
        ),
        (r'<link rel="stylesheet"[^>]*>', f"<style>\n{(STATIC / 'style.css').read_text('utf8')}</style>"),
        (
            r'<script type="importmap">.*?</script>',
            f'<script type="importmap">{script_json({"imports": modules()})}</script>',
        ),
        (r'<script type="module"[^>]*></script>', f'{data}\n<script type="module">import "lab/main.js"</script>'),
    ):
        text, count = re.subn(pattern, lambda _, other=other: other, text, count=1, flags=re.DOTALL)
        if not count:
            raise BadInput(f"The page's index.html has no {pattern!r}, so that it cannot be made into one file.")
    if len(text) > LARGEST:
        raise TooLarge(
            f"The file would have {len(text):,} bytes; {LARGEST:,} are the most. Show fewer tokens or heads."
        )
    return text


def modules() -> dict[str, str]:
    """Every module of the page under the name that others import it by."""
    held = {path.relative_to(STATIC).as_posix(): path.read_bytes() for path in sorted(STATIC.rglob("*.js"))}
    start = "data:text/javascript;base64,"
    return {f"lab/{name}": start + base64.b64encode(data).decode() for name, data in held.items()}
