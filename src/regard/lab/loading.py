"""Loading a model's folder: in a thread of its own, and never from files outside the given folder."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from ..errors import BadInput
from .server.jobs import Job

Result = TypeVar("Result")


class BackgroundCall(Generic[Result]):
    """A call that runs in a thread of its own, so that a job that waits for it can be cancelled."""

    def __init__(self, call: Callable[[], Result]) -> None:
        self.finished = threading.Event()
        self.value: Result | None = None
        self.error: BaseException | None = None
        threading.Thread(target=self.run, args=(call,), name="lab-load", daemon=True).start()

    def run(self, call: Callable[[], Result]) -> None:
        try:
            self.value = call()
        except BaseException as error:  # raised again by `result`, in the thread that waits
            self.error = error
        finally:
            self.finished.set()

    def wait(self, job: Job) -> None:
        """Wait for the end of the call; raises `Cancelled` when the job is cancelled."""
        while not self.finished.wait(0.05):
            job.check_cancelled()

    def result(self) -> Result:
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]


def check_links(path: Path, root: Path) -> None:
    """Raise `BadInput` where a file of a model's folder is a link to a file outside the root.

    In a cache of Hugging Face the files of a snapshot are links into the folder `models--…` around it, which counts as
    the root there.
    """
    around = [folder for folder in (root, *root.parents) if folder.name.startswith("models--")]
    root = (around[0] if around else root).resolve()
    for folder, _, names in os.walk(path):
        for name in names:
            file = Path(folder) / name
            if file.is_symlink() and not file.resolve().is_relative_to(root):
                raise BadInput(
                    f"{file.relative_to(path)} is a link to a file outside {root}, so it is not read. Copy the file "
                    "into the folder, or give --models a folder that holds both."
                )
