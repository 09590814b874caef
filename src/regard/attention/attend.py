"""The call: every attention through one function, and the plan that says how it will be run."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ..errors import BadInput, Unsupported
from .backends import edges, reference, sdpa, triton
from .backends.blockwise import blockwise
from .cache import Memory
from .call import Call, checked, under_autocast
from .dropout import draw_seed
from .parts.mask import Mask
from .parts.masks import Everything
from .parts.methods import Exact, Method
from .parts.positions import Position
from .parts.scores import Dot, Score
from .tracing import capturing

SETTLED = Memory(512)
BACKENDS: dict[str, ModuleType] = {
    "edges": edges,
    "sdpa": sdpa,
    "triton": triton,
    "blockwise": blockwise,
    "reference": reference,
}
"""The backends, in the order in which `auto` asks them."""


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
    """The values mixed by attention's weights, `[batch, heads, queries, value dim]`.

        score(i, j)  = similarity(q_i, k_j) + position(i, j, q_i)   if mask allows (i, j), else −∞
        weight(i, ·) = softmax over j
        output(i)    = Σ_j weight(i, j) · v_j

    q is `[batch, heads, queries, head_dim]`; k and v `[batch, kv_heads, keys, …]`, heads a multiple of kv_heads.
    Differentiable in q, k, v and in every tensor that a part carries. A row with no allowed key gives zeros. Raises
    `BadInput` for arguments that do not fit, `Unsupported` for parts that do not go together or a named backend that
    cannot run them.

    The soft dictionary of the textbooks: the query "fruit" is like apple and banana, not like chair.

    >>> import torch, regard as rg
    >>> likeness = torch.tensor([0.6, 0.4, 0.0]).log().clamp(min=-1e4)   # of "fruit" with apple, banana, chair
    >>> q, k = torch.ones(1, 1, 1, 1), likeness.view(1, 1, 3, 1)
    >>> v = torch.tensor([10.0, 5.0, 2.0]).view(1, 1, 3, 1)
    >>> round(rg.attend(q, k, v, score=rg.Dot(scale=1.0)).item(), 4)     # 0.6·10 + 0.4·5 + 0·2
    8.0
    """
    parts: dict[str, Any] = {"score": score, "position": position, "mask": mask, "dropout": dropout}
    if method is None or isinstance(method, Exact):
        call, name = settled(q, k, v, parts, generator, backend)
        return nothing(call) if empty(call) else BACKENDS[name].run(call)
    if not isinstance(method, Method):
        raise BadInput(f"method is {method!r:.80}; it must be a Method, such as Exact() or Nystrom(landmarks=64).")
    need_auto(method, backend)
    call, _ = settled(q, k, v, parts, generator, backend)
    return nothing(call) if empty(call) else method.attend(call)


def settled(
    q: Tensor, k: Tensor, v: Tensor, parts: dict[str, Any], generator: torch.Generator | None, backend: str
) -> tuple[Call, str]:
    """The call, known to fit together, and the backend that runs it; both are remembered for calls of its kind."""
    q, k, v = under_autocast(q, k, v)
    mask = Everything() if parts["mask"] is None else parts["mask"]
    kind = kind_of(q, k, v, parts, backend)
    find = functools.partial(settle, q, k, v, parts, backend)
    allows_all, name, memo = find() if kind is None else SETTLED.find(mask, kind, find)
    dropout = parts["dropout"]
    return Call(
        q,
        k,
        v,
        Dot() if parts["score"] is None else parts["score"],
        parts["position"],
        Everything() if allows_all else mask,
        float(dropout),
        draw_seed(generator, q.device) if dropout else None,
        None if kind is None else memo,
    ), name


def settle(q: Tensor, k: Tensor, v: Tensor, parts: dict[str, Any], backend: str) -> tuple[bool, str, dict[Any, Any]]:
    """Whether the mask allows all pairs, the name of the backend, and room for what that will work out.

    Raises when the call does not fit together.
    """
    call = checked(q, k, v, **parts)
    return isinstance(call.mask, Everything), choose(call, backend), {}


def kind_of(q: Any, k: Any, v: Any, parts: dict[str, Any], backend: str) -> Any:
    """What decides whether a call fits and who runs it, the mask aside; None where that cannot be remembered."""
    if torch.compiler.is_compiling() or not isinstance(parts["mask"], Mask | None):
        return None
    try:
        tensors = [(x.shape, x.dtype, x.device) for x in (q, k, v)]
        kind = (*tensors, look_of(parts["score"]), look_of(parts["position"]), parts["dropout"], backend, capturing())
        hash(kind)
    except (AttributeError, TypeError):  # no tensors, symbolic sizes, or fields that cannot be compared
        return None
    return kind


def look_of(part: Any) -> Any:
    """A part without the contents of its tensors."""
    if part is None:
        return None
    parts = vars(part).values()
    return type(part), *[(x.shape, x.dtype, x.device, x.requires_grad) if isinstance(x, Tensor) else x for x in parts]


def choose(call: Call, backend: str) -> str:
    """The name of the backend that will run: the one asked for, or the first that has no reason against."""
    if backend == "auto":
        return next(name for name in BACKENDS if against(name, call) is None)
    if backend not in BACKENDS:
        raise BadInput(f"backend is {backend!r}; it must be 'auto' or one of {', '.join(BACKENDS)}.")
    why = BACKENDS[backend].reason(call)
    if why is not None:
        raise Unsupported(f"backend {backend!r} cannot run this: {why}. Use backend='auto', or see regard.plan(...).")
    return backend


def need_auto(method: Method, backend: str) -> str:
    """The method's own name; raise when a backend was named for a method that computes its own way."""
    if backend != "auto":
        raise Unsupported(
            f"{type(method).__name__} computes its own way; backend {backend!r} runs Exact() only. Leave it out."
        )
    return type(method).__name__.lower()


def against(name: str, call: Call) -> str | None:
    """What `auto` has against a backend: that it cannot run the call, or that another is faster."""
    module = BACKENDS[name]
    slower = getattr(module, "slower", None)
    return module.reason(call) or (slower(call) if slower else None)


def empty(call: Call) -> bool:
    """Whether there is nothing to attend to, or nobody to attend."""
    return not call.q.shape[0] * call.q.shape[1] * call.q.shape[2] * call.v.shape[2] * call.v.shape[3]


def nothing(call: Call) -> Tensor:
    """Empty in, empty out; no key to look at gives zeros. Gradients are zero, not absent."""
    parts = [call.score, *([] if call.position is None else [call.position])]
    every = [call.q, call.k, call.v, *(x for part in parts for x in part.tensors().values())]
    zeros = call.v.new_zeros(*call.q.shape[:3], call.v.shape[3])
    return zeros + sum(x.flatten()[:0].sum().to(zeros.dtype) for x in every)
