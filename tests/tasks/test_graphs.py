"""A label or a number for each graph: from files to predictions."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from regard import BadInput, Missing, Unsupported
from regard.cli import app
from regard.data import LabelledGraph
from regard.models.checkpoint.checkpoint import load
from regard.tasks.architecture import MODELS
from regard.tasks.graphs import Graphs, GraphsSettings
from regard.tasks.losses.choose_target import infer_target, target_from_dict
from regard.tasks.losses.targets import BinaryTarget, ClassTarget, LabelsTarget, RegressionTarget, roc_auc
from regard.train.run import open_run

SMALL = replace(Graphs.ARCHITECTURE, dim=16, layers=2, heads=2, dropout=0.0)


def call(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def rings(count: int, seed: int, number: bool = False) -> list[LabelledGraph]:
    """Rings with a red and a blue node: whether they touch, which no list of the nodes tells; or how far apart."""
    draw, found = Random(seed), []
    for n in range(count):
        size = draw.randint(5, 9)
        apart = draw.choice([1, 1, 2, size // 2])
        nodes = torch.zeros(size, 3)
        nodes[:, 0] = 1.0
        nodes[0], nodes[apart] = torch.tensor([0.0, 1, 0]), torch.tensor([0.0, 0, 1])
        ahead = torch.stack([torch.arange(size), torch.arange(1, size + 1) % size])
        label = (3.0 + 10 * (apart == 1)) if number else str(int(apart == 1))
        found.append(LabelledGraph(nodes, torch.cat([ahead, ahead.flip(0)], 1), label, name=str(n)))
    return found


def train_model(task: Graphs, examples: list[LabelledGraph], model: str, steps: int = 80) -> Any:
    torch.manual_seed(0)
    made = task.config(replace(SMALL, model=model)).build()
    optimizer = torch.optim.Adam(made.parameters(), 5e-3)
    for step in range(steps):
        batch = task.batch(Random(step).sample(examples, 40))
        optimizer.zero_grad()
        (task.loss(made, batch) / task.count(batch)).backward()
        optimizer.step()
    return made.eval()


def test_edges_tell_what_nodes_do_not() -> None:
    examples, dev = rings(300, 0), rings(200, 1)
    task = Graphs.prepare(examples, GraphsSettings())
    found = {m: task.evaluate(train_model(task, examples, m), dev) for m in ("gat", "gatv2", "transformer", "mlp")}
    assert found["mlp"].metrics["ROC-AUC"] < 0.7  # the size alone
    assert min(found[m].metrics["ROC-AUC"] for m in ("gat", "gatv2", "transformer")) > 0.95


def test_numbers_are_learned_in_their_own_units() -> None:
    examples, dev = rings(300, 0, number=True), rings(100, 1, number=True)
    task = Graphs.prepare(examples, GraphsSettings(pool="attention"))
    scores = task.evaluate(train_model(task, examples, "gatv2"), dev)
    assert (scores.main, scores.higher) == ("RMSE", False)
    assert scores.metrics["RMSE"] < 2.5  # 5 for whoever says the mean


@pytest.mark.parametrize("model", [name for name in MODELS if name not in ("gat", "gatv2", "transformer", "mlp")])
def test_models_that_need_an_order_are_refused(model: str) -> None:
    task = Graphs.prepare(rings(20, 0), GraphsSettings())
    with pytest.raises(Unsupported, match="Take gat"):
        task.config(replace(SMALL, model=model))


@pytest.mark.parametrize("model", ["gat", "gatv2", "transformer", "mlp"])
@pytest.mark.parametrize("pool", ["mean", "attention"])
def test_a_batch_is_its_graphs_alone(model: str, pool: Any) -> None:
    examples = rings(7, 0)
    task = Graphs.prepare(examples, GraphsSettings(pool=pool))
    torch.manual_seed(0)
    made = task.config(replace(SMALL, model=model)).build().eval()
    alone = torch.cat([task.logits(made, [example]) for example in examples])
    torch.testing.assert_close(task.logits(made, examples), alone)


def test_sizes_that_do_not_count_the_nodes_are_refused() -> None:
    examples = rings(2, 0)
    task = Graphs.prepare(rings(20, 0), GraphsSettings())
    made, batch = task.config(SMALL).build(), task.batch(examples)
    for sizes in (None, torch.tensor([1, 2])):
        with pytest.raises(BadInput, match="Give each graph's number of nodes"):
            made(nodes=batch["nodes"], edges=batch["edges"], sizes=sizes)


def test_edges_with_features_are_nodes_too() -> None:
    edges = torch.tensor([[0, 1], [1, 0]])
    one = LabelledGraph(torch.eye(2), edges, "a", edge_features=torch.tensor([[5.0], [6.0]]))
    task = Graphs(GraphsSettings(), BinaryTarget(["a", "b"]), features=2, edge_features=1)
    batch = task.batch([one, one])
    assert batch["nodes"][:4].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 5], [0, 0, 6]]
    assert batch["edges"][:, :6].tolist() == [[0, 1, 0, 1, 2, 3], [1, 0, 2, 3, 1, 0]]
    assert batch["edges"][:, 6:].tolist() == [[4, 5, 4, 5, 6, 7], [5, 4, 6, 7, 5, 4]]
    assert batch["sizes"].tolist() == [4, 4]
    plain = Graphs.prepare([one, replace(one, label="b")], GraphsSettings(edge_nodes=False))
    assert plain.batch([one])["nodes"].shape == (2, 2)


def test_what_is_asked_is_found_from_the_labels() -> None:
    assert isinstance(infer_target([1.0, 2.5]), RegressionTarget)
    assert isinstance(infer_target(["0", "1", "1"]), BinaryTarget)
    assert isinstance(infer_target(["a", "b", "c"]), ClassTarget)
    several = infer_target([("0", "1"), (None, "1")])
    assert isinstance(several, BinaryTarget) and several.outputs == 2
    for target in (infer_target([1.0, 2.5]), infer_target(["a", "b"]), infer_target(["a", "b", "c"]), several):
        again = target_from_dict(json.loads(json.dumps(target.as_dict())))
        assert type(again) is type(target) and again.as_dict() == target.as_dict()
    with pytest.raises(BadInput, match="wanted numbers, two classes"):
        infer_target(["a", "a"])


def test_labels_never_learned_are_counted() -> None:
    known, others = Graphs.prepare(rings(12, 0), GraphsSettings()), rings(3, 1)
    assert not known.unknown_labels(others)
    assert known.unknown_labels([replace(one, label="blue") for one in others] + others) == {"blue": 3}
    assert not known.unknown_labels([replace(others[0], label=None)]), "no label is no label"
    assert not Graphs.prepare(rings(12, 0, number=True), GraphsSettings()).unknown_labels(others)


def test_missing_labels_count_nothing() -> None:
    target = infer_target([("0", "1"), ("1", "0")])
    labels = target.tensor([("1", None), (None, None), ("0", "1")])
    assert int(target.label_mask(labels).sum()) == 3
    logits = torch.tensor([[0.3, 1.0], [5.0, -5.0], [0.2, 0.7]], requires_grad=True)
    loss = target.loss(logits, labels, 0.0)
    wanted = (
        -math.log(1 / (1 + math.exp(-0.3)))
        - math.log(1 - 1 / (1 + math.exp(-0.2)))
        - math.log(1 / (1 + math.exp(-0.7)))
    )
    assert loss.item() == pytest.approx(wanted)
    loss.backward()
    assert logits.grad is not None and logits.grad[1].abs().sum() == 0 and logits.grad[0, 1] == 0
    numbers = infer_target([(1.0, 5.0), (3.0, None)])
    assert isinstance(numbers, RegressionTarget) and numbers.mean == [2.0, 5.0]
    found = numbers.scores(torch.zeros(2, 2), [(1.0, None), (5.0, None)]).metrics
    assert found["RMSE"] == pytest.approx(math.sqrt((1 + 9) / 2))


@pytest.mark.parametrize("seed", range(3))
def test_area_is_the_share_of_pairs_in_order(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, 9, (53,), generator=draw).float()
    labels = torch.randint(0, 2, (53,), generator=draw).float()
    labels[:5] = torch.nan
    pairs = [(a > b) + 0.5 * (a == b) for a in scores[labels == 1].tolist() for b in scores[labels == 0].tolist()]
    assert roc_auc(scores, labels) == pytest.approx(sum(pairs) / len(pairs))
    assert roc_auc(scores, torch.ones(53)) is None


def test_saved_and_loaded_says_the_same(tmp_path: Path) -> None:
    examples = rings(20, 0)
    task = Graphs.prepare(examples, GraphsSettings(pool="attention"))
    for model in ("gatv2", "transformer", "mlp"):
        made = task.config(replace(SMALL, model=model)).build().eval()
        made.save(tmp_path / model)
        torch.testing.assert_close(task.logits(load(tmp_path / model), examples), task.logits(made, examples))


def write(folder: Path, name: str, examples: list[LabelledGraph]) -> None:
    """The graphs as a table of edges; labels of all of them in one table beside it."""
    edges = [f"{name}{one.name},{s},{t}" for one in examples for s, t in one.edges.T.tolist()]
    (folder / f"{name}.csv").write_text("\n".join(["graph,source,target", *edges]))


def test_commands_with_tables(tmp_path: Path) -> None:
    parts = {"train": rings(200, 0), "dev": rings(60, 1)}
    for name, examples in parts.items():
        write(tmp_path, name, examples)
        labels = [f"{name}{one.name},{one.label}" for one in examples]
        (tmp_path / f"{name}-labels.csv").write_text("\n".join(["graph,label", *labels]))
        nodes = [
            f"{name}{one.name},{n},{','.join(map(str, row))}"
            for one in examples
            for n, row in enumerate(one.nodes.tolist())
        ]
        (tmp_path / f"{name}-nodes.csv").write_text("\n".join(["graph,node,a,b,c", *nodes]))
    tables = ("--set", f"labels={tmp_path / 'train-labels.csv'}", "--set", f"nodes={tmp_path / 'train-nodes.csv'}")
    facts = json.loads(call("check", tmp_path / "train.csv", "--task", "graphs", *tables, "--json").stdout)
    assert facts["graphs"] == 200 and facts["asked"] == "yes or no"
    settings = "dim=16", "layers=2", "heads=2", "learning_rate=0.01", "warmup=5"
    small = [word for setting in settings for word in ("--set", setting)]
    out = ("--out", tmp_path / "run", "--epochs", "20", "--device", "cpu")
    done = call("train", "graphs", "--train", tmp_path / "train.csv", *tables, *out, *small)
    assert done.exit_code == 0, done.stderr
    scores = json.loads((tmp_path / "run" / "scores.json").read_text())
    assert scores["metrics"]["ROC-AUC"] > 0.9
    said = json.loads(call("predict", tmp_path / "run", tmp_path / "train.csv", "--json").stdout)
    right = [row["label"] == one.label for row, one in zip(said, parts["train"], strict=True)]
    task, model, _ = open_run(tmp_path / "run")
    scores = task.evaluate(model, task.read([tmp_path / "train.csv"], task.settings).examples)
    assert said[7]["input"] == "train7" and sum(right) / 200 == pytest.approx(scores.metrics["accuracy"])
    done = call("predict", tmp_path / "run", "CCO")
    assert done.exit_code == 1 and "tables of edges" in done.stderr


def test_sets_of_labels(tmp_path: Path) -> None:
    examples = rings(60, 0)
    write(tmp_path, "train", examples)
    names = [["touch"] * (one.label == "1") + ["big"] * (len(one.nodes) > 7) for one in examples]
    rows = [f"train{one.name},{'|'.join(own)}" for one, own in zip(examples, names, strict=True)]
    (tmp_path / "labels.csv").write_text("\n".join(["graph,label", *rows]))
    reading = Graphs.read([tmp_path / "train.csv"], GraphsSettings(labels=str(tmp_path / "labels.csv"))).strict()
    assert any("holds sets of labels" in note for note in reading.notes)
    assert any("none of the labels" in note for note in reading.notes)
    task = Graphs.prepare(reading.examples, GraphsSettings(labels=""))
    assert isinstance(task.target, LabelsTarget) and task.labels == ["big", "touch"]
    made = task.config(SMALL).build().eval()
    assert task.validate(made, reading.examples).main == "micro F1" and len(task.tuned_values()["thresholds"]) == 2
    whole = Graphs.prepare(reading.examples, GraphsSettings(target="class"))
    assert isinstance(whole.target, ClassTarget) and whole.target.outputs == 4


def test_commands_with_smiles(tmp_path: Path) -> None:
    lines = [f"C{'C' * n}{end},{len(end)}.5" for n in range(12) for end in ("O", "N", "=O")]
    (tmp_path / "m.csv").write_text("\n".join(["smiles,value", *lines, "C(,1.5"]))
    try:
        import rdkit  # noqa: F401
    except ImportError:
        with pytest.raises(Missing, match="rdkit"):
            Graphs.read([tmp_path / "m.csv"], GraphsSettings())
        pytest.skip("rdkit is not installed: SMILES cannot be read")
    small = ("--epochs", "3", "--device", "cpu", "--set", "dim=16")
    done = call("train", "graphs", "--train", tmp_path / "m.csv", "--out", tmp_path / "run", *small)
    assert done.exit_code == 0, done.stderr
    assert "1 malformed line was skipped" in done.stderr
    said = json.loads(call("predict", tmp_path / "run", "CCCO", "--json").stdout)
    assert said[0]["input"] == "CCCO" and math.isfinite(said[0]["value"])


def test_several_columns_of_labels(tmp_path: Path) -> None:
    pytest.importorskip("rdkit", reason="SMILES cannot be read")
    (tmp_path / "m.csv").write_text("smiles,one,two\nCCO,0,1\nCCN,,0\nCC,1,\nC,,\n")
    reading = Graphs.read([tmp_path / "m.csv"], GraphsSettings(label="one, two"))
    assert [example.label for example in reading.examples] == [("0", "1"), (None, "0"), ("1", None)]
    assert [(fault.line, fault.message) for fault in reading.faults] == [(5, "has no label in any of the 2 columns.")]
    task = Graphs.prepare(reading.examples, GraphsSettings())
    assert task.count(task.batch(reading.examples)) == 4


def test_a_scaffold_is_a_molecules_alone(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text("graph,source,target\n1,0,1\n")
    (tmp_path / "labels.csv").write_text("graph,label\n1,yes\n")
    settings = GraphsSettings(labels=str(tmp_path / "labels.csv"), split="scaffold")
    with pytest.raises(BadInput, match="which molecules have"):
        Graphs.read([tmp_path / "edges.csv"], settings)
