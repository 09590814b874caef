"""`attend`: every attention through one function."""

from __future__ import annotations

import functools
from collections.abc import Hashable
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from ..errors import Unsupported
from .backends import BACKENDS, choose_backend, dense, sdpa, triton
from .call import Call, cast_for_autocast, check_call
from .dropout import draw_seed
from .execution import CACHE, ExecutionPlan, MaskCache, mask_cache
from .interception import INTERCEPTORS, AttendArguments, intercept
from .nonfinite import all_finite, attend_to_finite, can_check
from .parts.edges import EdgeFeatures
from .parts.mask import Mask
from .parts.masks import Everything
from .parts.methods import Exact, Method
from .parts.pair_bias import PairBias
from .parts.part import Part
from .parts.parts import DOT, Parts
from .parts.places import Places
from .parts.positions import Position
from .parts.scores import Score
from .parts.sink import Sink
from .sharding import SequenceLayout, check_layout
from .tracing import in_cuda_graph

EVERYTHING = Everything()
OtherParts = tuple[Sink | None, PairBias | None, Places | None, EdgeFeatures | None]
any_autocast = torch._C._is_any_autocast_enabled
PREPARED = {"sdpa": sdpa.prepare, "triton": triton.prepare, "dense": dense.prepare}
FIXED = {"sdpa": sdpa.prepare_fixed, "triton": triton.prepare_fixed, "dense": dense.prepare_fixed}  # same contents
OF_MASK = {"sdpa": sdpa.function_of_mask, "dense": dense.function_of_mask}  # where a mask becomes a tensor


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
    sink: Sink | None = None,
    bias: PairBias | None = None,
    places: Places | None = None,
    edges: EdgeFeatures | None = None,
    generator: torch.Generator | None = None,
    backend: str = "auto",
    layout: SequenceLayout | None = None,
) -> Tensor:
    """The values weighted by attention, `[batch, heads, queries, value dim]`.

        score(i, j)  = similarity(q_i, k_j) + position(i, j, q_i) + bias(i, j)   if mask allows (i, j), else −∞
        weight(i, ·) = softmax over j, and over the sink if there is one
        output(i)    = Σ_j weight(i, j) · v_j

    q is `[batch, heads, queries, head_dim]`; k and v `[batch, kv_heads, keys, …]`, heads a multiple of kv_heads.
    Differentiable in q, k, v and in every tensor of a part. A row with no allowed key gives zeros. Raises
    `BadInput` for arguments that do not fit, `Unsupported` for parts that do not go together or a named backend that
    cannot run them.

    With a `layout` (`regard.shard`) q, k and v hold this process's tokens of a sequence that is shared out, and the
    output those of its queries.

    A soft dictionary: the query "fruit" is similar to apple and banana, not to chair.

    >>> import torch, regard as rg
    >>> similarity = torch.tensor([0.6, 0.4, 0.0]).log().clamp(min=-1e4)   # of "fruit" with apple, banana, chair
    >>> q, k = torch.ones(1, 1, 1, 1), similarity.view(1, 1, 3, 1)
    >>> v = torch.tensor([10.0, 5.0, 2.0]).view(1, 1, 3, 1)
    >>> round(rg.attend(q, k, v, score=rg.Dot(scale=1.0)).item(), 4)     # 0.6·10 + 0.4·5 + 0·2
    8.0
    """
    if layout is not None:
        check_layout(layout)
        parts = Parts(score, position, mask, method, dropout, sink, bias, places, edges)
        return layout.attend(q, k, v, parts, generator, backend)
    if INTERCEPTORS and (answer := intercept(cast(AttendArguments, locals()))) is not None:
        return answer
    usual = method is sink is bias is places is edges is None and not dropout and not torch.compiler.is_compiling()
    if usual and (output := attend_warm(q, k, v, score, position, mask, backend)) is not None:
        return output
    q, k, v = cast_for_autocast(q, k, v)
    exact = method is None or isinstance(method, Exact)
    if exact and mask is not None and not dropout and bias is places is None and not has_rows(position):
        k, v = cut_unseen_keys(q, k, v, mask)
    others = None if sink is bias is places is edges is None else (sink, bias, places, edges)
    if isinstance(places, Places) and isinstance(mask, Mask):
        mask = places.place(mask)
    plan = find_plan(q, k, v, score, position, mask, dropout, backend, others)
    call: Call | None = None
    if plan is None or plan.function is None or not exact:
        parts = Parts(score, position, mask, method, dropout, sink, bias, places, edges)
        call = resolve(q, k, v, parts, generator, backend, plan)
        plan = call.plan
        if plan.empty:
            return empty_output(call)
        if not exact or plan.backend is None:
            return parts.method.attend(call)
    if usual:
        remember_warm(q, k, v, score, position, mask, backend, plan, call)
    output = run(plan, q, k, v, position, call)
    if (
        plan.unmasked or edges is not None or is_finite_or_unchecked(q, k, v, output)
    ):  # along edges nothing else is read
        return output
    parts = Parts(score, position, mask, method, dropout, sink, bias, places)
    return keep_out_nonfinite(q, k, v, output, parts, None if call is None else call.seed, backend)


