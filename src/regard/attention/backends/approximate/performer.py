"""Performer (FAVOR+): weights as products of positive random features, in logarithms.

output(i) = Σ_j φ(q_i)·φ(k_j) v_j / Σ_j φ(q_i)·φ(k_j),   φ(x) = exp(ω x − ‖x‖²/2)
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...call import Call, device_guard, lower, without_autocast
from ...execution import ExecutionPlan, tensor_cache
from ...parts.masks import Causal
from ..reference import per_query_head
from .exact_steps import lower_real, real_mask, zero_padding
from .requirements import check_dot_product, count_real, fits_kernels, plain_dot_product, split_and

if TYPE_CHECKING:
    from ...parts.methods import Performer

CHUNK = 128  # tokens compared pair by pair; the sums between chunks then take no more than the features themselves


def run(method: Performer, call: Call) -> Tensor:
    """The output, `[batch, heads, queries, value dim]`."""
    kernel = find_kernel(method, call)
    if kernel is not None:
        with device_guard(call.q), without_autocast(call.q.device):
            return kernel(call.q, call.k, call.v)
    why = "keys are summed before any query is compared, so they can only be left out for all, or added in order"
    keys, queries = count_real(method, call, why, Causal)
    check_dot_product(method, call, "keys are summed before any query is compared, and a sum has no position")
    with without_autocast(call.q.device):
        causal = any(isinstance(mask, Causal) for mask in split_and(call.mask))
        q, k, v, scale = lower_real(call, keys)
        if not causal and fits_kernels(call):
            with device_guard(q):
                output = run_kernels(call.plan, q, k, v, method.features, method.seed, scale, keys)
        else:
            k, v = (per_query_head(x, call).to(call.exact) for x in (k, v))
            output = attend_features(method, q.to(call.exact), k, v, scale, keys, causal)
        return zero_padding(output, queries).to(call.v.dtype)


def find_kernel(method: Performer, call: Call) -> Callable[..., Tensor] | None:
    """The kernels that run the call as it is, cached in its plan; None where they do not."""

    def make() -> Callable[..., Tensor] | None:
        if not plain_dot_product(call) or not fits_kernels(call):
            return None
        scale = lower(call).scale
        return functools.partial(run_kernels, call.plan, features=method.features, seed=method.seed, scale=scale)

    return call.plan.get(("performer", method.features, method.seed), make)


def run_kernels(
    plan: ExecutionPlan, q: Tensor, k: Tensor, v: Tensor, features: int, seed: int, scale: float,
    keys: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The output by kernels that store no feature of a token, over the real `keys [batch]`, or all."""
    from ...kernels.performer.passes import PerformerKernels

    kernels = plan.get((PerformerKernels, features, scale), lambda: PerformerKernels(features, scale))
    directions = kernel_directions(features, q.shape[3], seed, q.dtype, q.device)
    counts = full_counts(k.shape[0], k.shape[2], k.device) if keys is None else keys.int()
    return kernels(q, k, v, directions, counts)


def attend_features(
    method: Performer, q: Tensor, k: Tensor, v: Tensor, scale: float, keys: Tensor | None, causal: bool
) -> Tensor:
    """The formula in torch; log φ(q) without ‖q‖²/2, which divides out."""
    directions = orthogonal_directions(q.detach(), method.features, method.seed).mT
    root = math.sqrt(abs(scale))
    q, k = q * math.copysign(root, scale), k * root
    log_q, log_k = q @ directions, k @ directions - k.square().sum(-1, keepdim=True) / 2
    if keys is not None:
        log_k = log_k.masked_fill(~real_mask(keys, k.shape[2]).mT, -torch.inf)
    v = pad(v, (0, 1), value=1.0)
    sums = (sum_earlier_keys if causal else sum_all_keys)(log_q, log_k, v)
    total = sums[..., -1:]
    return sums[..., :-1] / torch.where(total > 0, total, 1.0)


def sum_all_keys(log_q: Tensor, log_k: Tensor, v: Tensor) -> Tensor:
    """Σ_j φ(q_i)·φ(k_j) v_j up to a factor for each query, from log φ, `[batch, heads, queries, value dim]`."""
    largest = log_k.detach().amax(-2, keepdim=True)
    return shifted_exp(log_q + largest)[0] @ ((log_k - finite(largest)).exp().mT @ v)


