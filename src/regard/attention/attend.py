"""The call: every attention through one function, and the plan that says how it will be run."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from . import blockwise, edges, reference, sdpa, triton
from .call import Call, make_call
from .errors import BadInput, Unsupported
from .mask import Mask
from .methods import Exact, Method
from .positions import Position
from .scores import Score

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
    method = Exact() if method is None else method
    if not isinstance(method, Method):
        raise BadInput(f"method is {method!r:.80}; it must be a Method, such as Exact() or Nystrom(landmarks=64).")
    call = make_call(q, k, v, score=score, position=position, mask=mask, dropout=dropout, generator=generator)
    exact = isinstance(method, Exact)
    name = choose(call, backend) if exact else need_auto(method, backend)
    if empty(call):
        return nothing(call)
    return BACKENDS[name].run(call) if exact else method.attend(call)


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
