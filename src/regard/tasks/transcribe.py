"""Speech recognition: text for recordings, with CTC or a decoder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..data.batching import batch_by_size
from ..data.json_values import JsonObject, ParsedObject
from ..data.reading import Reading
from ..data.sound import ENDINGS, Spoken, read_spoken
from ..errors import BadInput
from ..models.config import EncoderDecoderConfig, SequenceConfig
from ..models.generation.generate import generate
from ..models.heads import IGNORED, LMHeadConfig
from ..models.model import Model
from ..models.tokenizers.tokenizer import Tokenizer
from ..models.tokenizers.training import Special
from ..nn.embeddings.sound_embedding import SoundEmbeddingConfig
from ..nn.embeddings.text import TextEmbeddingConfig
from ..settings import Settings, Training, setting
from .architecture import Architecture, stack_of
from .inputs.audio_features import AudioFeatures, choose_features, open_audio
from .inputs.augment import spec_augment
from .inputs.cache import TensorCache
from .inputs.given import name_of
from .metrics.ctc import ctc_loss, greedy, min_frames, prefix_beam_search
from .metrics.edit_distance import character_error_rate, word_error_rate
from .results import Transcript
from .task import Batch, Scores, Task, require_tokenizer


@dataclass(frozen=True)
class TranscribeSettings(Settings):
    """Settings of the task `transcribe`.

    The model has a CTC head; with `decoder` it is an encoder and an autoregressive decoder instead.
    """

    unit: Literal["characters", "words", "bpe", "unigram"] = setting("characters", "What a token of a transcript is.")
    vocab_size: int = setting(1000, "Size of the vocabulary of bpe or unigram.", ge=1, former="size")
    lowercase: bool = setting(False, "Turn transcripts to lower case.", former="lower")
    stack_frames: int = setting(4, "Frames that are stacked into one token.", ge=1, former="stack")
    bins: int = setting(64, "Mel bins of a frame.", ge=1)
    sample_rate: int | None = setting(None, "Samples a second that recordings are resampled to.", ge=1)
    deltas: bool = setting(False, "Add first and second differences in time to each frame.")
    mask_frames: int = setting(
        25, "Longest stretch of frames that is masked in training, twice a recording.", ge=0, former="hide_frames"
    )
    mask_bins: int = setting(
        8, "Widest band of bins that is masked in training, twice a recording.", ge=0, former="hide_bins"
    )
    decoder: bool = setting(False, "Write with a decoder instead of CTC.")
    beams: int = setting(1, "Beams of the search that writes transcripts.", ge=1)
    sound: str | None = setting(None, "Column or array of the recordings.")
    text: str | None = setting(None, "Column or array of the transcripts.")


class Transcribe(Task[TranscribeSettings, Spoken, Spoken]):
    """Text for recordings: `Spoken` examples, word and character error rate."""

    name = "transcribe"
    Settings = TranscribeSettings
    ARCHITECTURE = Architecture(dim=144, layers=4, heads=4, activation="gelu")
    TRAINING = Training(epochs=100, warmup=300, schedule="cosine", weight_decay=0.05)

    def __init__(
        self, settings: TranscribeSettings, tokenizer: Tokenizer, audio_features: AudioFeatures, spaced: bool
    ) -> None:
        self.settings, self.audio_features, self.spaced = settings, audio_features, spaced
        self._tokenizer = tokenizer
        self.beams = settings.beams
        self.frames_per_token = settings.stack_frames
        self.reads_frames = audio_features.rate is None
        self.feature_cache = TensorCache(audio_features)

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @classmethod
    def read(cls, paths: Sequence[Path], settings: TranscribeSettings) -> Reading[Spoken]:
        return read_spoken(paths, sound=settings.sound, text=settings.text)

    @classmethod
    def prepare(cls, examples: Sequence[Spoken], settings: TranscribeSettings) -> Transcribe:
        """The task for these training examples: its vocabulary, and the features of recordings."""
        if not examples:
            raise BadInput("No recording was read. Look at the files with `regard check --task transcribe`.")
        features = choose_features(list(examples), settings.bins, settings.sample_rate, settings.deltas)
        texts = [normalize_spaces(example.text) for example in examples]
        special = Special(mask=None) if settings.decoder else Special(start=None, end=None, mask=None)
        size = 1 << 20 if settings.unit in ("characters", "words") else settings.vocab_size
        tokenizer = Tokenizer.train(texts, settings.unit, size, settings.lowercase, special)
        return cls(settings, tokenizer, features, any(" " in text for text in texts))

    def as_dict(self) -> JsonObject:
        return {"rate": self.audio_features.rate, "bins": self.audio_features.bins, "spaced": self.spaced}

    @classmethod
    def from_dict(
        cls, data: ParsedObject, settings: TranscribeSettings, tokenizer: Tokenizer | None = None
    ) -> Transcribe:
        features = AudioFeatures(data["rate"], data["bins"], settings.deltas)
        return cls(settings, require_tokenizer(tokenizer), features, data["spaced"])

    def config(self, a: Architecture) -> SequenceConfig | EncoderDecoderConfig:
        positions = None if a.positions == "none" else "sinusoidal"
        embed = SoundEmbeddingConfig(
            self.audio_features.size, a.dim, self.settings.stack_frames, positions, norm=1e-5, dropout=a.dropout
        )
        size = self.tokenizer.size
        if not self.settings.decoder:
            return SequenceConfig(embed, stack_of(a), head=LMHeadConfig(size, a.dim, tied=False, bias=True, blank=0))
        text = TextEmbeddingConfig(
            size, a.dim, "sinusoidal", scaled=True, padding=self.tokenizer.pad, dropout=a.dropout
        )
        decoder = stack_of(a, causal=True, cross=True)
        return EncoderDecoderConfig(
            embed, stack_of(a), decoder, text, LMHeadConfig(size, a.dim), start=self.tokenizer.start or 0
        )

    def sizes(self, examples: Sequence[Spoken]) -> list[int]:
        """Tokens of each recording."""
        return [self.tokens_of(self.feature_cache(example).shape[0]) for example in examples]

    def tokens_of(self, frames: int) -> int:
        return -(-frames // self.settings.stack_frames)

    def training_length(self, examples: Sequence[Spoken]) -> int | None:
        return max(self.sizes(examples), default=None)

    def batch(self, examples: Sequence[Spoken], rng: Random | None = None) -> dict[str, Tensor]:
        labels = self.tokenizer([normalize_spaces(example.text) for example in examples])
        return {**self.encode_audio(examples, rng), "labels": labels.tokens, "counts": labels.lengths}

    def encode_audio(self, examples: Sequence[Spoken], rng: Random | None = None) -> dict[str, Tensor]:
        """The model's inputs: `sound [batch, frames, bins]` and the frames of each row."""
        frames = [self.feature_cache(example) for example in examples]
        if rng is not None:
            widest = (self.settings.mask_frames, self.settings.mask_bins)
            frames = [spec_augment(recording, rng, widest) for recording in frames]
        lengths = torch.tensor([recording.shape[0] for recording in frames])
        return {"sound": nn.utils.rnn.pad_sequence(frames, batch_first=True), "lengths": lengths}

    def count(self, batch: dict[str, Tensor]) -> int:
        start_tokens = len(batch["counts"]) if self.settings.decoder else 0
        return int(batch["counts"].sum()) - start_tokens

    def loss(self, model: nn.Module, batch: dict[str, Tensor], smoothing: float = 0.0) -> Tensor:
        if self.settings.decoder:
            return self.decoder_loss(model, batch, smoothing)
        if smoothing:
            raise BadInput(
                f"label_smoothing is {smoothing}; CTC has no label per position. Set it to 0 (or decoder=true)."
            )
        logits = model(sound=batch["sound"], lengths=batch["lengths"]).logits
        tokens = (batch["lengths"] + self.settings.stack_frames - 1) // self.settings.stack_frames
        return ctc_loss(logits, tokens, batch["labels"], batch["counts"])

    def decoder_loss(self, model: nn.Module, batch: dict[str, Tensor], smoothing: float) -> Tensor:
        """−Σ ln p of each token given the correct tokens before it."""
        targets, labels = batch["labels"][:, :-1], batch["labels"][:, 1:]
        real = torch.arange(labels.shape[1], device=labels.device) < batch["counts"][:, None] - 1
        audio = {"sound": batch["sound"], "lengths": batch["lengths"]}
        logits = model(**audio, targets=targets, target_lengths=batch["counts"] - 1).logits
        labels = labels.masked_fill(~real, IGNORED).flatten()
        return functional.cross_entropy(
            logits.flatten(0, 1).float(), labels, ignore_index=IGNORED, label_smoothing=smoothing, reduction="sum"
        )

    def evaluate(self, model: Model, examples: Sequence[Spoken]) -> Scores:
        """Word and character error rate; the latter is the main metric for texts without spaces."""
        references = [normalize_spaces(example.text) for example in examples]
        if self.settings.lowercase:
            references = [text.lower() for text in references]
        texts = self.transcribe(model, examples)
        metrics = {"wer": word_error_rate(references, texts), "cer": character_error_rate(references, texts)}
        return Scores(metrics, "wer" if self.spaced else "cer", higher=False, hypotheses=texts)

    @torch.no_grad()
    def transcribe(self, model: Model, examples: Sequence[Spoken], tokens: int = 8192) -> list[str]:
        """The transcript of each recording."""
        texts: dict[int, str] = {}
        device = next(model.parameters()).device
        decode = self.decode_autoregressive if self.settings.decoder else self.decode_ctc
        for numbers in batch_by_size(self.sizes(examples), tokens):
            audio = self.encode_audio([examples[n] for n in numbers])
            audio = {name: x.to(device) for name, x in audio.items()}
            texts.update(zip(numbers, decode(model, audio), strict=True))
        return [texts[n] for n in range(len(examples))]

    def decode_ctc(self, model: Model, audio: dict[str, Tensor]) -> list[str]:
        """The texts of CTC's labels, by greedy or prefix beam search."""
        logits, beams = model(**audio).logits, self.settings.beams
        lengths = [self.tokens_of(frames) for frames in audio["lengths"].tolist()]
        rows = greedy(logits, lengths) if beams == 1 else prefix_beam_search(logits, lengths, beams)
        return [self.text_of(row) for row in rows]

    def decode_autoregressive(self, model: Model, audio: dict[str, Tensor]) -> list[str]:
        """The texts that the decoder writes; at most twice as many tokens as the encoder has."""
        max_new = 2 * self.tokens_of(int(audio["lengths"].max())) + 8
        tokenizer = self.tokenizer
        rows = generate(
            model,
            sound=audio["sound"],
            lengths=audio["lengths"],
            max_new=max_new,
            beams=self.settings.beams,
            end=tokenizer.end,
            pad=tokenizer.pad,
        )
        return [self.text_of(row) for row in rows.tolist()]

    def text_of(self, tokens: list[int]) -> str:
        return normalize_spaces(self.tokenizer.decode(tokens)) if tokens else ""

    def audio_inputs(self, spoken: Spoken) -> Batch:
        return self.encode_audio([spoken])

    def example_records(self, examples: Sequence[Spoken]) -> list[dict[str, str]]:
        names = [str(getattr(example.sound, "path", "")) for example in examples]
        return [{"input": name, "gold": example.text} for name, example in zip(names, examples, strict=True)]

    @property
    def input_files(self) -> tuple[str, ...]:
        return (*ENDINGS, "npy")

    def predict(self, model: Model, inputs: Sequence[object]) -> list[Transcript]:
        """The transcript of each recording (or `.npy` file of frames)."""
        texts = self.transcribe(model, [open_audio(given) for given in inputs])
        return [Transcript(name_of(given), text) for given, text in zip(inputs, texts, strict=True)]

    def describe(self, examples: Sequence[Spoken]) -> JsonObject:
        """Facts that `check` shows: lengths, characters, and how many recordings are too short for their text."""
        texts, tokens = [normalize_spaces(example.text) for example in examples], self.sizes(examples)
        needed = [min_frames(self.tokenizer([text]).tokens[0].tolist()) for text in texts]
        features = self.audio_features
        source = "frames of the file" if features.rate is None else f"{features.rate} samples a second"
        return {
            "recordings": len(examples),
            "heard as": f"{source}, {features.size} numbers a frame, {self.settings.stack_frames} frames a token",
            "tokens": sum(tokens),
            "longest": max(tokens),
            "words": sum(len(text.split()) for text in texts),
            "units": self.tokenizer.size,
            "too short for their text": sum(a < b for a, b in zip(tokens, needed, strict=True)),
            "characters": dict(Counter("".join(texts)).most_common()),
            "examples": texts[:3],
        }


def normalize_spaces(text: str) -> str:
    """The text with one space between words."""
    return " ".join(text.split())
