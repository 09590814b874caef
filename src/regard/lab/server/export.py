"""A view of the lab as one HTML file that works offline: the page's own modules and the answers that it shows.

Every request of the view is answered again here (answers are cached, so that costs little) and written into the file,
where the page finds it in place of a server.
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
from ..inputs.examples import list_examples
from ..lab import Lab
from .jobs import Job
from .wire import has_tensors, pack, replace_nonfinite

MAX_REQUESTS, MAX_BYTES = 256, 64 << 20
"""Requests of a view, and bytes of a file."""
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data: blob:; "
    "media-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'"
)
STATIC = Path(str(files("regard.lab").joinpath("static")))


def export_view(lab: Lab, request: dict[str, Any], job: Job) -> str:
    """The HTML file of a view, `{"state": {...}, "asks": [{"path": "heads/run", "body": {...}}, ...]}`."""
    state, calls = request.get("state"), request.get("asks", [])
    if not isinstance(state, dict) or not isinstance(calls, list) or len(calls) > MAX_REQUESTS:
        raise BadInput(f"A page needs its state, an object, and its asks, a list of at most {MAX_REQUESTS}.")
    answers = []
    for n, call in enumerate(calls):
        job.report(n, len(calls), {"en": "answers written", "zh": "已写入的答案"})
        answers.append(record_answer(lab, call, job))
    return render_page(state, answers, lab)


def record_answer(lab: Lab, call: Any, job: Job) -> dict[str, Any]:
    """A call with its answer, as the page stores it."""
    from .app import find_call

    path, body = (call.get("path"), call.get("body", {})) if isinstance(call, dict) else (None, None)
    if not isinstance(path, str) or path.count("/") != 1 or not isinstance(body, dict):
        raise BadInput(f"An ask is {call!r:.80}; it must have a path, such as heads/run, and a body.")
    answer = find_call(*path.split("/"))(lab, body, job)
    if has_tensors(answer):
        return {"path": path, "body": body, "pack": base64.b64encode(pack(answer)).decode()}
    return {"path": path, "body": body, "json": replace_nonfinite(answer)}


def render_page(state: dict[str, Any], answers: list[dict[str, Any]], lab: Lab) -> str:
    """The lab's index.html with its style, its modules and the answers inside."""
    models = [entry.as_dict() for entry in lab.library.entries().values()]
    content = {
        "state": state,
        "models": models,
        "examples": list_examples({model["name"] for model in models}),
        "answers": answers,
    }
    data = f'<script type="application/json" id="recorded">{script_json(content)}</script>'
    text = (STATIC / "index.html").read_text("utf8")
    for pattern, replacement in (
        (
            r"<meta charset=[^>]*>",
            f'<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">',
        ),
        (r'<link rel="stylesheet"[^>]*>', f"<style>\n{(STATIC / 'style.css').read_text('utf8')}</style>"),
        (
            r'<script type="importmap">.*?</script>',
            f'<script type="importmap">{script_json({"imports": script_modules()})}</script>',
        ),
        (r'<script type="module"[^>]*></script>', f'{data}\n<script type="module">import "lab/main.js"</script>'),
    ):
        text, count = re.subn(pattern, lambda _, replacement=replacement: replacement, text, count=1, flags=re.DOTALL)
        if not count:
            raise BadInput(f"The page's index.html has no {pattern!r}, so it cannot be made into one file.")
    if len(text) > MAX_BYTES:
        raise TooLarge(
            f"The file would have {len(text):,} bytes; the limit is {MAX_BYTES:,}. Show fewer tokens or heads."
        )
    return text


def script_modules() -> dict[str, str]:
    """Every JavaScript module as a data URL, under the name that others import it by."""
    scripts = {path.relative_to(STATIC).as_posix(): path.read_bytes() for path in sorted(STATIC.rglob("*.js"))}
    prefix = "data:text/javascript;base64,"
    return {f"lab/{name}": prefix + base64.b64encode(data).decode() for name, data in scripts.items()}
