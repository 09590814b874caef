"""A checked call, and the form that every combination of parts lowers to.

A `Call` holds what the user passed, once it is known to fit together. A `LoweredCall` is what kernels see: a dot
product with a scale or a weighted sum of activations, perhaps capped; at most one bias and one set of vectors for
queries and for keys by distance, and one bias by pair; a mask, a sink and dropout.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Unpack

import torch
from torch import Tensor

from ..errors import BadInput, Unsupported
from .dropout import draw_seed
from .execution import ExecutionPlan, new_plan
from .parts.edges import EdgeFeatures, edges_of
from .parts.mask import ALL, Mask, PairGrid, PlacePair, Tiling
from .parts.masks import Everything
from .parts.methods import Exact
from .parts.pair_bias import PairBias
from .parts.parts import PartOptions, Parts
from .parts.places import Places
from .parts.positions import DistanceBias, KeyVectors, Position, RelativeVectors
from .parts.scores import Additive, Cosine, Dot, Score
from .parts.sink import Sink

FEW_ENTRIES, FEW_ROWS = 8, 16
"""Entries of a table by distance, or rows of queries, at most, where most of a gradient's sum cancels."""


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
    sink: Sink | None = None
    bias: PairBias | None = None
    places: Places | None = None  # of positions; the mask has been placed
    edges: EdgeFeatures | None = None

    @property
    def grid(self) -> PairGrid:
        batch, heads, queries, _ = self.q.shape
        return PairGrid(queries, self.k.shape[2], batch, heads, self.q.device)

    def distances(self) -> Tensor:
        """i − j of every pair, `[queries, keys]`, or `[batch, 1, queries, keys]` at places that differ by batch."""
        grid = self.grid
        places = None if self.places is None else self.places.pair(grid.queries)
        i, j = replace(grid, places=places).at_places(*grid.indices())
        return i - j

    @property
    def exact(self) -> torch.dtype:
        """The type that sums and softmax are computed in."""
        return torch.promote_types(self.q.dtype, torch.float32)

    @property
    def adds_bias(self) -> bool:
        """Whether the position adds numbers to the scores, instead of rotating queries and keys."""
        return self.position is not None and not self.position.rotates

    @property
    def learns_position(self) -> bool:
        """Whether a gradient of the position's own tensors is needed."""
        tensors = () if self.position is None else self.position.tensors().values()
        return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)

    @property
    def empty(self) -> bool:
        """Whether there are no pairs of queries and keys, or the values have no elements."""
        return not self.q.shape[0] * self.q.shape[1] * self.q.shape[2] * self.v.shape[2] * self.v.shape[3]


