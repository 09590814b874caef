"""Editing: chosen heads are silenced, made uniform or given other weights; the rest of the model runs unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any, TypedDict
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ...attention.attend import attend as attend_to
from ...attention.look import look
from ...attention.parts.edges import EdgeFeatures, Edges
from ...attention.parts.mask import PairGrid
from ...attention.parts.masks import Everything, Pairs
from ...attention.parts.scores import Dot
from ...attention.view import View
from ...errors import BadInput, Unsupported
from ..attention import Attend
from .attentions import AttendCall, find_attentions, nearest_name, read_call
from .direct import follow_calls, without_interception
from .scope import Scope

NAMED_EDITS = ("silent", "uniform", "shuffle")
TOLERANCE = 1e-3
"""How far the sum of a row of given weights may be from 1 (or 0), as that of half-precision weights is."""

HeadEdit = str | Tensor | Callable[[Tensor], object]

HeadChanges = (
    Mapping[str, Mapping[int, HeadEdit]]
    | Mapping[tuple[int, int], HeadEdit]
    | Mapping[str | tuple[int, int], HeadEdit | Mapping[int, HeadEdit]]
)
"""Edits by the name of the attention and the head, or by (layer, head)."""

AppliedEdits = dict[int, str | Tensor | None]
"""The replacement of the weights of each edited head in the last call; None before a call."""

EDITS: WeakKeyDictionary[Attend, dict[Scope, AppliedEdits]] = WeakKeyDictionary()
"""The edits of each attention, by the scope that made them."""


def active_edits(attend: Attend) -> AppliedEdits:
    """The edits of an attention that are in effect in the current thread and task."""
    edits = list(EDITS.get(attend, {}).items())  # other threads may open and close theirs
    return {head: used for scope, heads in edits if scope.is_open for head, used in heads.items()}


@contextmanager
def edit(
    model: nn.Module,
    changes: HeadChanges,
    *,
    generator: torch.Generator | None = None,
) -> Iterator[None]:
    """While open, chosen heads are changed: `{"stack.blocks.3.attention": {2: "silent"}}` or `{(3, 2): "silent"}`.

    `(layer, head)` counts the attentions in the order of `find_attentions`. A change is one of

    - `"silent"`: the head gives zeros to the output projection, as if it were not there;
    - `"uniform"`: equal weights on all keys that its mask allows, in memory linear in the sequence;
    - `"shuffle"`: each query's weights permuted among the keys that its mask allows, drawn from `generator`;
    - weights `[queries, keys]` or `[batch, queries, keys]`, used as they are; rows sum to one, or to zero (to at most
      one where the attention has a sink);
    - a function from the head's own weights `[batch, queries, keys]` to such weights.

    Other heads keep their bits. An edited head has no attention dropout, and gradients go through its values alone.
    A model that is watched at the same time shows the weights in effect (a silent head's are zero). Raises `BadInput`
    for names and heads that do not exist (heads: when the model runs) and for a head that is edited already. The edit
    is local to the thread and task that opened it: others that run the model see it unchanged.

    >>> import torch, regard as rg
    >>> model = rg.nn.Stack(rg.nn.StackConfig(dim=8, layers=2, heads=2))
    >>> x = torch.randn(1, 5, 8)
    >>> before = model(x)
    >>> with edit(model, {(0, 1): "silent", "blocks.1.attention": {0: torch.eye(5)}}):
    ...     changed = model(x)
    >>> torch.equal(model(x), before), torch.equal(changed, before)
    (True, False)
    """
    attends = find_attentions(model)
    edits = read_changes(changes, list(attends))
    for name, heads in edits.items():
        twice = sorted(set(heads) & set(active_edits(attends[name])))
        if twice:
            raise BadInput(f"{name}: head {twice[0]} is edited already. Leave that edit first, or join the two.")
    scope, handles = Scope(), []
    try:
        for name, heads in edits.items():
            EDITS.setdefault(attends[name], {})[scope] = dict.fromkeys(heads)
            hook = make_edit_hook(name, heads, generator, scope)
            # the first of all hooks, so that watch sees the edited output
            handles.append(attends[name].register_forward_hook(hook, with_kwargs=True, prepend=True))
        with follow_calls(model, lambda name, attend: None), scope.open():
            yield
    finally:
        for handle in handles:
            handle.remove()
        for name in edits:
            EDITS.get(attends[name], {}).pop(scope, None)


def read_changes(changes: HeadChanges, names: list[str]) -> dict[str, dict[int, HeadEdit]]:
    """The changes by the name of the attention and the head."""
    edits: dict[str, dict[int, HeadEdit]] = {}
    for key, change in changes.items():
        name, heads = key, change
        if isinstance(key, tuple) and len(key) == 2:
            layer, head = key
            if not isinstance(layer, int) or not 0 <= layer < len(names):
                raise BadInput(
                    f"There is no layer {layer!r}: the model has {len(names)} attentions, 0 … {len(names) - 1}."
                )
            name, heads = names[layer], {head: change}
        if name not in names:
            raise BadInput(f"There is no attention {name!r}. Did you mean {nearest_name(str(name), names)!r}?")
        if not isinstance(heads, dict):
            raise BadInput(f"The changes of {name!r} are {heads!r:.60}; give each head its own: {{2: 'silent'}}.")
        for head, head_edit in heads.items():
            if head in edits.setdefault(name, {}):
                raise BadInput(f"Head {head} of {name!r} is changed twice. Give it one change.")
            edits[name][head] = check_change(head_edit, name, head)
    return edits


def check_change(change: object, name: str, head: object) -> HeadEdit:
    if not isinstance(head, int) or head < 0:
        raise BadInput(f"{name}: head {head!r} must be a whole number of at least 0.")
    if isinstance(change, Tensor) or callable(change) or change in NAMED_EDITS:
        return change
    raise BadInput(
        f"{name}, head {head}: the change is {change!r:.60}; it must be one of {', '.join(map(repr, NAMED_EDITS))}, "
        "weights [batch, queries, keys], or a function of the head's own weights that returns such weights."
    )


def make_edit_hook(
    name: str, heads: dict[int, HeadEdit], generator: torch.Generator | None, scope: Scope
) -> Callable[..., Tensor | None]:
    """The hook that changes the heads of one attention, within a scope."""

    def edit_output(attend: Attend, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Tensor | None:
        if not scope.is_open:
            return None
        with without_interception():
            return edit_heads(attend, read_call(args, kwargs), output)

    def edit_heads(attend: Attend, call: AttendCall, output: Tensor) -> Tensor:
        count = output.shape[1]
        if max(heads) >= count:
            raise BadInput(f"{name} has {count} heads, 0 … {count - 1}; there is no head {max(heads)}.")
        silent = all(isinstance(change, str) and change == "silent" for change in heads.values())
        if call.layout is not None and not silent:
            raise Unsupported(f"{name} is sharded, and heads of it can only be 'silent'. Edit it in one process.")
        output = output.clone()
        # each head's mean over the values that its mask allows, [batch, heads, queries, value dim]
        uniform = any(isinstance(change, str) and change == "uniform" for change in heads.values())
        constants = constant_queries_and_keys(call)
        placed = {"mask": call.parts.mask, "places": call.parts.places, "edges": edge_values(call)}
        means = attend_to(*constants, call.v, **placed) if uniform else None
        for head, change in heads.items():
            used = replacement_weights(change, call, head, f"{name}, head {head}", generator)
            EDITS[attend][scope][head] = used
            if isinstance(used, Tensor):
                values = call.v[:, head // (call.q.shape[1] // call.v.shape[1])]
                exact = torch.promote_types(values.dtype, torch.float32)
                mixed = used.to(exact) @ values.to(exact)
                output[:, head] = (mixed + mix_edge_values(used.to(exact), call, head)).to(output.dtype)
            else:
                output[:, head] = 0.0 if means is None or used == "silent" else means[:, head].to(output.dtype)
        return output

    return edit_output


def replacement_weights(
    change: HeadEdit, call: AttendCall, head: int, where: str, generator: torch.Generator | None
) -> str | Tensor:
    """The replacement of a head's weights: `"silent"`, `"uniform"`, or weights `[batch, queries, keys]`."""
    if isinstance(change, str) and change != "shuffle":
        return change
    if isinstance(change, Tensor):
        return check_weights(change, call, where)
    every = look_at(call, {"top": 0, "map": None, "weights": True}).weights
    if every is None:
        raise BadInput(f"{where}: the method of this attention forms no weights. Use 'silent', 'uniform' or weights.")
    own = every[:, head]
    new = shuffle_weights(own, allowed_pairs(call, head), generator) if isinstance(change, str) else change(own)
    return check_weights(new, call, where)


def check_weights(weights: object, call: AttendCall, where: str) -> Tensor:
    """The weights as `[batch, queries, keys]`; `BadInput` for other shapes and for rows that are not weights."""
    wanted = call.sizes
    if not isinstance(weights, Tensor) or not weights.dtype.is_floating_point:
        got = weights.dtype if isinstance(weights, Tensor) else type(weights).__name__
        raise BadInput(f"{where}: the weights are {got}; they must be a floating tensor {wanted}.")
    if weights.dim() not in (2, 3) or [*([1] * (3 - weights.dim())), *weights.shape] not in (wanted, [1, *wanted[1:]]):
        raise BadInput(
            f"{where}: the weights are {list(weights.shape)}; this call's are [batch, queries, keys] = {wanted}. "
            "Where sizes change from call to call, give a function."
        )
    weights = weights.detach().to(call.q.device)
    if not bool((weights >= 0).all()):
        raise BadInput(f"{where}: some weights are negative or no numbers; they must be at least 0.")
    total = weights.sum(-1, dtype=torch.float32)
    off = torch.minimum((total - 1).abs(), total.abs()).max().item() if total.numel() else 0.0
    if call.parts.sink is not None:  # which takes the rest
        off = (total - 1).max().item() if total.numel() else 0.0
    if off > TOLERANCE:
        raise BadInput(f"{where}: a row of the weights sums to neither 1 nor 0. Divide each row by its sum.")
    return weights.expand(wanted)


def edge_values(call: AttendCall) -> EdgeFeatures | None:
    """What edges add to values; None without it."""
    return None if call.parts.edges is None else call.parts.edges.of_values()


def mix_edge_values(weights: Tensor, call: AttendCall, head: int) -> Tensor | float:
    """Σ_j weights `[batch, queries, keys]` · what each edge adds to the value, for one head; 0 without it."""
    edges = edge_values(call)
    if edges is None or not isinstance(call.parts.mask, Edges):
        return 0.0
    added = edges.four_dims("values")
    added = added[:, head if added.shape[1] > 1 else 0].to(weights.dtype)  # [batch or 1, edges, value dim]
    source, target = call.parts.mask.edge_index.long()
    zeros = weights.new_zeros(*weights.shape[:2], added.shape[2])
    return zeros.index_add(1, target, weights[:, target, source][..., None] * added)


def constant_queries_and_keys(call: AttendCall) -> tuple[Tensor, Tensor]:
    """Queries and keys of zeros: under any mask their weights are uniform."""
    return call.v.new_zeros(*call.q.shape[:3], 1), call.v.new_zeros(*call.k.shape[:3], 1)


def allowed_pairs(call: AttendCall, head: int) -> Tensor:
    """Which pairs a head's mask allows, `[batch, queries, keys]`."""
    batch, heads, queries = call.q.shape[:3]
    grid = PairGrid(queries, call.k.shape[2], batch, heads, call.q.device)
    mask = call.parts.mask or Everything()
    mask = mask if call.parts.places is None else call.parts.places.place(mask)
    pairs = mask.permits(*grid.indices(), grid)
    return pairs.expand(batch, heads, queries, call.k.shape[2])[:, head]


def shuffle_weights(weights: Tensor, allowed: Tensor, generator: torch.Generator | None) -> Tensor:
    """Each row's weights, permuted among its allowed keys."""
    source = weights.device if generator is None else generator.device
    noise = torch.rand(weights.shape, generator=generator, device=source).to(weights.device)
    drawn = noise.masked_fill(~allowed, 2.0).argsort(-1)  # allowed keys first, in random order
    ordered = (~allowed).int().argsort(dim=-1, stable=True)  # allowed keys first, in their order
    return torch.zeros_like(weights).scatter(-1, drawn, weights.gather(-1, ordered))


class ViewOptions(TypedDict):
    """What `look` adds to a view."""

    top: int
    map: tuple[int, int] | None
    weights: bool


def look_at(call: AttendCall, options: ViewOptions) -> View:
    """The view of a call."""
    parts = call.parts
    return look(
        *(call.q, call.k, call.v),
        score=parts.score,
        position=parts.position,
        mask=parts.mask,
        method=parts.method,
        sink=parts.sink,
        bias=parts.bias,
        places=parts.places,
        edges=parts.edges,
        layout=call.layout,
        **options,
    )


def apply_edits(attend: Attend, view: View, call: AttendCall, options: ViewOptions) -> View:
    """The view with the edited heads as they were in the last call."""
    for head, used in active_edits(attend).items():
        if isinstance(used, Tensor):
            view = replace_head(view, head, view_of_weights(used, options), 0)
        elif used == "uniform":
            placed = {"mask": call.parts.mask, "places": call.parts.places}
            uniform = look(*constant_queries_and_keys(call), **placed, **options)
            view = replace_head(view, head, uniform, head)
        else:
            view = replace_head(view, head, None, 0)
    return view


def view_of_weights(weights: Tensor, options: ViewOptions) -> View:
    """The view of given weights `[batch, queries, keys]`, as one head."""
    exact = weights[:, None].to(torch.promote_types(weights.dtype, torch.float32))
    scores = exact.clamp(min=torch.finfo(exact.dtype).tiny).log()  # q_i · e_j is the logarithm of the weight
    keys = torch.eye(weights.shape[2], dtype=exact.dtype, device=weights.device).expand(weights.shape[0], 1, -1, -1)
    return look(scores, keys, score=Dot(scale=1.0), mask=Pairs(exact > 0), **options)


def replace_head(view: View, head: int, other: View | None, source: int) -> View:
    """The view with one head's numbers from head `source` of another; None is a head without weights."""
    silent = {"lse": -torch.inf, "top_keys": -1}
    changed = {}
    for field in fields(view):
        old = getattr(view, field.name)
        if isinstance(old, Tensor):
            new = old.clone()
            replacement = None if other is None else getattr(other, field.name)  # given weights have no sink
            new[:, head] = silent.get(field.name, 0) if replacement is None else replacement[:, source]
            changed[field.name] = new
    return replace(view, **changed)
