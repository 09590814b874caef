"""Methods: exact attention, or an approximation that says how far off it is.

The approximations never form the weights of queries × keys, so their time and memory are linear in the tokens. What
they can do follows from how they do it: a projected key, a landmark or a sum of features has no place of its own, so
distances and most masks have nothing to hold on to, and are refused with that reason.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from .call import Call, lower, need_shapes
from .errors import BadInput, Unsupported
from .mask import And, Mask
from .masks import Causal, Everything, Lengths
from .part import Part, need_count, need_tensor
from .positions import Position
from .reference import per_query_head, softmax
from .scores import Additive, Score

CHUNK = 128  # tokens compared pair by pair; the sums between chunks then take no more than the features themselves


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
        from .attend import attend

        need_shapes(q, k, v)
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
        need_tensor(self.keys, "Linformer's keys", (2, 3), shape)
        if self.values is not None:
            need_tensor(self.values, "Linformer's values", (2, 3), shape)
            if self.values.shape[-2:] != self.keys.shape[-2:]:
                raise BadInput(
                    f"Linformer's keys are {list(self.keys.shape)} and its values {list(self.values.shape)}; the last "
                    "two sizes, [projected, keys], must be the same. Project both to the same number."
                )
        need_count(self.keys.shape[-2], "Linformer's projected size", 1)

    def attend(self, call: Call) -> Tensor:
        self.check(call)
        keys, queries = real_rows(self, call, "a projected key is a mixture of all of them, early and late")
        need_no_distance(self, call, "a projected key is a mixture of all places and has none of its own")
        with torch.autocast(call.q.device.type, enabled=False):
            q, k, v = (x.to(call.exact) for x in (call.q, call.k, call.v))
            q, k = (q, k) if call.position is None else call.position.turn(q, k)
            values = self.keys if self.values is None else self.values
            k, v = self.keys.to(k.dtype) @ blank(k, keys), values.to(v.dtype) @ blank(v, keys)
            found = exactly(replace(call, q=q, k=k, v=v, position=None, mask=Everything()))
            return blank(found, queries).to(call.v.dtype)

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
        need_count(self.landmarks, "Nystrom's landmarks", 1)
        need_count(self.iterations, "Nystrom's iterations", 1)

    def attend(self, call: Call) -> Tensor:
        keys, queries = real_rows(self, call, "a landmark is a mean over its segment, early and late tokens alike")
        need_dots(self, call, "a landmark is a mean of many places and has none of its own")
        if min(call.grid.queries, call.grid.keys) <= self.landmarks:
            return exactly(call)  # every token is its own landmark, and the weights are no larger than the landmarks'
        with torch.autocast(call.q.device.type, enabled=False):
            return blank(self.mix(call, keys, queries), queries).to(call.v.dtype)

    def mix(self, call: Call, keys: Tensor | None, queries: Tensor | None) -> Tensor:
        """The output for rows with the real `keys` and `queries`, `[batch]` each, or None where all are real."""
        q, k, v, scale = dots(call, keys)
        q = q * scale
        asking = keys if queries is None and q.shape[2] == k.shape[2] else queries
        of_q, of_k = segments(q, asking, self.landmarks), segments(k, keys, self.landmarks)
        q_marks = means(of_q, blank(q, asking)) if asking is not None else segment_means(q, of_q)
        k_marks = means(of_k, k) if keys is not None else segment_means(k, of_k)
        unused = ~of_k.any(-1).unsqueeze(-2)  # [batch, 1, 1, landmarks]
        near = softmax((q @ k_marks.mT).masked_fill(unused, -torch.inf))
        between = softmax((q_marks @ k_marks.mT).masked_fill(unused, -torch.inf))
        seen = softmax(forbid(q_marks @ k.mT, keys)) @ v  # [batch, heads, landmarks, value dim]
        mixed = pseudo_inverse(between, self.iterations) @ seen
        if keys is not None:  # few keys: k̃ are the keys themselves, so `near` are the exact weights
            mixed = torch.where(few(keys, self.landmarks), means(of_k, v), mixed)
        found = near @ mixed
        if queries is not None:  # few queries: q̃ are the queries themselves, so `seen` are the exact outputs
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
        need_count(self.features, "Performer's features", 1)
        need_count(self.seed, "Performer's seed")

    def attend(self, call: Call) -> Tensor:
        why = "keys are summed before any query is compared, so they can only be left out for all, or added in order"
        keys, queries = real_rows(self, call, why, Causal)
        need_dots(self, call, "keys are summed before any query is compared, and a sum has no place")
        with torch.autocast(call.q.device.type, enabled=False):
            q, k, v, scale = dots(call, keys)
            root = math.sqrt(abs(scale))
            asked, held = self.logs(q * math.copysign(root, scale), k * root)
            held = forbid(held.mT, keys).mT
            in_order = any(isinstance(part, Causal) for part in parts_of(call.mask))
            sums = (sum_in_order if in_order else sum_all)(asked, held, pad(v, (0, 1), value=1.0))
            total = sums[..., -1:]
            found = sums[..., :-1] / torch.where(total > 0, total, 1.0)
            return blank(found, queries).to(call.v.dtype)

    def logs(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """log φ(q) + ‖q‖²/2, which divides out, and log φ(k), `[batch, heads, tokens, features]`."""
        directions = orthogonal_directions(q.detach(), self.features, self.seed).mT
        return q @ directions, k @ directions - k.square().sum(-1, keepdim=True) / 2


def exactly(call: Call) -> Tensor:
    """The exact output, by the backend that `auto` takes."""
    from .attend import BACKENDS, choose

    return BACKENDS[choose(call, "auto")].run(call)


def dots(call: Call, keys: Tensor | None) -> tuple[Tensor, Tensor, Tensor, float]:
    """(q, k, v, scale) with the score equal to scale · q·k: in the exact type, one head a query head, padding zero."""
    p = lower(replace(call, k=blank(call.k, keys), v=blank(call.v, keys)))
    k, v = (per_query_head(x, call).to(call.exact) for x in (p.k, p.v))
    return p.q.to(call.exact), k, v, p.scale


def segments(x: Tensor, count: Tensor | None, landmarks: int) -> Tensor:
    """Whether token t of x is in segment r of its row, boolean `[batch or 1, 1, landmarks, tokens]`."""
    tokens = x.shape[2]
    count = torch.full((1,), tokens, device=x.device) if count is None else count
    edges = count[:, None, None] * torch.arange(landmarks + 1, device=x.device)[:, None] // landmarks
    t = torch.arange(tokens, device=x.device)
    return ((t >= edges[:, :-1]) & (t < edges[:, 1:]))[:, None]


def segment_means(x: Tensor, parts: Tensor) -> Tensor:
    """`means` where all tokens are real; segments of one size are read once instead of multiplied."""
    landmarks = parts.shape[-2]
    if torch.compiler.is_compiling() or x.shape[2] % landmarks:  # a compiled graph serves every length
        return means(parts, x)
    return x.unflatten(2, (landmarks, -1)).mean(3)


def means(parts: Tensor, x: Tensor) -> Tensor:
    """The mean of x over each of its segments, zero for empty ones, `[batch, heads, landmarks, d]`."""
    return (parts.to(x.dtype) / parts.sum(-1, keepdim=True).clamp(min=1)) @ x


def few(count: Tensor, landmarks: int) -> Tensor:
    """Whether each row has a landmark for every token, `[batch, 1, 1, 1]`."""
    return (count <= landmarks)[:, None, None, None]


def pseudo_inverse(a: Tensor, iterations: int) -> Tensor:
    """≈ a⁺, by Z ← ¼ Z (13 − aZ (15 − aZ (7 − aZ))) from Z = aᵀ / (‖a‖₁ ‖a‖∞); a's rows sum to one, so ‖a‖∞ = 1."""
    eye = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    z = a.mT / a.sum(-2).amax(-1).clamp(min=1.0)[..., None, None]  # below 1 only for a row of the batch without keys
    for _ in range(iterations):
        az = a @ z
        z = 0.25 * z @ (13 * eye - az @ (15 * eye - az @ (7 * eye - az)))
    return z


