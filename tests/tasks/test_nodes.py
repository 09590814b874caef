"""A class for each node of a graph: from a file to predictions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from typer.testing import CliRunner, Result

from regard import BadInput, Unsupported
from regard.cli import app
from regard.models.heads import IGNORED
from regard.nn.graphs.attention import drop_features
from regard.tasks.architecture import MODELS
from regard.tasks.nodes import Nodes, NodesSettings, merge_edges
from regard.tasks.splits import select_split, split_data
from regard.train.trainer import Trainer

NODES, CLASSES = 240, 4


def call(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A graph whose nodes say their class four times in ten, and whose edges join the same class nine times in ten."""
    draw = np.random.default_rng(0)
    y = np.arange(NODES) % CLASSES
    said = np.where(draw.random(NODES) < 0.4, y, draw.integers(0, CLASSES, NODES))
    source = draw.integers(0, NODES, 8 * NODES)
    target = np.where(
        draw.random(8 * NODES) < 0.9,
        (source + CLASSES * draw.integers(1, 60, 8 * NODES)) % NODES,
        draw.integers(0, NODES),
    )
    part = draw.permutation(NODES)
    masks = {f"{name}_mask": np.isin(part, range(*at)) for name, at in SPLITS.items()}
    np.savez(
        tmp_path / "graph.npz", x=np.eye(CLASSES)[said] * 3, y=y, edge_index=np.stack([source, target]), **masks
    )  # fmt: skip
    return tmp_path / "graph.npz"


SPLITS = {"train": (0, 60), "val": (60, 120), "test": (120, NODES)}
CALM = replace(Nodes.ARCHITECTURE, dim=16, heads=4, dropout=0.0, attention_dropout=0.0)


def score(path: Path, model: str, folder: Path, **changes: Any) -> float:
    settings = NodesSettings()
    reading = Nodes.read([path], settings)
    learned, chosen = split_data(reading, None, Nodes, 0)
    task = Nodes.prepare(learned.examples, settings)
    torch.manual_seed(0)
    made = task.config(replace(CALM, model=model, **changes)).build()
    how = replace(Nodes.TRAINING, steps=60, learning_rate=0.02, device="cpu")
    Trainer(task, made, learned.examples, chosen.examples, how, folder, lambda model, scores: None).fit()
    return task.evaluate(made.eval(), select_split(reading, "test").examples).metrics["accuracy"]


def test_edges_tell_what_features_do_not(path: Path, tmp_path: Path) -> None:
    found = {model: score(path, model, tmp_path / model) for model in ("gat", "gatv2", "transformer", "mlp")}
    assert found["mlp"] < 0.65  # 4 in 10 know, and a quarter of the others guess it
    assert min(found["gat"], found["gatv2"], found["transformer"]) > 0.8


@pytest.mark.parametrize("model", [name for name in MODELS if name not in ("gat", "gatv2", "transformer", "mlp")])
def test_models_that_need_an_order_are_refused(model: str) -> None:
    with pytest.raises(Unsupported, match=r"nodes have none\. Take gat, gatv2, transformer"):
        Nodes(NodesSettings(), 3, ["a", "b"]).config(replace(CALM, model=model))


def test_positions_are_refused() -> None:
    with pytest.raises(Unsupported, match="distances"):
        Nodes(NodesSettings(), 3, ["a", "b"]).config(replace(CALM, model="transformer", position="Alibi()"))


def test_labels_of_other_splits_are_never_seen(path: Path) -> None:
    reading = Nodes.read([path], NodesSettings())
    assert [example.split for example in reading.examples] == ["train", "dev", "test"]
    task = Nodes.prepare(reading.examples, NodesSettings())
    for example, (_, (start, end)) in zip(reading.examples, SPLITS.items(), strict=True):
        labels = task.batch([example])["labels"]
        assert int((labels != IGNORED).sum()) == end - start == task.count(task.batch([example]))


