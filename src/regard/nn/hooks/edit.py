"""Editing: chosen heads are silenced, made uniform or given other weights; all else runs as it always does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ...attention.attend import attend as attend_to
from ...attention.look import look
from ...attention.parts.mask import Mask, PairGrid
from ...attention.parts.masks import Everything, Pairs
from ...attention.parts.scores import Dot
from ...attention.view import View
from ...errors import BadInput
from ..attention import Attend
from .modules import call_arguments, find_attentions, nearest_name

WORDS = ("silent", "uniform", "shuffle")
TOLERANCE = 1e-3
"""How far from 1 (or 0) a row of given weights may sum: half-precision weights do."""

Change = str | Tensor | Callable[..., Any]
AttendCall = tuple[Tensor, Tensor, Tensor, dict[str, Any]]
"""q, k, v and the parts of a call."""

ACTIVE_EDITS: WeakKeyDictionary[Attend, dict[int, str | Tensor | None]] = WeakKeyDictionary()
"""The edited heads of each attention, with what took the place of their weights in the last call."""


@contextmanager
def edit(
    model: nn.Module,
    changes: dict[str | tuple[int, int], Any],
    *,
    generator: torch.Generator | None = None,
) -> Iterator[None]:
    """While open, chosen heads are changed: `{"stack.blocks.3.attention": {2: "silent"}}` or `{(3, 2): "silent"}`.

    `(layer, head)` counts the attentions in the order of `regard.nn.hooks.modules`. A change is one of

    - `"silent"`: the head gives zeros to the output projection, as if it were not there;
    - `"uniform"`: equal weights on all keys that its mask allows, in memory linear in the sequence;
    - `"shuffle"`: each query's weights dealt anew among the keys it may see, drawn from `generator`;
    - weights `[queries, keys]` or `[batch, queries, keys]`, used as they are; rows sum to one, or to zero;
    - a function from the head's own weights `[batch, queries, keys]` to such weights.

    Other heads keep their bits. An edited head has no attention dropout, and gradients go through its values alone.
    A model that is watched at the same time shows the weights in effect (a silent head's are zero). Raises `BadInput`
    for names and heads that are not there (heads: when the model runs) and for a head that is edited already.

    >>> import torch, regard as rg
    >>> model = rg.nn.Stack(rg.nn.StackConfig(dim=8, layers=2, heads=2))
    >>> x = torch.randn(1, 5, 8)
    >>> before = model(x)
    >>> with edit(model, {(0, 1): "silent", "blocks.1.attention": {0: torch.eye(5)}}):
    ...     changed = model(x)
    >>> torch.equal(model(x), before), torch.equal(changed, before)
    (True, False)
    """
    found = find_attentions(model)
    planned = read_changes(changes, list(found))
    need_unedited(planned, found)
    handles = []
    try:
        for name, heads in planned.items():
            ACTIVE_EDITS.setdefault(found[name], {}).update(dict.fromkeys(heads))
            hook = make_edit_hook(name, heads, generator)
            # first of all hooks, so that whoever watches sees what is in effect
            handles.append(found[name].register_forward_hook(hook, with_kwargs=True, prepend=True))
        yield
    finally:
        for handle in handles:
            handle.remove()
        for name, heads in list(planned.items())[: len(handles)]:
            ACTIVE_EDITS[found[name]] = {h: used for h, used in ACTIVE_EDITS[found[name]].items() if h not in heads}


def read_changes(changes: dict[Any, Any], names: list[str]) -> dict[str, dict[int, Change]]:
    """The changes by the name of the attention and the head."""
    planned: dict[str, dict[int, Change]] = {}
    for place, change in changes.items():
        heads = change
        if isinstance(place, tuple) and len(place) == 2:
            place, heads = layer_name(place[0], names), {place[1]: change}
        if place not in names:
            raise BadInput(f"There is no attention {place!r}. Did you mean {nearest_name(str(place), names)!r}?")
        if not isinstance(heads, dict):
            raise BadInput(f"The changes of {place!r} are {heads!r:.60}; give each head its own: {{2: 'silent'}}.")
        for head, one in heads.items():
            if head in planned.setdefault(place, {}):
                raise BadInput(f"Head {head} of {place!r} is changed twice. Give it one change.")
            planned[place][head] = check_change(one, place, head)
    return planned


def layer_name(layer: Any, names: list[str]) -> str:
    if not isinstance(layer, int) or not 0 <= layer < len(names):
        raise BadInput(f"There is no layer {layer!r}: the model has {len(names)} attentions, 0 … {len(names) - 1}.")
    return names[layer]


def check_change(change: Any, name: str, head: Any) -> Change:
    if not isinstance(head, int) or head < 0:
        raise BadInput(f"{name}: head {head!r} must be a whole number of at least 0.")
    if isinstance(change, Tensor) or callable(change) or change in WORDS:
        return change
    raise BadInput(
        f"{name}, head {head}: the change is {change!r:.60}; it must be one of {', '.join(map(repr, WORDS))}, "
        "weights [batch, queries, keys], or a function that makes them of the head's own."
    )


def need_unedited(planned: dict[str, dict[int, Change]], found: dict[str, Attend]) -> None:
    for name, heads in planned.items():
        twice = sorted(set(heads) & set(ACTIVE_EDITS.get(found[name], {})))
        if twice:
            raise BadInput(f"{name}: head {twice[0]} is edited already. Leave that edit first, or join the two.")


def make_edit_hook(name: str, heads: dict[int, Change], generator: torch.Generator | None) -> Callable[..., Tensor]:
    """The hook that changes the heads of one attention."""

    def change(attend: Attend, args: tuple, kwargs: dict[str, Any], output: Tensor) -> Tensor:
        asked, count = call_arguments(*args, **kwargs), output.shape[1]
        if max(heads) >= count:
            raise BadInput(f"{name} has {count} heads, 0 … {count - 1}; there is no head {max(heads)}.")
        output = output.clone()
        means = uniform_output(asked) if "uniform" in [how for how in heads.values() if isinstance(how, str)] else None
        for head, how in heads.items():
            used = replacement_weights(how, asked, head, f"{name}, head {head}", generator)
            ACTIVE_EDITS[attend][head] = used
            if isinstance(used, Tensor):
                output[:, head] = weighted_values(used, asked, head).to(output.dtype)
            else:
                output[:, head] = 0.0 if means is None or used == "silent" else means[:, head].to(output.dtype)
        return output

    return change


def replacement_weights(
    how: Change, asked: AttendCall, head: int, where: str, generator: torch.Generator | None
) -> str | Tensor:
    """What takes the place of a head's weights: `"silent"`, `"uniform"`, or weights `[batch, queries, keys]`."""
    if isinstance(how, str) and how != "shuffle":
        return how
    if isinstance(how, Tensor):
        given: Any = how
    else:
        q, k, v, parts = asked
        only = {part: parts.get(part) for part in ("score", "position", "mask", "method")}
        own = look(q, k, v, **only, weights=True).weights[:, head]  # type: ignore[index]
        given = shuffle_weights(own, allowed_pairs(asked, head), generator) if isinstance(how, str) else how(own)
    return check_weights(given, asked, where)


def check_weights(weights: Any, asked: AttendCall, where: str) -> Tensor:
    """The weights as `[batch, queries, keys]`, known to be some."""
    q, k = asked[:2]
    wanted = [q.shape[0], q.shape[2], k.shape[2]]
    if not isinstance(weights, Tensor) or not weights.dtype.is_floating_point:
        kind = weights.dtype if isinstance(weights, Tensor) else type(weights).__name__
        raise BadInput(f"{where}: the weights are {kind}; they must be a floating tensor {wanted}.")
    if weights.dim() not in (2, 3) or [*([1] * (3 - weights.dim())), *weights.shape] not in (wanted, [1, *wanted[1:]]):
        raise BadInput(
            f"{where}: the weights are {list(weights.shape)}; this call's are [batch, queries, keys] = {wanted}. "
            "Where sizes change from call to call, give a function."
        )
    weights = weights.detach().to(q.device)
    if not bool((weights >= 0).all()):
        raise BadInput(f"{where}: some weights are negative or no numbers; they must be at least 0.")
    total = weights.sum(-1, dtype=torch.float32)
    off = torch.minimum((total - 1).abs(), total.abs()).max().item() if total.numel() else 0.0
    if off > TOLERANCE:
        raise BadInput(f"{where}: a row of the weights sums to neither 1 nor 0. Divide each row by its sum.")
    return weights.expand(wanted)


def weighted_values(weights: Tensor, asked: AttendCall, head: int) -> Tensor:
    """The head's output under these weights, `[batch, queries, value dim]`."""
    q, _, v, _ = asked
    own = v[:, head // (q.shape[1] // v.shape[1])]
    exact = torch.promote_types(own.dtype, torch.float32)
    return weights.to(exact) @ own.to(exact)


def uniform_output(asked: AttendCall) -> Tensor:
    """Each head's mean over the values that its mask allows, `[batch, heads, queries, value dim]`."""
    return attend_to(*constant_queries_and_keys(asked), asked[2], mask=asked[3].get("mask"))


def constant_queries_and_keys(asked: AttendCall) -> tuple[Tensor, Tensor]:
    """Queries and keys of which all are alike: under any mask, weights are equal."""
    q, k, v, _ = asked
    return v.new_zeros(*q.shape[:3], 1), v.new_zeros(*k.shape[:3], 1)


def allowed_pairs(asked: AttendCall, head: int) -> Tensor:
    """Which pairs a head's mask allows, `[batch, queries, keys]`."""
    q, k, _, parts = asked
    mask: Mask = parts.get("mask") or Everything()
    grid = PairGrid(q.shape[2], k.shape[2], q.shape[0], q.shape[1], q.device)
    pairs = mask.permits(*grid.indices(), grid).expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    return pairs[:, head]


def shuffle_weights(weights: Tensor, allowed: Tensor, generator: torch.Generator | None) -> Tensor:
    """Each row's weights dealt anew among its allowed keys."""
    source = weights.device if generator is None else generator.device
    noise = torch.rand(weights.shape, generator=generator, device=source).to(weights.device)
    drawn = noise.masked_fill(~allowed, 2.0).argsort(-1)  # allowed keys first, in any order
    ordered = (~allowed).int().argsort(dim=-1, stable=True)  # allowed keys first, in their order
    return torch.zeros_like(weights).scatter(-1, drawn, weights.gather(-1, ordered))


def apply_edits(attend: Attend, view: View, asked: AttendCall, wish: dict[str, Any]) -> View:
    """The view with the edited heads as they were in the last call."""
    for head, used in ACTIVE_EDITS.get(attend, {}).items():
        if isinstance(used, Tensor):
            view = replace_head(view, head, view_of_weights(used, wish), 0)
        elif used == "uniform":
            view = replace_head(
                view, head, look(*constant_queries_and_keys(asked), mask=asked[3].get("mask"), **wish), head
            )
        else:
            view = replace_head(view, head, None, 0)
    return view


def view_of_weights(weights: Tensor, wish: dict[str, Any]) -> View:
    """The view of given weights `[batch, queries, keys]`, as one head."""
    exact = weights[:, None].to(torch.promote_types(weights.dtype, torch.float32))
    scores = exact.clamp(min=torch.finfo(exact.dtype).tiny).log()  # q_i · e_j is the weight's logarithm
    keys = torch.eye(weights.shape[2], dtype=exact.dtype, device=weights.device).expand(weights.shape[0], 1, -1, -1)
    return look(scores, keys, score=Dot(scale=1.0), mask=Pairs(exact > 0), **wish)


def replace_head(view: View, head: int, other: View | None, at: int) -> View:
    """The view with one head's numbers from head `at` of another; None is a head that looks at nothing."""
    nothing = {"lse": -torch.inf, "top_keys": -1}
    changed = {}
    for field in fields(view):
        old = getattr(view, field.name)
        if isinstance(old, Tensor):
            new = old.clone()
            new[:, head] = nothing.get(field.name, 0) if other is None else getattr(other, field.name)[:, at]
            changed[field.name] = new
    return replace(view, **changed)
