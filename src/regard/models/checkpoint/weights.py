"""The weights of a checkpoint folder: safetensors files, whole or in shards, with every header checked.

Nothing here unpickles. Headers are checked in full before a tensor is loaded, so that a file that is truncated, renamed
or altered is refused with its name and what to do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import Tensor

from ...errors import BadInput, Missing, explain_damage
from ...limits import JSON_BYTES, NAME_LENGTH, TENSOR_DIMS
from .files import JsonObject, parse_json, read_json, refuse_pointer

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
LONGEST_HEADER, LARGEST_DIM = 100_000_000, 2**40

DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
}

CONVERT = (
    "Nothing here unpickles a file, because a pickle can run any program. Where you trust it, convert it once: "
    "python -c \"import torch, safetensors.torch as s; s.save_file({{k: v.clone() for k, v in torch.load('{name}', "
    "weights_only=True, map_location='cpu').items()}}, 'model.safetensors')\""
)


@dataclass(frozen=True)
class TensorInfo:
    """The file, shape and dtype of a tensor, from the file's header."""

    file: Path
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Weights:
    """The tensors of a folder: names, shapes and dtypes at once, the numbers on demand."""

    entries: dict[str, TensorInfo]
    opened: dict[Path, Any] = field(default_factory=dict, repr=False, compare=False)

    def names(self) -> list[str]:
        """Every tensor of every shard."""
        return list(self.entries)

    def shape(self, name: str) -> tuple[int, ...]:
        """The tensor's shape, from the header."""
        return self.entry(name).shape

    def dtype(self, name: str) -> torch.dtype:
        """The tensor's dtype in the file, from the header."""
        return self.entry(name).dtype

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """The tensor, loaded now, in the file's dtype unless another is asked for."""
        file = self.entry(name).file
        if file not in self.opened:
            self.opened[file] = open_safetensors(file)
        with explain_damage(file):
            tensor = self.opened[file].get_tensor(name)
        return tensor if dtype is None else tensor.to(dtype)

    def entry(self, name: str) -> TensorInfo:
        if name in self.entries:
            return self.entries[name]
        near = get_close_matches(name, self.entries, n=3)
        hint = f" Near to it: {', '.join(near)}." if near else ""
        raise BadInput(f"The weights have no tensor {name!r} among their {len(self.entries)}.{hint}")


def find_index(path: Path) -> Path | None:
    """The index of a sharded checkpoint; None where there is a whole `model.safetensors`."""
    indexes = sorted(path.glob("*.safetensors.index.json"))
    if not indexes or (path / SINGLE).is_file():
        return None
    if len(indexes) > 1:
        raise BadInput(f"{path} has {len(indexes)} indexes, {join_names(indexes)}: leave the one to load.")
    return indexes[0]


def find_single(path: Path) -> Path:
    if (path / SINGLE).is_file():
        return path / SINGLE
    files = sorted(path.glob("*.safetensors"))
    if len(files) == 1:
        return files[0]
    if files:
        raise BadInput(
            f"{path} has {len(files)} weight files, {join_names(files)}, and no {INDEX} that joins them: "
            "fetch the index, or leave the one file to load."
        )
    raise missing_weights(path)


def missing_weights(path: Path) -> BadInput:
    """The error for a folder without safetensors."""
    pickled = sorted(file for pattern in PICKLED for file in path.glob(pattern))
    if not pickled:
        return BadInput(f"{path} has no weights: wanted {SINGLE}, or shards with {INDEX}. Fetch the *.safetensors.")
    return BadInput(
        f"{path} has pickled weights only, {join_names(pickled)}, and no *.safetensors. "
        + CONVERT.format(name=pickled[0].name)
    )


def join_names(files: list[Path], most: int = 4) -> str:
    return ", ".join(file.name for file in files[:most]) + (", …" if len(files) > most else "")


def read_single(file: Path) -> dict[str, TensorInfo]:
    """The entries of one safetensors file, its header checked against the format and the file's size."""
    size = file.stat().st_size
    header, data = read_header(file, size)
    spans = []
    entries = {}
    for name, described in header.items():
        entries[name], span = read_entry(file, name, described)
        spans.append((*span, name))
    need_cover(file, sorted(spans), size - data)
    return entries


def read_header(file: Path, size: int) -> tuple[JsonObject, int]:
    """The header of a safetensors file without its metadata, and the offset of the numbers."""
    refuse_pointer(file)
    with file.open("rb") as opened:
        start = opened.read(9)
        length = int.from_bytes(start[:8], "little")
        protocol = start[:1] == b"\x80" and start[1:2] in b"\x02\x03\x04\x05"
        if start[:4] == b"PK\x03\x04" or (protocol and start[8:] != b"{"):
            raise BadInput(f"{file} is a pickle renamed to safetensors. " + CONVERT.format(name=file.name))
        if len(start) == 9 and start[8:] == b"{" and length <= size and (message := JSON_BYTES.excess(length)):
            raise BadInput(f"{file}: its header is too long: {message}")
        if length > LONGEST_HEADER or (len(start) == 9 and start[8:] != b"{"):
            raise BadInput(f"{file} is not a safetensors file: it begins with {start!r}. Fetch it again.")
        if len(start) < 9 or size < 8 + length:
            raise BadInput(f"{file} is cut off inside its header ({size} bytes, wanted more). Fetch it again.")
        opened.seek(8)
        return parse_header(file, opened.read(length)), 8 + length


