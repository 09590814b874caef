"""What torch's own fused kernels can do, handed to them.

Plain and causal dot products go as they are. On the CPU a mask or a number by distance goes along as a tensor where
that is no larger than the queries and keys themselves: few queries, short rows, or a mask that asks for the key alone.
So it does on a GPU where rows are short, and while a step is recorded, when no list can be made of what is in a mask.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad, scaled_dot_product_attention

from ..call import Call, lower, without_autocast
from ..parts.masks import Causal, Everything
from ..parts.positions import Alibi, Bias, Rotary, T5Bias
from ..parts.scores import Additive, Dot
from ..tracing import in_cuda_graph, shapes_only

name = "sdpa"

SHORT = 128  # queries and keys, of which a GPU's kernels would skip nothing that a mask made for one batch hides
RECORDED = 4  # times larger than queries and keys a mask may be while a step is recorded, and nothing else can be done


def unsupported(call: Call) -> str | None:
    """Why this backend cannot run the call; None when it can."""
    if isinstance(call.score, Additive):
        return "torch's kernels know dot products only, not Additive"
    if call.position is not None and not isinstance(call.position, Rotary | Alibi | Bias | T5Bias):
        return f"torch's kernels would need {type(call.position).__name__} as a tensor of queries × keys"
    if not isinstance(call.score, Dot) and call.q.dtype != call.exact:
        return f"{type(call.score).__name__} changes q and k, which {call.q.dtype} would round before the product"
    if call.dropout:
        return "torch draws its own dropout, which no other backend could repeat"
    return None if as_they_are(call) else too_large(call)


def as_they_are(call: Call) -> bool:
    """Whether torch's kernels know the mask and position by name."""
    if call.position is not None and not isinstance(call.position, Rotary):
        return False
    square = call.grid.queries == call.grid.keys  # torch's causal mask starts at the first key, ours ends at the last
    return isinstance(call.mask, Everything) or (isinstance(call.mask, Causal) and square)


def too_large(call: Call) -> str | None:
    """Why the mask or the numbers by distance should not become a tensor; None when they may."""
    numbers = call.position is not None and not isinstance(call.position, Rotary)
    what = type(call.position).__name__ if numbers else "this mask"
    needs = f"torch's kernels would need {what} as a tensor of queries × keys"
    if torch.compiler.is_compiling():  # a compiled graph serves every length
        return needs
    if call.q.device.type != "cpu" and not (call.mask.tensors() and (in_cuda_graph() or short(call))):
        return needs
    if not call.grid.queries or not call.grid.keys:
        return needs
    if numbers and call.q.dtype != call.exact:
        return f"{needs}, rounded to {call.q.dtype}"
    room = (RECORDED if in_cuda_graph() else 1) * (call.q.numel() + call.k.numel())
    return f"{needs}, larger than the queries and keys" if elements(call, numbers) > room else None


def short(call: Call) -> bool:
    """Whether a GPU would need longer to make lists of what the mask hides than to look at every pair."""
    return max(call.grid.queries, call.grid.keys) <= SHORT


def elements(call: Call, numbers: bool) -> int:
    """How many numbers the tensor would have; with a gradient of its own, torch keeps the weights too."""
    grid = call.grid
    i, j = grid.indices()
    shape = call.mask.permits(i[:2], j[:, :2], grid).shape  # whether it depends on the batch, heads, query
    batch, heads = (shape[-4], shape[-3]) if len(shape) == 4 else (1, 1)
    rows = grid.queries if numbers or shape[-2] > 1 or grid.queries == 1 else 1
    if numbers and call.position is not None:
        learned = any(x.requires_grad for x in call.position.tensors().values())
        batch, heads = (grid.batch if learned else batch), grid.heads
    return batch * heads * rows * grid.keys


def slower(call: Call) -> str | None:
    """Why another backend would run the call faster; None when none would."""
    return None


def run(call: Call) -> Tensor:
    """The output, `[batch, heads, queries, value dim]`."""
    with without_autocast(call.q.device):
        p = lower(call)
        q, k, v = p.q.to(p.v.dtype), p.k.to(p.v.dtype), p.v
        dim = max(q.shape[-1], v.shape[-1])  # the fused kernels want one head_dim; zeros change nothing
        q, k, v = (x if x.shape[-1] == dim else pad(x, (0, dim - x.shape[-1])) for x in (q, k, v))
        grouped = True if q.shape[1] != k.shape[1] else False  # noqa: SIM210, a comparison of symbolic sizes is no bool
        if as_they_are(call):
            causal = isinstance(call.mask, Causal)
            found = scaled_dot_product_attention(q, k, v, is_causal=causal, scale=p.scale, enable_gqa=grouped)
        else:
            tensor, dead = remembered(call)
            with torchs_own(call):
                found = scaled_dot_product_attention(q, k, v, attn_mask=tensor, scale=p.scale, enable_gqa=grouped)
            found = found if dead is None else found.masked_fill(dead, 0.0)
        return found if dim == p.v.shape[-1] else found[..., : p.v.shape[-1]]


def remembered(call: Call) -> tuple[Tensor, Tensor | None]:
    """`as_tensor`, once for a mask that several layers share."""
    if call.position is not None or not call.mask.tensors():
        return as_tensor(call)
    return call.plan.get("mask", lambda: as_tensor(call))


def torchs_own(call: Call) -> AbstractContextManager:
    """Where cuDNN is not asked about short rows on a GPU: it takes long for every new shape, and batches have many."""
    if call.q.device.type != "cuda" or torch.compiler.is_compiling() or not short(call):
        return nullcontext()
    return sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])


def as_tensor(call: Call) -> tuple[Tensor, Tensor | None]:
    """Mask and numbers by distance as torch takes them, and the rows that may look at nothing (here: at everything)."""
    i, j = call.grid.indices()
    allowed = call.mask.permits(i, j, call.grid)
    allowed = allowed.reshape((1,) * (4 - allowed.dim()) + allowed.shape)
    dead: Tensor | None = ~allowed.any(-1, keepdim=True)
    if call.q.device.type == "cpu" and not shapes_only() and not bool(dead.any()):  # a GPU would have to be waited for
        dead = None
    allowed = allowed if dead is None else allowed | dead
    if call.position is None or isinstance(call.position, Rotary):
        return allowed, dead
    added = call.position.score_bias(call.q, call.k, 1.0, i - j)
    bias = torch.as_tensor(added, device=call.q.device).to(call.q.dtype)
    return bias.masked_fill(~allowed, -torch.inf), dead
