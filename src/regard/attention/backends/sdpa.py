"""torch's fused kernels, `scaled_dot_product_attention`, for what they can compute.

Plain and causal dot products need no mask tensor. A mask or a bias by distance is passed as a tensor where that costs
less than its tiles (`attention.costs`, `cpu_costs`) and takes little memory, and during the capture of a CUDA
graph, when no tile list can be made of a mask's contents.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from .. import costs
from ..call import Call, lower, shows_rounding, without_autocast
from ..execution import AttentionFunction, FunctionOfMask, Storage, mask_cache, tensor_cache
from ..parts.mask import Mask, PairGrid
from ..parts.masks import Causal, Everything
from ..parts.pair_bias import PairBias
from ..parts.positions import Alibi, Bias, T5Bias
from ..parts.scores import Additive, Dot
from ..tracing import in_cuda_graph, shapes_only
from . import cpu_costs, fused_sinks, triton
from .backend import EDGES_ONLY

name = "sdpa"

GPU_ELEMENTS = 1 << 25  # elements up to which a mask may become a tensor on a GPU
BIAS_ELEMENTS = 1 << 22  # the same for a bias by distance, which kernels of ours compute as they go
TABLE_ELEMENTS = 1 << 26  # the same for a table that is not learned, with which kernels of ours take longer
NO_KERNEL_ELEMENTS = 1 << 28  # the same where no kernel of ours takes the call
GPU_SMALL = 1 << 22  # pairs of all heads up to which starting a kernel takes longer than the kernel
ALIGNED = 8  # elements of which torch's kernel for masks wants every stride to be a multiple
CAPTURED = 4  # times larger than queries and keys a mask tensor may be in a CUDA graph, where nothing else works
CPU_ELEMENTS = 1 << 22  # elements up to which a CPU makes a tensor of a mask or bias, however few the queries and keys
CACHED = 1 << 16  # elements up to which every plan on a CPU keeps its tensor; a few larger ones are kept together
CACHED_TABLE = 1 << 18  # the same for a position's own table, as long as that does not change
BF16_KEYS = 256  # keys from which torch's backward of bfloat16 on a CPU takes less time than that of float32

EFFICIENT_DIM = 256  # head_dim up to which that kernel is fast; its backward pass is not so for wide heads
EFFICIENT_KEYS = 1024  # keys up to which it is as fast without a mask; it does not split them
READING_QUERIES, READ_NUMBERS = 16, 1 << 22  # so few queries wait for the memory, where keys have more numbers

LARGE_TENSORS = Storage(4)
efficient_attention = torch._scaled_dot_product_efficient_attention
"""torch's kernel for biases, started without a search for one: cuDNN's, else chosen, is slow for each new shape."""
MaskTensor = tuple[Tensor, Tensor | None]
"""A mask or bias as torch takes it, and the rows without allowed keys."""


def unsupported_reason(call: Call) -> str | None:
    """Why this backend cannot run the call; None when it can."""
    if call.edges is not None:
        return EDGES_ONLY
    if isinstance(call.score, Additive):
        return "torch's kernels compute dot products only, not Additive"
    known = call.position is None or call.position.rotates or isinstance(call.position, Alibi | Bias | T5Bias)
    if not known:
        return f"torch's kernels would need {type(call.position).__name__} as a tensor of queries × keys"
    if call.places is not None and call.position is not None and not call.position.rotates:
        return f"torch's kernels would need {type(call.position).__name__} at explicit places as a tensor"
    if not isinstance(call.score, Dot) and call.q.dtype != call.exact:
        return f"{type(call.score).__name__} changes q and k, which {call.q.dtype} would round before the product"
    if call.score.cap is not None:
        return "torch's kernels have no cap on scores"
    if call.sink is not None and (why := fused_sinks.unsupported_reason(call)) is not None:
        return why
    if call.dropout:
        return "torch draws its own dropout, which no other backend could repeat"
    if call.bias is not None:
        return bias_reason(call, call.bias)
    return None if needs_no_tensor(call) else tensor_reason(call)


def bias_reason(call: Call, bias: PairBias) -> str | None:
    """Why torch's kernels cannot take the bias by pair as it is; None when they can."""
    if torch.is_grad_enabled() and bias.bias.requires_grad:
        return "torch's kernels store every weight for the gradient of a bias by pair"
    alone = isinstance(call.mask, Everything) and (call.position is None or call.position.rotates)
    if not alone or bias.bias.dtype != call.q.dtype or torch.compiler.is_compiling():
        return "torch's kernels would need the bias by pair as another tensor, with the mask or in q's type"
    return None if call.q.device.type == "cpu" else "kernels of ours read a bias by pair on a GPU"


