"""The page of images: where a patch looks, how far heads reach in pixels, what flows into the class token."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...attention.errors import TooLarge
from ..capture import Capture
from ..distances import measured
from ..work import Job

MOST = 1024
"""Tokens up to which layers are multiplied."""


def run(lab: Any, ask: dict[str, Any], job: Job) -> dict[str, Any]:
    """The picture as the model sees it, its grid of patches, the answer, and how far each head looks."""
    capture = lab.capture(ask, job)
    about, seen = capture.about, looking(capture)
    places, real = centres(about)
    layers = []
    for n, attention in enumerate(seen):
        job.tell(n, len(seen), attention.label)
        layers.append(measured(attention, places, real))
    return {
        "pixels": about["pixels"],
        "grid": about["grid"],
        "size": about["size"],
        "class_token": about["class_token"],
        "prediction": capture.prediction,
        "attentions": layers,
        "backend": seen[0].backend,
        "difference": max(attention.difference()["largest"] for attention in seen),
    }


def looking(capture: Capture) -> list[Any]:
    """The attentions of the picture's tokens to themselves."""
    count = len(capture.tokens["image"])
    return [one for one in capture.attentions if one.queries == one.keys == count]


def centres(about: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Where each token's patch has its middle, in pixels `[tokens, 2]`, and which tokens are patches."""
    (rows, columns), (height, width) = about["grid"], about["size"]
    y, x = torch.meshgrid(torch.arange(rows) + 0.5, torch.arange(columns) + 0.5, indexing="ij")
    places = torch.stack([y.flatten() * height / rows, x.flatten() * width / columns], -1)
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
