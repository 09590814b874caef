"""A view of the lab as one HTML file that works offline: the page's own modules and the answers that it can show.

Every request of the view is answered again here (answers are cached, so that costs little) and written into the file,
where the page finds it in place of a server. After those that were shown come those that the page could show: other
queries, heads, nodes. They are written while there is room and time, and the file says how many are left out.
"""

from __future__ import annotations

import base64
import gzip
import re
import time
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TypedDict

from ...errors import BadInput, RegardError, TooLarge
from ...plots.page import script_json
from ..api.request import check_index, read_count
from ..inputs.examples import list_examples
from ..lab import Lab
from ..protocol import Json, JsonObject, Request
from .jobs import Job
from .wire import has_tensors, pack, replace_nonfinite

MAX_REQUESTS, MAX_BYTES = 4096, 64 << 20
"""Requests of a view, and bytes of a file."""
BUDGET, SECONDS = 24 << 20, 60.0
"""Bytes of answers, and seconds, up to which answers that were not shown are added."""
MIN_COMPRESSED = 1 << 14
"""Bytes of an answer from which on it is compressed."""
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data: blob:; "
    "media-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'"
)
STATIC = Path(str(files("regard.lab").joinpath("static")))


class Recorded(TypedDict, total=False):
    """A request with its answer: JSON, or packed tensors in base64, gzipped or not."""

    path: str
    body: JsonObject
    base: Json
    json: object
    zip: str
    pack: str


def export_view(lab: Lab, request: Request, job: Job) -> str:
    """The HTML file of a view, `{"state": {...}, "asks": [{"path": "heads/run", "body": {...}}, ...]}`.

    An ask with `base` has the fields of that entry of `bases` too, so that a long text is sent once. The first `shown`
    asks must be answered (all of them by default); the others are added while there is room.
    """
    state, calls, bases = request.get("state"), request.get("asks", []), request.get("bases", [])
    if not isinstance(state, dict) or not isinstance(calls, list) or len(calls) > MAX_REQUESTS:
        raise BadInput(f"A page needs its state, an object, and its asks, a list of at most {MAX_REQUESTS}.")
    shown, started, size = read_count(request, "shown", len(calls)), time.monotonic(), 0
    answers: list[Recorded] = []
    for n, call in enumerate(calls):
        job.report(n, len(calls), {"en": "answers written", "zh": "已写入的答案"})
        if n >= shown and (size > BUDGET or time.monotonic() - started > SECONDS):
            break
        try:
            answers.append(record_answer(lab, call, bases, job))
        except RegardError:
            if n < shown:
                raise
            continue
        size += sum(len(value) for value in answers[-1].values() if isinstance(value, str))
    return render_page(state, answers, bases, len(calls) - len(answers), lab)


def record_answer(lab: Lab, call: Json, bases: Json, job: Job) -> Recorded:
    """A call with its answer, as the page stores it: JSON, or packed tensors, compressed where that helps."""
    from .app import find_call

    fields = call if isinstance(call, dict) else {}
    path, body = fields.get("path"), fields.get("body", {})
    if not isinstance(path, str) or path.count("/") != 1 or not isinstance(body, dict):
        raise BadInput(f"An ask is {call!r:.80}; it must have a path, such as heads/run, and a body.")
    record: Recorded = {"path": path, "body": body}
    if "base" in fields:
        record["base"] = fields["base"]
        base = bases[check_index(fields["base"], len(bases), "base")] if isinstance(bases, list) else None
        if not isinstance(base, dict):
            raise BadInput(f"An ask is {call!r:.80}; it must have a path, such as heads/run, and a body.")
        body = base | body
    answer = find_call(*path.split("/"))(lab, body, job)
    if not has_tensors(answer):
        return {**record, "json": replace_nonfinite(answer)}
    data = pack(answer)
    small = gzip.compress(data, 6, mtime=0) if len(data) > MIN_COMPRESSED else data
    if len(small) < 0.8 * len(data):
        return {**record, "zip": base64.b64encode(small).decode()}
    return {**record, "pack": base64.b64encode(data).decode()}


def render_page(state: JsonObject, answers: list[Recorded], bases: Json, left_out: int, lab: Lab) -> str:
    """The lab's index.html with its style, its modules and the answers inside."""
    models = [entry.as_dict() for entry in lab.library.entries().values()]
    content = {
        "state": state,
        "models": models,
        "examples": list_examples({model["name"] for model in models}),
        "bases": bases,
        "answers": answers,
        "left_out": left_out,
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
