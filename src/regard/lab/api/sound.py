"""The page Sound: attention between frames, in seconds."""

from __future__ import annotations

from typing import Any

import torch

from ..inspect.distances import describe_with_distance
from ..lab import Lab
from ..server.jobs import Job


def run(lab: Lab, request: dict[str, Any], job: Job) -> dict[str, Any]:
    """The recording as the model reads it, the prediction, and the distances of each head in seconds.

    `heard` of the tokens are the recording, the others padding, whose weight is counted separately.
    """
    capture = lab.capture(request, job)
    metadata, tokens = capture.metadata, capture.tokens["sound"]
    count = len(tokens)
    layers = [a for a in capture.attentions if a.query_side == a.key_side == "sound" and a.keys == count]
    times = torch.arange(len(tokens))[:, None] * metadata["seconds_per_token"]
    real = torch.arange(len(tokens)) < metadata["heard"]
    described = []
    for n, attention in enumerate(layers):
        job.report(n, len(layers), attention.label)
        described.append(describe_with_distance(attention, times, real))
    return {
        "seconds": metadata["seconds"],
        "seconds_per_token": metadata["seconds_per_token"],
        "rate": metadata["rate"],
        "wave": metadata["wave"],
        "frames": metadata["frames"].float(),
        "tokens": [token.text for token in tokens],
        "heard": metadata["heard"],
        "prediction": capture.prediction,
        "notices": capture.notices,
        "attentions": described,
        "backend": layers[0].backend if layers else None,
        "difference": max((layer.difference["largest"] for layer in layers), default=None),
    }


CALLS = {"run": run}
