"""A graph with labelled nodes, from NPZ or from tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import BadInput, Missing, TooLarge
from .arrays import Arrays
from .files import file_format, resolve_paths
from .reading import Reading, ReadingBuilder, count_noun, raise_fault
from .tables import (
    SPLITS,
    ColumnSpec,
    Row,
    Table,
    find_columns,
    find_split_column,
    given_column,
    read_table,
    split_in_row,
)
from .text import LABEL_NAMES

if TYPE_CHECKING:
    import numpy as np

NODE_NAMES = ("node", "id", "node_id", "name", "节点")
SOURCE_NAMES = ("source", "src", "from", "u", "node1", "node_1", "起点")
TARGET_NAMES = ("target", "dst", "to", "v", "node2", "node_2", "终点")
MASKS = {"train": ("train_mask",), "dev": ("val_mask", "dev_mask", "valid_mask"), "test": ("test_mask",)}
MAX_DENSE_BYTES = 8 * 2**30
"""Bytes up to which sparse features are made dense."""


@dataclass(frozen=True, eq=False)
class Graph:
    """A graph whose nodes are to be classified.

    `nodes` float32 `[nodes, features]`; `edges` int64 `[2, edges]`, row 0 the sources, row 1 the targets; `labels`
    int64 `[nodes]`, indices into `classes`, −1 for unlabelled nodes; `masks` booleans `[nodes]` by split, empty if the
    files define no splits; `names` of the nodes, empty where they have indices only.
    """

    nodes: Tensor
    edges: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    masks: Mapping[str, Tensor] = field(default_factory=dict)
    names: tuple[str, ...] = ()


def read_nodes(
    path: str | Path,
    *,
    features: str | Path | None = None,
    labels: str | Path | None = None,
    label: str | int | None = None,
    undirected: bool = False,
) -> Reading[Graph]:
    """One graph whose nodes have features and labels, from NPZ or from tables.

    NPZ: features `x` or, in CSR form, `x_data x_indices x_indptr x_shape`; `y`; `edge_index [2, edges]`; optionally
    `train_mask`, `val_mask`, `test_mask`. Tables: `path` lists edges (source, target); `features` has a row for each
    node, with its name and numbers; labels (and splits) are in the same table or in the table `labels`. `undirected`
    adds the reverse of each edge where it is missing.
    """
    builder = ReadingBuilder[Graph]()
    file = resolve_paths(path)[0]
    with builder.reading(file):
        if file_format(file) == "npz":
            graph = graph_from_arrays(Arrays(file), str(label or "y"), builder)
        else:
            if features is None:
                raise BadInput(f"{file} lists edges; give the nodes' own numbers too, with features=.")
            tables = [Path(features)] + ([Path(labels)] if labels else [])
            builder.files.extend(map(str, resolve_paths(tables)))
            graph = graph_from_tables(file, tables, label, builder)
        builder.examples.append(replace(graph, edges=add_reverse_edges(graph.edges, undirected, builder)))
    return builder.build()


def add_reverse_edges(edges: Tensor, undirected: bool, builder: ReadingBuilder[Any]) -> Tensor:
    """The edges, with the missing reverse edges if `undirected`; otherwise a note reports them."""
    reverse, nodes = edges.flip(0), int(edges.max()) + 1 if edges.numel() else 1
    missing = reverse[:, ~torch.isin(reverse[0] * nodes + reverse[1], edges[0] * nodes + edges[1])].unique(dim=1)
    if undirected:
        return torch.cat([edges, missing], 1)
    if missing.numel():
        builder.note(f"edges without a reverse: {missing.shape[1]:,} of {edges.shape[1]:,}; undirected=True adds it")
    return edges


def graph_from_arrays(arrays: Arrays, label: str, builder: ReadingBuilder[Graph]) -> Graph:
    """The graph of an NPZ file."""
    nodes = read_features(arrays)
    count = len(nodes)
    texts = arrays.labels(label, count)
    edges = arrays.get("edge_index", "edges")
    if edges.ndim != 2 or edges.shape[0] != 2 or edges.dtype.kind not in "ui":
        arrays.raise_fault("edge_index", f"is {edges.dtype} {list(edges.shape)}; wanted whole numbers [2, edges].")
    edges = torch.from_numpy(edges.astype("int64"))
    outside = ((edges < 0) | (edges >= count)).any(0)
    for n in outside.nonzero()[:, 0].tolist():
        with builder.catching():
            source, target = edges[:, n].tolist()
            message = f"edge {n} goes from {source} to {target}; the {count} nodes are 0 to {count - 1}."
            raise_fault(arrays.path, message)
    values, classes = number_classes(["" if text == "-1" else text for text in texts])
    return Graph(nodes, edges[:, ~outside], values, classes, read_masks(arrays, count, builder))


def read_features(arrays: Arrays) -> Tensor:
    """float32 `[nodes, features]` from a dense array or from CSR arrays."""
    array = arrays.get("x", "features") if "x_data" not in arrays else dense_features(arrays)
    if array.ndim != 2 or array.dtype.kind not in "buif" or not array.size:
        arrays.raise_fault("x", f"is {array.dtype} {list(array.shape)}; wanted numbers [nodes, features].")
    nodes = torch.from_numpy(array.astype("float32"))
    if not nodes.isfinite().all():
        row, column = (~nodes.isfinite()).nonzero()[0].tolist()
        arrays.raise_fault(
            "x", f"has {nodes[row, column].item()} for node {row}, feature {column}; wanted finite numbers."
        )
    return nodes


def dense_features(arrays: Arrays) -> np.ndarray:
    try:
        from scipy.sparse import csr_matrix
    except ImportError:
        raise Missing('Reading sparse features needs scipy: pip install "regard[train]".') from None
    data, indices, indptr, shape = (
        arrays.get(f"x_{name}", "features") for name in ("data", "indices", "indptr", "shape")
    )
    size = 4 * math.prod(shape.tolist())
    if size > MAX_DENSE_BYTES:
        raise TooLarge(f"{arrays.path}: the features would fill {size / 2**30:.0f} GiB. Leave out rare ones.")
    try:
        matrix = csr_matrix((data, indices, indptr), shape=tuple(shape.tolist()))
        matrix.check_format()
    except (ValueError, TypeError) as error:
        raise_fault(arrays.path, f"the arrays x_data, x_indices, x_indptr and x_shape do not fit together: {error}.")
    return matrix.toarray()


def read_masks(arrays: Arrays, count: int, builder: ReadingBuilder[Any]) -> dict[str, Tensor]:
    """The masks by split; a note reports nodes that are in two splits."""
    masks = {}
    for split, names in MASKS.items():
        for name in names:
            if name in arrays:
                array = arrays.get(name, "split")
                if array.shape != (count,) or array.dtype != bool:
                    arrays.raise_fault(name, f"is {array.dtype} {list(array.shape)}; wanted bool [{count}].")
                masks[split] = torch.from_numpy(array)
    for a, b in combinations(SPLITS, 2):
        if a in masks and b in masks and (both := int((masks[a] & masks[b]).sum())):
            builder.note(f"{count_noun(both, 'node')} in both {a} and {b}")
    return masks


def number_classes(texts: list[str]) -> tuple[Tensor, tuple[str, ...]]:
    """(class indices, −1 for '', and the names of the classes, sorted as numbers if all are numbers, else as text)."""
    names = {text for text in texts if text}
    classes = sorted(names, key=int) if all(name.isdecimal() for name in names) else sorted(names)
    numbers = {name: n for n, name in enumerate(classes)} | {"": -1}
    return torch.tensor([numbers[text] for text in texts]), tuple(classes)


def graph_from_tables(edges: Path, paths: list[Path], label: str | int | None, builder: ReadingBuilder[Graph]) -> Graph:
    """The graph of a table of edges, and the tables in `paths`: features, and optionally labels."""
    node, wanted = ColumnSpec("node", None, NODE_NAMES), ColumnSpec("label", label, LABEL_NAMES)
    tables = [read_table(path, [node, wanted] if path == paths[-1] else [node]) for path in paths]
    builder.faults.extend(fault for table in tables for fault in table.faults)
    table, labels = tables[0], tables[-1]
    key, label_key = (find_first(names, NODE_NAMES) for names in (table.names, labels.names))
    name = label_column(labels, label_key, label, needed=labels is not table)
    other_columns = {key, find_split_column(table)} | ({name} if labels is table else set())
    numbers, nodes = feature_rows(
        table, key, [column for column in table.names if column not in other_columns], builder
    )
    texts, splits = labels_by_node(labels, label_key, name, numbers, builder)
    values, classes = number_classes(texts)
    masks = {name: torch.tensor([split == name for split in splits]) for name in SPLITS if name in splits}
    return Graph(nodes, read_edges(edges, numbers, builder), values, classes, masks, tuple(numbers))


def find_first(names: Sequence[str], candidates: Sequence[str]) -> str:
    """The first of the candidates that is a column's name, or the first column."""
    return next((name for candidate in candidates for name in names if name.casefold() == candidate), names[0])


