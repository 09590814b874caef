"""Processes for tests: forked from one server that has imported torch and Regard, so that each starts at once.

`run_processes("tests.distributed.random_shards", "check", 3, folder, 0, 16)` calls `check(folder, 0, 16)` in three
processes with the variables of `torchrun`. A server belongs to the process of the tests that asks first.
"""

from __future__ import annotations

import multiprocessing
import socket
import tempfile
import time
from collections.abc import Mapping
from multiprocessing.context import ForkServerContext
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRELOAD = ["torch", "torch.distributed", "torch.testing", "accelerate", "regard", "regard.distributed", "regard.cli"]
CODE = """
import os, sys
os.environ.update(environment)
os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
sys.path.insert(0, root)
import importlib, torch
torch.set_num_threads(1)
getattr(importlib.import_module(module), function)(*arguments)
"""


def make_context() -> ForkServerContext:
    """The server's context; it is started with the first process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    return context


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def run_processes(
    module: str,
    function: str,
    count: int,
    *arguments: object,
    environment: Mapping[str, str] | None = None,
    timeout: float = 280,
) -> None:
    """Call a function of a module in so many processes, each with its rank in the environment; all must succeed."""
    context, port = make_context(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        processes, errors = [], [str(Path(folder, f"{rank}.txt")) for rank in range(count)]
        for rank in range(count):
            own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
            own |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "ACCELERATE_USE_CPU": "true"}
            own |= {"OMP_NUM_THREADS": 1} | dict(environment or {})
            values = {"environment": {name: str(value) for name, value in own.items()}, "errors": errors[rank]}
            values |= {"root": str(ROOT), "module": module, "function": function, "arguments": arguments}
            processes.append(context.Process(target=exec, args=(CODE, values), daemon=True))
        for process in processes:
            process.start()
        end = time.monotonic() + timeout
        while any(process.is_alive() for process in processes) and time.monotonic() < end:
            if any(process.exitcode for process in processes):  # the others would wait for it
                end = min(end, time.monotonic() + 20)
            time.sleep(0.02)
        codes = [process.exitcode for process in processes]
        for process in processes:
            process.kill()
            process.join()
        said = "\n".join(
            f"{rank}: {Path(error).read_text()[-3000:]}" for rank, error in enumerate(errors) if Path(error).is_file()
        )
    assert codes == [0] * count, f"exit statuses {codes}\n{said}"
