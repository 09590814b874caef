"""Messages between the ranks of a group, posted together and waited for when they are needed."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from ..attention.execution import mask_cache
from ..attention.parts.mask import Mask
from ..errors import BadInput, RegardError


class Exchange:
    """Sends and receives between ranks; counts the bytes that arrive.

    gloo sends what is in the memory of the CPU: tensors on a GPU are copied there and back.
    """

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group
        self.received = 0

    def start(self, sends: Sequence[tuple[Tensor, int]], receives: Sequence[tuple[Tensor, int]]) -> PendingMessages:
        """Post messages; tensors without elements are left out on both sides."""
        on_cpu = message_device(self.group).type == "cpu"
        sent = [(x.cpu() if on_cpu else x.contiguous(), rank) for x, rank in sends if x.numel()]
        operations = [dist.P2POp(dist.isend, x, group=self.group, group_peer=rank) for x, rank in sent]
        copies = []
        for buffer, rank in receives:
            if not buffer.numel():
                continue
            arriving = torch.empty_like(buffer, device="cpu") if on_cpu and buffer.is_cuda else buffer
            if arriving is not buffer:
                copies.append((arriving, buffer))
            operations.append(dist.P2POp(dist.irecv, arriving, group=self.group, group_peer=rank))
            self.received += buffer.numel() * buffer.itemsize
        works = dist.batch_isend_irecv(operations) if operations else []
        return PendingMessages(works, [x for x, _ in sent], copies)


class PendingMessages:
    """Messages under way. It holds the sent tensors until they have left."""

    def __init__(
        self, works: Sequence[dist.Work], sent: Sequence[Tensor], copies: Sequence[tuple[Tensor, Tensor]]
    ) -> None:
        self.works, self.sent, self.copies = works, sent, copies

    def wait(self) -> None:
        for work in self.works:
            work.wait()
        for arrived, buffer in self.copies:
            buffer.copy_(arrived)
        self.works, self.sent, self.copies = (), (), ()


class TokenFormat:
    """How tensors `[batch, heads, tokens]` or `[batch, heads, tokens, dim]` travel together, token by token.

    Those of one type become one message, `[tokens, numbers]`, of which the tokens of several ranks are slices.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.shapes = [(x.shape[0], x.shape[1], *x.shape[3:]) for x in tensors]
        self.dtypes, self.device = [x.dtype for x in tensors], tensors[0].device

    def empty(self, tokens: int) -> list[Tensor]:
        """Memory for so many tokens, a tensor for each type."""
        return [
            torch.empty(tokens, self.numbers(dtype), dtype=dtype, device=self.device) for dtype in self.unique_types()
        ]

    def unique_types(self) -> list[torch.dtype]:
        return list(dict.fromkeys(self.dtypes))

    def numbers(self, dtype: torch.dtype) -> int:
        """Numbers of a token of that type."""
        return sum(math.prod(shape) for shape, own in zip(self.shapes, self.dtypes, strict=True) if own == dtype)

    def pack(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The messages of the tensors."""
        messages = self.empty(tensors[0].shape[2])
        for view, x in zip(self.unpack(messages), tensors, strict=True):
            view.copy_(x)
        return messages

    def unpack(self, messages: Sequence[Tensor]) -> list[Tensor]:
        """The tensors in messages, as views."""
        by_type = dict(zip(self.unique_types(), messages, strict=True))
        used = dict.fromkeys(by_type, 0)
        views = []
        for shape, dtype in zip(self.shapes, self.dtypes, strict=True):
            size = math.prod(shape)
            part = by_type[dtype].narrow(1, used[dtype], size).unflatten(1, shape)  # [tokens, batch, heads, ...]
            views.append(part.movedim(0, 2))
            used[dtype] += size
        return views


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


def tensor_bytes(x: Tensor) -> bytes:
    """The contents of a tensor of any type and strides."""
    x = x.detach().cpu().clone(memory_format=torch.contiguous_format)  # contiguous() leaves strides of sizes of 1
    return x.flatten().view(torch.uint8).numpy().tobytes()


def digest_mask(mask: Mask) -> str:
    """A hash of a mask, its tensors included, cached with it."""
    if not isinstance(mask, Mask):
        return repr(mask)

    def make() -> str:
        text = hashlib.blake2b(repr(mask).encode(), digest_size=16)
        for tensor in mask.tensors():
            text.update(tensor_bytes(tensor))
        return text.hexdigest()

    return mask_cache(mask).get("digest", make)


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
