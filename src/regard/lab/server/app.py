"""The lab's server as an application: who may ask, how much, and who answers.

Every call is `POST /api/PAGE/CALL` with a JSON body, answered by a function of `api/PAGE.py`; the answer is JSON, or a
pack where it holds tensors. Each body says all that is asked: nothing of a page is remembered here.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import hmac
import json
import re
from collections.abc import Callable
from contextlib import asynccontextmanager
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

try:
    from starlette.applications import Starlette
    from starlette.datastructures import Headers
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import JSONResponse, RedirectResponse, Response
    from starlette.routing import Route
except ImportError:
    from ...errors import Missing

    raise Missing('The lab needs starlette and uvicorn: pip install "regard[lab]".') from None

from ...errors import RegardError
from ..lab import UPLOAD, Lab
from ..library import Unknown
from .jobs import Busy, Cancelled, Job
from .wire import has_tensors, pack, to_json

PAGES = ("formula", "heads", "alignment", "honest", "image", "sound", "graph", "mechanisms", "long", "runs")
BODY = 4 << 20
"""Bytes of a JSON body."""
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".json": "application/json",
}
COOKIE = "regard-lab"


class Refusal(Exception):
    """A request that is turned away before any work, with its status."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status, self.words = status, words


def make_app(lab: Lab, token: str, hosts: tuple[str, ...] = ("127.0.0.1", "localhost")) -> Any:
    """The application; `hosts` are the names (with their port) that it may be called by."""
    site = Site(lab, token, hosts)
    routes = [
        Route("/", site.index),
        Route("/static/{path:path}", site.static),
        Route("/favicon.ico", site.icon),
        Route("/api/models", site.models),
        Route("/api/examples", site.examples),
        Route("/api/upload", site.upload, methods=["POST"]),
        Route("/api/page", site.page, methods=["POST"]),
        Route("/api/job/{name}", site.job, methods=["GET", "DELETE"]),
        Route("/api/{page}/{call}", site.call, methods=["POST"]),
    ]

    @asynccontextmanager
    async def lifespan(app: Any):
        yield
        lab.work.close()

    app = Starlette(
        routes=routes,
        exception_handlers={404: site.missing, 405: site.missing, Exception: site.failed},
        lifespan=lifespan,
    )
    return Guard(app, site)


