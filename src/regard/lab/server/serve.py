"""Serves the lab on a port of 127.0.0.1, with a token in its address."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory

from ...errors import BadInput, Missing

HOST = "127.0.0.1"
PAUSE_BEFORE_IMPORTS = 3.0
"""Seconds after the start, in which the first page is shown."""


def serve(folders: list[Path], port: int, open_browser: bool, announce: Callable[[str], None]) -> None:
    """Serve until interrupted; `announce` is called with the address, token included, once the server answers."""
    try:
        import uvicorn
    except ImportError:
        raise Missing('The lab needs starlette and uvicorn: pip install "regard[lab]".') from None
    from ..lab import Lab
    from ..library import ModelLibrary
    from .app import make_app
    from .timeouts import IDLE_SECONDS, MAX_CONNECTIONS, with_timeouts

    lab = Lab(ModelLibrary(folders))
    listening = listen(port)
    port = listening.getsockname()[1]
    token = secrets.token_urlsafe(18)
    app = make_app(lab, token, (f"{HOST}:{port}", f"localhost:{port}"))
    address = f"http://{HOST}:{port}/?token={token}"
    imports = threading.Timer(PAUSE_BEFORE_IMPORTS, import_for_loading)

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            announce(address)
            imports.start()
            if open_browser and has_display():
                webbrowser.open(write_redirect(Path(private), address))

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=int(IDLE_SECONDS),
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=1,
    )
    config.load()
    config.http_protocol_class = with_timeouts(config.http_protocol_class)
    try:
        with TemporaryDirectory(prefix="regard-lab-") as private:  # of this user alone
            Server(config).run(sockets=[listening])
    except KeyboardInterrupt:
        pass
    finally:
        lab.jobs.close()
        imports.cancel()
        if imports.is_alive():
            imports.join()  # an interpreter that ends amid an import may crash


def import_for_loading() -> None:
    """Import what loading a model needs, while nobody waits: arithmetic on the meta device imports much of torch."""
    import torch

    torch.empty(1, device="meta").mul(0.5)


def listen(port: int) -> socket.socket:
    """A listening socket on a port of 127.0.0.1; 0 takes a free one."""
    # named as TCP, so that asyncio sends small answers at once
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
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


def write_redirect(folder: Path, address: str) -> str:
    """The URL of a file that only this user can read and that leads to the address.

    A browser's command line is visible to all users of a machine, and the address holds the token.
    """
    path = folder / "open.html"
    path.touch(mode=0o600)
    target = escape(address, quote=True)
    path.write_text(
        f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={target}">', "utf8"
    )
    return path.as_uri()


def has_display() -> bool:
    """Whether there is a screen; without one, `webbrowser` may start a text browser inside the terminal."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
