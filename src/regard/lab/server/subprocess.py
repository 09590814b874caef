"""An experiment in a process of its own: it draws random numbers, sets threads and can be stopped without a trace."""

from __future__ import annotations

import tempfile
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from ...errors import BadInput
from .jobs import Job

SIZE = "toy"
"""Seconds each: enough to see an experiment work, too little to judge a claim by."""
OFTEN = 0.1


def tried(name: str, seed: int, job: Job) -> dict[str, Any]:
    """What a small run of the experiment finds: the result as it is kept, and its figures' bytes by language."""
    context = get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        process = context.Process(target=run_apart, args=(name, seed, folder, theirs), daemon=True)
        process.start()
        theirs.close()
        try:
            return heard(ours, job, name)
        finally:
            process.terminate()
            process.join()
            ours.close()


def heard(pipe: Connection, job: Job, name: str) -> dict[str, Any]:
    """The result, with all that is told on the way passed on."""
    while True:
        job.check()
        if not pipe.poll(OFTEN):
            continue
        try:
            kind, said = pipe.recv()
        except EOFError:
            raise BadInput(
                f"The experiment {name} ended without a result. `regard experiment run {name}` shows why."
            ) from None
        if kind == "told":
            job.tell(round(1000 * said[0]), 1000, said[1])
        elif kind == "refused":
            raise BadInput(said)
        else:
            return said | {
                "figures": {
                    lang: torch.frombuffer(bytearray(png), dtype=torch.uint8) for lang, png in said["figures"].items()
                }
            }


def run_apart(name: str, seed: int, folder: str, pipe: Connection) -> None:
    """The other process's part: run, and send what is told and found."""
    from ...errors import RegardError
    from ...experiments.results import LANGUAGES, figure_path
    from ...experiments.runner import find, run

    out, told = Path(folder), 0.0

    def tell(share: float, text: str) -> None:
        nonlocal told
        if time.monotonic() - told > OFTEN:
            told = time.monotonic()
            pipe.send(("told", (share, text)))

    try:
        document = run(find(name), out, size=SIZE, seed=seed, tell=tell)
        figures = {language: figure_path(out, name, language).read_bytes() for language in LANGUAGES}
        pipe.send(("found", {"result": document, "figures": figures}))
    except RegardError as error:
        pipe.send(("refused", str(error)))