def attend_warm(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    score: Score | None,
    position: Position | None,
    mask: Mask | None,
    backend: str,
) -> Tensor | None:
    """The output of a call whose plan has a function of q, k and v, where it has been planned before; None otherwise.

    Tensors that do not fit each other fail in the function; the call is then checked as if it were the first.
    """
    try:
        if any_autocast():
            q, k, v = cast_for_autocast(q, k, v)
        if mask is not None and q.shape[2] != k.shape[2] and not has_rows(position):
            k, v = cut_unseen_keys(q, k, v, mask)
        entry, key = warm_entry(mask, position, score), warm_key(q, k, v, score, position, backend)
        plan = entry.warm.values.get(key)
        if plan is None and mask is not None and entry.references:
            plan = plan_alike(mask, entry, key)
        if plan is None or plan.function is None:
            return None
        output = apply_function(plan, q, k, v, position)
    except (AttributeError, IndexError, RuntimeError, TypeError):
        return None
    if plan.unmasked or is_finite_or_unchecked(q, k, v, output):
        return output
    return keep_out_nonfinite(q, k, v, output, Parts(score, position, mask), None, backend)


def remember_warm(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    score: Score | None,
    position: Position | None,
    mask: Mask | None,
    backend: str,
    plan: ExecutionPlan,
    call: Call | None,
) -> None:
    """Store a plan that has a function of q, k and v for `attend_warm`; or one for the contents of the parts."""
    function = plan.function
    if function is None and call is not None and plan.backend is not None and (prepare := FIXED.get(plan.backend.name)):
        function = prepare(call)
    if function is None:
        return
    key = warm_key(q, k, v, score, position, backend)
    fixed = plan
    if function is not plan.function:
        learns = call is not None and call.learns_position
        fixed = ExecutionPlan(plan.backend, plan.unmasked, function=function, learns=learns)
    warm_entry(mask, position, score).warm.put(key, fixed)
    if plan.of_mask is not None and mask is not None and (shapes := mask_shapes(mask)) is not None:
        CACHE.functions.put((shapes, key), plan.of_mask)


def warm_entry(mask: Mask | None, position: Position | None, score: Score | None) -> MaskCache:
    """What is cached for a mask, and for the contents of a position and a score if they have any."""
    mask = EVERYTHING if mask is None else mask
    if position is score is None:
        return mask_cache(mask)
    stay = (None if is_learned(position) else position, score)
    return mask_cache(mask, *[part for part in stay if part is not None])


def plan_alike(mask: Mask, entry: MaskCache, key: Hashable) -> ExecutionPlan | None:
    """The plan for a mask with tensors like those of an earlier one, as every batch has; None where there was none."""
    shapes = mask_shapes(mask)
    of_mask = None if shapes is None else CACHE.functions.find((shapes, key))
    if of_mask is None:
        return None
    plan = ExecutionPlan(function=of_mask(mask), of_mask=of_mask)
    entry.warm.put(key, plan)
    return plan


def warm_key(q: Tensor, k: Tensor, v: Tensor, score: Score | None, position: Position | None, backend: str) -> Hashable:
    """What decides, besides the mask, how a call with these parts alone is run."""
    tensors = (q.shape, k.shape, v.shape, q.dtype, k.dtype, v.dtype, q.device, k.get_device(), v.get_device())
    parts = None if score is position is None else (score and part_key(score), position and part_key(position))
    return *tensors, grad_mode(q, k, v), in_cuda_graph(), backend, parts


def grad_mode(q: Tensor, k: Tensor, v: Tensor) -> int:
    """0 without gradients, 1 where only a part can need one, 2 where q, k or v do; 2 more if deterministic."""
    if not torch.is_grad_enabled():
        return 0
    return 1 + needs_grad(q, k, v) + 2 * torch.are_deterministic_algorithms_enabled()


