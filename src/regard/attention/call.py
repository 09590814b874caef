"""A checked call, and the form that every combination of parts lowers to.

A `Call` holds what the user passed, once it is known to fit together. A `LoweredCall` is what kernels see: a dot
product with a scale or a weighted sum of activations, at most one bias and one set of relative vectors by distance, a
mask and dropout.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..errors import BadInput, Unsupported
from .dropout import draw_seed
from .execution import ExecutionPlan, new_plan
from .parts.mask import ALL, Mask, PairGrid, Tiling
from .parts.masks import Everything
from .parts.parts import Parts
from .parts.positions import DistanceBias, Position, RelativeVectors
from .parts.scores import Additive, Dot, Score


@dataclass(frozen=True)
class Call:
    """One attention: tensors and parts that fit together.

    `plan` caches what was worked out for calls of the same kind and mask.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    score: Score
    position: Position | None
    mask: Mask
    dropout: float = 0.0
    seed: Tensor | None = None
    plan: ExecutionPlan = field(default_factory=new_plan, repr=False, compare=False)

    @property
    def grid(self) -> PairGrid:
        batch, heads, queries, _ = self.q.shape
        return PairGrid(queries, self.k.shape[2], batch, heads, self.q.device)

    @property
    def exact(self) -> torch.dtype:
        """The type that sums and softmax are computed in."""
        return torch.promote_types(self.q.dtype, torch.float32)

    @property
    def empty(self) -> bool:
        """Whether there are no pairs of queries and keys, or the values have no elements."""
        return not self.q.shape[0] * self.q.shape[1] * self.q.shape[2] * self.v.shape[2] * self.v.shape[3]


@dataclass(frozen=True)
class LoweredCall:
    """What kernels see. `weight` is None for dot products; `rel_bias` and `rel_vectors` are added by distance.

    `needs_grad` says which gradients are needed: of q, k, v, weight, the bias table, the relative queries and the
    relative vectors.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Mask
    scale: float = 1.0
    weight: Tensor | None = None
    activation: str = "tanh"
    slope: float = 0.0
    rel_bias: DistanceBias | None = None
    rel_vectors: RelativeVectors | None = None
    dropout: float = 0.0
    seed: Tensor | None = None
    needs_grad: tuple[bool, ...] = (True,) * 7
    tied: bool = False  # k and v are one tensor: its gradient may be given as k's, and none as v's
    plan: ExecutionPlan = field(default_factory=new_plan, repr=False, compare=False)

    @property
    def grid(self) -> PairGrid:
        batch, heads, queries, _ = self.q.shape
        return PairGrid(queries, self.k.shape[2], batch, heads, self.q.device)

    @property
    def has_part_tensors(self) -> bool:
        """Whether a part's own tensor is in the scores: its gradient sums over all rows, whose errors must be small."""
        learned = self.rel_bias is not None and self.rel_bias.slopes is None
        return learned or self.weight is not None or self.rel_vectors is not None


def make_call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    score: Score | None = None,
    position: Position | None = None,
    mask: Mask | None = None,
    dropout: float = 0.0,
    generator: torch.Generator | None = None,
) -> Call:
    """The checked call with its dropout seed; raises `BadInput` or `Unsupported` when it does not fit together."""
    parts = Parts(score, position, mask, dropout=dropout)
    call = check_call(*cast_for_autocast(q, k, v), parts)
    return replace(call, seed=draw_seed(generator, call.q.device)) if dropout else call


def check_call(q: Tensor, k: Tensor, v: Tensor, parts: Parts) -> Call:
    """The call without a seed, once its tensors and parts are known to fit together."""
    check_shapes(q, k, v)
    score, position = parts.score, parts.position
    mask = Everything() if parts.mask is None else parts.mask
    score.check(q, k)
    if position is not None:
        position.check(q, k)
        if position.dot_only and not isinstance(score, Dot):
            raise Unsupported(
                f"{type(position).__name__} is part of a dot product and needs the score Dot; the score is "
                f"{type(score).__name__}. A bias by distance (Alibi, Bias, T5Bias) goes with every score."
            )
    call = Call(q, k, v, score, position, mask, float(parts.dropout))
    if not torch.compiler.is_compiling():  # torch itself raises there
        check_devices(call)
    mask.check(call.grid)
    return replace(call, mask=simplify_mask(mask, call.grid))


