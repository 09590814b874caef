"""Caps, sinks and biases by pair: what they are elsewhere, what they do to a call, and how wrong ones are refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import regard as rg
from regard.models.config import as_dict, from_dict
from regard.tasks.architecture import Architecture, unused_parts

from .oracle import Case, compare_backends
from .test_errors import assert_refused, tensors

Q, K, V = (torch.randn(2, 4, n, 8, dtype=torch.float64) for n in (5, 7, 7))


def test_a_cap_is_that_of_gemma_2() -> None:
    scores = Q @ K.mT * 0.3
    scores = torch.tanh(scores / 0.5) * 0.5
    weights = scores.masked_fill(torch.ones(5, 7).triu(3) > 0, -torch.inf).softmax(-1)
    torch.testing.assert_close(rg.attend(Q, K, V, score=rg.Dot(0.3, cap=0.5), mask=rg.Causal()), weights @ V)


def test_a_cap_bounds_the_dot_product_and_not_the_bias_by_distance() -> None:
    """A position that is part of the dot product is inside the cap; a number by distance or by pair is added after."""
    q, k = torch.full((1, 1, 3, 1), 100.0), torch.full((1, 1, 3, 1), 100.0)
    shaw, pairs = rg.Shaw(torch.full((1, 1, 1), 50.0)), torch.tensor([0.0, 5.0, 9.0])
    inside = rg.look(q, k, score=rg.Dot(1.0, cap=2.0), position=shaw, weights=True).weights
    torch.testing.assert_close(inside, torch.full((1, 1, 3, 3), 1 / 3))
    outside = rg.look(
        q, k, score=rg.Dot(1.0, cap=2.0), position=rg.Alibi(), bias=rg.PairBias(pairs[None]), weights=True
    )
    i, j = torch.arange(3)[:, None], torch.arange(3)
    torch.testing.assert_close(outside.weights[0, 0], (pairs - (i - j).abs() * 2.0**-8).softmax(-1))


def test_a_sink_is_that_of_gpt_oss() -> None:
    logits = torch.randn(4, dtype=torch.float64, requires_grad=True)
    combined = torch.cat([Q @ K.mT / 8**0.5, logits.view(1, 4, 1, 1).expand(2, 4, 5, 1)], dim=-1)
    expected = combined.softmax(-1)[..., :-1] @ V
    (gradient,) = torch.autograd.grad(expected.square().sum(), logits)
    output = rg.attend(Q, K, V, sink=rg.Sink(logits))
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(torch.autograd.grad(output.square().sum(), logits)[0], gradient)


def test_a_sink_of_zero_is_softmax_plus_one() -> None:
    scores = Q @ K.mT / 8**0.5
    plus_one = scores.exp() / (1 + scores.exp().sum(-1, keepdim=True))
    torch.testing.assert_close(rg.attend(Q, K, V, sink=rg.Sink()), plus_one @ V)
    torch.testing.assert_close(rg.attend(Q, K, V, sink=rg.Sink(-torch.inf)), rg.attend(Q, K, V))


@pytest.mark.parametrize("backend", ["reference", "blockwise", "edges"])
def test_rows_without_keys_give_all_their_weight_to_the_sink(backend: str) -> None:
    mask = rg.Edges(torch.tensor([[0, 1], [0, 2]]))
    logits = torch.full((4,), 3.0, dtype=torch.float64, requires_grad=True)
    output = rg.attend(Q, K, V, mask=mask, sink=rg.Sink(logits), backend=backend)
    assert not output[:, :, [1, 3, 4]].any() and bool(output.isfinite().all())
    view = rg.look(Q, K, mask=mask, sink=rg.Sink(logits))
    assert bool((view.lse[..., 1] == 3.0).all()) and bool((view.sink[..., 1] == 1.0).all())
    output.sum().backward()
    assert bool(logits.grad.isfinite().all())


def test_a_new_sink_or_bias_of_the_same_shape_is_not_the_old_one() -> None:
    """What is remembered of a kind of call does not hold the contents of its parts."""
    for part in ("sink", "bias"):
        make = {"sink": lambda: rg.Sink(torch.randn(4)), "bias": lambda: rg.PairBias(torch.randn(5, 7))}[part]
        q, k, v = (x.float() for x in (Q, K, V))
        for given in (make(), make(), None):
            expected = rg.attend(q, k, v, **{part: given}, backend="reference")
            torch.testing.assert_close(rg.attend(q, k, v, **{part: given}), expected)


def test_plan_says_why_not_sdpa() -> None:
    parts: list[dict[str, Any]] = [
        {"score": rg.Dot(cap=50.0)},
        {"sink": rg.Sink(), "mask": rg.Window(1, 1)},
        {"bias": rg.PairBias(torch.zeros(5, 7, requires_grad=True))},
    ]
    for given, word in zip(parts, ("cap", "sink", "bias"), strict=True):
        plan = rg.plan(Q, K, V, **given)
        assert word in plan.reasons["sdpa"] and "dense comes first" in plan.reasons["reference"], plan.reasons
        assert plan.backend == "dense"  # few pairs on a CPU
        assert str(next(iter(given.values()))) in plan.description
    x = torch.zeros(1, 4, 1024, 8)
    assert rg.plan(x, x, x, sink=rg.Sink()).backend == "sdpa"
    assert rg.plan(x, x, x, sink=rg.Sink(), mask=rg.Window(8, 8)).backend == "blockwise"


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("mask", [None, rg.Causal()], ids=["all pairs", "causal"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_torch_kernels_differentiate_a_sink(dtype: torch.dtype, mask: rg.Mask | None, kv_heads: int) -> None:
    """With the output and log-sum-exp that count the sink, torch's own backward gives its gradients."""
    g = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(2, heads, 37, 8, generator=g).to(dtype).requires_grad_() for heads in (4, kv_heads, kv_heads)
    )
    logits = torch.randn(4, generator=g).requires_grad_()
    results = []
    for backend in ("sdpa", "reference"):
        output = rg.attend(q, k, v, mask=mask, sink=rg.Sink(logits), backend=backend)
        grads = torch.autograd.grad(output.double().sin().sum(), (q, k, v, logits))
        results.append((output, *grads))
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    for x, expected in zip(*results, strict=True):
        torch.testing.assert_close(x, expected, rtol=tolerance, atol=tolerance)


