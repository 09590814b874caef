"""Messages between the ranks of a group, posted together and waited for when they are needed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from ..errors import BadInput, RegardError


class Exchange:
    """Sends and receives between ranks; counts the bytes that arrive."""

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group
        self.received = 0

    def start(self, sends: Sequence[tuple[Tensor, int]], receives: Sequence[tuple[Tensor, int]]) -> PendingMessages:
        """Post messages; tensors without elements are left out on both sides."""
        sent = [(x.contiguous(), rank) for x, rank in sends if x.numel()]
        operations = [dist.P2POp(dist.isend, x, group=self.group, group_peer=rank) for x, rank in sent]
        for buffer, rank in receives:
            if buffer.numel():
                operations.append(dist.P2POp(dist.irecv, buffer, group=self.group, group_peer=rank))
                self.received += buffer.numel() * buffer.itemsize
        return PendingMessages(dist.batch_isend_irecv(operations) if operations else [], [x for x, _ in sent])


class PendingMessages:
    """Messages under way. It holds the sent tensors until they have left."""

    def __init__(self, works: Sequence[dist.Work], sent: Sequence[Tensor]) -> None:
        self.works, self.sent = works, sent

    def wait(self) -> None:
        for work in self.works:
            work.wait()
        self.works, self.sent = (), ()


def swap(group: ProcessGroup | None, rank: int, sends: list[Tensor], buffers: list[Tensor]) -> None:
    """Send a tensor to each other rank and fill the buffers from each."""
    assert group is not None
    others = [other for other in range(len(sends)) if other != rank]
    Exchange(group).start([(sends[r], r) for r in others], [(buffers[r], r) for r in others]).wait()


def send_rows(tensors: Sequence[Tensor], to: Tensor, rank: int, group: ProcessGroup) -> list[Tensor]:
    """The rows of each tensor that all ranks send to this one, in the order of ranks; `to [rows]` has the ranks."""
    device, ranks = message_device(group), dist.get_world_size(group)
    order = torch.argsort(to, stable=True)
    counts = torch.bincount(to, minlength=ranks)
    every = gather_counts(counts, group)
    arriving, result = every[:, rank].tolist(), []
    for x in tensors:
        sends = list(x[order].to(device).split(counts.tolist()))
        buffers = [torch.empty(n, *x.shape[1:], dtype=x.dtype, device=device) for n in arriving]
        swap(group, rank, sends, buffers)
        buffers[rank] = sends[rank]
        result.append(torch.cat(buffers).cpu())
    return result


def gather_counts(counts: Tensor, group: ProcessGroup) -> Tensor:
    """The counts of all ranks, `[from, to]`."""
    mine = counts.to(message_device(group))
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(every, mine, group=group)
    return torch.stack(every).cpu()


def sum_over_ranks(x: Tensor, group: ProcessGroup) -> Tensor:
    """The sum of every rank's x."""
    moved = x.to(message_device(group), copy=True)
    dist.all_reduce(moved, group=group)
    return moved.cpu()


def message_device(group: ProcessGroup) -> torch.device:
    """Where tensors must be that the group exchanges."""
    return (
        torch.device("cuda", torch.cuda.current_device()) if dist.get_backend(group) == "nccl" else torch.device("cpu")
    )


def compare(group: ProcessGroup | None, check: Callable[[], object], call: str, noun: str) -> None:
    """Raise on every rank unless `check` passes on all and `call` is the same."""
    if group is None:
        check()
        return
    error: Exception | None = None
    try:
        check()
    except RegardError as raised:
        error = raised
    code = -1 if error is not None else int.from_bytes(hashlib.blake2b(call.encode()).digest()[:7], "big")
    mine = torch.tensor([code], device=message_device(group))
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(every, mine, group=group)
    if error is not None:
        try:
            raise error
        finally:
            del error  # its traceback has this frame: the cycle would keep the group alive after it is destroyed
    codes = [int(x) for x in every]
    if -1 in codes:
        raise BadInput(f"Rank {codes.index(-1)} refused the {noun}; its own message says why.")
    if len(set(codes)) > 1:
        different = [rank for rank, x in enumerate(codes) if x != codes[0]]
        raise BadInput(f"The ranks have different {noun}: {different} differ from rank 0. Give all of them the same.")
