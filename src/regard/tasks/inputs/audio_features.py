"""Audio features for speech recognition: a log-mel spectrogram, or the frames of a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from ...data.arrays import read_array
from ...data.files import is_file
from ...data.sound import Spoken
from ...errors import BadInput
from ...models.checkpoint.files import JsonObject
from ...models.config import SpeechToTextConfig
from ...nn.embeddings.audio import Mel, log_mel
from .given import as_sound

WINDOW, HOP = 0.025, 0.010
"""Seconds of a frame, and from one frame to the next."""


@dataclass(frozen=True)
class AudioFeatures:
    """How recordings become frames `[frames, bins]`; `rate` is None where the files have frames of `bins` numbers.

    With `deltas` each frame is followed by its first and second differences in time. Every bin has mean 0 and
    deviation 1 over its recording, so that loudness and microphone do not matter.
    """

    rate: int | None
    bins: int
    deltas: bool = False

    @property
    def size(self) -> int:
        """Numbers of a frame, differences included."""
        return 3 * self.bins if self.deltas else self.bins

    def __call__(self, spoken: Spoken) -> Tensor:
        return standardize(add_deltas(self.frames(spoken)) if self.deltas else self.frames(spoken))

    def frames(self, spoken: Spoken) -> Tensor:
        if self.rate is None:
            return self.check_frames(spoken)
        if spoken.sound is None:
            raise BadInput("This run was trained on recordings, but got frames. Give recordings.")
        samples, _ = spoken.sound.load(self.rate)
        return log_mel(samples, self.rate, self.mel(self.rate))

    def check_frames(self, spoken: Spoken) -> Tensor:
        """The frames of the file, with their shape checked."""
        if spoken.frames is None:
            raise BadInput(
                f"This run was trained on frames of {self.bins} numbers, not on recordings. Give frames made the "
                "same way: NPZ to evaluate, a .npy file [frames, bins] each to predict."
            )
        if spoken.frames.dim() != 2 or spoken.frames.shape[1] != self.bins:
            raise BadInput(f"The frames have shape {list(spoken.frames.shape)}; wanted [frames, {self.bins}].")
        return spoken.frames.float()

    def mel(self, rate: int) -> Mel:
        window = round(WINDOW * rate)
        size = max(512, 1 << (window - 1).bit_length())
        return Mel(self.bins, size, round(HOP * rate), window, scale="htk", log="natural", floor=1e-6)


@dataclass(frozen=True)
class CheckpointAudioFeatures(AudioFeatures):
    """The log-mel frames of a Whisper: recordings are padded with silence, or cut, to `window` frames."""

    fft: int = 400
    hop: int = 160
    window: int = 3000

    def __call__(self, spoken: Spoken) -> Tensor:
        return self.frames(spoken)

    def frames(self, spoken: Spoken) -> Tensor:
        if spoken.sound is None or self.rate is None:
            raise BadInput("A checkpoint reads recordings, and the data has frames. Give recordings.")
        samples, _ = spoken.sound.load(self.rate)
        size = self.window * self.hop
        padded = functional.pad(samples[:size], (0, max(0, size - len(samples))))
        return log_mel(padded, self.rate, Mel(self.bins, self.fft, self.hop))


def features_of_checkpoint(config: SpeechToTextConfig, preprocessor: JsonObject) -> CheckpointAudioFeatures:
    """The features that a Whisper was trained on, by its configuration and its `preprocessor_config.json`."""
    rate, fft, hop = (
        int(preprocessor.get(name, default))
        for name, default in (("sampling_rate", 16000), ("n_fft", 400), ("hop_length", 160))
    )
    positions = config.embed.max_positions or 1500
    return CheckpointAudioFeatures(rate, config.embed.bins, fft=fft, hop=hop, window=2 * positions)


def choose_features(examples: list[Spoken], bins: int, rate: int | None, deltas: bool) -> AudioFeatures:
    """The features for these examples: their own frames, or spectrograms at `rate`, else at the first one's rate."""
    with_frames = sum(example.frames is not None for example in examples)
    if 0 < with_frames < len(examples):
        raise BadInput(
            f"{with_frames} of {len(examples)} examples are frames, the others recordings. Give one kind of file."
        )
    first = examples[0]
    if first.frames is not None:
        return AudioFeatures(None, first.frames.shape[1], deltas)
    if first.sound is None:
        raise BadInput("An example has neither a recording nor frames. Look at the file with `regard check`.")
    return AudioFeatures(rate or first.sound.load()[1], bins, deltas)


def standardize(frames: Tensor) -> Tensor:
    """Every bin with mean 0 and deviation 1 over the frames.

    >>> standardize(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
    tensor([[-1.,  0.],
            [ 1.,  0.]])
    """
    centred = frames - frames.mean(0)
    return centred / centred.square().mean(0).sqrt().clamp(min=1e-5)


def add_deltas(frames: Tensor) -> Tensor:
    """`[frames, 3 · bins]`: the frames, their slopes and the slopes of these, over two frames either side.

        slope_t = Σ_n n · (x_{t+n} − x_{t−n}) / 10,   n = 1, 2

    >>> add_deltas(torch.arange(12.0)[:, None])[5].tolist()
    [5.0, 1.0, 0.0]
    """
    first = time_differences(frames)
    return torch.cat([frames, first, time_differences(first)], 1)


def time_differences(frames: Tensor) -> Tensor:
    x = functional.pad(frames.t()[None], (2, 2), mode="replicate")[0].t()
    count = frames.shape[0]
    return sum((n * (x[2 + n : 2 + n + count] - x[2 - n : 2 - n + count]) for n in (1, 2)), torch.zeros(())) / 10


def open_audio(given: object) -> Spoken:
    """The example of a recording, or of a `.npy` file of frames."""
    path = str(given) if isinstance(given, str | Path) else ""
    if not path.endswith(".npy") or not is_file(Path(path)):
        return Spoken("", sound=as_sound(given))
    frames = read_array(Path(path), "Give an array of numbers [frames, bins].")
    return Spoken("", frames=torch.from_numpy(frames.astype("float32")))