def sum_all(asked: Tensor, held: Tensor, v: Tensor) -> Tensor:
    """Σ_j φ(q_i)·φ(k_j) v_j up to a factor a query, from the logarithms of φ, `[batch, heads, queries, value dim]`."""
    level = held.detach().amax(-2, keepdim=True)
    return shares(asked + level)[0] @ ((held - finite(level)).exp().mT @ v)


def sum_in_order(asked: Tensor, held: Tensor, v: Tensor) -> Tensor:
    """`sum_all` over j ≤ i alone, the last query beside the last key.

    Tokens are cut into chunks: within a chunk pairs are compared, and what came before it is one matrix of features ×
    value dim.
    """
    queries, tokens = asked.shape[2], max(asked.shape[2], held.shape[2])
    asked, held, v = chunked(asked, queries), chunked(held, tokens, -torch.inf), chunked(v, tokens)
    last = slice(-asked.shape[2], None)
    before, level = sums_before(held, v)
    share, far = shares(asked + level[:, :, last])
    inside, near = sum_inside(asked, held[:, :, last], v[:, :, last])
    top = finite(torch.maximum(far, near))
    found = (share @ before[:, :, last]) * (far - top).exp() + inside * (near - top).exp()
    return found.flatten(2, 3)[:, :, -queries:]


