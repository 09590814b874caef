"""What torch's own fused kernels can do, handed to them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from .call import Call, lower
from .masks import Causal, Everything
from .positions import Rotary
from .scores import Additive, Dot


def reason(call: Call) -> str | None:
    """Why this backend cannot run the call; None when it can."""
    if isinstance(call.score, Additive):
        return "torch's kernels know dot products only, not Additive"
    if call.position is not None and not isinstance(call.position, Rotary):
        return f"torch's kernels would need {type(call.position).__name__} as a tensor of queries × keys"
    if not isinstance(call.score, Dot) and call.q.dtype != call.exact:
        return f"{type(call.score).__name__} changes q and k, which {call.q.dtype} would round before the product"
    if call.dropout:
        return "torch draws its own dropout, which no other backend could repeat"
    if isinstance(call.mask, Everything):
        return None
    if not isinstance(call.mask, Causal):
        return "torch's kernels would need this mask as a tensor of queries × keys"
    if call.grid.queries != call.grid.keys:
        return "torch's causal mask starts at the first key; ours ends at the last, and queries ≠ keys here"
    return None


def run(call: Call) -> Tensor:
    """The output, `[batch, heads, queries, value dim]`."""
    with torch.autocast(call.q.device.type, enabled=False):
        p = lower(call)
        q, k, v = p.q.to(p.v.dtype), p.k.to(p.v.dtype), p.v
        dim = max(q.shape[-1], v.shape[-1])  # the fused kernels want one head_dim; zeros change nothing
        q, k, v = (x if x.shape[-1] == dim else pad(x, (0, dim - x.shape[-1])) for x in (q, k, v))
        causal = isinstance(call.mask, Causal)
        grouped = True if q.shape[1] != k.shape[1] else False  # noqa: SIM210, a comparison of symbolic sizes is no bool
        found = scaled_dot_product_attention(q, k, v, is_causal=causal, scale=p.scale, enable_gqa=grouped)
        return found if dim == p.v.shape[-1] else found[..., : p.v.shape[-1]]
