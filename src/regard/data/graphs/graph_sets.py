"""Sets of graphs, each with a label or number: molecules as SMILES, or tables of edges."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ...errors import BadInput
from ..files import Paths, resolve_paths
from ..reading import FaultCollector, Reading, ReadingBuilder, count_noun, raise_fault
from ..tables import (
    ColumnSpec,
    Row,
    Table,
    column_label_type,
    find_columns,
    find_split_column,
    label_text,
    note_empty_labels,
    read_table,
    split_in_row,
)
from ..tables.label_types import LabelType
from ..text import LABEL_NAMES
from .edge_tables import find_first, read_edge_table, read_node
from .molecules import SMILES_NAMES, murcko_scaffold, read_molecule
from .node_graphs import NODE_NAMES
from .structure import degree_features

GRAPH_NAMES = ("graph", "graph_id", "graph_number", "图")
NodeTables = dict[str, tuple[dict[str, int], list[list[float]]]]
"""For each graph: the indices of its nodes by name, and their features."""
VALUE_NAMES = (*LABEL_NAMES, "value", "measured", "expt", "exp")


@dataclass(frozen=True, eq=False)
class LabelledGraph:
    """A graph, such as a molecule, with its class (text) or value (number), or several of them, None where unknown.

    `nodes` float32 `[nodes, features]`, `edges` int64 `[2, edges]`, `edge_features` float32 `[edges, features]`
    or None.
    """

    nodes: Tensor
    edges: Tensor
    label: str | float | tuple[str | float | None, ...]
    edge_features: Tensor | None = None
    name: str = ""
    split: str = ""


def read_graphs(
    paths: Paths,
    *,
    label: str | int | None = None,
    smiles: str | int | None = None,
    labels: str | Path | None = None,
    nodes: str | Path | None = None,
    kind: LabelType | None = None,
) -> Reading[LabelledGraph]:
    """Graphs with a label or number each: a table of SMILES, or a table of the edges of all graphs.

    Edges: columns graph, source and target in `paths`, whose other columns of numbers are features of the edges; graph
    and label in the table `labels`; optionally graph, node and numbers in the table `nodes` (without it the features of
    a node are 1 and its degrees). `kind` is the type of the labels; by
    default they are numbers if some are fractions or if there are more than 20 different ones, and sets if they are
    JSON lists or recombine parts with "|" or ";" between. Molecules may have
    labels in several columns, whose names in `label` are separated by commas; some of the cells may be empty.
    """
    builder = ReadingBuilder[LabelledGraph]()
    for path in resolve_paths(paths):
        with builder.reading(path):
            if labels is None:
                read_molecules(
                    path,
                    ColumnSpec("smiles", smiles, SMILES_NAMES),
                    ColumnSpec("label", label, VALUE_NAMES),
                    kind,
                    builder,
                )
            else:
                tables = resolve_paths([labels, nodes] if nodes else [labels])
                builder.files.extend(map(str, tables))
                read_edge_lists(path, tables, label, kind, builder)
    return builder.build()


def read_molecules(
    path: Path, smiles: ColumnSpec, label: ColumnSpec, kind: str | None, builder: ReadingBuilder[LabelledGraph]
) -> None:
    """The molecules of a table of SMILES."""
    several = isinstance(label.given, str) and "," in label.given
    given = [name.strip() for name in str(label.given).split(",")]
    roles = [ColumnSpec(name, name, ()) for name in given] if several else [label]
    table = read_table(path, [smiles, *roles])
    builder.faults.extend(table.faults)
    columns, split_column = find_columns(table, [smiles, *roles], builder), find_split_column(table)
    names = [columns[spec.role] for spec in roles]
    kinds = {kind or infer_label_type(table, name, builder) for name in names}
    kind = "number" if "number" in kinds else "class" if several else kinds.pop()

    def make(row: Row) -> LabelledGraph:
        value = read_labels(table, row, names, kind)
        text = table.cell(row, columns["smiles"], "SMILES")
        try:
            molecule = read_molecule(text)
        except BadInput as error:
            table.raise_fault(row, columns["smiles"], str(error))
        split = split_in_row(table, row, split_column)
        return LabelledGraph(molecule.atoms, molecule.edges, value, molecule.bonds, text, split)

    builder.each(table.rows, make)


def split_by_scaffold(reading: Reading[LabelledGraph], train: float = 0.8, dev: float = 0.1) -> Reading[LabelledGraph]:
    """The molecules split by scaffold: the molecules of one scaffold are in one split.

    As in MoleculeNet: scaffolds are sorted by their number of molecules, largest first. Each goes to train if it fits
    into that share, else to dev if it fits, else to test. Nothing is random.
    """
    groups: dict[str, list[int]] = {}
    for n, example in enumerate(reading.examples):
        groups.setdefault(murcko_scaffold(example.name), []).append(n)
    splits: dict[int, str] = {}
    counts, total = {"train": 0, "dev": 0, "test": 0}, len(reading.examples)
    for group in sorted(groups.values(), key=lambda group: (-len(group), -group[0])):
        in_train = counts["train"] + len(group) <= train * total
        in_dev = counts["train"] + counts["dev"] + len(group) <= (train + dev) * total
        split = "train" if in_train else "dev" if in_dev else "test"
        counts[split] += len(group)
        splits |= dict.fromkeys(group, split)
    examples = tuple(replace(example, split=splits[n]) for n, example in enumerate(reading.examples))
    return replace(reading, examples=examples, notes=(*reading.notes, f"{len(groups)} scaffolds in three splits"))


def read_labels(table: Table, row: Row, names: list[str], kind: str) -> str | float | tuple[str | float | None, ...]:
    """The label of a row, or the labels of several columns, None for an empty cell; at least one must be there."""
    if len(names) == 1:
        return read_label(table, row, names[0], kind)
    filled = [table.value(row, name) not in (None, "") for name in names]
    if not any(filled):
        table.raise_fault(row, names[0], f"has no label in any of the {len(names)} columns.")
    pairs = zip(names, filled, strict=True)
    return tuple(read_label(table, row, name, kind) if has_label else None for name, has_label in pairs)


def infer_label_type(table: Table, name: str, builder: FaultCollector) -> LabelType:
    """'number' if 90 % of the labels are numbers and some are fractions or more than 20 differ, 'labels' for sets of
    labels, else 'class'."""
    if column_label_type(table, name, "auto") == "labels":
        builder.note(f"{table.path.name}: {name!r} holds sets of labels; target=class takes each set as one class")
        note_empty_labels(table, name, builder)
        return "labels"
    texts = {str(table.value(row, name) or "").strip() for row in table.rows} - {""}
    values = [value for text in texts if (value := parse_finite(text)) is not None]
    if len(values) < 0.9 * len(texts):
        return "class"
    numbers = len(set(values)) > 20 or any(value % 1 for value in values)
    builder.note(f"{table.path.name}: {name!r} holds {'numbers' if numbers else 'classes'}")
    return "number" if numbers else "class"


def parse_finite(text: str) -> float | None:
    """A text as a finite number; None if it is none."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def read_label(table: Table, row: Row, name: str, kind: str) -> str | float:
    if kind == "labels":
        return label_text(table, row, name, empty=True)
    return table.number(row, name, "label") if kind == "number" else table.cell(row, name, "label")