def slower_reason(call: Call) -> str | None:
    """Why another backend would run the call faster; None when none would."""
    if call.q.is_cuda and not in_cuda_graph():
        made = tensor_elements(call, True, BIAS_ELEMENTS) if call.adds_bias else 0
        made = made if made > BIAS_ELEMENTS else 0  # smaller ones are kept
        return costs.fused_reason(call, needs_no_tensor(call), made, triton.unsupported_reason(call) is None)
    if call.q.device.type != "cpu" or torch.compiler.is_compiling():
        return None
    return cpu_costs.fused_reason(call, needs_no_tensor(call), made_elements(call))


def made_elements(call: Call) -> int:
    """The elements of a bias by distance that are made for each call, or for the layers that share a mask."""
    if not call.adds_bias or call.learns_position:
        return 0
    elements = tensor_elements(call, True, cached_elements(call))
    if elements > cached_elements(call):
        return elements
    return elements // costs.LAYERS if call.mask.tensors() else 0


def needs_no_tensor(call: Call) -> bool:
    """Whether torch's kernels have the mask and position built in."""
    if call.bias is not None or call.adds_bias:
        return False
    square = call.q.shape[2] == call.k.shape[2]  # torch's causal mask starts at the first key, ours ends at the last
    return isinstance(call.mask, Everything) or (isinstance(call.mask, Causal) and square)


def tensor_reason(call: Call) -> str | None:
    """Why the mask or the bias by distance should not become a tensor; None when it may."""
    biased = call.adds_bias
    part = type(call.position).__name__ if biased else "this mask"
    needs = f"torch's kernels would need {part} as a tensor of queries × keys"
    if torch.compiler.is_compiling():  # a compiled graph serves every length
        return needs
    if not call.grid.queries or not call.grid.keys:
        return needs
    if biased and call.position is not None and call.q.dtype != call.exact:
        rounds = compute_dtype(call) != call.exact
        learns = rounds and call.learns_position and shows_rounding(call.position, call)
        if learns or not call.position.exact_in(call.q.dtype, call.grid):
            return f"{needs}, rounded to {call.q.dtype}"
    if call.q.device.type != "cpu" and not in_cuda_graph():
        return gpu_tensor_reason(call, biased, needs)
    if call.q.device.type != "cpu" and not call.mask.tensors():
        return needs
    limit = (CAPTURED if in_cuda_graph() else 1) * (call.q.numel() + call.k.numel())
    if call.q.device.type == "cpu" and call.q.dtype == call.exact:  # in half types torch rounds the weights
        limit = max(limit, CPU_ELEMENTS)
    return f"{needs}, of more than {limit:,} elements" if tensor_elements(call, biased, limit) > limit else None


def gpu_tensor_reason(call: Call, biased: bool, needs: str) -> str | None:
    """Why a GPU should not get the mask or the bias as a tensor; None when that is faster than its tiles."""
    if biased and call.learns_position:
        return f"{needs}, and sum its gradient over all pairs"
    if torch.are_deterministic_algorithms_enabled() and torch.is_grad_enabled():
        return f"{needs}, and their gradients may differ from call to call"
    tiled = triton.unsupported_reason(call) is None
    limit = (bias_limit(call) if biased else GPU_ELEMENTS) if tiled else NO_KERNEL_ELEMENTS
    return f"{needs}, of more than {limit:,} elements" if tensor_elements(call, biased, limit) > limit else None


