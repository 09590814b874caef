"""Presets of models with Llama's architecture: Mistral, Qwen2.5 and 3, SmolLM2 and 3, OLMo 2, Phi-3.

Each is `llama` with other sizes and the parts that its `family` fixes (`llama.VARIANTS`); `changes` are
arguments of `llama`.
"""

from __future__ import annotations

from typing import Any

from ...attention.parts.positions import Rotary
from ..config import TextConfig
from .llama import llama


def mistral(**changes: Any) -> TextConfig:
    """Mistral 7B 0.1 (Jiang et al. 2023): a window of 4096 tokens; 7,241,732,096 parameters.

    >>> mistral(layers=1).stack.mask
    Causal() & Window(before=4095)
    """
    sizes = {"layers": 32, "dim": 4096, "heads": 32, "kv_heads": 8, "hidden": 14336, "vocabulary": 32000}
    return llama(**{**sizes, "window": 4096, "family": "mistral", **changes})


def qwen2(**changes: Any) -> TextConfig:
    """Qwen2.5 0.5B (Qwen team 2024): biases of q, k and v; 494,032,768 parameters.

    >>> qwen2(layers=1).stack.bias
    'qkv'
    """
    sizes = {"layers": 24, "dim": 896, "heads": 14, "kv_heads": 2, "hidden": 4864, "vocabulary": 151936}
    own = {"bias": "qkv", "eps": 1e-6, "position": Rotary(1000000.0), "tied": True, "family": "qwen2"}
    return llama(**{**sizes, **own, **changes})


def qwen3(**changes: Any) -> TextConfig:
    """Qwen3 0.6B (Qwen team 2025): a norm of each head of q and k, no biases; 596,049,920 parameters.

    >>> qwen3(layers=1).stack.qk_norm
    'head'
    """
    sizes = {"layers": 28, "dim": 1024, "heads": 16, "kv_heads": 8, "head_dim": 128, "hidden": 3072}
    own = {"vocabulary": 151936, "eps": 1e-6, "position": Rotary(1000000.0), "tied": True, "family": "qwen3"}
    return llama(**{**sizes, **own, **changes})


def smollm2(**changes: Any) -> TextConfig:
    """SmolLM2 135M (Allal et al. 2025), a Llama; 134,515,008 parameters.

    >>> smollm2(layers=1).stack.kv_heads
    3
    """
    sizes = {"layers": 30, "dim": 576, "heads": 9, "kv_heads": 3, "hidden": 1536, "vocabulary": 49152}
    return llama(**{**sizes, "position": Rotary(100000.0), "tied": True, **changes})


def smollm3(**changes: Any) -> TextConfig:
    """SmolLM3 3B (2025): every fourth layer has no position; 3,075,098,624 parameters.

    >>> smollm3(layers=4).stack.position.positions[3]
    """
    sizes = {"layers": 36, "dim": 2048, "heads": 16, "kv_heads": 4, "hidden": 11008, "vocabulary": 128256}
    layers = changes.get("layers", 36)
    positions = tuple(Rotary(5000000.0) if (n + 1) % 4 else None for n in range(layers))
    own = {"position": positions, "eps": 1e-6, "tied": True, "family": "smollm3"}
    return llama(**{**sizes, **own, **changes})


def olmo2(**changes: Any) -> TextConfig:
    """OLMo 2 1B (2025): norms of the outputs, and of q and k over all heads; 1,484,916,736 parameters.

    >>> olmo2(layers=1).stack.residual
    'output'
    """
    sizes = {"layers": 16, "dim": 2048, "heads": 16, "kv_heads": 16, "hidden": 8192, "vocabulary": 100352}
    own = {"eps": 1e-6, "position": Rotary(500000.0), "family": "olmo2"}
    return llama(**{**sizes, **own, **changes})


def phi3(**changes: Any) -> TextConfig:
    """Phi-3 mini 4k (Abdin et al. 2024): a window of 2047 tokens; 3,821,079,552 parameters.

    >>> phi3(layers=1).stack.heads
    32
    """
    sizes = {"layers": 32, "dim": 3072, "heads": 32, "kv_heads": 32, "hidden": 8192, "vocabulary": 32064}
    return llama(**{**sizes, "window": 2047, "family": "phi3", **changes})
