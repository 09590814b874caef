"""Whether all ranks make the same call, compared before anything is exchanged: a rank alone would wait for ever."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from ..attention.attend import parts_key
from ..attention.dropout import draw_seed
from ..attention.parts.parts import Parts
from ..errors import BadInput, RegardError
from .layout import Layout


def agree(layout: Layout, q: Tensor, k: Tensor, v: Tensor, parts: Parts, check: Callable[[], None]) -> None:
    """Raise on every rank unless `check` passes on all and they make the same call; compared once for each call kind.

    Raises this rank's own error where it has one, and otherwise names the ranks that differ.
    """
    own = local_key(layout, q, k, v, parts)
    if own is not None and own in layout.compared:
        return
    error: Exception | None = None
    try:
        check()
    except RegardError as raised:
        error = raised
    digest = call_digest(layout, q, k, v, parts) if error is None else -1
    device = "cuda" if dist.get_backend(layout.group) == "nccl" else "cpu"
    mine = torch.tensor([digest], dtype=torch.int64, device=device)
    every = [torch.empty_like(mine) for _ in range(layout.ranks)]
    dist.all_gather(every, mine, group=layout.group)
    if error is not None:
        try:
            raise error
        finally:
            del error  # its traceback has this frame: the cycle would keep the group alive after it is destroyed
    digests = [int(x) for x in every]
    failed = [rank for rank, x in enumerate(digests) if x == -1]
    if failed:
        raise BadInput(f"Rank {failed[0]} refused the call; its own message says why.")
    different = [rank for rank, x in enumerate(digests) if x != digests[0]]
    if different:
        raise BadInput(
            f"The ranks make different calls: {different} differ from rank 0 in mask, parts, heads, sizes or types. "
            f"This is rank {layout.rank}: {describe(q, k, v, parts)}."
        )
    if own is not None:
        layout.compared.add(own)


def local_key(layout: Layout, q: Tensor, k: Tensor, v: Tensor, parts: Parts) -> int | None:
    """A number for calls of this kind and mask; None where tensors may have changed since."""
    if parts.mask is not None and parts.mask.tensors():
        return None
    key = parts_key(q, k, v, parts, "")
    return None if key is None else hash((key, repr(parts.mask), repr(parts.method)))


def call_digest(layout: Layout, q: Tensor, k: Tensor, v: Tensor, parts: Parts) -> int:
    """A 62-bit hash of what all ranks must have in common."""
    text = hashlib.sha256(describe(q, k, v, parts).encode())
    text.update(repr((layout.tokens, layout.tile, layout.strategy)).encode())
    text.update(layout.query_owner.numpy().tobytes())
    for tensor in [] if parts.mask is None else parts.mask.tensors():
        text.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return int.from_bytes(text.digest()[:8], "big") >> 2


def describe(q: Tensor, k: Tensor, v: Tensor, parts: Parts) -> str:
    """The call in words, without the tokens of one rank."""
    sizes = [(x.shape[0], x.shape[1], x.shape[3]) for x in (q, k, v)]
    return f"{parts!r} on q, k, v of (batch, heads, dim) {sizes}, {q.dtype}"


def shared_seed(layout: Layout, generator: torch.Generator | None, device: torch.device) -> Tensor:
    """The dropout seed of rank 0, on every rank."""
    seed = draw_seed(generator, device)
    dist.broadcast(seed, group=layout.group, group_src=0)
    return seed
