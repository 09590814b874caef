"""Time-outs of connections: a client that is slow to send its request does not hold a connection open."""

from __future__ import annotations

import asyncio
import time
from typing import Any

HEADER_SECONDS, BODY_SECONDS, IDLE_SECONDS = 10.0, 30.0, 5.0
"""Seconds until the headers must be complete, without a part of a body, and of an idle connection."""
MAX_CONNECTIONS = 256


def with_timeouts(protocol: type[Any], header: float = HEADER_SECONDS, body: float = BODY_SECONDS) -> type[Any]:
    """A protocol class of uvicorn whose connections end when the client is too slow to send its request.

    The headers have a deadline of `header` seconds, whatever arrives meanwhile; a body may pause for `body` seconds.
    A request that is being answered has no deadline.
    """

    class TimedProtocol(protocol):  # type: ignore[misc]
        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self.since, self.waits_for = time.monotonic(), "header"
            self.timer = self.loop.call_later(min(header, body) / 4, self.check_deadline)

        def connection_lost(self, exc: Exception | None) -> None:
            self.timer.cancel()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.pending() == "body":
                self.since = time.monotonic()

        def pending(self) -> str | None:
            """What the client has not sent yet: "header", "body", or None while its request is answered."""
            if self.cycle is None or self.cycle.response_complete:
                return "header"
            return "body" if self.cycle.more_body else None

        def check_deadline(self) -> None:
            pending, now = self.pending(), time.monotonic()
            if pending != self.waits_for:
                self.since, self.waits_for = now, pending
            if pending is not None and now - self.since > (header if pending == "header" else body):
                self.transport.close()
                return
            self.timer = self.loop.call_later(min(header, body) / 4, self.check_deadline)

    return TimedProtocol
