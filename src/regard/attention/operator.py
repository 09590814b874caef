"""One shape of operator for every backend that writes its own forward and backward.

A `Problem` is spread into the flat arguments that torch.library takes, so that compiled graphs, autocast and autograd
see an ordinary operator: `regard::NAME` and `regard::NAME_backward`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from . import mask_code
from .call import Problem
from .positions import Numbers, Vectors

Forward = Callable[[Problem], tuple[Tensor, Tensor]]
Backward = Callable[[Problem, Tensor, Tensor, Tensor], list[Tensor | None]]


def operator(name: str, forward: Forward, backward: Backward, rounded: bool = False) -> Forward:
    """A function from a `Problem` to (output, log-sum-exp), differentiable in the problem's tensors.

    `forward(problem)` returns both; `backward(problem, d_output, output, lse)` returns the gradients of q, k, v,
    weight, numbers, asking and table, with anything for what is not there or not `problem.wanted`. The output that backward gets is exact
    (float32 at least), because Σ output · d_output decides all gradients; a `rounded` operator returns it in v's type
    where the score is a dot product, whose gradients forgive it, and saves the memory.
    """

    def output_type(v: Tensor, weight: Tensor | None) -> torch.dtype:
        exact = torch.promote_types(v.dtype, torch.float32)
        return v.dtype if rounded and weight is None else exact

    def room(q: Tensor, v: Tensor, weight: Tensor | None) -> Tensor:
        """How the output lies in memory: token by token where v does, as graphs have it, else head by head."""
        batch, heads, queries, dim = *q.shape[:3], v.shape[3]
        dtype = output_type(v, weight)
        if by_token(v):
            return torch.empty(batch, queries, heads, dim, dtype=dtype, device="meta").transpose(1, 2)
        return torch.empty(batch, heads, queries, dim, dtype=dtype, device="meta")

    @torch.library.custom_op(f"regard::{name}", mutates_args=())
    def run(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        weight: Tensor | None,
        numbers: Tensor | None,
        asking: Tensor | None,
        table: Tensor | None,
        seed: Tensor | None,
        slopes: Tensor | None,
        mask_tensors: list[Tensor],
        mask: str,
        activation: str,
        settings: list[float],
    ) -> tuple[Tensor, Tensor]:
        tensors = (q, k, v, weight, numbers, asking, table, seed, slopes)
        output, lse = forward(gathered(tensors, mask_tensors, mask, activation, settings))
        return laid_out(output.to(output_type(v, weight)), room(q, v, weight)), lse.contiguous()

    @run.register_fake
    def _(q, k, v, weight, numbers, asking, table, seed, slopes, mask_tensors, mask, activation, settings):
        exact = torch.promote_types(v.dtype, torch.float32)
        return torch.empty_like(room(q, v, weight), device=v.device), v.new_empty(q.shape[:3], dtype=exact)

    @torch.library.custom_op(f"regard::{name}_backward", mutates_args=())
    def run_backward(
        grad: Tensor,
        output: Tensor,
        lse: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        weight: Tensor | None,
        numbers: Tensor | None,
        asking: Tensor | None,
        table: Tensor | None,
        seed: Tensor | None,
        slopes: Tensor | None,
        mask_tensors: list[Tensor],
        mask: str,
        activation: str,
        settings: list[float],
        wanted: list[bool],
    ) -> list[Tensor]:
        tensors = (q, k, v, weight, numbers, asking, table, seed, slopes)
        problem = replace(gathered(tensors, mask_tensors, mask, activation, settings), wanted=tuple(wanted))
        found = backward(problem, grad, output, lse)
        like = [x if want else None for x, want in zip(tensors[:7], wanted, strict=True)]
        pairs = zip(like, found, strict=True)
        return [q.new_empty(0) if x is None or g is None else laid_out(g.to(x.dtype), x) for x, g in pairs]

    @run_backward.register_fake
    def _(grad, output, lse, *arguments):
        wanted = zip(arguments[:7], arguments[-1], strict=True)
        return [torch.empty_like(x) if x is not None and want else grad.new_empty(0) for x, want in wanted]

    def remember(ctx, inputs, output) -> None:
        *tensors, mask_tensors, ctx.mask, ctx.activation, ctx.settings = inputs
        ctx.save_for_backward(*output, *tensors, *mask_tensors)
        ctx.mask_count = len(mask_tensors)
        ctx.kept_alive = mask_code.hold(ctx.mask)

    def pull(ctx, grad, _):
        output, lse, *rest = ctx.saved_tensors
        tensors, mask_tensors = rest[:9], rest[9:]
        wanted = [x is not None and need for x, need in zip(tensors[:7], ctx.needs_input_grad[:7], strict=True)]
        # A gradient that came from a sum or a slice is written out; one whose tokens lie together is left so.
        whole = grad if grad.stride(-1) == 1 and 0 not in grad.stride() else grad.contiguous()
        found = run_backward(
            whole, output, lse, *tensors, mask_tensors, ctx.mask, ctx.activation, ctx.settings, wanted
        )
        grads = [g if want else None for g, want in zip(found, wanted, strict=True)]
        return *grads, None, None, [None] * ctx.mask_count, None, None, None

    run.register_autograd(pull, setup_context=remember)

    def solve(problem: Problem) -> tuple[Tensor, Tensor]:
        output, lse = run(*spread(problem))
        return output.to(problem.v.dtype), lse

    return solve


def by_token(x: Tensor) -> bool:
    """Whether x `[batch, heads, tokens, dim]` holds the heads of a token together."""
    return x.shape[1] > 1 and x.shape[2] > 1 and x.stride(1) < x.stride(2)


def laid_out(x: Tensor, like: Tensor) -> Tensor:
    """x in memory as torch would lay out something like `like`, which is what a compiled graph was promised."""
    wanted = torch.empty_like(like, device="meta").stride()
    return x if x.stride() == wanted else torch.empty_strided(x.shape, wanted, dtype=x.dtype, device=x.device).copy_(x)


def spread(p: Problem) -> tuple:
    """The problem as an operator's arguments."""
    mask, mask_tensors = mask_code.encode(p.mask)
    asking, table, zero = p.vectors or (None, None, 0)
    numbers, numbers_zero, slopes = p.numbers or (None, 0, None)
    settings = [p.scale, p.slope, p.dropout, float(numbers_zero), float(zero)]
    slopes = None if slopes is None else slopes.detach()
    tensors = (p.q, p.k, p.v, p.weight, numbers, asking, table, p.seed, slopes)
    return *tensors, mask_tensors, mask, p.activation, settings


def gathered(tensors: tuple, mask_tensors: list[Tensor], mask: str, activation: str, settings: list[float]) -> Problem:
    """The problem that an operator's arguments stand for."""
    q, k, v, weight, numbers, asking, table, seed, slopes = tensors
    scale, slope, dropout, numbers_zero, zero = settings
    return Problem(
        q,
        k,
        v,
        mask_code.decode(mask, mask_tensors),
        scale=scale,
        weight=weight,
        activation=activation,
        slope=slope,
        numbers=None if numbers is None else Numbers(numbers, int(numbers_zero), slopes),
        vectors=None if table is None else Vectors(asking, table, int(zero)),
        dropout=dropout,
        seed=seed,
    )
