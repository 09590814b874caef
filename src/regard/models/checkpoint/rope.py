"""Rotary positions in Hugging Face configurations: `rope_parameters`, or the older `rope_theta` and `rope_scaling`."""

from __future__ import annotations

import math

from ...attention.parts.positions import Position, Rotary
from ...errors import BadInput, Unsupported
from ...nn.parts.rotary import DynamicRotary, LongRotary, RotarySpec, ScaledRotary, YarnRotary
from .files import JsonObject

SCALINGS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


def read_rotary(
    config: JsonObject, head_dim: int, *, rope: JsonObject | None = None, base: float = 10000.0, partial: float = 1.0
) -> Rotary | RotarySpec:
    """The rotary position of their configuration, or of the `rope` of one kind of layer in it.

    `base` and `partial` (the share of a head that is rotated) are the family's own where the folder has none.
    """
    if rope is None:
        rope = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    base = float(rope.get("rope_theta") or config.get("rope_theta") or base)
    share = rope.get("partial_rotary_factor") or config.get("partial_rotary_factor") or partial
    dim = None if share == 1.0 else int(head_dim * share)
    scaling = rope.get("rope_type") or rope.get("type") or "default"
    if scaling == "default":
        return Rotary(base, dim)
    if scaling == "linear":
        return ScaledRotary(base, dim, linear=float(rope["factor"]))
    if scaling == "dynamic":
        return DynamicRotary(base, dim, float(rope["factor"]), int(config["max_position_embeddings"]))
    if scaling == "llama3":
        factors: JsonObject = {"low": float(rope["low_freq_factor"]), "high": float(rope["high_freq_factor"])}
        original = int(rope["original_max_position_embeddings"])
        return ScaledRotary(base, dim, factor=float(rope["factor"]), **factors, original=original)
    if scaling in ("longrope", "su") or "short_factor" in rope:  # the first Phi-3 called it yarn
        return read_long(config, rope, base, dim)
    if scaling == "yarn":
        return read_yarn(config, rope, base, dim)
    raise Unsupported(f"This checkpoint scales its rotary positions by {scaling!r}; supported: {', '.join(SCALINGS)}.")


def read_yarn(config: JsonObject, rope: JsonObject, base: float, dim: int | None) -> YarnRotary:
    original = int(rope.get("original_max_position_embeddings") or config["max_position_embeddings"])
    factor = float(rope.get("factor") or config["max_position_embeddings"] / original)
    scale, inner, outer = rope.get("attention_factor"), rope.get("mscale"), rope.get("mscale_all_dim")
    if scale is None and inner and outer and factor > 1:
        scale = (0.1 * inner * math.log(factor) + 1.0) / (0.1 * outer * math.log(factor) + 1.0)
    return YarnRotary(
        base, dim, factor, original, float(rope.get("beta_fast") or 32), float(rope.get("beta_slow") or 1),
        bool(rope.get("truncate", True)), scale,
    )  # fmt: skip


def read_long(config: JsonObject, rope: JsonObject, base: float, dim: int | None) -> LongRotary:
    original = rope.get("original_max_position_embeddings") or config.get("original_max_position_embeddings")
    original = original or config["max_position_embeddings"]
    scale = rope.get("attention_factor")
    if scale is None:
        factor = rope.get("factor") or config["max_position_embeddings"] / original
        scale = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return LongRotary(base, dim, tuple(rope["short_factor"]), tuple(rope["long_factor"]), int(original), float(scale))


def write_rotary(position: Position | None, head_dim: int) -> JsonObject:
    """Both forms: `rope_parameters`, and `rope_theta` with `rope_scaling` for older readers."""
    rope = write_rope(position, head_dim)
    base = rope["rope_theta"]
    old = {name: value for name, value in rope.items() if name not in ("rope_theta", "partial_rotary_factor")}
    length: JsonObject = {}
    if "partial_rotary_factor" in rope:
        length["partial_rotary_factor"] = rope["partial_rotary_factor"]
    if isinstance(position, DynamicRotary):
        length["max_position_embeddings"] = position.original
    if isinstance(position, LongRotary):
        length["original_max_position_embeddings"] = position.original
    scaling = None if rope["rope_type"] == "default" else old
    return {"rope_parameters": rope, "rope_theta": base, "rope_scaling": scaling, **length}


def write_rope(position: Position | None, head_dim: int) -> JsonObject:
    """The `rope_parameters` of a position."""
    if not isinstance(position, Rotary | RotarySpec) or getattr(position, "pairs", "halves") != "halves":
        raise BadInput(f"This family cannot be written with the position {position!r}; use Rotary.")
    rope: JsonObject = {**write_scaling(position), "rope_theta": position.base}
    if position.dim is not None:
        share = position.dim / head_dim
        exact = int(head_dim * share) == position.dim
        rope["partial_rotary_factor"] = share if exact else (position.dim + 0.5) / head_dim
    return rope


def write_scaling(position: Rotary | RotarySpec) -> JsonObject:
    if isinstance(position, YarnRotary):
        scaling = {
            "rope_type": "yarn", "factor": position.factor, "original_max_position_embeddings": position.original,
            "beta_fast": position.fast, "beta_slow": position.slow, "truncate": position.truncate,
        }  # fmt: skip
        return scaling if position.scale is None else {**scaling, "attention_factor": position.scale}
    if isinstance(position, DynamicRotary):
        return {"rope_type": "dynamic", "factor": position.factor}
    if isinstance(position, LongRotary):
        return {
            "rope_type": "longrope", "short_factor": list(position.short), "long_factor": list(position.long),
            "original_max_position_embeddings": position.original, "attention_factor": position.scale,
        }  # fmt: skip
    scaled = position if isinstance(position, ScaledRotary) else ScaledRotary()
    if scaled.linear != 1.0 and scaled.factor != 1.0:
        raise BadInput(f"This family cannot be written with the position {position!r}: use one of linear and factor.")
    if scaled.linear != 1.0:
        return {"rope_type": "linear", "factor": scaled.linear}
    if scaled.factor != 1.0:
        return {
            "rope_type": "llama3", "factor": scaled.factor, "low_freq_factor": scaled.low,
            "high_freq_factor": scaled.high, "original_max_position_embeddings": scaled.original,
        }  # fmt: skip
    return {"rope_type": "default"}
