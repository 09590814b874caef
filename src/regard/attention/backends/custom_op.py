"""One shape of operator for every backend that writes its own forward and backward.

A `Problem` is spread into the flat arguments that torch.library takes, so that compiled graphs, autocast and autograd
see an ordinary operator: `regard::NAME` and `regard::NAME_backward`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..call import LoweredCall
from ..parts.positions import DistanceBias, RelativeVectors
from . import mask_codec as mask_code

NOTHING = (None,) * 9
Forward = Callable[[LoweredCall], tuple[Tensor, Tensor]]
Backward = Callable[[LoweredCall, Tensor, Tensor, Tensor], list[Tensor | None]]


def operator(name: str, forward: Forward, backward: Backward, rounded: bool = False) -> Forward:
    """A function from a `Problem` to (output, log-sum-exp), differentiable in the problem's tensors.

    `forward(problem)` returns both; `backward(problem, d_output, output, lse)` returns the gradients of q, k, v,
    weight, numbers, asking and table, with anything for what is not there or not `problem.wanted`, and where the
    problem is `tied` perhaps k's and v's together as k's, and None as v's. The output is
    rounded to v's type only for the caller: backward gets what forward returned, float32 at least, because
    Σ output · d_output decides all gradients. A `rounded` operator returns v's type where the problem is not `summed`;
    the gradients of q, k and v forgive it, and memory is saved.
    """

    def output_type(v: Tensor, *parts: Tensor | None) -> torch.dtype:
        """The type of the output, by (weight, numbers, table, slopes)."""
        weight, numbers, table, slopes = parts
        summed = weight is not None or table is not None or (numbers is not None and slopes is None)
        return v.dtype if rounded and not summed else torch.promote_types(v.dtype, torch.float32)

    def room(q: Tensor, v: Tensor, dtype: torch.dtype) -> Tensor:
        """How the output lies in memory: token by token where v does, as graphs have it, else head by head."""
        batch, heads, queries, dim = *q.shape[:3], v.shape[3]
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
        whole: list[int],
    ) -> tuple[Tensor, Tensor]:
        tensors = (q, k, v, weight, numbers, asking, table, seed, slopes)
        output, lse = forward(gathered(tensors, mask_tensors, mask, activation, settings, whole))
        dtype = output_type(v, weight, numbers, table, slopes)
        return laid_out(output.to(dtype), room(q, v, dtype)), lse.contiguous()

    @run.register_fake
    def _(q, k, v, weight, numbers, asking, table, seed, slopes, mask_tensors, mask, activation, settings, whole):
        exact = torch.promote_types(v.dtype, torch.float32)
        dtype = output_type(v, weight, numbers, table, slopes)
        return torch.empty_like(room(q, v, dtype), device=v.device), v.new_empty(q.shape[:3], dtype=exact)

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
        whole: list[int],
        wanted: list[bool],
    ) -> list[Tensor]:
        tensors = (q, k, v, weight, numbers, asking, table, seed, slopes)
        problem = gathered(tensors, mask_tensors, mask, activation, settings, whole, wanted)
        found = backward(problem, grad, output, lse)
        like = [x if want else None for x, want in zip(tensors[:7], wanted, strict=True)]
        pairs = zip(like, found, strict=True)
        return [q.new_empty(0) if x is None or g is None else laid_out(g.to(x.dtype), x) for x, g in pairs]

    @run_backward.register_fake
    def _(grad, output, lse, *arguments):
        wanted = zip(arguments[:7], arguments[-1], strict=True)
        return [torch.empty_like(x) if x is not None and want else grad.new_empty(0) for x, want in wanted]

    def remember(ctx, inputs, output) -> None:
        *tensors, mask_tensors, ctx.mask, ctx.activation, ctx.settings, ctx.whole = inputs
        ctx.save_for_backward(*output, *tensors, *mask_tensors)
        ctx.mask_count = len(mask_tensors)
        ctx.kept_alive = mask_code.hold(ctx.mask)

    def pull(ctx, grad, _):
        output, lse, *rest = ctx.saved_tensors
        tensors, mask_tensors = rest[:9], rest[9:]
        wanted = [x is not None and need for x, need in zip(tensors[:7], ctx.needs_input_grad[:7], strict=True)]
        found = run_backward(
            written_out(grad),
            output,
            lse,
            *tensors,
            mask_tensors,
            ctx.mask,
            ctx.activation,
            ctx.settings,
            ctx.whole,
            wanted,
        )
        grads = [g if want else None for g, want in zip(found, wanted, strict=True)]
        return *grads, None, None, [None] * ctx.mask_count, None, None, None, None

    run.register_autograd(pull, setup_context=remember)

    class Eager(torch.autograd.Function):
        """The same outside compiled graphs, where torch.library's bookkeeping would cost more than small kernels."""

        @staticmethod
        def forward(ctx, problem: LoweredCall, *tensors: Tensor | None) -> tuple[Tensor, Tensor]:
            output, lse = forward(problem)
            ctx.problem = with_tensors(
                problem, NOTHING, problem.needs_grad
            )  # autograd keeps them, and drops them in time
            ctx.save_for_backward(output, lse, *tensors)
            ctx.mark_non_differentiable(lse)
            ctx.set_materialize_grads(False)  # no zeros for the lse
            return as_type(output, problem.v.dtype), lse

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, grad: Tensor, _: None) -> tuple[Tensor | None, ...]:
            output, lse, *tensors = ctx.saved_tensors
            wanted = ctx.needs_input_grad[1:8]
            found = backward(with_tensors(ctx.problem, tensors, wanted), written_out(grad), output, lse)
            like = zip(tensors[:7], found, wanted, strict=True)
            grads = [as_type(g, x.dtype) if want and g is not None else None for x, g, want in like]
            return None, *grads, None, None

    def solve(problem: LoweredCall) -> tuple[Tensor, Tensor]:
        if torch.compiler.is_compiling():
            output, lse = run(*spread(problem))
        elif any(problem.needs_grad):
            return Eager.apply(problem, *tensors_of(problem))
        else:
            output, lse = forward(problem)
        return as_type(output, problem.v.dtype), lse

    return solve


