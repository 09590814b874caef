"""Features of edges: every backend that takes them beside the formula, outputs, weights and all gradients."""

from __future__ import annotations

import itertools

import pytest
import torch

import regard as rg
from regard.errors import BadInput, Unsupported

QUERIES, KEYS, HEADS, HEAD_DIM, VALUE_DIM = 11, 7, 4, 5, 3


def draw_edges(generator, queries=QUERIES, keys=KEYS):
    """Distinct edges in random order; the last query has none."""
    pairs = torch.cartesian_prod(torch.arange(keys), torch.arange(queries - 1))
    chosen = torch.randperm(len(pairs), generator=generator)[: len(pairs) // 3]
    return pairs[chosen].mT.contiguous()


def draw(generator, batch=2, kv_heads=2, shared=False, dtype=torch.float64):
    """(q, k, v), the graph, and the fields of its features, which broadcast where `shared`."""
    normal = lambda *size: torch.randn(*size, generator=generator, dtype=dtype)  # noqa: E731
    graph = rg.Edges(draw_edges(generator))
    edges = graph.edge_index.shape[1]
    front = (1, 1) if shared else (batch, HEADS)
    tensors = {
        "q": normal(batch, HEADS, QUERIES, HEAD_DIM),
        "k": normal(batch, kv_heads, KEYS, HEAD_DIM),
        "v": normal(batch, kv_heads, KEYS, VALUE_DIM),
        "bias": normal(*front, edges),
        "keys": normal(*front, edges, HEAD_DIM),
        "values": normal(*front, edges, VALUE_DIM),
        "weight": normal(HEADS, HEAD_DIM),
    }
    return tensors, graph


def attend(tensors, graph, fields, score, backend, **options):
    """Output and gradients of every tensor that the call has."""
    leaves = {name: x.clone().requires_grad_() for name, x in tensors.items()}
    scores = {
        "dot": rg.Dot(cap=options.pop("cap", None)),
        "tanh": rg.Additive(leaves["weight"]),
        "leaky_relu": rg.Additive(leaves["weight"], "leaky_relu"),
    }
    edges = rg.EdgeFeatures(**{name: leaves[name] for name in fields})
    generator = torch.Generator().manual_seed(5)
    q, k, v = (leaves[name] for name in "qkv")
    y = rg.attend(
        q, k, v, score=scores[score], mask=graph, edges=edges, backend=backend, generator=generator, **options
    )
    y.backward(torch.cos(torch.arange(y.numel()).reshape(y.shape)).to(y.dtype))
    return {"output": y.detach(), **{name: x.grad for name, x in leaves.items() if x.grad is not None}}


def assert_equal(actual, wanted, **tolerance):
    assert actual.keys() == wanted.keys()
    for name, x in wanted.items():
        torch.testing.assert_close(actual[name], x, **tolerance, msg=lambda text, name=name: f"{name}: {text}")


FIELDS = [names for count in (1, 2, 3) for names in itertools.combinations(("bias", "keys", "values"), count)]


@pytest.mark.parametrize("score", ["dot", "tanh", "leaky_relu"])
@pytest.mark.parametrize("fields", FIELDS, ids="-".join)
def test_edges_equal_the_formula(fields, score, generator):
    tensors, graph = draw(generator, shared=len(fields) == 2)
    wanted = attend(tensors, graph, fields, score, "reference")
    assert set(fields) < wanted.keys()
    actual = attend(tensors, graph, fields, score, "edges")
    assert_equal(actual, wanted, rtol=1e-10, atol=1e-11)
    assert not actual["output"][:, :, -1].any()  # no edge, no output


TABLE = torch.linspace(-1, 1, HEADS * 6 * HEAD_DIM).double().reshape(HEADS, 6, HEAD_DIM)
SHAW = rg.Shaw(TABLE, zero=2)


@pytest.mark.parametrize(
    "options",
    [
        {"cap": 0.7},
        {"dropout": 0.4},
        {"sink": rg.Sink(0.3)},
        {"position": rg.Alibi()},
        {"bias": rg.PairBias(torch.linspace(-1, 1, KEYS).double()[None])},
        {"position": SHAW},
        {"position": SHAW, "places": rg.Places(torch.arange(KEYS) % 3, torch.arange(2 * QUERIES).view(2, -1) % 5)},
        {"position": rg.Alibi(), "places": rg.Places(torch.arange(KEYS) * 9, torch.arange(QUERIES)), "cap": 2.0},
        {"position": rg.Bias(TABLE[..., 0], 1), "places": rg.Places(torch.arange(KEYS), torch.arange(QUERIES) % 4)},
        {"position": rg.Disentangled(TABLE, -TABLE), "places": rg.Places(torch.arange(KEYS), torch.arange(QUERIES))},
    ],
    ids=lambda options: "-".join(options),
)
def test_edges_equal_the_formula_with_other_parts(options, generator):
    tensors, graph = draw(generator)
    results = [attend(tensors, graph, FIELDS[-1], "dot", name, **options) for name in ("edges", "reference")]
    assert_equal(*results, rtol=1e-10, atol=1e-11)


def test_rotary_goes_with_biases_and_values(generator):
    tensors, graph = draw(generator)
    tensors |= {name: torch.cat([tensors[name], tensors[name][..., :1]], -1) for name in "qk"}
    del tensors["weight"]
    tensors["weight"] = torch.ones(HEADS, HEAD_DIM + 1, dtype=torch.float64)
    options = {"fields": ("bias", "values"), "score": "dot", "position": rg.Rotary()}
    results = [attend(tensors, graph, backend=name, **options) for name in ("edges", "reference")]
    assert_equal(*results, rtol=1e-6, atol=1e-6)


def test_look_sees_the_features(generator):
    tensors, graph = draw(generator, kv_heads=HEADS)
    edges = rg.EdgeFeatures(tensors["bias"], tensors["keys"], tensors["values"])
    q, k, v = (tensors[name] for name in "qkv")
    view = rg.look(q, k, v, mask=graph, edges=edges, weights=True, top=2, map=(2, 3))
    wanted = rg.attend(q, k, v, mask=graph, edges=edges, backend="reference")
    source, target = graph.edge_index
    pairs = v[:, :, None].expand(-1, -1, QUERIES, -1, -1).clone()
    pairs[:, :, target, source] += tensors["values"]
    torch.testing.assert_close(torch.einsum("bhij,bhijd->bhid", view.weights, pairs), wanted)
    torch.testing.assert_close(rg.look(q, k, mask=graph, edges=edges).entropy, view.entropy)
    plain = rg.look(q, k, mask=graph).entropy
    assert not torch.allclose(plain, view.entropy)
    torch.testing.assert_close(
        rg.look(q, k, mask=graph, edges=rg.EdgeFeatures(values=tensors["values"])).entropy, plain
    )
    planned = rg.plan(q, k, v, mask=graph, edges=edges)
    assert planned.backend == "edges" and "features of edges" in planned.reasons["blockwise"]


def test_dense_graphs_keep_their_features(generator):
    """`auto` takes tiles for dense graphs, which have no features."""
    tensors, _ = draw(generator)
    graph = rg.Edges(torch.cartesian_prod(torch.arange(KEYS), torch.arange(QUERIES)).mT.contiguous())
    tensors["bias"] = torch.randn(1, HEADS, KEYS * QUERIES, generator=generator, dtype=torch.float64)
    pairs = tensors["bias"].unflatten(2, (KEYS, QUERIES)).mT
    q, k, v = (tensors[name] for name in "qkv")
    y = rg.attend(q, k, v, mask=graph, edges=rg.EdgeFeatures(tensors["bias"]))
    torch.testing.assert_close(y, rg.attend(q, k, v, bias=rg.PairBias(pairs)))
    assert rg.plan(q, k, v, mask=graph, edges=rg.EdgeFeatures(tensors["bias"])).backend == "edges"


@pytest.mark.parametrize("backend", ["edges", "reference"])
def test_what_is_no_neighbour_does_not_matter(backend, generator):
    tensors, graph = draw(generator, kv_heads=HEADS)
    hidden = rg.Edges(graph.edge_index[:, graph.edge_index[0] != 2])
    edges = hidden.edge_index.shape[1]
    tensors |= {name: tensors[name][:, :, :edges] for name in ("bias", "keys", "values")}
    wanted = attend(tensors, hidden, FIELDS[-1], "dot", backend)
    for name in "kv":
        tensors[name][:, :, 2] = torch.nan
    assert_equal(attend(tensors, hidden, FIELDS[-1], "dot", backend), wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_features_may_have_the_type_of_the_nodes(dtype, generator):
    tensors, graph = draw(generator)
    low = {name: x.to(dtype) for name, x in tensors.items()}
    wanted = attend({name: x.double() for name, x in low.items()}, graph, FIELDS[-1], "leaky_relu", "reference")
    actual = attend(low, graph, FIELDS[-1], "leaky_relu", "edges")
    own = attend(low, graph, FIELDS[-1], "leaky_relu", "reference")
    for name, x in wanted.items():
        assert actual[name].dtype == dtype
        error, allowed = ((y.double() - x).abs().max() for y in (actual[name], own[name]))
        assert error <= 2 * allowed + 16 * torch.finfo(dtype).eps, name


def test_compiled_calls_are_the_same(generator):
    tensors, graph = draw(generator, dtype=torch.float32)
    edges = rg.EdgeFeatures(tensors["bias"], tensors["keys"].requires_grad_(), tensors["values"])
    q, k, v = (tensors[name] for name in "qkv")

    def call(q, k, v):
        return rg.attend(q, k, v, mask=graph, edges=edges, backend="edges")

    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    wanted = call(q, k, v)
    y = compiled(q, k, v)
    torch.testing.assert_close(y, wanted)
    (grad,) = torch.autograd.grad(y.square().sum(), tensors["keys"])
    torch.testing.assert_close(grad, torch.autograd.grad(wanted.square().sum(), tensors["keys"])[0])


def test_wrong_features_are_refused():
    x, graph = torch.zeros(1, 2, 3, 4), rg.Edges(torch.tensor([[0, 1], [1, 2]]))
    with pytest.raises(BadInput, match="neither bias nor keys nor values"):
        rg.EdgeFeatures()
    with pytest.raises(BadInput, match=r"bias is \[3\]; it must broadcast to \[1, 2, 2\]"):
        rg.attend(x, x, x, mask=graph, edges=rg.EdgeFeatures(torch.zeros(3)))
    with pytest.raises(BadInput, match=r"keys are \[2, 5\]; it must broadcast to \[1, 2, 2, 4\]"):
        rg.attend(x, x, x, mask=graph, edges=rg.EdgeFeatures(keys=torch.zeros(2, 5)))
    with pytest.raises(BadInput, match=r"alone; the mask is Causal\(\)"):
        rg.attend(x, x, x, mask=rg.Causal(), edges=rg.EdgeFeatures(torch.zeros(2)))
    with pytest.raises(BadInput, match="listed twice"):
        twice = rg.Edges(torch.tensor([[0, 0], [1, 1]]))
        rg.attend(x, x, x, mask=twice, edges=rg.EdgeFeatures(torch.zeros(2)))
    with pytest.raises(BadInput, match="must be a EdgeFeatures"):
        rg.attend(x, x, x, mask=graph, edges=torch.zeros(2))
    for backend in ("blockwise", "sdpa"):
        with pytest.raises(Unsupported, match="features of edges"):
            rg.attend(x, x, x, mask=graph, edges=rg.EdgeFeatures(torch.zeros(2)), backend=backend)
    for option in ({"position": rg.Rotary()}, {"score": rg.Cosine()}):
        with pytest.raises(Unsupported, match="which changes keys"):
            rg.attend(x, x, x, mask=graph, edges=rg.EdgeFeatures(keys=torch.zeros(2, 4)), **option)
    with pytest.raises(Unsupported, match="takes no edges"):
        rg.attend(x, x, x, mask=graph, edges=rg.EdgeFeatures(torch.zeros(2)), method=rg.Performer(8))