def sums_before(held: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """(sums, level): e^level · sums is Σ φ(k_j) v_j over the chunks before each, with nothing of later ones in either.

    sums `[batch, heads, chunks, features, value dim]`, level `[batch, heads, chunks, 1, features]`.
    """
    level = held.detach().amax(-2, keepdim=True).cummax(2).values
    sums = (held - finite(level)).exp().mT @ v
    # In float64 even chunks whose levels are e^700 apart stand in one sum.
    fade = (finite(level) - finite(level[:, :, -1:])).mT.double().clamp(-700.0, 0.0).exp()
    sums = ((sums.double() * fade).cumsum(2) / fade).to(sums.dtype)
    later = (0, 0, 0, 0, 1, 0)
    return pad(sums[:, :, :-1], later), pad(level[:, :, :-1], later, value=-torch.inf)


def sum_inside(asked: Tensor, held: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """(sums, top): e^top · sums is Σ φ(q_i)·φ(k_j) v_j over j ≤ i of the same chunk, at a level of each query's own.

    sums `[batch, heads, chunks, CHUNK, value dim]`, top `[batch, heads, chunks, CHUNK, 1]`.
    """
    each = held.detach().amax(-1, keepdim=True)
    so_far = each.cummax(-2).values
    share, top = shares(asked)
    pairs = share @ (held - finite(each)).exp().mT
    fade = (each.mT - finite(so_far)).clamp(max=0.0).exp().tril()
    return (pairs * fade) @ v, top + so_far


def shares(logs: Tensor) -> tuple[Tensor, Tensor]:
    """(e^(logs − top), top): features of which each query's largest is 1."""
    top = logs.detach().amax(-1, keepdim=True)  # it divides out, and so would its gradient
    return (logs - finite(top)).exp(), top


def finite(level: Tensor) -> Tensor:
    """The level, and 0 where there is no key and it is −∞."""
    return level.masked_fill(level == -torch.inf, 0.0)


def chunked(x: Tensor, tokens: int, value: float = 0.0) -> Tensor:
    """x `[batch, heads, n, d]` as the last of `tokens` in `[batch, heads, chunks, CHUNK, d]`; `value` before it."""
    missing = -(-tokens // CHUNK) * CHUNK - x.shape[2]
    return pad(x, (0, 0, missing, 0), value=value).unflatten(2, (-1, CHUNK))


@torch.library.custom_op("regard::orthogonal_directions", mutates_args=())
def orthogonal_directions(like: Tensor, features: int, seed: int) -> Tensor:
    """Performer's ω, `[features, d]`, in the type and place of `like [..., d]`; the same for a seed everywhere."""
    return draw_directions(features, like.shape[-1], seed).to(like, copy=True)


@orthogonal_directions.register_fake
def _(like: Tensor, features: int, seed: int) -> Tensor:
    return like.new_empty(features, like.shape[-1])


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


def real(count: Tensor, tokens: int) -> Tensor:
    """Whether each token is real, `[batch, 1, 1, tokens]`."""
    return torch.arange(tokens, device=count.device) < count[:, None, None, None]


def blank(x: Tensor, count: Tensor | None) -> Tensor:
    """x `[batch, heads, tokens, d]` with zeros beyond the count."""
    return x if count is None else x.masked_fill(~real(count, x.shape[2]).mT, 0.0)


def forbid(scores: Tensor, count: Tensor | None) -> Tensor:
    """scores `[batch, heads, rows, keys]` with −∞ beyond the count."""
    return scores if count is None else scores.masked_fill(~real(count, scores.shape[3]), -torch.inf)


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
    if position is None or (position.numbers(call.q, call.k) is None and position.vectors(call.q, call.k) is None):
        return
    raise Unsupported(
        f"{type(method).__name__} cannot add {type(position).__name__}, which goes by distance: {why}. "
        "Use Rotary, which turns q and k beforehand, or Exact()."
    )
