"""Connections of clients that are too slow to send their request are closed; an answer may take its time."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

uvicorn = pytest.importorskip("uvicorn")
from regard.lab.server.timeouts import with_timeouts  # noqa: E402

ANSWER_SECONDS = 1.2


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Reads the body, waits, and answers with its length."""
    import asyncio

    if scope["type"] != "http":
        return
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
        if message["type"] == "http.disconnect":
            return
    await asyncio.sleep(ANSWER_SECONDS if scope["path"] == "/slow" else 0)
    body = str(size).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
    config.load()
    config.http_protocol_class = with_timeouts(config.http_protocol_class, header=0.6, body=0.6)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield listening.getsockname()[1]
    server.should_exit = True
    thread.join(5)


def seconds_until_closed(port: int, parts: list[bytes], pause: float) -> float:
    """Seconds until the server closes a connection that sends these parts with pauses, and then nothing."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        started = time.monotonic()
        try:
            for part in parts:
                connection.sendall(part)
                time.sleep(pause)
            while connection.recv(4096):
                pass
        except (BrokenPipeError, ConnectionResetError):
            pass
        return time.monotonic() - started


def test_a_connection_that_says_nothing_is_closed(port: int) -> None:
    assert 0.4 < seconds_until_closed(port, [], 0) < 4


def test_headers_have_a_deadline_however_slowly_they_arrive(port: int) -> None:
    drip = [b"GET / HTTP/1.1\r\nHost: a\r\n", *(b"X-%d: a\r\n" % n for n in range(30))]
    assert seconds_until_closed(port, drip, 0.2) < 4


def test_a_body_that_stops_is_given_up_and_a_slow_one_is_read(port: int) -> None:
    head = b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 8\r\n\r\n"
    assert seconds_until_closed(port, [head, b"ab"], 0) < 4
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(head)
        for letter in b"abcdefgh":  # 1.6 s in all, no pause longer than 0.2 s
            time.sleep(0.2)
            connection.sendall(bytes([letter]))
        assert connection.makefile("rb").read().endswith(b"8")


def test_an_answer_has_no_deadline(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(b"GET /slow HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert b"200 OK" in connection.recv(4096)
