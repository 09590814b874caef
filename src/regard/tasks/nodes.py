"""Node classification: a class for each node of a graph, trained on the labelled nodes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..data.graphs import Graph, draw_masks, read_nodes
from ..data.reading import Reading
from ..errors import BadInput, Unsupported
from ..models.graph_attention import GATConfig
from ..models.graph_encoder import GraphEncoderConfig
from ..models.heads import IGNORED, ClassificationHeadConfig
from ..settings import Settings, Training, setting
from .architecture import GRAPHS, Architecture, stack_of
from .classify import classification_report
from .inputs.cache import TensorCache
from .losses.r_drop import consistency_loss
from .task import Scores, Task

Normalization = Literal["sum", "length", "none"]

SPARSE = 0.1
"""Share of nonzero features below which they are stored as a sparse tensor."""


@dataclass(frozen=True)
class NodesSettings(Settings):
    """Settings of the task `nodes`, which reads one graph."""

    features: str | None = setting(None, "Table of the nodes' features, beside a table of edges.", file=True)
    labels: str | None = setting(None, "Table of the nodes' labels, beside a table of edges.", file=True)
    label: str | None = setting(None, "Column or array of the labels.")
    undirected: bool = setting(False, "Add the reverse of every edge.")
    normalized: bool | None = setting(
        None,
        "Divide each node's features by their sum. By default features that are never negative are, and those that "
        "can be negative (vectors, embeddings) are divided by their length.",
        former_default=True,
    )
    out_heads: int = setting(1, "Heads of a GAT's last layer.", ge=1)
    residual: bool = setting(False, "Residual connections between a GAT's layers.")
    metric: Literal["accuracy", "loss"] = setting(
        "loss", "Score on the validation nodes that selects the best weights.", former="choose"
    )
    consistency: float = setting(
        0.0, "Weight of a consistency loss over all nodes (GRAND); 0 is off.", ge=0, former="agreement"
    )


@dataclass(frozen=True, eq=False)
class GraphSplit:
    """The nodes of a graph that belong to a split. The model gets all nodes, but only the labels of these."""

    graph: Graph
    split: str


class Nodes(Task[NodesSettings]):
    """A class for each node: a step uses the whole graph; accuracy over the nodes of a split."""

    name = "nodes"
    Settings = NodesSettings
    ARCHITECTURE = Architecture("gat", 64, 2, 8, dropout=0.6, attention_dropout=0.6, activation="elu")
    TRAINING = Training(
        epochs=None,
        steps=1000,
        learning_rate=5e-3,
        warmup=0,
        schedule="constant",
        betas=(0.9, 0.999),
        weight_decay=5e-4,
        decay="gradient",
        max_grad_norm=0.0,
        patience=20,
        evaluate_every=5,
        save_every=500,
    )

    def __init__(
        self, settings: NodesSettings, features: int, labels: list[str], normalization: Normalization = "sum"
    ) -> None:
        """`normalization` is used where the setting `normalized` leaves it to the data."""
        self.settings, self.features = settings, features
        self.normalization: Normalization = normalization
        if settings.normalized is not None:
            self.normalization = "sum" if settings.normalized else "none"
        self._labels = labels
        self.number = {label: n for n, label in enumerate(labels)}
        self.nodes = TensorCache(self.node_features)

    @property
    def labels(self) -> list[str]:
        return self._labels

    @classmethod
    def read(cls, paths: Sequence[Path], settings: NodesSettings) -> Reading[GraphSplit]:
        """The splits of a graph; random ones if the files define none."""
        if len(paths) != 1:
            raise BadInput(f"{len(paths)} files were given; a graph is one NPZ, or a table of edges with features=.")
        reading = read_nodes(
            paths[0],
            features=settings.features,
            labels=settings.labels,
            label=settings.label,
            undirected=settings.undirected,
        )
        notes, examples = list(reading.notes), []
        for graph in reading.examples:
            check_splits(graph, reading.files)
            if not graph.masks:
                notes.append("the files define no splits: 60, 20 and 20 % are drawn at random")
                graph = draw_masks(graph)
            examples += [GraphSplit(graph, split) for split, mask in graph.masks.items() if bool(mask.any())]
        return Reading(tuple(examples), reading.faults, reading.files, tuple(notes))

    @classmethod
    def prepare(cls, examples: Sequence[GraphSplit], settings: NodesSettings) -> Nodes:
        """The task for this graph: its features and classes."""
        graph = examples[0].graph
        if len(graph.classes) < 2:
            raise BadInput(f"The nodes have {len(graph.classes)} class: {list(graph.classes)}. Give at least two.")
        normalization = "length" if bool((graph.nodes < 0).any()) else "sum"
        return cls(settings, graph.nodes.shape[1], list(graph.classes), normalization)

    def choices(self, examples: Sequence[GraphSplit]) -> list[str]:
        reasons = {"sum": "the sum of each node's features (none is negative)", "length": "the length of each node's"}
        if self.settings.normalized is not None or self.normalization == "none":
            return []
        what = reasons[self.normalization] + (" vector (some are negative)" if self.normalization == "length" else "")
        return [f"Features are divided by {what}; normalized=true or false decides otherwise."]

    def as_dict(self) -> dict[str, Any]:
        chosen = {"normalization": self.normalization} if self.settings.normalized is None else {}
        return {"features": self.features, "labels": self.labels, **chosen}

    @classmethod
    def from_dict(cls, data: dict[str, Any], settings: NodesSettings, tokenizer: Any = None) -> Nodes:
        return cls(settings, data["features"], data["labels"], data.get("normalization", "sum"))

    def config(self, a: Architecture) -> Any:
        if a.model in GRAPHS:
            return GATConfig(
                self.features,
                len(self.labels),
                a.dim,
                a.layers,
                a.heads,
                self.settings.out_heads,
                version=GRAPHS[a.model],
                activation=a.activation,
                dropout=a.dropout,
                attention_dropout=a.attention_dropout,
                residual=self.settings.residual,
            )
        head = ClassificationHeadConfig(len(self.labels), a.dim, per_token=True, dropout=a.dropout)
        return GraphEncoderConfig(self.features, graph_stack(a), head, a.dropout)

    def sizes(self, examples: Sequence[GraphSplit]) -> list[int]:
        return [len(example.graph.nodes) for example in examples]

    def batch(self, examples: Sequence[GraphSplit], rng: Random | None = None) -> dict[str, Tensor]:
        """Nodes and edges of the graphs as one graph, with the labels of the nodes of the split."""
        graphs = [example.graph for example in examples]
        return {
            "nodes": self.nodes(graphs[0]) if len(graphs) == 1 else torch.cat([self.nodes(graph) for graph in graphs]),
            "edges": merge_edges([graph.edges for graph in graphs], [len(graph.nodes) for graph in graphs]),
            "labels": torch.cat([self.node_labels(example) for example in examples]),
        }

    def node_features(self, graph: Graph) -> Tensor:
        """float32 `[nodes, features]`, sparse if few are nonzero, normalized as the setting says."""
        if graph.nodes.shape[1] != self.features:
            raise BadInput(f"The graph's nodes have {graph.nodes.shape[1]} features; this model reads {self.features}.")
        total = torch.ones(1)
        if self.normalization == "sum":
            total = graph.nodes.sum(1, keepdim=True)
        elif self.normalization == "length":
            total = graph.nodes.norm(dim=1, keepdim=True)
        nodes = graph.nodes / torch.where(total == 0, 1.0, total)
        return nodes.to_sparse() if int(nodes.count_nonzero()) < SPARSE * nodes.numel() else nodes

    def node_labels(self, example: GraphSplit) -> Tensor:
        """int64 `[nodes]`: the classes of the nodes of the split; −100 for other nodes and for unknown classes."""
        graph = example.graph
        numbers = torch.tensor([*(self.number.get(name, IGNORED) for name in graph.classes), IGNORED])
        return torch.where(graph.masks[example.split], numbers[graph.labels], IGNORED)

    def count(self, batch: dict[str, Tensor]) -> int:
        return int((batch["labels"] != IGNORED).sum())

    def loss(self, model: nn.Module, batch: dict[str, Tensor], smoothing: float = 0.0) -> Tensor:
        """The sum of the losses of the labelled nodes.

        With `consistency`, in training, the graph is computed twice with different dropout, as p and as q, and a mean
        over all nodes is added, with t the sharpened mean of p and q (see `consistency_loss`):

            ½ (loss(p) + loss(q)) + consistency · labelled · mean of ½ (|p − t|² + |q − t|²)
        """
        labelled, nodes = batch["labels"] != IGNORED, densify_on_gpu(batch["nodes"])
        passes = 2 if self.settings.consistency and model.training else 1
        logits = torch.cat([model(nodes=nodes, edges=batch["edges"]).logits.float() for _ in range(passes)])
        labels = batch["labels"][labelled].repeat(passes)
        total = functional.cross_entropy(
            logits[labelled.repeat(passes)], labels, label_smoothing=smoothing, reduction="sum"
        )
        weight = self.settings.consistency * len(labels) / len(logits)
        return total if passes == 1 else total / 2 + weight * consistency_loss(logits)

    @torch.no_grad()
    def evaluate(self, model: nn.Module, examples: Sequence[GraphSplit]) -> Scores:
        """Accuracy and mean loss over the nodes of the split; precision, recall and F1 of each class."""
        logits, labels = self.split_logits(model, examples)
        gold, predicted = ([self.labels[n] for n in numbers.tolist()] for numbers in (labels, logits.argmax(-1)))
        metrics = {
            "accuracy": sum(map(str.__eq__, gold, predicted)) / max(1, len(gold)),
            "loss": float(functional.cross_entropy(logits, labels)) if len(gold) else math.inf,
        }
        main, details = self.settings.metric, {"per class": classification_report(gold, predicted)}
        return Scores(metrics, main, main == "accuracy", predicted, details)

    def example_records(self, examples: Sequence[GraphSplit]) -> list[dict[str, Any]]:
        """The nodes of the split by name or index, and their classes."""
        return [
            {"input": example.graph.names[n] if example.graph.names else str(n), "gold": self.labels[label]}
            for example in examples
            for n, label in enumerate(self.node_labels(example).tolist())
            if label != IGNORED
        ]

    def split_logits(self, model: nn.Module, examples: Sequence[GraphSplit]) -> tuple[Tensor, Tensor]:
        """(logits, labels) of the nodes of the split."""
        device = next(model.parameters()).device
        batch = self.batch(examples)
        nodes, edges = densify_on_gpu(batch["nodes"].to(device)), batch["edges"].to(device)
        logits = model(nodes=nodes, edges=edges).logits.float().cpu()
        labelled = batch["labels"] != IGNORED
        return logits[labelled], batch["labels"][labelled]

    def graph_inputs(self, graph: Graph) -> tuple[Tensor, Tensor]:
        return self.node_features(graph), graph.edges

    @property
    def input_files(self) -> tuple[str, ...]:
        return ("npz", "csv", "tsv")

    @torch.no_grad()
    def predict(self, model: nn.Module, inputs: Sequence[str]) -> list[dict[str, Any]]:
        """The class of every node of the graphs in these files, and its probability."""
        predictions = []
        for path in inputs:
            graph = self.read([Path(path)], self.settings).strict().examples[0].graph
            device = next(model.parameters()).device
            nodes = densify_on_gpu(self.node_features(graph).to(device))
            best = model(nodes=nodes, edges=graph.edges.to(device)).logits.float().softmax(-1).cpu().max(-1)
            predictions += [
                {"node": graph.names[n] if graph.names else n, "label": self.labels[label], "probability": round(p, 4)}
                for n, (label, p) in enumerate(zip(best.indices.tolist(), best.values.tolist(), strict=True))
            ]
        return predictions

    def describe(self, examples: Sequence[GraphSplit]) -> dict[str, Any]:
        """Facts that `check` shows: sizes, classes, nodes of each split."""
        graph = examples[0].graph
        counts = Counter(graph.classes[n] for n in graph.labels.tolist() if n >= 0)
        return {
            "nodes": len(graph.nodes),
            "edges": graph.edges.shape[1],
            "features": self.features,
            "classes": dict(counts.most_common()),
            "parts": {split: int(mask.sum()) for split, mask in graph.masks.items()},
            "without a label": int((graph.labels < 0).sum()),
        }


def densify_on_gpu(nodes: Tensor) -> Tensor:
    """The nodes, dense on a GPU: its sparse matrix products are not deterministic."""
    return nodes.to_dense() if nodes.is_sparse and nodes.is_cuda else nodes


def merge_edges(edges: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """The edges of the disjoint union of graphs with these numbers of nodes.

    >>> merge_edges([torch.tensor([[0], [1]]), torch.tensor([[0], [1]])], [2, 2]).tolist()
    [[0, 2], [1, 3]]
    """
    starts = [sum(sizes[:n]) for n in range(len(sizes))]
    return torch.cat([pairs + start for pairs, start in zip(edges, starts, strict=True)], dim=1)


def graph_stack(a: Architecture) -> Any:
    """The stack for the nodes of a graph, without positions."""
    if a.model not in ("transformer", "mlp"):
        raise Unsupported(
            f"{a.model} reads tokens in their order, and a graph's nodes have none. Take gat, gatv2, transformer "
            "(which attends along the edges) or mlp (each node by itself)."
        )
    if a.position is not None:
        raise Unsupported(f"{a.position} needs distances between tokens; nodes have none. Leave out position.")
    return stack_of(replace(a, positions="none"))


def check_splits(graph: Graph, files: Sequence[str]) -> None:
    """Raise `BadInput` if the files define only one of train and dev, or one without a labelled node."""
    defined, where = set(graph.masks) & {"train", "dev"}, ", ".join(files)
    for split in ("train", "dev") if defined else ():
        if split not in graph.masks:
            raise BadInput(f"{where} names the nodes of {defined.pop()} and none of {split}. Name both, or neither.")
        if not bool((graph.masks[split] & (graph.labels >= 0)).any()):
            raise BadInput(f"{where}: no node of the split {split} has a label. Give some, or leave the splits out.")
