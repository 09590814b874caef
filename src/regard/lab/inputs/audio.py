"""Recordings for models that read frames; what they write, where they write."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from ...errors import BadInput, Unsupported
from ...models.model import PairModel
from ...nn.embeddings.audio import Mel, log_mel
from ...tasks.inputs.audio_features import HOP, opened, standardised
from ..inspect.predictions import classes
from .prepared import Prepared, Token, need_few
from .seq2seq import Source, with_target


def sound_input(model: Any, task: Any, data: bytes, target: Any = None) -> Prepared:
    """A recording and, of a model that has a decoder, the text that is given or that it writes."""
    source = sound_source(model, task, data)
    if isinstance(model, PairModel):
        return with_target(model, task, source, target)
    return Prepared(source.arguments, {"sound": source.tokens}, "sound", source.about, answer_of(model, task, source))


def answer_of(model: Any, task: Any, source: Source) -> Any:
    """How the answer of a model without a decoder is read: classes, or the text of the labels at its tokens."""
    if task.name != "transcribe":
        return lambda output: classes(output.logits[0], task.labels)
    with torch.no_grad():
        text = task.laid_out(model, source.arguments)[0]
    return lambda output: {"kind": "text", "text": text, "items": []}


def sound_source(model: Any, task: Any, data: bytes) -> Source:
    """A recording as the model hears it. `about` has its seconds, its loudness, and the frames to be drawn.

    `heard` of the tokens are the recording; those after it are silence, for a model that always hears the same time.
    """
    if task is not None and getattr(getattr(task, "hearing", None), "rate", 0) is None:
        return given_frames(task, data)
    sound = recording(data)
    samples, rate = sound.load()
    about: dict[str, Any] = {"seconds": len(samples) / rate, "rate": rate, "wave": envelope(samples)}
    if task is None:
        return whole_window(model, sound, about)
    from ...data.sound import LabelledSound, Spoken

    if task.name == "transcribe":
        batch = task.inputs([Spoken("", sound=sound)])
    else:
        batch = task.inputs.batch([LabelledSound(sound, "")], None)
    frames, stack = int(batch["lengths"][0]), task.settings.stack
    count = -(-frames // stack)
    about |= {"seconds_per_token": stack * about["seconds"] / max(1, frames), "frames": batch["sound"][0]}
    about |= {"frames_per_token": stack, "heard": count, "quietest": quietest(samples, frames)}
    return Source(dict(batch), tokens_of(count, count, about["seconds_per_token"]), "sound", 2 * count + 8, about)


def given_frames(task: Any, data: bytes) -> Source:
    """The frames `[frames, bins]` of a `.npy` file, for a run that has learned from frames and not from recordings."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "frames.npy"
        path.write_bytes(data)
        try:
            spoken = opened(str(path))
            batch = task.inputs([spoken])
        except BadInput as error:
            raise BadInput(str(error).replace(str(path), "The recording")) from None
    frames, stack = int(batch["lengths"][0]), task.settings.stack
    count, loud = -(-frames // stack), batch["sound"][0].mean(-1)
    about = {
        "seconds": frames * HOP,
        "rate": None,
        "wave": loud - loud.min(),
        "seconds_per_token": stack * HOP,
        "frames": batch["sound"][0],
        "frames_per_token": stack,
        "heard": count,
        "quietest": int(loud.argmin()),
    }
    return Source(dict(batch), tokens_of(count, count, stack * HOP), "sound", 2 * count + 8, about)


def whole_window(model: Any, sound: Any, about: dict[str, Any]) -> Source:
    """A recording for Whisper, which hears a window of fixed length: its spectrogram, silence after the recording."""
    embed = model.config.embed
    if not isinstance(model, PairModel) or not isinstance(getattr(embed, "places", None), int):
        raise Unsupported(
            "Recordings are read by runs of `regard train` and by Whisper's checkpoints; this folder says nothing of "
            "how frames are made."
        )
    rate, hop, fft = (whole(model, *name) for name in (("sampling_rate", 16000), ("hop_length", 160), ("n_fft", 400)))
    samples, _ = sound.load(rate)
    room = 2 * embed.places * hop
    if len(samples) > room:
        raise BadInput(
            f"The recording is {len(samples) / rate:.1f} s long; this model hears {room / rate:.1f} s at once. Cut it."
        )
    padded = torch.nn.functional.pad(samples, (0, room - len(samples)))
    frames = log_mel(padded, rate, Mel(embed.bins, fft, hop))
    real = max(1, -(-len(samples) // hop))
    heard, each = -(-real // 2), 2 * hop / rate
    about = about | {"seconds_per_token": each, "frames_per_token": 2, "heard": heard}
    about["quietest"] = len(frames) - 1 if len(samples) < room else quietest(samples, real)
    about["frames"] = standardised(frames[: 2 * heard])
    return Source({"sound": frames[None]}, tokens_of(embed.places, heard, each), "sound", 224, about)


def whole(model: Any, name: str, usual: int) -> int:
    """A number of the checkpoint's `preprocessor_config.json`, or what is usual."""
    value = getattr(model, "preprocessor", {}).get(name, usual)
    if not isinstance(value, int) or value < 1:
        raise BadInput(f"preprocessor_config.json: {name} is {value!r:.40}; it must be a whole number of at least 1.")
    return value


def tokens_of(count: int, heard: int, each: float) -> list[Token]:
    """A token for each stretch of time; what comes after the recording is the model's own addition."""
    need_few(count, "The recording")
    return [Token(f"{n * each:.2f} s", n, n + 1, special=n >= heard) for n in range(count)]


def recording(data: bytes) -> Any:
    """The samples of a file of sound; `BadInput` for what is broken, cut or empty."""
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


def quietest(samples: Tensor, frames: int) -> int:
    """Which of so many equal stretches of a recording has the least energy."""
    size = max(1, len(samples) // max(1, frames))
    energy = samples[: size * frames].square().unfold(0, size, size).sum(-1) if len(samples) >= size else samples[:1]
    return min(int(energy.argmin()), frames - 1)


def envelope(samples: Tensor, points: int = 600) -> Tensor:
    """The loudest sample of each stretch, for drawing a recording, `[points]`."""
    size = max(1, -(-len(samples) // points))
    padded = torch.nn.functional.pad(samples.abs(), (0, -len(samples) % size))
    return padded.view(-1, size).amax(1)
