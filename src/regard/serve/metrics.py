"""What the server counts: requests, statuses, latencies and sizes of batches."""

from __future__ import annotations

import time
from collections import Counter, deque
from typing import TypedDict

from .batching import Batcher

RECENT = 1000
"""Requests whose latencies are remembered."""


class MetricsDocument(TypedDict):
    """The counters as `/health` shows them."""

    uptime_seconds: float
    requests: int
    statuses: dict[str, int]
    latency_ms: dict[str, float]
    inputs: int
    mean_batch: float
    waiting: int


class Metrics:
    """Counters since the start, and the latencies of the most recent requests."""

    def __init__(self, batcher: Batcher) -> None:
        self.batcher, self.started = batcher, time.monotonic()
        self.statuses: Counter[int] = Counter()
        self.latencies: deque[float] = deque(maxlen=RECENT)
        self.line_time, self.line_requests = self.started, 0

    def record(self, status: int, seconds: float) -> None:
        self.statuses[status] += 1
        self.latencies.append(seconds)

    def to_dict(self) -> MetricsDocument:
        """The counters as `/health` shows them; latencies in milliseconds."""
        ordered = sorted(self.latencies)
        quantiles = {name: quantile(ordered, share) for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))}
        batches = max(1, self.batcher.batches)
        return {
            "uptime_seconds": round(time.monotonic() - self.started, 1),
            "requests": sum(self.statuses.values()),
            "statuses": {str(status): count for status, count in sorted(self.statuses.items())},
            "latency_ms": {name: round(1000 * value, 2) for name, value in quantiles.items()},
            "inputs": self.batcher.items,
            "mean_batch": round(self.batcher.items / batches, 2),
            "waiting": self.batcher.waiting,
        }

    def line(self) -> str | None:
        """A line for the log about the time since the last one; None if there was no request."""
        now, total = time.monotonic(), sum(self.statuses.values())
        requests, seconds = total - self.line_requests, now - self.line_time
        self.line_time, self.line_requests = now, total
        if not requests:
            return None
        facts = self.to_dict()
        latency = facts["latency_ms"]
        return (
            f"{requests} requests, {requests / seconds:.1f} a second, latency p50 {latency['p50']:g} ms, p95 "
            f"{latency['p95']:g} ms, mean batch {facts['mean_batch']:g}, {facts['waiting']} waiting"
        )


def quantile(ordered: list[float], share: float) -> float:
    """The value below which a share of the ordered values lies; 0 of none.

    >>> quantile([1.0, 2.0, 3.0], 0.5)
    2.0
    """
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
