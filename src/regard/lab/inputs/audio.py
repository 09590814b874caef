"""Recordings as model inputs: log-mel frames, a token for each stretch of time."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...errors import BadInput, Unsupported
from ...models.model import EncoderDecoderModel, Model, Output
from ...nn.embeddings.audio import Mel, log_mel
from ...nn.embeddings.sound_embedding import SoundEmbeddingConfig
from ...tasks.inputs.audio_features import HOP, open_audio, standardize
from ...tasks.task import AnyTask
from ...tasks.transcribe import Transcribe
from ..inspect.predictions import PredictionFields, class_prediction
from ..protocol import Json
from .model_input import ModelInput, SoundMetadata, Token, check_token_count
from .seq2seq import Source, add_target

if TYPE_CHECKING:
    from ...data.sound import Samples

WHISPER_MAX_NEW = 224


def audio_input(model: Model, task: AnyTask | None, data: bytes, target: Json = None) -> ModelInput:
    """A recording and, of a model with a decoder, the given text or the one that the model generates."""
    source = audio_source(model, task, data)
    if isinstance(model, EncoderDecoderModel):
        return add_target(model, task, source, target)
    text = None
    if isinstance(task, Transcribe):
        with torch.no_grad():
            text = task.decode_ctc(model, source.arguments)[0]

    def read_output(output: Output) -> PredictionFields:
        if text is not None:  # of the CTC labels
            return {"type": "text", "text": text, "items": []}
        assert output.logits is not None
        return class_prediction(output.logits[0], None if task is None else task.labels)

    return ModelInput(source.arguments, {"sound": source.tokens}, "sound", source.metadata, read_output)


def audio_source(model: Model, task: AnyTask | None, data: bytes) -> Source:
    """A recording as the model reads it. The metadata has its seconds, its loudness, and the frames to be drawn.

    `heard` of the tokens are the recording; those after it are padding, for a model with a window of fixed length.
    """
    from ...data.sound import Spoken

    if task is not None and task.reads_frames:
        return frames_source(task, data)
    sound = read_recording(data)
    samples, rate = sound.load()
    inputs = None if task is None else task.audio_inputs(Spoken("", sound=sound))
    if task is None or inputs is None or task.frames_per_token is None:
        return whisper_source(model, sound)
    frames, stack = int(inputs["lengths"][0]), task.frames_per_token
    count, seconds = -(-frames // stack), stack * (len(samples) / rate) / max(1, frames)
    metadata: SoundMetadata = {
        "seconds": len(samples) / rate,
        "rate": rate,
        "wave": envelope(samples),
        "seconds_per_token": seconds,
        "frames": inputs["sound"][0],
        "frames_per_token": stack,
        "heard": count,
        "quietest": quietest_frame(samples, frames),
    }
    arguments = {name: inputs[name] for name in ("sound", "lengths")}
    return Source(arguments, time_tokens(count, count, seconds), "sound", 2 * count + 8, metadata)


def frames_source(task: AnyTask, data: bytes) -> Source:
    """The frames `[frames, bins]` of a `.npy` file, for a run that was trained on frames instead of recordings."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "frames.npy"
        path.write_bytes(data)
        try:
            inputs = task.audio_inputs(open_audio(str(path)))
        except BadInput as error:
            raise BadInput(str(error).replace(str(path), "The recording")) from None
    assert inputs is not None and task.frames_per_token is not None
    frames, stack = int(inputs["lengths"][0]), task.frames_per_token
    count, loudness = -(-frames // stack), inputs["sound"][0].mean(-1)
    metadata: SoundMetadata = {
        "seconds": frames * HOP,
        "rate": None,
        "wave": loudness - loudness.min(),
        "seconds_per_token": stack * HOP,
        "frames": inputs["sound"][0],
        "frames_per_token": stack,
        "heard": count,
        "quietest": int(loudness.argmin()),
    }
    return Source(dict(inputs), time_tokens(count, count, stack * HOP), "sound", 2 * count + 8, metadata)


def whisper_source(model: Model, sound: Samples) -> Source:
    """A recording for Whisper, which reads a window of fixed length: its spectrogram, padded with silence."""
    embed = model.config.embed if isinstance(model, EncoderDecoderModel) else None
    window = embed.positions if isinstance(embed, SoundEmbeddingConfig) else None
    if not isinstance(embed, SoundEmbeddingConfig) or not isinstance(window, int):
        raise Unsupported(
            "Recordings are read by runs of `regard train` and by Whisper's checkpoints; this folder does not say how "
            "frames are computed."
        )
    rate, hop, fft = (
        preprocessor_int(model, name, default)
        for name, default in (("sampling_rate", 16000), ("hop_length", 160), ("n_fft", 400))
    )
    (own, own_rate), (samples, _) = sound.load(), sound.load(rate)
    capacity = 2 * window * hop
    if len(samples) > capacity:
        raise BadInput(
            f"The recording is {len(samples) / rate:.1f} s long; this model takes at most {capacity / rate:.1f} s. "
            "Cut it."
        )
    frames = log_mel(pad(samples, (0, capacity - len(samples))), rate, Mel(embed.bins, fft, hop))
    real = max(1, -(-len(samples) // hop))
    heard, seconds = -(-real // 2), 2 * hop / rate
    metadata: SoundMetadata = {
        "seconds": len(own) / own_rate,
        "rate": own_rate,
        "wave": envelope(own),
        "seconds_per_token": seconds,
        "frames_per_token": 2,
        "heard": heard,
        "quietest": len(frames) - 1 if len(samples) < capacity else quietest_frame(samples, real),
        "frames": standardize(frames[: 2 * heard]),
    }
    return Source({"sound": frames[None]}, time_tokens(window, heard, seconds), "sound", WHISPER_MAX_NEW, metadata)


def preprocessor_int(model: Model, name: str, default: int) -> int:
    """A number in the checkpoint's `preprocessor_config.json`."""
    value = model.preprocessor.get(name, default)
    if not isinstance(value, int) or value < 1:
        raise BadInput(f"preprocessor_config.json: {name} is {value!r:.40}; it must be a whole number of at least 1.")
    return value


def time_tokens(count: int, heard: int, seconds: float) -> list[Token]:
    """A token for each stretch of time; those after the recording are special."""
    check_token_count(count, "The recording")
    return [Token(f"{n * seconds:.2f} s", n, n + 1, special=n >= heard) for n in range(count)]


def read_recording(data: bytes) -> Samples:
    """The samples of an audio file; raises `BadInput` where it is broken, cut or empty."""
    from ...data.sound import Samples, SoundFile, check_sound

    with TemporaryDirectory() as folder:
        path = Path(folder) / "The recording.wav"
        path.write_bytes(data)
        try:
            check_sound(path)
            samples, rate = SoundFile(path).load()
        except BadInput as error:
            raise BadInput(str(error).replace(str(path), "The recording")) from None
    return Samples(samples, rate)


def quietest_frame(samples: Tensor, frames: int) -> int:
    """The index of the frame with the least energy, of a recording cut into `frames` equal ones."""
    size = max(1, len(samples) // max(1, frames))
    energy = samples[: size * frames].square().unfold(0, size, size).sum(-1) if len(samples) >= size else samples[:1]
    return min(int(energy.argmin()), frames - 1)


def envelope(samples: Tensor, points: int = 600) -> Tensor:
    """The loudest sample of each stretch, for drawing a recording, `[points]`."""
    size = max(1, -(-len(samples) // points))
    return pad(samples.abs(), (0, -len(samples) % size)).view(-1, size).amax(1)
