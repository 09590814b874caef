"""The page of sounds: frames against frames, in seconds."""

from __future__ import annotations

from typing import Any

import torch

from ..inspect.distances import measured
from ..server.jobs import Job


def run(lab: Any, ask: dict[str, Any], job: Job) -> dict[str, Any]:
    """The recording as the model hears it, the answer, and how far each head looks in seconds.

    `heard` of the tokens are the recording, the others silence after it, whose weight is told apart.
    """
    capture = lab.capture(ask, job)
    about, tokens = capture.about, capture.tokens["sound"]
    seen = [one for one in capture.attentions if one.query_side == one.key_side == "sound" and one.keys == len(tokens)]
    places = torch.arange(len(tokens))[:, None] * about["seconds_per_token"]
    real = torch.arange(len(tokens)) < about["heard"]
    layers = []
    for n, attention in enumerate(seen):
        job.tell(n, len(seen), attention.label)
        layers.append(measured(attention, places, real))
    return {
        "seconds": about["seconds"],
        "seconds_per_token": about["seconds_per_token"],
        "rate": about["rate"],
        "wave": about["wave"],
        "frames": about["frames"].float(),
        "tokens": [token.text for token in tokens],
        "heard": about["heard"],
        "prediction": capture.prediction,
        "attentions": layers,
        "backend": seen[0].backend if seen else None,
        "difference": max((one.difference()["largest"] for one in seen), default=None),
    }


CALLS = {"run": run}
