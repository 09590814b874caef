"""GAT and GATv2 equal torch_geometric's, weights copied."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional

from regard import BadInput, Unsupported
from regard.models.checkpoint.checkpoint import load
from regard.models.families.gat import gat, gatv2

from ..checkpoint_equality import assert_close, random_weights

NODES, FEATURES, CLASSES = 23, 11, 5


def graph(seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Nodes, and edges that are all different, without loops; node 7 is alone."""
    generator = torch.Generator().manual_seed(seed)
    some = torch.rand(NODES, NODES, generator=generator) < 0.2
    some.fill_diagonal_(False)
    some[7], some[:, 7] = False, False
    return torch.randn(NODES, FEATURES, generator=generator), some.nonzero().t()


def theirs(version: int, heads: int, dim: int, out_heads: int, layers: int):
    """The network as a user of torch_geometric writes it."""
    nn = pytest.importorskip("torch_geometric.nn")
    kind = nn.GATConv if version == 1 else nn.GATv2Conv
    sizes = [FEATURES, *[dim] * (layers - 1)]
    hidden = [kind(size, dim // heads, heads) for size in sizes[:-1]]
    return torch.nn.ModuleList([*hidden, kind(sizes[-1], CLASSES, out_heads, concat=False)])


def copy_parameters(
    ours: torch.nn.Module, layers: torch.nn.ModuleList
) -> list[tuple[torch.nn.Parameter, torch.nn.Parameter]]:
    """Pairs of parameters, ours and theirs, after theirs were written into ours."""
    pairs = []
    for a, b in zip(ours.layers, layers, strict=True):
        if a.version == 1:
            pairs += [(a.value.weight, b.lin.weight), (a.source, b.att_src), (a.target, b.att_dst), (a.bias, b.bias)]
        else:
            pairs += [(a.key.weight, b.lin_l.weight), (a.key.bias, b.lin_l.bias), (a.bias, b.bias)]
            pairs += [(a.query.weight, b.lin_r.weight), (a.query.bias, b.lin_r.bias), (a.weight, b.att)]
    with torch.no_grad():
        for a, b in pairs:
            a.copy_(b.view_as(a))
    assert len(pairs) == len(list(ours.parameters()))
    return pairs


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("heads, dim, out_heads, layers", [(3, 21, 1, 2), (1, 7, 4, 2), (2, 10, 2, 3), (1, 4, 3, 1)])
def test_same_as_torch_geometric(version: int, heads: int, dim: int, out_heads: int, layers: int) -> None:
    other = random_weights(theirs(version, heads, dim, out_heads, layers))
    settings = {"features": FEATURES, "classes": CLASSES, "dim": dim, "heads": heads, "out_heads": out_heads}
    ours = (gat if version == 1 else gatv2)(**settings, layers=layers).build().eval()
    pairs = copy_parameters(ours, other)
    nodes, edges = graph()
    labels = torch.arange(NODES) % CLASSES
    labels[3:9] = -100
    out, x = ours(nodes=nodes, edges=edges, labels=labels), nodes
    for layer in other[:-1]:
        x = functional.elu(layer(x, edges))
    assert_close(out.hidden, x, "hidden")
    logits = other[-1](x, edges)
    assert_close(out.logits, logits, "logits")
    loss = functional.cross_entropy(logits, labels)
    torch.testing.assert_close(out.loss, loss, rtol=1e-5, atol=1e-5)
    out.loss.backward()
    loss.backward()
    for a, b in pairs:
        assert_close(a.grad, b.grad.view_as(a), "gradient")


def test_published_sizes() -> None:
    """Cora: 1433 · 64 + 2 · 64 + 64, then 64 · 7 + 2 · 7 + 7; GATv2 has two matrices with biases and one vector."""
    with torch.device("meta"):
        assert sum(p.numel() for p in gat().build().parameters()) == 91_904 + 469 == 92_373
        first, second = 2 * (1433 * 64 + 64) + 64 + 64, 2 * (64 * 7 + 7) + 7 + 7
        assert sum(p.numel() for p in gatv2().build().parameters()) == first + second == 184_604


def test_dropout_acts_in_training_only() -> None:
    torch.manual_seed(0)
    nodes, edges = graph()
    model = gat(features=FEATURES, classes=CLASSES, dim=8, heads=2, dropout=0.5).build()
    assert not torch.equal(model(nodes=nodes, edges=edges).logits, model(nodes=nodes, edges=edges).logits)
    model.eval()
    assert torch.equal(model(nodes=nodes, edges=edges).logits, model(nodes=nodes, edges=edges).logits)


def test_learns_what_only_neighbours_know() -> None:
    """A node's class is written on the node before it alone; nodes that tell are not labelled."""
    torch.manual_seed(0)
    classes = torch.randint(0, 4, (20,)).repeat(2)
    edges = torch.stack([torch.arange(20), torch.arange(20, 40)])
    nodes = functional.one_hot(classes, 4).float()
    nodes[20:] = 0
    model = gatv2(features=4, classes=4, dim=8, heads=2, dropout=0.0).build()
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    places = torch.arange(40)
    labels = torch.where((places >= 20) & (places < 32), classes, -100)
    for _ in range(60):
        optimizer.zero_grad()
        model(nodes=nodes, edges=edges, labels=labels).loss.backward()
        optimizer.step()
    assert (model(nodes=nodes, edges=edges).logits.argmax(1) == classes)[32:].all()


@pytest.mark.parametrize("preset", [gat, gatv2])
def test_saved_and_loaded(tmp_path: Path, preset) -> None:
    nodes, edges = graph()
    settings = {"features": FEATURES, "classes": CLASSES, "dim": 9, "heads": 3, "residual": True}
    ours = random_weights(preset(**settings).build())
    ours.save(tmp_path)
    again = load(tmp_path)
    assert again.config == ours.config
    assert torch.equal(again(nodes=nodes, edges=edges).logits, ours(nodes=nodes, edges=edges).logits)


def test_wrong_calls(tmp_path: Path) -> None:
    nodes, edges = graph()
    model = gat(features=FEATURES, classes=CLASSES, dim=4, heads=2).build()
    with pytest.raises(BadInput, match=r"\[nodes, 11\]"):
        model(nodes=nodes[:, :3], edges=edges)
    with pytest.raises(BadInput, match=r"\[2, edges\]"):
        model(nodes=nodes, edges=edges.t())
    with pytest.raises(BadInput, match=r"labels has shape \[3\]"):
        model(nodes=nodes, edges=edges, labels=torch.zeros(3, dtype=torch.long))
    with pytest.raises(BadInput, match="one at least"):
        gat(layers=0).build()
    with pytest.raises(Unsupported, match="no counterpart of GAT models"):
        model.save(tmp_path, format="huggingface")


def test_compiles_whole() -> None:
    nodes, edges = graph()
    model = random_weights(gat(features=FEATURES, classes=CLASSES, dim=4, heads=2).build())
    whole = torch.compile(model, fullgraph=True, backend="eager")
    assert_close(whole(nodes=nodes, edges=edges).logits, model(nodes=nodes, edges=edges).logits, "logits", 1e-5)
