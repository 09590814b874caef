"""Speech recognition: text for recordings, with CTC or a decoder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Literal, cast

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
from ..models.generation.rules import TokenRules, rules_from_dict
from ..models.generation.sampling import GenerateArguments
from ..models.heads import IGNORED, LMHeadConfig
from ..models.model import Model
from ..models.tokenizers.tokenizer import Tokenizer, pad_rows
from ..models.tokenizers.training import Special
from ..nn.embeddings.sound_embedding import SoundEmbeddingConfig
from ..nn.embeddings.text import TextEmbeddingConfig
from ..settings import Settings, Training, setting
from .architecture import Architecture, stack_of
from .inputs.audio_features import (
    AudioFeatures,
    CheckpointAudioFeatures,
    choose_features,
    features_of_checkpoint,
    open_audio,
)
from .inputs.augment import spec_augment
from .inputs.cache import TensorCache
from .inputs.given import name_of
from .metrics.ctc import ctc_loss, greedy, min_frames, prefix_beam_search
from .metrics.edit_distance import character_error_rate, word_error_rate
from .pretrained.pretrained import Pretrained, describe_model
from .results import Transcript
from .task import Batch, Scores, Task, require_tokenizer


@dataclass(frozen=True)
class TranscribeSettings(Settings):
    """Settings of the task `transcribe`.

    The model has a CTC head; with `decoder`, and from a checkpoint, it is an encoder and an autoregressive decoder.
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
    language: str | None = setting(None, "Language of the transcripts for a multilingual Whisper, such as en or de.")