def is_finite_or_unchecked(q: Tensor, k: Tensor, v: Tensor, output: Tensor) -> bool:
    """Whether no NaN or infinity can have come from a masked key: by the output, or by all that went in.

    True without a look where contents cannot be read without a wait, as on a GPU.
    """
    if not can_check(q):
        return True
    # A masked key that is not finite is in no output, but in the gradient of q.
    trains = torch.is_grad_enabled() and needs_grad(q, k, v)
    return (all_finite(output, k) if trains else all_finite(output)) or all_finite(q, k, v)


def keep_out_nonfinite(
    q: Tensor, k: Tensor, v: Tensor, output: Tensor, parts: Parts, seed: Tensor | None, backend: str
) -> Tensor:
    """The output without what is not finite in keys and values that a query may not attend to."""
    visible = functools.partial(run_masked, parts=parts, seed=seed, backend=backend)
    return attend_to_finite(q, k, v, EVERYTHING if parts.mask is None else parts.mask, visible, output.detach())


def run(plan: ExecutionPlan, q: Tensor, k: Tensor, v: Tensor, position: Position | None, call: Call | None) -> Tensor:
    """The output of a call that a plan was made for; `call` is None where the plan has a function."""
    if plan.function is not None:
        return apply_function(plan, q, k, v, position)
    return plan.backend.run(call)  # type: ignore[union-attr, arg-type]


def apply_function(plan: ExecutionPlan, q: Tensor, k: Tensor, v: Tensor, position: Position | None) -> Tensor:
    """The output by the plan's function, which takes a table that is being learned."""
    return plan.function(q, k, v, position.table) if plan.learns else plan.function(q, k, v)  # type: ignore


def is_learned(position: Position | None) -> bool:
    """Whether a gradient of the position's own tensors is needed."""
    tensors = () if position is None or not torch.is_grad_enabled() else position.tensors().values()
    return any(x.requires_grad for x in tensors)


def run_masked(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, *, parts: Parts, seed: Tensor | None, backend: str
) -> Tensor:
    """The output under another mask, with a seed that was drawn before; on another backend where that cannot run it."""
    call = check_call(q, k, v, Parts(**{**vars(parts), "mask": mask}))
    able = backend == "auto" or BACKENDS[backend].unsupported_reason(call) is None
    return choose_backend(call, backend if able else "auto").run(replace(call, seed=seed))


def cut_unseen_keys(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
    """k and v without the first keys that no query may attend to, as in decoding with a window over a long cache.

    Masks with a `key_span` and positions depend on i − j, which does not change (a mask by chunks, on where i and j are
    in theirs). The sizes of the call then stay the same from step to step, so that its plan does too.
    """
    tokens = all(isinstance(x, Tensor) and x.dim() == 4 for x in (q, k, v))
    if torch.compiler.is_compiling() or not isinstance(mask, Mask) or not tokens:
        return k, v
    queries, keys = q.shape[2], k.shape[2]
    span = mask.key_span(keys - queries, keys - 1) if 0 < queries < keys == v.shape[2] else None
    if span is None or not 0 < span[0] < keys:
        return k, v
    first = int(span[0]) // mask.key_period * mask.key_period
    return (k.narrow(2, first, keys - first), v.narrow(2, first, keys - first)) if first else (k, v)


def has_rows(position: Position | None) -> bool:
    """Whether a position has something for each row of keys."""
    return isinstance(position, Position) and position.by_rows


def find_plan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    score: Score | None,
    position: Position | None,
    mask: Mask | None,
    dropout: float,
    backend: str,
    others: OtherParts | None = None,
) -> ExecutionPlan | None:
    """The plan of such calls, if one was made before; the arguments are then known to fit together."""
    if not (mask is None or isinstance(mask, Mask)):
        return None
    key = call_key(q, k, v, score, position, dropout, backend, others)
    return None if key is None else mask_cache(EVERYTHING if mask is None else mask).plans.find(key)


def resolve(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    parts: Parts,
    generator: torch.Generator | None = None,
    backend: str = "auto",
    plan: ExecutionPlan | None = None,
) -> Call:
    """The call, checked, with its execution plan; both hold for every call of its kind and are cached.

    Raises `BadInput` or `Unsupported` when tensors, parts and backend do not go together.
    """
    if backend != "auto" and not isinstance(parts.method, Exact):
        raise Unsupported(
            f"{type(parts.method).__name__} is not exact, and backend {backend!r} runs Exact() only. Leave it out."
        )
    mask = EVERYTHING if parts.mask is None else parts.mask
    if plan is None:
        key = parts_key(q, k, v, parts, backend)
        make = functools.partial(make_plan, q, k, v, parts, backend)
        plan = make() if key is None else mask_cache(mask).plans.get(key, make)
    seed = draw_seed(generator, q.device) if parts.dropout else None
    mask = EVERYTHING if plan.unmasked else mask
    others = {"sink": parts.sink, "bias": parts.bias, "places": parts.places, "edges": parts.edges}
    return Call(q, k, v, parts.score, parts.position, mask, float(parts.dropout), seed, plan, **others)


