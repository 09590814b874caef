"""The lab's web application: access control, limits, and the routes to the calls of each page.

Every call is `POST /api/PAGE/CALL` with a JSON body, answered by a function in `api/`; the answer is JSON, or the
format of `wire.py` when it holds tensors. Requests are stateless: the body has everything that a call needs.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import hmac
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from importlib.resources import files
from pathlib import Path

try:
    from starlette.applications import Starlette
    from starlette.datastructures import Headers
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import RedirectResponse, Response
    from starlette.routing import Route
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
except ImportError:
    from ...errors import Missing

    raise Missing('The lab needs starlette and uvicorn: pip install "regard[lab]".') from None

from ...errors import RegardError
from ..lab import MAX_UPLOAD, Lab
from ..library import NotFound
from ..protocol import Answer, Json, JsonObject
from ..protocol import Request as CallRequest
from .access_page import access_page
from .error_texts import translate
from .jobs import Cancelled, Job, QueueFull
from .wire import has_tensors, pack, to_json

Call = Callable[[Lab, CallRequest, Job], Answer]
ErrorHandler = Callable[[Request, Exception], Awaitable[Response]]
PAGES = {
    "course": "course",
    "experiments": "experiments",
    "formula": "formula",
    "heads": "heads",
    "alignment": "alignment",
    "compare": "compare",
    "honest": "attribution",
    "image": "image",
    "sound": "sound",
    "graph": "graph",
    "mechanisms": "mechanisms",
    "long": "long",
    "runs": "runs",
}
"""The pages, and the module of `api/` that answers the calls of each."""
MAX_BODY = 4 << 20
"""Bytes of a JSON body."""
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".json": "application/json",
}
COOKIE = "regard-lab"
FORWARD = '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url=/"><title>Regard</title>'
"""The answer to a link on another page: browsers withhold a strict cookie from the redirects of such a click."""


class RequestError(Exception):
    """A request that is refused before any job starts, with its HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


def make_app(lab: Lab, token: str, hosts: tuple[str, ...] = ("127.0.0.1", "localhost")) -> AccessControl:
    """The ASGI application; `hosts` are the host names, with their port, that it serves."""
    handlers = Handlers(lab, token, hosts)
    routes = [
        Route("/", handlers.index),
        Route("/static/{path:path}", handlers.static),
        Route("/favicon.ico", handlers.icon),
        Route("/api/models", handlers.models),
        Route("/api/examples", handlers.examples),
        Route("/api/upload", handlers.upload, methods=["POST"]),
        Route("/api/page", handlers.page, methods=["POST"]),
        Route("/api/job/{name}", handlers.job, methods=["GET", "DELETE"]),
        Route("/api/{page}/{call}", handlers.call, methods=["POST"]),
    ]

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        lab.jobs.close()

    errors: dict[int | type[Exception], ErrorHandler] = {
        404: handlers.not_found,
        405: handlers.not_found,
        Exception: handlers.server_error,
    }
    return AccessControl(Starlette(routes=routes, exception_handlers=errors, lifespan=lifespan), handlers)


class AccessControl:
    """Middleware: passes requests to this host, from this origin, with the token; adds the security headers."""

    def __init__(self, app: ASGIApp, handlers: Handlers) -> None:
        self.app, self.handlers = app, handlers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [(name, value) for name, value in message["headers"] if name.lower() != b"server"]
                added = [(name.encode(), value.encode()) for name, value in self.handlers.security_headers.items()]
                message["headers"] = headers + added
            await send(message)

        try:
            response = self.handlers.authorize(scope)
        except RequestError as error:
            response = self.handlers.refuse(scope, error)
        await (self.app if response is None else response)(scope, receive, send_secured)


