"""Models from folders and back: ours, and those of Hugging Face."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor

from ...assets import resolve_folder
from ...errors import BadInput, explain_damage
from ..config import as_dict, from_dict
from ..families.model_types import FAMILIES, PREFIXES
from ..generation.rules import read_rules, write_rules
from ..interfaces import ModelConfig
from ..model import Model
from ..tokenizers.tokenizer import Tokenizer
from .checksums import check_files
from .counterpart import find_counterpart
from .files import JsonObject, read_json, text_writer, to_json
from .folder import CONFIGS, Folder, open_folder, write_folder
from .key_table import Family, make_table, read_tensors, shorten_names, write_tensors
from .plausibility import check_sizes, check_types, limit_parameters

PROCESSORS = ("image_processor", "feature_extractor")
"""The parts of `processor_config.json` that prepare images and recordings."""


def load(folder: str | Path, *, dtype: torch.dtype | None = None) -> Model:
    """The model in a folder, in evaluation mode, with its `config` and (where there is one) `tokenizer`.

    Reads what `model.save` wrote, the best model of a run's folder, a model of the package (by its name, see
    `regard.assets`), and Hugging Face checkpoints (`config.json` and `*.safetensors`) of the families in `FAMILIES`.
    `dtype` converts the weights; those of a run, which may be stored in half precision, are float32 unless it is given.
    Raises `BadInput` that names the file and what to do.
    """
    with explain_damage(folder):
        folder = resolve_folder(folder)
        of_run = (folder / "run.json").is_file()
        dtype = torch.float32 if of_run and dtype is None else dtype
        opened = open_folder(folder / "model" if of_run else folder)
        with explain_damage(opened.path / CONFIGS[opened.format]):
            model = read_regard(opened) if opened.format == "regard" else read_hugging_face(opened)
            model.rules = read_rules(opened.generation, opened.config)
        model.tokenizer = Tokenizer.from_folder(opened.path)
        return (model if dtype is None else model.to(dtype)).eval()


def read_regard(folder: Folder) -> Model:
    """The model of a folder that `model.save` wrote."""
    check_files(folder.path, folder.checksums)
    path, weights = folder.path / CONFIGS["regard"], folder.weights()
    check_sizes(folder.config["model"], weights, path)
    config = from_dict(folder.config["model"])
    check_types(config, path)
    with limit_parameters(weights, path):
        model = build_empty(config)
    assign_weights(model, {name: weights.tensor(name) for name in weights.names()}, str(folder.path))
    return model


def read_labels(config: JsonObject) -> list[str] | None:
    """The names of the classes in a checkpoint's configuration, by their numbers."""
    labels = config.get("id2label")
    if not isinstance(labels, dict) or not all(str(n) in labels for n in range(len(labels))):
        return None
    return [str(labels[str(n)]) for n in range(len(labels))] or None


def read_preprocessor(folder: Path) -> JsonObject:
    """How a checkpoint's images or recordings are prepared; empty where its folder does not say."""
    own, shared = folder / "preprocessor_config.json", folder / "processor_config.json"
    if own.is_file() or not shared.is_file():
        return read_json(own) if own.is_file() else {}
    settings = read_json(shared)
    return next((settings[name] for name in PROCESSORS if isinstance(settings.get(name), dict)), {})


def read_hugging_face(folder: Folder) -> Model:
    """The model of a Hugging Face folder."""
    model_type, where, weights = folder.config.get("model_type"), str(folder.path), folder.weights()
    family = find_family(model_type, where)
    path = folder.path / CONFIGS["huggingface"]
    check_sizes(folder.config, weights, path)
    config = family.read(folder.config, {name: weights.shape(name) for name in weights.names()})
    check_types(config, path)
    with limit_parameters(weights, path):
        model = build_empty(config)
    rows = make_table(family.keys(config), list(own_tensors(model)))
    prefix = PREFIXES.get(str(model_type), family.PREFIX)
    assign_weights(model, read_tensors(rows, weights, prefix, family.IGNORED, where), where)
    model.labels, model.preprocessor = read_labels(folder.config), read_preprocessor(folder.path)
    return model


def save(model: Model, folder: str | Path, format: str = "regard") -> None:
    """Write configuration, weights and tokenizer into a folder."""
    tensors = own_tensors(model)
    others: dict[str, Callable[[Path], object]] = {}
    if model.rules is not None:
        others["generation_config.json"] = text_writer(to_json(write_rules(model.rules)))
    if model.tokenizer is not None:
        others |= model.tokenizer.file_writers()
    if format == "regard":
        write_folder(folder, {"model": as_dict(model.config)}, tensors, format="regard", others=others)
    elif format == "huggingface":
        if model.preprocessor:
            others["preprocessor_config.json"] = text_writer(to_json(model.preprocessor))
        family, named = find_counterpart(model, list(tensors))
        rows = make_table(family.keys(named), list(tensors))
        dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
        config = {**family.write(named), **write_labels(model.labels), "dtype": dtype}
        write_folder(folder, config, write_tensors(rows, tensors), format="huggingface", others=others)
    else:
        raise BadInput(f"format is {format!r}; it must be 'regard' or 'huggingface'.")


def write_labels(labels: list[str] | None) -> JsonObject:
    """The names of the classes as transformers has them."""
    if not labels:
        return {}
    return {
        "id2label": {str(n): label for n, label in enumerate(labels)},
        "label2id": {label: n for n, label in enumerate(labels)},
    }


def build_empty(config: ModelConfig) -> Model:
    """The model on the meta device: no weights are drawn that the checkpoint replaces."""
    with torch.device("meta"):
        return config.build()


def assign_weights(model: Model, tensors: dict[str, Tensor], where: str) -> None:
    """Give every parameter and buffer its tensor; `BadInput` names those that do not fit."""
    own = own_tensors(model)
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


def own_tensors(model: Model) -> dict[str, Tensor]:
    """The model's tensors by name; a tensor that several modules share has its first name only."""
    names: dict[int, str] = {}
    tensors = model.state_dict(keep_vars=True)
    for name, tensor in tensors.items():
        names.setdefault(id(tensor), name)
    return {name: tensors[name].detach() for name in names.values()}


def find_family(model_type: object, where: str) -> Family:
    """The module of `families` for this architecture."""
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise BadInput(
            f"{where}: the architecture {model_type!r} is not known here. Known are {', '.join(sorted(FAMILIES))}."
        )
    return import_module(f"regard.models.families.{FAMILIES[model_type]}")  # type: ignore[return-value]
