"""Limits of what is read: files that would fill the memory or take forever are refused before they do.

Every limit has an environment variable that raises it, which the error names:

    REGARD_MAX_IMAGE_PIXELS=400000000 regard train classify --train scans/ --out runs/scans
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from .errors import BadInput


@dataclass(frozen=True)
class Limit:
    """A largest amount of something that a file may ask for.

    >>> limit = Limit("test_frames", 1000, "frames of a film")
    >>> limit.excess(999)
    ''
    >>> print(limit.excess(20000))
    it has 20,000 frames of a film; the limit is 1,000. If the file is right, set REGARD_MAX_TEST_FRAMES=20000.
    """

    name: str
    default: int
    noun: str

    @property
    def variable(self) -> str:
        """The environment variable that changes the limit."""
        return f"REGARD_MAX_{self.name.upper()}"

    @property
    def value(self) -> int:
        """The limit: the variable's value, or the default."""
        text = os.environ.get(self.variable, "")
        if not text:
            return self.default
        if not text.isdecimal() or len(text) > 18:
            raise BadInput(f"{self.variable} is {text!r:.40}; it must be a whole number of {self.noun}.")
        return int(text)

    def excess(self, amount: int) -> str:
        """The message for an amount over the limit; '' for one within it."""
        if amount <= self.value:
            return ""
        advice = f"If the file is right, set {self.variable}={amount}."
        return f"it has {amount:,} {self.noun}; the limit is {self.value:,}. {advice}"


FILE_BYTES = Limit("file_bytes", 8 * 2**30, "bytes")
"""Of a file that is read as a whole, unpacked."""
EXPANSION = Limit("expansion", 100, "bytes out of each packed byte")
"""How much a packed file may grow beyond `FREE_BYTES`. Text grows 3 to 20 times, a bomb 1,000 times."""
FREE_BYTES = 2**27
"""Bytes that a packed file may grow to however small it is."""
PICTURE_BYTES = 10**8
"""Bytes of pixels, 4 for each, that an image may grow to however small its file is."""
ROW_BYTES, CELL_BYTES = 400, 16
"""What a row and a cell of a text take in memory beside their letters; they count as bytes of a packed file."""
IMAGE_PIXELS = Limit("image_pixels", 50_000_000, "pixels")
SAMPLE_RATE = Limit("sample_rate", 768_000, "samples a second")
SOUND_SAMPLES = Limit("sound_samples", 2**26, "samples")
"""Of a recording, all channels together, before and after resampling: 70 minutes at 16 kHz."""
TABLE_CELLS = Limit("table_cells", 200_000_000, "cells")
TABLE_COLUMNS = Limit("table_columns", 50_000, "columns")
CELL_LETTERS = Limit("cell_letters", 2**24, "letters in a cell")
JSON_DEPTH = Limit("json_depth", 64, "levels of nesting")
JSON_BYTES = Limit("json_bytes", 48 * 2**20, "bytes of JSON")
"""Of a JSON file of a model, such as tokenizer.json, and of the header of a safetensors file."""
JSON_VALUES = Limit("json_values", 4_000_000, "values of JSON")
WORD_LETTERS = Limit("word_letters", 1024, "letters of a word")
DIGITS = Limit("digits", 400, "characters in a number")
NAME_LENGTH = Limit("name_length", 1024, "characters in a name")
"""Of a tensor or a word with a vector."""
TENSOR_DIMS = Limit("tensor_dims", 16, "dimensions of a tensor")
TOKENIZER_GROWTH = Limit("tokenizer_growth", 2**14, "letters or tokens out of one letter")
VOCABULARY_BYTES = Limit("vocabulary_bytes", 64 * 2**20, "bytes of a vocabulary")
EXTRA_TOKENS = Limit("extra_tokens", 10_000, "extra tokens")
VECTOR_NUMBERS = Limit("vector_numbers", 2**30, "numbers of word vectors")
LINE_BYTES = Limit("line_bytes", 2**20, "bytes in a line")
PATH_LENGTH = Limit("path_length", 1024, "characters in a path")
ARCHIVE_MEMBERS = Limit("archive_members", 1_000_000, "files in an archive")
GRAPH_FEATURES = Limit("graph_features", 2**29, "features of nodes")
"""Numbers of a graph's dense feature matrix, 2 GiB in float32."""


def expansion_excess(packed: int, unpacked: int, free: int = FREE_BYTES, *, rows: int = 0, cells: int = 0) -> str:
    """The message for `packed` bytes that grow to `unpacked` ones; '' if they are within the limits, or at most `free`.

    `rows` and `cells` count as the bytes that they take in memory: a file of nothing but ends of lines is small.

    >>> expansion_excess(10, 1000)
    ''
    >>> print(expansion_excess(1000, 2**30))
    it takes 1,073,741,824 bytes out of 1,000 packed ones; the limit is 100 to one. If ... REGARD_MAX_EXPANSION=1073742.
    >>> "it takes 806,000,000 bytes" in expansion_excess(1000, 6_000_000, rows=2_000_000)
    True
    """
    if message := FILE_BYTES.excess(unpacked):
        return message
    size = unpacked + ROW_BYTES * rows + CELL_BYTES * cells
    if size <= max(free, EXPANSION.value * packed):
        return ""
    ratio = -(-size // max(1, packed))
    advice = f"If the file is right, set {EXPANSION.variable}={ratio}."
    return f"it takes {size:,} bytes out of {packed:,} packed ones; the limit is {EXPANSION.value} to one. {advice}"


def json_depth(value: object) -> int:
    """How many lists and objects stand inside each other.

    >>> json_depth({"a": [1, [2]]}), json_depth(3)
    (3, 0)
    """
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, list | dict)]:
        depth += 1
        level = [child for item in level for child in (item.values() if isinstance(item, dict) else item)]
    return depth