class Handlers:
    """The request handlers."""

    def __init__(self, lab: Lab, token: str, hosts: tuple[str, ...]) -> None:
        self.lab, self.token, self.hosts = lab, token, hosts
        self.cookie = hashlib.sha256(b"cookie" + token.encode()).hexdigest()
        # cookies are shared by all ports of a host, so the name includes the port
        port = next((host.rpartition(":")[2] for host in hosts if ":" in host), "")
        self.cookie_name = f"{COOKIE}-{port}" if port else COOKIE
        self.folder = Path(str(files("regard.lab").joinpath("static")))

    @property
    def security_headers(self) -> dict[str, str]:
        scripts = " ".join(f"'{digest}'" for digest in script_hashes(self.folder / "index.html"))
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

    def authorize(self, scope: Scope) -> Response | None:
        """None for a request that may pass, a redirect that sets the cookie, or `RequestError`."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if host not in self.hosts:
            raise RequestError(403, f"This lab answers to {self.hosts[0]} only; the request was for {host!r:.80}.")
        origin = headers.get("origin")
        if origin is not None and origin not in {f"http://{name}" for name in self.hosts}:
            raise RequestError(403, f"A page of {origin!r:.80} may not call this lab. Open {self.hosts[0]} itself.")
        request = Request(scope)
        token = request.query_params.get("token")
        if scope["path"] == "/" and token is not None and same_secret(token, self.token):
            elsewhere = headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
            response = Response(FORWARD, media_type="text/html") if elsewhere else RedirectResponse("/", 303)
            response.set_cookie(self.cookie_name, self.cookie, httponly=True, samesite="strict", path="/")
            return response
        cookie, header = request.cookies.get(self.cookie_name, ""), headers.get("x-token", "")
        if same_secret(cookie, self.cookie) or same_secret(header, self.token):
            return None
        raise RequestError(401, "The token is missing or wrong. Open the URL that `regard lab` printed.")

    def refuse(self, scope: Scope, error: RequestError) -> Response:
        """The error as JSON, or as a page that says what to do where a person opened the lab in a browser."""
        if scope["path"] == "/" and "text/html" in Headers(scope=scope).get("accept", ""):
            return Response(access_page(error.status, self.hosts[0]), error.status, media_type="text/html")
        return error_response(error.status, error.message)

    async def index(self, request: Request) -> Response:
        return self.file("index.html", request)

    async def static(self, request: Request) -> Response:
        return self.file(request.path_params["path"], request)

    async def icon(self, request: Request) -> Response:
        return Response(status_code=204)

    def file(self, name: str, request: Request) -> Response:
        """A static file, gzipped where the client accepts that; paths outside the folder are not served."""
        path = (self.folder / name).resolve()
        if not path.is_relative_to(self.folder.resolve()) or not path.is_file() or path.suffix not in MEDIA_TYPES:
            return error_response(404, f"There is no file {name!r:.80} in this page.")
        data, headers = path.read_bytes(), {"vary": "accept-encoding"}
        if "gzip" in request.headers.get("accept-encoding", ""):
            data, headers = gzip.compress(data, mtime=0), headers | {"content-encoding": "gzip"}
        return Response(data, media_type=MEDIA_TYPES[path.suffix], headers=headers)

    async def models(self, request: Request) -> Response:
        entries = await asyncio.to_thread(self.lab.library.entries)
        return json_response([entry.as_dict() for entry in entries.values()])

    async def examples(self, request: Request) -> Response:
        from ..inputs.examples import list_examples

        entries = await asyncio.to_thread(self.lab.library.entries)
        return json_response(list_examples(set(entries)))

    async def upload(self, request: Request) -> Response:
        try:
            data = await read_body(request, MAX_UPLOAD)
        except RequestError as error:
            return error_response(error.status, error.message)
        if not data:
            return error_response(400, "The upload is empty. Choose a file.")
        return json_response({"upload": self.lab.store_upload(data), "bytes": len(data)})

    async def job(self, request: Request) -> Response:
        """The progress of a job; DELETE cancels it, or changes nothing where it has ended.

        A page asks about a request that it has named, or cancels it, also while it is on its way, where it may get
        lost. It says so with the name as `x-job` again; names of which nobody says so are not found.
        """
        name, jobs = request.path_params["name"], self.lab.jobs
        named = job_name(request) == name
        if request.method == "DELETE" and named:
            return json_response(jobs.withdraw(name).as_dict())
        job = jobs.find(name) or (Job(name) if named else None)
        if job is None:
            return error_response(404, "There is no such job; it may have ended long ago.")
        if request.method == "DELETE":
            job.cancel()
        return json_response(job.as_dict())

    async def page(self, request: Request) -> Response:
        from .export import export_view

        return await self.run_job(request, export_view)

    async def call(self, request: Request) -> Response:
        try:
            call = find_call(request.path_params["page"], request.path_params["call"])
        except NotFound as error:
            return error_response(404, str(error))
        return await self.run_job(request, call)

    async def run_job(self, request: Request, call: Callable[[Lab, CallRequest, Job], Answer | str]) -> Response:
        """The answer of a call, which runs in the background and is cancelled when the client disconnects."""
        try:
            body = parse_body(await read_body(request, MAX_BODY))
        except RequestError as error:
            return error_response(error.status, error.message)
        except ClientDisconnect:
            return error_response(499, "The client disconnected.")
        job = Job(job_name(request))
        try:
            future = self.lab.jobs.submit(job, lambda job: encode_answer(call(self.lab, body, job)))
        except QueueFull as error:
            return error_response(429, str(error))
        waiting = asyncio.ensure_future(asyncio.wrap_future(future))
        while not waiting.done():
            await asyncio.wait({waiting}, timeout=0.1)
            if not waiting.done() and await request.is_disconnected():
                job.cancel()
                if future.cancel():
                    break
        return response_of(waiting)

    async def not_found(self, request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 404
        return error_response(status, f"There is nothing at {request.url.path!r:.80} for {request.method}.")

    async def server_error(self, request: Request, error: Exception) -> Response:
        return error_response(500, f"The lab failed: {type(error).__name__}. Its terminal shows where.")


def job_name(request: Request) -> str:
    """The name that a page gives its request, to read its progress and to cancel it."""
    name = request.headers.get("x-job", "")
    return name if re.fullmatch(r"[\w-]{1,64}", name) else ""


def response_of(done: asyncio.Future) -> Response:
    """The response to a job that has ended, with an answer or an error."""
    try:
        data, media_type = done.result()
    except (Cancelled, asyncio.CancelledError):
        return error_response(499, "The job was cancelled.")
    except RegardError as error:
        return error_response(404 if isinstance(error, NotFound) else 400, " ".join(str(error).split()), type(error))
    except MemoryError:
        return error_response(400, "There is not enough memory. Give a shorter text, or use a pooled map.")
    return Response(data, media_type=media_type)


def find_call(page: str, name: str) -> Call:
    """The function that answers a call of a page."""
    if page not in PAGES:
        raise NotFound(f"There is no page {page!r:.40}. There are: {', '.join(PAGES)}.")
    calls = import_module(f"regard.lab.api.{PAGES[page]}").CALLS
    if name not in calls:
        raise NotFound(f"The page {page!r} has no call {name!r:.40}. It has: {', '.join(calls)}.")
    return calls[name]


def encode_answer(answer: Answer | str) -> tuple[bytes, str]:
    """An answer's bytes and their media type."""
    if isinstance(answer, str):
        return answer.encode("utf-8", "replace"), "text/html; charset=utf-8"
    if has_tensors(answer):
        return pack(answer), "application/octet-stream"
    return to_json(answer), "application/json"


