"""Tiny random models of every text, vision and speech family of the installed transformers, and inputs that they read.

A configuration names its sizes in one of a few ways; those known here are made small, in the configurations of its
parts too. A family whose small model cannot be built, or reads none of the inputs tried, raises with the reason.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor

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
KINDS = {"text": TEXT_HEADS, "speech": SPEECH_HEADS, "vision": VISION_HEADS}

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

LAYERS: dict[str, Any] = {
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_encoder_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_decoder_layers", "depth", "num_block_layers"), 2),
    **dict.fromkeys(("num_encoder_hidden_layers", "num_decoder_hidden_layers"), 2),
    **dict.fromkeys(("encoder_num_hidden_layers", "decoder_num_hidden_layers"), 2),
}
LAYER_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
IMAGES: dict[str, Any] = {"image_size": 32, "patch_size": 8, "num_frames": 2, "tubelet_size": 1, "num_labels": 3}
IMAGES |= {"num_queries": 5}
IMAGES |= {"temporal_patch_size": 1, "spatial_merge_size": 2, "frames_per_clip": 2, "crop_size": 32}
WIDTHS: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "text_vocab_size", "decoder_vocab_size"), 61),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "emb_dim", "embed_dim", "embedding_size"), 32),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "num_encoder_attention_heads", "num_decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "swa_num_key_value_heads"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "attention_head_dim", "kv_channels", "swa_head_dim", "swa_v_head_dim"), 8),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "rotary_dim"), 8),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "n_inner", "ffn_hidden_size", "hidden_dim"), 48),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "d_inner", "mlp_dim"), 48),
    **dict.fromkeys(("out_hidden_size", "encoder_hidden_size", "decoder_hidden_size"), 32),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 16),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "projection_dim"), 16),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_source_positions", "max_target_positions"), 64),
    **dict.fromkeys(("sliding_window", "attention_window", "local_attention", "window_size"), 4),
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "n_group": 1},
    **{"topk_group": 1, "first_k_dense_replace": 1, "n_shared_experts": 1, "type_vocab_size": 2},
    **dict.fromkeys(("mamba_n_groups", "mamba_ngroups", "n_mamba_heads"), 1),
    **dict.fromkeys(("mamba_d_state", "mamba_d_ssm", "ssm_state_size", "hidden_size_per_layer_input"), 8),
    **dict.fromkeys(("mamba_chunk_size", "chunk_size", "laurel_rank", "num_kv_shared_layers"), 4),
    **{"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_headdim": 16, "mamba_expand": 2},
    **{"vocab_size_per_layer_input": 61},
}
"""Sizes by the names that configurations have for them; a name that a configuration does not have is left out."""

TOKENS = ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "projection_dim")
SIZES: tuple[dict[str, Any], ...] = ({**LAYERS, **IMAGES, **WIDTHS}, {**LAYERS, **WIDTHS}, {**LAYERS, **IMAGES}, LAYERS)
"""The sets of sizes that are tried in turn: some families check that their widths fit each other."""

LATENT = {"num_key_value_heads": 4}  # multi-head latent attention has keys for every head
MIXED = {"num_hidden_layers": 4}  # every fourth layer has attention
LOCAL_GLOBAL = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}
SPECIAL: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("axk1", "axk2", "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite"), LATENT),
    **dict.fromkeys(("glm_moe_dsa", "longcat_flash", "minicpm3", "youtu", "esmc"), LATENT),
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "qwen4_exp_text"), MIXED),
    **dict.fromkeys(("gemma3n_text", "cohere_compass_text"), LOCAL_GLOBAL),
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "zaya": {"num_experts_per_tok": 1},
    "xmod": {"default_language": "en_XX"},
    "reformer": {"is_decoder": True, "axial_pos_shape": [4, 16], "axial_pos_embds_dim": [16, 16]},
    "luke": {"entity_vocab_size": 11},
}
"""What some families need besides."""


BACKBONE = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1]}
"""In place of a backbone that another library has."""


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
        sizes["depths"] = [1] * len(stages)
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
            sizes[name] = {**tiny_sizes(type(inner), small), "model_type": inner.model_type}
    return {**sizes, **{k: v for k, v in SPECIAL.get(config_type.model_type, {}).items()}}


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


def build(model_type: Any, small: dict[str, Any]) -> Any:
    """A random model of that class; `ValueError` when it is too large."""
    config_type = model_type.config_class
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
                std = min(0.2, parameter[0].numel() ** -0.5)  # more would make wide models chaotic
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)
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
            model = build(model_type, small)
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


def list_inputs(model: Any, kind: str) -> Iterator[list[dict[str, Tensor]]]:
    """Batches that a model may read, the likeliest first."""
    names = inspect.signature(model.forward).parameters
    if "grid_thw" in names:
        yield [patches(model, next(iter(names)))]
    if (kind == "text" or model.main_input_name == "input_ids") and "input_ids" in names:
        yield padded_tokens(model)
    for media in media_inputs(model, names):
        if getattr(model.config, "is_encoder_decoder", False):
            yield [{**media, "decoder_input_ids": draw_tokens(5)}]
        if "input_ids" in names:
            yield [{**media, "input_ids": draw_tokens(9), "attention_mask": torch.ones(2, 9, dtype=torch.long)}]
        yield [media]
    if "input_ids" in names:
        yield [{"input_ids": draw_tokens(9)}]


def draw_tokens(tokens: int) -> Tensor:
    return torch.randint(3, 61, (2, tokens), generator=torch.Generator().manual_seed(1))


def padded_tokens(model: Any) -> list[dict[str, Tensor]]:
    """Tokens with padding on the right, and on the left."""
    tokens, batches = draw_tokens(9), []
    for mask in (torch.arange(9) < torch.tensor([[9], [6]]), torch.arange(9) >= torch.tensor([[0], [3]])):
        inputs = {"input_ids": tokens.masked_fill(~mask, 0), "attention_mask": mask.long()}
        if getattr(model.config, "is_encoder_decoder", False):
            inputs["decoder_input_ids"] = tokens[:, :5].clone()
        batches.append(inputs)
    return batches


def patches(model: Any, name: str) -> dict[str, Tensor]:
    """The patches of two images of 4 × 4, one after the other, `[patches, numbers of a patch]`."""
    patch, frames = (search(model.config, key, 1) for key in ("patch_size", "temporal_patch_size"))
    numbers = search(model.config, "num_channels", search(model.config, "in_channels", 3)) * frames * patch**2
    x = torch.randn(32, numbers, generator=torch.Generator().manual_seed(1))
    return {name: x, "grid_thw": torch.tensor([[1, 4, 4], [1, 4, 4]])}


def media_inputs(model: Any, names: Any) -> Iterator[dict[str, Tensor]]:
    """Images, videos, waveforms and spectrograms under the names that a model has for them."""
    config = model.config
    draw = torch.Generator().manual_seed(1)
    channels = search(config, "num_channels", 3)
    for name in ("pixel_values", "pixel_values_videos"):
        if name in names:
            for size in unique(search(config, "image_size", 32), 32, 64, 224):
                height, width = size if isinstance(size, list | tuple) else (size, size)
                frames = search(config, "num_frames", 2)
                for shape in ((2, channels, height, width), (2, frames, channels, height, width)):
                    yield {name: torch.randn(shape, generator=draw)}
    for name in ("input_values", "input_features"):
        if name in names:
            yield from sounds(name, config, draw)


def sounds(name: str, config: Any, draw: torch.Generator) -> Iterator[dict[str, Tensor]]:
    if name == "input_values":
        for shape in ((2, 1600), (2, 1, 1600), (2, 1, 3840), (2, 16000)):
            yield {name: torch.randn(shape, generator=draw)}
    bins = unique(*(search(config, key, None) for key in ("num_mel_bins", "input_feat_per_channel", "feature_size")))
    length = search(config, "max_source_positions", None)
    for count in (*bins, 80, 128):
        for frames in unique(search(config, "max_length", None), length and 2 * length, 64, 100):
            for shape in ((2, count, frames), (2, frames, count), (2, 1, frames, count)):
                yield {name: torch.randn(shape, generator=draw)}


def search(config: Any, name: str, default: Any) -> Any:
    """A setting of a configuration or of one inside it."""
    for at in (config, *(getattr(config, inner, None) for inner in type(config).sub_configs)):
        value = getattr(at, name, None)
        if value is not None:
            return value
    return default


def unique(*values: Any) -> list[Any]:
    """The values that are there, each once."""
    listed: list[Any] = []
    return [value for value in values if value and not (value in listed or listed.append(value))]
