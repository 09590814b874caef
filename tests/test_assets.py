"""The models that come with the package: found by name, whole, described, and able to say something true."""

from __future__ import annotations

import json
import math
import re
import wave
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import regard as rg
from regard.assets import list_assets, resolve_folder
from regard.cli import app
from regard.train.run import open_run

NAMES = ("cora", "digits", "shakespeare", "spoken-digits", "tagger", "translator")


def test_they_are_all_there_small_and_plain() -> None:
    assert set(NAMES) <= set(list_assets())
    files = [path for folder in list_assets().values() for path in folder.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 20_000_000
    assert {path.suffix for path in files} <= {".json", ".jsonl", ".txt", ".safetensors", ".md", ".npz", ".png"}


@pytest.mark.parametrize("name", list_assets())
def test_each_loads_in_float32_and_has_a_card(name: str) -> None:
    model = rg.load(name)
    assert not model.training
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    card = (list_assets()[name] / "README.md").read_text("utf8")
    english, chinese = card.split("\n## 中文\n")
    headings = ["Input", "Output", "Data", "Licence", "Recipe", "Score", "Limits"]
    assert re.findall(r"\*\*(\w+)\*\*", english) == headings
    assert re.findall(r"\*\*(\w+)\*\*", chinese) == ["输入", "输出", "数据", "许可证", "训练方法", "得分", "局限"]
    assert "@" not in card


def test_a_folder_of_ones_own_comes_before_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_folder("digits") == list_assets()["digits"]
    (tmp_path / "digits").mkdir()
    assert resolve_folder("digits") == Path("digits")
    assert resolve_folder("no such thing") == Path("no such thing")
    with pytest.raises(rg.BadInput, match="no such thing"):
        rg.load("no such thing")


def said(name: str, *inputs: str) -> list:
    done = CliRunner().invoke(app, ["predict", name, *inputs, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_the_tagger() -> None:
    (found,) = said("tagger", "The cat sat on the mat .")
    assert found["tags"] == ["DET", "NOUN", "VERB", "ADP", "DET", "NOUN", "PUNCT"]


def test_the_translator() -> None:
    (found,) = said("translator", "I love you.")
    assert "我" in found and "你" in found and "爱" in found


def test_shakespeare_sets_a_scene() -> None:
    (found,) = said("shakespeare", "ROMEO:")
    assert found.startswith("ROMEO:") and len(found) > 100 and "\n" in found


def test_the_digits_of_its_examples_are_recognised() -> None:
    """Their names are what they show; one may be wrong."""
    paths = sorted((list_assets()["digits"] / "examples").glob("*.png"))
    right = [one["label"] == path.stem for one, path in zip(said("digits", *map(str, paths)), paths, strict=True)]
    assert len(right) >= 3 and sum(right) >= len(right) - 1


def test_spoken_digits_answers_with_a_digit(tmp_path: Path) -> None:
    time = torch.arange(4000) / 8000
    samples = (8000 * torch.sin(2 * math.pi * (300 + 400 * time) * time)).to(torch.int16)
    with wave.open(str(tmp_path / "tone.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(samples.numpy().tobytes())
    (found,) = said("spoken-digits", str(tmp_path / "tone.wav"))
    assert found["label"] in map(str, range(10)) and 0.1 <= found["probability"] <= 1


def test_the_club_scores_as_its_card_says() -> None:
    task, model, _ = open_run("karate")
    graph = task.read([list_assets()["karate"] / "examples" / "karate.npz"], task.settings).select("test")
    assert task.evaluate(model, graph.examples).metrics["accuracy"] == pytest.approx(20 / 22)
