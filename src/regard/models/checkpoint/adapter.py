"""LoRA adapters in the format of `peft`: `adapter_config.json` and `adapter_model.safetensors`.

Names of layers are those of transformers where the family of the model has a layer for each of ours, so that `peft`
reads the folder onto the same checkpoint; otherwise they are ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn

from ...errors import BadInput, Unsupported, explain_damage
from ...nn.lora import LoraLinear, lora_layers, replace_module
from ..config import EncoderDecoderConfig, SequenceConfig
from ..interfaces import ModelConfig
from ..model import Model
from .checkpoint import FAMILIES, find_family
from .files import JsonObject, read_json, replace_files, text_writer, to_json
from .key_table import SAME, expand
from .weights import need_safetensors, read_single

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."


def save_adapter(model: nn.Module, folder: str | Path, base: str, family: str | None = None) -> None:
    """Write the LoRA of a model into a folder. `base` is the checkpoint that it belongs to, and `family` its family."""
    need_safetensors()
    from safetensors.torch import save_file

    layers = lora_layers(model)
    if not layers:
        raise BadInput("The model has no layer with LoRA, so there is no adapter to save. Train with lora_rank.")
    names = layer_names(layers, model.config if isinstance(model, Model) else None, family)
    tensors: dict[str, Tensor] = {}
    for path, layer in layers.items():
        tensors[f"{PREFIX}{names[path]}.lora_A.weight"] = layer.lora_a.detach().cpu().contiguous()
        tensors[f"{PREFIX}{names[path]}.lora_B.weight"] = layer.lora_b.detach().cpu().contiguous()
    first = next(iter(layers.values()))
    config = {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": base,
        "r": first.rank,
        "lora_alpha": first.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "modules_to_save": None,
        "target_modules": sorted({name.rpartition(".")[2] for name in names.values()}),
    }
    Path(folder).mkdir(parents=True, exist_ok=True)
    writers = {
        WEIGHTS: lambda file: save_file(tensors, file, {"format": "pt"}),
        CONFIG: text_writer(to_json(config)),
    }
    replace_files(Path(folder), writers)


def load_adapter(model: nn.Module, folder: str | Path) -> nn.Module:
    """The model with the LoRA of a folder beside its layers; `merge_lora` then adds it to their weights.

    Raises `BadInput` where a layer of the adapter is not in the model, and `Unsupported` for other kinds of adapters.
    """
    need_safetensors()
    from safetensors.torch import load_file

    folder = Path(folder)
    config = read_json(folder / CONFIG)
    check_config(config, folder)
    with explain_damage(folder / WEIGHTS):
        read_single(folder / WEIGHTS)
        tensors = load_file(folder / WEIGHTS)
    with explain_damage(folder):
        return add_adapter(model, folder, config, tensors)


def add_adapter(model: nn.Module, folder: Path, config: JsonObject, tensors: dict[str, Tensor]) -> nn.Module:
    """The model with the LoRA of these tensors of a folder."""
    own = {path for path, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    ours = their_layers(own, model.config if isinstance(model, Model) else None)
    for key in sorted(name for name in tensors if name.endswith(".lora_A.weight")):
        theirs = key.removeprefix(PREFIX).removesuffix(".lora_A.weight")
        path = ours.get(theirs)
        if path is None:
            raise BadInput(
                f"{folder}: this model has no layer {theirs!r}. Load the checkpoint that the adapter is for."
            )
        a, b = tensors[key], tensors[key.replace(".lora_A.", ".lora_B.")]
        layer = LoraLinear.from_linear(model.get_submodule(path), len(a), scaled_alpha(config, len(a)))  # type: ignore[arg-type]
        with torch.no_grad():
            layer.lora_a.copy_(a)
            layer.lora_b.copy_(b)
        replace_module(model, path, layer)
    left = [name for name in tensors if not name.endswith((".lora_A.weight", ".lora_B.weight"))]
    if left:
        raise Unsupported(f"{folder} also has {left[0]}, which is not read here. Save the adapter of LoRA alone.")
    return model


def merge_lora(model: nn.Module) -> nn.Module:
    """The model with LoRA's products added to its weights, and plain linear layers."""
    for path, layer in lora_layers(model).items():
        replace_module(model, path, layer.merge())
    return model


def check_config(config: JsonObject, folder: Path) -> None:
    """Raise `Unsupported` for what an adapter may have beside plain LoRA."""
    if config.get("peft_type") != "LORA":
        raise Unsupported(f"{folder} holds an adapter of type {config.get('peft_type')!r}; LORA is read here.")
    for name in ("use_dora", "rank_pattern", "alpha_pattern", "lora_bias"):
        if config.get(name):
            raise Unsupported(f"{folder / CONFIG} has {name}, which is not read here.")


def scaled_alpha(config: JsonObject, rank: int) -> float:
    """The alpha whose product has the scale of the configuration: alpha / r, or alpha / √r with `use_rslora`."""
    alpha = float(config.get("lora_alpha", 8))
    return alpha * rank**0.5 if config.get("use_rslora") else alpha


def layer_names(paths: Iterable[str], config: ModelConfig | None, family: str | None = None) -> dict[str, str]:
    """Their name of each layer, or our own where the family has no layer for each of these."""
    own_family = None if config is None else config.family
    paths, family = list(paths), family or own_family
    if config is None or family not in FAMILIES:
        return {path: path for path in paths}
    module = find_family(family, "this model")
    try:
        keys = module.keys(config)
    except (AttributeError, TypeError, ValueError):
        return {path: path for path in paths}
    weights = [f"{path}.weight" for path in paths]
    rows = [row for key in keys for row in expand(key, weights)]
    theirs_by_ours = {
        row.ours[0]: row.theirs.removesuffix(".weight") for row in rows if row.change is SAME and len(row.ours) == 1
    }
    if set(theirs_by_ours) != set(weights):
        return {path: path for path in paths}
    # a model of ours with a head of its own is their model without a head
    has_head = isinstance(config, SequenceConfig | EncoderDecoderConfig) and config.head is not None
    strip = has_head and own_family is None
    return {path: theirs_by_ours[f"{path}.weight"].removeprefix(module.PREFIX if strip else "") for path in paths}


def their_layers(own: Iterable[str], config: ModelConfig | None) -> dict[str, str]:
    """Our path by every name that an adapter may have for a layer: ours, theirs, theirs with the prefix of a head."""
    own = list(own)
    paths = {path: path for path in own}
    family = None if config is None else config.family
    blocks = [path for path in own if ".blocks." in f".{path}"]
    if family in FAMILIES:
        prefix = find_family(family, "this model").PREFIX
        for path, name in layer_names(blocks, config).items():
            plain = name.removeprefix(prefix)
            paths |= {name: path, plain: path, prefix + plain: path}
    return paths