@dataclass(frozen=True)
class LoweredCall:
    """What kernels see. `weight` is None for dot products; `rel_bias`, `rel_vectors` and `key_vectors` are added by
    distance.

    The `cap` bounds the product and what vectors by distance add to it; `rel_bias` and `pair_bias` are added after it.
    `sink` has a logit for each head. Distances are between `places`, where they are given. `needs_grad` says which
    gradients are needed: of q, k, v, weight, the bias table, the relative queries, the relative vectors, the bias by
    pair, the sink, the vectors for keys, and the features of edges (bias, keys, values), which are sorted as the edges.
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
    needs_grad: tuple[bool, ...] = (True,) * 13
    tied: bool = False  # k and v are one tensor: its gradient may be given as k's, and none as v's
    numbers: PlacePair | None = None  # i and j of rows and keys, `[tokens]` each, in an attention this is a part of
    cap: float | None = None
    pair_bias: Tensor | None = None  # [batch or 1, heads or 1, queries or 1, keys or 1]
    sink: Tensor | None = None  # [heads]
    places: PlacePair | None = None
    plan: ExecutionPlan = field(default_factory=new_plan, repr=False, compare=False)
    key_vectors: KeyVectors | None = None
    edge_bias: Tensor | None = None  # [batch or 1, heads or 1, edges, 1]
    edge_keys: Tensor | None = None  # [batch or 1, heads or 1, edges, head_dim]
    edge_values: Tensor | None = None  # [batch or 1, heads or 1, edges, value dim]
    merged: bool = False  # whether it is a part of a call: its output is not rounded, and backward gets the merged one
    adds_sink: bool = False  # whether a sink is added to the merged output, and gradients are needed
    exact_table: bool = False  # whether gradients of the position's own tensors would show rounded weights

    @property
    def exact_output(self) -> bool:
        """Whether the output is needed in float32 at least."""
        return self.merged or (self.has_part_tensors and any(self.needs_grad))

    @property
    def exact_weights(self) -> bool:
        """Whether an exact output must be that of weights that are not rounded.

        The gradient of a sink sums δ alone; that of a table by distance sums p · (d_p − δ) over all rows, in which most
        cancels, so that an error of δ is all that is left. Like the one that a number by pair has, it shows where the
        numbers are more exact than the weights or few, and where the parts of a call are rounded one by one.
        """
        table, pairs = self.rel_bias is not None and self.needs_grad[4] and self.exact_table, self.pair_bias
        exact_pairs = pairs is not None and self.needs_grad[7] and pairs.dtype.itemsize > self.v.dtype.itemsize
        part = self.merged and self.has_part_tensors and any(self.needs_grad)
        return table or exact_pairs or part or self.exact_ds or self.sink is not None or self.adds_sink

    @property
    def exact_ds(self) -> bool:
        """Whether gradients of vectors by distance must be sums of ds that is not rounded, for the same reasons."""
        return (self.exact_table or self.merged) and (self.needs_grad[6] or self.needs_grad[9])

    @property
    def grid(self) -> PairGrid:
        batch, heads, queries, _ = self.q.shape
        return PairGrid(queries, self.k.shape[2], batch, heads, self.q.device)

    @property
    def has_part_tensors(self) -> bool:
        """Whether a part's own tensor is in the scores: its gradient sums over all rows, whose errors must be small."""
        learned = self.rel_bias is not None and self.rel_bias.slopes is None
        pairs = self.pair_bias is not None and self.needs_grad[7]
        parts = (self.weight, self.rel_vectors, self.key_vectors, self.sink)
        return learned or pairs or any(part is not None for part in parts)


def make_call(
    q: Tensor, k: Tensor, v: Tensor, *, generator: torch.Generator | None = None, **options: Unpack[PartOptions]
) -> Call:
    """The checked call with its dropout seed; raises `BadInput` or `Unsupported` when it does not fit together."""
    parts = Parts(**options)
    call = check_call(*cast_for_autocast(q, k, v), parts)
    return replace(call, seed=draw_seed(generator, call.q.device)) if parts.dropout else call


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
    others = {"sink": parts.sink, "bias": parts.bias, "places": parts.places, "edges": parts.edges}
    call = Call(q, k, v, score, position, mask, float(parts.dropout), **others)
    check_softmax_parts(call, parts)
    if not torch.compiler.is_compiling():  # torch itself raises there
        check_devices(call)
    if call.places is not None:
        mask = call.places.place(mask)
    mask.check(call.grid)
    return replace(call, mask=simplify_mask(mask, call.grid))


def check_softmax_parts(call: Call, parts: Parts) -> None:
    """Raise unless the cap, the sink and the bias by pair fit the call."""
    if call.sink is not None:
        call.sink.check(call.q, call.k)
    if call.bias is not None:
        call.bias.check(call.grid)
    if call.places is not None:
        call.places.check(call.grid)
    if call.edges is not None:
        check_edge_features(call, call.edges)
    names = [name for name in ("sink", "bias", "places", "edges") if getattr(parts, name) is not None]
    names += [] if call.score.cap is None else ["a score with a cap"]
    if names and not isinstance(parts.method, Exact):
        raise Unsupported(
            f"{type(parts.method).__name__} takes no {' and no '.join(names)}: it approximates the plain softmax. Use "
            "Exact()."
        )


def check_edge_features(call: Call, edges: EdgeFeatures) -> None:
    """Raise unless the features of edges fit the call's graph, score and position."""
    edges.check(call.mask, call.grid, call.k.shape[3], call.v.shape[3])
    rotates = call.position is not None and call.position.rotates
    if edges.keys is not None and (isinstance(call.score, Cosine) or rotates):
        part = call.score if isinstance(call.score, Cosine) else call.position
        raise Unsupported(f"EdgeFeatures' keys go without {type(part).__name__}, which changes keys. Use bias=.")


