"""Whether all ranks make the same call, compared before anything is exchanged: a rank alone would wait for ever."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable

import torch
import torch.distributed as dist
from torch import Tensor

from ...attention.attend import parts_key
from ...attention.dropout import draw_seed
from ...attention.execution import mask_cache
from ...attention.nonfinite import all_finite, can_check
from ...attention.parts.masks import Everything
from ...attention.parts.parts import Parts
from ...errors import BadInput, RegardError
from ..exchange import digest_mask, message_device, tensor_bytes
from ..layout import Layout

Tensors = tuple[Tensor, Tensor, Tensor]
EVERYTHING = Everything()


def agree(layout: Layout, tensors: Tensors, parts: Parts, check: Callable[[], None], function: str = "attend") -> bool:
    """Raise on every rank unless `check` passes on all and they make the same call. Whether all tensors are finite.

    `function` is what is called, with the options that decide what it exchanges.

    On CPUs every call is compared. On GPUs each kind of call is compared once for a mask, since the result would have
    to be waited for; contents are then not looked at. Raises this rank's own error where it has one, and otherwise
    names the ranks that differ.
    """
    device = message_device(layout.group)  # type: ignore[arg-type]
    known = find_known(layout, tensors, parts, function)
    if known is not None and device.type != "cpu":
        return True
    error: Exception | None = None
    if known is None:
        try:
            check()
        except RegardError as raised:
            error = raised
    digest = -1 if error is not None else known or call_digest(layout, tensors, parts, function)
    finite = error is not None or parts.edges is not None or not can_check(tensors[0]) or all_finite(*tensors)
    mine = torch.tensor([digest, finite], dtype=torch.int64, device=device)
    every = [torch.empty_like(mine) for _ in range(layout.ranks)]
    dist.all_gather(every, mine, group=layout.group)
    if error is not None:
        try:
            raise error
        finally:
            del error  # its traceback has this frame: the cycle would keep the group alive after it is destroyed
    answers = torch.stack(every).tolist()
    failed = [rank for rank, (x, _) in enumerate(answers) if x == -1]
    if failed:
        raise BadInput(f"Rank {failed[0]} refused the call; its own message says why.")
    different = [rank for rank, (x, _) in enumerate(answers) if x != answers[0][0]]
    if different:
        raise BadInput(
            f"The ranks make different calls: {different} differ from rank 0 in function, mask, parts, heads, sizes or "
            f"types. This is rank {layout.rank}: {describe(tensors, parts, function)}."
        )
    remember(layout, tensors, parts, function, digest)
    return all(x for _, x in answers)


def find_known(layout: Layout, tensors: Tensors, parts: Parts, function: str) -> int | None:
    """The hash of calls of this kind and mask, if they were compared before; the arguments then fit together."""
    key = call_kind(layout, tensors, parts, function)
    return None if key is None else mask_cache(parts.mask or EVERYTHING).find(key)


def remember(layout: Layout, tensors: Tensors, parts: Parts, function: str, digest: int) -> None:
    key = call_kind(layout, tensors, parts, function)
    if key is not None:
        mask_cache(parts.mask or EVERYTHING).put(key, digest)


def call_kind(layout: Layout, tensors: Tensors, parts: Parts, function: str) -> Hashable:
    """What decides, beside the mask, whether calls are of one kind; None where contents matter (explicit places)."""
    key = None if parts.places is not None else parts_key(*tensors, parts, "")
    return None if key is None else ("compared", layout.number, function, key)


def call_digest(layout: Layout, tensors: Tensors, parts: Parts, function: str) -> int:
    """A 62-bit hash of what all ranks must have in common."""
    text = hashlib.blake2b(describe(tensors, parts, function).encode())
    text.update(repr((layout.tokens, layout.tile, layout.strategy)).encode())
    text.update(b"" if parts.mask is None else digest_mask(parts.mask).encode())
    for part in (parts.places, parts.edges):
        for x in () if part is None else part.tensors().values():
            shape = f"{list(x.shape)} {x.dtype}".encode()
            text.update(shape if part is parts.edges else tensor_bytes(x))
    return int.from_bytes(text.digest()[:8], "big") >> 2


def describe(tensors: Tensors, parts: Parts, function: str) -> str:
    """The call in words, without the tokens of one rank."""
    sizes = [(x.shape[0], x.shape[1], x.shape[3]) for x in tensors]
    return f"{function}: {parts!r} on q, k, v of (batch, heads, dim) {sizes}, {tensors[0].dtype}"


def shared_seed(layout: Layout, generator: torch.Generator | None, device: torch.device) -> Tensor:
    """The dropout seed of rank 0, on every rank."""
    seed = draw_seed(generator, device).to(message_device(layout.group))  # type: ignore[arg-type]
    dist.broadcast(seed, group=layout.group, group_src=0)
    return seed.to(device)
