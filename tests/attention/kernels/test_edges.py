"""Kernels along edges beside the formula in float64: output, log-sum-exp and every gradient.

Without a GPU they run in Triton's interpreter; with one, the same cases run on it.
"""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

triton = pytest.importorskip("triton")

import regard as rg  # noqa: E402
from regard.attention.backends import edges  # noqa: E402
from regard.attention.backends.custom_op import define_operator  # noqa: E402
from regard.attention.call import LoweredCall, lower, make_call  # noqa: E402
from regard.attention.kernels.edges import passes  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ULPS = 16
EDGE_FIELDS = {"b": "edge_bias", "k": "edge_keys", "v": "edge_values"}


@dataclass(frozen=True)
class Case:
    """One call on a graph, by its sizes."""

    heads: int = 2
    head_dim: int = 8
    value_dim: int = 8
    queries: int = 13
    keys: int = 13
    edges: int = 60
    batch: int = 1
    kv_heads: int = 0
    score: str = "dot"
    shared: bool = False
    numbers: bool = False
    dropout: float = 0.0
    dtype: torch.dtype = torch.float32
    packed: bool = True
    features: str = ""  # of edges: b bias, k keys, v values; in capitals where each head and batch has its own
    hub: int = 0  # edges into query 1, and as many out of key 2


def edge_index(case: Case, generator: torch.Generator) -> Tensor:
    """Random edges, with an isolated query, an isolated key, and hubs where requested."""
    source = torch.randint(case.keys, (case.edges,), generator=generator)
    target = torch.randint(case.queries, (case.edges,), generator=generator)
    stays = (source != case.keys - 1) & (target != 0 if case.queries > 1 else True)
    many = torch.arange(case.hub)
    source = torch.cat([source[stays], many, torch.full_like(many, 2)])
    target = torch.cat([target[stays], torch.ones_like(many), many + 1])
    return torch.stack([source, target])


def draw(case: Case) -> tuple[dict[str, Tensor], rg.Edges]:
    """The tensors in float64 as the case's type holds them, and the graph."""
    generator = torch.Generator().manual_seed(zlib.crc32(str(case).encode()))
    kv_heads = case.kv_heads or case.heads
    normal = lambda *size: torch.randn(size, generator=generator).to(case.dtype).double()  # noqa: E731
    tensors = {
        "q": normal(case.batch, case.heads, case.queries, case.head_dim),
        "k": normal(case.batch, kv_heads, case.keys, case.head_dim),
        "v": normal(case.batch, kv_heads, case.keys, case.value_dim),
    }
    if case.shared:
        tensors["v"] = tensors["k"]
    if case.score != "dot":
        tensors["weight"] = normal(case.heads, case.head_dim)
    if case.numbers:
        tensors["numbers"] = normal(case.heads, 9)
    index = edge_index(case, generator)
    if case.features:  # an edge with features is listed once
        index = index.unique(dim=1)
    dims = {"b": (), "k": (case.head_dim,), "v": (case.value_dim,)}
    for letter in case.features:
        front = (case.batch, case.heads) if letter.isupper() else (1, 1)
        tensors[EDGE_FIELDS[letter.lower()]] = normal(*front, index.shape[1], *dims[letter.lower()])
    return tensors, rg.Edges(index)


def problem(case: Case, tensors: dict[str, Tensor], mask: rg.Edges) -> LoweredCall:
    score = rg.Additive(tensors["weight"], activation=case.score) if case.score != "dot" else None
    position = rg.Bias(tensors["numbers"], zero=4) if case.numbers else None
    generator = torch.Generator().manual_seed(3)
    fields = {name.removeprefix("edge_"): tensors[name] for name in EDGE_FIELDS.values() if name in tensors}
    parts = {"score": score, "position": position, "edges": rg.EdgeFeatures(**fields) if fields else None}
    q, k, v = (tensors[name] for name in "qkv")
    p = lower(make_call(q, k, v, **parts, mask=mask, dropout=case.dropout, generator=generator))
    return replace(p, needs_grad=(True,) * 13)