def lower(call: Call) -> LoweredCall:
    """The call in the form of kernels; differentiable in all of its tensors."""
    q, k, position = call.q, call.k, call.position
    rel_bias, rel_vectors = None, None
    if not isinstance(call.score, Dot | Additive) or (position is not None and position.transforms):
        q, k = q.to(call.exact), k.to(call.exact)  # what is computed from q and k is not rounded before it is used
    if position is not None:
        rel_bias, rel_vectors = position.rel_bias(q, k), position.rel_vectors(q, k)
        q, k = position.transform(q, k)
        if position.keeps_dtype:
            q, k = q.to(call.q.dtype), k.to(call.k.dtype)
    scale, weight, activation, slope = 1.0, None, "", 0.0
    if isinstance(call.score, Additive):
        weight, activation, slope = call.score.weight, call.score.activation, float(call.score.slope)
    else:
        q, k, scale = call.score.lower(q, k)
    rel_q, rel_table, _ = rel_vectors or (None, None, 0)
    tensors = (q, k, call.v, weight, None if rel_bias is None else rel_bias.table, rel_q, rel_table)
    grad_enabled = torch.is_grad_enabled()
    return LoweredCall(
        q,
        k,
        call.v,
        call.mask,
        scale=scale,
        weight=weight,
        activation=activation,
        slope=slope,
        rel_bias=rel_bias,
        rel_vectors=rel_vectors,
        dropout=call.dropout,
        seed=call.seed,
        needs_grad=tuple([grad_enabled and x is not None and x.requires_grad for x in tensors]),
        tied=k is call.v,
        plan=call.plan,
    )


def without_autocast(device: torch.device) -> AbstractContextManager:
    """A context without autocast, which `cast_for_autocast` has already applied."""
    return torch.autocast(device.type, enabled=False) if torch.is_autocast_enabled(device.type) else nullcontext()


def simplify_mask(mask: Mask, grid: PairGrid) -> Mask:
    """`Everything()` when the mask allows all pairs of a call of these sizes (one query under `Causal`, say)."""
    if isinstance(mask, Everything) or torch.compiler.is_compiling() or mask.tensors() or not grid.queries * grid.keys:
        return mask
    whole = Tiling(PairGrid(grid.queries, grid.keys), grid.queries, grid.keys)
    return Everything() if int(mask.tiles(whole).min()) == ALL else mask


def cast_for_autocast(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v in autocast's type where it is on, as torch does for its own attention."""
    tensors = isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor)
    if not tensors or q.device.type == "meta" or q.dtype == torch.float64:
        return q, k, v
    if not torch.is_autocast_enabled(q.device.type):
        return q, k, v
    dtype = torch.get_autocast_dtype(q.device.type)
    q, k, v = (x.to(dtype) if x.dtype.is_floating_point else x for x in (q, k, v))
    return q, k, v


def check_shapes(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raise unless q, k, v are floating, of one type and device, and their sizes fit."""
    for name, value in (("q", q), ("k", k), ("v", v)):
        if not isinstance(value, Tensor):
            raise BadInput(f"{name} is a {type(value).__name__}; it must be a tensor [batch, heads, tokens, head_dim].")
        if value.dim() != 4:
            raise BadInput(
                f"{name} has shape {list(value.shape)}; it must be [batch, heads, tokens, head_dim]. "
                "Add missing sizes with unsqueeze; split dim into heads by unflatten(-1, (heads, -1)).transpose(1, 2)."
            )
        if value.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            raise BadInput(
                f"{name} is {value.dtype}; it must be float16, bfloat16, float32 or float64. Call .float() on it."
            )
        if value.shape[-1] == 0 and name != "v":
            raise BadInput(f"{name} has shape {list(value.shape)}; its head_dim must be at least 1.")
    shapes = f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}"
    if q.shape[0] != k.shape[0] or k.shape[0] != v.shape[0]:
        raise BadInput(f"The batch sizes differ: {shapes}. Give all three the same; expand what is shared.")
    if k.shape[1] != v.shape[1]:
        raise BadInput(f"k and v must have the same heads: {shapes}.")
    if k.shape[2] != v.shape[2]:
        raise BadInput(f"k and v must have the same number of keys: {shapes}.")
    if (k.shape[1] == 0) != (q.shape[1] == 0) or (k.shape[1] and q.shape[1] % k.shape[1]):
        raise BadInput(
            f"q's heads must be a multiple of k's (query head h reads key head h // (heads // kv_heads)): {shapes}."
        )
    if not q.dtype == k.dtype == v.dtype:
        raise BadInput(f"The types differ: q {q.dtype}, k {k.dtype}, v {v.dtype}. Cast them to one, or use autocast.")


def check_devices(call: Call) -> None:
    """Raise unless every tensor, the parts' own included, is on q's device."""
    tensors = {
        "k": call.k,
        "v": call.v,
        **{f"{type(call.score).__name__}'s {n}": t for n, t in call.score.tensors().items()},
    }
    if call.position is not None:
        tensors |= {f"{type(call.position).__name__}'s {n}": t for n, t in call.position.tensors().items()}
    tensors |= {f"the mask's tensor {n}": t for n, t in enumerate(call.mask.tensors())}
    for name, tensor in tensors.items():
        if tensor.device != call.q.device:
            raise BadInput(
                f"q is on {call.q.device} and {name} on {tensor.device}. Move them to one device with .to(...)."
            )
