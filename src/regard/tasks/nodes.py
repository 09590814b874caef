"""Node classification: a class for each node of a graph, trained on the labelled nodes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..data.graphs import Graph, NeighbourSampler, draw_masks, read_nodes
from ..data.graphs.mapped import row_blocks
from ..data.graphs.sampling import check_neighbours, make_generator
from ..data.json_values import JsonObject, ParsedObject
from ..data.reading import Reading
from ..errors import BadInput, Unsupported
from ..models.graph_attention import GATConfig
from ..models.graph_encoder import GraphEncoderConfig
from ..models.heads import IGNORED, ClassificationHeadConfig
from ..models.tokenizers.tokenizer import Tokenizer
from ..settings import Settings, Training, setting
from .architecture import GRAPHS, Architecture, LayersConfig, stack_of
from .inputs.cache import MethodCache, TensorCache
from .inputs.given import name_of
from .inputs.graph_batches import GraphShard, Seed, SeedNodes, launched_part, make_shard, place_edges
from .inputs.graph_features import (
    EdgeScale,
    NodeInputs,
    Normalization,
    StructureFeatures,
    densify_on_gpu,
    edge_arguments,
    reads_edge_features,
)
from .losses.r_drop import consistency_loss
from .metrics.classification import classification_report
from .results import Classification, NodeLabel, NodeLabels
from .task import Scores, Task

STRUCTURES = {
    "degree": "their degrees",
    "spectral": "their degrees and eigenvectors of the graph",
    "walk": "their degrees and the return probabilities of random walks",
    "learned": "a vector for each that is learned, which other graphs do not have",
}

EVALUATED_NODES = 1024
"""Nodes of a batch where neighbours are drawn in evaluation."""


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
    structure: Literal["auto", "none", "degree", "spectral", "walk", "learned"] = setting(
        "auto",
        "Features of nodes from the edges: degree, spectral (eigenvectors), walk (return probabilities), learned (a "
        "vector for each node); auto is spectral where the files have no features, else none.",
        former_default="none",
    )
    structure_dim: int = setting(32, "Eigenvectors or steps of a walk that are features.", ge=1)
    edge_features: bool = setting(
        True, "Numbers of the edges in the files add a term to the scores of gat and gatv2.", former_default=False
    )
    out_heads: int = setting(1, "Heads of a GAT's last layer.", ge=1)
    residual: bool = setting(False, "Residual connections between a GAT's layers.")
    metric: Literal["accuracy", "loss"] = setting(
        "loss", "Score on the validation nodes that selects the best weights.", former="choose"
    )
    neighbours: tuple[int, ...] | None = setting(
        None,
        "Train on batches of labelled nodes, with so many incoming edges of each node drawn at random: a number for "
        "each layer, from the labelled nodes outwards; -1 takes all. By default a step uses the whole graph.",
    )
    evaluate_neighbours: tuple[int, ...] | None = setting(
        None, "The same in evaluation and prediction, which use the whole graph by default."
    )
    consistency: float = setting(
        0.0, "Weight of a consistency loss over all nodes (GRAND); 0 is off.", ge=0, former="agreement"
    )


@dataclass(frozen=True, eq=False)
class GraphSplit:
    """The nodes of a graph that belong to a split. The model gets all nodes, but only the labels of these."""

    graph: Graph
    split: str


class Nodes(Task[NodesSettings, GraphSplit, GraphSplit | Seed[GraphSplit]]):
    """A class for each node; accuracy over the nodes of a split.

    A step uses the whole graph, or labelled nodes and some of their neighbours.
    """

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
        self,
        settings: NodesSettings,
        features: int,
        labels: list[str],
        normalization: Normalization = "sum",
        structure: StructureFeatures | None = None,
        edge_scale: EdgeScale | None = None,
    ) -> None:
        """`normalization` is used where the setting `normalized` leaves it to the data. `features` are the files' own,
        beside those of `structure`; `edge_scale` standardizes the numbers of edges."""
        self.settings, self.features = settings, features
        check_neighbours("neighbours", settings.neighbours)
        check_neighbours("evaluate_neighbours", settings.evaluate_neighbours)
        self.structure, self.edge_scale = structure or StructureFeatures("none", 0), edge_scale
        self.normalization: Normalization = normalization
        if settings.normalized is not None:
            self.normalization = "sum" if settings.normalized else "none"
        self._labels = labels
        self.number = {label: n for n, label in enumerate(labels)}
        self.node_inputs = NodeInputs(features, self.normalization, self.structure)
        self.nodes = TensorCache(self.node_inputs.make)
        self.shards: dict[Graph, GraphShard] = {}
        self.training_shard: GraphShard | None = None
        self.sharded_edges = MethodCache(place_edges, 4)  # a step uses the edges that the one before sorted
        self.samplers = MethodCache(make_sampler, 2)
        self.seeds = MethodCache(self.find_seeds, 4)

    @property
    def labels(self) -> list[str]:
        return self._labels

    @classmethod
    def reads_parts(cls, settings: NodesSettings) -> bool:
        return launched_part()[1] > 1 and shares_graph(settings)

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
            part=launched_part() if cls.reads_parts(settings) else (0, 1),
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
        negative = any(bool((block < 0).any()) for _, block in row_blocks(graph.nodes))
        normalization = "length" if negative else "sum"
        kind = settings.structure
        if kind == "auto":
            kind = "none" if graph.nodes.shape[1] else "spectral"
        structure = StructureFeatures(kind, len(graph.nodes) if kind == "learned" else settings.structure_dim)
        if not graph.nodes.shape[1] and kind == "none":
            raise BadInput("The nodes have no features, and structure is 'none'. Take structure=spectral or degree.")
        scale = None
        if settings.edge_features and graph.edge_features is not None:
            scale = EdgeScale.fit(graph.edge_features)
        return cls(settings, graph.nodes.shape[1], list(graph.classes), normalization, structure, scale)

    @classmethod
    def suggest_settings(cls, examples: Sequence[GraphSplit], settings: NodesSettings) -> dict[str, str | float]:
        """With neighbours: an evaluation after each epoch, and no CUDA graphs, as every batch has another shape."""
        return {} if settings.neighbours is None else {"evaluate_every": "none", "cuda_graph": "false"}

    def choices(self, examples: Sequence[GraphSplit]) -> list[str]:
        notes = []
        if self.structure.kind != "none":
            beside = "in addition to their own" if self.features else "as the files have none"
            features = STRUCTURES[self.structure.kind]
            notes.append(f"Features of nodes are {features}, {beside}; structure= decides otherwise.")
        if self.edge_scale is not None:
            names = ", ".join(map(repr, examples[0].graph.edge_names))
            notes.append(f"Numbers of the edges ({names}) are read by gat and gatv2; edge_features=false ignores them.")
        if self.settings.normalized is not None or self.normalization == "none" or not self.features:
            return notes
        divisors = {
            "sum": "the sum of each node's features (none is negative)",
            "length": "the length of each node's vector (some are negative)",
        }
        divisor = divisors[self.normalization]
        return [*notes, f"Features are divided by {divisor}; normalized=true or false decides otherwise."]

    def as_dict(self) -> JsonObject:
        chosen: JsonObject = {"normalization": self.normalization} if self.settings.normalized is None else {}
        if self.structure.kind != "none":
            chosen["structure"] = asdict(self.structure)
        if self.edge_scale is not None:
            chosen["edge_scale"] = asdict(self.edge_scale)
        return {"features": self.features, "labels": self.labels, **chosen}

    @classmethod
    def from_dict(cls, data: ParsedObject, settings: NodesSettings, tokenizer: Tokenizer | None = None) -> Nodes:
        structure = StructureFeatures(**data["structure"]) if "structure" in data else None
        scale = EdgeScale(**data["edge_scale"]) if "edge_scale" in data else None
        return cls(settings, data["features"], data["labels"], data.get("normalization", "sum"), structure, scale)

    def config(self, a: Architecture) -> GATConfig | GraphEncoderConfig:
        for name in ("neighbours", "evaluate_neighbours"):
            counts = getattr(self.settings, name)
            if counts is not None and len(counts) != a.layers and a.model != "mlp":
                raise BadInput(
                    f"{name} is {counts}, and the model has {a.layers} layers. Give a number for each layer."
                )
        if a.model in GRAPHS:
            return GATConfig(
                self.features + self.structure.count,
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
                edge_features=0 if self.edge_scale is None else len(self.edge_scale.mean),
            )
        head = ClassificationHeadConfig(len(self.labels), a.dim, per_token=True, dropout=a.dropout)
        return GraphEncoderConfig(self.features + self.structure.count, graph_stack(a), head, a.dropout)

    def sizes(self, examples: Sequence[GraphSplit | Seed[GraphSplit]]) -> list[int]:
        return [1 if isinstance(example, Seed) else len(example.graph.nodes) for example in examples]

    def epoch_examples(self, examples: Sequence[GraphSplit], rng: Random) -> Sequence[GraphSplit | Seed[GraphSplit]]:
        """The graph, or with `neighbours` its labelled nodes."""
        return examples if self.settings.neighbours is None else self.seeds(examples[0])

    def find_seeds(self, example: GraphSplit) -> SeedNodes[GraphSplit]:
        """The labelled nodes of a split."""
        return SeedNodes(example, (self.node_labels(example) != IGNORED).nonzero()[:, 0])

    def share_batches(self, examples: Sequence[GraphSplit], validation: Sequence[GraphSplit]) -> bool:
        """Share the graphs out among the processes, each of which computes the nodes that it owns."""
        whole = [] if self.settings.neighbours else examples  # which others draw from
        evaluated = [] if self.settings.evaluate_neighbours else validation
        for graph in dict.fromkeys(example.graph for example in [*whole, *evaluated]):
            self.shards[graph] = make_shard(graph, None if self.edge_scale is None else self.scale_edges)
        self.training_shard = self.shards[examples[0].graph] if whole else None
        return bool(whole)

    def batch(self, examples: Sequence[GraphSplit | Seed[GraphSplit]], rng: Random | None = None) -> dict[str, Tensor]:
        """Nodes and edges of the graphs as one graph, with the labels of the nodes of the split.

        Of a graph that is shared out only the process's own nodes; their edges are in the shard. Seeds are the first
        nodes of a graph that is drawn around them.
        """
        if isinstance(examples[0], Seed):
            nodes = torch.tensor([example.node for example in examples if isinstance(example, Seed)])
            return self.sampled_batch(examples[0].example, nodes, self.settings.neighbours or (), rng or Random(0))
        return self.whole_batch([example for example in examples if isinstance(example, GraphSplit)])

    def sampled_batch(
        self, example: GraphSplit, seeds: Tensor, neighbours: Sequence[int], rng: Random
    ) -> dict[str, Tensor]:
        """A graph that is drawn around seeds, which have the labels."""
        graph = example.graph
        sample = self.samplers(graph).sample(seeds, neighbours, make_generator(rng))
        labels = torch.full((len(sample.nodes),), IGNORED)
        labels[: len(seeds)] = self.class_numbers(graph)[graph.labels[seeds]]
        batch = {"nodes": self.node_inputs.rows(graph, sample.nodes), "edges": sample.edges, "labels": labels}
        if self.edge_scale is not None:
            batch["edge_features"] = self.scale_edges(graph, sample.edge_numbers)
        return batch

    def whole_batch(self, examples: Sequence[GraphSplit]) -> dict[str, Tensor]:
        """Whole graphs, or the nodes of one that this process owns."""
        graphs = [example.graph for example in examples]
        if len(graphs) == 1 and (shard := self.shards.get(graphs[0])) is not None:
            labels = self.node_labels(examples[0])
            labelled = (labels != IGNORED).sum()
            return {"nodes": self.nodes(shard), "labels": labels[shard.own], "labelled": labelled}
        batch = {
            "nodes": self.nodes(graphs[0]) if len(graphs) == 1 else torch.cat([self.nodes(graph) for graph in graphs]),
            "edges": merge_edges([graph.edges for graph in graphs], [len(graph.nodes) for graph in graphs]),
            "labels": torch.cat([self.node_labels(example) for example in examples]),
        }
        if self.edge_scale is not None:
            batch["edge_features"] = torch.cat([self.scale_edges(graph) for graph in graphs])
        return batch

    def scale_edges(self, graph: Graph, rows: Tensor | slice | None = None) -> Tensor:
        """The standardized numbers of the edges, or of these."""
        count = 0 if graph.edge_features is None else graph.edge_features.shape[1]
        if self.edge_scale is None or graph.edge_features is None or count != len(self.edge_scale.mean):
            wanted = 0 if self.edge_scale is None else len(self.edge_scale.mean)
            raise BadInput(f"The graph's edges have {count} numbers each; this model reads {wanted}.")
        return self.edge_scale.apply(graph.edge_features if rows is None else graph.edge_features[rows])

    def node_features(self, graph: Graph) -> Tensor:
        """float32 `[nodes, features]`, sparse if few are nonzero, normalized as the setting says."""
        return self.node_inputs.make(graph)

    def node_labels(self, example: GraphSplit) -> Tensor:
        """int64 `[nodes]`: the classes of the nodes of the split; −100 for other nodes and for unknown classes."""
        graph = example.graph
        return torch.where(graph.masks[example.split], self.class_numbers(graph)[graph.labels], IGNORED)

    def class_numbers(self, graph: Graph) -> Tensor:
        """int64 `[classes of the graph + 1]`: the model's class of each, −100 where it has none and for no label."""
        return torch.tensor([*(self.number.get(name, IGNORED) for name in graph.classes), IGNORED])

    def count(self, batch: dict[str, Tensor]) -> int:
        return int((batch["labels"] != IGNORED).sum())

    def loss(self, model: nn.Module, batch: dict[str, Tensor], smoothing: float = 0.0) -> Tensor:
        """The sum of the losses of the labelled nodes.

        With `consistency`, in training, the graph is computed twice with different dropout, as p and as q, and a mean
        over all nodes is added, with t the sharpened mean of p and q (see `consistency_loss`):

            ½ (loss(p) + loss(q)) + consistency · labelled · mean of ½ (|p − t|² + |q − t|²)
        """
        labelled, shard = batch["labels"] != IGNORED, self.training_shard
        passes = 2 if self.settings.consistency and model.training else 1
        logits = torch.cat([self.logits(model, batch, shard) for _ in range(passes)])
        labels = batch["labels"][labelled].repeat(passes)
        total = functional.cross_entropy(
            logits[labelled.repeat(passes)], labels, label_smoothing=smoothing, reduction="sum"
        )
        if passes == 1:
            return total
        count = len(labels) / passes if shard is None else batch["labelled"]
        nodes = len(labelled) if shard is None else len(shard.graph.nodes)
        return total / 2 + self.settings.consistency * count / nodes * consistency_loss(logits)

    def logits(self, model: nn.Module, batch: dict[str, Tensor], shard: GraphShard | None) -> Tensor:
        """float32 `[nodes, classes]` of the batch's nodes."""
        nodes = densify_on_gpu(batch["nodes"])
        if shard is None:
            return model(nodes=nodes, edges=batch["edges"], **edge_arguments(model, batch)).logits.float()
        edges = self.sharded_edges(shard, nodes.device, reads_edge_features(model))
        return model(nodes=nodes, edges=edges).logits.float()

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

    def example_records(self, examples: Sequence[GraphSplit]) -> list[dict[str, str]]:
        """The nodes of the split by name or index, and their classes."""
        return [
            {"input": example.graph.names[n] if example.graph.names else str(n), "gold": self.labels[label]}
            for example in examples
            for n, label in enumerate(self.node_labels(example).tolist())
            if label != IGNORED
        ]

    def split_logits(self, model: nn.Module, examples: Sequence[GraphSplit]) -> tuple[Tensor, Tensor]:
        """(logits, labels) of the nodes of the split."""
        if self.settings.evaluate_neighbours is not None:
            seeds = [(example, self.seeds(example).nodes) for example in examples]
            labels = [self.node_labels(example)[nodes] for example, nodes in seeds]
            return torch.cat([self.sampled_logits(model, *seed) for seed in seeds]), torch.cat(labels)
        shard = self.shards.get(examples[0].graph) if len(examples) == 1 else None
        batch, device = self.whole_batch(examples), next(model.parameters()).device
        logits = self.logits(model, {name: value.to(device) for name, value in batch.items()}, shard)
        if shard is None:
            labelled = batch["labels"] != IGNORED
            return logits.cpu()[labelled], batch["labels"][labelled]
        labels = self.node_labels(examples[0])
        labelled = (labels != IGNORED).nonzero()[:, 0]
        return shard.layout.gather(logits, labelled).cpu(), labels[labelled]

    def sampled_logits(self, model: nn.Module, example: GraphSplit, nodes: Tensor) -> Tensor:
        """float32 `[nodes, classes]` of these nodes, from `evaluate_neighbours` that are always drawn the same."""
        device, rows = next(model.parameters()).device, []
        for n, seeds in enumerate(nodes.split(EVALUATED_NODES)):
            batch = self.sampled_batch(example, seeds, self.settings.evaluate_neighbours or (), Random(f"{n}"))
            logits = self.logits(model, {name: value.to(device) for name, value in batch.items()}, None)
            rows.append(logits[: len(seeds)].cpu())
        return torch.cat(rows) if rows else torch.empty(0, len(self.labels))

    def graph_inputs(self, graph: Graph) -> tuple[Tensor, Tensor]:
        return self.node_features(graph), graph.edges

    @property
    def input_files(self) -> tuple[str, ...]:
        return ("npz", "csv", "tsv")

    @torch.no_grad()
    def predict(self, model: nn.Module, inputs: Sequence[object]) -> list[NodeLabels]:
        """The class of every node of the graphs in these files, and the probabilities of all classes."""
        predictions = []
        for path in map(name_of, inputs):
            example = self.read([Path(path)], self.settings).strict().examples[0]
            graph = example.graph
            probabilities = self.node_logits(model, example).softmax(-1).tolist()
            names: Sequence[str | int] = graph.names or range(len(probabilities))
            rows = [Classification.from_probabilities(path, self.labels, row) for row in probabilities]
            every = [
                NodeLabel(name, row.label, row.probability, row.probabilities)
                for name, row in zip(names, rows, strict=True)
            ]
            predictions.append(NodeLabels(path, tuple(every)))
        return predictions

    def node_logits(self, model: nn.Module, example: GraphSplit) -> Tensor:
        """float32 `[nodes, classes]` of all nodes of a graph."""
        graph, device = example.graph, next(model.parameters()).device
        if self.settings.evaluate_neighbours is not None:
            return self.sampled_logits(model, example, torch.arange(len(graph.nodes)))
        batch = {"nodes": self.node_features(graph), "edges": graph.edges}
        if self.edge_scale is not None:
            batch["edge_features"] = self.scale_edges(graph)
        return self.logits(model, {name: value.to(device) for name, value in batch.items()}, None)

    def describe(self, examples: Sequence[GraphSplit]) -> JsonObject:
        """Facts that `check` shows: sizes, classes, nodes of each split."""
        graph = examples[0].graph
        counts = Counter(graph.classes[n] for n in graph.labels.tolist() if n >= 0)
        return {
            "nodes": len(graph.nodes),
            "edges": graph.edges.shape[1],
            "features": self.features,
            "features of the structure": self.structure.count,
            "numbers of edges": list(graph.edge_names),
            "classes": dict(counts.most_common()),
            "parts": {split: int(mask.sum()) for split, mask in graph.masks.items()},
            "without a label": int((graph.labels < 0).sum()),
        }


def shares_graph(settings: NodesSettings) -> bool:
    """Whether a process needs a part of the edges only, where several are launched."""
    sampled = settings.neighbours is not None or settings.evaluate_neighbours is not None
    return not sampled and settings.structure in ("auto", "none")


def make_sampler(graph: Graph) -> NeighbourSampler:
    return NeighbourSampler.from_edges(graph.edges, len(graph.nodes))


def merge_edges(edges: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """The edges of the disjoint union of graphs with these numbers of nodes.

    >>> merge_edges([torch.tensor([[0], [1]]), torch.tensor([[0], [1]])], [2, 2]).tolist()
    [[0, 2], [1, 3]]
    """
    starts = [sum(sizes[:n]) for n in range(len(sizes))]
    return torch.cat([pairs + start for pairs, start in zip(edges, starts, strict=True)], dim=1)


def graph_stack(a: Architecture) -> LayersConfig:
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
