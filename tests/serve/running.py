"""A server of a model in a thread of the test, and requests to it."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from regard.inference.predictor import Predictor
from regard.serve.app import ModelServer, ServerConfig, make_app
from regard.serve.server import listen


class Client:
    """Requests to a server; every answer is JSON."""

    def __init__(self, port: int, server: ModelServer) -> None:
        self.port, self.server, self.headers = port, server, {"Content-Type": "application/json"}
        self.address = f"http://127.0.0.1:{port}"

    def send(self, body: bytes | str, method: str = "POST", path: str = "/predict", **headers: str) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = body.encode() if isinstance(body, str) else body
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request(method, path, data, {**self.headers, **named})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def predict(self, given: Any) -> tuple[int, Any]:
        return self.send(json.dumps({"inputs" if isinstance(given, list) else "input": given}))

    def get(self, path: str) -> tuple[int, Any]:
        return self.send(b"", "GET", path)


@contextmanager
def running(predictor: Predictor, config: ServerConfig | None = None) -> Iterator[Client]:
    """The client of a server, which is stopped afterwards."""
    events: list[dict[str, Any]] = []
    model_server = ModelServer(predictor, config or ServerConfig(), events.append)
    listening = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(make_app(model_server), log_level="error", access_log=False))
    started = threading.Event()

    async def run() -> None:
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        started.set()
        await serving

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        assert started.wait(60)
        client = Client(listening.getsockname()[1], model_server)
        client.events = events  # type: ignore[attr-defined]
        yield client
    finally:
        server.should_exit = True
        thread.join(60)
