"""The oracle: a backend's output and gradients beside those of the reference in float64.

With truth = reference in float64 on the inputs as the type rounds them, and own = reference in the type itself:

    |backend − truth| ≤ 2 · |own − truth| + floor
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import regard as rg
from regard.attention.backends import reference
from regard.attention.call import Call, make_call
from regard.errors import RegardError

# What no backend can avoid, however it is written: one rounding of the result to its type, half an ulp of the largest
# number; sums taken in another order in the type that sums are computed in, a few ulps of the numbers added, which
# may cancel (see `cancellation_sizes`); and, in a kernel that stores no weights, two more roundings before the gradient
# of values: of a score that is computed again, and of the log-sum-exp that it is compared with (see
# `weight_gradient_size`).
ULPS = 8
SIGN_DRAWS = 8
OF_VALUES = ("gradient of v", "gradient of edges.values")


@dataclass(frozen=True)
class Case:
    """One call, its tensors in float64; `dtype` is what q, k, v are rounded to, `carried` what parts' tensors are."""

    q: Tensor
    k: Tensor
    v: Tensor
    score: rg.Score
    position: rg.Position | None = None
    mask: rg.Mask | None = None
    dropout: float = 0.0
    dtype: torch.dtype = torch.float64
    carried: torch.dtype | None = None
    layout: str = "plain"
    seed: int = 0
    sink: rg.Sink | None = None
    bias: rg.PairBias | None = None
    places: rg.Places | None = None
    edges: rg.EdgeFeatures | None = None

    def __str__(self) -> str:
        sizes = " ".join(f"{name}{list(x.shape)}" for name, x in (("q", self.q), ("k", self.k), ("v", self.v)))
        parts = " · ".join(str(part) for part in (*self.parts().values(), self.mask) if part is not None)
        kind = f"{self.dtype} (parts {self.carried}) {self.layout}"
        parts += "" if self.places is None else " at places"
        return f"{parts} on {sizes} {kind}, dropout {self.dropout}, seed {self.seed}"

    def call(self) -> Call:
        q, k, v = (x.to(self.dtype) for x in (self.q, self.k, self.v))
        return make_call(q, k, v, **self.parts(), mask=self.mask, dropout=self.dropout, places=self.places)  # type: ignore[arg-type]

    def parts(self) -> dict[str, Any]:
        parts = {"score": self.score, "position": self.position, "sink": self.sink, "bias": self.bias}
        parts["edges"] = self.edges
        return {name: part for name, part in parts.items() if part is not None}


@dataclass(frozen=True)
class Comparison:
    """How far off one tensor of a backend is, and how far it may be."""

    backend: str
    name: str
    error: float
    limit: float
    fault: str = ""

    def __str__(self) -> str:
        return self.fault or f"{self.name} is off by {self.error:.3g}, more than {self.limit:.3g}"

    @property
    def agrees(self) -> bool:
        return not self.fault and self.error <= self.limit


def compare_backends(case: Case, backends: Sequence[str], device: str = "cpu") -> list[Comparison]:
    """Each backend beside the oracle, in its output and in every gradient."""
    rounded = round_case(case)
    truth = results(rounded, "reference", torch.float64, torch.float64)
    own, sizes = reference_errors(case, truth), cancellation_sizes(rounded)
    comparisons = []
    for backend in backends:
        with poison_memory():
            actual = results(rounded, backend, case.dtype, case.carried or case.dtype, device)
        comparisons += compare_results(backend, actual, truth, own, sizes)
    return comparisons


def reference_errors(case: Case, truth: dict[str, Tensor]) -> dict[str, float]:
    """How far off the reference itself is in the case's type, by name.

    float64 has no truth above it: there the reference errs what it errs in float32, in proportion to the types' ulps.
    """
    if case.dtype == torch.float64:
        single = replace(case, dtype=torch.float32)
        truth = results(round_case(single), "reference", torch.float64, torch.float64)
        ratio = torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps
        return {name: ratio * off for name, off in reference_errors(single, truth).items()}
    own = results(round_case(case), "reference", case.dtype, case.carried or case.dtype)
    return {name: error(own[name], want) for name, want in truth.items()}


