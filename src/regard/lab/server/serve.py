"""Serves the lab on a port of 127.0.0.1, with a token in its address."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import webbrowser
from collections.abc import Callable
from pathlib import Path

from ...errors import BadInput, Missing

HOST = "127.0.0.1"


def serve(folders: list[Path], port: int, open_browser: bool, announce: Callable[[str], None]) -> None:
    """Serve until interrupted; `announce` is called with the address, token included, once the server answers."""
    try:
        import uvicorn
    except ImportError:
        raise Missing('The lab needs starlette and uvicorn: pip install "regard[lab]".') from None
    from ..lab import Lab
    from ..library import ModelLibrary
    from .app import make_app

    lab = Lab(ModelLibrary(folders))
    listening = listen(port)
    port = listening.getsockname()[1]
    token = secrets.token_urlsafe(18)
    app = make_app(lab, token, (f"{HOST}:{port}", f"localhost:{port}"))
    address = f"http://{HOST}:{port}/?token={token}"

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            announce(address)
            if open_browser and has_display():
                webbrowser.open(address)

    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=1
    )
    try:
        Server(config).run(sockets=[listening])
    except KeyboardInterrupt:
        pass
    finally:
        lab.jobs.close()


def listen(port: int) -> socket.socket:
    """A listening socket on a port of 127.0.0.1; 0 takes a free one."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if sys.platform != "win32":
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
    except OSError as error:
        listening.close()
        raise BadInput(
            f"Port {port} cannot be used ({error.strerror}). Give another --port, or 0 for a free one."
        ) from None
    listening.listen(128)
    return listening


def has_display() -> bool:
    """Whether there is a screen; without one, `webbrowser` may start a text browser inside the terminal."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
