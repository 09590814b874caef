"""Methods: exact attention, or an approximation that says how far off it is.

The approximations never form the weights of queries × keys, so their time and memory are linear in the tokens. What
they can do follows from how they do it: a projected key, a landmark or a sum of features has no place of its own, so
distances and most masks have nothing to hold on to, and are refused with that reason.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...errors import BadInput, Unsupported
from ..backends.reference import per_query_head, softmax
from ..backends.triton import interpreting, on_its_device, unfit
from ..cache import constant
from ..call import Call, check_shapes, lower, without_autocast
from ..execution import ExecutionPlan
from .approximations import (
    Projected,
    blank,
    few,
    landmarks_of,
    means,
    pseudo_inverse,
    real,
    segments,
    sum_all,
    sum_in_order,
)
from .mask import And, Mask
from .masks import Causal, Everything, Lengths
from .part import Part, check_count, check_tensor
from .positions import Position
from .scores import Additive, Dot, Score

WIDEST = 128  # head_dim that the methods' kernels take
MOST = 65536  # heads of all rows of the batch, beyond what they take


class Method(Part):
    """How the weights are computed."""

    def attend(self, call: Call) -> Tensor:
        """The output by this method; raises `Unsupported` for parts that its mathematics does not allow."""
        raise NotImplementedError

    def error(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        score: Score | None = None,
        position: Position | None = None,
        mask: Mask | None = None,
    ) -> float:
        """‖output − exact‖ / ‖exact‖ over the whole output, in float32 at least; 0.0 where they are equal.

        Raises what `attend` raises.
        """
        from ..attend import attend

        check_shapes(q, k, v)
        q, k, v = (x.detach().to(torch.promote_types(x.dtype, torch.float32)) for x in (q, k, v))
        with torch.no_grad(), torch.autocast(q.device.type, enabled=False):
            exact = attend(q, k, v, score=score, position=position, mask=mask)
            found = attend(q, k, v, score=score, position=position, mask=mask, method=self)
        off, size = float((found - exact).norm()), float(exact.norm())
        return off / size if size else math.inf if off else 0.0


@dataclass(frozen=True, eq=False, repr=False)
class Exact(Method):
    """Every weight, to rounding."""

    formula = "softmax(score) v"

    def attend(self, call: Call) -> Tensor:
        return exactly(call)


@dataclass(frozen=True, eq=False, repr=False)
class Linformer(Method):
    """Exact attention over fewer, projected keys and values: softmax(score(q, E k)) (F v).

    E is `keys`, F is `values` (E unless given): `[projected, n]` for all heads, or `[kv_heads, projected, n]`, where n
    is the number of keys. Differentiable in both. Every score goes, and so does dropout, which falls on the weights of
    projected keys. `Rotary` turns q and k before the projection. Of the masks `Lengths` goes: keys and values beyond
    the length are zeros when they are projected. Raises `BadInput` where n or kv_heads do not fit.

    >>> import torch, regard as rg
    >>> rg.Linformer(torch.eye(5)).error(*torch.randn(3, 1, 2, 5, 8)) < 1e-6   # nothing is lost by the identity
    True
    """

    keys: Tensor
    values: Tensor | None = None
    formula = "softmax(score(q, E k)) (F v)"

    def __post_init__(self) -> None:
        shape = "[projected, keys] or [kv_heads, projected, keys]"
        check_tensor(self.keys, "Linformer's keys", (2, 3), shape)
        if self.values is not None:
            check_tensor(self.values, "Linformer's values", (2, 3), shape)
            if self.values.shape[-2:] != self.keys.shape[-2:]:
                raise BadInput(
                    f"Linformer's keys are {list(self.keys.shape)} and its values {list(self.values.shape)}; the last "
                    "two sizes, [projected, keys], must be the same. Project both to the same number."
                )
        check_count(self.keys.shape[-2], "Linformer's projected size", 1)

    def attend(self, call: Call) -> Tensor:
        if (way := self.way(call)) is not None:
            with on_its_device(call.q), without_autocast(call.q.device):
                return way(call.q, call.k, call.v, self.keys.to(call.k.dtype))
        self.check(call)
        keys, queries = real_rows(self, call, "a projected key is a mixture of all of them, early and late")
        need_no_distance(self, call, "a projected key is a mixture of all places and has none of its own")
        with without_autocast(call.q.device):
            q, k, v = turned(call)
            values = self.keys if self.values is None else self.values
            k, v = project(self.keys, blank(k, keys)), project(values, blank(v, keys))
            found = repeatably(replace(call, q=q, k=k, v=v, position=None, mask=Everything(), plan=ExecutionPlan()))
            return blank(found, queries).to(call.v.dtype)

    def way(self, call: Call) -> Callable[..., Tensor] | None:
        """How our kernels run the call, made once for its kind; None where they do not."""
        if self.values is not None:
            return None
        return call.plan.get((Linformer, self.keys.shape, self.keys.device), lambda: self.make_way(call))

    def make_way(self, call: Call) -> Callable[..., Tensor] | None:
        self.check(call)
        if self.keys.dim() != 2 or not plain(call) or not fits_kernels(call):
            return None
        from ..kernels.linformer.passes import Way

        return Way(call.q, call.k, call.v, len(self.keys), scale_of(call))

    def check(self, call: Call) -> None:
        """Raise `BadInput` when the projections do not fit the call's keys."""
        kv_heads, keys = call.k.shape[1:3]
        for name, value in (("keys", self.keys), ("values", self.values)):
            if value is None:
                continue
            if value.shape[-1] != keys or (value.dim() == 3 and value.shape[0] != kv_heads):
                raise BadInput(
                    f"Linformer's {name} are {list(value.shape)}; with k {list(call.k.shape)} they must be "
                    f"[projected, {keys}] or [{kv_heads}, projected, {keys}]. A projection serves one number of keys: "
                    "pad k and v to it and mask them with Lengths, or cut the projection."
                )
            if value.device != call.q.device:
                raise BadInput(
                    f"q is on {call.q.device} and Linformer's {name} on {value.device}. Move it with .to(...)."
                )


