"""Tables of every format, and which of their columns is what."""

from .columns import (
    column_label_type,
    find_columns,
    given_column,
    label_text,
    note_empty_labels,
    with_label_sets,
)
from .read import TABLES, read_table, sample_cells, sample_rows
from .table import (
    SPLIT_COLUMNS,
    SPLITS,
    Cell,
    ColumnSpec,
    Row,
    Table,
    as_text,
    find_split_column,
    parse_split_name,
    split_in_row,
)

__all__ = [
    "SPLITS",
    "SPLIT_COLUMNS",
    "TABLES",
    "Cell",
    "ColumnSpec",
    "Row",
    "Table",
    "as_text",
    "column_label_type",
    "find_columns",
    "find_split_column",
    "given_column",
    "label_text",
    "note_empty_labels",
    "parse_split_name",
    "read_table",
    "sample_cells",
    "sample_rows",
    "split_in_row",
    "with_label_sets",
]
