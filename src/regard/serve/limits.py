"""What the server accepts: sizes of requests, length of the queue, and the errors for what is beyond them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ServingLimits:
    """Bytes of a body, inputs of a request, characters of a text, pixels of an image, samples of a recording, inputs
    that may wait, and seconds until an answer."""

    body_bytes: int = 8 << 20
    items: int = 256
    characters: int = 100_000
    pixels: int = 25_000_000
    samples: int = 60 * 48_000
    queue: int = 1024
    seconds: float = 60.0


class RefusedRequest(Exception):
    """A request that is refused: its HTTP status, a code for programs and a message for people."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message

    def to_dict(self) -> dict[str, dict[str, str]]:
        return {"error": {"code": self.code, "message": self.message}}
