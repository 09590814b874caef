"""NaN and infinity in what a query may not attend to.

Zero times NaN is NaN: a weight of zero does not keep a masked key or value out of a sum, nor out of a gradient. Where a
query, key or value is not finite, `attend` replaces it by zeros and hides it by the mask. Only the rows that may attend
to it have what the formula makes of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]

from .parts.mask import Mask, PairGrid
from .parts.masks import Pairs

Attention = Callable[[Tensor, Tensor, Tensor, Mask], Tensor]
"""Attention of q, k and v under a mask, with all other parts given."""

PAIRS = 1 << 24  # pairs that a mask is evaluated for at once


def can_check(q: Tensor) -> bool:
    """Whether contents of tensors may be read without a wait: on the CPU, outside compiled graphs and transforms."""
    plain = q.is_cpu and not torch.compiler.is_compiling()
    return plain and _functorch.peek_interpreter_stack() is None


def all_finite(*tensors: Tensor) -> bool:
    """Whether no tensor has NaN or infinity; a sum that is finite says so at the cost of one pass."""
    total = 0.0
    for x in tensors:
        total += (x.detach() if x.requires_grad else x).sum().item()
    if math.isfinite(total):
        return True
    return all(bool(x.isfinite().all()) for x in tensors)  # large numbers may have a sum that overflows


def attend_to_finite(q: Tensor, k: Tensor, v: Tensor, mask: Mask, attend: Attention, formula: Tensor) -> Tensor:
    """`attend` with what is not finite kept out of all rows that may not attend to it.

    Those that may are as in `formula`, the output with it; their gradients are those without it.
    """
    with torch.no_grad():
        bad_q = ~q.isfinite().all(-1)  # [batch, heads, queries]
        bad_k = ~(k.isfinite().all(-1) & v.isfinite().all(-1))  # [batch, kv_heads, keys]
        visible = rows_that_see(mask, bad_k, q)
        visible |= bad_q & rows_that_see(mask, torch.ones_like(bad_k), q)
    q = q.masked_fill(bad_q[..., None], 0.0)
    k, v = (x.masked_fill(bad_k[..., None], 0.0) for x in (k, v))
    if bool(bad_k.any()):
        group = q.shape[1] // max(k.shape[1], 1)
        mask = mask & Pairs(~bad_k.repeat_interleave(group, 1)[:, :, None])
    output = attend(q, k, v, mask)
    with torch.no_grad():
        difference = torch.where(visible[..., None], formula, output) - output
    return output + difference


def rows_that_see(mask: Mask, chosen: Tensor, q: Tensor) -> Tensor:
    """Whether each query may attend to one of the chosen keys, `[batch, heads, queries]`; chunk by chunk of queries."""
    batch, heads, queries, _ = q.shape
    grid = PairGrid(queries, chosen.shape[2], batch, heads, q.device)
    i, j = grid.indices()
    keys = chosen.flatten(0, 1).any(0).nonzero()[:, 0]  # chosen somewhere: usually few
    wanted = chosen.repeat_interleave(heads // max(chosen.shape[1], 1), 1)[..., None, keys]
    step = max(PAIRS // max(len(keys) * batch * heads, 1), 1)
    chunks = i.split(step)
    seen = [(mask.permits(rows, j[:, keys], grid) & wanted).any(-1) for rows in chunks]
    return torch.cat([x.expand(batch, heads, len(rows)) for x, rows in zip(seen, chunks, strict=True)], -1)
