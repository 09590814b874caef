"""Tables: CSV, TSV and JSON lines, and which of their columns is what."""

from .columns import find_columns, given_column
from .table import (
    SPLIT_COLUMNS,
    SPLITS,
    TABLES,
    ColumnSpec,
    Row,
    Table,
    as_text,
    find_split_column,
    parse_split_name,
    read_table,
    split_in_row,
)

__all__ = [
    "SPLITS",
    "SPLIT_COLUMNS",
    "TABLES",
    "ColumnSpec",
    "Row",
    "Table",
    "as_text",
    "find_columns",
    "find_split_column",
    "given_column",
    "parse_split_name",
    "read_table",
    "split_in_row",
]
