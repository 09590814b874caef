"""The page Image: the attention of patches and object queries, head distances in pixels, and rollout."""

from __future__ import annotations

from typing import TypedDict

import torch
from torch import Tensor

from ...errors import BadInput, TooLarge
from ..inputs.model_input import ImageMetadata, is_image
from ..inputs.notices import Notice
from ..inspect.attention_fields import AttentionFields, DistanceFields
from ..inspect.capture import Capture
from ..inspect.captured_attention import CapturedAttention
from ..inspect.distances import describe_with_distance
from ..inspect.predictions import PredictionFields
from ..lab import Lab
from ..protocol import Request
from ..server.jobs import Job
from .request import QueryWeights, weights_of_query

MAX_ROLLOUT = 2048
"""Tokens up to which rollout is computed."""
MAX_EXAMPLES, THUMBNAIL = 48, 48
"""Pictures of the menu of examples, and the pixels of their longer side."""


class CrossAttention(AttentionFields):
    """An attention of object queries, and the evenness of each head, `[heads]`."""

    entropy: Tensor
    entropy_share: Tensor
    peak: Tensor


class ImageRun(TypedDict):
    pixels: Tensor
    grid: list[int]
    size: list[int]
    cell: list[int]
    class_token: bool
    prediction: PredictionFields
    notices: list[Notice]
    attentions: list[DistanceFields]
    crossed: list[CrossAttention]
    queries: int
    backend: str | None
    difference: float | None


class Rollout(TypedDict):
    flow: Tensor


class ExamplePictures(TypedDict):
    """The examples of a model by name, and a small picture of each, `[3, height, width]` bytes."""

    names: list[str]
    pixels: list[Tensor]


def run(lab: Lab, request: Request, job: Job) -> ImageRun:
    """The image as the model reads it, its grid of patches, the prediction, and the distances of each head.

    `attentions` are the self-attentions of the image's tokens, `crossed` the cross-attentions of object queries.
    """
    capture = lab.capture(request, job)
    metadata = capture.metadata
    if not is_image(metadata):
        raise BadInput("This model reads no images. Choose one that does.")
    layers = self_attentions(capture)
    centres, real = patch_centres(metadata)
    filled = filled_patches(metadata)
    described = []
    for n, attention in enumerate(layers):
        job.report(n, len(layers), attention.label)
        described.append(describe_with_distance(attention, centres, real, filled))
    cross = cross_attentions(capture)
    return {
        "pixels": metadata["pixels"],
        "grid": metadata["grid"],
        "size": metadata["size"],
        "cell": metadata["cell"],
        "class_token": metadata["class_token"],
        "prediction": capture.prediction,
        "notices": capture.notices,
        "attentions": described,
        "crossed": [describe_cross(layer) for layer in cross],
        "queries": len(capture.tokens.get("target", ())),
        "backend": next((layer.backend for layer in layers + cross), None),
        "difference": max((layer.difference["largest"] for layer in layers + cross), default=None),
    }


def query(lab: Lab, request: Request, job: Job) -> QueryWeights:
    """The weights of one query on the image's tokens in every head, `[heads, tokens]` for each attention.

    With `crossed` the query is an object query of a detector, else one of the image's tokens.
    """
    capture = lab.capture(request, job)
    layers = cross_attentions(capture) if request.get("crossed") is True else self_attentions(capture)
    return {"weights": weights_of_query(layers, request)}


def cross_attentions(capture: Capture) -> list[CapturedAttention]:
    """The cross-attentions of object queries to the image's tokens."""
    return [layer for layer in capture.attentions if layer.role == "cross" and layer.key_side == "image"]


def describe_cross(attention: CapturedAttention) -> CrossAttention:
    """An attention with the entropy and the largest weight of each head."""
    stats = attention.stats([])
    return {
        **attention.describe(),
        "entropy": stats["entropy"],
        "entropy_share": stats["entropy_share"],
        "peak": stats["peak"],
    }


def self_attentions(capture: Capture) -> list[CapturedAttention]:
    """The self-attentions of the image's tokens."""
    count = len(capture.tokens["image"])
    return [a for a in capture.attentions if a.query_side == a.key_side == "image" and a.keys == count]


def patch_centres(metadata: ImageMetadata) -> tuple[Tensor, Tensor]:
    """The centre of each token's patch in pixels, `[tokens, 2]`, and which tokens are patches."""
    (rows, columns), (height, width) = metadata["grid"], metadata["cell"]
    y, x = torch.meshgrid(torch.arange(rows) + 0.5, torch.arange(columns) + 0.5, indexing="ij")
    centres = torch.stack([y.flatten() * height, x.flatten() * width], -1)
    extra = int(metadata["class_token"])
    real = torch.arange(extra + rows * columns) >= extra
    return torch.cat([centres.new_zeros(extra, 2), centres]), real


def filled_patches(metadata: ImageMetadata) -> Tensor:
    """Which tokens are patches of more than one colour, `[tokens]`; all tokens where every patch has one."""
    (rows, columns), (height, width) = metadata["grid"], metadata["cell"]
    pixels = metadata["pixels"].float()
    padding = (0, columns * width - pixels.shape[2], 0, rows * height - pixels.shape[1])
    patches = torch.nn.functional.pad(pixels, padding).unfold(1, height, height).unfold(2, width, width)
    spread = patches.flatten(3).std(-1, correction=0).amax(0).flatten()  # [rows * columns]
    filled = spread > 0.05 * float(pixels.max() - pixels.min())
    filled = torch.cat([filled.new_zeros(int(metadata["class_token"])), filled])
    return filled if bool(filled.any()) else torch.ones_like(filled)


def rollout(lab: Lab, request: Request, job: Job) -> Rollout:
    """Attention rollout over all layers, `[tokens, tokens]`; rows sum to one.

    A layer keeps half of a token and adds half of the mean of its heads (Abnar and Zuidema, 2020).
    """
    capture = lab.capture(request, job)
    layers = self_attentions(capture)
    count = len(capture.tokens["image"])
    if count > MAX_ROLLOUT:
        raise TooLarge(f"The image has {count:,} tokens; rollout takes at most {MAX_ROLLOUT:,}. Use larger patches.")
    flow = torch.eye(count)
    for n, attention in enumerate(layers):
        job.report(n, len(layers), attention.label)
        flow = (0.5 * torch.eye(count) + 0.5 * attention.weights(None).mean(0).float()) @ flow
    return {"flow": flow}


def examples(lab: Lab, request: Request, job: Job) -> ExamplePictures:
    """Small pictures of the model's examples; files that are no pictures are left out."""
    from ...data.images import decode_image
    from ...tasks.inputs.images import resize

    entry = lab.library.entry(request.get("model"))
    names, pixels = [], []
    for name in entry.examples()[:MAX_EXAMPLES]:
        try:
            picture = decode_image(entry.read_example(name), name, 3)
        except BadInput:
            continue
        scale = THUMBNAIL / max(picture.shape[1:])
        size = (max(1, round(picture.shape[1] * scale)), max(1, round(picture.shape[2] * scale)))
        pixels.append(resize(picture, size) if scale < 1 else picture)
        names.append(name)
    return {"names": names, "pixels": pixels}


CALLS = {"run": run, "query": query, "rollout": rollout, "examples": examples}
