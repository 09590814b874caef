"""A run's log for TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import Missing
from .trainer import TrainEvent

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoardLogger:
    """Writes events for TensorBoard: `train/loss`, `train/rate`, …, and `dev/` with each metric.

    When a run resumes from a checkpoint, the steps after it are purged; when it starts again, all steps.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.writer: SummaryWriter | None = None
        summary_writer()

    def __call__(self, event: TrainEvent) -> None:
        step = event.state.step
        if self.writer is None:
            self.writer = summary_writer()(str(self.folder), purge_step=step + 1 if event.name == "resumed" else 0)
        group = {"step": "train", "score": "dev"}.get(event.name)
        for name, value in event.values.items() if group else ():
            self.writer.add_scalar(f"{group}/{name}", value, step)
        if group != "train":
            self.writer.flush()
        if event.name in ("finished", "stopped"):
            self.writer.close()


def summary_writer() -> type[SummaryWriter]:
    """torch's `SummaryWriter`."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise Missing('The TensorBoard log needs tensorboard: pip install "regard[tensorboard]".') from None
    return SummaryWriter