@dataclass(frozen=True, eq=False, repr=False)
class Nystrom(Method):
    """Weights through `landmarks`, the means of as many segments: softmax(q k̃ᵀ) · softmax(q̃ k̃ᵀ)⁺ · softmax(q̃ kᵀ) v.

    q̃ and k̃ are the means of the scaled q and k over the tokens ⌊r·n/landmarks⌋ … of segment r, and ⁺ is the
    pseudo-inverse by `iterations` steps of third order. Scores that are dot products go (`Dot`, `Bilinear`, `Cosine`),
    with `Rotary` or without, and `Lengths`, whose n is each row's own: padding changes nothing. With as many queries as
    keys and lengths of keys alone, both are taken for the same tokens, and queries beyond the length are answered but
    in no landmark. Exact where a row has no more queries or keys than landmarks.

    Nyströmformer (Xiong et al., 2021) without its convolution; the first step of the inverse divides by each matrix's
    own norms, as in the paper, so that one row of the batch does not change another.

    >>> import torch, regard as rg
    >>> q, k, v = torch.linspace(-1, 1, 3 * 100 * 4).view(3, 1, 1, 100, 4)
    >>> rg.Nystrom(landmarks=10).error(q, k, v) < 0.01
    True
    """

    landmarks: int
    iterations: int = 6
    formula = "softmax(q k̃ᵀ) · softmax(q̃ k̃ᵀ)⁺ · softmax(q̃ kᵀ) v"

    def __post_init__(self) -> None:
        check_count(self.landmarks, "Nystrom's landmarks", 1)
        check_count(self.iterations, "Nystrom's iterations", 1)

    def way(self, call: Call) -> Callable[..., Tensor] | None:
        """How our kernels run the call, made once for its kind; None where they do not."""
        return call.plan.get((Nystrom, self.landmarks, self.iterations), lambda: self.make_way(call))

    def make_way(self, call: Call) -> Callable[..., Tensor] | None:
        tokens = call.grid.queries, call.grid.keys
        even = not any(n % self.landmarks for n in tokens) and min(tokens) > self.landmarks
        if not even or call.q.shape[1] != call.k.shape[1] or not plain(call) or not fits_kernels(call):
            return None
        from ..kernels.nystrom.passes import Way

        return Way(call.q, call.k, call.v, self.landmarks, self.iterations, scale_of(call))

    def attend(self, call: Call) -> Tensor:
        if (way := self.way(call)) is not None:
            with on_its_device(call.q), without_autocast(call.q.device):
                return way(call.q, call.k, call.v)
        keys, queries = real_rows(self, call, "a landmark is a mean over its segment, early and late tokens alike")
        need_dots(self, call, "a landmark is a mean of many places and has none of its own")
        if min(call.grid.queries, call.grid.keys) <= self.landmarks:
            return exactly(call)  # every token is its own landmark, and the weights are no larger than the landmarks'
        with without_autocast(call.q.device):
            return blank(self.mix(call, keys, queries), queries).to(call.v.dtype)

    def mix(self, call: Call, keys: Tensor | None, queries: Tensor | None) -> Tensor:
        """The output for rows with the real `keys` and `queries`, `[batch]` each, or None where all are real."""
        p = lower(replace(call, k=blank(call.k, keys), v=blank(call.v, keys)))
        q, k, v = (x.to(product_type(call)) for x in (p.q, p.k, p.v))
        asking = keys if queries is None and q.shape[2] == k.shape[2] else queries
        q_marks = landmarks_of(q, asking, self.landmarks)
        k_marks = per_query_head(landmarks_of(k, keys, self.landmarks), call)
        of_k = None if keys is None else segments(k, keys, self.landmarks)
        used = None if of_k is None else of_k.any(-1).unsqueeze(-2)  # [batch, 1, 1, landmarks]
        scores = p.scale * (q_marks @ k_marks.mT)
        between = scores.softmax(-1) if used is None else softmax(forbidden(scores, used))
        # Few queries over many keys, and many over few: both are exact attentions.
        seen = plainly(q_marks.to(q.dtype), k, v, p.scale, None if keys is None else real(keys, k.shape[2]), call)
        mixed = pseudo_inverse(between, self.iterations) @ seen.to(between.dtype)
        if keys is not None and of_k is not None:  # few keys: k̃ are the keys, and the weights on them the exact ones
            mixed = torch.where(few(keys, self.landmarks), per_query_head(means(of_k, v), call), mixed)
        found = plainly(q, k_marks.to(q.dtype), mixed.to(v.dtype), p.scale, used, call)
        if queries is not None:  # few queries: q̃ are the queries themselves, so `seen` are the exact outputs
            of_q = segments(q, queries, self.landmarks)
            found = torch.where(few(queries, self.landmarks), of_q.mT.to(seen.dtype) @ seen, found)
        return found