def test_several_graphs_are_one_without_edges_between(path: Path) -> None:
    example = Nodes.read([path], NodesSettings()).examples[0]
    task = Nodes.prepare([example], NodesSettings())
    torch.manual_seed(0)
    model = task.config(CALM).build().eval()
    one, two = (model(**{k: v for k, v in task.batch([example] * n).items() if k != "labels"}).logits for n in (1, 2))
    torch.testing.assert_close(two, torch.cat([one, one]))
    assert merge_edges([torch.tensor([[0], [1]])] * 3, [2, 5, 3]).tolist() == [[0, 2, 7], [1, 3, 8]]


@pytest.mark.parametrize("model", ["gat", "gatv2", "mlp"])
def test_sparse_features_are_the_same_features(model: str) -> None:
    torch.manual_seed(0)
    made = Nodes(NodesSettings(residual=True), 30, ["a", "b"]).config(replace(CALM, model=model)).build()
    dense = torch.randn(20, 30) * (torch.rand(20, 30) < 0.1)
    edges, wanted = torch.randint(0, 20, (2, 50)), None
    for nodes in (dense, dense.to_sparse()):
        made.zero_grad()
        logits = made(nodes=nodes, edges=edges).logits
        logits.square().sum().backward()
        found = [logits.detach(), *(p.grad.clone() for p in made.parameters() if p.grad is not None)]
        wanted = wanted or found
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other)


def test_dropout_of_sparse_features_is_dropout() -> None:
    nodes = torch.ones(200, 50).to_sparse()
    values = drop_features(nodes, torch.nn.Dropout(0.6)).to_dense()
    assert set(values.unique().tolist()) == {0.0, 2.5}
    assert 0.38 < float((values > 0).float().mean()) < 0.42


def test_consistency_loss_is_over_all_nodes_in_training(path: Path) -> None:
    """The loss is the labelled nodes' and, weighed against them, a mean over all; without dropout p and q are one."""
    calm, settings = replace(CALM, dim=8), NodesSettings(consistency=2.0)
    examples = Nodes.read([path], settings).examples
    task, plain = (Nodes.prepare(examples, one) for one in (settings, NodesSettings()))
    model = task.config(calm).build()
    batch = task.batch([example for example in examples if example.split == "train"])
    logits = model(nodes=batch["nodes"], edges=batch["edges"]).logits
    p = logits.softmax(-1)
    aim = p**2 / (p**2).sum(-1, keepdim=True)
    wanted = plain.loss(model, batch) + 2.0 * 60 * ((p - aim) ** 2).sum(-1).mean()
    torch.testing.assert_close(task.loss(model, batch), wanted)
    torch.testing.assert_close(task.loss(model.eval(), batch), plain.loss(model, batch))


def test_features_are_normalized(path: Path) -> None:
    example = Nodes.read([path], NodesSettings()).examples[0]
    example.graph.nodes[5] = 0.0
    for normalized, wanted in ((True, 1.0), (False, 3.0)):
        settings = NodesSettings(normalized=normalized)
        nodes = Nodes.prepare([example], settings).batch([example])["nodes"]
        assert nodes[4].sum() == wanted and nodes[5].sum() == 0


def test_signed_features_are_divided_by_their_length(path: Path) -> None:
    example = Nodes.read([path], NodesSettings()).examples[0]
    plain = Nodes.prepare([example], NodesSettings())
    assert plain.normalization == "sum" and "none is negative" in plain.choices([example])[0]
    example.graph.nodes[4] -= 2.0
    task = Nodes.prepare([example], NodesSettings())
    nodes = task.batch([example])["nodes"].to_dense()
    torch.testing.assert_close(nodes[4].norm(), torch.tensor(1.0))
    assert "some are negative" in task.choices([example])[0]
    again = Nodes.from_dict(task.as_dict(), task.settings)
    assert torch.equal(again.batch([example])["nodes"].to_dense(), nodes)