def make_plan(q: Tensor, k: Tensor, v: Tensor, parts: Parts, backend: str) -> ExecutionPlan:
    """Check a call and choose its backend.

    Every batch has a new mask with tensors, such as its lengths. Where neither the checks nor the choice depend on
    their contents, both hold for all masks of the same shapes.
    """
    shapes = parts_key(q, k, v, parts, backend)
    key = None if shapes is None or parts.mask is None else mask_shapes(parts.mask)
    chosen = None if key is None else CACHE.choices.find((key, shapes))
    if chosen is not None and parts.mask is not None:  # which fits by its shapes
        others = {"sink": parts.sink, "bias": parts.bias, "places": parts.places, "edges": parts.edges}
        call = Call(q, k, v, parts.score, parts.position, parts.mask, float(parts.dropout), **others)
    else:
        call = check_call(q, k, v, parts)
        chosen = choose_backend(call, backend)
        if key is not None and chosen.name in OF_MASK and sdpa.chosen_by_shape(call):
            CACHE.choices.put((key, shapes), chosen)
    prepare = PREPARED.get(chosen.name)
    others = call.sink is not None or call.bias is not None  # whose contents are no part of the plan
    plain = prepare is not None and not (call.empty or call.dropout or others or shapes is None)
    function = prepare(call) if prepare is not None and plain else None
    alike = plain and key is not None and CACHE.choices.find((key, shapes)) is not None
    of_mask = OF_MASK[chosen.name](call) if alike else None
    learns = function is not None and call.learns_position
    return ExecutionPlan(chosen, isinstance(call.mask, Everything), call.empty, function, of_mask, learns)


def mask_shapes(mask: Mask) -> Hashable:
    """A mask with the shapes of its tensors in place of their contents.

    None for a mask without tensors, and for one whose contents decide whether it fits a call.
    """
    if not mask.tensors() or not mask.checked_by_shape:
        return None
    fields = [mask_shapes(x) or x if isinstance(x, Mask) else x for x in vars(mask).values()]
    key = type(mask), *[(x.shape, x.dtype, x.device) if isinstance(x, Tensor) else x for x in fields]
    try:
        hash(key)
    except TypeError:
        return None
    return key


def parts_key(q: Tensor, k: Tensor, v: Tensor, parts: Parts, backend: str) -> Hashable:
    """`call_key` of a call with these parts."""
    others = (parts.sink, parts.bias, parts.places, parts.edges)
    others = None if all(part is None for part in others) else others
    return call_key(q, k, v, parts.score, parts.position, parts.dropout, backend, others)


def call_key(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    score: Score | None,
    position: Position | None,
    dropout: float,
    backend: str,
    others: OtherParts | None = None,
) -> Hashable:
    """What decides, besides the mask, whether a call fits and which backend runs it; None where it cannot be a key."""
    if torch.compiler.is_compiling():
        return None
    try:
        key = (
            *(q.shape, q.dtype, q.device),
            *(k.shape, k.dtype, k.device),
            *(v.shape, v.dtype, v.device),
            PLAIN_DOT if score is None else part_key(score),
            None if position is None else part_key(position),
            *(dropout, backend, in_cuda_graph(), grad_mode(q, k, v)),
            None if others is None else tuple([part if part is None else part_key(part) for part in others]),
        )
        hash(key)
    except (AttributeError, TypeError):  # not tensors, symbolic sizes, or fields that cannot be hashed
        return None
    return key


def needs_grad(q: Tensor, k: Tensor, v: Tensor) -> bool:
    return q.requires_grad or k.requires_grad or v.requires_grad


def part_key(part: Part) -> Hashable:
    """A part's class and fields, its tensors without their contents."""
    fields = vars(part).values()
    return type(part), *[(x.shape, x.dtype, x.device, x.requires_grad) if isinstance(x, Tensor) else x for x in fields]


PLAIN_DOT = part_key(DOT)


def empty_output(call: Call) -> Tensor:
    """The output of a call without pairs: zeros, with gradients that are zero instead of absent."""
    parts = [part for part in (call.score, call.position, call.sink, call.bias, call.edges) if part is not None]
    tensors = [call.q, call.k, call.v, *(x for part in parts for x in part.tensors().values())]
    zeros = call.v.new_zeros(*call.q.shape[:3], call.v.shape[3])
    return zeros + sum(x.flatten()[:0].sum().to(zeros.dtype) for x in tensors)
