"""Recordings as inputs: spectral frames, standardized with the mean and deviation of the training recordings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...data.files import Paths
from ...data.json_values import JsonObject, ParsedObject
from ...data.reading import Reading
from ...data.sound import LabelledSound, Samples, SoundFile, read_sounds
from ...models.interfaces import EmbeddingConfig, LayersConfig
from ...models.tokenizers.tokenizer import Tokenizer
from ...nn.embeddings.audio import Mel, log_mel, mfcc
from ...nn.embeddings.sound_embedding import SoundEmbeddingConfig
from ..architecture import Architecture, stack_of
from .augment import spec_augment
from .cache import TensorCache
from .given import as_sound

if TYPE_CHECKING:
    from ..classify import ClassifySettings
    from ..pretrained.pretrained import Encoder, Pretrained

SAMPLE = 1000
"""Training recordings from which rate, mean and deviation are computed."""

WINDOW, HOP = 0.025, 0.010
"""Seconds of a frame, and from one frame to the next."""


class AudioInputs:
    """Recordings as frames `[frames, bins]`: log-mel or MFCC, or (`mel`) the log-mel frames of a checkpoint.

    `max_frames` of a recording are read.
    """

    tokenizer = None
    kind = "sound"
    SETTINGS = ("features", "bins", "sample_rate", "stack_frames", "mask_frames", "mask_bins")

    def __init__(self, settings: ClassifySettings, rate: int, mean: Sequence[float], std: Sequence[float]) -> None:
        self.settings, self.rate, self.mean, self.std = settings, rate, tuple(mean), tuple(std)
        self.frame_cache = TensorCache(self.make)
        self.stack_frames = settings.stack_frames
        self.mel: Mel | None = None
        self.max_frames: int | None = None
        self.encoder: Encoder | None = None

    @staticmethod
    def read(paths: Paths, settings: ClassifySettings) -> Reading[LabelledSound]:
        s = settings
        return read_sounds(paths, sound=s.input, label=s.label, folder=s.folder, target=s.target)

    @classmethod
    def from_examples(cls, examples: Sequence[LabelledSound], settings: ClassifySettings) -> AudioInputs:
        """Rate, mean and deviation of these recordings."""
        sample = [example.sound for example in examples[:: -(-len(examples) // SAMPLE)]]
        rate = settings.sample_rate or Counter(sound.load()[1] for sound in sample).most_common(1)[0][0]
        plain = cls(settings, rate, [0.0] * settings.bins, [1.0] * settings.bins)
        frames = torch.cat([plain.make(sound) for sound in sample])
        return cls(settings, rate, frames.mean(0).tolist(), frames.std(0, correction=0).clamp(min=1e-3).tolist())

    @classmethod
    def from_pretrained(cls, pretrained: Pretrained, settings: ClassifySettings) -> AudioInputs:
        """Recordings as a checkpoint reads them: Whisper's frames, or those of the run that it is."""
        encoder, before = pretrained.encoder("sound"), pretrained.inputs
        if isinstance(before, AudioInputs):
            inputs = cls(before.settings, before.rate, before.mean, before.std)
            inputs.stack_frames, inputs.mel, inputs.max_frames = before.stack_frames, before.mel, before.max_frames
        else:
            embed, given = encoder.config.embed, pretrained.model.preprocessor
            rate, fft, hop = (
                int(given.get(name, default))
                for name, default in (("sampling_rate", 16000), ("n_fft", 400), ("hop_length", 160))
            )
            inputs = cls(settings, rate, [0.0] * embed.bins, [1.0] * embed.bins)
            inputs.stack_frames, inputs.mel = embed.stack or 2, Mel(embed.bins, fft, hop)
            inputs.max_frames = 2 * embed.positions if isinstance(embed.positions, int) else None
        inputs.encoder = encoder
        return inputs

    def as_dict(self) -> JsonObject:
        own = {"rate": self.rate, "mean": self.mean, "std": self.std}
        if self.mel is None:
            return own
        mel = {"bins": self.mel.bins, "fft": self.mel.fft, "hop": self.mel.hop}
        return {**own, "mel": mel, "stack_frames": self.stack_frames, "max_frames": self.max_frames}

    @classmethod
    def from_dict(cls, data: ParsedObject, settings: ClassifySettings, tokenizer: Tokenizer | None) -> AudioInputs:
        inputs = cls(settings, data["rate"], data["mean"], data["std"])
        if "mel" in data:
            inputs.mel, inputs.stack_frames = Mel(**data["mel"]), data["stack_frames"]
            inputs.max_frames = data["max_frames"]
        return inputs

    def layer_configs(self, a: Architecture) -> tuple[EmbeddingConfig, LayersConfig]:
        """(embedding, stack)."""
        if self.encoder is not None:
            return self.encoder.layer_configs(a)
        positions = None if a.positions == "none" else "sinusoidal"
        embed = SoundEmbeddingConfig(
            self.settings.bins, a.dim, self.settings.stack_frames, positions, norm=1e-5, dropout=a.dropout
        )
        return embed, stack_of(a)

    def initialize(self, model: nn.Module) -> None:
        """Load the weights of a checkpoint."""
        if self.encoder is not None:
            self.encoder.initialize(model)

    def sizes(self, examples: Sequence[LabelledSound]) -> list[int]:
        return [-(-len(self.frame_cache(example.sound)) // self.stack_frames) for example in examples]

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
        if self.mel is not None:
            return log_mel(samples, rate, self.mel)[: self.max_frames]
        window = round(WINDOW * rate)
        fft = 1 << (window - 1).bit_length()
        bins = self.settings.bins
        if self.settings.features == "mfcc":
            mel = Mel(max(bins, 26), fft, round(HOP * rate), window, scale="htk", log="natural")
            frames = mfcc(samples, rate, mel, bins)
        else:
            frames = log_mel(samples, rate, Mel(bins, fft, round(HOP * rate), window, log="natural", floor=1e-8))
        return (frames - torch.tensor(self.mean)) / torch.tensor(self.std)

    def example_of(self, given: object) -> LabelledSound:
        """An example for an input of `predict`."""
        return LabelledSound(as_sound(given), "")

    def describe(self, examples: Sequence[LabelledSound]) -> JsonObject:
        lengths = sorted(len(self.frame_cache(example.sound)) for example in examples)
        return {
            "rate": self.rate,
            "seconds": sum(lengths) * HOP,
            "median length": f"{lengths[len(lengths) // 2] * HOP:.2f} s",
            "longest": f"{lengths[-1] * HOP:.2f} s",
            "frames": f"{sum(lengths)} of {self.settings.bins} {self.settings.features} bins",
        }