def bias_limit(call: Call) -> int:
    """Elements up to which a GPU may get a bias by distance as a tensor."""
    table = call.position is not None and bool(call.position.tensors()) and not call.mask.tensors()
    trains = torch.is_grad_enabled() and any(x.requires_grad for x in (call.q, call.k, call.v))
    return TABLE_ELEMENTS if table and not trains else BIAS_ELEMENTS  # gradients of large calls differ from run to run


def chosen_by_shape(call: Call) -> bool:
    """Whether this backend would also be chosen for other contents of the mask's tensors."""
    return not (cpu_costs.reads_contents if call.q.device.type == "cpu" else costs.reads_contents)(call)


def tensor_elements(call: Call, biased: bool, limit: int) -> int:
    """The elements of the mask tensor, or a bound below the limit; with a gradient torch also stores the weights."""
    grid = call.grid
    if (most := grid.batch * grid.heads * grid.queries * grid.keys) <= limit:
        return most
    i, j = grid.indices()
    shape = call.mask.permits(i[:2], j[:, :2], grid).shape  # whether it depends on the batch, heads, query
    batch, heads = (shape[-4], shape[-3]) if len(shape) == 4 else (1, 1)
    rows = grid.queries if biased or shape[-2] > 1 or grid.queries == 1 else 1
    if biased and call.position is not None:
        batch, heads = (grid.batch if call.learns_position else batch), grid.heads
    return batch * heads * rows * grid.keys


def run(call: Call) -> Tensor:
    """The output, `[batch, heads, queries, value dim]`."""
    with without_autocast(call.q.device):
        if call.sink is not None:
            return fused_sinks.solve(lower(call))[0]
        if call.position is None and isinstance(call.score, Dot):
            q, k, scale = call.score.lower(call.q, call.k)
        else:
            p = lower(call)
            q, k, scale = p.q, p.k, p.scale
        q, k, v = (x.to(compute_dtype(call)) for x in (q, k, call.v))
        if scale <= 0:  # torch masks before it scales: −∞ · scale would be +∞ or NaN
            q, scale = (-q, -scale) if scale < 0 else (q * 0.0, 1.0)
        if q.shape[-1] != v.shape[-1]:  # the fused kernels want one head_dim; zeros change nothing
            dim = max(q.shape[-1], v.shape[-1])
            q, k, v = (x if x.shape[-1] == dim else pad(x, (0, dim - x.shape[-1])) for x in (q, k, v))
        grouped = True if q.shape[1] != k.shape[1] else False  # noqa: SIM210, a comparison of symbolic sizes is no bool
        if grouped and costs.repeats_heads(call):
            k, v, grouped = repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1]), False
        if needs_no_tensor(call):
            causal = isinstance(call.mask, Causal)
            output = scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=grouped)
        else:
            mask, dead = mask_tensor(call)
            output = masked_attention(q, k, v, tensor=mask, dead=dead, scale=scale, grouped=grouped)
        dim = call.v.shape[-1]
        return (output if output.shape[-1] == dim else output[..., :dim]).to(call.v.dtype)


def compute_dtype(call: Call) -> torch.dtype:
    """The type torch's kernel computes in: on a CPU float32 for float16, and for bfloat16 with a gradient and few keys.

    float32 is faster there and as exact as ours.
    """
    if call.q.device.type != "cpu" or call.q.dtype not in (torch.float16, torch.bfloat16):
        return call.v.dtype
    short = call.k.shape[2] < BF16_KEYS and torch.is_grad_enabled()
    trains = short and any(x.requires_grad for x in (call.q, call.k, call.v))
    return torch.float32 if call.q.dtype == torch.float16 or trains else call.v.dtype


def prepare(call: Call) -> AttentionFunction | None:
    """`run` as a function of q, k and v alone, for all calls of the same kind; None where it needs more than them."""
    position = call.position
    return None if position is not None and position.tensors() else prepare_fixed(call)


