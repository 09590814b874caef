"""Models are found in the given folders only."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
import time
from pathlib import Path

import pytest

import regard as rg
from regard.lab import library as library_module
from regard.lab.api import heads
from regard.lab.lab import Lab
from regard.lab.library import ModelLibrary, NotFound, read_scripts
from regard.lab.server.jobs import Cancelled, Job


def test_links_out_of_a_folder_are_not_followed(lab_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to(lab_folder)
    (tmp_path / "own").mkdir()
    assert not [name for name, entry in ModelLibrary([tmp_path], shipped=False).entries().items() if entry.path]
    with pytest.raises(rg.BadInput, match="not a folder"):
        ModelLibrary([tmp_path / "nowhere"])
    with pytest.raises(NotFound, match="bert"):
        ModelLibrary([lab_folder]).entry("out/bert")


def test_shipped_models_open_and_agree_with_themselves(lab: Lab) -> None:
    shipped = [
        entry for entry in lab.library.entries().values() if entry.source == "shipped" and entry.path is not None
    ]
    for entry in shipped:
        assert entry.modality in ("text", "pair", "image", "sound", "graph") and entry.layers and entry.heads, entry
        if entry.modality in ("text", "pair"):
            answer = heads.run(lab, {"model": entry.name, "input": {"text": "The cat sat."}}, Job())
        elif entry.examples():
            answer = heads.run(lab, {"model": entry.name, "input": {"example": entry.examples()[0]}}, Job())
        else:
            continue
        assert answer["difference"]["largest"] < 1e-4, entry.name
        assert answer["prediction"]["items"], entry.name


@pytest.mark.parametrize(
    "content",
    ['{"task": ["tag"]}', "[" * 100_000, '{"task": "tag", "settings": {"source": []}}', '{"task": {}, "training": 3}'],
    ids=range(4),
)
def test_one_damaged_folder_does_not_disable_the_others(lab_folder: Path, tmp_path: Path, content: str) -> None:
    shutil.copytree(lab_folder / "bert", tmp_path / "bert")
    (tmp_path / "bad" / "model").mkdir(parents=True)
    (tmp_path / "bad" / "run.json").write_text(content)
    (tmp_path / "bad" / "model" / "regard.json").write_text('{"model": {"type": [1], "embed": {"type": {}}}}')
    library = ModelLibrary([tmp_path], shipped=False)
    listed = library.entries()
    assert listed["bert"].problem is None and library.open("bert", Job()).model is not None
    with pytest.raises(rg.BadInput):
        library.open("bad", Job())
    json.dumps([entry.as_dict() for entry in listed.values()])


def test_an_unusable_folder_is_listed_with_its_reason(
    lab_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(lab_folder / "bert", tmp_path / "bert")
    (tmp_path / "locked").mkdir()
    scan = os.scandir

    def refuse(path: str | Path) -> object:
        if Path(path).name == "locked":
            raise PermissionError(13, "Permission denied")
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    library = ModelLibrary([tmp_path], shipped=False)
    entry = library.entries()["locked"].as_dict()
    assert entry["modality"] == "unusable" and entry["folder"] == tmp_path.name
    assert "Permission denied" in entry["problem"]["en"] and "无法读取" in entry["problem"]["zh"]
    with pytest.raises(rg.BadInput, match="locked cannot be used"):
        library.open("locked", Job())
    assert library.open("bert", Job()).model is not None and "locked" not in library.runs()


def test_shards_that_are_links_out_of_the_folder_are_not_read(lab_folder: Path, tmp_path: Path) -> None:
    root, outside = tmp_path / "given", tmp_path / "outside.safetensors"
    shutil.copytree(lab_folder / "bert", root / "bert")
    weights = root / "bert" / "model.safetensors"
    weights.rename(outside)
    weights.symlink_to(outside)
    with pytest.raises(rg.BadInput, match="link to a file outside"):
        ModelLibrary([root], shipped=False).open("bert", Job())
    inside = root / "weights.safetensors"
    outside.rename(inside)
    weights.unlink()
    weights.symlink_to(inside)
    assert ModelLibrary([root], shipped=False).open("bert", Job()).model is not None


def test_a_snapshot_of_hugging_face_may_link_to_its_own_cache(lab_folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "models--a--bert"
    snapshot = cache / "snapshots" / "1"
    shutil.copytree(lab_folder / "bert", snapshot)
    (cache / "blobs").mkdir()
    (snapshot / "model.safetensors").rename(cache / "blobs" / "0")
    (snapshot / "model.safetensors").symlink_to(cache / "blobs" / "0")
    library = ModelLibrary([snapshot], shipped=False)
    assert library.open(snapshot.name, Job()).model is not None


def test_a_model_that_loads_long_can_be_cancelled_and_is_there_later(
    lab_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, load, calls = threading.Event(), library_module.load_entry, []

    def slow(entry: library_module.ModelEntry) -> library_module.LoadedModel:
        calls.append(entry.name)
        assert gate.wait(20)
        return load(entry)

    monkeypatch.setattr(library_module, "load_entry", slow)
    library, job = ModelLibrary([lab_folder], shipped=False), Job()
    threading.Timer(0.2, job.cancel).start()
    started = time.monotonic()
    with pytest.raises(Cancelled):
        library.open("bert", job)
    assert time.monotonic() - started < 5
    gate.set()
    assert library.open("bert", Job()).model is not None and calls == ["bert"]


def test_shipped_models_have_a_card_in_both_languages(lab: Lab) -> None:
    for entry in lab.library.entries().values():
        if entry.source != "shipped":
            continue
        shown = entry.as_dict()
        fields = [shown["title"], *([shown["card"]["summary"]] if entry.hand_made else [])]
        fields += [] if entry.path is None else [shown["card"]["data"], shown["card"]["score"]]
        for field in fields:
            assert set(field) == {"en", "zh"} and all(field.values()), entry.name
        if entry.path is not None:  # the score of the card is the one of the model's page
            score, page = shown["card"]["score"], (entry.path / "README.md").read_text("utf8")
            numbers = re.findall(r"\d[\d,.]*\d|\d+", score["en"])
            assert numbers and all(number in page for number in numbers), (entry.name, numbers)
    assert {name for name, entry in lab.library.entries().items() if entry.hand_made} == {"meanings", "recall"}


def test_examples_are_in_a_script_that_the_words_of_a_run_have(lab: Lab, tmp_path: Path) -> None:
    entries = {entry["name"]: entry for entry in (x.as_dict() for x in lab.library.entries().values())}
    assert next(x["scripts"] for name, x in entries.items() if name.endswith("reviews-0")) == ("LATIN",)
    for kind, words, scripts in (("WordLevel", ["[PAD]", "猫", "狗"], ("CJK",)), ("BPE", ["cat"], ())):
        vocabulary = {word: n for n, word in enumerate(words)}
        (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"type": kind, "vocab": vocabulary}}))
        assert read_scripts(tmp_path) == scripts
