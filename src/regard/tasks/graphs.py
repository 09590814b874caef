"""Graph classification and regression, such as properties of molecules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..data.batching import batch_by_size
from ..data.graph_sets import LabelledGraph, read_graphs, split_by_scaffold
from ..data.molecules import read_molecule
from ..data.reading import Reading
from ..errors import BadInput
from ..models.graph_encoder import GraphEncoderConfig
from ..models.heads import ClassificationHeadConfig
from ..nn.graphs.layers import GraphLayersConfig
from ..settings import Settings, Training, setting
from .architecture import GRAPHS, Architecture
from .inputs.cache import TensorCache
from .losses.targets import Target, as_tuple, infer_target, target_from_dict
from .nodes import graph_stack, merge_edges
from .task import Scores, Task


@dataclass(frozen=True)
class GraphsSettings(Settings):
    """Settings of the task `graphs`, which reads SMILES in a table, or tables of edges, labels and nodes."""

    label: str | None = setting(None, "Column of the labels.")
    smiles: str | None = setting(None, "Column of the SMILES.")
    labels: str | None = setting(None, "Table of the graphs' labels, beside a table of edges.", file=True)
    nodes: str | None = setting(None, "Table of the nodes' features, beside a table of edges.", file=True)
    label_type: Literal["auto", "class", "number"] = setting(
        "auto", "Whether labels are classes or numbers; auto reads it off the labels.", former="kind"
    )
    pool: Literal["mean", "attention"] = setting("mean", "How nodes are pooled for the head.")
    edge_nodes: bool = setting(True, "An edge with features is a node too, between the two that it connects.")
    split: Literal["any", "scaffold"] = setting(
        "any", "scaffold splits molecules into train, dev and test (80, 10, 10 %) by their Bemis-Murcko scaffold."
    )


class Graphs(Task[GraphsSettings]):
    """A label or number for each graph; a batch is the disjoint union of its graphs."""

    name = "graphs"
    Settings = GraphsSettings
    ARCHITECTURE = Architecture("gatv2", 128, 4, 4, dropout=0.1, activation="elu")
    TRAINING = Training(epochs=50, batch_size=64, warmup=100, schedule="cosine")

    def __init__(self, settings: GraphsSettings, target: Target, features: int, edge_features: int) -> None:
        self.settings = settings
        self._target = target
        self.features, self.edge_features = features, edge_features
        self.node_cache = TensorCache(self.node_features)

    @property
    def target(self) -> Target:
        return self._target

    @property
    def labels(self) -> list[str] | None:
        return self._target.labels

    @classmethod
    def read(cls, paths: Sequence[Path], settings: GraphsSettings) -> Reading[LabelledGraph]:
        if settings.split == "scaffold" and settings.labels is not None:
            raise BadInput("split is 'scaffold', which molecules have; these graphs are edges in tables. Leave it out.")
        reading = read_graphs(
            paths,
            label=settings.label,
            smiles=settings.smiles,
            labels=settings.labels,
            nodes=settings.nodes,
            kind=None if settings.label_type == "auto" else settings.label_type,
        )
        return split_by_scaffold(reading) if settings.split == "scaffold" else reading

    @classmethod
    def prepare(cls, examples: Sequence[LabelledGraph], settings: GraphsSettings) -> Graphs:
        """The task for these training graphs: its target, and the number of features."""
        target = infer_target([example.label for example in examples])
        edges = examples[0].edge_features
        with_edges = settings.edge_nodes and edges is not None
        return cls(
            settings, target, examples[0].nodes.shape[1], edges.shape[1] if with_edges and edges is not None else 0
        )

    def as_dict(self) -> dict[str, Any]:
        return {"target": self.target.as_dict(), "features": self.features, "edge_features": self.edge_features}

    @classmethod
    def from_dict(cls, data: dict[str, Any], settings: GraphsSettings, tokenizer: Any = None) -> Graphs:
        return cls(settings, target_from_dict(data["target"]), data["features"], data["edge_features"])

    def config(self, a: Architecture) -> GraphEncoderConfig:
        stack = (
            graph_stack(a)
            if a.model not in GRAPHS
            else GraphLayersConfig(
                a.dim, a.layers, a.heads, GRAPHS[a.model], a.activation, a.dropout, a.attention_dropout
            )
        )
        head = ClassificationHeadConfig(
            self.target.outputs, a.dim, pool=self.settings.pool, hidden="relu", dropout=a.dropout
        )
        return GraphEncoderConfig(self.features + self.edge_features, stack, head, a.dropout)

    def sizes(self, examples: Sequence[LabelledGraph]) -> list[int]:
        return [len(self.node_cache(example)) for example in examples]

    def batch(self, examples: Sequence[LabelledGraph], rng: Random | None = None) -> dict[str, Tensor]:
        nodes = [self.node_cache(example) for example in examples]
        sizes = [len(features) for features in nodes]
        return {
            "nodes": torch.cat(nodes),
            "edges": merge_edges([self.edges(example) for example in examples], sizes),
            "sizes": torch.tensor(sizes),
            "labels": self.target.tensor([example.label for example in examples]),
        }

    def node_features(self, example: LabelledGraph) -> Tensor:
        """float32 `[nodes (+ edges), features + edge_features]`: the nodes, then the edges that are nodes too."""
        nodes, edges = example.nodes, example.edge_features
        if nodes.shape[1] != self.features or (self.edge_features and edges is None):
            raise BadInput(
                f"The graph {example.name!r:.60} has {nodes.shape[1]} features a node; wanted {self.features}."
            )
        nodes = nn.functional.pad(nodes, (0, self.edge_features))
        if not self.edge_features or edges is None:
            return nodes
        return torch.cat([nodes, nn.functional.pad(edges, (self.features, 0))])

    def edges(self, example: LabelledGraph) -> Tensor:
        """int64 `[2, edges]`; with edges as nodes, also from each edge's source to it and from it to its target."""
        edges = example.edges
        if not self.edge_features:
            return edges
        own = torch.arange(edges.shape[1]) + len(example.nodes)
        return torch.cat([edges, torch.stack([edges[0], own]), torch.stack([own, edges[1]])], dim=1)

    def count(self, batch: dict[str, Tensor]) -> int:
        return int(self.target.label_mask(batch["labels"]).sum())

    def loss(self, model: nn.Module, batch: dict[str, Tensor], smoothing: float = 0.0) -> Tensor:
        return self.target.loss(graph_logits(model, batch), batch["labels"], smoothing)

    @torch.no_grad()
    def logits(self, model: nn.Module, examples: Sequence[LabelledGraph], nodes: int = 16384) -> Tensor:
        """The logits of each graph, `[graphs, outputs]`."""
        device = next(model.parameters()).device
        logits = torch.zeros(len(examples), self.target.outputs)
        for numbers in batch_by_size(self.sizes(examples), nodes):
            batch = self.batch([examples[n] for n in numbers])
            logits[numbers] = graph_logits(model, {name: value.to(device) for name, value in batch.items()}).cpu()
        return logits

    def evaluate(self, model: nn.Module, examples: Sequence[LabelledGraph]) -> Scores:
        """ROC-AUC and accuracy, accuracy and macro F1, or RMSE and MAE, depending on the target."""
        logits, target = self.logits(model, examples), self.target
        metrics = target.metrics(logits, target.tensor([example.label for example in examples]))
        return Scores(metrics, target.main, target.higher, [str(row) for row in target.predictions(logits)])

    def unknown_labels(self, examples: Sequence[LabelledGraph]) -> Counter[str]:
        """Classes of these graphs that the training data does not have, with their counts; scores leave them out."""
        labels = (str(label) for example in examples for label in as_tuple(example.label) if label is not None)
        return Counter(label for label in labels if self.labels is not None and label not in self.labels)

    def molecule_inputs(self, smiles: str) -> tuple[Tensor, Tensor] | None:
        if self.settings.labels is not None:
            return None
        molecule = read_molecule(smiles)
        example = LabelledGraph(molecule.atoms, molecule.edges, (None,) * self.target.outputs, molecule.bonds)
        return self.node_features(example), self.edges(example)

    def predict(self, model: nn.Module, inputs: Sequence[str]) -> list[dict[str, Any]]:
        """Predictions for molecules given as SMILES."""
        if self.settings.labels is not None:
            raise BadInput("This model was trained on tables of edges; evaluate others with `regard evaluate --data`.")
        molecules = [read_molecule(text) for text in inputs]
        unknown = (None,) * self.target.outputs
        examples = [LabelledGraph(mol.atoms, mol.edges, unknown, mol.bonds) for mol in molecules]
        predictions = self.target.predictions(self.logits(model, examples))
        return [{"input": text, **prediction} for text, prediction in zip(inputs, predictions, strict=True)]

    def describe(self, examples: Sequence[LabelledGraph]) -> dict[str, Any]:
        """Facts that `check` shows: sizes, features, known labels, examples."""
        labels = self.target.tensor([example.label for example in examples])
        return {
            "graphs": len(examples),
            "nodes": sum(len(example.nodes) for example in examples),
            "edges": sum(example.edges.shape[1] for example in examples),
            "features": self.features,
            "edge features": self.edge_features,
            "asked": self.target.kind,
            "known labels": int(self.target.label_mask(labels).sum()),
            "examples": [f"{example.name}: {example.label}" for example in examples[:3]],
        }


def graph_logits(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return model(nodes=batch["nodes"], edges=batch["edges"], sizes=batch["sizes"]).logits.float()
