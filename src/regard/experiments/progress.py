"""Progress of an experiment: the callback that receives it, its subdivision, and a printer for the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

ProgressCallback = Callable[[float, str], None]
"""Receives the completed fraction (0 to 1) and a short description of the current step."""


def ignore_progress(fraction: float, text: str) -> None:
    """A `ProgressCallback` that does nothing."""


def subprogress(progress: ProgressCallback, start: float, end: float, name: str = "") -> ProgressCallback:
    """A callback for a part of the work: it maps 0 to 1 onto `start` to `end` of the whole.

    >>> subprogress(lambda fraction, text: print(fraction, text), 0.5, 1.0, "LSTM")(0.5, "loss 1.2")
    0.75 LSTM: loss 1.2
    """
    return lambda fraction, text: progress(start + (end - start) * fraction, f"{name}: {text}" if name else text)


def nth_subprogress(progress: ProgressCallback, n: int, count: int, name: str = "") -> ProgressCallback:
    """A callback for the n-th of `count` equal parts."""
    return subprogress(progress, n / count, (n + 1) / count, name)


class ProgressPrinter:
    """A `ProgressCallback` that writes to stderr.

    On a terminal it rewrites one line; otherwise it prints a line every `interval` seconds. Set `exclusive=False` when
    other experiments write to stderr at the same time.
    """

    def __init__(self, name: str, interval: float = 10.0, exclusive: bool = True) -> None:
        self.name, self.live = name, exclusive and sys.stderr.isatty()
        self.interval = 0.2 if self.live else interval
        self.start = self.last_print = time.monotonic()

    def __call__(self, fraction: float, text: str) -> None:
        now = time.monotonic()
        if now - self.last_print < self.interval:
            return
        self.last_print = now
        line = format_progress(self.name, fraction, text, now - self.start)
        print(f"\r{line:<100.100}" if self.live else line, end="" if self.live else "\n", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Erase the progress line."""
        if self.live:
            print(f"\r{'':<100}\r", end="", file=sys.stderr, flush=True)


def format_progress(name: str, fraction: float, text: str, elapsed: float) -> str:
    """One line with the percentage, the elapsed and the remaining time.

    >>> format_progress("order", 0.25, "rotary", 20.0)
    'order   25 %  0:20 elapsed, 1:00 left  rotary'
    """
    from ..train.progress import format_seconds

    left = format_seconds(elapsed * (1 - fraction) / fraction) if fraction > 0 else "?"
    return f"{name}  {fraction:4.0%}".replace("%", " %") + f"  {format_seconds(elapsed)} elapsed, {left} left  {text}"