WRONG: dict[str, tuple[Any, list[str]]] = {
    "no number": (lambda: rg.Dot(cap="50"), ["Dot's cap", "'50'", "positive"]),
    "a cap of 0": (lambda: rg.Cosine(cap=0), ["Cosine's cap", "0", "positive"]),
    "logits of three heads": (lambda: call(sink=rg.Sink(torch.zeros(3))), ["Sink's logits", "[3]", "4 heads"]),
    "logits of two dimensions": (lambda: rg.Sink(torch.zeros(1, 4)), ["Sink's logits", "[1, 4]", "[heads]"]),
    "a tensor as sink": (lambda: call(sink=torch.zeros(4)), ["sink", "regard.Sink"]),
    "a bias of one dimension": (lambda: rg.PairBias(torch.zeros(7)), ["PairBias's bias", "[7]"]),
    "a boolean bias": (lambda: rg.PairBias(torch.zeros(5, 7) > 0), ["PairBias's bias", "torch.bool"]),
    "a bias of other keys": (lambda: call(bias=rg.PairBias(torch.zeros(5, 6))), ["[5, 6]", "[2, 4, 5, 7]"]),
    "a bias elsewhere": (lambda: call(bias=rg.PairBias(torch.zeros(5, 7, device="meta"))), ["PairBias", "meta"]),
}


