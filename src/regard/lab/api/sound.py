"""The page Sound: attention between frames, in seconds, and from the output's tokens to frames."""

from __future__ import annotations

import io
import struct
import wave
from typing import TypedDict

import torch
from torch import Tensor

from ...errors import BadInput
from ..inputs.audio import read_recording
from ..inputs.model_input import is_sound
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


class SoundRun(TypedDict):
    seconds: float
    seconds_per_token: float
    rate: int | None
    wave: Tensor
    frames: Tensor
    tokens: list[str]
    heard: int
    prediction: PredictionFields
    notices: list[Notice]
    attentions: list[DistanceFields]
    crossed: list[AttentionFields]
    written: list[str]
    backend: str | None
    difference: float | None


class Recording(TypedDict):
    wav: Tensor | None


def run(lab: Lab, request: Request, job: Job) -> SoundRun:
    """The recording as the model reads it, the prediction, and the distances of each head in seconds.

    `heard` of the tokens are the recording, the others padding, whose weight is counted separately. `crossed` are the
    cross-attentions of a decoder, and `written` the tokens that their queries predict.
    """
    capture = lab.capture(request, job)
    metadata = capture.metadata
    if not is_sound(metadata):
        raise BadInput("This model reads no recordings. Choose one that does.")
    tokens = capture.tokens["sound"]
    layers, cross = self_attentions(capture), cross_attentions(capture)
    times = torch.arange(len(tokens))[:, None] * metadata["seconds_per_token"]
    real = torch.arange(len(tokens)) < metadata["heard"]
    described = []
    for n, attention in enumerate(layers):
        job.report(n, len(layers), attention.label)
        described.append(describe_with_distance(attention, times, real, real))
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
        "crossed": [layer.describe() for layer in cross],
        "written": [token["text"] for token in metadata.get("target_tokens", [])],
        "backend": layers[0].backend if layers else None,
        "difference": max((layer.difference["largest"] for layer in layers), default=None),
    }


def self_attentions(capture: Capture) -> list[CapturedAttention]:
    """The self-attentions of the recording's tokens."""
    count = len(capture.tokens["sound"])
    return [a for a in capture.attentions if a.query_side == a.key_side == "sound" and a.keys == count]


def cross_attentions(capture: Capture) -> list[CapturedAttention]:
    """The cross-attentions of the output's tokens to the recording's."""
    count = len(capture.tokens["sound"])
    return [a for a in capture.attentions if (a.query_side, a.key_side) == ("target", "sound") and a.keys == count]


def query(lab: Lab, request: Request, job: Job) -> QueryWeights:
    """The weights of one query on the recording's tokens in every head, `[heads, tokens]` for each attention.

    With `crossed` the query is a token of the output, else one of the recording.
    """
    capture = lab.capture(request, job)
    layers = cross_attentions(capture) if request.get("crossed") is True else self_attentions(capture)
    return {"weights": weights_of_query(layers, request)}


def audio(lab: Lab, request: Request, job: Job) -> Recording:
    """The recording as the bytes of a WAV file, to be played; None where the model reads frames."""
    loaded = lab.open(request.get("model"), job)
    fields = request.get("input")
    if loaded.task is not None and loaded.task.reads_frames:
        return {"wav": None}
    samples, rate = read_recording(lab.file_reader(loaded)(fields if isinstance(fields, dict) else {})).load()
    return {"wav": torch.frombuffer(bytearray(encode_wav(samples, rate)), dtype=torch.uint8)}


def encode_wav(samples: Tensor, rate: int) -> bytes:
    """A WAV file of one channel and 16 bits."""
    whole = (samples.float().clamp(-1, 1) * 32767).round().to(torch.int16)
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(int(rate))
        writer.writeframes(struct.pack(f"<{len(whole)}h", *whole.tolist()))
    return file.getvalue()


CALLS = {"run": run, "query": query, "audio": audio}
