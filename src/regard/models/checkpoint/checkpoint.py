"""Models from folders and back: ours, and those of Hugging Face."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...assets import resolve_folder
from ...errors import BadInput
from ..config import as_dict, from_dict
from ..generation.rules import read_rules, write_rules
from ..model import Model
from ..tokenizers.tokenizer import Tokenizer
from .files import replace_files, text_writer, to_json
from .folder import Folder, open_folder, write_folder
from .key_table import Family, make_table, read_tensors, shorten_names, write_tensors

FAMILIES = {
    "bert": "bert",
    "big_bird": "bigbird",
    "camembert": "roberta",
    "clip": "clip",
    "clip_text_model": "clip",
    "clip_vision_model": "clip",
    "deit": "vit",
    "detr": "detr",
    "detr_timm": "detr",
    "distilbert": "distilbert",
    "gpt2": "gpt2",
    "llama": "llama",
    "longformer": "longformer",
    "marian": "marian",
    "mistral": "llama",
    "qwen2": "llama",
    "roberta": "roberta",
    "t5": "t5",
    "vit": "vit",
    "whisper": "whisper",
    "xlm-roberta": "roberta",
}
"""The `model_type` of Hugging Face, and the file of `families` for it."""

PREFIXES = {"clip_text_model": "text_model.", "clip_vision_model": "vision_model."}
"""The prefix of tensor names for a `model_type` that differs from its family's."""


def load(folder: str | Path, *, dtype: torch.dtype | None = None) -> Model:
    """The model in a folder, in evaluation mode, with its `config` and (where there is one) `tokenizer`.

    Reads what `model.save` wrote, the best model of a run's folder, a model of the package (by its name, see
    `regard.assets`), and Hugging Face checkpoints (`config.json` and `*.safetensors`) of the families in `FAMILIES`.
    `dtype` converts the weights; those of a run, which may be stored in half precision, are float32 unless it is given.
    Raises `BadInput` that names the file and what to do.
    """
    folder = resolve_folder(folder)
    of_run = (folder / "run.json").is_file()
    dtype = torch.float32 if of_run and dtype is None else dtype
    opened = open_folder(folder / "model" if of_run else folder)
    if opened.format == "regard":
        model, weights = build_empty(from_dict(opened.config["model"])), opened.weights()
        assign_weights(model, {name: weights.tensor(name) for name in weights.names()}, str(opened.path))
    else:
        model = read_hugging_face(opened)
    model.rules = read_rules(opened.generation, opened.config)
    model.tokenizer = Tokenizer.from_folder(opened.path)
    return (model if dtype is None else model.to(dtype)).eval()


def read_hugging_face(folder: Folder) -> Model:
    """The model of a Hugging Face folder."""
    model_type, where, weights = folder.config.get("model_type"), str(folder.path), folder.weights()
    family = find_family(model_type, where)
    config = family.read(folder.config, {name: weights.shape(name) for name in weights.names()})
    model = build_empty(config)
    rows = make_table(family.keys(config), tensor_names(model))
    prefix = PREFIXES.get(str(model_type), family.PREFIX)
    assign_weights(model, read_tensors(rows, weights, prefix, family.IGNORED, where), where)
    return model


def save(model: Model, folder: str | Path, format: str = "regard") -> None:
    """Write configuration, weights and tokenizer into a folder."""
    tensors = {name: model.state_dict()[name] for name in tensor_names(model)}
    if format == "regard":
        write_folder(folder, {"model": as_dict(model.config)}, tensors, format="regard")
    elif format == "huggingface":
        family = find_family(model.config.family, "this model")
        rows = make_table(family.keys(model.config), tensor_names(model))
        dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
        config = {**family.write(model.config), "dtype": dtype}
        write_folder(folder, config, write_tensors(rows, tensors), format="huggingface")
    else:
        raise BadInput(f"format is {format!r}; it must be 'regard' or 'huggingface'.")
    if model.rules is not None:
        replace_files(Path(folder), {"generation_config.json": text_writer(to_json(write_rules(model.rules)))})
    if model.tokenizer is not None:
        model.tokenizer.save(folder)


def build_empty(config: Any) -> Model:
    """The model on the meta device: no weights are drawn that the checkpoint replaces."""
    with torch.device("meta"):
        return config.build()


def assign_weights(model: Model, tensors: dict[str, Tensor], where: str) -> None:
    """Give every parameter and buffer its tensor; `BadInput` names those that do not fit."""
    own = {name: model.state_dict()[name] for name in tensor_names(model)}
    missing, left = sorted(set(own) - set(tensors)), sorted(set(tensors) - set(own))
    if missing or left:
        raise BadInput(
            f"{where}: the weights do not fit the model. Missing: {shorten_names(missing)}. "
            f"Left over: {shorten_names(left)}."
        )
    wrong = [
        f"{name} is {list(tensors[name].shape)}, wanted {list(own[name].shape)}"
        for name in own
        if tensors[name].shape != own[name].shape
    ]
    if wrong:
        raise BadInput(f"{where}: the shapes do not fit the configuration: {'; '.join(wrong[:6])}.")
    dtypes = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    dtype = dtypes.pop() if len(dtypes) == 1 else torch.float32
    plain = torch.contiguous_format
    ready = {n: (x.to(dtype) if x.is_floating_point() else x).clone(memory_format=plain) for n, x in tensors.items()}
    model.load_state_dict(ready, strict=False, assign=True)


def tensor_names(model: Model) -> list[str]:
    """The names of the model's tensors; a tensor that several modules share has its first name only."""
    seen: set[int] = set()
    names = []
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            names.append(name)
    return names


def find_family(model_type: Any, where: str) -> Family:
    """The module of `families` for this architecture."""
    if model_type not in FAMILIES:
        raise BadInput(
            f"{where}: the architecture {model_type!r} is not known here. Known are {', '.join(sorted(FAMILIES))}."
        )
    return import_module(f"regard.models.families.{FAMILIES[model_type]}")  # type: ignore[return-value]
