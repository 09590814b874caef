"""A client for the lab's server."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

from regard.lab.server.wire import unpack


class Client:
    """Sends requests exactly as given."""

    def __init__(self, address: str) -> None:
        self.host, self.token = urlsplit(address).netloc, "secret"

    def send(
        self, method: str, path: str, body: Any = None, token: str | None = "secret", **headers: str
    ) -> tuple[int, Any, dict[str, str]]:
        """Status, answer and headers; a body other than bytes is sent as JSON."""
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection(self.host, timeout=60)
        connection.request(method, path, data, sent | ({} if token is None else {"x-token": token}))
        answer = connection.getresponse()
        held, kind = answer.read(), answer.headers.get("content-type", "")
        connection.close()
        if kind.startswith("application/json"):
            return answer.status, json.loads(held), dict(answer.headers)
        return answer.status, unpack(held) if kind == "application/octet-stream" else held, dict(answer.headers)

    def ask(self, path: str, **body: Any) -> tuple[int, Any]:
        return self.send("POST", f"/api/{path}", body)[:2]