def prepare_fixed(call: Call) -> AttentionFunction | None:
    """`run` as a function of q, k and v alone, for calls of the same kind with the same contents of the position.

    None where it depends on more: a position that transforms q and k, or one that is being learned.
    """
    score, position = call.score, call.position
    if type(score) is not Dot or call.q.shape[-1] != call.v.shape[-1]:
        return None
    if position is not None and (position.transforms or call.places is not None or call.learns_position):
        return None
    if score.factor(call.q.shape[-1]) <= 0 or compute_dtype(call) != call.q.dtype:  # `run` turns the sign, and casts
        return None
    # autocast, which has cast q, k and v, would change nothing here
    if needs_no_tensor(call):
        if starts_at_once(call) and call.k.shape[2] <= EFFICIENT_KEYS and not costs.trains(call):
            return start_at_once(None, score.factor(call.q.shape[-1]), False, isinstance(call.mask, Causal))
        causal, grouped = isinstance(call.mask, Causal), call.q.shape[1] != call.k.shape[1]
        if grouped and costs.repeats_heads(call):
            return with_repeated_heads(plain_attention(score.scale, causal, False), call.q.shape[1])
        return plain_attention(score.scale, causal, grouped)
    return fixed_function(call, MaskAsTensor.of(call))


def fixed_function(call: Call, how: MaskAsTensor) -> AttentionFunction | None:
    """Attention with the call's mask and bias by distance; None where their tensor is not kept."""
    limit = cached_elements(call)
    if call.position is None:
        return how.function(call.mask)
    if tensor_elements(call, True, limit) > limit:
        return None
    few = CACHED if call.q.device.type == "cpu" and limit == CPU_ELEMENTS else min(limit, BIAS_ELEMENTS)
    if call.mask.tensors() or tensor_elements(call, True, few) <= few:
        return how.attention(*make_mask_tensor(call, how.dtype))
    sizes = {name: getattr(call, name).shape for name in "qkv"}  # without the numbers of q, k and v
    light = replace(call, **{name: call.q.new_empty(1, 1, 1, 1).expand(size) for name, size in sizes.items()})
    return how.cached_attention(call.plan, lambda: make_mask_tensor(light, how.dtype))


def plain_attention(scale: float | None, causal: bool, grouped: bool) -> AttentionFunction:
    """torch's attention; arguments by name, which cost time, only where they differ from the defaults."""
    if scale is None and not grouped:
        return lambda q, k, v: scaled_dot_product_attention(q, k, v, None, 0.0, causal)
    return functools.partial(scaled_dot_product_attention, is_causal=causal, scale=scale, enable_gqa=grouped)


