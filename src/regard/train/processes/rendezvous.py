"""How processes that `torchrun` restarts find each other.

After a failure `torchrun --max-restarts` starts all processes again, and with a fixed address they use the same store.
The addresses that the dead processes left in it are found first, and nobody answers there. Here each start has keys of
its own: the store's keys get the number of the restart and of the processes as their prefix. Elastic launches
(`--nnodes 1:4`) start again with another number of processes, which they do not count as a restart.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

SCHEME = "regard"
RESTARTS = "TORCHELASTIC_RESTART_COUNT"
"""The variable in which torchrun gives the number of restarts."""
STORES = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
"""The variable with which torchrun makes a store for each start, set to 1, instead of sharing one."""


def restart_handlers() -> list[Any]:
    """What an `Accelerator` needs to connect processes that torchrun has started; empty for other processes."""
    if RESTARTS not in os.environ:
        return []
    from accelerate import InitProcessGroupKwargs
    from torch.distributed.rendezvous import register_rendezvous_handler

    with suppress(RuntimeError):  # it is registered
        register_rendezvous_handler(SCHEME, connect)
    return [InitProcessGroupKwargs(init_method=f"{SCHEME}://")]


def connect(url: str, timeout: timedelta | None = None, **options: Any) -> Iterator[tuple[Any, int, int]]:
    """(store, rank, world size) by the environment, as `env://` gives it, with the prefix of this start."""
    from torch.distributed import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    options = options if timeout is None else {**options, "timeout": timeout}
    for store, rank, world_size in rendezvous("env://", **options):
        yield PrefixStore(key_prefix(world_size), store), rank, world_size


def key_prefix(world_size: int) -> str:
    """The prefix of this start's keys, the same in all processes.

    Launchers count restarts on their own, and one that joins a running job has counted none. Where torchrun makes a
    store for each start, which such jobs need, the number is left out.
    """
    own_store = os.environ.get(STORES) == "1" and os.environ.get("TORCHELASTIC_RUN_ID", "none") != "none"
    return f"of-{world_size}" if own_store else f"restart-{os.environ[RESTARTS]}-of-{world_size}"
