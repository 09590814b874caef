"""Tiny random models of every text, vision and speech family of the installed transformers, and inputs that they read.

A configuration names its sizes in one of a few ways; those known here are made small, in the configurations of its
parts too. A family whose small model cannot be built, or reads none of the inputs tried, raises with the reason.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor

from tiny_inputs import list_inputs
from tiny_sizes import BACKBONE, IMAGES, LAYER_COUNTS, SIZES, SPECIAL, TOKENS, WIDTHS

LARGEST = 100_000_000  # parameters of a model that is tried
TEXT_HEADS = ("SEQ_TO_SEQ_CAUSAL_LM", "CAUSAL_LM", "MASKED_LM")
"""The tables of transformers' automatic classes that list text families, in the order in which a class is taken."""

SPEECH_HEADS = ("SPEECH_SEQ_2_SEQ", "CTC", "AUDIO_CLASSIFICATION", "RNNT", "TDT", "AUDIO_FRAME_CLASSIFICATION")
SPEECH_HEADS += ("TEXT_TO_SPECTROGRAM", "TEXT_TO_WAVEFORM")
VISION_HEADS = ("IMAGE_CLASSIFICATION", "OBJECT_DETECTION", "VIDEO_CLASSIFICATION", "SEMANTIC_SEGMENTATION")
VISION_HEADS += ("UNIVERSAL_SEGMENTATION", "INSTANCE_SEGMENTATION", "IMAGE_SEGMENTATION", "DEPTH_ESTIMATION")
VISION_HEADS += ("MASK_GENERATION", "ZERO_SHOT_OBJECT_DETECTION", "ZERO_SHOT_IMAGE_CLASSIFICATION", "POSE_ESTIMATION")
VISION_HEADS += ("KEYPOINT_DETECTION", "KEYPOINT_MATCHING", "IMAGE_TO_IMAGE", "IMAGE_MATTING", "TEXT_RECOGNITION")
VISION_HEADS += ("TABLE_RECOGNITION", "VISUAL_QUESTION_ANSWERING", "IMAGE_TEXT_TO_TEXT", "CAUSAL_IMAGE_MODELING")
VISION_HEADS += ("MASKED_IMAGE_MODELING", "NORMAL_ESTIMATION", "IMAGE", "BACKBONE")
KINDS = {"speech": SPEECH_HEADS, "text": TEXT_HEADS, "vision": VISION_HEADS}
"""A family is of the first kind that lists it: Whisper, say, also has a decoder that reads text alone."""

SPEECH_WORDS = ("audio", "speech", "wav", "whisper", "asr", "codec", "mimi", "clap", "clvp", "hubert", "dac", "voxtral")
SPEECH_WORDS += ("parakeet", "vibevoice", "univnet", "transcribe")
VISION_WORDS = (
    "vision",
    "image",
    "vit",
    "clip",
    "vl_",
    "video",
    "flava",
    "bridgetower",
    "sam",
    "tvp",
    "aria",
    "pixtral",
    "aimv2",
    "mgp",
    "radio",
    "uvdoc",
    "seggpt",
)
"""Words in the name of a family that only the table of base models lists; without one of them it reads text."""

NO_TEXT = ("autoformer", "informer", "patchtsmixer", "patchtst", "time_series_transformer", "timesfm", "timesfm2_5")
NO_TEXT += ("decision_transformer",)
"""Families in that table which read time series, or what an agent did."""


class Family(NamedTuple):
    """A `model_type` of transformers, what it reads, and the class that is tried."""

    name: str
    kind: str
    model: str


def list_families(*kinds: str) -> dict[str, Family]:
    """The families of those kinds (`text`, `vision`, `speech`; all without one), by `model_type`."""
    auto, families = transformers.models.auto.modeling_auto, {}
    for kind, heads in KINDS.items():
        for head in heads:
            for name, classes in getattr(auto, f"MODEL_FOR_{head}_MAPPING_NAMES").items():
                families.setdefault(name, Family(name, kind, classes if isinstance(classes, str) else classes[0]))
    for name, classes in auto.MODEL_MAPPING_NAMES.items():
        words = {"speech": SPEECH_WORDS, "vision": VISION_WORDS}
        kind = next((kind for kind, known in words.items() if any(word in name for word in known)), "text")
        if name not in NO_TEXT:
            families.setdefault(name, Family(name, kind, classes if isinstance(classes, str) else classes[0]))
    return {name: family for name, family in sorted(families.items()) if not kinds or family.kind in kinds}


def tiny_sizes(config_type: Any, small: dict[str, Any]) -> dict[str, Any]:
    """The arguments that make a configuration small, with those of the configurations inside it."""
    default = config_type()
    sizes: dict[str, Any] = {}
    by_stage = any(isinstance(getattr(default, name, None), list | tuple) for name in ("num_heads", "hidden_sizes"))
    for name, value in small.items():
        if isinstance(getattr(config_type, name, None), property):
            continue
        try:
            current = getattr(default, name)
        except Exception:  # it differs by layer, or is not there
            continue
        listed = isinstance(current, list | tuple)
        if by_stage and name in WIDTHS and name not in TOKENS:
            continue
        if not listed:
            sizes[name] = value
        elif name in IMAGES:
            sizes[name] = type(current)([value] * len(current))
    stages = getattr(default, "depths", None)
    if isinstance(stages, list | tuple):
        sizes = {name: value for name, value in sizes.items() if name not in LAYER_COUNTS}
        sizes["depths"] = [1] * len(stages)
    else:
        sizes |= by_layer(default, sizes)
    rotary = getattr(default, "rope_parameters", None)
    if isinstance(rotary, dict) and rotary and "hidden_size" in sizes and has_rotary_sections(config_type):
        sizes["rope_parameters"] = with_sections(rotary)
    for name in config_type.sub_configs:
        inner = getattr(default, name, None)
        if getattr(inner, "model_type", "").startswith("timm"):
            stages = len(getattr(inner, "out_indices", None) or (0,))
            sizes[name] = {**BACKBONE, "out_features": ["stage2", "stage3", "stage4"][-stages:]}
        elif isinstance(inner, transformers.PreTrainedConfig):
            sizes[name] = {**tiny_sizes(type(inner), small), **outputs_of(inner), "model_type": inner.model_type}
    for name, value in SPECIAL.get(config_type.model_type, {}).items():
        inside = isinstance(value, dict) and name in config_type.sub_configs
        sizes[name] = {**sizes.get(name, {}), **value} if inside else value
    return sizes


