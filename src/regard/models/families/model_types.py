"""The `model_type` of Hugging Face, and the module of this folder that reads and writes it."""

from __future__ import annotations

FAMILIES = {
    "albert": "albert",
    "bart": "bart",
    "bert": "bert",
    "big_bird": "bigbird",
    "camembert": "roberta",
    "clip": "clip",
    "clip_text_model": "clip",
    "clip_vision_model": "clip",
    "deberta-v2": "deberta_v3",
    "deit": "vit",
    "detr": "detr",
    "detr_timm": "detr",
    "dinov2": "dinov2",
    "distilbert": "distilbert",
    "electra": "electra",
    "gemma2": "gemma",
    "gemma3": "gemma",
    "gemma3_text": "gemma",
    "gpt2": "gpt2",
    "gpt_neox": "gpt_neox",
    "gpt_oss": "gpt_oss",
    "llama": "llama",
    "longformer": "longformer",
    "marian": "marian",
    "mbart": "bart",
    "mistral": "llama",
    "modernbert": "modernbert",
    "moonshine": "moonshine",
    "olmo2": "llama",
    "opt": "opt",
    "pegasus": "bart",
    "phi3": "llama",
    "qwen2": "llama",
    "qwen3": "llama",
    "roberta": "roberta",
    "siglip": "siglip",
    "siglip2": "siglip",
    "siglip2_text_model": "siglip",
    "siglip2_vision_model": "siglip",
    "siglip_text_model": "siglip",
    "siglip_vision_model": "siglip",
    "smollm3": "llama",
    "swin": "swin",
    "t5": "t5",
    "vit": "vit",
    "wav2vec2": "wav2vec2",
    "whisper": "whisper",
    "xlm-roberta": "roberta",
}

PREFIXES = {
    f"{name}_{side}_model": f"{side}_model." for name in ("clip", "siglip", "siglip2") for side in ("text", "vision")
}
"""The prefix of tensor names for a `model_type` that differs from its family's."""
