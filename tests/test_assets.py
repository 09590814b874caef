"""The models that come with the package: found by name, whole, described, and able to say something true."""

from __future__ import annotations

import json
import math
import re
import wave
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import regard as rg
from regard.assets import list_assets, resolve_folder
from regard.cli import app
from regard.tasks.lm import Lm
from regard.tasks.metrics.verse import verse_lines
from regard.train.run import open_run

NAMES = (
    "cora",
    "digits",
    "emoji",
    "karate",
    "poet",
    "shakespeare",
    "spoken-digits",
    "tagger",
    "tagger-zh",
    "translator",
    "translator-zh-en",
    "writer",
)
LANGUAGES = {
    "poet": ["zh"],
    "shakespeare": ["en"],
    "tagger": ["en"],
    "tagger-zh": ["zh"],
    "translator": ["en"],
    "translator-zh-en": ["zh"],
    "writer": ["en"],
}
"""What the models that read text read."""


def test_they_are_all_there_small_and_plain() -> None:
    assert set(NAMES) == set(list_assets())
    files = [path for folder in list_assets().values() for path in folder.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 57_000_000
    assert {path.suffix for path in files} <= {".json", ".jsonl", ".txt", ".safetensors", ".md", ".npz", ".png", ".wav"}


def test_the_package_stays_below_62_megabytes() -> None:
    """The shipped models have at most 57 (above); code, the course and the lab the rest."""
    root = Path(rg.__file__).parent
    files = (path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    assert sum(path.stat().st_size for path in files) <= 62_000_000


def test_models_of_text_say_what_they_read() -> None:
    for name, languages in LANGUAGES.items():
        card = json.loads((list_assets()[name] / "card.json").read_text("utf8"))
        record = json.loads((list_assets()[name] / "run.json").read_text("utf8"))
        assert card["languages"] == languages
        assert isinstance(record["training_length"], int) and record["training_length"] > 0
        if record["task"] == "translate":
            assert card["target_languages"] == [record["settings"]["target"]]
            assert card["languages"] == [record["settings"]["source"]]


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


def run_command(name: str, *inputs: str) -> list:
    done = CliRunner().invoke(app, ["predict", name, *inputs, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_the_tagger() -> None:
    (found,) = run_command("tagger", "The cat sat on the mat .")
    assert found["tags"] == ["DET", "NOUN", "VERB", "ADP", "DET", "NOUN", "PUNCT"]


def test_the_chinese_tagger_finds_words() -> None:
    first, second = run_command("tagger-zh", "他在北京大学学习。", "猫坐在垫子上")
    assert first["words"] == ["他", "在", "北京", "大学", "学习", "。"]
    assert (first["tags"][0], first["tags"][2], first["tags"][-1]) == ("PRON", "PROPN", "PUNCT")
    assert second["words"] == ["猫", "坐", "在", "垫子", "上"]
    done = CliRunner().invoke(app, ["predict", "tagger-zh", "他在北京大学学习。"])
    assert done.stdout.startswith("他/PRON ") and done.stdout.rstrip().endswith("。/PUNCT")


def test_the_poet_writes_regular_verse() -> None:
    poems = [row["text"] for row in run_command("poet", "床前明月光，", "白日依山尽，")]
    assert [poem[:6] for poem in poems] == ["床前明月光，", "白日依山尽，"]
    lines = [line for poem in poems for line in verse_lines(poem)]
    assert len(lines) >= 8 and all(len(line) == 5 for line in lines)


def test_a_head_of_the_poet_attends_to_the_rhymes() -> None:
    """Before the last character of line 4, the head that the card names attends to the end of line 2."""
    task, model, _ = open_run("poet")
    assert isinstance(task, Lm)
    tokens = torch.tensor([list(task.encode("\n白日依山尽，黄河入海流。欲穷千里目，更上一层楼。"))])
    with torch.no_grad(), rg.watch(model, weights=True) as views:
        model(tokens=tokens)
    weights = list(views.values())[3].weights
    assert weights is not None and weights[0, 5, 22, 11] > 0.5


def test_the_writer_copies_what_comes_again() -> None:
    """Random tokens twice: the head that the card names attends to the token after the first occurrence."""
    task, model, _ = open_run("writer")
    assert isinstance(task, Lm)
    passage = torch.randint(3, task.tokenizer.size, (8, 40), generator=torch.Generator().manual_seed(1))
    tokens = torch.cat([torch.full((8, 1), task.end), passage, passage], 1)
    with torch.no_grad(), rg.watch(model, weights=True) as views:
        logits = model(tokens=tokens).logits[:, :-1]
    losses = torch.nn.functional.cross_entropy(logits.mT, tokens[:, 1:], reduction="none").mean(0)
    assert losses[41:].mean() < losses[:40].mean() / 3
    weights, queries = list(views.values())[2].weights, torch.arange(41, 80)
    assert weights is not None and weights[:, 5, queries, queries - 39].mean() > 0.5


def test_the_translator_from_chinese() -> None:
    (found,) = run_command("translator-zh-en", "我喜欢猫。")
    assert found["text"].lower().startswith("i ") and "cat" in found["text"]


def test_the_translator() -> None:
    (found,) = run_command("translator", "I love you.")
    assert all(character in found["text"] for character in "我你爱")


def test_shakespeare_sets_a_scene() -> None:
    (found,) = run_command("shakespeare", "ROMEO:")
    assert found["text"].startswith("ROMEO:") and len(found["text"]) > 100 and "\n" in found["text"]


def test_the_digits_of_its_examples_are_recognised() -> None:
    """Their names are what they show; one may be wrong."""
    paths = sorted((list_assets()["digits"] / "examples").glob("*.png"))
    right = [
        one["label"] == path.stem for one, path in zip(run_command("digits", *map(str, paths)), paths, strict=True)
    ]
    assert len(right) >= 3 and sum(right) >= len(right) - 1


def test_most_emoji_of_its_examples_are_recognised() -> None:
    """Their names begin with their classes; the card says how many of these held-out pictures are right."""
    paths = sorted((list_assets()["emoji"] / "examples").glob("*.png"))
    right = [
        one["label"] == path.stem.split("-")[0]
        for one, path in zip(run_command("emoji", *map(str, paths)), paths, strict=True)
    ]
    assert (sum(right), len(right)) == (13, 18)


def test_the_spoken_digits_of_its_examples_are_recognised() -> None:
    paths = sorted((list_assets()["spoken-digits"] / "examples").glob("*.wav"))
    labels = [one["label"] for one in run_command("spoken-digits", *map(str, paths))]
    assert labels == [path.stem[0] for path in paths] == list("0123456789")


def test_cora_scores_as_its_card_says() -> None:
    task, model, _ = open_run("cora")
    graph = task.read([list_assets()["cora"] / "examples" / "cora.npz"], task.settings).select("test")
    assert task.evaluate(model, graph.examples).metrics["accuracy"] == pytest.approx(0.825)


def test_spoken_digits_answers_with_a_digit(tmp_path: Path) -> None:
    time = torch.arange(4000) / 8000
    samples = (8000 * torch.sin(2 * math.pi * (300 + 400 * time) * time)).to(torch.int16)
    with wave.open(str(tmp_path / "tone.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(samples.numpy().tobytes())
    (found,) = run_command("spoken-digits", str(tmp_path / "tone.wav"))
    assert found["label"] in map(str, range(10)) and 0.1 <= found["probability"] <= 1


def test_the_club_scores_as_its_card_says() -> None:
    task, model, _ = open_run("karate")
    graph = task.read([list_assets()["karate"] / "examples" / "karate.npz"], task.settings).select("test")
    assert task.evaluate(model, graph.examples).metrics["accuracy"] == pytest.approx(20 / 22)


def test_the_classes_of_cora_have_their_names() -> None:
    """The sizes of the seven classes, as the data set is published, say which number is which."""
    papers = {"theory": 351, "reinforcement learning": 217, "genetic algorithms": 418, "neural networks": 818}
    papers |= {"probabilistic methods": 426, "case-based reasoning": 298, "rule learning": 180}
    card = json.loads((list_assets()["cora"] / "card.json").read_text("utf8"))
    with np.load(list_assets()["cora"] / "examples" / "cora.npz") as graph:
        counts = np.bincount(graph["y"])
    assert {name["en"]: int(counts[int(number)]) for number, name in card["classes"].items()} == papers
    assert all(name["zh"] for name in card["classes"].values())