def read_edge_lists(
    path: Path, tables: list[Path], label: str | int | None, kind: str | None, builder: ReadingBuilder[LabelledGraph]
) -> None:
    """Graphs whose edges are in the table `path`, and whose labels and optionally nodes are in `tables`."""
    features = node_tables(tables[1], builder) if tables[1:] else None
    edges, width = edges_by_graph(path, features, builder)
    wanted = [ColumnSpec("graph", None, GRAPH_NAMES), ColumnSpec("label", label, VALUE_NAMES)]
    table = read_table(tables[0], wanted)
    builder.faults.extend(table.faults)
    columns, split_column = find_columns(table, wanted, builder), find_split_column(table)
    kind = kind or infer_label_type(table, columns["label"], builder)
    seen: set[str] = set()

    def make(row: Row) -> LabelledGraph:
        name = table.cell(row, columns["graph"], "graph")
        if name in seen:
            table.raise_fault(row, columns["graph"], f"the graph {name!r} stands here a second time.")
        seen.add(name)
        if name not in (edges if features is None else features):
            table.raise_fault(
                row, columns["graph"], f"the graph {name!r} has no {'edges' if features is None else 'nodes'}."
            )
        graph = make_graph(name, edges.get(name, GraphEdges([], [], {})), features, width)
        value, split = read_label(table, row, columns["label"], kind), split_in_row(table, row, split_column)
        return replace(graph, label=value, split=split)

    builder.each(table.rows, make)
    if bare := set(edges) - seen:
        builder.note(f"{count_noun(len(bare), 'graph')} without a label left out, such as {min(bare)!r}")