def outputs_of(backbone: Any) -> dict[str, Any]:
    """The layers of a backbone that a model reads: its stages, or as many of its first layers."""
    count = len(getattr(backbone, "out_features", None) or ())
    if count < 2:
        return {}
    if hasattr(backbone, "depths"):
        return {"out_features": list(backbone.out_features)}
    return {"num_hidden_layers": count, "out_indices": list(range(1, count + 1))}


def by_layer(default: Any, sizes: dict[str, Any]) -> dict[str, Any]:
    """The lists of a configuration that have an entry a layer, shortened: one layer of each kind, two at least."""
    count = next((name for name in LAYER_COUNTS if name in sizes), None)
    layers = count and getattr(default, count, None)
    lists = {
        name: value
        for name, value in vars(default).items()
        if isinstance(value, list | tuple) and layers and len(value) == layers and not name.startswith("_")
    }
    kinds = [list(dict.fromkeys(value)) for value in lists.values() if all(isinstance(x, str) for x in value)]
    if not kinds:
        return {name: list(value[:2]) for name, value in lists.items()}
    chosen = max(kinds, key=len)
    first = [value.index(x) for value in lists.values() if set(chosen) == set(value) for x in chosen]
    at = sorted(dict.fromkeys(first)) if len(chosen) > 1 else [0, 1]
    return {str(count): len(at)} | {name: [value[x] for x in at] for name, value in lists.items()}


def with_sections(rotary: dict[str, Any]) -> dict[str, Any]:
    """Parameters of a rotary embedding, perhaps one set for each kind of layer, with the sections of three axes."""
    if any(isinstance(value, dict) for value in rotary.values()):
        return {name: with_sections(value) if isinstance(value, dict) else value for name, value in rotary.items()}
    turned = rotary.get("partial_rotary_factor", 1.0) * 4  # half of head_dim 8
    return {**rotary, "mrope_section": [2, 1, 1] if turned == 4 else [1, 1, 0]}


def has_rotary_sections(config_type: Any) -> bool:
    """Whether the model's rotary embedding is shared by several axes."""
    try:
        module = importlib.import_module(config_type.__module__.replace("configuration_", "modeling_"))
    except ImportError:
        return False
    return "mrope_section" in inspect.getsource(module)


def build(model_type: Any, small: dict[str, Any], name: str = "") -> Any:
    """A random model of that class, for the `model_type` of that name; `ValueError` when it is too large."""
    config_type = model_type.config_class
    if name.endswith(("_text", "_encoder")) and name in transformers.CONFIG_MAPPING:
        config_type = transformers.CONFIG_MAPPING[name]  # the class may name the configuration of the whole model
    config = config_type(**tiny_sizes(config_type, small))
    with torch.device("meta"):
        size = sum(p.numel() for p in model_type(config).parameters())
    if size > LARGEST:
        raise ValueError(f"its sizes have other names: {size:,} parameters")
    torch.manual_seed(0)
    model = model_type(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point() and parameter.dim() > 1:
                std = min(0.2, (parameter[0].numel() or 1) ** -0.5)  # more would make wide models chaotic
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)
        for buffer in model.buffers():  # codebooks that training fills
            if buffer.is_floating_point() and buffer.dim() > 1 and not buffer.any():
                buffer.copy_(torch.randn(buffer.shape, generator=generator))
    return model


class TinyModel(NamedTuple):
    """A model with the inputs that it reads; several where padding is on the right and on the left."""

    model: Any
    inputs: list[dict[str, Tensor]]


def tiny_model(family: Family) -> TinyModel:
    """The smallest model of a family that can be built and run; the first reason against it otherwise."""
    model_type, reason = getattr(transformers, family.model), None
    for small in SIZES:
        try:
            model = build(model_type, small, family.name)
            model.set_attn_implementation("eager")
        except Exception as error:
            reason = reason or error
            continue
        for inputs in list_inputs(model, family.kind):
            try:
                with torch.no_grad():
                    list(map(lambda batch: call(model, batch), inputs))
                return TinyModel(model, inputs)
            except Exception as error:
                reason = reason or error
    raise reason or ValueError("no input fits it")


def call(model: Any, inputs: dict[str, Tensor], forward: Callable[..., Any] | None = None, **options: Any) -> Any:
    """The output for these inputs, without a cache; random numbers inside are the same in each call.

    `forward` is called in place of the model itself, as a compiled one.
    """
    torch.manual_seed(0)
    if "use_cache" in inspect.signature(model.forward).parameters:
        options.setdefault("use_cache", False)
    return (forward or model)(**inputs, **options)
