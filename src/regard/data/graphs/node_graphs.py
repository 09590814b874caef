"""A graph with labelled nodes, from NPZ or from tables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...errors import BadInput, Missing
from ...limits import GRAPH_FEATURES
from ..arrays import Arrays
from ..files import file_format, resolve_paths
from ..reading import Fault, FaultCollector, Reading, ReadingBuilder, count_noun, raise_fault
from ..tables import SPLITS, ColumnSpec, Table, find_split_column, given_column, read_table, split_in_row
from ..text import LABEL_NAMES
from .edge_parts import read_edge_parts
from .edge_tables import edges_of_table, find_first, read_edge_table, unlisted_nodes
from .mapped import FolderArrays, MappedArrays, is_graph_folder, row_blocks, to_tensor

if TYPE_CHECKING:
    import numpy as np

NODE_NAMES = ("node", "id", "node_id", "name", "节点")
EDGE_ARRAYS = ("edge_attr", "edge_features", "edge_weight", "edge_weights", "weight")
MAX_FAULTS = 100
"""Edges with an end that is no node that are listed one by one."""
MAX_NOTED = 2_000_000
"""Edges up to which a note reports those without a reverse."""
MASKS = {"train": ("train_mask",), "dev": ("val_mask", "dev_mask", "valid_mask"), "test": ("test_mask",)}


@dataclass(frozen=True, eq=False)
class Graph:
    """A graph whose nodes are to be classified.

    `nodes` float32 `[nodes, features]`, no features where the files have none; `edges` int64 `[2, edges]`, row 0 the
    sources, row 1 the targets; `labels` int64 `[nodes]`, indices into `classes`, −1 for unlabelled nodes; `masks`
    booleans `[nodes]` by split, empty if the files define no splits; `names` of the nodes, empty where they have
    indices only; `edge_features` float32 `[edges, features]` or None, called `edge_names`. A `partial` graph has some
    of the edges; other processes have the rest.
    """

    nodes: Tensor
    edges: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    masks: Mapping[str, Tensor] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    edge_features: Tensor | None = None
    edge_names: tuple[str, ...] = ()
    partial: bool = False


def read_nodes(
    path: str | Path,
    *,
    features: str | Path | None = None,
    labels: str | Path | None = None,
    label: str | int | None = None,
    undirected: bool = False,
    part: tuple[int, int] = (0, 1),
) -> Reading[Graph]:
    """One graph whose nodes have features and labels, from NPZ, from a folder of NPY files or from tables.

    NPZ: features `x` or, in CSR form, `x_data x_indices x_indptr x_shape`; `y`; `edge_index [2, edges]`; optionally
    `edge_attr [edges, features]`, `train_mask`, `val_mask`, `test_mask`. Tables: `path` lists edges (source, target),
    whose other columns of numbers are features of the edges; `features` has a row for each node, with its name and
    numbers; labels (and splits) are in the same table or in the table `labels`. Nodes need no numbers. `undirected`
    adds the reverse of each edge where it is missing.

    Folder: `features.npy`, `labels.npy`, `edges.npy` and the masks, or instead of `edges.npy` a table of edges in
    parts, `edges-00.csv` and so on (or Parquet), in which nodes are rows of the features. These arrays, and large ones
    of an uncompressed NPZ, are mapped into memory. `part` = (rank, ranks) reads only a rank's parts of the table.
    """
    builder = ReadingBuilder[Graph]()
    file = Path(path) if is_graph_folder(Path(path)) else resolve_paths(path)[0]
    with builder.reading(file):
        if file.is_dir():
            graph = graph_from_arrays(FolderArrays(file), str(label or "y"), builder, part)
        elif file_format(file) == "npz":
            graph = graph_from_arrays(MappedArrays(file), str(label or "y"), builder)
        else:
            if features is None and labels is None:
                raise BadInput(f"{file} lists edges; give a table of the nodes too, with features= or labels=.")
            tables = [Path(table) for table in (features, labels) if table]
            builder.files.extend(map(str, resolve_paths(tables)))
            graph = graph_from_tables(file, tables, label, features is not None, builder)
        builder.examples.append(add_reverse_edges(graph, undirected, builder))
    return builder.build()


def add_reverse_edges(graph: Graph, undirected: bool, builder: FaultCollector) -> Graph:
    """The graph with the missing reverse edges if `undirected`, with the features of their originals; otherwise a note
    reports them where there are not too many edges to look."""
    edges, count = graph.edges, max(1, len(graph.nodes))
    if graph.partial and undirected:
        raise BadInput(
            "undirected compares all edges with each other, of which a process reads some. Write the reverse of every "
            "edge into the files."
        )
    if graph.partial or (not undirected and edges.shape[1] > MAX_NOTED):
        return graph
    reverse = edges.flip(0)
    codes, own = reverse[0] * count + reverse[1], edges[0] * count + edges[1]
    lacking = (~torch.isin(codes, own)).nonzero()[:, 0]
    _, inverse = codes[lacking].unique(return_inverse=True)
    first = torch.full((int(inverse.max()) + 1 if inverse.numel() else 0,), len(lacking)).scatter_reduce(
        0, inverse, torch.arange(len(lacking)), "amin"
    )
    missing = lacking[first]
    if not undirected:
        if len(missing):
            builder.note(f"edges without a reverse: {len(missing):,} of {edges.shape[1]:,}; undirected=True adds it")
        return graph
    features = graph.edge_features
    features = None if features is None else torch.cat([features, features[missing]])
    return replace(graph, edges=torch.cat([edges, reverse[:, missing]], 1), edge_features=features)


def graph_from_arrays(
    arrays: Arrays, label: str, builder: ReadingBuilder[Graph], part: tuple[int, int] = (0, 1)
) -> Graph:
    """The graph of an NPZ file or a folder."""
    has_features = "x" in arrays or "x_data" in arrays
    nodes = read_features(arrays) if has_features else torch.empty(len(arrays.get(label, "label", "label")), 0)
    count = len(nodes)
    values, classes = read_labels(arrays, label, count)
    masks = read_masks(arrays, count, builder)
    if isinstance(arrays, FolderArrays) and arrays.edge_tables and "edge_index" not in arrays:
        part = part if has_features else (0, 1)  # features of the structure need all edges
        edges = read_edge_parts(arrays.edge_tables, count, builder, *part)
        return Graph(nodes, edges, values, classes, masks, partial=part[1] > 1)
    edges, outside = read_edge_index(arrays, count, builder)
    name, features = read_edge_features(arrays, edges.shape[1])
    graph = Graph(nodes, edges if outside is None else edges[:, ~outside], values, classes, masks)
    if features is None:
        return graph
    names = (name,) if features.shape[1] == 1 else tuple(f"{name} {n}" for n in range(features.shape[1]))
    return replace(graph, edge_features=features if outside is None else features[~outside], edge_names=names)


def read_labels(arrays: Arrays, label: str, count: int) -> tuple[Tensor, tuple[str, ...]]:
    """(class indices `[nodes]`, −1 for none, and the names of the classes)."""
    array = arrays.get(label, "label", "label")
    named = any(name in arrays for name in ("classes", f"{label}s", "class_names", "label_names"))
    if array.dtype.kind not in "ui" or array.shape != (count,) or named:
        return number_classes(["" if text == "-1" else text for text in arrays.labels(label, count)])
    import numpy

    values, places = numpy.unique(array, return_inverse=True)
    numbers, classes = number_classes(["" if value == -1 else str(value) for value in values.tolist()])
    return numbers[torch.from_numpy(places.reshape(-1))], classes


def read_edge_index(arrays: Arrays, count: int, builder: ReadingBuilder[Graph]) -> tuple[Tensor, Tensor | None]:
    """(whole numbers `[2, edges]`, which of them have an end that is no node; None if none has)."""
    array = arrays.get("edge_index", "edges")
    if array.ndim != 2 or array.shape[0] != 2 or array.dtype.kind not in "ui":
        arrays.raise_fault("edge_index", f"is {array.dtype} {list(array.shape)}; wanted whole numbers [2, edges].")
    edges = to_tensor(array, "int64")
    blocks = [((block < 0) | (block >= count)).any(0) for _, block in row_blocks(edges, 1)]
    outside = torch.cat(blocks) if any(bool(block.any()) for block in blocks) else None
    if outside is not None:
        report_outside(arrays.path, edges, outside.nonzero()[:, 0].tolist(), count, builder)
    return edges, outside


def report_outside(path: Path, edges: Tensor, numbers: list[int], count: int, builder: FaultCollector) -> None:
    """A fault for each of the first edges with an end that is no node, and one for all others."""
    for n in numbers[:MAX_FAULTS]:
        source, target = edges[:, n].tolist()
        message = f"edge {n} goes from {source} to {target}; the {count} nodes are 0 to {count - 1}."
        builder.faults.append(Fault(str(path), None, None, message))
    if len(numbers) > MAX_FAULTS:
        others = count_noun(len(numbers) - MAX_FAULTS, "more edge")
        builder.faults.append(Fault(str(path), None, None, f"has {others} with an end that is no node."))


def read_edge_features(arrays: Arrays, count: int) -> tuple[str, Tensor | None]:
    """The array with the features of edges, and these, float32 `[edges, features]`; None if there are none."""
    name = next((name for name in EDGE_ARRAYS if name in arrays), None)
    if name is None:
        return "", None
    array = arrays.get(name, "features of edges")
    if array.ndim not in (1, 2) or len(array) != count or array.dtype.kind not in "buif" or not array.size:
        arrays.raise_fault(name, f"is {array.dtype} {list(array.shape)}; wanted numbers [{count}] or [{count}, n].")
    features = to_tensor(array, "float32").reshape(count, -1)
    if not all(bool(block.isfinite().all()) for _, block in row_blocks(features)):
        arrays.raise_fault(name, "has numbers that are not finite (NaN or infinite).")
    return name, features


def read_features(arrays: Arrays) -> Tensor:
    """float32 `[nodes, features]` from a dense array or from CSR arrays."""
    array = arrays.get("x", "features") if "x_data" not in arrays else dense_features(arrays)
    if array.ndim != 2 or array.dtype.kind not in "buif" or not array.size:
        arrays.raise_fault("x", f"is {array.dtype} {list(array.shape)}; wanted numbers [nodes, features].")
    nodes = to_tensor(array, "float32")
    for first, block in row_blocks(nodes):
        if not block.isfinite().all():
            row, column = (~block.isfinite()).nonzero()[0].tolist()
            number = f"{block[row, column].item()} for node {first + row}, feature {column}"
            arrays.raise_fault("x", f"has {number}; wanted finite numbers.")
    return nodes


def dense_features(arrays: Arrays) -> np.ndarray:
    try:
        from scipy.sparse import csr_matrix
    except ImportError:
        raise Missing('Reading sparse features needs scipy: pip install "regard[train]".') from None
    data, indices, indptr, shape = (
        arrays.get(f"x_{name}", "features") for name in ("data", "indices", "indptr", "shape")
    )
    if shape.shape != (2,) or shape.dtype.kind not in "ui" or min(shape.tolist()) < 0:
        arrays.raise_fault("x_shape", f"is {shape!r:.60}; wanted two whole numbers, nodes and features.")
    if message := GRAPH_FEATURES.excess(math.prod(shape.tolist())):
        arrays.raise_fault("x_shape", f"is {shape.tolist()}: {message} Or leave out rare features.")
    try:
        matrix = csr_matrix((data, indices, indptr), shape=tuple(shape.tolist()))
        matrix.check_format()
    except (ValueError, TypeError) as error:
        raise_fault(arrays.path, f"the arrays x_data, x_indices, x_indptr and x_shape do not fit together: {error}.")
    return matrix.toarray()


def read_masks(arrays: Arrays, count: int, builder: FaultCollector) -> dict[str, Tensor]:
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


def graph_from_tables(
    edges: Path, paths: list[Path], label: str | int | None, with_features: bool, builder: ReadingBuilder[Graph]
) -> Graph:
    """The graph of a table of edges, and the tables in `paths`: features and labels, either of which may be missing.

    Without features the nodes are those of the table of labels and of the edges.
    """
    node, wanted = ColumnSpec("node", None, NODE_NAMES), ColumnSpec("label", label, LABEL_NAMES)
    tables = [read_table(path, [node, wanted] if path == paths[-1] else [node]) for path in paths]
    builder.faults.extend(fault for table in tables for fault in table.faults)
    table, labels = tables[0], tables[-1]
    key, label_key = (find_first(names, NODE_NAMES) for names in (table.names, labels.names))
    name = label_column(labels, label_key, label, needed=labels is not table or not with_features)
    other_columns = {key, find_split_column(table)} | ({name} if labels is table else set())
    columns = [column for column in table.names if column not in other_columns] if with_features else []
    numbers, nodes = feature_rows(table, key, columns, builder)
    table_of_edges = read_edge_table(edges, builder)
    if not columns:
        numbers |= {name: len(numbers) + n for n, name in enumerate(unlisted_nodes(table_of_edges, numbers))}
        nodes = torch.empty(len(numbers), 0)
    texts, splits = labels_by_node(labels, label_key, name, numbers, builder)
    values, classes = number_classes(texts)
    masks = {name: torch.tensor([split == name for split in splits]) for name in SPLITS if name in splits}
    pairs, features = edges_of_table(table_of_edges, numbers, builder)
    names = tuple(table_of_edges.names[n] for n in table_of_edges.features)
    return Graph(nodes, pairs, values, classes, masks, tuple(numbers), features, names)


def label_column(table: Table, key: str, label: str | int | None, needed: bool) -> str | None:
    """The column of labels: the given one, or found by its name, or if `needed` the first after the node's."""
    if label is not None:
        return given_column(table, ColumnSpec("label", label, ()))
    named = next((name for usual in LABEL_NAMES for name in table.names if name.casefold() == usual), None)
    rest = [name for name in table.names if name not in (key, find_split_column(table))]
    return rest[0] if named is None and needed and rest else named


def feature_rows(table: Table, key: str, names: list[str], builder: FaultCollector) -> tuple[dict[str, int], Tensor]:
    """(the index of each node by its name, float32 `[nodes, features]`)."""
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
    table: Table, key: str, name: str | None, numbers: dict[str, int], builder: FaultCollector
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