async def read_body(request: Request, limit: int) -> bytes:
    """The request's body; raises `RequestError` as soon as it is known to be too large."""
    declared = request.headers.get("content-length", "")
    message = f"The request has more than {limit / 2**20:.0f} MiB, the most that is taken. Send a smaller file or text."
    if declared.isdigit() and int(declared) > limit:
        raise RequestError(413, message)
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise RequestError(413, message)
        chunks.append(chunk)
    return b"".join(chunks)


def parse_body(data: bytes) -> JsonObject:
    try:
        body: Json = json.loads(data or b"{}")
    except (ValueError, RecursionError):
        raise RequestError(400, "The body is not JSON. Send one JSON object.") from None
    if not isinstance(body, dict):
        raise RequestError(400, f"The body is a {type(body).__name__}; it must be one JSON object.")
    return body


def same_secret(given: str, wanted: str) -> bool:
    """Whether two secrets are equal, compared in constant time."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())


def error_response(status: int, message: str, error: type[BaseException] = RegardError) -> Response:
    """An error as JSON: the English message, and `texts` of both languages."""
    return Response(to_json({"error": message, "texts": translate(message, error)}), status, None, "application/json")


def json_response(value: object) -> Response:
    return Response(to_json(value), media_type="application/json")


def script_hashes(page: Path) -> list[str]:
    """The hashes of the page's own inline scripts (its import map), the only ones that the policy lets run."""
    if not page.is_file():
        return []
    scripts = re.findall(r"<script(?![^>]*\bsrc=)[^>]*>(.*?)</script>", page.read_text("utf8"), re.DOTALL)
    return [f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}" for script in scripts]