def label_column(table: Table, key: str, label: str | int | None, needed: bool) -> str | None:
    """The column of labels: the given one, or found by its name, or if `needed` the first after the node's."""
    if label is not None:
        return given_column(table, ColumnSpec("label", label, ()))
    named = next((name for usual in LABEL_NAMES for name in table.names if name.casefold() == usual), None)
    rest = [name for name in table.names if name not in (key, find_split_column(table))]
    return rest[0] if named is None and needed and rest else named


def feature_rows(
    table: Table, key: str, names: list[str], builder: ReadingBuilder[Any]
) -> tuple[dict[str, int], Tensor]:
    """(the index of each node by its name, float32 `[nodes, features]`)."""
    if not names:
        raise_fault(table.path, f"has no features beside {key!r}; wanted a column of numbers at least.", 1)
    numbers: dict[str, int] = {}
    rows = []
    for row in table.rows:
        with builder.catching():
            node = table.cell(row, key, "node")
            if node in numbers:
                table.raise_fault(row, key, f"the node {node!r} stands here a second time.")
            rows.append([table.number(row, name, "feature") for name in names])
            numbers[node] = len(numbers)
    if not rows:
        raise_fault(table.path, "has no node that can be read.")
    return numbers, torch.tensor(rows, dtype=torch.float32)


