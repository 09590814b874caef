"""Folders that are damaged, or were written by another version: a message that names the file, never a fault."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import regard as rg
from regard.train.run import open_run

from .client import Client


def without(name: str, *keys: str) -> Callable[[Path], None]:
    """Takes a key out of a JSON file; several keys lead into it."""

    def damage(folder: Path) -> None:
        held = json.loads((folder / name).read_text("utf8"))
        inner = held
        for key in keys[:-1]:
            inner = inner[key]
        del inner[keys[-1]]
        held.pop("sha256", None)  # as another version would have written it
        (folder / name).write_text(json.dumps(held))

    return damage


def with_value(name: str, key: str, value: object) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        held = json.loads((folder / name).read_text("utf8"))
        held.pop("sha256", None)
        (folder / name).write_text(json.dumps(held | {key: value}))

    return damage


def text(name: str, words: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(words) and None


def cut(name: str, size: int) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size]) and None


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


RUN: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "a key of task.json": (without("task.json", "labels"), "task.json", "lacks 'labels'"),
    "another key of task.json": (without("task.json", "inputs"), "task.json", "lacks 'inputs'"),
    "task.json of another kind": (with_value("task.json", "kind", "smell"), "task.json", "lacks 'smell'"),
    "a part of task.json": (with_value("task.json", "inputs", 3), "task.json", "cannot be used"),
    "task.json as a list": (text("task.json", "[]"), "task.json", "wanted an object"),
    "task.json cut": (cut("task.json", 20), "task.json", "is not JSON"),
    "no task.json": (remove("task.json"), "task.json", "has no"),
    "the task's name": (without("run.json", "task"), "run.json", "lacks 'task'"),
    "the task's settings": (without("run.json", "settings"), "run.json", "lacks 'settings'"),
    "a setting of another version": (with_value("run.json", "settings", {"colour": 3}), "run.json", "colour"),
    "run.json cut": (cut("run.json", 40), "run.json", "is not JSON"),
    "no weights": (remove("model/model.safetensors"), "model", "safetensors"),
    "weights cut": (cut("model/model.safetensors", 400), "model.safetensors", ""),
    "no weights in the file": (text("model/model.safetensors", ""), "model.safetensors", ""),
    "the configuration cut": (cut("model/regard.json", 30), "regard.json", "is not JSON"),
    "no model in the configuration": (without("model/regard.json", "model"), "regard.json", "lacks 'model'"),
    "a size in the configuration": (without("model/regard.json", "model", "stack", "dim"), "regard.json", "dim"),
}


@pytest.mark.parametrize("what", RUN)
def test_a_damaged_run_is_told(client: Client, lab_folder: Path, what: str) -> None:
    damage, file, words = RUN[what]
    name = f"damaged {list(RUN).index(what)}"
    shutil.copytree(lab_folder / "reviews-0", lab_folder / name)
    try:
        damage(lab_folder / name)
        for path in ("heads/run", "honest/read", "formula/run"):
            status, answer = client.ask(path, model=name, input={"text": "the cat"})
            assert status == 400, answer
            assert file in answer["error"] and words in answer["error"] and "KeyError" not in answer["error"]
        with pytest.raises(rg.BadInput):
            open_run(lab_folder / name)
    finally:
        shutil.rmtree(lab_folder / name)
    assert client.ask("heads/run", model="reviews-0", input={"text": "the cat"})[0] == 200


CHECKPOINT: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "a size": (without("config.json", "hidden_size"), "config.json", "hidden_size"),
    "cut": (cut("config.json", 60), "config.json", "is not JSON"),
    "an architecture that is not known": (with_value("config.json", "model_type", "resnet"), "resnet", "not known"),
    "no weights": (remove("model.safetensors"), "safetensors", ""),
    "weights cut": (cut("model.safetensors", 1000), "model.safetensors", ""),
    "weights that lie": (cut("model.safetensors", -40), "model.safetensors", ""),
    "another size": (with_value("config.json", "intermediate_size", 77), "config", "shapes"),
}


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("transformers")
    from .checkpoints import save

    root = tmp_path_factory.mktemp("checkpoint")
    save(root, "bert")
    return root / "bert"


@pytest.mark.parametrize("what", CHECKPOINT)
def test_a_damaged_checkpoint_is_told(client: Client, lab_folder: Path, bert: Path, what: str) -> None:
    damage, file, words = CHECKPOINT[what]
    name = f"checkpoint {list(CHECKPOINT).index(what)}"
    shutil.copytree(bert, lab_folder / name)
    try:
        damage(lab_folder / name)
        assert name in {one["name"] for one in client.send("GET", "/api/models")[1]}
        status, answer = client.ask("heads/run", model=name, input={"text": "the cat"})
        assert status == 400, answer
        assert file in answer["error"] and words in answer["error"]
    finally:
        shutil.rmtree(lab_folder / name)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"image_mean": "bright"}, "image_mean"),
        ({"image_std": [0.1]}, "image_std"),
        ({"image_mean": None}, "image_mean"),
    ],
)
def test_a_damaged_preprocessor_is_told(client: Client, lab_folder: Path, said: dict, words: str) -> None:
    import base64

    from .task_runs import picture

    folder = lab_folder / "seeing"
    tiny = {"dim": 16, "layers": 1, "heads": 2, "hidden": 16, "size": 8, "patch": 4, "classes": 3}
    rg.models.vit(**tiny).build().save(folder, format="huggingface")
    (folder / "preprocessor_config.json").write_text(json.dumps(said))
    try:
        given = {"base64": base64.b64encode(picture()).decode()}
        status, answer = client.ask("image/run", model="seeing", input=given)
        assert status == 400 and "preprocessor_config.json" in answer["error"] and words in answer["error"]
    finally:
        shutil.rmtree(folder)
