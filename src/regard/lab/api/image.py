"""The page Image: the attention of patches and object queries, head distances in pixels, and rollout."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...errors import TooLarge
from ..inspect.capture import Capture, CapturedAttention
from ..inspect.distances import describe_with_distance
from ..lab import Lab
from ..server.jobs import Job

MAX_ROLLOUT = 2048
"""Tokens up to which rollout is computed."""


def run(lab: Lab, request: dict[str, Any], job: Job) -> dict[str, Any]:
    """The image as the model reads it, its grid of patches, the prediction, and the distances of each head.

    `attentions` are the self-attentions of the image's tokens, `crossed` the cross-attentions of object queries.
    """
    capture = lab.capture(request, job)
    metadata, layers = capture.metadata, self_attentions(capture)
    centres, real = patch_centres(metadata)
    described = []
    for n, attention in enumerate(layers):
        job.report(n, len(layers), attention.label)
        described.append(describe_with_distance(attention, centres, real))
    cross = [layer for layer in capture.attentions if layer.role == "cross" and layer.key_side == "image"]
    return {
        "pixels": metadata["pixels"],
        "grid": metadata["grid"],
        "size": metadata["size"],
        "cell": metadata["cell"],
        "class_token": metadata["class_token"],
        "prediction": capture.prediction,
        "notices": capture.notices,
        "attentions": described,
        "crossed": [layer.describe() | evenness(layer) for layer in cross],
        "queries": len(capture.tokens.get("target", ())),
        "backend": next((layer.backend for layer in layers + cross), None),
        "difference": max((layer.difference["largest"] for layer in layers + cross), default=None),
    }


def evenness(attention: CapturedAttention) -> dict[str, Any]:
    """Entropy and largest weight of each head, `[heads]`."""
    stats = attention.stats([])
    return {name: stats[name] for name in ("entropy", "entropy_share", "peak")}


def self_attentions(capture: Capture) -> list[CapturedAttention]:
    """The self-attentions of the image's tokens."""
    count = len(capture.tokens["image"])
    return [a for a in capture.attentions if a.query_side == a.key_side == "image" and a.keys == count]


def patch_centres(metadata: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The centre of each token's patch in pixels, `[tokens, 2]`, and which tokens are patches."""
    (rows, columns), (height, width) = metadata["grid"], metadata["cell"]
    y, x = torch.meshgrid(torch.arange(rows) + 0.5, torch.arange(columns) + 0.5, indexing="ij")
    centres = torch.stack([y.flatten() * height, x.flatten() * width], -1)
    extra = int(metadata["class_token"])
    real = torch.arange(extra + rows * columns) >= extra
    return torch.cat([centres.new_zeros(extra, 2), centres]), real


def rollout(lab: Lab, request: dict[str, Any], job: Job) -> dict[str, Any]:
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


CALLS = {"run": run, "rollout": rollout}