def sum_earlier_keys(log_q: Tensor, log_k: Tensor, v: Tensor) -> Tensor:
    """`sum_all_keys` over j ≤ i alone, the last query beside the last key.

    Tokens are cut into chunks: within a chunk pairs are compared, and what came before it is one matrix of features ×
    value dim.
    """
    queries, tokens = log_q.shape[2], max(log_q.shape[2], log_k.shape[2])
    log_q, log_k, v = cut_chunks(log_q, queries), cut_chunks(log_k, tokens, -torch.inf), cut_chunks(v, tokens)
    last = slice(-log_q.shape[2], None)
    before, largest = prefix_sums(log_k, v)
    phi_q, far = shifted_exp(log_q + largest[:, :, last])
    inside, near = sum_within_chunks(log_q, log_k[:, :, last], v[:, :, last])
    top = finite(torch.maximum(far, near))
    sums = (phi_q @ before[:, :, last]) * (far - top).exp() + inside * (near - top).exp()
    return sums.flatten(2, 3)[:, :, -queries:]


def prefix_sums(log_k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """(sums, largest): e^largest · sums is Σ φ(k_j) v_j over the chunks before each; later chunks change neither.

    sums `[batch, heads, chunks, features, value dim]`, largest `[batch, heads, chunks, 1, features]`.
    """
    largest = log_k.detach().amax(-2, keepdim=True).cummax(2).values
    sums = (log_k - finite(largest)).exp().mT @ v
    # In float64 even chunks that are e^700 apart fit into one sum.
    decay = (finite(largest) - finite(largest[:, :, -1:])).mT.double().clamp(-700.0, 0.0).exp()
    sums = ((sums.double() * decay).cumsum(2) / decay).to(sums.dtype)
    shift = (0, 0, 0, 0, 1, 0)
    return pad(sums[:, :, :-1], shift), pad(largest[:, :, :-1], shift, value=-torch.inf)


def sum_within_chunks(log_q: Tensor, log_k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """(sums, top): e^top · sums is Σ φ(q_i)·φ(k_j) v_j over j ≤ i of the same chunk, with a top for each query.

    sums `[batch, heads, chunks, CHUNK, value dim]`, top `[batch, heads, chunks, CHUNK, 1]`.
    """
    largest = log_k.detach().amax(-1, keepdim=True)
    so_far = largest.cummax(-2).values
    phi_q, top = shifted_exp(log_q)
    pairs = phi_q @ (log_k - finite(largest)).exp().mT
    decay = (largest.mT - finite(so_far)).clamp(max=0.0).exp().tril()
    return (pairs * decay) @ v, top + so_far


def shifted_exp(logs: Tensor) -> tuple[Tensor, Tensor]:
    """(e^(logs − top), top): features of which each query's largest is 1."""
    top = logs.detach().amax(-1, keepdim=True)  # it divides out, and so would its gradient
    return (logs - finite(top)).exp(), top


def finite(x: Tensor) -> Tensor:
    """x, and 0 where there is no key and it is −∞."""
    return x.masked_fill(x == -torch.inf, 0.0)


def cut_chunks(x: Tensor, tokens: int, value: float = 0.0) -> Tensor:
    """x `[batch, heads, n, d]` as the last of `tokens` in `[batch, heads, chunks, CHUNK, d]`; `value` before it."""
    missing = -(-tokens // CHUNK) * CHUNK - x.shape[2]
    return pad(x, (0, 0, missing, 0), value=value).unflatten(2, (-1, CHUNK))


@torch.library.custom_op("regard::orthogonal_directions", mutates_args=())
def orthogonal_directions(like: Tensor, features: int, seed: int) -> Tensor:
    """ω `[features, d]` in the type and on the device of `like [..., d]`; the same for a seed everywhere."""
    return draw_directions(features, like.shape[-1], seed).to(like, copy=True)


@orthogonal_directions.register_fake
def _(like: Tensor, features: int, seed: int) -> Tensor:
    return like.new_empty(features, like.shape[-1])


@tensor_cache
def kernel_directions(features: int, dim: int, seed: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """ω as the kernels read it."""
    from ...kernels.performer.passes import pad_omega

    return pad_omega(draw_directions(features, dim, seed), dtype).to(device)


@tensor_cache
def full_counts(batch: int, tokens: int, device: torch.device) -> Tensor:
    """The counts of rows without padding."""
    return torch.full((batch,), tokens, dtype=torch.int32, device=device)


@tensor_cache
def draw_directions(features: int, dim: int, seed: int) -> Tensor:
    """Rows orthogonal in blocks of `dim`, uniform in direction, as long as normal vectors; float64 on the CPU."""
    generator = torch.Generator("cpu").manual_seed(seed)
    draw = functools.partial(torch.randn, generator=generator, dtype=torch.float64, device="cpu")
    basis, triangle = torch.linalg.qr(draw(-(-features // dim), dim, dim))
    basis = basis * triangle.diagonal(dim1=-2, dim2=-1).sign()[:, None]  # the signs make the bases uniform
    return basis.mT.flatten(0, 1)[:features] * draw(features, dim).norm(dim=-1, keepdim=True)
