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
from typing import Any

import torch
from torch import Tensor

STEP = 8
TYPES = {torch.uint8: "uint8", torch.int32: "int32", torch.bool: "bool8"}


def has_tensors(answer: Any) -> bool:
    """Whether a tensor is anywhere in the answer."""
    if isinstance(answer, dict):
        return any(map(has_tensors, answer.values()))
    return any(map(has_tensors, answer)) if isinstance(answer, list | tuple) else isinstance(answer, Tensor)


def pack(answer: dict[str, Any]) -> bytes:
    """The answer and its tensors in one run of bytes.

    >>> unpack(pack({"weights": torch.tensor([[0.25, 0.75]]), "head": 3}))
    {'weights': tensor([[0.2500, 0.7500]]), 'head': 3}
    """
    arrays: list[Tensor] = []
    size = 0

    def placed(value: Any) -> Any:
        nonlocal size
        if isinstance(value, Tensor):
            array = plain(value)
            entry = {"tensor": len(arrays), "shape": list(array.shape), "type": TYPES.get(array.dtype, "float32")}
            entry["at"] = size
            arrays.append(array)
            size += padded(array.numel() * array.element_size())
            return entry
        if isinstance(value, dict):
            return {key: placed(one) for key, one in value.items()}
        return [placed(one) for one in value] if isinstance(value, list | tuple) else value

    header = to_json(placed(answer))
    parts = [struct.pack("<I", len(header)), header, b"\0" * (padded(4 + len(header)) - 4 - len(header))]
    for array in arrays:
        held = raw(array)
        parts += [held, b"\0" * (padded(len(held)) - len(held))]
    return b"".join(parts)


def unpack(data: bytes) -> Any:
    """What was packed; tensors as float32, uint8, int32 or bool."""
    (length,) = struct.unpack_from("<I", data)
    start = padded(4 + length)
    kinds = {name: kind for kind, name in TYPES.items()} | {"float32": torch.float32}

    def found(value: Any) -> Any:
        if isinstance(value, dict) and "tensor" in value and "at" in value:
            kind, count = kinds[value["type"]], math.prod(value["shape"])
            if not count:
                return torch.empty(value["shape"], dtype=kind)
            flat = torch.frombuffer(bytearray(data), dtype=kind, count=count, offset=start + value["at"])
            return flat.view(value["shape"]).clone()
        if isinstance(value, dict):
            return {key: found(one) for key, one in value.items()}
        return [found(one) for one in value] if isinstance(value, list) else value

    return found(json.loads(data[4 : 4 + length]))


def plain(x: Tensor) -> Tensor:
    """The numbers on the CPU in a type that a page can hold."""
    x = x.detach().cpu()
    if x.is_floating_point():
        x = x.float()
    elif x.dtype not in TYPES:
        x = x.int()
    return x.contiguous()


def raw(x: Tensor) -> bytes:
    # numpy, the usual way to the bytes, need not be installed
    return ctypes.string_at(x.data_ptr(), x.numel() * x.element_size()) if x.numel() else b""


def padded(size: int) -> int:
    return -(-size // STEP) * STEP


def finite(value: Any) -> Any:
    """JSON has no word for infinities and for what is no number."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def cleaned(value: Any) -> Any:
    """The value with `finite` in the place of every number."""
    if isinstance(value, dict):
        return {key: cleaned(one) for key, one in value.items()}
    return [cleaned(one) for one in value] if isinstance(value, list | tuple) else finite(value)


def to_json(value: Any) -> bytes:
    """Compact JSON; half characters, which no UTF-8 holds, become signs for what is missing."""
    value = cleaned(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode("utf-8", "replace")
