"""The page of images: where a patch or an object's query looks, how far heads reach in pixels, what flows where."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...errors import TooLarge
from ..inspect.capture import Attention, Capture
from ..inspect.distances import measured
from ..server.jobs import Job

MOST = 2048
"""Tokens up to which layers are multiplied."""


def run(lab: Any, ask: dict[str, Any], job: Job) -> dict[str, Any]:
    """The picture as the model sees it, its grid of patches, the answer, and how far each head looks.

    `attentions` are those of the picture's tokens to themselves, `crossed` those of a detector's queries to them.
    """
    capture = lab.capture(ask, job)
    about, seen = capture.about, looking(capture)
    places, real = centres(about)
    layers = []
    for n, attention in enumerate(seen):
        job.tell(n, len(seen), attention.label)
        layers.append(measured(attention, places, real))
    crossed = [one for one in capture.attentions if one.role == "cross" and one.key_side == "image"]
    return {
        "pixels": about["pixels"],
        "grid": about["grid"],
        "size": about["size"],
        "cell": about["cell"],
        "class_token": about["class_token"],
        "prediction": capture.prediction,
        "attentions": layers,
        "crossed": [one.describe() | even(one) for one in crossed],
        "queries": len(capture.tokens.get("target", ())),
        "backend": next((one.backend for one in seen + crossed), None),
        "difference": max((one.difference()["largest"] for one in seen + crossed), default=None),
    }


def even(attention: Attention) -> dict[str, Any]:
    """How evenly each head of an attention looks, `[heads]`."""
    stats = attention.stats([])
    return {name: stats[name] for name in ("entropy", "entropy_share", "peak")}


def looking(capture: Capture) -> list[Any]:
    """The attentions of the picture's tokens to themselves."""
    count = len(capture.tokens["image"])
    return [one for one in capture.attentions if one.query_side == one.key_side == "image" and one.keys == count]


def centres(about: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Where each token's patch has its middle, in pixels `[tokens, 2]`, and which tokens are patches."""
    (rows, columns), (height, width) = about["grid"], about["cell"]
    y, x = torch.meshgrid(torch.arange(rows) + 0.5, torch.arange(columns) + 0.5, indexing="ij")
    places = torch.stack([y.flatten() * height, x.flatten() * width], -1)
    extra = int(about["class_token"])
    real = torch.arange(extra + rows * columns) >= extra
    return torch.cat([places.new_zeros(extra, 2), places]), real


def rollout(lab: Any, ask: dict[str, Any], job: Job) -> dict[str, Any]:
    """How much of each token is in each after all layers, by weights alone, `[tokens, tokens]`; rows sum to one.

    A layer passes on half of what a token has and half of what its heads bring on average (Abnar and Zuidema, 2020).
    """
    capture = lab.capture(ask, job)
    seen = looking(capture)
    count = len(capture.tokens["image"])
    if count > MOST:
        raise TooLarge(f"The picture has {count:,} tokens; layers are multiplied up to {MOST:,}. Use larger patches.")
    flow = torch.eye(count)
    for n, attention in enumerate(seen):
        job.tell(n, len(seen), attention.label)
        flow = (0.5 * torch.eye(count) + 0.5 * attention.weights(None).mean(0).float()) @ flow
    return {"flow": flow}


CALLS = {"run": run, "rollout": rollout}