@pytest.mark.parametrize("layout", ["by token", "by feature"])
def test_torch_kernels_take_a_sink_with_any_layout(layout: str) -> None:
    """torch's kernel of a CPU takes each token's numbers to follow one another, and says nothing where they do not."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 2, n, 8, dtype=torch.float64, generator=generator) for n in (5, 7, 7))
    case = Case(q, k, v, rg.Dot(), dtype=torch.float32, layout=layout, sink=rg.Sink(torch.ones(2, dtype=torch.float64)))
    for found in compare_backends(case, ["sdpa", "blockwise"]):
        assert found.agrees, found
    q = torch.randn(2, 2, 5, 3, dtype=torch.float64, generator=generator)
    score = rg.Bilinear(
        torch.randn(2, 3, 8, dtype=torch.float64, generator=generator)
    )  # turns queries to the keys' dim
    bilinear = Case(q, k, v, score, dtype=torch.float32, layout=layout, sink=rg.Sink(-1.5))
    narrow = Case(q, k, v[..., :3].contiguous(), score, dtype=torch.float32, layout=layout, sink=rg.Sink(-1.5))
    for found in [*compare_backends(bilinear, ["sdpa"]), *compare_backends(narrow, ["auto"])]:
        assert found.agrees, found
    x, sink = torch.randn(1, 2, 5, 8, requires_grad=True), rg.Sink(0.5)
    grad = torch.arange(80.0).view(1, 2, 8, 5).mT
    ours, want = (
        torch.autograd.grad(rg.attend(x, x, x, sink=sink, backend=name), x, grad)[0] for name in ("sdpa", "reference")
    )
    torch.testing.assert_close(ours, want, atol=1e-4, rtol=1e-5)


def call(**parts: Any) -> Tensor:
    return rg.attend(**tensors(), **parts)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_parts_are_refused(name: str) -> None:
    work, words = WRONG[name]
    assert_refused(rg.BadInput, words, work)


def test_methods_refuse_them() -> None:
    assert_refused(rg.Unsupported, ["Nystrom", "sink"], lambda: call(sink=rg.Sink(), method=rg.Nystrom(2)))
    assert_refused(rg.Unsupported, ["cap", "Exact"], lambda: call(score=rg.Dot(cap=1.0), method=rg.Performer(4)))


def test_layers_take_them_as_text() -> None:
    layer = rg.nn.MultiHeadAttention(dim=8, heads=2, score="Dot(cap=5.0)", sink="LearnedSink(-1.0)")
    layer(torch.randn(1, 4, 8)).sum().backward()
    assert layer.sink.logits.grad.abs().sum() > 0 and layer.score() == rg.Dot(cap=5.0)
    config = rg.nn.StackConfig(dim=8, layers=1, heads=2, score="Dot(cap=5.0)", sink="Sink()")
    assert from_dict(as_dict(config)) == config and config.sink == rg.Sink()
    without = {name: value for name, value in as_dict(config).items() if name != "sink"}
    assert from_dict(without).sink is None  # files of earlier versions


class Model(nn.Module):
    """An attention with every part, as a user writes it."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        parts: dict[str, Any] = {"sink": rg.Sink(1.0), "bias": rg.PairBias(torch.arange(35.0).view(5, 7) / 7)}
        return rg.attend(q, k, v, score=rg.Dot(cap=2.0), **parts)


def test_watch_and_edit_see_them() -> None:
    q, k, v, model = Q.float(), K.float(), V.float(), Model()
    output = model(q, k, v)
    with rg.watch(model, weights=True) as views:
        torch.testing.assert_close(model(q, k, v), output, rtol=0, atol=0)
    view = next(iter(views.values()))
    torch.testing.assert_close(view.weights @ v, output)
    torch.testing.assert_close(view.weights.sum(-1) + view.sink, torch.ones(2, 4, 5))
    with rg.edit(model, {(0, 1): "silent", (0, 2): lambda weights: weights}), rg.watch(model) as views:
        edited = model(q, k, v)
    assert not edited[:, 1].any()
    torch.testing.assert_close(edited[:, [0, 2, 3]], output[:, [0, 2, 3]])
    assert not next(iter(views.values())).sink[:, 1].any()


def test_they_pass_through_compiled_graphs() -> None:
    logits, pairs = torch.randn(4, requires_grad=True), torch.randn(1, 4, 5, 7, requires_grad=True)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        others = {"sink": rg.Sink(logits), "bias": rg.PairBias(pairs)}
        return rg.attend(q, k, v, score=rg.Dot(cap=2.0), mask=rg.Causal(), **others)

    leaves = [x.float().requires_grad_() for x in (Q, K, V)]
    outputs = [f(*leaves) for f in (attend, torch.compile(attend, backend="aot_eager", fullgraph=True))]
    torch.testing.assert_close(*outputs)
    gradients = [torch.autograd.grad(y.square().sum(), [*leaves, logits, pairs]) for y in outputs]
    for eager, compiled in zip(*gradients, strict=True):
        torch.testing.assert_close(eager, compiled)


def test_they_are_values() -> None:
    assert rg.Dot(cap=2.0) == rg.Dot(cap=2.0) != rg.Dot() and repr(rg.Sink()) == "Sink()"
    assert rg.Sink(torch.zeros(2)) == rg.Sink(torch.zeros(2)) != rg.Sink()
    assert repr(rg.PairBias(torch.zeros(5, 7))) == "PairBias(<float32 [5, 7]>)"
    assert {field.name for field in dataclasses.fields(rg.Parts)} >= {"sink", "bias"}


def test_a_task_takes_them_as_text() -> None:
    parts = Architecture(score="Dot(cap=20.0)", sink="LearnedSink()").parts
    assert parts == rg.Parts(score=rg.Dot(cap=20.0), sink=rg.nn.LearnedSink())
    assert unused_parts(Architecture("lstm", sink="Sink()")) == ["sink=Sink()"]
