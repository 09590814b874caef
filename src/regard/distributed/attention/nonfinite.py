"""NaN and infinity in what a query may not attend to, over ranks: as in one process (`attention.nonfinite`)."""

from __future__ import annotations

import torch
from torch import Tensor

from ...attention.nonfinite import Attention, rows_that_see
from ...attention.parts.mask import Mask
from ...attention.parts.masks import Pairs
from ..layout import Layout
from .selection import MaskSelection


def attend_to_finite(
    layout: Layout, q: Tensor, k: Tensor, v: Tensor, mask: Mask, attend: Attention, formula: Tensor
) -> Tensor:
    """`attend` with what is not finite on any rank kept out of all rows that may not attend to it.

    Rows that may are as in `formula`, the output with it; their gradients are those without it.
    """
    with torch.no_grad():
        bad_q = ~q.isfinite().all(-1)  # [batch, heads, queries]
        bad_k = ~(k.isfinite().all(-1) & v.isfinite().all(-1))  # [batch, kv_heads, keys]
        every = layout.gather(bad_k, -1, keys=True)
        rows, columns = layout.places().to(q.device), torch.arange(layout.tokens[1], device=q.device)
        own = MaskSelection(mask, layout.tokens, rows, columns, layout.tile, 1)
        visible = rows_that_see(own, every, q) | (bad_q & rows_that_see(own, torch.ones_like(every), q))
    q = q.masked_fill(bad_q[..., None], 0.0)
    k, v = (x.masked_fill(bad_k[..., None], 0.0) for x in (k, v))
    if bool(every.any()):
        mask = mask & Pairs(~every.repeat_interleave(q.shape[1] // max(k.shape[1], 1), 1)[:, :, None])
    output = attend(q, k, v, mask)
    with torch.no_grad():
        difference = torch.where(visible[..., None], formula, output) - output
    return output + difference