def repeat_heads(x: Tensor, heads: int) -> Tensor:
    """Keys or values, once for each of the query heads that share them."""
    batch, own, *rest = x.shape
    return x[:, :, None].expand(batch, own, heads // own, *rest).reshape(batch, heads, *rest)


def with_repeated_heads(attention: AttentionFunction, heads: int) -> AttentionFunction:
    """Attention whose keys and values are repeated before it."""
    return lambda q, k, v: attention(q, repeat_heads(k, heads), repeat_heads(v, heads))


def starts_at_once(call: Call) -> bool:
    """Whether a GPU's call is so small that it pays to save the host torch's search for a kernel."""
    if torch.version.hip or not runs_efficient(call):
        return False
    alike = call.q.dtype == call.k.dtype == call.v.dtype and call.k.shape[3] == call.v.shape[3] == call.q.shape[3]
    return alike and call.q.shape[3] <= EFFICIENT_DIM and call.q.shape[3] % ALIGNED == 0


def start_at_once(bias: Tensor | None, scale: float, trains: bool, causal: bool = False) -> AttentionFunction:
    """Attention by torch's kernel for biases, which takes the host less time than the others."""

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if are_aligned(q, k, v):
            return efficient_attention(q, k, v, bias, trains, 0.0, causal, scale=scale)[0]
        return scaled_dot_product_attention(q, k, v, bias, 0.0, causal, scale=scale)

    return attention


def function_of_mask(call: Call) -> FunctionOfMask | None:
    """What makes the function of `prepare` for a mask with other contents; None where there is no such function."""
    masked = call.position is None and not needs_no_tensor(call)
    return MaskAsTensor.of(call).function if masked and prepare(call) is not None else None


def masked_attention(
    q: Tensor, k: Tensor, v: Tensor, *, tensor: Tensor, dead: Tensor | None, scale: float, grouped: bool
) -> Tensor:
    """Attention with a mask or bias as a tensor; `dead` rows are zeros."""
    biased = tensor.is_cuda and tensor.dtype == q.dtype != torch.float64 and not grouped
    trains = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    if biased and is_efficient(q.shape, k.shape[2], trains) and are_aligned(q, k, v):
        tensor = tensor.expand(*q.shape[:3], k.shape[2])
        output = efficient_attention(q, k, v, tensor, trains, 0.0, False, scale=scale)[0]
        return output if dead is None else output.masked_fill(dead, 0.0)
    output = scaled_dot_product_attention(q, k, v, attn_mask=tensor, scale=scale, enable_gqa=grouped)
    return output if dead is None else output.masked_fill(dead, 0.0)


def is_efficient(sizes: tuple[int, ...], keys: int, trains: bool) -> bool:
    """Whether `efficient_attention` takes less time than the kernel that torch would choose, for queries of a shape."""
    batch, heads, queries, dim = sizes
    weights, numbers = batch * heads * queries * keys, batch * heads * keys * dim
    if weights > GPU_SMALL or (queries <= READING_QUERIES and numbers > READ_NUMBERS):
        return False
    many_heads = weights > GPU_SMALL // 4 and queries <= 64  # of which each takes a while in the backward pass
    return not trains or dim <= 64 or (dim <= 128 and not many_heads)


def are_aligned(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether torch's kernel for biases can read these as they are."""
    if (q.data_ptr() | k.data_ptr() | v.data_ptr()) & 15:
        return False
    if q.is_contiguous() and k.is_contiguous() and v.is_contiguous():
        return not (q.shape[3] | v.shape[3]) % ALIGNED
    return all(x.stride(3) == 1 and not any(step % ALIGNED for step in x.stride()[:3]) for x in (q, k, v))


@dataclass(frozen=True)
class MaskAsTensor:
    """How calls of one kind hand their mask to torch: as a boolean tensor, or as a bias of 0 and −∞ in a type.

    `compute` is attention with that tensor: by torch's fused kernels, or by products of matrices (`dense`).
    """

    grid: PairGrid
    scale: float
    grouped: bool
    bias: torch.dtype | None
    efficient: bool = False  # whether `efficient_attention` runs the calls, which gives rows of −∞ zeros
    at_once: bool = False  # whether `start_at_once` may
    trains: bool = False
    repeated: bool = False  # whether keys and values are repeated for heads that share them
    compute: Callable[..., Tensor] = masked_attention

    @classmethod
    def of(cls, call: Call) -> MaskAsTensor:
        scale = call.score.factor(call.q.shape[-1]) if isinstance(call.score, Dot) else 1.0
        grouped = call.q.shape[1] != call.k.shape[1]
        repeated = grouped and costs.repeats_heads(call)
        bias = call.q.dtype if prefers_bias(call) else None
        quick = runs_efficient(call), starts_at_once(call), costs.trains(call)
        return cls(call.grid, scale, grouped and not repeated, bias, *quick, repeated)

    def function(self, mask: Mask) -> AttentionFunction:
        """Attention with that mask; its tensor is cached, for layers that share the mask."""
        if self.is_large(mask):
            return self.cached_attention(*self.large(mask))
        return self.attention(*self.tensor(mask))

    def attention(self, tensor: Tensor, dead: Tensor | None) -> AttentionFunction:
        """Attention with that tensor."""
        attention = self.attention_alike(tensor, dead)
        return with_repeated_heads(attention, self.grid.heads) if self.repeated else attention

    def attention_alike(self, tensor: Tensor, dead: Tensor | None) -> AttentionFunction:
        """Attention with that tensor, where keys are not shared or torch's kernel takes them as they are."""
        scale, grouped = self.scale, self.grouped
        if dead is None and not tensor.is_cuda and self.compute is masked_attention:
            return lambda q, k, v: scaled_dot_product_attention(
                q, k, v, tensor, 0.0, False, scale=scale, enable_gqa=grouped
            )
        if dead is None and self.at_once and self.compute is masked_attention and tensor.dtype == self.bias:
            bias = tensor.expand(self.grid.batch, self.grid.heads, self.grid.queries, -1)
            return start_at_once(bias, scale, self.trains)
        return functools.partial(self.compute, tensor=tensor, dead=dead, scale=self.scale, grouped=self.grouped)

    def cached_attention(self, key: Hashable, make: Callable[[], MaskTensor]) -> AttentionFunction:
        """Attention with a tensor of which only a few are kept."""
        return lambda q, k, v: self.attention(*LARGE_TENSORS.get(key, make))(q, k, v)

    def tensor(self, mask: Mask) -> MaskTensor:
        """The mask as a tensor, cached."""
        if self.is_large(mask):
            return LARGE_TENSORS.get(*self.large(mask))
        return mask_cache(mask).get(self.key, lambda: self.make(mask))

    def is_large(self, mask: Mask) -> bool:
        """Whether only a few such tensors are kept; of a mask with tensors it is kept as long as they are."""
        on_cpu = torch.device(self.grid.device).type == "cpu"
        return on_cpu and not mask.tensors() and self.grid.queries * self.grid.keys > CACHED

    def large(self, mask: Mask) -> tuple[Hashable, Callable[[], MaskTensor]]:
        """The key of such a tensor, and what makes it."""
        return (mask_cache(mask), *self.key), lambda: self.make(mask)

    @property
    def dtype(self) -> torch.dtype | None:
        """The type of numbers that are added to scores; None for that of torch's fused kernels."""
        return None if self.compute is masked_attention else self.bias

    @property
    def key(self) -> tuple[Hashable, ...]:
        """What decides, besides the mask, how its tensor looks."""
        return "mask tensor", self.grid, self.bias, self.efficient, self.compute

    def make(self, mask: Mask) -> tuple[Tensor, Tensor | None]:
        """The mask's tensor, and the rows without allowed keys, which see every key in it."""
        with torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext():
            if self.bias is None:
                return allowed_pairs(mask, self.grid)
            if self.compute is not masked_attention:
                allowed, dead = allowed_pairs(mask, self.grid)
                return as_bias(allowed, self.bias), dead
            if self.efficient:
                return as_bias(permitted_pairs(mask, self.grid), self.bias), None
            allowed, dead = allowed_pairs(mask, self.grid)
            return (as_bias(allowed, self.bias), None) if dead is None else (allowed, dead)


def mask_tensor(call: Call) -> tuple[Tensor, Tensor | None]:
    """Mask and bias by distance as one tensor, and the rows without allowed keys; a bias by pair as it is.

    It is cached with the mask for layers that share it, and in the plan for small calls with a bias by distance.
    """
    if call.bias is not None:
        return call.bias.four_dims().to(compute_dtype(call)), None
    if torch.compiler.is_compiling():
        return make_mask_tensor(call)
    if call.position is None:
        return MaskAsTensor.of(call).tensor(call.mask)
    if call.mask.tensors() or call.position.tensors():
        return make_mask_tensor(call)
    if call.q.device.type != "cpu" or tensor_elements(call, True, CACHED) <= CACHED:
        return call.plan.get("mask tensor", lambda: make_mask_tensor(call))
    return LARGE_TENSORS.get(call.plan, lambda: make_mask_tensor(call))


def cached_elements(call: Call) -> int:
    """Elements up to which the tensor of a mask and a bias by distance is cached."""
    if call.q.device.type != "cpu":
        return bias_limit(call)
    if call.mask.tensors():  # of a batch, after which it is dropped
        return CPU_ELEMENTS
    return CACHED_TABLE if call.position is not None and call.position.tensors() else CPU_ELEMENTS


def make_mask_tensor(call: Call, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor | None]:
    """Mask and bias by distance as torch takes them, and the rows without allowed keys, which see every key here.

    Numbers by distance are of the type, that of the fused kernel by default.
    """
    dtype = compute_dtype(call) if dtype is None else dtype
    with torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext():
        if call.position is None or call.position.rotates:
            return MaskAsTensor.of(call).make(call.mask)
        if runs_efficient(call):
            allowed, dead = permitted_pairs(call.mask, call.grid), None
        else:
            allowed, dead = allowed_pairs(call.mask, call.grid)
        i, j = call.grid.indices()
        # the gradient of a table is summed in the exact type
        bias = call.position.score_bias(call.q[:, :, :1, :1].to(call.exact), call.k, 1.0, i - j)
        bias = torch.as_tensor(bias, device=call.q.device).to(dtype)
        bias = bias.masked_fill(~allowed, -torch.inf)
        return (pad_rows(bias) if call.q.is_cuda else bias), dead


def allowed_pairs(mask: Mask, grid: PairGrid) -> tuple[Tensor, Tensor | None]:
    """Every pair's answer, `[batch or 1, heads or 1, queries or 1, keys]`, and the rows without an allowed key.

    Those rows see every key in the first; the second is None where there are none.
    """
    allowed = permitted_pairs(mask, grid)
    dead = ~allowed.any(-1, keepdim=True)
    waits = torch.device(grid.device).type != "cpu" and bool(mask.tensors())  # for the GPU, with every new batch
    if not waits and not shapes_only() and not bool(dead.any()):
        return allowed, None
    return allowed | dead, dead


def permitted_pairs(mask: Mask, grid: PairGrid) -> Tensor:
    """Every pair's answer, `[batch or 1, heads or 1, queries or 1, keys]`."""
    allowed = mask.permits(*pair_indices(grid.queries, grid.keys, torch.device(grid.device)), grid)
    return allowed.reshape((1,) * (4 - allowed.dim()) + allowed.shape)


@tensor_cache
def pair_indices(queries: int, keys: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """i `[queries, 1]` and j `[1, keys]` of every pair."""
    return PairGrid(queries, keys, device=device).indices()


def takes_bias(call: Call) -> bool:
    """Whether `efficient_attention` runs this call; it gives rows of −∞ in a bias zeros, and gradients of zeros."""
    return call.q.is_cuda and call.q.dtype != torch.float64


def prefers_bias(call: Call) -> bool:
    """Whether a mask is faster as a bias on a GPU: torch makes one of a boolean mask at each call.

    A mask with tensors is made into one only for `efficient_attention`, which gives rows without keys zeros.
    """
    return takes_bias(call) and not in_cuda_graph() and (runs_efficient(call) or not call.mask.tensors())


def runs_efficient(call: Call) -> bool:
    """Whether `efficient_attention` runs the call, once its mask is a bias."""
    if not takes_bias(call) or (call.q.shape[1] != call.k.shape[1] and not costs.repeats_heads(call)):
        return False
    sizes = (*call.q.shape[:3], max(call.k.shape[3], call.v.shape[3]))  # to which `run` pads
    return is_efficient(sizes, call.k.shape[2], costs.trains(call))


def as_bias(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where allowed, −∞ elsewhere."""
    bias = torch.where(allowed, *bias_values(dtype, allowed.device))
    return pad_rows(bias) if bias.is_cuda else bias


@tensor_cache
def bias_values(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """0 and −∞."""
    return torch.zeros((), dtype=dtype, device=device), torch.full((), -torch.inf, dtype=dtype, device=device)


def pad_rows(x: Tensor) -> Tensor:
    """x with rows that begin at multiples of 16 elements, as torch's kernel for biases wants them."""
    keys = x.shape[-1]
    return x if keys % 16 == 0 else pad(x, (0, -keys % 16))[..., :keys]
