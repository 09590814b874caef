"""Recordings as inputs: spectral frames, standardized with the mean and deviation of the training recordings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...data.files import Paths
from ...data.reading import Reading
from ...data.sound import LabelledSound, Samples, SoundFile, read_sounds
from ...errors import BadInput
from ...nn.embeddings.audio import Mel, log_mel, mfcc
from ...nn.embeddings.sound_embedding import SoundEmbeddingConfig
from ..architecture import Architecture, stack_of
from .augment import spec_augment
from .cache import TensorCache

if TYPE_CHECKING:
    from ..classify import ClassifySettings

SAMPLE = 1000
"""Training recordings from which rate, mean and deviation are computed."""

WINDOW, HOP = 0.025, 0.010
"""Seconds of a frame, and from one frame to the next."""


class AudioInputs:
    """Recordings as frames `[frames, bins]`: log-mel or MFCC."""

    tokenizer = None
    kind = "sound"
    SETTINGS = ("features", "bins", "sample_rate", "stack_frames", "mask_frames", "mask_bins")

    def __init__(self, settings: ClassifySettings, rate: int, mean: Sequence[float], std: Sequence[float]) -> None:
        self.settings, self.rate, self.mean, self.std = settings, rate, tuple(mean), tuple(std)
        self.frame_cache = TensorCache(self.make)

    @staticmethod
    def read(paths: Paths, settings: ClassifySettings) -> Reading[LabelledSound]:
        return read_sounds(paths, sound=settings.input, label=settings.label, folder=settings.folder)

    @classmethod
    def from_examples(cls, examples: Sequence[LabelledSound], settings: ClassifySettings) -> AudioInputs:
        """Rate, mean and deviation of these recordings."""
        sample = [example.sound for example in examples[:: -(-len(examples) // SAMPLE)]]
        rate = settings.sample_rate or Counter(sound.load()[1] for sound in sample).most_common(1)[0][0]
        plain = cls(settings, rate, [0.0] * settings.bins, [1.0] * settings.bins)
        frames = torch.cat([plain.make(sound) for sound in sample])
        return cls(settings, rate, frames.mean(0).tolist(), frames.std(0, correction=0).clamp(min=1e-3).tolist())

    def as_dict(self) -> dict[str, Any]:
        return {"rate": self.rate, "mean": self.mean, "std": self.std}

    @classmethod
    def from_dict(cls, data: dict[str, Any], settings: ClassifySettings, tokenizer: Any) -> AudioInputs:
        return cls(settings, data["rate"], data["mean"], data["std"])

    def layer_configs(self, a: Architecture) -> tuple[Any, Any]:
        """(embedding, stack)."""
        positions = None if a.positions == "none" else "sinusoidal"
        embed = SoundEmbeddingConfig(
            self.settings.bins, a.dim, self.settings.stack_frames, positions, norm=1e-5, dropout=a.dropout
        )
        return embed, stack_of(a)

    def initialize(self, model: nn.Module) -> None:
        """No weights are known before training."""

    def sizes(self, examples: Sequence[LabelledSound]) -> list[int]:
        return [-(-len(self.frame_cache(example.sound)) // self.settings.stack_frames) for example in examples]

    def batch(self, examples: Sequence[LabelledSound], rng: Random | None) -> dict[str, Tensor]:
        frames = [self.frame_cache(example.sound) for example in examples]
        widest = (self.settings.mask_frames, self.settings.mask_bins)
        if rng is not None and any(widest):
            frames = [spec_augment(recording, rng, widest) for recording in frames]
        lengths = torch.tensor([len(recording) for recording in frames])
        return {"sound": nn.utils.rnn.pad_sequence(frames, batch_first=True), "lengths": lengths}

    def make(self, sound: SoundFile | Samples) -> Tensor:
        """The standardized frames of a recording."""
        samples, rate = sound.load(self.rate)
        window = round(WINDOW * rate)
        fft = 1 << (window - 1).bit_length()
        bins = self.settings.bins
        if self.settings.features == "mfcc":
            mel = Mel(max(bins, 26), fft, round(HOP * rate), window, scale="htk", log="natural")
            frames = mfcc(samples, rate, mel, bins)
        else:
            frames = log_mel(samples, rate, Mel(bins, fft, round(HOP * rate), window, log="natural", floor=1e-8))
        return (frames - torch.tensor(self.mean)) / torch.tensor(self.std)

    def example_of(self, text: str) -> LabelledSound:
        """An example for a path that `predict` gets."""
        if not Path(text).is_file():
            raise BadInput(f"{text!r:.80} does not exist. This model reads recordings: give the path of an audio file.")
        return LabelledSound(SoundFile(Path(text)), "")

    def describe(self, examples: Sequence[LabelledSound]) -> dict[str, Any]:
        lengths = sorted(len(self.frame_cache(example.sound)) for example in examples)
        return {
            "rate": self.rate,
            "seconds": sum(lengths) * HOP,
            "median length": f"{lengths[len(lengths) // 2] * HOP:.2f} s",
            "longest": f"{lengths[-1] * HOP:.2f} s",
            "frames": f"{sum(lengths)} of {self.settings.bins} {self.settings.features} bins",
        }
