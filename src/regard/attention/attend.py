"""`attend`: every attention through one function."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

from ..errors import Unsupported
from .backends import choose_backend
from .call import Call, cast_for_autocast, check_call
from .dropout import draw_seed
from .execution import ExecutionPlan, mask_cache
from .parts.mask import Mask
from .parts.masks import Everything
from .parts.methods import Exact, Method
from .parts.part import Part
from .parts.parts import Parts
from .parts.positions import Position
from .parts.scores import Score
from .tracing import in_cuda_graph

EVERYTHING = Everything()


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    score: Score | None = None,
    position: Position | None = None,
    mask: Mask | None = None,
    method: Method | None = None,
    dropout: float = 0.0,
    generator: torch.Generator | None = None,
    backend: str = "auto",
) -> Tensor:
    """The values weighted by attention, `[batch, heads, queries, value dim]`.

        score(i, j)  = similarity(q_i, k_j) + position(i, j, q_i)   if mask allows (i, j), else −∞
        weight(i, ·) = softmax over j
        output(i)    = Σ_j weight(i, j) · v_j

    q is `[batch, heads, queries, head_dim]`; k and v `[batch, kv_heads, keys, …]`, heads a multiple of kv_heads.
    Differentiable in q, k, v and in every tensor of a part. A row with no allowed key gives zeros. Raises
    `BadInput` for arguments that do not fit, `Unsupported` for parts that do not go together or a named backend that
    cannot run them.

    A soft dictionary: the query "fruit" is similar to apple and banana, not to chair.

    >>> import torch, regard as rg
    >>> similarity = torch.tensor([0.6, 0.4, 0.0]).log().clamp(min=-1e4)   # of "fruit" with apple, banana, chair
    >>> q, k = torch.ones(1, 1, 1, 1), similarity.view(1, 1, 3, 1)
    >>> v = torch.tensor([10.0, 5.0, 2.0]).view(1, 1, 3, 1)
    >>> round(rg.attend(q, k, v, score=rg.Dot(scale=1.0)).item(), 4)     # 0.6·10 + 0.4·5 + 0·2
    8.0
    """
    parts = Parts(score, position, mask, method, dropout)
    call = resolve(q, k, v, parts, generator, backend)
    if call.plan.empty:
        return empty_output(call)
    if isinstance(parts.method, Exact) and call.plan.backend is not None:
        return call.plan.backend.run(call)
    return parts.method.attend(call)


def resolve(
    q: Tensor, k: Tensor, v: Tensor, parts: Parts, generator: torch.Generator | None = None, backend: str = "auto"
) -> Call:
    """The call, checked, with its execution plan; both hold for every call of its kind and are cached.

    Raises `BadInput` or `Unsupported` when tensors, parts and backend do not go together.
    """
    if backend != "auto" and not isinstance(parts.method, Exact):
        raise Unsupported(
            f"{type(parts.method).__name__} is not exact, and backend {backend!r} runs Exact() only. Leave it out."
        )
    q, k, v = cast_for_autocast(q, k, v)
    mask = EVERYTHING if parts.mask is None else parts.mask
    key, make = call_key(q, k, v, parts, backend), lambda: make_plan(q, k, v, parts, backend)
    plan = make() if key is None else mask_cache(mask).plans.get(key, make)
    seed = draw_seed(generator, q.device) if parts.dropout else None
    mask = EVERYTHING if plan.unmasked else mask
    return Call(q, k, v, parts.score, parts.position, mask, float(parts.dropout), seed, plan)


def make_plan(q: Tensor, k: Tensor, v: Tensor, parts: Parts, backend: str) -> ExecutionPlan:
    """Check a call and choose its backend."""
    call = check_call(q, k, v, parts)
    return ExecutionPlan(choose_backend(call, backend), isinstance(call.mask, Everything), call.empty)


def call_key(q: Tensor, k: Tensor, v: Tensor, parts: Parts, backend: str) -> Hashable:
    """What decides, beside the mask, whether a call fits and which backend runs it; None where it cannot be a key."""
    if torch.compiler.is_compiling():
        return None
    score, position = parts.score, parts.position
    try:
        key = (
            *(q.shape, q.dtype, q.device),
            *(k.shape, k.dtype, k.device),
            *(v.shape, v.dtype, v.device),
            part_key(score),
            None if position is None else part_key(position),
            *(parts.dropout, backend, in_cuda_graph()),
        )
        hash(key)
    except (AttributeError, TypeError):  # not tensors, symbolic sizes, or fields that cannot be hashed
        return None
    return key


def part_key(part: Part) -> Hashable:
    """A part's class and fields, its tensors without their contents."""
    fields = vars(part).values()
    return type(part), *[(x.shape, x.dtype, x.device, x.requires_grad) if isinstance(x, Tensor) else x for x in fields]


def empty_output(call: Call) -> Tensor:
    """The output of a call without pairs: zeros, with gradients that are zero instead of absent."""
    parts = [call.score, *([] if call.position is None else [call.position])]
    tensors = [call.q, call.k, call.v, *(x for part in parts for x in part.tensors().values())]
    zeros = call.v.new_zeros(*call.q.shape[:3], call.v.shape[3])
    return zeros + sum(x.flatten()[:0].sum().to(zeros.dtype) for x in tensors)