def read_unlabelled_graphs(path: Path, nodes: str | Path | None = None) -> Reading[LabelledGraph]:
    """The graphs of a table of edges, in the order of their names' first occurrence; their labels are unknown."""
    builder = ReadingBuilder[LabelledGraph]()
    with builder.reading(path):
        features = node_tables(Path(nodes), builder) if nodes else None
        edges, width = edges_by_graph(path, features, builder)
        for name, graph in edges.items():
            if features is not None and name not in features:
                raise_fault(path, f"has edges of the graph {name!r}, which has no nodes in {nodes}.")
            builder.examples.append(make_graph(name, graph, features, width))
    return builder.build()


def make_graph(name: str, graph: GraphEdges, features: NodeTables | None, width: int) -> LabelledGraph:
    """A graph without a label; without `features` those of a node are 1 and its degrees. Edges have `width` numbers."""
    indices = torch.tensor(graph.pairs, dtype=torch.int64).view(-1, 2).T.contiguous()
    count = len(graph.numbers)
    if features is None:
        values = torch.cat([torch.ones(count, 1), degree_features(indices, count)], dim=1)
    else:
        values = torch.tensor(features[name][1])
    edge_features = torch.tensor(graph.features).view(len(graph.pairs), width) if width else None
    return LabelledGraph(values, indices, (None,), edge_features, name)


def node_tables(path: Path, builder: FaultCollector) -> NodeTables:
    """For each graph: the indices of its nodes by name, and their features."""
    table = read_table(path, [ColumnSpec("graph", None, GRAPH_NAMES), ColumnSpec("node", None, NODE_NAMES)])
    builder.faults.extend(table.faults)
    if len(table.names) < 3:
        raise_fault(path, f"has the columns {', '.join(table.names)}; wanted graph, node and numbers.", 1)
    graph = find_first(table.names, GRAPH_NAMES)
    node = find_first([name for name in table.names if name != graph], NODE_NAMES)
    names = [name for name in table.names if name not in (graph, node)]
    graphs: NodeTables = {}
    for row in table.rows:
        with builder.catching():
            numbers, rows = graphs.setdefault(table.cell(row, graph, "graph"), ({}, []))
            name, values = table.cell(row, node, "node"), [table.number(row, feature, "feature") for feature in names]
            if name in numbers:
                table.raise_fault(row, node, f"the node {name!r} stands here a second time.")
            numbers[name] = len(rows)
            rows.append(values)
    return graphs


class GraphEdges(NamedTuple):
    """The edges of a graph, their numbers, and the indices of its nodes by name."""

    pairs: list[list[int]]
    features: list[list[float]]
    numbers: dict[str, int]


def edges_by_graph(
    path: Path, features: NodeTables | None, builder: FaultCollector
) -> tuple[dict[str, GraphEdges], int]:
    """The edges of each graph, with the indices of its nodes from `features` or in order of occurrence, and how many
    numbers an edge has."""
    edges = read_edge_table(path, builder, [ColumnSpec("graph", None, GRAPH_NAMES)])
    table, key = edges.table, find_first(edges.names, GRAPH_NAMES)
    graphs: dict[str, GraphEdges] = {}
    for row in table.rows:
        with builder.catching(row):
            name = table.cell(row, key, "graph")
            indices = features[name][0] if features is not None and name in features else {}
            graph = graphs.setdefault(name, GraphEdges([], [], indices))
            if features is None:
                for column in (edges.source, edges.target):
                    graph.numbers.setdefault(table.cell(row, column, "node"), len(graph.numbers))
            pair = [read_node(table, row, column, graph.numbers) for column in (edges.source, edges.target)]
            values = [table.number(row, edges.names[n], "number of the edge") for n in edges.features]
            graph.pairs.append(pair)
            graph.features.append(values)
    return graphs, len(edges.features)
