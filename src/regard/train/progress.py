"""Progress of a run at the terminal: step, loss, speed, time left."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from .trainer import TrainEvent

MANY_EXAMPLES = 200
"""Validation examples from which an evaluation is announced where the output is no terminal."""


class Progress:
    """Prints events to stderr: one line that is rewritten in a terminal, otherwise a line every `every` seconds."""

    def __init__(self, minutes: float | None = None, every: float = 10.0) -> None:
        """`minutes` is the longest time that the run may take, for the time left."""
        self.live, self.minutes, self.every = sys.stderr.isatty(), minutes, every
        self.stop_signal = 0
        self.last_print, self.since, self.first, self.labels = 0.0, time.monotonic(), None, 0.0

    def __call__(self, event: TrainEvent) -> None:
        if event.name == "step":
            self.step(event)
        elif event.name == "score":
            self.line(f"step {event.state.step}: dev " + ", ".join(f"{k} {v:.4f}" for k, v in event.values.items()))
        elif event.name == "resumed":
            done = event.state.step >= event.total
            text = "Resuming from" if not done else "This run is finished; more --epochs or --steps resume it from"
            self.line(f"{text} step {event.state.step}.")
        elif event.name == "evaluating":
            if self.live or event.values["examples"] >= MANY_EXAMPLES:
                self.line(
                    f"step {event.state.step}: evaluating on {event.values['examples']:,.0f} validation examples …"
                )
        elif event.name == "stopped":
            self.stop_signal = int(event.values["signal"])
            if os.environ.get("RANK", "0") == "0":
                self.line(
                    f"Stopped after step {event.state.step}, which is saved. The same command resumes from there."
                )

    def step(self, event: TrainEvent) -> None:
        now = time.monotonic()
        if self.first is None:
            self.first, self.since = event.state.step, now
        self.labels += event.values.get("labels", 0.0)
        if now - self.last_print < (0.2 if self.live else self.every):
            return
        self.last_print = now
        steps, spent = event.state.step - self.first, now - self.since
        limits = [60 * self.minutes - event.state.seconds] if self.minutes is not None else []
        if steps and event.total < 10**9:
            limits.append((event.total - event.state.step) * spent / steps)
        left = format_seconds(max(0.0, min(limits))) if limits else "?"
        total = event.total if event.total < 10**9 else "?"
        text = f"step {event.state.step}/{total}  epoch {event.state.epoch + 1}  loss {event.values['loss']:.4f}  "
        speed = f"{self.labels / spent:,.0f}" if steps else "?"
        text += f"{speed} labels/s  {format_seconds(spent)} elapsed, {left} left"
        print(f"\r{text:<100}" if self.live else text, end="" if self.live else "\n", file=sys.stderr, flush=True)

    def line(self, text: str) -> None:
        print(f"\r{text:<100}" if self.live else text, file=sys.stderr, flush=True)


def format_seconds(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


def format_table(rows: Sequence[tuple[str, object]]) -> str:
    """Rows as two aligned columns of text."""
    width = max((len(name) for name, _ in rows), default=0)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)