def labels_by_node(
    table: Table, key: str, name: str | None, numbers: dict[str, int], builder: ReadingBuilder[Any]
) -> tuple[list[str], list[str]]:
    """(labels, splits) by node index, '' where there is none."""
    texts, splits = [""] * len(numbers), [""] * len(numbers)
    split_column = find_split_column(table)
    for row in table.rows:
        with builder.catching():
            node = table.cell(row, key, "node")
            if node in numbers:
                text, before = str(table.value(row, name) or "").strip() if name else "", texts[numbers[node]]
                if before and text != before:
                    table.raise_fault(row, key, f"the node {node!r} has the label {before!r} above, and {text!r} here.")
                texts[numbers[node]] = text
                has_split = split_column is not None and table.value(row, split_column)
                splits[numbers[node]] = split_in_row(table, row, split_column) if has_split else ""
            elif name is not None and table.value(row, name):
                table.raise_fault(row, key, f"there is no node {node!r} among the features.")
    without = texts.count("")
    if without:
        builder.note(f"{count_noun(without, 'node')} of {len(texts):,} without a label")
    if without == len(texts):
        raise_fault(
            table.path, "has no labels. Say which column they are in with label=, or give a table with labels=.", 1
        )
    return texts, splits


def read_edges(path: Path, numbers: dict[str, int], builder: ReadingBuilder[Any]) -> Tensor:
    """int64 `[2, edges]` from a table of node names."""
    wanted = [ColumnSpec("source", None, SOURCE_NAMES), ColumnSpec("target", None, TARGET_NAMES)]
    table = read_table(path, wanted)
    builder.faults.extend(table.faults)
    columns = find_columns(table, wanted, builder)
    edges = []
    for row in table.rows:
        with builder.catching():
            edges.append([read_node(table, row, columns[role], numbers) for role in ("source", "target")])
    return torch.tensor(edges, dtype=torch.int64).view(-1, 2).T.contiguous()


def read_node(table: Table, row: Row, name: str, numbers: dict[str, int]) -> int:
    """The index of the node that a cell names."""
    node = table.cell(row, name, "node")
    if node not in numbers:
        table.raise_fault(row, name, f"the edge goes to or from {node!r}, which is no node that was read.")
    return numbers[node]


def draw_masks(graph: Graph, dev: float = 0.2, test: float = 0.2, seed: int = 0) -> Graph:
    """The graph with random train, dev and test masks of its labelled nodes, a function of the seed."""
    if dev < 0 or test < 0 or dev + test >= 1:
        raise BadInput(f"dev is {dev!r} and test {test!r}; they must not be negative, and leave some for training.")
    labelled = (graph.labels >= 0).nonzero()[:, 0]
    order = labelled[torch.randperm(len(labelled), generator=torch.Generator().manual_seed(seed))]
    first, second = round(dev * len(order)), round((dev + test) * len(order))
    masks = {split: torch.zeros(len(graph.nodes), dtype=torch.bool) for split in SPLITS}
    for split, chosen in (("dev", order[:first]), ("test", order[first:second]), ("train", order[second:])):
        masks[split][chosen] = True
    return replace(graph, masks=masks)
