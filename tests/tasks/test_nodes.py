"""A class for each node of a graph: from a file to predictions."""

from __future__ import annotations

import csv
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


def without_features(path: Path, **more: Any) -> Path:
    """The graph of `path` without features, and with more arrays."""
    arrays = {name: value for name, value in np.load(path).items() if name != "x"}
    np.savez(path.with_name("bare.npz"), **arrays, **more)
    return path.with_name("bare.npz")


@pytest.mark.parametrize("structure", ["auto", "learned", "degree", "walk"])
def test_nodes_without_features_have_those_of_the_structure(path: Path, tmp_path: Path, structure: str) -> None:
    """Edges join the same class, which eigenvectors and learned vectors show and degrees do not."""
    bare, out = without_features(path), tmp_path / "run"
    settings = ("--set", f"structure={structure}", "--set", "structure_dim=8", "--set", "dim=32")
    done = call("train", "nodes", "--train", bare, "--out", out, "--steps", "60", *settings, "--json")
    assert done.exit_code == 0, done.stderr
    assert "structure= decides otherwise" in done.stderr
    accuracy = json.loads(done.stdout)["metrics"]["accuracy"]
    assert accuracy > 0.7 if structure == "auto" else accuracy >= 0.15
    assert call("predict", out, bare).exit_code == 0
    if structure == "learned":
        fewer = {name: value[:200] for name, value in np.load(bare).items() if name != "edge_index"}
        np.savez(tmp_path / "other.npz", **fewer, edge_index=np.zeros((2, 3), int))
        assert "learned a vector for each of 240 nodes" in call("predict", out, tmp_path / "other.npz").stderr


def test_numbers_of_edges_are_used(path: Path, tmp_path: Path) -> None:
    """Nodes without a sign of their class; an edge's number says whether it joins the same class."""
    draw = np.random.default_rng(1)
    arrays = dict(np.load(path))
    source, target = draw.integers(0, NODES, (2, 12 * NODES))
    same = (arrays["y"][source] == arrays["y"][target]).astype(np.float32)
    arrays["edge_index"] = np.stack([source, target])
    noisy = np.eye(CLASSES)[np.where(draw.random(NODES) < 0.6, arrays["y"], draw.integers(0, CLASSES, NODES))]
    np.savez(tmp_path / "edges.npz", **{**arrays, "x": noisy}, edge_attr=same)
    scores = {}
    for used in ("true", "false"):
        out = tmp_path / used
        changes = {"edge_features": used, "dim": 16, "dropout": 0.0, "attention_dropout": 0.0, "learning_rate": 0.02}
        words = [
            "--model",
            "gatv2",
            *(word for item in changes.items() for word in ("--set", "=".join(map(str, item)))),
        ]
        done = call(
            "train",
            "nodes",
            "--train",
            tmp_path / "edges.npz",
            "--out",
            out,
            "--steps",
            "80",
            "--model",
            "gatv2",
            *words,
            "--json",
        )
        assert done.exit_code == 0, done.stderr
        scores[used] = json.loads(call("evaluate", out, "--data", tmp_path / "edges.npz", "--json").stdout)["metrics"]
    assert scores["true"]["accuracy"] > scores["false"]["accuracy"] + 0.1
    assert call("predict", tmp_path / "true", tmp_path / "edges.npz").exit_code == 0
    assert "edges have 0 numbers each; this model reads 1" in call("predict", tmp_path / "true", path).stderr


def run_losses(run: Path) -> list[float]:
    events = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [event["loss"] for event in events if event["kind"] == "step"]


def train_calmly(path: Path, out: Path, steps: int, *settings: str) -> list[float]:
    """The losses of a run without dropout."""
    given = ["dropout=0", "attention_dropout=0", "dim=16", "heads=2", *settings]
    words = [word for setting in given for word in ("--set", setting)]
    done = call("train", "nodes", "--train", path, "--out", out, "--steps", str(steps), "--device", "cpu", *words)
    assert done.exit_code == 0, done.output
    return run_losses(out)