def test_decay_in_the_gradient_is_adam_with_l2(path: Path, tmp_path: Path) -> None:
    """The same three steps with torch's own Adam: matrices with L2, vectors without."""
    reading = Nodes.read([path], NodesSettings())
    task = Nodes.prepare(reading.examples, NodesSettings())
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(task.config(CALM).build())
    ours, theirs = models
    how = replace(Nodes.TRAINING, steps=3, weight_decay=0.1, device="cpu")
    Trainer(task, ours, reading.examples[:1], reading.examples[1:2], how, tmp_path, lambda model, scores: None).fit()
    groups = [[p for p in theirs.parameters() if (p.dim() > 1) == matrix] for matrix in (True, False)]
    optimizer = torch.optim.Adam(
        [{"params": groups[0], "weight_decay": 0.1}, {"params": groups[1]}], lr=5e-3, betas=(0.9, 0.999)
    )
    batch = task.batch(reading.examples[:1])
    for _ in range(3):
        optimizer.zero_grad()
        (task.loss(theirs, batch) / task.count(batch)).backward()
        optimizer.step()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(("choose", "higher"), [("accuracy", True), ("loss", False)])
def test_scores_are_over_the_split(path: Path, choose: Any, higher: bool) -> None:
    reading = Nodes.read([path], NodesSettings())
    task = Nodes.prepare(reading.examples, NodesSettings(metric=choose))
    model = task.config(CALM).build().eval()
    scores = task.evaluate(model, reading.examples[1:2])
    batch = task.batch(reading.examples[1:2])
    logits, known = model(nodes=batch["nodes"], edges=batch["edges"]).logits, batch["labels"] != IGNORED
    right = (logits.argmax(-1) == batch["labels"])[known].float().mean()
    assert scores.metrics["accuracy"] == pytest.approx(float(right))
    loss = functional.cross_entropy(logits[known], batch["labels"][known])
    assert scores.metrics["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert (scores.main, scores.higher) == (choose, higher)


def test_splits_are_drawn_where_none_are_defined(tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", x=np.ones((50, 2)), y=np.arange(50) % 2, edge_index=np.array([[0], [1]]))
    reading = Nodes.read([tmp_path / "g.npz"], NodesSettings())
    assert [int(one.graph.masks[one.split].sum()) for one in reading.examples] == [30, 10, 10]
    assert any("60, 20 and 20 %" in note for note in reading.notes)


def test_commands(path: Path, tmp_path: Path) -> None:
    facts = json.loads(call("check", path, "--task", "nodes", "--json").stdout)
    assert facts["nodes"] == NODES and facts["parts"] == {"train": 60, "dev": 60, "test": 120}
    small = ("--steps", "40", "--device", "cpu", "--set", "dim=16", "--set", "dropout=0", "--set", "learning_rate=0.02")
    done = call("train", "nodes", "--train", path, "--out", tmp_path / "run", *small)
    assert done.exit_code == 0, done.stderr
    scores = json.loads(call("evaluate", tmp_path / "run", "--data", path, "--json").stdout)
    assert sum(one["count"] for one in scores["per class"].values()) == 120
    assert scores["metrics"]["accuracy"] > 0.75
    said = json.loads(call("predict", tmp_path / "run", path, "--json").stdout)
    right = sum(one["label"] == str(n % CLASSES) for n, one in enumerate(said))
    assert len(said) == NODES and right > 0.75 * NODES


def test_bad_graphs_are_refused(path: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="a graph is one NPZ"):
        Nodes.read([path, path], NodesSettings())
    np.savez(tmp_path / "one.npz", x=np.ones((9, 2)), y=np.zeros(9, int), edge_index=np.array([[0], [1]]))
    with pytest.raises(BadInput, match="1 class"):
        Nodes.prepare(Nodes.read([tmp_path / "one.npz"], NodesSettings()).examples, NodesSettings())
    task = Nodes(NodesSettings(), 7, ["0", "1"])
    with pytest.raises(BadInput, match="4 features; this model reads 7"):
        task.batch(Nodes.read([path], NodesSettings()).examples[:1])


@pytest.mark.parametrize(
    "masks, message", [({"train": 1}, "none of dev"), ({"train": 0, "val": 1}, "no node of the split train")]
)
def test_missing_splits_are_reported(tmp_path, masks, message):
    arrays = {f"{name}_mask": np.full(4, bool(value)) for name, value in masks.items()}
    np.savez(tmp_path / "a.npz", x=np.ones((4, 2), "float32"), y=[0, 1, 0, 1], edge_index=[[0, 1], [1, 2]], **arrays)
    with pytest.raises(BadInput, match=message):
        Nodes.read([tmp_path / "a.npz"], NodesSettings())
