"""Graph classification and regression, such as properties of molecules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Literal

import torch
from torch import Tensor, nn

from ..data.batching import batch_by_size
from ..data.files import is_file
from ..data.graphs.graph_sets import LabelledGraph, read_graphs, read_unlabelled_graphs, split_by_scaffold
from ..data.graphs.molecules import read_molecule
from ..data.json_values import JsonObject, ParsedObject
from ..data.reading import Reading
from ..data.tables import TABLES
from ..data.tables.label_types import infer_label_type
from ..errors import BadInput
from ..models.graph_encoder import GraphEncoderConfig
from ..models.heads import ClassificationHeadConfig
from ..models.tokenizers.tokenizer import Tokenizer
from ..nn.graphs.layers import GraphLayersConfig
from ..settings import Settings, Training, setting
from .architecture import GRAPHS, Architecture
from .inputs.cache import TensorCache
from .inputs.given import as_text, name_of
from .inputs.graph_features import EdgeScale, edge_arguments
from .losses.choose_target import infer_target, make_target, target_from_dict
from .losses.targets import LabelsTarget, Target
from .nodes import graph_stack, merge_edges
from .results import GraphResults, Result
from .task import Scores, Task


@dataclass(frozen=True)
class GraphsSettings(Settings):
    """Settings of the task `graphs`, which reads SMILES in a table, or tables of edges, labels and nodes."""

    label: str | None = setting(None, "Column of the labels.")
    smiles: str | None = setting(None, "Column of the SMILES.")
    labels: str | None = setting(None, "Table of the graphs' labels, beside a table of edges.", file=True)
    nodes: str | None = setting(None, "Table of the nodes' features, beside a table of edges.", file=True)
    target: Literal["auto", "class", "labels", "number"] = setting(
        "auto",
        "Whether labels are classes, sets of labels or numbers; auto looks at them.",
        former=("kind", "label_type"),
    )
    pool: Literal["mean", "sum", "attention"] = setting(
        "mean", "How nodes are pooled for the head; a sum grows with the graph, as many numbers of molecules do."
    )
    edge_nodes: bool = setting(
        True,
        "An edge with features is a node too, between the two that it connects; otherwise its features add a term to "
        "the scores of gat and gatv2.",
    )
    split: Literal["any", "scaffold"] = setting(
        "any", "scaffold splits molecules into train, dev and test (80, 10, 10 %) by their Bemis-Murcko scaffold."
    )


class Graphs(Task[GraphsSettings, LabelledGraph, LabelledGraph]):
    """A label or number for each graph; a batch is the disjoint union of its graphs."""

    name = "graphs"
    Settings = GraphsSettings
    ARCHITECTURE = Architecture("gatv2", 128, 4, 4, dropout=0.1, activation="elu")
    TRAINING = Training(epochs=50, batch_size=64, warmup=100, schedule="cosine")

    def __init__(
        self,
        settings: GraphsSettings,
        target: Target,
        features: int,
        edge_features: int,
        edge_scale: EdgeScale | None = None,
    ) -> None:
        """`edge_features` are those of edges that are nodes too; `edge_scale` standardizes those that scores have."""
        self.settings, self.edge_scale = settings, edge_scale
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
            kind=None if settings.target == "auto" else settings.target,
        )
        return split_by_scaffold(reading) if settings.split == "scaffold" else reading

    @classmethod
    def prepare(cls, examples: Sequence[LabelledGraph], settings: GraphsSettings) -> Graphs:
        """The task for these training graphs: its target, and the number of features."""
        labels = [example.label for example in examples]
        texts = [label for label in labels if isinstance(label, str)]
        sets = len(texts) == len(labels) and settings.target in ("auto", "labels")
        sets = sets and (settings.target == "labels" or infer_label_type(texts) == "labels")
        target = make_target(texts, "labels") if sets else infer_target(labels)
        features = [example.edge_features for example in examples if example.edge_features is not None]
        nodes = examples[0].nodes.shape[1]
        if not features or settings.edge_nodes:
            return cls(settings, target, nodes, features[0].shape[1] if features else 0)
        return cls(settings, target, nodes, 0, EdgeScale.fit(torch.cat(features)))

    def as_dict(self) -> JsonObject:
        scale = {} if self.edge_scale is None else {"edge_scale": asdict(self.edge_scale)}
        numbers = {"features": self.features, "edge_features": self.edge_features, **scale}
        return {"target": self.target.as_dict(), **numbers}

    @classmethod
    def from_dict(cls, data: ParsedObject, settings: GraphsSettings, tokenizer: Tokenizer | None = None) -> Graphs:
        scale = EdgeScale(**data["edge_scale"]) if "edge_scale" in data else None
        return cls(settings, target_from_dict(data["target"]), data["features"], data["edge_features"], scale)

    def config(self, a: Architecture) -> GraphEncoderConfig:
        stack = (
            graph_stack(a)
            if a.model not in GRAPHS
            else GraphLayersConfig(
                *(a.dim, a.layers, a.heads, GRAPHS[a.model], a.activation, a.dropout, a.attention_dropout),
                edge_features=0 if self.edge_scale is None else len(self.edge_scale.mean),
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
        batch = {
            "nodes": torch.cat(nodes),
            "edges": merge_edges([self.edges(example) for example in examples], sizes),
            "sizes": torch.tensor(sizes),
            "labels": self.target.tensor([example.label for example in examples]),
        }
        if self.edge_scale is not None:
            batch["edge_features"] = torch.cat([self.scale_edges(example) for example in examples])
        return batch

    def scale_edges(self, example: LabelledGraph) -> Tensor:
        """The standardized features of a graph's edges."""
        features = example.edge_features
        if self.edge_scale is None or features is None or features.shape[1] != len(self.edge_scale.mean):
            count = 0 if features is None else features.shape[1]
            wanted = 0 if self.edge_scale is None else len(self.edge_scale.mean)
            raise BadInput(f"The edges of {example.name!r:.60} have {count} features each; wanted {wanted}.")
        return self.edge_scale.apply(features)

    def node_features(self, example: LabelledGraph) -> Tensor:
        """float32 `[nodes (+ edges), features + edge_features]`: the nodes, then the edges that are nodes too."""
        nodes, edges = example.nodes, example.edge_features
        if self.features == 1 and self.settings.labels is not None and self.settings.nodes is None:
            nodes = nodes[:, :1]  # models of earlier versions read no degrees
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

    def validate(self, model: nn.Module, examples: Sequence[LabelledGraph]) -> Scores:
        """The scores, with the thresholds of labels chosen on these graphs."""
        logits, labels = self.logits(model, examples), [example.label for example in examples]
        if isinstance(self.target, LabelsTarget):
            self.target.tune(logits, labels)
        return self.target.scores(logits, labels)

    def tuned_values(self) -> JsonObject:
        return self.target.tuned_values() if isinstance(self.target, LabelsTarget) else {}

    def restore_tuned(self, values: ParsedObject) -> None:
        if isinstance(self.target, LabelsTarget):
            self.target.restore_tuned(values)

    def evaluate(self, model: nn.Module, examples: Sequence[LabelledGraph]) -> Scores:
        """ROC-AUC and accuracy, accuracy and macro F1, or RMSE and MAE, depending on the target."""
        return self.target.scores(self.logits(model, examples), [example.label for example in examples])

    def unknown_labels(self, examples: Sequence[LabelledGraph]) -> Counter[str]:
        """Classes of these graphs that the training data does not have, with their counts."""
        return self.target.unknown([example.label for example in examples])

    def molecule_inputs(self, smiles: str) -> tuple[Tensor, Tensor] | None:
        if self.settings.labels is not None:
            return None
        molecule = read_molecule(smiles)
        example = LabelledGraph(molecule.atoms, molecule.edges, (None,) * self.target.outputs, molecule.bonds)
        return self.node_features(example), self.edges(example)

    def predict(self, model: nn.Module, inputs: Sequence[object]) -> list[Result]:
        """Predictions for molecules given as SMILES, or for the graphs in tables of edges."""
        if self.settings.labels is not None:
            return [self.predict_table(model, name_of(given)) for given in inputs]
        texts = [as_text(given) for given in inputs]
        molecules = [read_molecule(text) for text in texts]
        unknown = (None,) * self.target.outputs
        examples = [LabelledGraph(mol.atoms, mol.edges, unknown, mol.bonds) for mol in molecules]
        return self.target.predictions(texts, self.logits(model, examples))

    def predict_table(self, model: nn.Module, path: str) -> GraphResults:
        """The results of the graphs in a table of edges."""
        if not is_file(Path(path)):
            raise BadInput(f"{path!r:.200} is no file. This model was trained on tables of edges: give such a table.")
        graphs = read_unlabelled_graphs(Path(path), self.settings.nodes).strict().examples
        results = self.target.predictions([graph.name for graph in graphs], self.logits(model, graphs))
        return GraphResults(path, tuple(results))

    @property
    def input_files(self) -> tuple[str, ...]:
        return () if self.settings.labels is None else TABLES

    def describe(self, examples: Sequence[LabelledGraph]) -> JsonObject:
        """Facts that `check` shows: sizes, features, known labels, examples."""
        labels = self.target.tensor([example.label for example in examples])
        return {
            "graphs": len(examples),
            "nodes": sum(len(example.nodes) for example in examples),
            "edges": sum(example.edges.shape[1] for example in examples),
            "features": self.features,
            "edge features": self.edge_features if self.edge_scale is None else len(self.edge_scale.mean),
            "asked": self.target.kind,
            "known labels": int(self.target.label_mask(labels).sum()),
            "examples": [f"{example.name}: {example.label}" for example in examples[:3]],
        }


def graph_logits(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    arguments = {name: batch[name] for name in ("nodes", "edges", "sizes")}
    return model(**arguments, **edge_arguments(model, batch)).logits.float()