def as_type(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in the type; where it is, without the time that asking torch takes."""
    return x if x.dtype == dtype else x.to(dtype)


def by_token(x: Tensor) -> bool:
    """Whether x `[batch, heads, tokens, dim]` holds the heads of a token together."""
    return x.shape[1] > 1 and x.shape[2] > 1 and x.stride(1) < x.stride(2)


def laid_out(x: Tensor, like: Tensor) -> Tensor:
    """x in memory as torch would lay out something like `like`, which is what a compiled graph was promised."""
    wanted = torch.empty_like(like, device="meta").stride()
    return x if x.stride() == wanted else torch.empty_strided(x.shape, wanted, dtype=x.dtype, device=x.device).copy_(x)


def written_out(grad: Tensor) -> Tensor:
    """A gradient that came from a sum or a slice, in memory of its own; one whose tokens lie together is left so."""
    return grad if grad.stride(-1) == 1 and 0 not in grad.stride() else grad.contiguous()


def tensors_of(p: LoweredCall) -> tuple[Tensor | None, ...]:
    """Everything in a problem that is a tensor, its mask's aside."""
    asking, table, _ = p.rel_vectors or (None, None, 0)
    numbers, _, slopes = p.rel_bias or (None, 0, None)
    slopes = None if slopes is None else slopes.detach()
    return p.q, p.k, p.v, p.weight, numbers, asking, table, p.seed, slopes


def with_tensors(p: LoweredCall, tensors: Sequence[Tensor | None], wanted: tuple[bool, ...]) -> LoweredCall:
    """The problem with other tensors in the places of its own, and other gradients wanted."""
    q, k, v, weight, numbers, asking, table, seed, slopes = tensors
    by_number = None if p.rel_bias is None else DistanceBias(numbers, p.rel_bias.zero, slopes)  # type: ignore[arg-type]
    by_vector = None if p.rel_vectors is None else RelativeVectors(asking, table, p.rel_vectors.zero)  # type: ignore[arg-type]
    parts = (weight, p.activation, p.slope, by_number, by_vector)
    return LoweredCall(q, k, v, p.mask, p.scale, *parts, p.dropout, seed, wanted, p.memo, p.tied)  # type: ignore[arg-type]


def spread(p: LoweredCall) -> tuple:
    """The problem as an operator's arguments."""
    mask, mask_tensors, whole = mask_code.encode(p.mask)
    zeros = [x.zero if x is not None else 0 for x in (p.rel_bias, p.rel_vectors)]
    return *tensors_of(p), mask_tensors, mask, p.activation, [p.scale, p.slope, p.dropout], [*zeros, *whole]


def gathered(
    tensors: tuple,
    mask_tensors: list[Tensor],
    mask: str,
    activation: str,
    settings: list[float],
    whole: list[int],
    wanted: Sequence[bool] = (True,) * 7,
) -> LoweredCall:
    """The problem that an operator's arguments stand for."""
    scale, slope, dropout = settings
    numbers_zero, zero, *whole = whole
    q, k, v, _, numbers, asking, table, *_ = tensors
    bare = LoweredCall(
        q,
        k,
        v,
        mask_code.decode(mask, mask_tensors, whole),
        scale=scale,
        activation=activation,
        slope=slope,
        dropout=dropout,
        rel_bias=None if numbers is None else DistanceBias(numbers, numbers_zero),
        rel_vectors=None if table is None else RelativeVectors(asking, table, zero),
    )
    return with_tensors(bare, tensors, tuple(wanted))