def test_all_neighbours_train_like_the_whole_graph(path: Path, tmp_path: Path) -> None:
    whole = train_calmly(path, tmp_path / "whole", 4)
    drawn = train_calmly(
        path, tmp_path / "drawn", 4, "neighbours=-1,-1", "evaluate_neighbours=999,-1", "batch_size=999"
    )
    assert drawn == pytest.approx(whole, rel=1e-5)
    scores = [json.loads((tmp_path / name / "scores.json").read_text())["metrics"] for name in ("whole", "drawn")]
    assert scores[0] == pytest.approx(scores[1], rel=1e-4)
    nodes = [json.loads(call("predict", tmp_path / name, path, "--json").stdout) for name in ("whole", "drawn")]
    assert len(nodes[0]) == NODES
    for one, other in zip(*nodes, strict=True):
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=2e-4)


def test_a_run_with_neighbours_resumes_to_the_same_bits(path: Path, tmp_path: Path) -> None:
    settings = ("neighbours=3,2", "batch_size=16", "save_every=1")
    straight = train_calmly(path, tmp_path / "straight", 9, *settings)
    train_calmly(path, tmp_path / "broken", 5, *settings)  # in the second epoch of four batches
    assert train_calmly(path, tmp_path / "broken", 9, *settings) == straight
    weights = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("straight", "broken")]
    assert weights[0] == weights[1]


@pytest.mark.parametrize(
    ("setting", "words"),
    [("neighbours=3", "Give a number for each layer"), ("neighbours=3,0", "at least 1"), ("neighbours=a", "number")],
)
def test_bad_neighbours(path: Path, tmp_path: Path, setting: str, words: str) -> None:
    done = call("train", "nodes", "--train", path, "--out", tmp_path / "run", "--set", setting)
    assert done.exit_code != 0 and words in " ".join(done.output.split())


def test_names_of_nodes_come_back(tmp_path: Path) -> None:
    """Two groups of people with edges inside their group only."""
    people = [f"{group}-{n}" for group in ("ada", "bob") for n in range(12)]
    edges = [(a, b) for a in people for b in people if a < b and a[0] == b[0]]
    (tmp_path / "edges.csv").write_text("source,target\n" + "".join(f"{a},{b}\n" for a, b in edges))
    (tmp_path / "people.csv").write_text("node,label\n" + "".join(f"{name},{name[:3]}\n" for name in people))
    given = ("--train", tmp_path / "edges.csv", "--set", f"labels={tmp_path / 'people.csv'}", "--device", "cpu")
    done = call("train", "nodes", *given, "--out", tmp_path / "run", "--steps", "3", "--set", "dim=8")
    assert done.exit_code == 0, done.output
    done = call("predict", tmp_path / "run", tmp_path / "edges.csv", "--out", tmp_path / "labels.csv")
    assert done.exit_code == 0, done.output
    rows = list(csv.DictReader((tmp_path / "labels.csv").open()))
    assert sorted(row["node"] for row in rows) == sorted(people) and {row["label"] for row in rows} <= {"ada", "bob"}


def test_a_folder_of_arrays_is_a_graph_for_every_command(path: Path, tmp_path: Path) -> None:
    folder, run = tmp_path / "folder", tmp_path / "run"
    folder.mkdir()
    with np.load(path) as arrays:
        for name in arrays.files:
            np.save(folder / f"{name}.npy", arrays[name])
    assert train_calmly(folder, run, 2) == train_calmly(path, tmp_path / "archive", 2)
    nodes = [json.loads(call("predict", run, data, "--json").stdout) for data in (path, folder)]
    assert nodes[0] == nodes[1] and len(nodes[0]) == NODES
    scores = [call("evaluate", run, "--data", data, "--json").stdout for data in (path, folder)]
    assert "accuracy" in scores[0] and scores[0].replace(str(path), "") == scores[1].replace(str(folder), "")
