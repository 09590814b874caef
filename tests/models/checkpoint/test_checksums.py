"""Checksums of a model's folder: a flipped bit is noticed, and a killed save leaves a model that opens."""

import json
import os
import random
import shutil
from pathlib import Path

import pytest
import torch

import regard as rg
from regard.models.checkpoint import files
from regard.models.checkpoint.checksums import hash_json
from regard.models.model import Model
from regard.models.tokenizers.tokenizer import Tokenizer


def make_model(seed: int) -> Model:
    torch.manual_seed(seed)
    config = rg.models.bert(vocabulary=20, dim=8, layers=1, heads=2, hidden=16, positions=8)
    model = config.build()
    model.tokenizer = Tokenizer.train(["the cat sat", "the dog sat"], unit="words", size=20)
    return model


@pytest.fixture(scope="module")
def saved_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checksums") / "model"
    make_model(0).save(folder)
    return folder


def first_weight(folder: Path) -> float:
    return next(iter(rg.load(folder).parameters())).flatten()[0].item()


def test_every_file_of_a_folder_has_a_hash(saved_folder: Path) -> None:
    config = json.loads((saved_folder / "regard.json").read_text())
    names = {path.name for path in saved_folder.iterdir()}
    assert {*config["files"], "regard.json"} == names == {*config["files"]} | {"regard.json"}
    assert {"model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= names
    assert "replaced_files" not in config and len(config["sha256"]) == 64


@pytest.mark.parametrize("seed", range(20))
def test_a_flipped_bit_is_noticed(saved_folder: Path, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    folder = shutil.copytree(saved_folder, tmp_path / "model")
    path = folder / rng.choice(sorted(path.name for path in saved_folder.iterdir()))
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    with pytest.raises(rg.BadInput, match=r"damaged|not JSON|has"):
        rg.load(folder)


def test_the_error_names_the_file_and_what_to_do(saved_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(saved_folder, tmp_path / "model")
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-3] ^= 4  # in a weight: the file is still a valid one
    (folder / "model.safetensors").write_bytes(data)
    with pytest.raises(rg.BadInput, match=r"model\.safetensors is damaged.*SHA-256.*Get the file again"):
        rg.load(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(rg.BadInput, match=r"lacks model\.safetensors"):
        rg.load(folder)
    config = json.loads((folder / "regard.json").read_text())
    (folder / "regard.json").write_text(json.dumps(config | {"files": {"../x": "0"}, "sha256": None}))
    with pytest.raises(rg.BadInput, match="damaged"):
        rg.load(folder)


def test_folders_without_hashes_open(saved_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(saved_folder, tmp_path / "model")
    config = json.loads((folder / "regard.json").read_text())
    (folder / "regard.json").write_text(json.dumps({"model": config["model"]}))
    assert first_weight(folder) == first_weight(saved_folder)


def test_a_save_that_is_killed_leaves_a_model_that_opens(
    saved_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, old = make_model(1), first_weight(saved_folder)
    new = next(iter(model.parameters())).flatten()[0].item()
    rename, found = Path.replace, set()
    for renames in range(20):
        folder, left = shutil.copytree(saved_folder, tmp_path / str(renames)), renames
        if renames % 2:  # of an earlier version
            config = json.loads((folder / "regard.json").read_text())
            (folder / "regard.json").write_text(json.dumps({"model": config["model"]}))

        def rename_until_killed(self: Path, target: Path) -> Path:
            nonlocal left
            if left == 0:
                raise KeyboardInterrupt
            left -= 1
            return rename(self, target)

        monkeypatch.setattr(Path, "replace", rename_until_killed)
        monkeypatch.setattr(files.shutil, "rmtree", lambda *_, **__: None)  # a killed process tidies nothing
        try:
            model.save(folder)
        except KeyboardInterrupt:
            complete = False
        else:
            complete = True
        monkeypatch.undo()
        found.add(first_weight(folder))
        if complete:
            break
        files.remove_unfinished(folder)
        assert not list(folder.glob(".*"))
        model.save(folder)
        assert first_weight(folder) == new and "replaced_files" not in (folder / "regard.json").read_text()
    assert complete and renames >= 4 and found == {old, new}


def test_a_first_save_that_is_killed_leaves_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that says which model it holds holds it."""
    model, rename = make_model(1), Path.replace
    for renames in range(20):
        folder, left = tmp_path / str(renames), renames

        def rename_until_killed(self: Path, target: Path) -> Path:
            nonlocal left
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
            return rename(self, target)

        monkeypatch.setattr(Path, "replace", rename_until_killed)
        try:
            model.save(folder)
        except KeyboardInterrupt:
            assert not (folder / "regard.json").is_file()
        else:
            break
        monkeypatch.undo()
    assert renames >= 3 and first_weight(folder) == next(iter(model.parameters())).flatten()[0].item()


def test_a_file_that_a_killed_save_would_have_added_may_be_missing(saved_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(saved_folder, tmp_path / "model")
    config = json.loads((folder / "regard.json").read_text())
    replaced = {name: [digest] for name, digest in config["files"].items()}
    changed = config | {"files": config["files"] | {"added.json": "0"}, "replaced_files": replaced}
    (folder / "regard.json").write_text(json.dumps({**changed, "sha256": hash_json(changed)}))
    assert first_weight(folder) == first_weight(saved_folder)
    changed = {name: value for name, value in changed.items() if name != "replaced_files"}
    (folder / "regard.json").write_text(json.dumps({**changed, "sha256": hash_json(changed)}))
    with pytest.raises(rg.BadInput, match=r"lacks added\.json"):
        rg.load(folder)


def test_files_have_the_mode_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        make_model(0).save(tmp_path / "model")
    finally:
        os.umask(before)
    assert {oct(path.stat().st_mode & 0o777) for path in (tmp_path / "model").iterdir()} == {"0o640"}
