"""Answers with tensors as bytes: a JSON header, then each array as it lies in memory.

4 bytes   length of the header, little-endian
header    the answer in JSON; a tensor stands there as {"tensor": n, "shape": [...], "type": "float32", "at": bytes}
arrays    little-endian, each at a multiple of 8 from the first; the first itself at a multiple of 8 from the start
"""

from __future__ import annotations

import ctypes
import json
import math
import struct
from typing import TypeAlias, TypedDict, TypeGuard

import torch
from torch import Tensor

from ..protocol import Answer, Json

ALIGNMENT = 8
TYPES = {torch.uint8: "uint8", torch.int32: "int32", torch.bool: "bool8"}
Unpacked: TypeAlias = "Tensor | bool | int | float | str | list[Unpacked] | dict[str, Unpacked] | None"


class TensorEntry(TypedDict):
    """Stands in the header for a tensor, whose bytes begin `at` this offset."""

    tensor: int
    shape: list[int]
    type: str
    at: int


def has_tensors(answer: object) -> bool:
    """Whether a tensor is anywhere in the answer."""
    if isinstance(answer, dict):
        return any(map(has_tensors, answer.values()))
    return any(map(has_tensors, answer)) if isinstance(answer, list | tuple) else isinstance(answer, Tensor)


def pack(answer: Answer) -> bytes:
    """The answer and its tensors as bytes.

    >>> unpack(pack({"weights": torch.tensor([[0.25, 0.75]]), "head": 3}))
    {'weights': tensor([[0.2500, 0.7500]]), 'head': 3}
    """
    arrays: list[Tensor] = []
    size = 0

    def collect(value: object) -> object:
        nonlocal size
        if isinstance(value, Tensor):
            array = to_wire_type(value)
            entry: TensorEntry = {
                "tensor": len(arrays),
                "shape": list(array.shape),
                "type": TYPES.get(array.dtype, "float32"),
                "at": size,
            }
            arrays.append(array)
            size += align(array.numel() * array.element_size())
            return entry
        if isinstance(value, dict):
            return {key: collect(inner) for key, inner in value.items()}
        return [collect(inner) for inner in value] if isinstance(value, list | tuple) else value

    header = to_json(collect(answer))
    parts = [struct.pack("<I", len(header)), header, b"\0" * (align(4 + len(header)) - 4 - len(header))]
    for array in arrays:
        # numpy, the usual way to the bytes, need not be installed
        data = ctypes.string_at(array.data_ptr(), array.numel() * array.element_size()) if array.numel() else b""
        parts += [data, b"\0" * (align(len(data)) - len(data))]
    return b"".join(parts)


def unpack(data: bytes) -> Unpacked:
    """The packed answer; its tensors are float32, uint8, int32 or bool."""
    (length,) = struct.unpack_from("<I", data)
    start = align(4 + length)
    dtypes = {name: dtype for dtype, name in TYPES.items()} | {"float32": torch.float32}

    def restore(value: Json) -> Unpacked:
        if is_tensor_entry(value):
            dtype, count = dtypes[value["type"]], math.prod(value["shape"])
            if not count:
                return torch.empty(value["shape"], dtype=dtype)
            flat = torch.frombuffer(bytearray(data), dtype=dtype, count=count, offset=start + value["at"])
            return flat.view(value["shape"]).clone()
        if isinstance(value, dict):
            return {key: restore(inner) for key, inner in value.items()}
        return [restore(inner) for inner in value] if isinstance(value, list) else value

    return restore(json.loads(data[4 : 4 + length]))


def is_tensor_entry(value: Json | TensorEntry) -> TypeGuard[TensorEntry]:
    return isinstance(value, dict) and "tensor" in value and "at" in value


def to_wire_type(x: Tensor) -> Tensor:
    """The tensor on the CPU, contiguous, in a type that a page can read."""
    x = x.detach().cpu()
    if x.is_floating_point():
        x = x.float()
    elif x.dtype not in TYPES:
        x = x.int()
    return x.contiguous()


def align(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def replace_nonfinite(value: object) -> object:
    """The value with None in place of every infinite number and NaN, which JSON does not have."""
    if isinstance(value, dict):
        return {key: replace_nonfinite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [replace_nonfinite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def to_json(value: object) -> bytes:
    """Compact JSON in UTF-8; lone surrogates are replaced."""
    value = replace_nonfinite(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode("utf-8", "replace")