class Guard:
    """Lets through only requests to this machine, from this page, by whoever was given the token."""

    def __init__(self, app: Any, site: Site) -> None:
        self.app, self.site = app, site

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            answer = self.site.admit(scope)
        except Refusal as refusal:
            answer = said(refusal.status, refusal.words)
        await (self.app if answer is None else answer)(scope, receive, self.sealed(send))

    def sealed(self, send: Any) -> Any:
        """Every answer says that it may not be framed, guessed at or kept."""

        async def sending(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = [(name, value) for name, value in message["headers"] if name.lower() != b"server"]
                message["headers"] = headers + [
                    (name.encode(), value.encode()) for name, value in self.site.seal.items()
                ]
            await send(message)

        return sending


class Site:
    """The answers."""

    def __init__(self, lab: Lab, token: str, hosts: tuple[str, ...]) -> None:
        self.lab, self.token, self.hosts = lab, token, hosts
        self.cookie = hashlib.sha256(b"cookie" + token.encode()).hexdigest()
        self.port = next((host.rpartition(":")[2] for host in hosts if ":" in host), "")
        self.folder = Path(str(files("regard.lab").joinpath("static")))

    @property
    def seal(self) -> dict[str, str]:
        scripts = " ".join(f"'{one}'" for one in inline_hashes(self.folder / "index.html"))
        policy = (
            f"default-src 'none'; script-src 'self' {scripts}; style-src 'self' 'unsafe-inline'; connect-src 'self'; "
            "img-src 'self' data: blob:; media-src 'self' blob:; font-src 'self'; base-uri 'none'; form-action 'none'; "
            "frame-ancestors 'none'"
        )
        return {
            "content-security-policy": policy,
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            "cross-origin-resource-policy": "same-origin",
            "cache-control": "no-store",
        }

    @property
    def cookie_name(self) -> str:
        """Cookies are shared by all ports of a host, so the name has the port."""
        return f"{COOKIE}-{self.port}" if self.port else COOKIE

    def admit(self, scope: Any) -> Response | None:
        """None to let a request through; `Refusal` where it is turned away."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if host not in self.hosts:
            raise Refusal(403, f"This lab answers to {self.hosts[0]} alone; the request was for {host!r:.80}.")
        origin = headers.get("origin")
        if origin is not None and origin not in {f"http://{one}" for one in self.hosts}:
            raise Refusal(403, f"A page of {origin!r:.80} may not ask this lab. Open {self.hosts[0]} itself.")
        request = Request(scope)
        given = request.query_params.get("token")
        if scope["path"] == "/" and given is not None and same(given, self.token):
            answer = RedirectResponse("/", 303)
            answer.set_cookie(self.cookie_name, self.cookie, httponly=True, samesite="lax", path="/")
            return answer
        if same(request.cookies.get(self.cookie_name, ""), self.cookie) or same(headers.get("x-token", ""), self.token):
            return None
        raise Refusal(401, "This lab opens with the address that `regard lab` printed, token included. Open that one.")

    async def index(self, request: Request) -> Response:
        return self.file("index.html", request)

    async def static(self, request: Request) -> Response:
        return self.file(request.path_params["path"], request)

    async def icon(self, request: Request) -> Response:
        return Response(status_code=204)

    def file(self, name: str, request: Request) -> Response:
        """A file of the page, compressed for who can read it so; nothing else can be named."""
        path = (self.folder / name).resolve()
        if not path.is_relative_to(self.folder.resolve()) or not path.is_file() or path.suffix not in TYPES:
            return said(404, f"There is no file {name!r:.80} in this page.")
        data, headers = path.read_bytes(), {"vary": "accept-encoding"}
        if "gzip" in request.headers.get("accept-encoding", ""):
            data, headers = gzip.compress(data, mtime=0), headers | {"content-encoding": "gzip"}
        return Response(data, media_type=TYPES[path.suffix], headers=headers)

    async def models(self, request: Request) -> Response:
        listed = await asyncio.to_thread(self.lab.library.entries)
        return answered([entry.as_dict() for entry in listed.values()])

    async def examples(self, request: Request) -> Response:
        from ..inputs.examples import EXAMPLES

        return answered(EXAMPLES)

    async def upload(self, request: Request) -> Response:
        try:
            data = await body_of(request, UPLOAD)
        except Refusal as refusal:
            return said(refusal.status, refusal.words)
        if not data:
            return said(400, "The upload is empty. Choose a file.")
        return answered({"upload": self.lab.keep(data), "bytes": len(data)})

    async def job(self, request: Request) -> Response:
        job = self.lab.work.find(request.path_params["name"])
        if job is None:
            return said(404, "There is no such job; it may have ended long ago.")
        if request.method == "DELETE":
            job.cancel()
        return answered(job.as_dict())

    async def page(self, request: Request) -> Response:
        from .export import page_for

        return await self.work(request, page_for)

    async def call(self, request: Request) -> Response:
        page, name = request.path_params["page"], request.path_params["call"]
        try:
            handler = find_call(page, name)
        except Unknown as error:
            return said(404, str(error))
        return await self.work(request, handler)

    async def work(self, request: Request, handler: Callable[[Lab, dict, Job], Any]) -> Response:
        """Have a handler work in the background, and stop it when whoever asked goes away."""
        try:
            ask = read_ask(await body_of(request, BODY))
        except Refusal as refusal:
            return said(refusal.status, refusal.words)
        except ClientDisconnect:
            return said(499, "Gone.")
        job = Job(job_name(request))
        try:
            future = self.lab.work.start(job, lambda job: wrapped(handler(self.lab, ask, job)))
        except Busy as error:
            return said(429, str(error))
        waiting = asyncio.ensure_future(asyncio.wrap_future(future))
        while not waiting.done():
            await asyncio.wait({waiting}, timeout=0.1)
            if not waiting.done() and await request.is_disconnected():
                job.cancel()
                if future.cancel():
                    break
        return outcome(waiting)

    async def missing(self, request: Request, error: Exception) -> Response:
        return said(
            getattr(error, "status_code", 404), f"There is nothing at {request.url.path!r:.80} for {request.method}."
        )

    async def failed(self, request: Request, error: Exception) -> Response:
        return said(500, f"The lab failed: {type(error).__name__}. Its terminal says where.")


def outcome(waiting: asyncio.Future) -> Response:
    """The answer of work that has ended, well or not."""
    try:
        data, kind = waiting.result()
    except (Cancelled, asyncio.CancelledError):
        return said(499, "The work was cancelled.")
    except Unknown as error:
        return said(404, paragraph(error))
    except RegardError as error:
        return said(400, paragraph(error))
    except MemoryError:
        return said(400, "There is not enough memory for that. Ask for less: a shorter text, or a pooled map.")
    return Response(data, media_type=kind)


def find_call(page: str, name: str) -> Callable[[Lab, dict, Job], Any]:
    """The function that answers a call."""
    if page not in PAGES:
        raise Unknown(f"There is no page {page!r:.40}. There are: {', '.join(PAGES)}.")
    try:
        calls = import_module(f"regard.lab.api.{page}").CALLS
    except ModuleNotFoundError:
        raise Unknown(f"The page {page!r} has no calls.") from None
    if name not in calls:
        raise Unknown(f"The page {page!r} has no call {name!r:.40}. It has: {', '.join(calls)}.")
    return calls[name]


def wrapped(answer: Any) -> tuple[bytes, str]:
    """An answer's bytes and their type."""
    if isinstance(answer, str):
        return answer.encode("utf-8", "replace"), "text/html; charset=utf-8"
    if has_tensors(answer):
        return pack(answer), "application/octet-stream"
    return to_json(answer), "application/json"


async def body_of(request: Request, most: int) -> bytes:
    """The request's body; `Refusal` as soon as it is known to be too large."""
    told = request.headers.get("content-length", "")
    words = f"The request has more than the {most / 2**20:.0f} MiB that are taken. Send less: a smaller file or text."
    if told.isdigit() and int(told) > most:
        raise Refusal(413, words)
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise Refusal(413, words)
        parts.append(part)
    return b"".join(parts)


def read_ask(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data or b"{}")
    except (ValueError, RecursionError):
        raise Refusal(400, "The body is no JSON. Send one JSON object.") from None
    if not isinstance(found, dict):
        raise Refusal(400, f"The body is a {type(found).__name__}; it must be one JSON object.")
    return found


def job_name(request: Request) -> str:
    """The name that the page gives its request, by which it can ask how far it is."""
    name = request.headers.get("x-job", "")
    return name if re.fullmatch(r"[\w-]{1,64}", name) else ""


def same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())


def paragraph(error: Exception) -> str:
    return " ".join(str(error).split())


def said(status: int, words: str) -> Response:
    return JSONResponse({"error": words}, status)


def answered(value: Any) -> Response:
    return Response(to_json(value), media_type="application/json")


def inline_hashes(page: Path) -> list[str]:
    """The hashes by which the page's own inline scripts (its import map) may run, and no others."""
    if not page.is_file():
        return []
    found = re.findall(r"<script(?![^>]*\bsrc=)[^>]*>(.*?)</script>", page.read_text("utf8"), re.DOTALL)
    return [f"sha256-{base64.b64encode(hashlib.sha256(one.encode()).digest()).decode()}" for one in found]
