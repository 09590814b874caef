"""Graphs with one label or number each: molecules as SMILES, or tables of edges."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ..errors import BadInput
from .files import Paths, resolve_paths
from .graphs import NODE_NAMES, SOURCE_NAMES, TARGET_NAMES, find_first, node_in
from .molecules import SMILES_NAMES, murcko_scaffold, read_molecule
from .reading import Reading, ReadingBuilder, count_noun, raise_fault
from .tables import ColumnSpec, Row, Table, find_columns, find_split_column, read_table, split_in_row
from .text import LABEL_NAMES

GRAPH_NAMES = ("graph", "graph_id", "graph_number", "图")
VALUE_NAMES = (*LABEL_NAMES, "value", "measured", "expt", "exp")


@dataclass(frozen=True, eq=False)
class LabelledGraph:
    """A whole graph, such as a molecule, with its class (text) or its value (a number), or several, None where unknown.

    `nodes` float32 `[nodes, features]`, `edges` int64 `[2, edges]`, `edge_features` float32 `[edges, features]`
    or None.
    """

    nodes: Tensor
    edges: Tensor
    label: str | float | tuple[str | float | None, ...]
    edge_features: Tensor | None = None
    name: str = ""
    part: str = ""


def read_graphs(
    paths: Paths,
    *,
    label: str | int | None = None,
    smiles: str | int | None = None,
    labels: str | Path | None = None,
    nodes: str | Path | None = None,
    kind: Literal["class", "number"] | None = None,
) -> Reading[LabelledGraph]:
    """Graphs with a label or number each: molecules as SMILES in a table, or edges in a table with each one's graph.

    Edges: columns graph, source, target in `paths`; graph and label in the table `labels`; perhaps graph, node and
    numbers in the table `nodes` (a node's only feature is 1 without it). `kind` says whether labels are classes or
    numbers: numbers unless given where some are fractions or more than 20 whole ones differ. Molecules may have labels
    in several columns, with commas between their names in `label`, and a cell may be empty then.
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
                beside = resolve_paths([labels, nodes] if nodes else [labels])
                builder.files.extend(map(str, beside))
                read_edge_lists(path, beside, label, kind, builder)
    return builder.build()


def read_molecules(
    path: Path, smiles: ColumnSpec, label: ColumnSpec, kind: str | None, builder: ReadingBuilder[LabelledGraph]
) -> None:
    """The molecules of a table of SMILES."""
    roles = label_roles(label)
    table = read_table(path, [smiles, *roles])
    builder.faults.extend(table.faults)
    columns, part = find_columns(table, [smiles, *roles], builder), find_split_column(table)
    names = [columns[role.role] for role in roles]
    kind = kind or max(infer_label_type(table, name, builder) for name in names)

    def make(row: Row) -> LabelledGraph:
        value = labels_in(table, row, names, kind)
        text = table.cell(row, columns["smiles"], "SMILES")
        try:
            molecule = read_molecule(text)
        except BadInput as error:
            table.raise_fault(row, columns["smiles"], str(error))
        return LabelledGraph(
            molecule.atoms, molecule.edges, value, molecule.bonds, name=text, part=split_in_row(table, row, part)
        )

    builder.each(table.rows, make)


def split_by_scaffold(reading: Reading[LabelledGraph], train: float = 0.8, dev: float = 0.1) -> Reading[LabelledGraph]:
    """The molecules with other parts: those of one scaffold stay together, so that test has others than were learned.

    As MoleculeNet does it: the scaffolds with most molecules come first, and each goes to train where it still fits
    into that share of all, else to dev where it fits, else to test. Nothing is drawn.
    """
    groups: dict[str, list[int]] = {}
    for n, example in enumerate(reading.examples):
        groups.setdefault(murcko_scaffold(example.name), []).append(n)
    parts: dict[int, str] = {}
    held, most = {"train": 0, "dev": 0}, len(reading.examples)
    for group in sorted(groups.values(), key=lambda group: (-len(group), -group[0])):
        fits = held["train"] + len(group) <= train * most
        rest = held["train"] + held["dev"] + len(group) <= (train + dev) * most
        part = "train" if fits else "dev" if rest else "test"
        held |= {part: held.get(part, 0) + len(group)}
        parts |= dict.fromkeys(group, part)
    examples = tuple(replace(example, part=parts[n]) for n, example in enumerate(reading.examples))
    return replace(reading, examples=examples, notes=(*reading.notes, f"{len(groups)} scaffolds in three parts"))


def label_roles(label: ColumnSpec) -> list[ColumnSpec]:
    """The columns of labels: one, or those that a comma parts."""
    if not isinstance(label.given, str) or "," not in label.given:
        return [label]
    return [ColumnSpec(name.strip(), name.strip(), ()) for name in label.given.split(",")]


def labels_in(table: Table, row: Row, names: list[str], kind: str) -> str | float | tuple[str | float | None, ...]:
    """The label of a row; of several columns all, None where there is none, and one there at least."""
    if len(names) == 1:
        return label_in(table, row, names[0], kind)
    there = [table.value(row, name) not in (None, "") for name in names]
    if not any(there):
        table.raise_fault(row, names[0], f"has no label in any of the {len(names)} columns.")
    pairs = zip(names, there, strict=True)
    return tuple(label_in(table, row, name, kind) if full else None for name, full in pairs)


def infer_label_type(table: Table, name: str, builder: ReadingBuilder[Any]) -> Literal["class", "number"]:
    """'number' where nine of ten labels are one and some are fractions, or more than 20 differ; others are faults."""
    texts = {str(table.value(row, name) or "").strip() for row in table.rows} - {""}
    values = [value for text in texts if (value := parse_finite(text)) is not None]
    if len(values) < 0.9 * len(texts):
        return "class"
    found = "number" if len(set(values)) > 20 or any(value % 1 for value in values) else "class"
    builder.note(f"{table.path.name}: {name!r} holds {'numbers' if found == 'number' else 'classes'}")
    return found


def parse_finite(text: str) -> float | None:
    """The number that a text is; None if it is none."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def label_in(table: Table, row: Row, name: str, kind: str) -> str | float:
    return table.number(row, name, "label") if kind == "number" else table.cell(row, name, "label")


def read_edge_lists(
    path: Path, beside: list[Path], label: str | int | None, kind: str | None, builder: ReadingBuilder[LabelledGraph]
) -> None:
    """Graphs whose edges, labels and perhaps nodes stand in tables."""
    features = node_tables(beside[1], builder) if beside[1:] else None
    edges = edges_by_graph(path, features, builder)
    wanted = [ColumnSpec("graph", None, GRAPH_NAMES), ColumnSpec("label", label, VALUE_NAMES)]
    table = read_table(beside[0], wanted)
    builder.faults.extend(table.faults)
    columns, part = find_columns(table, wanted, builder), find_split_column(table)
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
        pairs, numbers = edges.get(name, ([], {}))
        values = torch.ones(len(numbers), 1) if features is None else torch.tensor(features[name][1])
        found = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).T.contiguous()
        value = label_in(table, row, columns["label"], kind)
        return LabelledGraph(values, found, value, name=name, part=split_in_row(table, row, part))

    builder.each(table.rows, make)
    if bare := set(edges) - seen:
        builder.note(f"{count_noun(len(bare), 'graph')} without a label left out, such as {min(bare)!r}")


def node_tables(path: Path, builder: ReadingBuilder[Any]) -> dict[str, tuple[dict[str, int], list[list[float]]]]:
    """For each graph: its nodes' numbers by name, and their features."""
    table = read_table(path, [ColumnSpec("graph", None, GRAPH_NAMES), ColumnSpec("node", None, NODE_NAMES)])
    builder.faults.extend(table.faults)
    if len(table.names) < 3:
        raise_fault(path, f"has the columns {', '.join(table.names)}; wanted graph, node and numbers.", 1)
    graph = find_first(table.names, GRAPH_NAMES)
    node = find_first([name for name in table.names if name != graph], NODE_NAMES)
    names = [name for name in table.names if name not in (graph, node)]
    found: dict[str, tuple[dict[str, int], list[list[float]]]] = {}
    for row in table.rows:
        with builder.catching():
            numbers, rows = found.setdefault(table.cell(row, graph, "graph"), ({}, []))
            name, values = table.cell(row, node, "node"), [table.number(row, one, "feature") for one in names]
            if name in numbers:
                table.raise_fault(row, node, f"the node {name!r} stands here a second time.")
            numbers[name] = len(rows)
            rows.append(values)
    return found


def edges_by_graph(
    path: Path, features: dict[str, Any] | None, builder: ReadingBuilder[Any]
) -> dict[str, tuple[list[list[int]], dict[str, int]]]:
    """For each graph: its edges, and its nodes' numbers by name, in the order they occur unless features gave them."""
    names = (GRAPH_NAMES, SOURCE_NAMES, TARGET_NAMES)
    wanted = [ColumnSpec(role, None, known) for role, known in zip(("graph", "source", "target"), names, strict=True)]
    table = read_table(path, wanted)
    builder.faults.extend(table.faults)
    columns = find_columns(table, wanted, builder)
    found: dict[str, tuple[list[list[int]], dict[str, int]]] = {}
    for row in table.rows:
        with builder.catching():
            graph = table.cell(row, columns["graph"], "graph")
            known = features[graph][0] if features is not None and graph in features else {}
            pairs, numbers = found.setdefault(graph, ([], known))
            if features is None:
                for role in ("source", "target"):
                    numbers.setdefault(table.cell(row, columns[role], "node"), len(numbers))
            pairs.append([node_in(table, row, columns[role], numbers) for role in ("source", "target")])
    return found
