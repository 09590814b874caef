"""A run's log for TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import Missing
from .loop import Event


class Board:
    """Writes events as TensorBoard reads them: `train/loss`, `train/rate`, …, and `dev/` and each metric.

    Where a run goes on from a checkpoint, what came after that is hidden; where it begins anew, all that was before.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.writer = folder, None
        summary_writer()

    def __call__(self, event: Event) -> None:
        step = event.place.step
        if self.writer is None:
            self.writer = summary_writer()(str(self.folder), purge_step=step + 1 if event.kind == "resumed" else 0)
        part = {"step": "train", "score": "dev"}.get(event.kind)
        for name, value in event.values.items() if part else ():
            self.writer.add_scalar(f"{part}/{name}", value, step)
        if part != "train":
            self.writer.flush()
        if event.kind in ("finished", "stopped"):
            self.writer.close()


def summary_writer() -> Any:
    """torch's class that writes such files."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise Missing('TensorBoard\'s log needs its package: pip install "regard[tensorboard]".') from None
    return SummaryWriter
