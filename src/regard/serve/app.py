"""The web application of `regard serve`: access, limits and routes."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

try:
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import Response
    from starlette.routing import Route
except ImportError:
    from ..errors import Missing

    raise Missing('The server needs starlette and uvicorn: pip install "regard[lab]".') from None

from ..errors import RegardError
from ..inference.predictor import Predictor
from ..tasks.results import Result
from .batching import Batcher, Outcome
from .inputs import EXAMPLE_TEXT, Modality, RequestReader, modality_of
from .limits import RefusedRequest, ServingLimits
from .metrics import Metrics
from .openapi import describe_server

Log = Callable[[Mapping[str, object]], None]
PAGE = {"": "page.html", "page.js": "page.js", "page.css": "page.css"}
"""The files of the page, by their paths."""
MEDIA_TYPES = {"html": "text/html; charset=utf-8", "js": "text/javascript; charset=utf-8", "css": "text/css"}
SECURITY_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
SMALL_BODY = 1 << 14
"""Bytes of a body that is read without a thread of its own."""
FORGET = 2000
"""Inputs after which the caches of the task are emptied."""


@dataclass(frozen=True)
class ServerConfig:
    """How a model is served: limits, batches, the token that requests need, and the hosts that they may name."""

    limits: ServingLimits = field(default_factory=ServingLimits)
    max_batch: int = 32
    max_wait: float = 0.002
    token: str | None = None
    hosts: tuple[str, ...] | None = None
    metrics_seconds: float = 60.0


class ModelServer:
    """A model with its batcher, its counters and its OpenAPI document."""

    def __init__(self, predictor: Predictor, config: ServerConfig, log: Log) -> None:
        self.predictor, self.config, self.log = predictor, config, log
        self.modality: Modality = modality_of(predictor)
        self.reader = RequestReader(self.modality, config.limits)
        self.batcher = Batcher(self.predict, config.max_batch, config.max_wait, config.limits.queue)
        self.metrics = Metrics(self.batcher)
        self.since_forget = 0
        token = config.token is not None
        self.document = describe_server(predictor.name, self.modality, self.example(), config.limits, token)

    def predict(self, inputs: list[object]) -> list[Result]:
        self.since_forget += len(inputs)
        if self.since_forget > FORGET:
            self.predictor.clear_caches()
            self.since_forget = 0
        return self.predictor.predict(inputs)

    def example(self) -> Result | None:
        """The result of a first text, which also warms the model up; None where the task needs other inputs."""
        try:
            return self.predictor.predict(EXAMPLE_TEXT) if self.modality == "text" else None
        except (RegardError, KeyError, ValueError, TypeError):
            return None

    async def answer(self, request: Request) -> Response:
        """`POST /predict`."""
        started = time.monotonic()
        inputs: list[object] = []
        try:
            self.check_access(request)
            body = await self.read_body(request)
            media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if len(body) < SMALL_BODY:
                inputs, many = self.reader.read(body, media_type)
            else:
                inputs, many = await asyncio.to_thread(self.reader.read, body, media_type)
            response = respond(await self.batcher.submit(inputs, self.config.limits.seconds), many)
        except RefusedRequest as error:
            response = error_response(error)
        except RegardError as error:
            response = error_response(RefusedRequest(422, "bad_input", " ".join(str(error).split())))
        except ClientDisconnect:
            response = error_response(RefusedRequest(400, "disconnected", "The client has gone."))
        seconds = time.monotonic() - started
        self.metrics.record(response.status_code, seconds)
        self.log(
            {
                "event": "request",
                "path": "/predict",
                "status": response.status_code,
                "inputs": len(inputs),
                "ms": round(1000 * seconds, 2),
            }
        )
        return response

    def check_access(self, request: Request) -> None:
        """Refuse a wrong token, and names of other hosts that lead here (DNS rebinding)."""
        hosts, token = self.config.hosts, self.config.token
        host = request.headers.get("host", "").rpartition(":")[0] or request.headers.get("host", "")
        if hosts is not None and host not in hosts:
            raise RefusedRequest(403, "host", f"This server answers to {', '.join(hosts)}, not to {host!r:.80}.")
        given = request.headers.get("authorization", "")
        if token is not None and not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            raise RefusedRequest(401, "token", "The token is missing or wrong. Send Authorization: Bearer TOKEN.")

    async def read_body(self, request: Request) -> bytes:
        most, parts, size = self.config.limits.body_bytes, [], 0
        try:
            async with asyncio.timeout(self.config.limits.seconds):
                async for part in request.stream():
                    size += len(part)
                    if size > most:
                        raise RefusedRequest(413, "body", f"The body has more than {most} bytes.")
                    parts.append(part)
        except TimeoutError:
            raise RefusedRequest(408, "slow", "The body did not arrive in time.") from None
        return b"".join(parts)

    async def health(self, request: Request) -> Response:
        """`GET /health`."""
        facts = {"status": "ok", "model": self.predictor.name, "task": self.predictor.task.name}
        return to_response(facts | self.metrics.to_dict())

    async def openapi(self, request: Request) -> Response:
        """`GET /openapi.json`."""
        return to_response(self.document)

    async def report_metrics(self) -> None:
        """Log a line about each period that had requests."""
        while True:
            await asyncio.sleep(self.config.metrics_seconds)
            if (line := self.metrics.line()) is not None:
                self.log({"event": "metrics", "message": line, **self.metrics.to_dict()})


def make_app(server: ModelServer) -> Starlette:
    """The application of a model."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        server.batcher.start()
        reporting = asyncio.create_task(server.report_metrics())
        yield
        reporting.cancel()
        await server.batcher.close()

    routes = [
        Route("/predict", server.answer, methods=["POST"]),
        Route("/health", server.health, methods=["GET"]),
        Route("/openapi.json", server.openapi, methods=["GET"]),
        *(Route(f"/{path}", page_file(name), methods=["GET"]) for path, name in PAGE.items()),
    ]
    handlers: Any = {HTTPException: refuse, Exception: fail}
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)


def page_file(name: str) -> Callable[[Request], Awaitable[Response]]:
    content = (files("regard.serve") / "static" / name).read_bytes()

    async def serve_file(request: Request) -> Response:
        return Response(content, media_type=MEDIA_TYPES[name.rpartition(".")[2]], headers=SECURITY_HEADERS)

    return serve_file


def respond(outcomes: list[Outcome], many: bool) -> Response:
    """The answer to one input, whose error is the answer's, or to many, each with its result or error."""
    if not many:
        first = outcomes[0]
        return error_response(first) if isinstance(first, RefusedRequest) else to_response({"result": first.to_dict()})
    return to_response({"results": [outcome.to_dict() for outcome in outcomes]})


def error_response(error: RefusedRequest) -> Response:
    headers = {"retry-after": "1"} if error.status in (429, 503) else {}
    headers |= {"www-authenticate": "Bearer"} if error.status == 401 else {}
    return to_response(error.to_dict(), error.status, headers)


def to_response(document: Mapping[str, object], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    content = json.dumps(document, ensure_ascii=False, allow_nan=False)
    return Response(content, status, {**SECURITY_HEADERS, **(headers or {})}, "application/json")


async def refuse(request: Request, error: HTTPException) -> Response:
    """The answer for a wrong path or method."""
    wanted = "POST /predict, GET /health, GET /openapi.json"
    return error_response(RefusedRequest(error.status_code, "route", f"{error.detail}. There are {wanted}."))


async def fail(request: Request, error: Exception) -> Response:
    """The answer for a fault of the server; the traceback is in the log."""
    return error_response(RefusedRequest(500, "internal", f"The server failed ({type(error).__name__})."))
