"""An experiment in a process of its own, so that it can seed, set threads and be stopped without affecting the lab."""

from __future__ import annotations

import tempfile
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypedDict

import torch

from ...errors import BadInput, RegardError
from ...experiments.parameters import NO_SETTINGS, Settings, Size
from ...experiments.results import ResultDocument
from .jobs import Job

INTERVAL = 0.1
"""Seconds between two reports of progress."""


class ExperimentRun(TypedDict):
    """The result of a run, and its figures as the bytes of PNG files by language."""

    result: ResultDocument
    figures: dict[str, torch.Tensor]


def run_in_subprocess(
    name: str, seed: int, job: Job, size: Size = "toy", settings: Settings = NO_SETTINGS
) -> ExperimentRun:
    """The result of a run of the experiment, and its figures."""
    context = get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        process = context.Process(target=run_and_send, args=(name, seed, size, settings, folder, theirs), daemon=True)
        process.start()
        theirs.close()
        try:
            return receive_result(ours, job, name)
        finally:
            process.terminate()
            process.join()
            ours.close()


def receive_result(pipe: Connection, job: Job, name: str) -> ExperimentRun:
    """The result; progress is passed on to the job."""
    while True:
        job.check_cancelled()
        if not pipe.poll(INTERVAL):
            continue
        try:
            event, content = pipe.recv()
        except EOFError:
            raise BadInput(
                f"The experiment {name} ended without a result. `regard experiment run {name}` shows why."
            ) from None
        if event == "progress":
            fraction, text = content
            job.report(round(1000 * fraction), 1000, text)
        elif event == "error":
            raise BadInput(content)
        else:
            figures = {
                language: torch.frombuffer(bytearray(png), dtype=torch.uint8)
                for language, png in content["figures"].items()
            }
            return {"result": content["result"], "figures": figures}


def run_and_send(name: str, seed: int, size: Size, settings: Settings, folder: str, pipe: Connection) -> None:
    """Run the experiment in the child process, and send progress and the result."""
    from ...experiments import LANGUAGES, figure_path, find_experiment, run_experiment

    out, last = Path(folder), 0.0

    def send_progress(fraction: float, text: str) -> None:
        nonlocal last
        if time.monotonic() - last > INTERVAL:
            last = time.monotonic()
            pipe.send(("progress", (fraction, text)))

    try:
        experiment = find_experiment(name)
        document = run_experiment(experiment, out, size=size, seed=seed, progress=send_progress, settings=settings)
        figures = {language: figure_path(out, name, language).read_bytes() for language in LANGUAGES}
        pipe.send(("result", {"result": document, "figures": figures}))
    except RegardError as error:
        pipe.send(("error", str(error)))