def parse_header(file: Path, text: bytes) -> JsonObject:
    header = parse_json(text, file)
    if not isinstance(header, dict):
        raise BadInput(f"{file} has a header that is not an object of JSON. Fetch it again.")
    header.pop("__metadata__", None)
    return header


def read_entry(file: Path, name: str, described: object) -> tuple[TensorInfo, tuple[int, int]]:
    match described:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [begin, end]} if all(
            type(number) is int and number >= 0 for number in (*shape, begin, end)
        ):
            pass
        case _:
            raise BadInput(f"{file} describes the tensor {name!r} as {str(described)[:200]}. Fetch the file again.")
    if message := NAME_LENGTH.excess(len(name)) or TENSOR_DIMS.excess(len(shape)):
        raise BadInput(f"{file}: of the tensor {name[:60]!r}, {message}")
    if any(number > LARGEST_DIM for number in shape):
        raise BadInput(f"{file} gives {name!r} the shape {shape}, which no file can hold. Fetch the file again.")
    if dtype not in DTYPES:
        raise BadInput(
            f"{file} has {name!r} in the dtype {dtype}, wanted one of {', '.join(DTYPES)}. Convert it first."
        )
    need = math.prod(shape) * DTYPES[dtype].itemsize
    if end - begin != need:
        raise BadInput(
            f"{file} gives {name!r} of shape {shape} and dtype {dtype} {end - begin} bytes, wanted {need}. "
            "Fetch the file again."
        )
    return TensorInfo(file, tuple(shape), DTYPES[dtype]), (begin, end)


def need_cover(file: Path, spans: list[tuple[int, int, str]], size: int) -> None:
    """Refuse tensors that overlap, leave a hole, or do not end where the file ends."""
    offset = 0
    for begin, end, name in spans:
        if begin != offset:
            fault = "overlaps the tensor before it" if begin < offset else "leaves a hole before it"
            raise BadInput(f"{file} has {name!r} at byte {begin}, which {fault} ({offset}). Fetch the file again.")
        offset = end
    if offset > size:
        raise BadInput(f"{file} is cut off: its tensors need {offset} bytes and it has {size}. Fetch it again.")
    if offset < size:
        raise BadInput(f"{file} has {size - offset} bytes after its last tensor. Fetch it again.")


def read_shards(index: Path) -> dict[str, TensorInfo]:
    """The entries of every shard that the index names, checked against the index."""
    shard_of = read_json(index).get("weight_map")
    if not isinstance(shard_of, dict) or not all(isinstance(shard, str) for shard in shard_of.values()):
        raise BadInput(f"{index} has no weight_map from the tensors' names to file names. Fetch it again.")
    entries: dict[str, TensorInfo] = {}
    for shard in dict.fromkeys(shard_of.values()):
        own = read_single(find_shard(index, shard))
        for name in own.keys() & entries.keys():
            raise BadInput(
                f"{index.parent} has {name!r} twice, in {entries[name].file.name} and {shard}: "
                "the shards are of different checkpoints. Fetch the folder again."
            )
        entries |= own
        missing = [name for name, file in shard_of.items() if file == shard and name not in own]
        if missing:
            names = ", ".join(missing[:4]) + (", …" if len(missing) > 4 else "")
            raise BadInput(f"{index} says that {shard} holds {names}, but it does not. Fetch the shard again.")
    return entries


def find_shard(index: Path, shard: str) -> Path:
    path = PurePosixPath(shard)
    if path.is_absolute() or ".." in path.parts or "\\" in shard or ":" in shard or path.suffix != ".safetensors":
        raise BadInput(
            f"{index} points to {shard!r}, wanted a *.safetensors inside its folder. Do not trust this folder."
        )
    file = index.parent / path
    if not file.is_file():
        raise BadInput(f"{index.parent} lacks the shard {shard} that {index.name} names. Fetch it.")
    return file


def open_safetensors(file: Path) -> Any:
    safe_open, error_class = need_safetensors()
    try:
        return safe_open(file, framework="pt")
    except error_class as error:
        raise BadInput(f"{file} cannot be read: {error}. Fetch it again.") from error


def need_safetensors() -> tuple[Any, type[Exception]]:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        message = 'Weights are read and written with safetensors, which is not installed: pip install "regard[train]"'
        raise Missing(message) from error
    return safe_open, SafetensorError
