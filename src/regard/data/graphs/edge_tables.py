"""Tables of edges: sources, targets, and the numbers that edges have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ..files import file_format, read_file_lines
from ..reading import Fault, FaultCollector, raise_fault
from ..tables import TABLES, ColumnSpec, Row, Table, as_text, read_table
from ..tables.delimited import Dialect, TextLines, number_columns
from ..tables.label_types import parse_number
from ..tables.read import binary_format

SOURCE_NAMES = ("source", "src", "from", "u", "node1", "node_1", "起点")
TARGET_NAMES = ("target", "dst", "to", "v", "node2", "node_2", "终点")


class EdgeTable(NamedTuple):
    """A table of edges: the columns of sources, of targets and of the edges' numbers."""

    table: Table
    source: str
    target: str
    features: list[int]

    @property
    def names(self) -> tuple[str, ...]:
        return self.table.names


def read_edge_table(path: Path, builder: FaultCollector, other: Sequence[ColumnSpec] = ()) -> EdgeTable:
    """The table of edges in a file; `other` columns have another meaning than numbers of the edges.

    Source and target are found by their names, or are the first two columns. A text file without delimiters has blanks
    between its cells, and lines that begin with # or % are comments.
    """
    wanted = [*other, ColumnSpec("source", None, SOURCE_NAMES), ColumnSpec("target", None, TARGET_NAMES)]
    table = read_blank_table(path) or read_table(path, wanted, min_matches=2)
    builder.faults.extend(table.faults)
    meant = {find_first(table.names, spec.names) for spec in other}
    free = [name for name in table.names if name not in meant]
    if len(free) < 2:
        raise_fault(path, f"has the columns {', '.join(table.names)}; wanted a source and a target.", 1)
    source = find_first(free, SOURCE_NAMES)
    target = find_first([name for name in free if name != source], TARGET_NAMES)
    rest = [n for n, name in enumerate(table.names) if name not in (source, target, *meant)]
    features = [n for n in rest if holds_only_numbers(table, n)]
    guesses = f"{path.name}: source = column {source!r}, target = column {target!r}"
    if features:
        guesses += f", numbers of edges = {', '.join(repr(table.names[n]) for n in features)}"
    if ignored := [table.names[n] for n in rest if n not in features]:
        guesses += f"; not read: {', '.join(map(repr, ignored))}"
    builder.note(guesses + ("" if table.header else " (there is no header)"))
    return EdgeTable(table, source, target, features)


def read_blank_table(path: Path) -> Table | None:
    """The table of a text file whose lines are words with blanks between them; None for any other file."""
    if file_format(path) in TABLES or binary_format(path):
        return None
    lines = read_file_lines(path)
    rows = [(n, line.split()) for n, line in enumerate(lines, 1) if line.strip() and line.lstrip()[0] not in "#%"]
    if not rows or any(character in lines[rows[0][0] - 1] for character in ",;|{["):
        return None
    width = len(rows[0][1])
    faults = [
        Fault(str(path), n, None, f"has {len(cells)} columns; wanted {width}.")
        for n, cells in rows
        if len(cells) != width
    ]
    even = [Row(n, list(cells)) for n, cells in rows if len(cells) == width]
    return Table(path, number_columns(width), False, even, TextLines(lines, Dialect(" ", quote="")), faults)


def holds_only_numbers(table: Table, number: int) -> bool:
    """Whether nine tenths of the values of a column are numbers."""
    texts = [as_text(row.cells[number]) or "" for row in table.rows[:1000]]
    return bool(texts) and sum(parse_number(text) is not None for text in texts) >= 0.9 * len(texts)


def unlisted_nodes(edges: EdgeTable, numbers: Mapping[str, int]) -> list[str]:
    """The nodes that only the edges name, in the order of the file."""
    columns = [edges.names.index(name) for name in (edges.source, edges.target)]
    names = (as_text(row.cells[n]) or "" for row in edges.table.rows for n in columns)
    return [name for name in dict.fromkeys(names) if name and name not in numbers]


def edges_of_table(edges: EdgeTable, numbers: dict[str, int], builder: FaultCollector) -> tuple[Tensor, Tensor | None]:
    """int64 `[2, edges]` and float32 `[edges, features]`, None without features, from a table of node names."""
    pairs, features = [], []
    for row in edges.table.rows:
        with builder.catching(row):
            pair = [read_node(edges.table, row, name, numbers) for name in (edges.source, edges.target)]
            values = [edges.table.number(row, edges.names[n], "number of the edge") for n in edges.features]
            pairs.append(pair)
            features.append(values)
    table = torch.tensor(features, dtype=torch.float32) if edges.features and pairs else None
    return torch.tensor(pairs, dtype=torch.int64).view(-1, 2).T.contiguous(), table


def read_node(table: Table, row: Row, name: str, numbers: dict[str, int]) -> int:
    """The index of the node that a cell names."""
    node = table.cell(row, name, "node")
    if node not in numbers:
        table.raise_fault(row, name, f"the edge goes to or from {node!r}, which is no node that was read.")
    return numbers[node]


def find_first(names: Sequence[str], candidates: Sequence[str]) -> str:
    """The first of the candidates that is a column's name, or the first column."""
    return next((name for candidate in candidates for name in names if name.casefold() == candidate), names[0])
