"""Runs the application of a model on a port, until a signal; what was accepted is answered first."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from ..errors import BadInput, Missing
from ..inference.predictor import Predictor

if TYPE_CHECKING:
    from .app import ServerConfig

LOOPBACK = ("127.0.0.1", "localhost", "::1")
GRACE_SECONDS = 30
"""Seconds that requests have to end after a signal."""

LogFormat = Literal["text", "json", "none"]


def check_host(host: str, public: bool) -> None:
    """Raise `BadInput` for an address that others can reach, unless that was asked for."""
    if host not in LOOPBACK and not public:
        raise BadInput(
            f"--host {host} can be reached from other machines. Add --public if that is what you want, with a token "
            "(--token, or REGARD_TOKEN) or behind a proxy that asks for one."
        )


def make_log(format: LogFormat) -> Callable[[Mapping[str, object]], None]:
    """A function that writes an event as a line to stderr."""

    def write(event: Mapping[str, object]) -> None:
        now = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()) + "Z"
        if format == "json":
            print(json.dumps({"time": now, **event}, ensure_ascii=False), file=sys.stderr, flush=True)
        elif format == "text":
            facts = event.get("message") or " ".join(f"{name}={value}" for name, value in event.items())
            print(f"{now} {facts}", file=sys.stderr, flush=True)

    return write


def serve(
    predictor: Predictor,
    config: ServerConfig,
    host: str,
    port: int,
    announce: Callable[[str], None],
    log_format: LogFormat = "text",
) -> None:
    """Serve until SIGINT or SIGTERM; `announce` is called with the address once the server answers."""
    try:
        import uvicorn
    except ImportError:
        raise Missing('The server needs starlette and uvicorn: pip install "regard[lab]".') from None
    from ..lab.server.timeouts import IDLE_SECONDS, with_timeouts
    from .app import ModelServer, make_app

    listening = listen(host, port)
    port = listening.getsockname()[1]
    if host in LOOPBACK:
        config = replace(config, hosts=(*LOOPBACK, "[::1]"))
    model_server = ModelServer(predictor, config, make_log(log_format))
    name = f"[{host}]" if ":" in host else host

    class AnnouncingServer(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            announce(f"http://{name}:{port}")

    settings = uvicorn.Config(
        make_app(model_server),
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=int(IDLE_SECONDS),
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    settings.load()
    settings.http_protocol_class = with_timeouts(settings.http_protocol_class)
    with suppress(KeyboardInterrupt):
        AnnouncingServer(settings).run(sockets=[listening])


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # with the protocol named, asyncio turns Nagle's algorithm off, which would delay answers by 40 ms
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    if sys.platform != "win32":
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise BadInput(
            f"{host}:{port} cannot be used ({error.strerror or error}). Give another --port, or 0 for a free one."
        ) from None
    listening.listen(1024)
    return listening