def laid_out(case: Case, x: Tensor) -> Tensor:
    """x as a layer hands it over, a node's heads side by side, or a head's nodes."""
    x = x.to(case.dtype).to(DEVICE)
    return x.transpose(1, 2).contiguous().transpose(1, 2) if case.packed and x.dim() == 4 else x.contiguous()


def results(p: LoweredCall, module, grad: Tensor) -> dict[str, Tensor]:
    """Output, log-sum-exp and gradients of what computes forward and backward; those of tied keys and values in one."""
    output, lse = module.forward(p)
    names = ("q", "k", "v", "weight", "numbers", "asking", "table", "pairs", "key_vectors", *EDGE_FIELDS.values())
    actual = dict(zip(names, module.backward(p, grad, output, lse), strict=True))
    if p.tied and actual["v"] is not None:
        actual["k"] = actual["k"] + actual.pop("v")
    gradients = {f"gradient of {name}": x for name, x in actual.items() if x is not None}
    return {"output": output, "lse": lse, **gradients}


def check(case: Case) -> None:
    """Assert that the kernels err at most twice what plain torch errs in the same type, plus a few roundings."""
    tensors, mask = draw(case)
    generator = torch.Generator().manual_seed(1)
    exact = problem(case, tensors, mask)
    grad = torch.randint(-16, 17, (*exact.q.shape[:3], exact.v.shape[3]), generator=generator).double() / 8
    truth = results(exact, edges, grad)
    same = tensors["k"] is tensors["v"]
    own = problem(case, {name: x.to(case.dtype) for name, x in tensors.items()}, mask)
    own_found = results(own, edges, grad.to(case.dtype))
    here = {name: laid_out(case, x) for name, x in tensors.items()}
    if same:
        here["v"] = here["k"]
    p = problem(case, here, rg.Edges(mask.edge_index.to(DEVICE)))
    assert passes.covers(p) is None
    assert passes.same_memory(p.k, p.v) == case.shared
    actual = results(p, passes, laid_out(case, grad))
    compare(case, actual, truth, own_found)


def largest(x: Tensor) -> float:
    """The largest finite size in x; −∞ − −∞ and the like do not count."""
    return float(x.nan_to_num(0.0, 0.0, 0.0).abs().max()) if x.numel() else 0.0


def compare(case: Case, actual: dict[str, Tensor], truth: dict[str, Tensor], own: dict[str, Tensor]) -> None:
    assert actual.keys() == truth.keys()
    scale = max(1.0, *(largest(x) for x in truth.values()))
    for name, want in truth.items():
        got = actual[name].double().cpu()
        assert got.shape == want.shape, f"{case}: {name} is {list(got.shape)}, not {list(want.shape)}"
        assert torch.equal(got.isfinite(), want.isfinite()), f"{case}: {name} is not finite where it should be"
        assert not bool(got.isnan().any()), f"{case}: {name} has NaN"
        off, allowed = largest(got - want), 2 * largest(own[name].double() - want)
        rounding = torch.finfo(actual[name].dtype).eps / 2 * largest(want)
        limit = allowed + rounding + ULPS * torch.finfo(torch.float32).eps * scale
        assert off <= limit, f"{case}: {name} is off by {off:.3g}, more than {limit:.3g}"