class Transcribe(Task[TranscribeSettings, Spoken, Spoken]):
    """Text for recordings: `Spoken` examples, word and character error rate."""

    name = "transcribe"
    Settings = TranscribeSettings
    ARCHITECTURE = Architecture(dim=144, layers=4, heads=4, activation="gelu")
    TRAINING = Training(epochs=100, warmup=300, schedule="cosine", weight_decay=0.05)

    def __init__(
        self,
        settings: TranscribeSettings,
        tokenizer: Tokenizer,
        audio_features: AudioFeatures,
        spaced: bool,
        rules: TokenRules | None = None,
        limit: int | None = None,
    ) -> None:
        """`rules` are those of a checkpoint: how its transcripts start and end, and which tokens it never writes;
        `limit` is how many tokens its decoder has positions for."""
        self.settings, self.audio_features, self.spaced = settings, audio_features, spaced
        self._rules, self.limit = rules, limit
        self.pretrained: Pretrained | None = None
        self._tokenizer = tokenizer
        self.beams = settings.beams
        self.frames_per_token = settings.stack_frames
        self.reads_frames = audio_features.rate is None
        self.feature_cache = TensorCache(audio_features)

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @property
    def rules(self) -> TokenRules | None:
        return self._rules

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

    @classmethod
    def prepare_from(
        cls, examples: Sequence[Spoken], settings: TranscribeSettings, pretrained: Pretrained
    ) -> Transcribe:
        """The task with the features and the tokenizer of a Whisper, whose weights are all trained further."""
        config, before = pretrained.model.config, pretrained.task
        if not isinstance(config, EncoderDecoderConfig) or not isinstance(config.embed, SoundEmbeddingConfig):
            raise BadInput(
                f"{pretrained.name} ({describe_model(pretrained.model)}) does not write texts for recordings. Start "
                "from a Whisper."
            )
        if isinstance(before, Transcribe) and not isinstance(before.audio_features, CheckpointAudioFeatures):
            raise BadInput(f"{pretrained.name} is a run that was trained from scratch. Start from a Whisper.")
        settings = replace(settings, decoder=True, stack_frames=2, deltas=False)
        if isinstance(before, Transcribe):
            features: AudioFeatures = before.audio_features
        else:
            features = features_of_checkpoint(config, pretrained.model.preprocessor)
        rules = transcript_rules(pretrained, settings.language)
        texts = [normalize_spaces(example.text) for example in examples]
        limit = None if config.decoder_embed is None else config.decoder_embed.max_positions
        task = cls(settings, pretrained.tokenizer, features, any(" " in text for text in texts), rules, limit)
        task.pretrained = pretrained
        return task

    def initialize(self, model: nn.Module) -> None:
        if self.pretrained is not None:
            self.pretrained.initialize(model)

    def as_dict(self) -> JsonObject:
        own = {"rate": self.audio_features.rate, "bins": self.audio_features.bins, "spaced": self.spaced}
        if self.rules is None:
            return own
        return {**own, "features": asdict(self.audio_features), "rules": asdict(self.rules), "limit": self.limit}

    @classmethod
    def from_dict(
        cls, data: ParsedObject, settings: TranscribeSettings, tokenizer: Tokenizer | None = None
    ) -> Transcribe:
        if "rules" in data:
            features, rules = CheckpointAudioFeatures(**data["features"]), rules_from_dict(data["rules"])
            return cls(settings, require_tokenizer(tokenizer), features, data["spaced"], rules, data["limit"])
        plain = AudioFeatures(data["rate"], data["bins"], settings.deltas)
        return cls(settings, require_tokenizer(tokenizer), plain, data["spaced"])

    def config(self, a: Architecture) -> SequenceConfig | EncoderDecoderConfig:
        if self.pretrained is not None:
            return cast(EncoderDecoderConfig, self.pretrained.model.config)
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
        texts = [normalize_spaces(example.text) for example in examples]
        audio = self.encode_audio(examples, rng)
        if self.rules is not None:
            rows = [self.target_row(text, self.rules) for text in texts]
            return {**audio, "labels": pad_rows(rows, 0), "counts": torch.tensor([len(row) for row in rows])}
        labels = self.tokenizer(texts)
        return {**audio, "labels": labels.tokens, "counts": labels.lengths}

    def target_row(self, text: str, rules: TokenRules) -> list[int]:
        """The tokens of a transcript of a checkpoint, from its start to its end tokens."""
        text = text.lower() if self.settings.lowercase else text
        row = [*rules.start, *self.tokenizer.backend.encode(text, add_special_tokens=False).ids, rules.end[0]]
        limit = self.limit or len(row)
        return row if len(row) <= limit else [*row[: limit - 1], rules.end[0]]

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
        """The texts that the decoder writes; at most twice as many tokens as the encoder has, or as it has positions.

        How texts start and end is in the rules of a checkpoint's model.
        """
        max_new = 2 * self.tokens_of(int(audio["lengths"].max())) + 8
        if self.rules is not None and self.limit is not None:
            max_new = min(max_new, self.limit - len(self.rules.start))
        options: GenerateArguments = {"max_new": max_new, "beams": self.settings.beams}
        if self.rules is None:
            options |= {"end": self.tokenizer.end, "pad": self.tokenizer.pad}
        rows = generate(model, **{**options, "sound": audio["sound"], "lengths": audio["lengths"]})
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


def transcript_rules(pretrained: Pretrained, language: str | None) -> TokenRules:
    """The rules of a Whisper's transcripts: they start with the tokens that its tokenizer adds, or with those of a
    language."""
    rules, backend = pretrained.model.rules, pretrained.tokenizer.backend
    if rules is None or not rules.start or not rules.end:
        raise BadInput(f"{pretrained.name} names no decoder_start_token_id or eos_token_id in its config.json.")
    added = list(backend.encode("").ids)
    own = added[: added.index(rules.end[0])] if rules.end[0] in added else added
    start = tuple(own) if own[:1] == [rules.start[0]] else rules.start
    if language is not None:
        names = (f"<|{language}|>", "<|transcribe|>", "<|notimestamps|>")
        numbers = [backend.token_to_id(name) for name in names]
        if None in numbers:
            raise BadInput(
                f"language is {language!r}, and the tokenizer of {pretrained.name} has no "
                f"{names[numbers.index(None)]}. Give a language that it knows, or none for an English checkpoint."
            )
        start = (rules.start[0], *numbers)
    return replace(rules, start=start, forced_first=None)


def normalize_spaces(text: str) -> str:
    """The text with one space between words."""
    return " ".join(text.split())
