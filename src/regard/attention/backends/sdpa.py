"""torch's fused kernels, `scaled_dot_product_attention`, for what they can compute.

Plain and causal dot products need no mask tensor. On the CPU a mask or a bias by distance is passed as a tensor where
that is no larger than the queries and keys: few queries, short rows, or a mask that depends on the key alone. On a GPU
it is where rows are short, and during the capture of a CUDA graph, when no tile list can be made of a mask's contents.
"""

from __future__ import annotations

from contextlib import nullcontext

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

SHORT = 128  # queries and keys up to which a GPU computes every pair sooner than it lists the tiles of a mask
CAPTURED = 4  # times larger than queries and keys a mask tensor may be in a CUDA graph, where nothing else works
CACHED = 1 << 16  # elements up to which the tensor of a mask without tensors is cached


def unsupported_reason(call: Call) -> str | None:
    """Why this backend cannot run the call; None when it can."""
    if isinstance(call.score, Additive):
        return "torch's kernels compute dot products only, not Additive"
    if call.position is not None and not isinstance(call.position, Rotary | Alibi | Bias | T5Bias):
        return f"torch's kernels would need {type(call.position).__name__} as a tensor of queries × keys"
    if not isinstance(call.score, Dot) and call.q.dtype != call.exact:
        return f"{type(call.score).__name__} changes q and k, which {call.q.dtype} would round before the product"
    if call.dropout:
        return "torch draws its own dropout, which no other backend could repeat"
    return None if needs_no_tensor(call) else tensor_reason(call)


def slower_reason(call: Call) -> str | None:
    """Why another backend would run the call faster; None when none would."""
    return None


def needs_no_tensor(call: Call) -> bool:
    """Whether torch's kernels have the mask and position built in."""
    if call.position is not None and not isinstance(call.position, Rotary):
        return False
    square = call.q.shape[2] == call.k.shape[2]  # torch's causal mask starts at the first key, ours ends at the last
    return isinstance(call.mask, Everything) or (isinstance(call.mask, Causal) and square)


def tensor_reason(call: Call) -> str | None:
    """Why the mask or the bias by distance should not become a tensor; None when it may."""
    biased = call.position is not None and not isinstance(call.position, Rotary)
    part = type(call.position).__name__ if biased else "this mask"
    needs = f"torch's kernels would need {part} as a tensor of queries × keys"
    if torch.compiler.is_compiling():  # a compiled graph serves every length
        return needs
    if call.q.device.type != "cpu" and not (call.mask.tensors() and (in_cuda_graph() or short(call))):
        return needs
    if not call.grid.queries or not call.grid.keys:
        return needs
    if biased and call.q.dtype != call.exact:
        return f"{needs}, rounded to {call.q.dtype}"
    limit = (CAPTURED if in_cuda_graph() else 1) * (call.q.numel() + call.k.numel())
    return f"{needs}, larger than the queries and keys" if tensor_elements(call, biased) > limit else None


def short(call: Call) -> bool:
    return max(call.grid.queries, call.grid.keys) <= SHORT


def tensor_elements(call: Call, biased: bool) -> int:
    """The elements of the mask tensor; where it needs a gradient, torch also stores the weights."""
    grid = call.grid
    i, j = grid.indices()
    shape = call.mask.permits(i[:2], j[:, :2], grid).shape  # whether it depends on the batch, heads, query
    batch, heads = (shape[-4], shape[-3]) if len(shape) == 4 else (1, 1)
    rows = grid.queries if biased or shape[-2] > 1 or grid.queries == 1 else 1
    if biased and call.position is not None:
        learned = any(x.requires_grad for x in call.position.tensors().values())
        batch, heads = (grid.batch if learned else batch), grid.heads
    return batch * heads * rows * grid.keys


def run(call: Call) -> Tensor:
    """The output, `[batch, heads, queries, value dim]`."""
    with without_autocast(call.q.device):
        v = call.v
        if call.position is None and isinstance(call.score, Dot):
            q, k, scale = call.score.lower(call.q, call.k)
        else:
            p = lower(call)
            q, k, scale = p.q.to(v.dtype), p.k.to(v.dtype), p.scale
        if q.shape[-1] != v.shape[-1]:  # the fused kernels want one head_dim; zeros change nothing
            dim = max(q.shape[-1], v.shape[-1])
            q, k, v = (x if x.shape[-1] == dim else pad(x, (0, dim - x.shape[-1])) for x in (q, k, v))
        grouped = True if q.shape[1] != k.shape[1] else False  # noqa: SIM210, a comparison of symbolic sizes is no bool
        if needs_no_tensor(call):
            causal = isinstance(call.mask, Causal)
            output = scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=grouped)
        else:
            mask, dead = mask_tensor(call)
            any_kernel = call.q.device.type != "cuda" or torch.compiler.is_compiling() or not short(call)
            # cuDNN takes long for every new shape, and batches of short rows have many.
            with nullcontext() if any_kernel else sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
                output = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=grouped)
            output = output if dead is None else output.masked_fill(dead, 0.0)
        return output if v is call.v else output[..., : call.v.shape[-1]]


def mask_tensor(call: Call) -> tuple[Tensor, Tensor | None]:
    """`make_mask_tensor`, cached in the plan for layers that share a mask with tensors, and for small calls."""
    if call.mask.tensors():
        cached = call.position is None
    else:
        small = call.grid.heads * call.grid.queries * call.grid.keys <= CACHED
        cached = small and (call.position is None or not call.position.tensors())
    if not cached or torch.compiler.is_compiling():
        return make_mask_tensor(call)

    def make() -> tuple[Tensor, Tensor | None]:
        with torch.inference_mode(False):  # later calls may need gradients
            return make_mask_tensor(call)

    return call.plan.get("mask tensor", make)


def make_mask_tensor(call: Call) -> tuple[Tensor, Tensor | None]:
    """Mask and bias by distance as torch takes them, and the rows without allowed keys, which see every key here."""
    i, j = call.grid.indices()
    allowed = call.mask.permits(i, j, call.grid)
    allowed = allowed.reshape((1,) * (4 - allowed.dim()) + allowed.shape)
    dead: Tensor | None = ~allowed.any(-1, keepdim=True)
    if call.q.device.type == "cpu" and not shapes_only() and not bool(dead.any()):  # a GPU would have to be waited for
        dead = None
    allowed = allowed if dead is None else allowed | dead
    if call.position is None or isinstance(call.position, Rotary):
        return allowed, dead
    bias = call.position.score_bias(call.q, call.k, 1.0, i - j)
    bias = torch.as_tensor(bias, device=call.q.device).to(call.q.dtype)
    return bias.masked_fill(~allowed, -torch.inf), dead