def cancellation_sizes(case: Case) -> dict[str, float]:
    """How large the numbers are that cancel in each gradient.

    The gradient of a row's scores is p · (d_output·v − δ). Here the difference is replaced by what either side is made
    of, Σ |d_output| |v|, with a random sign a row, and goes on to every tensor as the true one does. Random signs
    cancel by chance in a sum over few rows, so the largest of several draws counts; none exceeds the sum of the sizes.
    """
    leaves, parts = make_leaves(case, torch.float64, torch.float64)
    q, k, v = (leaves[name] for name in "qkv")
    call = make_call(q, k, v, **parts, mask=case.mask, places=case.places)
    score = reference.scores(call)
    flow = random_gradient(torch.empty(*score.shape[:3], v.shape[3]), torch.float64, case.seed).abs()
    values = reference.per_query_head(v, call)
    if call.edges is None:
        terms = flow @ values.abs().mT
    else:
        terms = torch.einsum(
            "bhid,bhijd->bhij", flow, reference.for_every_pair(values, "values", call.edges, call).abs()
        )
    terms = terms.amax(-1, keepdim=True) / max(1.0 - case.dropout, 0.1)
    weights = reference.softmax(score, call.sink)
    finite = score.masked_fill(score == -torch.inf, 0.0)
    generator, sizes = torch.Generator().manual_seed(case.seed), dict.fromkeys(leaves, 0.0)
    for _ in range(SIGN_DRAWS):
        signed = terms * (torch.randint(2, terms.shape, generator=generator) * 2 - 1)
        total = (finite * (weights * signed).detach()).sum()
        if call.sink is not None:
            taken = (1.0 - weights.sum(-1, keepdim=True)) * signed
            total = total + (call.sink.head_logits(q)[:, None, None] * taken.detach()).sum()
        found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True, retain_graph=True)
        sizes = {
            name: max(sizes[name], 0.0 if g is None else largest(g)) for name, g in zip(leaves, found, strict=True)
        }
    gradients = {f"gradient of {name}": size for name, size in sizes.items()}
    return gradients | {"recomputed weights": weight_gradient_size(score.detach(), weights.detach(), flow, case)}


def weight_gradient_size(score: Tensor, weights: Tensor, flow: Tensor, case: Case) -> float:
    """max over j of Σ_i p(i, j) · |d_output_i| · max |score(i, ·)|.

    The backward pass of a fused kernel computes p again as exp(score − lse). Score and lse are rounded to half an ulp
    of the row's largest score, which is an absolute error of both and so a relative one of p: together they change
    the gradient of v by up to an ulp of this number. The reference has no such error, since it stores p.
    """
    heights = score.masked_fill(score == -torch.inf, 0.0).abs().amax(-1, keepdim=True) if score.numel() else score
    weights = weights * heights / max(1.0 - case.dropout, 0.1)
    return largest((weights.mT @ flow).unflatten(1, (case.v.shape[1], -1)).sum(2)) if score.numel() else 0.0


def compare_results(
    backend: str, actual: dict[str, Tensor], truth: dict[str, Tensor], own: dict[str, float], sizes: dict[str, float]
) -> list[Comparison]:
    """The rule for each tensor by name; `own` is what the reference errs, `sizes` what cancels or is rounded."""
    ulp = torch.finfo(torch.promote_types(actual["output"].dtype, torch.float32)).eps
    scale = max(1.0, *(largest(x) for x in truth.values()))
    comparisons = []
    for name, want in truth.items():
        got, fault = actual.get(name), ""
        if got is None:
            fault = f"{name} is missing"
        elif got.shape != want.shape:
            fault = f"{name} is {list(got.shape)}, not {list(want.shape)}"
        elif not bool(got.isfinite().all()):
            fault = f"{name} is not finite"
        if fault or got is None:
            comparisons.append(Comparison(backend, name, float("inf"), 0.0, fault))
            continue
        rounding = torch.finfo(got.dtype).eps / 2 * largest(want)
        limit = 2 * own[name] + rounding + ULPS * ulp * max(scale, sizes.get(name, 0.0))
        limit += ulp * sizes["recomputed weights"] if name in OF_VALUES else 0.0
        comparisons.append(Comparison(backend, name, error(got, want), limit))
    return comparisons