PLAIN = Case()
CASES = [
    PLAIN,
    replace(PLAIN, score="leaky_relu"),
    replace(PLAIN, score="tanh", value_dim=5),
    replace(PLAIN, score="leaky_relu", head_dim=1, value_dim=16, heads=8),
    replace(PLAIN, score="leaky_relu", head_dim=16, value_dim=16, heads=4, shared=True),
    replace(PLAIN, score="tanh", head_dim=1, value_dim=3, heads=3, numbers=True),
    replace(PLAIN, head_dim=1, value_dim=1, heads=1),
    replace(PLAIN, head_dim=7, value_dim=19, heads=3, packed=False),
    replace(PLAIN, head_dim=33, value_dim=64, heads=5),
    replace(PLAIN, head_dim=256, value_dim=100, heads=2, queries=5, keys=6, edges=12),
    replace(PLAIN, numbers=True, queries=7, keys=17),
    replace(PLAIN, numbers=True, queries=17, keys=7, score="leaky_relu", dropout=0.4),
    replace(PLAIN, heads=6, kv_heads=2, batch=3, dropout=0.3),
    replace(PLAIN, heads=6, kv_heads=3, batch=2, score="leaky_relu", packed=False),
    replace(PLAIN, heads=4, kv_heads=1, batch=2, score="tanh", shared=True, dropout=0.2),
    replace(PLAIN, dtype=torch.float16, score="leaky_relu", head_dim=1, value_dim=16),
    replace(PLAIN, dtype=torch.float16, head_dim=24, batch=2, numbers=True),
    replace(PLAIN, dtype=torch.float16, score="leaky_relu", shared=True, heads=8, head_dim=16, value_dim=16),
    replace(PLAIN, score="leaky_relu", head_dim=29, value_dim=3, numbers=True, queries=9, keys=11, batch=2),
    replace(PLAIN, score="leaky_relu", head_dim=35, value_dim=35, heads=1, shared=True, queries=9, keys=9),
    replace(PLAIN, queries=1, keys=29, edges=20),
    replace(PLAIN, queries=29, keys=3, edges=0),
    replace(PLAIN, dropout=1.0, edges=30),
    replace(PLAIN, features="B"),
    replace(PLAIN, features="bkv", queries=11, batch=2),
    replace(PLAIN, features="KV", heads=3, head_dim=7, value_dim=5, dropout=0.4),
    replace(PLAIN, features="Kv", heads=6, kv_heads=2, batch=2, shared=True),
    replace(PLAIN, features="K", score="leaky_relu", head_dim=1, value_dim=16, heads=8),
    replace(PLAIN, features="BK", score="leaky_relu", head_dim=1, value_dim=3, heads=2),
    replace(PLAIN, features="K", score="leaky_relu", heads=4, shared=True),
    replace(PLAIN, features="bK", score="leaky_relu", head_dim=35, value_dim=35, heads=1, shared=True, dropout=0.2),
    replace(PLAIN, features="kV", score="tanh", heads=2, value_dim=5, numbers=True),
    replace(PLAIN, features="BKV", dtype=torch.float16, score="leaky_relu", head_dim=16, value_dim=16, shared=True),
]
HUBS = [
    replace(PLAIN, queries=60, keys=60, hub=59),
    replace(PLAIN, queries=60, keys=60, hub=59, score="leaky_relu", head_dim=1, value_dim=16, heads=4, dropout=0.3),
    replace(PLAIN, queries=60, keys=60, hub=59, score="tanh", numbers=True, batch=2, heads=2, kv_heads=1),
    replace(PLAIN, queries=60, keys=60, hub=59, score="leaky_relu", shared=True, dtype=torch.float16),
    replace(PLAIN, queries=60, keys=60, hub=59, features="BKV", score="leaky_relu"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_kernels_agree_with_float64(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("case", HUBS, ids=str)
def test_nodes_with_many_edges_are_cut_and_merged(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "SEGMENT", 16)
    check(case)


def test_the_gradient_of_the_weight_is_summed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "MAX_PROGRAMS", 4)
    check(replace(PLAIN, score="leaky_relu", head_dim=16, value_dim=16, heads=4, shared=True, batch=2))
    check(replace(PLAIN, score="tanh", value_dim=5))


def test_tied_keys_and_values_have_one_gradient() -> None:
    case = replace(PLAIN, score="leaky_relu", head_dim=16, value_dim=16, heads=4, shared=True)
    tensors, mask = draw(case)
    here = {name: laid_out(case, x) for name, x in tensors.items()}
    p = problem(case, here | {"v": here["k"]}, rg.Edges(mask.edge_index.to(DEVICE)))
    output, lse = passes.forward(p)
    _, dk, dv, *_ = passes.backward(p, torch.ones_like(output), output, lse)
    _, apart_k, apart_v, *_ = passes.backward(replace(p, tied=False), torch.ones_like(output), output, lse)
    assert p.tied and dk is not None and dv is None and apart_k is not None and apart_v is not None
    torch.testing.assert_close(dk, apart_k + apart_v)


@pytest.mark.gpu
@pytest.mark.parametrize("case", [*CASES, *HUBS], ids=str)
def test_bfloat16_agrees_with_float64(case: Case) -> None:
    check(replace(case, dtype=torch.bfloat16))


@pytest.mark.gpu
def test_a_node_with_a_million_edges() -> None:
    check(Case(queries=1_000_001, keys=1_000_001, edges=100_000, hub=1_000_000, score="leaky_relu", shared=True))


def test_gradients_flow_through_an_operator() -> None:
    case = replace(PLAIN, score="leaky_relu", head_dim=4, value_dim=4, shared=True)
    tensors, mask = draw(case)
    solve = define_operator("graph_under_test", passes.forward, passes.backward)
    wave = torch.arange(4 * 13 * 2).sin().reshape(1, 2, 13, 4)
    actual = []
    for dtype, run in ((torch.float32, solve), (torch.float64, edges.solve)):
        device = DEVICE if dtype == torch.float32 else "cpu"
        q, x, weight = (tensors[name].to(device, dtype).requires_grad_() for name in ("q", "k", "weight"))
        p = problem(case, {"q": q, "k": x, "v": x, "weight": weight}, rg.Edges(mask.edge_index.to(device)))
        run(p)[0].backward(wave.to(device, dtype))
        actual.append([y.grad.double().cpu() for y in (q, x, weight)])  # type: ignore[union-attr]
    for got, want in zip(*actual, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_the_layout_is_made_once() -> None:
    tensors, mask = draw(PLAIN)
    here = {name: laid_out(PLAIN, x) for name, x in tensors.items()}
    mask = rg.Edges(mask.edge_index.to(DEVICE))
    first, second = (passes.EdgeInputs(problem(PLAIN, here, mask)) for _ in range(2))
    assert first.layout is second.layout


def test_the_output_has_a_nodes_heads_side_by_side() -> None:
    tensors, mask = draw(PLAIN)
    here = {name: laid_out(PLAIN, x) for name, x in tensors.items()}
    output, _ = passes.forward(problem(PLAIN, here, rg.Edges(mask.edge_index.to(DEVICE))))
    assert output.transpose(1, 2).is_contiguous()


def test_the_same_call_gives_the_same_bits() -> None:
    case = replace(PLAIN, score="leaky_relu", dropout=0.3)
    tensors, mask = draw(case)
    here = {name: laid_out(case, x) for name, x in tensors.items()}
    p = problem(case, here, rg.Edges(mask.edge_index.to(DEVICE)))
    grad = torch.ones_like(p.v)
    once, again = (results(p, passes, grad) for _ in range(2))
    assert all(torch.equal(once[name], again[name]) for name in once)


def test_covers_gives_a_reason() -> None:
    tensors, mask = draw(PLAIN)
    assert "float64" in str(passes.covers(problem(PLAIN, tensors, mask)))
    small = {name: x.float() for name, x in tensors.items()}
    p = problem(PLAIN, small, mask)
    assert "graph" in str(passes.covers(replace(p, mask=rg.Causal())))
    wide = {name: torch.zeros(*x.shape[:3], 300) for name, x in small.items()}
    assert "head_dim" in str(passes.covers(problem(PLAIN, wide, mask)))
    vectors = lower(make_call(*small.values(), position=rg.Shaw(torch.zeros(2, 3, 8)), mask=mask))
    assert "vectors" in str(passes.covers(vectors))