def lower(call: Call) -> LoweredCall:
    """The call in the form of kernels; differentiable in all of its tensors."""
    q, k, position = call.q, call.k, call.position
    rel_bias, rel_vectors, key_vectors = None, None, None
    places = None if call.places is None else call.places.pair(call.grid.queries)
    exact = position is not None and (position.transforms or position.exact_inputs)
    if exact or not isinstance(call.score, Dot | Additive):
        q, k = q.to(call.exact), k.to(call.exact)  # what is computed from q and k is not rounded before it is used
    if position is not None:
        rel_vectors = position.rel_vectors(q, k, call.q.dtype)
        key_vectors = position.key_vectors(q, k, call.q.dtype)
        if places is None:
            rel_bias = position.rel_bias(q, k)
            q, k = position.transform(q, k)
        else:
            rel_bias = position.rel_bias_at(q, k, places)
            q, k = position.transform_at(q, k, places)
        if position.keeps_dtype:
            q, k = q.to(call.q.dtype), k.to(call.k.dtype)
    scale, weight, activation, slope = 1.0, None, "", 0.0
    if isinstance(call.score, Additive):
        weight, activation, slope = call.score.weight, call.score.activation, float(call.score.slope)
    else:
        q, k, scale = call.score.lower(q, k)
        scale = scale if position is None else scale * position.score_scale
    rel_q, rel_table, _ = rel_vectors or (None, None, 0)
    pair_bias = None if call.bias is None else call.bias.four_dims()
    sink = None if call.sink is None else call.sink.head_logits(call.q)
    table = None if rel_bias is None else rel_bias.table
    key_table = None if key_vectors is None else key_vectors.table
    edge_fields: list[Tensor | None] = [None, None, None]
    if call.edges is not None:
        edge_fields = call.edges.sorted_fields(edges_of(call.mask), call.grid.keys)
    tensors = (q, k, call.v, weight, table, rel_q, rel_table, pair_bias, sink, key_table, *edge_fields)
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
        key_vectors=key_vectors,
        dropout=call.dropout,
        seed=call.seed,
        needs_grad=tuple([grad_enabled and x is not None and x.requires_grad for x in tensors]),
        tied=k is call.v,
        plan=call.plan,
        cap=None if call.score.cap is None else float(call.score.cap),
        pair_bias=pair_bias,
        sink=sink,
        places=places,
        edge_bias=edge_fields[0],
        edge_keys=edge_fields[1],
        edge_values=edge_fields[2],
        exact_table=position is not None and shows_rounding(position, call),
    )


def shows_rounding(position: Position, call: Call) -> bool:
    """Whether a gradient of the position's tensors would show weights that were rounded to the type of v.

    So it is where they are more exact themselves, where a table has few entries, and where there are few rows: the sum
    over most keys of a row is nearly 0, so that the rounding of its terms is what is left.
    """
    tables = position.tables()
    if any([x.dtype.itemsize > call.v.dtype.itemsize or x.shape[1] <= FEW_ENTRIES for x in tables]):
        return True
    if torch.compiler.is_compiling():  # a graph serves every length
        return False
    return len(tables) > 0 and call.q.shape[2] <= FEW_ROWS


def without_autocast(device: torch.device) -> AbstractContextManager:
    """A context without autocast, which `cast_for_autocast` has already applied."""
    return torch.autocast(device.type, enabled=False) if torch.is_autocast_enabled(device.type) else nullcontext()


def device_guard(x: Tensor) -> AbstractContextManager[object]:
    """A context in which kernels start on the tensor's own GPU, which need not be the current one."""
    current = not x.is_cuda or x.device.index == torch.cuda.current_device()
    return nullcontext() if current else torch.cuda.device(x.device)


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
    for part in (call.sink, call.bias, call.places, call.edges):
        if part is not None:
            tensors |= {f"{type(part).__name__}'s {n}": t for n, t in part.tensors().items()}
    tensors |= {f"the mask's tensor {n}": t for n, t in enumerate(call.mask.tensors())}
    for name, tensor in tensors.items():
        if tensor.device != call.q.device:
            raise BadInput(
                f"q is on {call.q.device} and {name} on {tensor.device}. Move them to one device with .to(...)."
            )
