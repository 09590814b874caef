"""Runs of the tasks that read pictures, recordings and molecules, and of models with attention plugged in."""

from __future__ import annotations

import base64
import io
import math
import wave
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from regard.data.detection import Boxes
from regard.data.graphs.graph_sets import LabelledGraph
from regard.data.images import Captioned, ImageBytes, LabelledImage
from regard.data.sound import Samples, Spoken
from regard.data.text import LabelledText, Parallel
from regard.tasks.classify import Classify, ClassifySettings
from regard.tasks.detect import Detect, DetectSettings
from regard.tasks.graphs import Graphs, GraphsSettings
from regard.tasks.match import Match, MatchSettings
from regard.tasks.task import Scores
from regard.tasks.transcribe import Transcribe, TranscribeSettings
from regard.tasks.translate import Translate, TranslateSettings

from .saved_runs import ARCHITECTURE, SOURCES, TARGETS, save_run

RATE = 8000
WORDS = ("yes", "no", "maybe")


def tone(hertz: float, seconds: float = 0.4) -> torch.Tensor:
    """A sound that begins and ends quietly."""
    at = torch.arange(round(seconds * RATE)) / RATE
    return 0.4 * torch.sin(2 * math.pi * hertz * at) * torch.sin(math.pi * at / seconds)


def as_wav(samples: torch.Tensor) -> str:
    """The base64 of a WAV."""
    held = io.BytesIO()
    with wave.open(held, "wb") as file:
        file.setnchannels(1), file.setsampwidth(2), file.setframerate(RATE)
        file.writeframes((samples * 32767).round().to(torch.int16).numpy().tobytes())
    return base64.b64encode(held.getvalue()).decode()


def picture(seed: int = 0, height: int = 30, width: int = 40) -> bytes:
    """A PNG of coloured noise with a bright square."""
    from PIL import Image

    pixels = torch.randint(0, 90, (height, width, 3), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    pixels[4 + seed : 14 + seed, 6:20] = torch.tensor([250, 220, 40], dtype=torch.uint8)
    held = io.BytesIO()
    Image.fromarray(pixels.numpy()).save(held, "PNG")
    return held.getvalue()


def as_image(seed: int) -> ImageBytes:
    return ImageBytes(torch.frombuffer(bytearray(picture(seed)), dtype=torch.uint8), f"{seed}.png")


def make_transcribe(decoder: bool) -> tuple[Any, list[Any]]:
    examples = [Spoken(word, Samples(tone(300 + 200 * n), RATE)) for n, word in enumerate(WORDS)]
    settings = TranscribeSettings(bins=12, stack_frames=2, decoder=decoder, mask_frames=0, mask_bins=0)
    return Transcribe.prepare(examples, settings), examples


def frames() -> tuple[Any, list[Any]]:
    draw = torch.Generator().manual_seed(0)
    examples = [Spoken(word, frames=torch.randn(30 + 4 * n, 6, generator=draw)) for n, word in enumerate(WORDS)]
    return Transcribe.prepare(examples, TranscribeSettings(stack_frames=2, mask_frames=0, mask_bins=0)), examples


def as_npy(frames: torch.Tensor) -> str:
    """The base64 of a NPY file."""
    import numpy

    held = io.BytesIO()
    numpy.save(held, frames.numpy())
    return base64.b64encode(held.getvalue()).decode()


def boxes(queries: int | None) -> tuple[Any, list[Any]]:
    box = torch.tensor([[0.325, 0.3, 0.35, 0.33]])
    examples = [Boxes(as_image(n), box, ("square",), (30, 40), f"{n}.png") for n in range(3)]
    settings = DetectSettings(image_size=40, backbone=(8, 8, 16), queries=queries, flip=False, crop=0.0)
    return Detect.prepare(examples, settings), examples


def pictures() -> tuple[Any, list[Any]]:
    examples = [LabelledImage(as_image(n), "even" if n % 2 == 0 else "odd") for n in range(4)]
    return Classify.prepare(examples, ClassifySettings(modality="image", image_size=16, patch_size=4)), examples


def captions() -> tuple[Any, list[Any]]:
    examples = [Captioned(as_image(n), f"picture number {n}", f"{n}.png") for n in range(3)]
    return Match.prepare(
        examples, MatchSettings(image_size=16, patch_size=4, projection_dim=8, word_dropout=0.0, jitter=0.0)
    ), examples


def molecules() -> tuple[Any, list[Any]]:
    from regard.data.graphs.molecules import read_molecule

    found = [(read_molecule(text), label) for text, label in (("CCO", "a"), ("CC(=O)O", "b"), ("c1ccccc1N", "c"))]
    examples = [LabelledGraph(one.atoms, one.edges, label, one.bonds) for one, label in found]
    return Graphs.prepare(examples, GraphsSettings()), examples


def texts(**more: Any) -> tuple[Any, list[Any]]:
    examples = [LabelledText(text, label) for text, label in zip(SOURCES, ("a", "b", "a", "b", "b"), strict=True)]
    return Classify.prepare(examples, ClassifySettings(modality="text", unit="words", **more)), examples


def committee() -> tuple[Any, list[Any]]:
    task, examples = texts(char_ngrams=3, ensemble=2, nb_linear=50)
    return task, examples[:3]  # dealt out to two and a line


def with_ngrams() -> tuple[Any, list[Any]]:
    _, examples = texts()
    return Classify.prepare(examples * 10, ClassifySettings(modality="text", unit="words")), examples


def pairs() -> tuple[Any, list[Any]]:
    examples = [Parallel(*pair) for pair in zip(SOURCES, TARGETS, strict=True)]
    return Translate.prepare(examples, TranslateSettings(vocab_size=80, unit="words")), examples


RUNS = {
    "letters": (lambda: make_transcribe(False), "transformer"),
    "dictation": (lambda: make_transcribe(True), "transformer"),
    "frames": (frames, "transformer"),
    "cells": (lambda: boxes(None), "transformer"),
    "objects": (lambda: boxes(6), "transformer"),
    "patches": (pictures, "transformer"),
    "stages": (pictures, "cnn+attention"),
    "captions": (captions, "transformer"),
    "molecules": (molecules, "gatv2"),
    "plugged": (texts, "lstm+attention"),
    "recurrent": (pairs, "gru+attention"),
    "spelt": (lambda: texts(max_affix=2), "transformer"),
    "committee": (committee, "transformer"),
    "ngrams": (with_ngrams, "transformer"),
}
"""What is made for each run, and the model that it trains."""


def save_other_run(root: Path, name: str) -> None:
    """The run `root/name`."""
    make, model = RUNS[name]
    task, examples = make()
    save_run(root / name, task, examples, 0, Scores({"score": 0.5}, "score"), replace(ARCHITECTURE, model=model))
