"""Transcription: tones that spell words are written down; the decoding and the error rates are right by enumeration."""

from __future__ import annotations

import csv
import itertools
import json
import math
from pathlib import Path
from random import Random

import numpy
import pytest
import torch
from typer.testing import CliRunner

import regard as rg
from regard.cli import app
from regard.data.sound import Samples, Spoken
from regard.tasks.architecture import MODELS, Architecture
from regard.tasks.ctc import BLANK, ctc_loss, greedy, places_needed, prefix_beam
from regard.tasks.edit_distance import character_error_rate, edit_distance, word_error_rate
from regard.tasks.hearing import Hearing, with_deltas
from regard.tasks.transcribe import Transcribe, TranscribeSettings

TONES = {"a": 300.0, "b": 700.0, "c": 1300.0, "d": 2300.0}
RATE = 8000


def tone(letter: str, draw: Random) -> torch.Tensor:
    """About a tenth of a second of a letter; of silence for a blank."""
    time = torch.arange(int(RATE * draw.uniform(0.08, 0.12))) / RATE
    wave = 0.3 * torch.sin(2 * math.pi * TONES.get(letter, 0.0) * time)
    return wave + 0.01 * torch.tensor([draw.gauss(0, 1) for _ in time])


def spell(text: str, draw: Random) -> torch.Tensor:
    """A recording of a text."""
    return torch.cat([tone(letter, draw) for letter in f" {text} "])


def texts(count: int, draw: Random) -> list[str]:
    """Words without the same letter twice in a row, which would be one long tone."""
    words = [a + b + c for a, b, c in itertools.product("abcd", repeat=3) if a != b != c]
    return [" ".join(draw.choice(words) for _ in range(draw.randint(1, 2))) for _ in range(count)]


def spoken(count: int, seed: int) -> list[Spoken]:
    draw = Random(seed)
    return [Spoken(text, sound=Samples(spell(text, draw), RATE)) for text in texts(count, draw)]


def framed(count: int = 4, bins: int = 5) -> list[Spoken]:
    """Frames without sense, of different lengths."""
    torch.manual_seed(0)
    said = ["ab ba", "a", "bab", "b a"]
    return [Spoken(said[n % 4], frames=torch.randn(30 + 7 * n, bins)) for n in range(count)]


def task_of(examples: list[Spoken], **settings) -> Transcribe:
    return Transcribe.prepare(examples, TranscribeSettings(**settings))


SMALL = Architecture(dim=16, layers=1, heads=2, window=8, block=4, dropout=0.0)


def listed(folder: Path, count: int, seed: int) -> Path:
    """WAV files and the table that says what they say."""
    import soundfile

    folder.mkdir()
    with (folder / "list.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["audio", "transcript"])
        for n, one in enumerate(spoken(count, seed)):
            assert one.sound is not None
            soundfile.write(folder / f"{n}.wav", one.sound.load()[0].numpy(), RATE)
            table.writerow([f"{n}.wav", one.text])
    return folder / "list.csv"


def test_commands_from_recordings_to_text(tmp_path: Path) -> None:
    """An empty answer has a word error rate of 1; a model that hears the tones makes few errors."""
    train, dev = listed(tmp_path / "train", 120, 0), listed(tmp_path / "dev", 20, 1)
    run, call = tmp_path / "run", CliRunner().invoke
    checked = call(app, ["check", str(train), "--task", "transcribe", "--json"])
    assert json.loads(checked.stdout)["recordings"] == 120, checked.output
    wanted = {
        "dim": 48, "layers": 2, "dropout": 0.0, "bins": 24, "stack": 3, "rate": RATE, "batch_size": 12, "warmup": 20,
        "hide_frames": 5, "hide_bins": 2, "evaluate_every": 100,
    }  # fmt: skip
    changes = [part for name, value in wanted.items() for part in ("--set", f"{name}={value}")]
    rate = ["--set", "rate=8000", "--steps", "300", "--device", "cpu"]
    command = ["train", "transcribe", "--train", str(train), "--dev", str(dev), "--out", str(run), *changes, *rate]
    trained = call(app, [*command, "--json"])
    assert trained.exit_code == 0, trained.output
    assert json.loads(trained.stdout)["metrics"]["wer"] < 0.25, trained.stdout
    scored = json.loads(call(app, ["evaluate", str(run), "--data", str(dev), "--json"]).stdout)
    assert scored["metrics"] == json.loads(trained.stdout)["metrics"]
    said = call(app, ["predict", str(run), str(tmp_path / "dev" / "0.wav"), "--json"])
    right = spoken(20, 1)[0].text
    assert edit_distance(json.loads(said.stdout)[0]["text"], right) <= 1
    gone = call(app, ["predict", str(run), str(tmp_path / "none.wav")])
    assert gone.exit_code == 1 and "none.wav is not there" in gone.output
