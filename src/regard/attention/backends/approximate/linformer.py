"""Linformer: exact attention over projected keys and values, softmax(score(q, E k)) (F v)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ....errors import BadInput
from ...call import Call, device_guard, lower, without_autocast
from ...execution import ExecutionPlan
from ...parts.masks import Everything
from .exact_steps import attend_repeatably, zero_padding
from .requirements import check_no_distance, count_real, fits_kernels, plain_dot_product, product_dtype

if TYPE_CHECKING:
    from ...parts.methods import Linformer


def run(method: Linformer, call: Call) -> Tensor:
    """The output, `[batch, heads, queries, value dim]`."""
    kernel = find_kernel(method, call)
    if kernel is not None:
        with device_guard(call.q), without_autocast(call.q.device):
            return kernel(call.q, call.k, call.v, method.keys.to(call.k.dtype))
    check_projections(method, call)
    keys, queries = count_real(method, call, "a projected key is a mixture of all of them, early and late")
    check_no_distance(method, call, "a projected key is a mixture of all positions and has none of its own")
    with without_autocast(call.q.device):
        q, k, dtype = call.q, call.k, product_dtype(call)
        if call.position is not None:
            q, k = call.position.transform(q.to(call.exact), k.to(call.exact))
        values = method.keys if method.values is None else method.values
        k = project(method.keys, zero_padding(k.to(dtype), keys))
        v = project(values, zero_padding(call.v.to(dtype), keys))
        few_keys = replace(call, q=q.to(dtype), k=k, v=v, position=None, mask=Everything(), plan=ExecutionPlan())
        return zero_padding(attend_repeatably(few_keys), queries).to(call.v.dtype)


def find_kernel(method: Linformer, call: Call) -> Callable[..., Tensor] | None:
    """The kernels that run the call, cached in its plan; None where they do not."""
    if method.values is not None:
        return None

    def make() -> Callable[..., Tensor] | None:
        check_projections(method, call)
        if method.keys.dim() != 2 or not plain_dot_product(call) or not fits_kernels(call):
            return None
        from ...kernels.linformer.passes import LinformerKernels

        return LinformerKernels(call.q, call.k, call.v, len(method.keys), lower(call).scale)

    return call.plan.get(("linformer", method.keys.shape, method.keys.device), make)


def check_projections(method: Linformer, call: Call) -> None:
    """Raise `BadInput` when the projections do not fit the call's keys."""
    kv_heads, keys = call.k.shape[1:3]
    for name, value in (("keys", method.keys), ("values", method.values)):
        if value is None:
            continue
        if value.shape[-1] != keys or (value.dim() == 3 and value.shape[0] != kv_heads):
            raise BadInput(
                f"Linformer's {name} are {list(value.shape)}; with k {list(call.k.shape)} they must be "
                f"[projected, {keys}] or [{kv_heads}, projected, {keys}]. A projection serves one number of keys: "
                "pad k and v to it and mask them with Lengths, or cut the projection."
            )
        if value.device != call.q.device:
            raise BadInput(f"q is on {call.q.device} and Linformer's {name} on {value.device}. Move it with .to(...).")


def project(projection: Tensor, x: Tensor) -> Tensor:
    """projection `[kv_heads, projected, n]`, or without heads, over x `[batch, kv_heads, n, d]`."""
    projection = projection.to(x.dtype)
    if projection.dim() == 3:
        return torch.einsum("hpn,bhnd->bhpd", projection, x)
    return projection @ x if torch.compiler.is_compiling() else Projection.apply(projection, x)


class Projection(torch.autograd.Function):
    """projection `[projected, n]` over x `[batch, kv_heads, n, d]`, differentiable once in both.

    A product for each head reads x as it lies in memory. torch by itself would transpose it first, or in backward
    write the projection's gradient once for each head and add these up.
    """

    @staticmethod
    def forward(ctx: Any, projection: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(projection, x)
        return projection.expand(*x.shape[:2], -1, -1) @ x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, Tensor | None]:  # type: ignore[override]
        (grad,) = grad_outputs
        projection, x = ctx.saved_tensors
        of_projection, of_x = ctx.needs_input_grad
        d_projection = torch.einsum("bhpd,bhnd->pn", grad, x) if of_projection else None
        return d_projection, projection.mT.expand(*x.shape[:2], -1, -1) @ grad if of_x else None
