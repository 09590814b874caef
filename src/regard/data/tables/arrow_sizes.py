"""What an Arrow array becomes in memory as Python's values, known before any of them is made.

Dictionaries, views and runs refer to the same bytes many times: a file of a megabyte may stand for a terabyte of text.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

CELL_BYTES = 64
"""What a value takes in memory at least."""


def unpacked_size(array: Any) -> int:
    """Bytes of all values of an array, and of those inside them; `ValueError` for a type that is not read."""
    from pyarrow import types

    kind, cells = array.type, CELL_BYTES * len(array)
    if types.is_dictionary(kind):
        return cells + dictionary_size(array)
    if types.is_struct(kind):
        return cells + sum(unpacked_size(array.field(n)) for n in range(kind.num_fields))
    if types.is_map(kind):
        return cells + unpacked_size(array.keys) + unpacked_size(array.items)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return cells + unpacked_size(array.flatten())
    if "view" in str(kind):
        return cells + view_size(array)
    if types.is_nested(kind) or types.is_run_end_encoded(kind):
        raise ValueError(f"it has a column of type {str(kind)[:80]}, which is not read")
    return cells + array.nbytes


def dictionary_size(array: Any) -> int:
    """Bytes of the values that the indices of a dictionary refer to."""
    from pyarrow import types

    compute: Any = import_module("pyarrow.compute")  # its functions are made when it is imported
    values, kind = array.dictionary, array.dictionary.type
    if types.is_nested(kind) or types.is_dictionary(kind) or "view" in str(kind):
        raise ValueError(f"it has a dictionary of {str(kind)[:80]}, which is not read")
    if not (
        types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind)
    ):
        return len(array) * (-(-values.nbytes // max(len(values), 1)))
    lengths = compute.binary_length(values).take(array.indices)
    return compute.sum(lengths.cast("int64")).as_py() or 0


def view_size(array: Any) -> int:
    """Bytes of texts that are views: each has its length in the first 4 of its 16 bytes."""
    import numpy

    if str(array.type) not in ("string_view", "binary_view"):
        raise ValueError(f"it has a column of type {str(array.type)[:80]}, which is not read")
    views = numpy.frombuffer(array.buffers()[1], "<i4").reshape(-1, 4)
    return int(views[array.offset : array.offset + len(array), 0].sum(dtype="int64"))
