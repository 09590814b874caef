"""A checkpoint folder: a configuration in JSON and weights in safetensors.

A Regard folder has `regard.json`, a Hugging Face folder `config.json`; the weights are one `*.safetensors`, or shards
with an index.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from ...errors import BadInput
from .checksums import Checksums, add_hash, check_json, hash_file, known_hashes, split_checksums
from .files import FileWriters, JsonObject, publish_files, read_json, replace_files, stage_files, text_writer, to_json
from .weights import INDEX, SINGLE, Weights, find_index, find_single, need_safetensors, read_shards, read_single

Format = Literal["regard", "huggingface"]

CONFIGS: dict[Format, str] = {"regard": "regard.json", "huggingface": "config.json"}
SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")


@dataclass(frozen=True)
class Folder:
    """The files of a checkpoint folder beside its weights, which `weights()` opens."""

    path: Path
    config: JsonObject
    format: Format
    generation: JsonObject
    checksums: Checksums = field(default_factory=Checksums)

    def weights(self) -> Weights:
        """The folder's weights, every header checked and no tensor loaded."""
        index = find_index(self.path)
        return Weights(read_single(find_single(self.path)) if index is None else read_shards(index))


def open_folder(path: str | os.PathLike[str]) -> Folder:
    """A checkpoint folder, its configuration read and its weights not yet opened.

    Raises `BadInput` for a folder that is not one, or whose configuration cannot be read.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as path:
    ...     write_folder(path, {"model_type": "bert"}, {"weight": torch.ones(2, 3)}, format="huggingface")
    ...     weights = open_folder(path).weights()
    ...     weights.names(), weights.shape("weight"), weights.tensor("weight", torch.float64).sum().item()
    (['weight'], (2, 3), 6.0)
    """
    path = Path(path)
    if not path.is_dir():
        fault = "is a file" if path.is_file() else "does not exist"
        raise BadInput(f"{path} {fault}; a checkpoint is a folder with config.json (or regard.json) and *.safetensors.")
    format = find_format(path)
    config, generation = read_json(path / CONFIGS[format]), path / "generation_config.json"
    generation_config = read_json(generation) if generation.is_file() else {}
    if format == "huggingface":
        return Folder(path, config, format, generation_config)
    config, checksums = split_checksums(check_json(config, path / CONFIGS[format]), path / CONFIGS[format])
    return Folder(path, config, format, generation_config, checksums)


def find_format(path: Path) -> Format:
    for format, name in CONFIGS.items():
        if (path / name).is_file():
            return format
    raise BadInput(
        f"{path} has neither config.json nor regard.json, so it does not say which model it holds. "
        "Give the folder that the model was saved into, with its configuration beside the weights."
    )


def write_folder(
    path: str | os.PathLike[str],
    config: JsonObject,
    tensors: dict[str, Tensor],
    *,
    format: Format,
    shard_bytes: int = 5_000_000_000,
    others: FileWriters | None = None,
) -> None:
    """Write the configuration and the weights, in shards with an index where they exceed `shard_bytes`.

    Every file is written under a temporary name, flushed to the disk, and only then renamed, all of them at the end:
    a reader sees a whole file, old or new. `others` are written with them. Weights and configurations of an earlier
    call are removed; other files (tokenizers, notes) stay. Tensors that share memory are each written in full.

    `regard.json` has the SHA-256 of each file, and is replaced first, with the hashes of the old files and the new
    ones: whenever the process is killed, each file has a hash that it names. A folder without one gets it last.
    """
    if format not in CONFIGS:
        raise BadInput(f"format is {format!r}, wanted one of {', '.join(map(repr, CONFIGS))}.")
    if shard_bytes < 1:
        raise BadInput(f"shard_bytes is {shard_bytes}, wanted a positive number of bytes.")
    need_safetensors()
    need_dense(tensors)
    path, text = Path(path), to_json(config)
    shards = split_shards(tensors, shard_bytes)
    writers: dict[str, Callable[[Path], object]]
    writers = {name: partial(save_shard, names, tensors) for name, names in shards.items()}
    if len(shards) > 1:
        places = {name: shard for shard, names in shards.items() for name in names}
        index = {"metadata": {"total_size": sum(x.nbytes for x in tensors.values())}, "weight_map": places}
        writers[INDEX] = text_writer(to_json(index))
    writers |= others or {}
    if path.exists() and not path.is_dir():
        raise BadInput(f"{path} is a file, wanted a folder to write into. Give another name.")
    path.mkdir(parents=True, exist_ok=True)
    name = CONFIGS[format]
    if format == "huggingface":
        replace_files(path, {**writers, name: text_writer(text)})
    else:
        with stage_files(path, writers) as staging:
            new = Checksums({file: hash_file(staging / file) for file in writers})
            if (path / name).is_file():
                both = replace(new, replaced=known_hashes(path, writers))
                replace_files(path, {name: text_writer(to_json(add_hash(config | both.entries())))})
            publish_files(staging, path, writers)
        replace_files(path, {name: text_writer(to_json(add_hash(config | new.entries())))})
    for file in path.iterdir():  # of an earlier call
        if file.name not in {*writers, name} and (
            file.name in (*CONFIGS.values(), SINGLE, INDEX) or SHARD.fullmatch(file.name)
        ):
            file.unlink()


def need_dense(tensors: dict[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor) or tensor.is_meta or tensor.layout != torch.strided or name == "__metadata__":
            got = f"{tensor.device} {tensor.layout}" if isinstance(tensor, Tensor) else type(tensor).__name__
            raise BadInput(f"{name!r} ({got}) cannot be written: wanted a name and a dense tensor that has numbers.")


def split_shards(tensors: dict[str, Tensor], shard_bytes: int) -> dict[str, list[str]]:
    """The tensors of each file, in their order; a tensor larger than `shard_bytes` has a file of its own."""
    shards: list[list[str]] = [[]]
    size = 0
    for name, tensor in tensors.items():
        if shards[-1] and size + tensor.nbytes > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += tensor.nbytes
    if len(shards) == 1:
        return {SINGLE: shards[0]}
    return {f"model-{n:05}-of-{len(shards):05}.safetensors": names for n, names in enumerate(shards, 1)}


def save_shard(names: list[str], tensors: dict[str, Tensor], file: Path) -> None:
    from safetensors.torch import save_file

    save_file(unshare_memory({name: tensors[name] for name in names}), file, metadata={"format": "pt"})


def unshare_memory(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the CPU, contiguous, no two in the same memory."""
    seen: set[int] = set()
    result = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        pointer = tensor.untyped_storage().data_ptr()
        result[name] = tensor.clone() if pointer in seen else tensor
        seen.add(pointer)
    return result