def results(
    case: Case, backend: str, dtype: torch.dtype, carried: torch.dtype, device: str = "cpu"
) -> dict[str, Tensor]:
    """The output and the gradient of every floating tensor that went in, by name, on the CPU.

    Raises `RegardError` where the output has another dtype, or a tensor that went in has no gradient.
    """
    leaves, parts = make_leaves(case, dtype, carried, device)
    generator = torch.Generator().manual_seed(case.seed)
    mask = case.mask if case.mask is None or device == "cpu" else case.mask.to(device)
    options: dict[str, Any] = {"mask": mask, "dropout": case.dropout, "generator": generator, "backend": backend}
    if case.places is not None:
        options["places"] = replace(case.places, **{name: x.to(device) for name, x in case.places.tensors().items()})
    output = rg.attend(leaves["q"], leaves["k"], leaves["v"], **parts, **options)
    if output.dtype != dtype:
        raise RegardError(f"{backend}: {case}: the output is {output.dtype}")
    output.backward(random_gradient(output, dtype, case.seed).to(device))
    absent = [name for name, x in leaves.items() if x.grad is None]
    if absent:
        raise RegardError(f"{backend}: {case}: no gradient of {absent}")
    gradients = {f"gradient of {name}": x.grad.cpu() for name, x in leaves.items() if x.grad is not None}
    return {"output": output.detach().cpu(), **gradients}


def make_leaves(
    case: Case, dtype: torch.dtype, carried: torch.dtype, device: str = "cpu"
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Every floating tensor of the case as a new leaf, by name; and the parts that carry some of them."""
    leaves = {name: leaf(apply_layout(getattr(case, name), case.layout), dtype, device=device) for name in "qkv"}
    parts = {kind: cast(part, carried, device=device) for kind, part in case.parts().items()}
    tensors = {f"{kind}.{name}": x for kind, part in parts.items() for name, x in part.tensors().items()}
    return leaves | {name: x for name, x in tensors.items() if x.is_floating_point()}, parts


def round_case(case: Case) -> Case:
    """The case with every number as its type holds it, in float64."""
    carried = case.carried or case.dtype
    once = lambda x: x.to(case.dtype).double()  # noqa: E731
    parts = {kind: cast(cast(part, carried), torch.float64, grad=False) for kind, part in case.parts().items()}
    return replace(case, q=once(case.q), k=once(case.k), v=once(case.v), **parts)


def cast(part: Any, dtype: torch.dtype, grad: bool = True, device: str = "cpu") -> Any:
    """The part with its tensors as new leaves of a type."""
    return replace(part, **{name: leaf(x, dtype, grad, device) for name, x in part.tensors().items()})


def leaf(x: Tensor, dtype: torch.dtype, grad: bool = True, device: str = "cpu") -> Tensor:
    """x as a new leaf of a type; whole numbers stay as they are."""
    if not x.is_floating_point():
        return x.to(device)
    return x.detach().to(device, dtype, copy=True).requires_grad_(grad)


def apply_layout(x: Tensor, layout: str) -> Tensor:
    """x in memory as it is written, as modules hand it over (heads split from the last axis), or feature by feature."""
    swapped = {"plain": (0, 0), "by token": (1, 2), "by feature": (2, 3)}[layout]
    return x.transpose(*swapped).contiguous().transpose(*swapped)


def random_gradient(output: Tensor, dtype: torch.dtype, seed: int) -> Tensor:
    """What flows back: numbers of size one that every type holds exactly."""
    generator = torch.Generator().manual_seed(seed + 1)
    return (torch.randint(-16, 17, output.shape, generator=generator) / 8).to(dtype)


def largest(x: Tensor) -> float:
    return float(x.double().abs().max()) if x.numel() else 0.0


def error(actual: Tensor, truth: Tensor) -> float:
    return largest(actual.double() - truth)


@contextmanager
def poison_memory() -> Iterator[None]:
    """Memory that an operation leaves unwritten holds NaN."""
    fill = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]
