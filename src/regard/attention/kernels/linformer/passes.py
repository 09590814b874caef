"""Forward and backward pass of Linformer: one projection E of all heads' keys and values, then exact attention.

    keys[h] = E k[h],   values[h] = E v[h],      dE = Σ_h d keys[h] k[h]ᵀ + d values[h] v[h]ᵀ

for h the heads of all rows of the batch. The sum over tokens is long and has few results, so it is split over as many
programs as the GPU runs at once; the parts are added in order, and the same call gives the same bits.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ..exact import ExactStep
from ..launch import (
    Launch,
    ShapeTable,
    TileShape,
    align,
    compile_together,
    pad_dot,
    select_shape,
    split_tokens,
    stride_arguments,
)
from .kernels import d_projection_kernel, project_kernel, sum_splits_kernel

# Tiles of projected keys × tokens, by bytes of a number and padded head_dim.
FORWARD: ShapeTable = {
    2: {64: TileShape(256, 64, 8, 4), 128: TileShape(128, 64, 8, 3)},
    4: {64: TileShape(64, 32, 4, 2), 128: TileShape(64, 32, 8, 2)},
}
BACKWARD: ShapeTable = {
    2: {64: TileShape(256, 128, 8, 3), 128: TileShape(128, 128, 8, 2)},
    4: {64: TileShape(64, 64, 4, 1), 128: TileShape(64, 32, 4, 1)},
}
SUMMED = 1024  # results of a program of `sum_splits_kernel`


class LinformerKernels:
    """Exact attention over projected keys and values, for one kind of call."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, projected: int, scale: float):
        self.projected, self.scale = projected, scale
        self.grouped = q.shape[1] != k.shape[1]
        self.launches: dict[Hashable, LinformerLaunches] = {}  # by strides
        self.exact = ExactStep(scale)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, e: Tensor) -> Tensor:
        k, v, e = align(k), align(v), align(e.contiguous())
        key = (k.stride(), v.stride())
        launches = self.launches.get(key)
        if launches is None:
            launches = self.launches[key] = LinformerLaunches(k, v, self.projected)
            compile_key = (LinformerKernels, k.device, k.dtype, k.shape[3], v.shape[3])
            compile_together(compile_key, lambda: launches.d_projection(*launches.project(e, k, v), k, v))
        if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad or e.requires_grad):
            return LinformerAttention.apply(self, launches, q, k, v, e)
        keys, values = launches.project(e, k, v)
        if q.shape[3] == v.shape[3]:
            return scaled_dot_product_attention(q, keys, values, scale=self.scale, enable_gqa=self.grouped)
        return self.exact.forward(q, keys, values)[0]


class LinformerAttention(torch.autograd.Function):
    """The output, differentiable once in q, k, v and E."""

    @staticmethod
    def forward(
        ctx: Any, kernels: LinformerKernels, launches: LinformerLaunches, q: Tensor, k: Tensor, v: Tensor, e: Tensor
    ) -> Tensor:
        keys, values = launches.project(e, k, v)
        output, lse = kernels.exact.forward(q, keys, values)
        ctx.kernels, ctx.launches = kernels, launches
        ctx.save_for_backward(q, k, v, e, keys, values, output, lse)
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        q, k, v, e, keys, values, output, lse = ctx.saved_tensors
        *_, needs_dk, needs_dv, needs_de = ctx.needs_input_grad
        dq, d_keys, d_values = ctx.kernels.exact.backward(q, keys, values, grad.contiguous(), output, lse)
        d_keys, d_values = align(d_keys.contiguous()), align(d_values.contiguous())
        transposed = e.mT.expand(*k.shape[:2], -1, -1)
        return (
            None,
            None,
            dq,
            transposed @ d_keys if needs_dk else None,
            transposed @ d_values if needs_dv else None,
            ctx.launches.d_projection(d_keys, d_values, k, v) if needs_de else None,
        )


class LinformerLaunches:
    """The kernels for keys and values of one layout, aligned to 16 bytes."""

    def __init__(self, k: Tensor, v: Tensor, projected: int):
        batch, heads, tokens, dim = k.shape
        value_dim, itemsize = v.shape[3], k.dtype.itemsize
        width, value_width = pad_dot(dim), pad_dot(value_dim)
        forward, backward = (select_shape(x, itemsize, max(width, value_width)) for x in (FORWARD, BACKWARD))
        instances, blocks = batch * heads, -(-projected // forward.rows)
        self.splits, split_size = split_tokens(tokens, forward.columns, instances * blocks, 1, k.device)
        self.count, self.first_value = instances * projected * (dim + value_dim), instances * projected * dim
        self.keys, self.values = (batch, heads, projected, dim), (batch, heads, projected, value_dim)
        self.projection = (projected, tokens)
        common = {"batch": batch, "heads": heads, "tokens": tokens, "projected": projected, "split_size": split_size}
        common |= {"instances": instances, "D": dim, "BD": width, "DV": value_dim, "BDV": value_width}
        common |= stride_arguments(k=k, v=v)
        self.start_project = Launch(project_kernel, blocks, self.splits, instances, **common, **forward.arguments())
        self.sum_splits = Launch(
            sum_splits_kernel, -(-self.count // SUMMED), count=self.count, splits=self.splits, BN=SUMMED
        )
        tiles = -(-tokens // backward.columns), -(-projected // backward.rows)
        self.start_d_projection = Launch(d_projection_kernel, *tiles, **common, **backward.arguments())

    def project(self, e: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """E k and E v, `[batch, kv_heads, projected, d]`."""
        parts, both = k.new_empty(self.splits, self.count, dtype=torch.float32), k.new_empty(self.count)
        self.start_project(e, k, v, parts)
        self.sum_splits(parts, both)
        return both[: self.first_value].view(self.keys), both[self.first_value :].view(self.values)

    def d_projection(self, d_keys: Tensor, d_values: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """dE, from contiguous gradients of E k and E v."""
        de = k.new_empty(self.projection)
        self.start_d_projection(d_keys, d_values, k, v, de)
        return de
