"""What a run shows at the terminal: where it is, how it does, how long it will take."""

from __future__ import annotations

import sys
import time
from typing import Any

from .loop import Event


class Progress:
    """Prints to stderr: a line that is rewritten where there is a terminal, now and then one where there is none."""

    def __init__(self, every: float = 10.0) -> None:
        self.live, self.every = sys.stderr.isatty(), every
        self.shown, self.since, self.first, self.labels = 0.0, time.monotonic(), None, 0.0

    def __call__(self, event: Event) -> None:
        if event.kind == "step":
            self.step(event)
        elif event.kind == "score":
            self.line(f"step {event.place.step}: dev " + ", ".join(f"{k} {v:.4f}" for k, v in event.values.items()))
        elif event.kind == "resumed":
            done = event.place.step >= event.total
            more = "Going on from" if not done else "This run has come to its end; more --epochs or --steps go on from"
            self.line(f"{more} step {event.place.step}.")
        elif event.kind == "stopped":
            self.line(f"Stopped after step {event.place.step}, which is saved. The same command goes on from there.")

    def step(self, event: Event) -> None:
        now = time.monotonic()
        if self.first is None:
            self.first, self.since = event.place.step, now
        self.labels += event.values.get("labels", 0.0)
        if now - self.shown < (0.2 if self.live else self.every):
            return
        self.shown = now
        done, spent = event.place.step - self.first, now - self.since
        left = clock((event.total - event.place.step) * spent / done) if done and event.total < 10**9 else "?"
        total = event.total if event.total < 10**9 else "?"
        text = f"step {event.place.step}/{total}  epoch {event.place.epoch + 1}  loss {event.values['loss']:.4f}  "
        speed = f"{self.labels / spent:,.0f}" if done else "?"
        text += f"{speed} labels/s  {clock(spent)} gone, {left} left"
        print(f"\r{text:<100}" if self.live else text, end="" if self.live else "\n", file=sys.stderr, flush=True)

    def line(self, text: str) -> None:
        print(f"\r{text:<100}" if self.live else text, file=sys.stderr, flush=True)


def clock(seconds: float) -> str:
    """Seconds as minutes or hours."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


def table(rows: list[tuple[str, Any]]) -> str:
    """Two columns of text."""
    width = max((len(name) for name, _ in rows), default=0)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)