@dataclass(frozen=True, eq=False, repr=False)
class Performer(Method):
    """Weights as products of positive random `features`: output(i) = Σ_j φ(q_i)·φ(k_j) v_j / Σ_j φ(q_i)·φ(k_j).

    φ(x) = exp(ω x − ‖x‖²/2) for x = √scale · q and √scale · k, so that φ(q)·φ(k) is exp(scale · q·k) on average. The
    rows of ω `[features, head_dim]` are orthogonal in blocks of head_dim, have lengths like those of normal vectors,
    are drawn from the `seed` and serve all heads. Scores that are dot products go (`Dot`, `Bilinear`, `Cosine`), with
    `Rotary` or without; of the masks `Lengths`, `Causal` and their `&`.

    FAVOR+ (Choromanski et al., 2021). Instead of the paper's small constant in φ, each feature of the keys is divided
    by its largest and the queries' multiplied by it, which changes nothing and keeps the denominators away from zero.

    >>> import torch, regard as rg
    >>> q, k, v = torch.linspace(-1, 1, 3 * 100 * 4).view(3, 1, 1, 100, 4)
    >>> rg.Performer(features=256).error(q, k, v) < 0.1
    True
    """

    features: int
    seed: int = 0
    formula = "φ(q) (φ(k)ᵀ v) / φ(q) (φ(k)ᵀ 1), φ(x) = exp(ω x − ‖x‖²/2)"

    def __post_init__(self) -> None:
        check_count(self.features, "Performer's features", 1)
        check_count(self.seed, "Performer's seed")

    def attend(self, call: Call) -> Tensor:
        if (way := self.way(call)) is not None:
            with on_its_device(call.q), without_autocast(call.q.device):
                return way(call.q, call.k, call.v)
        why = "keys are summed before any query is compared, so they can only be left out for all, or added in order"
        keys, queries = real_rows(self, call, why, Causal)
        need_dots(self, call, "keys are summed before any query is compared, and a sum has no place")
        with without_autocast(call.q.device):
            in_order = any(isinstance(part, Causal) for part in parts_of(call.mask))
            if not in_order and fits_kernels(call):
                p = lower(replace(call, k=blank(call.k, keys), v=blank(call.v, keys)))
                q, k, v = (x.to(product_type(call)) for x in (p.q, p.k, p.v))
                with on_its_device(q):
                    return blank(self.fused(q, k, v, p.scale, keys), queries).to(call.v.dtype)
            q, k, v, scale = dots(call, keys)
            root = math.sqrt(abs(scale))
            asked, held = self.logs(q * math.copysign(root, scale), k * root)
            held = forbid(held.mT, keys).mT
            sums = (sum_in_order if in_order else sum_all)(asked, held, pad(v, (0, 1), value=1.0))
            total = sums[..., -1:]
            found = sums[..., :-1] / torch.where(total > 0, total, 1.0)
            return blank(found, queries).to(call.v.dtype)

    def way(self, call: Call) -> Callable[..., Tensor] | None:
        """How our kernels run the call as it is, made once for its kind; None where they do not."""
        return call.plan.get((Performer, self.features, self.seed), lambda: self.make_way(call))

    def make_way(self, call: Call) -> Callable[..., Tensor] | None:
        if not plain(call) or not fits_kernels(call):
            return None
        return functools.partial(self.fused, scale=scale_of(call))

    def fused(self, q: Tensor, k: Tensor, v: Tensor, scale: float, keys: Tensor | None = None) -> Tensor:
        """The output by kernels that keep no feature of a token, over the real `keys [batch]`, or all."""
        from ..kernels.performer.passes import mix

        directions = kernels_directions(self.features, q.shape[3], self.seed, q.dtype, q.device)
        counts = same_counts(k.shape[0], k.shape[2], k.device) if keys is None else keys.int()
        return mix(q, k, v, directions, self.features, counts, scale)

    def logs(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """log φ(q) + ‖q‖²/2, which divides out, and log φ(k), `[batch, heads, tokens, features]`."""
        directions = orthogonal_directions(q.detach(), self.features, self.seed).mT
        return q @ directions, k @ directions - k.square().sum(-1, keepdim=True) / 2


def exactly(call: Call) -> Tensor:
    """The exact output, by the backend that `auto` takes."""
    from ..backends import choose_backend

    return choose_backend(call, "auto").run(call)


def repeatably(call: Call) -> Tensor:
    """The exact output of many queries over few keys, or of few over many.

    Ours takes few queries, over whose keys torch's kernels do not spread the work; and where gradients are wanted all,
    for torch's cut such sums of backward into pieces and add them up in no fixed order, in float32 without tensor
    cores.
    """
    from ..backends import triton
    from ..backends.backend import reason_against

    parts = [call.q, call.k, call.v, *call.score.tensors().values()]
    graded = torch.is_grad_enabled() and any(x.requires_grad for x in parts)
    ours = (graded or call.q.shape[2] < call.k.shape[2]) and reason_against(triton, call) is None
    return triton.run(call) if ours else exactly(call)


def product_type(call: Call) -> torch.dtype:
    """The type of the operands of large products, whose sums are float32 at least.

    On a GPU bfloat16 stays what it is. float16 does not: sums of keys and their inverses may leave its range.
    """
    half = call.v.dtype == call.q.dtype == torch.bfloat16 and call.q.is_cuda and isinstance(call.score, Dot | Additive)
    return call.v.dtype if half else call.exact


def turned(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    """q and k as `Rotary` leaves them, and v, in the type for products."""
    q, k = call.q, call.k
    if call.position is not None:
        q, k = call.position.transform(q.to(call.exact), k.to(call.exact))
    dtype = product_type(call)
    return q.to(dtype), k.to(dtype), call.v.to(dtype)


def project(projection: Tensor, x: Tensor) -> Tensor:
    """projection `[kv_heads, projected, n]`, or without heads, over x `[batch, kv_heads, n, d]`."""
    projection = projection.to(x.dtype)
    if projection.dim() == 3:
        return torch.einsum("hpn,bhnd->bhpd", projection, x)
    return projection @ x if torch.compiler.is_compiling() else Projected.apply(projection, x)


def plainly(q: Tensor, k: Tensor, v: Tensor, scale: float, allowed: Tensor | None, call: Call) -> Tensor:
    """softmax(scale · q kᵀ) v over the allowed keys, a boolean that broadcasts, or all."""
    call = replace(call, q=q, k=k, v=v, score=Dot(scale=scale), position=None, mask=Everything(), plan=ExecutionPlan())
    if allowed is None:
        return repeatably(call)
    scores = scale * (q.to(call.exact) @ per_query_head(k, call).to(call.exact).mT)
    return softmax(forbidden(scores, allowed)).to(v.dtype) @ per_query_head(v, call)


def forbidden(scores: Tensor, allowed: Tensor | None) -> Tensor:
    """The scores with −∞ where they are not allowed."""
    return scores if allowed is None else scores.masked_fill(~allowed, -torch.inf)


def plain(call: Call) -> bool:
    """Whether the call is dot products of q and k as they are, over all keys, with its type kept in products."""
    bare = call.position is None and isinstance(call.mask, Everything) and not call.dropout
    return bare and isinstance(call.score, Dot) and product_type(call) == call.q.dtype


def scale_of(call: Call) -> float:
    """The factor of a plain call's dot products."""
    return lower(call).scale


def fits_kernels(call: Call) -> bool:
    """Whether the methods' kernels take the call; in a compiled graph a formula is left to the compiler."""
    widest = max(call.q.shape[-1], call.k.shape[-1], call.v.shape[-1])
    dtype = product_type(call)
    known = dtype == torch.float32 or (dtype == torch.bfloat16 and not interpreting())
    copies = call.q.shape[0] * call.q.shape[1]
    known = known and widest <= WIDEST and copies < MOST
    return known and not torch.compiler.is_compiling() and unfit(call.q.device) is None


def dots(call: Call, keys: Tensor | None) -> tuple[Tensor, Tensor, Tensor, float]:
    """(q, k, v, scale) with the score equal to scale · q·k: in the exact type, one head a query head, padding zero."""
    p = lower(replace(call, k=blank(call.k, keys), v=blank(call.v, keys)))
    k, v = (per_query_head(x, call).to(call.exact) for x in (p.k, p.v))
    return p.q.to(call.exact), k, v, p.scale


@torch.library.custom_op("regard::orthogonal_directions", mutates_args=())
def orthogonal_directions(like: Tensor, features: int, seed: int) -> Tensor:
    """Performer's ω, `[features, d]`, in the type and place of `like [..., d]`; the same for a seed everywhere."""
    return draw_directions(features, like.shape[-1], seed).to(like, copy=True)


@orthogonal_directions.register_fake
def _(like: Tensor, features: int, seed: int) -> Tensor:
    return like.new_empty(features, like.shape[-1])


@constant
def kernels_directions(features: int, dim: int, seed: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Performer's ω as its kernels read it."""
    from ..kernels.performer.passes import padded

    return padded(draw_directions(features, dim, seed), dtype).to(device)


@constant
def same_counts(batch: int, tokens: int, device: torch.device) -> Tensor:
    """All tokens of every row."""
    return torch.full((batch,), tokens, dtype=torch.int32, device=device)


@functools.lru_cache(maxsize=64)
def draw_directions(features: int, dim: int, seed: int) -> Tensor:
    """Rows orthogonal in blocks of `dim`, uniform in direction, as long as normal vectors; float64 on the CPU."""
    generator = torch.Generator("cpu").manual_seed(seed)
    draw = functools.partial(torch.randn, generator=generator, dtype=torch.float64, device="cpu")
    basis, triangle = torch.linalg.qr(draw(-(-features // dim), dim, dim))
    basis = basis * triangle.diagonal(dim1=-2, dim2=-1).sign()[:, None]  # the signs make the bases uniform
    return basis.mT.flatten(0, 1)[:features] * draw(features, dim).norm(dim=-1, keepdim=True)


def real_rows(method: Method, call: Call, why: str, *others: type[Mask]) -> tuple[Tensor | None, Tensor | None]:
    """How many keys and queries of each row are real, `[batch]`, or None where all are.

    Raises `Unsupported` for masks that are not an `&` of `Lengths` and `others`, with the reason `why`.
    """
    found = parts_of(call.mask)
    for part in found:
        if not isinstance(part, (Lengths, *others)):
            known = " and ".join(kind.__name__ for kind in (Lengths, *others))
            raise Unsupported(
                f"{type(method).__name__} cannot keep to the mask {part!r:.80}: {why}. It takes {known}; Exact() takes "
                "every mask."
            )
    lengths = [part for part in found if isinstance(part, Lengths)]
    keys, queries = [x.keys for x in lengths], [x.queries for x in lengths if x.queries is not None]
    return shortest(keys, call.grid.keys), shortest(queries, call.grid.queries)


def parts_of(mask: Mask) -> list[Mask]:
    """The masks that `mask` is the `&` of, without `Everything`."""
    if isinstance(mask, And):
        return parts_of(mask.left) + parts_of(mask.right)
    return [] if isinstance(mask, Everything) else [mask]


def shortest(counts: list[Tensor], tokens: int) -> Tensor | None:
    """The least of the counts, within 0 … tokens; None when there are none."""
    return functools.reduce(torch.minimum, counts).long().clamp(0, tokens) if counts else None


def forbid(scores: Tensor, count: Tensor | None) -> Tensor:
    """scores `[batch, heads, rows, keys]` with −∞ beyond the count."""
    return forbidden(scores, None if count is None else real(count, scores.shape[3]))


def need_dots(method: Method, call: Call, why: str) -> None:
    """Raise `Unsupported` unless the call is a dot product without distances and without dropout."""
    name = type(method).__name__
    if isinstance(call.score, Additive):
        raise Unsupported(
            f"{name} approximates the softmax of a dot product, and Additive is none. Use Dot, Bilinear or Cosine; "
            "Linformer and Exact() take Additive."
        )
    if call.dropout:
        raise Unsupported(
            f"{name} never forms the weights, so dropout ({call.dropout}) has nothing to fall on. Drop the output "
            "instead, or use Exact()."
        )
    need_no_distance(method, call, why)


def need_no_distance(method: Method, call: Call, why: str) -> None:
    """Raise `Unsupported` when the position adds something by distance, with the reason `why`."""
    position = call.position
    if position is None or (position.rel_bias(call.q, call.k) is None and position.rel_vectors(call.q, call.k) is None):
        return
    raise Unsupported(
        f"{type(method).__name__} cannot add {type(position).__name__}, which goes by distance: {why}. "
        "Use Rotary, which turns q and k beforehand, or Exact()."
    )
