"""Random batches that a model of transformers may read: text, images, videos, waveforms and spectrograms."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor


def list_inputs(model: Any, kind: str) -> Iterator[list[dict[str, Tensor]]]:
    """Batches that a model may read, the likeliest first; what its `forward` demands besides is added."""
    names = inspect.signature(model.forward).parameters
    demanded = [name for name, x in names.items() if x.default is inspect.Parameter.empty and name in OTHER_INPUTS]
    demanded += [name for name in ALWAYS if name in names]
    for batches in usual_inputs(model, kind, names):
        yield [{**batch, **{name: OTHER_INPUTS[name](batch) for name in demanded}} for batch in batches]


def first_tokens(batch: dict[str, Tensor]) -> Tensor:
    return next((x for name, x in batch.items() if name.endswith("input_ids")), torch.zeros(2, 9, dtype=torch.long))


def mel_mask(batch: dict[str, Tensor]) -> Tensor:
    """Real frames of spectrograms, whose last axis is time."""
    return torch.ones(2, batch["input_features"].shape[-1] if "input_features" in batch else 9, dtype=torch.long)


OTHER_INPUTS: dict[str, Callable[[dict[str, Tensor]], Tensor]] = {
    "bbox": lambda batch: torch.arange(4).expand(*first_tokens(batch).shape, 4) * 5,
    "qformer_input_ids": lambda batch: draw_tokens(5),
    "input_features_mask": mel_mask,
    "feature_attention_mask": mel_mask,
    "visual_feats": lambda batch: torch.randn(2, 3, 2048, generator=torch.Generator().manual_seed(2)),
    "visual_pos": lambda batch: torch.rand(2, 3, 4, generator=torch.Generator().manual_seed(3)),
    "merge_sizes": lambda batch: torch.ones(2, dtype=torch.long),
    "task_inputs": lambda batch: draw_tokens(7),
    "image_embeds_position_mask": lambda batch: (torch.arange(first_tokens(batch).shape[1]) < 4).expand(2, -1),
}
"""What some families demand beside their text, images or sounds."""

ALWAYS = ("bbox", "visual_feats", "visual_pos", "image_embeds_position_mask")


def usual_inputs(model: Any, kind: str, names: Any) -> Iterator[list[dict[str, Tensor]]]:
    """Batches of text, images and sounds."""
    if "grid_thw" in names:
        yield [patches(model, next(iter(names)))]
    if "spatial_shapes" in names:
        yield [flat_patches(model)]
    if "decoder_input_ids" in names and search(model.config, "num_codebooks", None):
        yield [{"input_ids": draw_tokens(9), "decoder_input_ids": draw_codes(model)}]
    if "decoder_input_ids" in names and model.config.model_type == "dia":
        yield [{"input_ids": draw_tokens(9), "decoder_input_ids": draw_tokens(9)[:, :5, None].expand(-1, -1, 9)}]
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
    """Tokens with padding on the right, without any and without a mask, and with padding on the left."""
    tokens, batches = draw_tokens(9), []
    for mask in (torch.arange(9) < torch.tensor([[9], [6]]), torch.arange(9) >= torch.tensor([[0], [3]])):
        inputs = {"input_ids": tokens.masked_fill(~mask, 0), "attention_mask": mask.long()}
        if getattr(model.config, "is_encoder_decoder", False):
            inputs["decoder_input_ids"] = tokens[:, :5].clone()
        batches.append(inputs)
    right, left = batches
    whole = {**{name: x for name, x in right.items() if name != "attention_mask"}, "input_ids": tokens}
    return [right, whole, left]


def patches(model: Any, name: str) -> dict[str, Tensor]:
    """The patches of two images of 4 × 4, one after the other, `[patches, numbers of a patch]`."""
    patch, frames = (search(model.config, key, 1) for key in ("patch_size", "temporal_patch_size"))
    numbers = search(model.config, "num_channels", search(model.config, "in_channels", 3)) * frames * patch**2
    x = torch.randn(32, numbers, generator=torch.Generator().manual_seed(1))
    return {name: x, "grid_thw": torch.tensor([[1, 4, 4], [1, 4, 4]])}


def flat_patches(model: Any) -> dict[str, Tensor]:
    """The patches of two images, of 4 × 4 and 2 × 4, padded to 16, `[batch, patches, numbers of a patch]`."""
    numbers = search(model.config, "num_channels", 3) * search(model.config, "patch_size", 8) ** 2
    x = torch.randn(2, 16, numbers, generator=torch.Generator().manual_seed(1))
    real = torch.arange(16) < torch.tensor([[16], [8]])
    shapes = torch.tensor([[4, 4], [2, 4]])
    return {"pixel_values": x, "pixel_attention_mask": real.long(), "spatial_shapes": shapes}


def draw_codes(model: Any) -> Tensor:
    """Codes of sounds, `[batch · codebooks, tokens]`."""
    return draw_tokens(5).repeat_interleave(search(model.config, "num_codebooks", 1), 0)


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
    keys = ("num_mel_bins", "input_feat_per_channel", "feature_size", "feature_projection_input_dim", "input_dim")
    bins = unique(*(search(config, key, None) for key in keys))
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
