"""The models and runs that the lab may open: the shipped ones, those of the folders it was given, and a built-in one.

Only what was found in these folders can be asked for, by name; no path ever comes from a request. A model is loaded
once and kept while there is room.
"""

from __future__ import annotations

import json
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from torch import nn

from ..errors import BadInput
from ..models.checkpoint.checkpoint import load
from ..models.checkpoint.folder import CONFIGS
from ..tasks import TASKS, find_task
from ..train.run import open_run, reading
from .server.jobs import Job

DEPTH = 3
"""How many folders deep models are looked for."""
ROOM = 4 << 30
"""Bytes of models that stay loaded."""
KINDS = {"tag": "text", "lm": "text", "translate": "pair", "nodes": "graph", "graphs": "graph", "transcribe": "sound"}
KINDS |= {"match": "image", "detect": "image"}
MEANINGS, RECALL = "meanings", "recall"


class Unknown(BadInput):
    """There is nothing of that name."""


@dataclass(frozen=True)
class Entry:
    """A model that can be opened, as its files describe it; nothing is loaded to list it."""

    name: str
    title: str
    kind: str
    task: str | None
    layers: int
    heads: int
    source: str
    path: Path | None
    card: dict[str, Any] = field(default_factory=dict)
    written: float = 0.0
    """When its files were last written: a run that goes on is read again."""
    writes: bool = False
    """Whether it has a decoder that writes a text for what it reads."""

    def as_dict(self) -> dict[str, Any]:
        names = ("name", "title", "kind", "task", "layers", "heads", "source", "card", "writes")
        return {name: getattr(self, name) for name in names} | {"examples": self.examples()}

    def examples(self) -> list[str]:
        """The files that stand ready beside the model."""
        folder = None if self.path is None else self.path / "examples"
        if folder is None or not folder.is_dir():
            return []
        return sorted(one.name for one in folder.iterdir() if one.is_file() and not one.name.startswith("."))

    def example(self, name: str) -> bytes:
        """The bytes of one of them."""
        if name not in self.examples():
            raise Unknown(f"{self.name} has no example {name!r:.60}. It has: {', '.join(self.examples()) or 'none'}.")
        return (self.path / "examples" / name).read_bytes()  # type: ignore[operator]


@dataclass(eq=False)
class Loaded:
    """A model in memory; whoever runs it holds its lock."""

    entry: Entry
    model: Any
    task: Any = None
    description: dict[str, Any] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def kind(self) -> str:
        return self.entry.kind


class Library:
    """What can be opened."""

    def __init__(self, folders: list[Path] | None = None, shipped: bool = True) -> None:
        self.folders = [Path(folder).resolve() for folder in folders or []]
        for folder in self.folders:
            if not folder.is_dir():
                raise BadInput(f"{folder} is no folder. Give --models a folder that has models or runs in it.")
        self.shipped = Path(str(files("regard.assets"))) if shipped else None
        self.lock = threading.Lock()
        self.known: dict[str, Entry] = {}
        self.loading: dict[str, threading.Lock] = {}
        self.loaded: OrderedDict[str, Loaded] = OrderedDict()

    def entries(self) -> dict[str, Entry]:
        """All that is there now, by name."""
        found = {}
        if self.shipped is not None:
            for path in model_folders(self.shipped):
                entry = described(path, path.name, "shipped")
                found[entry.name] = entry
        for root in self.folders:
            for path in model_folders(root):
                inside = path.relative_to(root)
                name = root.name if str(inside) == "." else inside.as_posix()
                name = name if name not in found else f"{root.name}/{name}"
                found[name] = described(path, name, "folder")
        self.known = found | {entry.name: entry for entry in built_in()}
        return self.known

    def entry(self, name: Any) -> Entry:
        """The entry of that name, or `Unknown`; the folders are looked through again where it is not known."""
        found = self.known if isinstance(name, str) and name in self.known else self.entries()
        if not isinstance(name, str) or name not in found:
            raise Unknown(
                f"There is no model {name!r:.80} in the folders that the lab was given. There are: "
                f"{', '.join(found)}. Start the lab with --models DIR to give it another folder."
            )
        return found[name]

    def open(self, name: Any, job: Job) -> Loaded:
        """The model of that name, loaded once."""
        entry = self.entry(name)
        with self.lock:
            mine = self.loading.setdefault(entry.name, threading.Lock())
        with job.holding(mine):
            found = self.loaded.get(entry.name)
            if found is None or (found.entry.path, found.entry.written) != (entry.path, entry.written):
                job.tell(0, 1, {"en": "loading the model", "zh": "正在加载模型"})
                found = read(entry)
            with self.lock:
                self.loaded[entry.name] = found
                self.loaded.move_to_end(entry.name)
                self.make_room()
        return found

    def make_room(self) -> None:
        """Let go of the models that were asked for longest ago, as long as they take too much."""
        while len(self.loaded) > 1 and sum(size_of(one.model) for one in self.loaded.values()) > ROOM:
            self.loaded.popitem(last=False)

    def runs(self) -> dict[str, Path]:
        """The folders of training runs, by name; also of those that have no model yet."""
        found = {}
        for root in ([self.shipped] if self.shipped is not None else []) + self.folders:
            for path in walk(root, DEPTH):
                if (path / "run.json").is_file():
                    inside = path.relative_to(root)
                    found[root.name if str(inside) == "." else inside.as_posix()] = path
        return found


def size_of(model: nn.Module) -> int:
    return sum(x.numel() * x.element_size() for x in model.parameters())


def walk(root: Path, depth: int) -> Iterator[Path]:
    """A folder and those inside it, in order of their names; links that lead outside are not followed."""
    yield root
    if depth:
        for one in sorted(os.scandir(root), key=lambda one: one.name):
            if one.is_dir(follow_symlinks=False) and not one.name.startswith((".", "__")):
                yield from walk(Path(one.path), depth - 1)


def model_folders(root: Path) -> Iterator[Path]:
    """The folders that hold a model: a run's, or a checkpoint. A run's own parts are not listed again."""
    runs: list[Path] = []
    for path in walk(root, DEPTH):
        if any(run in path.parents for run in runs):
            continue
        if (path / "run.json").is_file():
            runs.append(path)
            if (path / "model" / CONFIGS["regard"]).is_file():
                yield path
        elif (path / CONFIGS["regard"]).is_file() or is_checkpoint(path):
            yield path


def is_checkpoint(path: Path) -> bool:
    """Whether a folder is a checkpoint of others; one whose configuration cannot be read is told when it is opened."""
    file = path / CONFIGS["huggingface"]
    return "model_type" in read_json(file) or (file.is_file() and any(path.glob("*.safetensors")))


def read_json(path: Path) -> dict[str, Any]:
    """The file's JSON, empty where it cannot be read: a listing goes on."""
    try:
        found = json.loads(path.read_text("utf8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def described(path: Path, name: str, source: str) -> Entry:
    """What a folder's small files say of its model."""
    run = read_json(path / "run.json") if (path / "run.json").is_file() else None
    folder = path if run is None else path / "model"
    ours = read_json(folder / CONFIGS["regard"]).get("model")
    config = ours if isinstance(ours, dict) else read_json(folder / CONFIGS["huggingface"])
    task = str(run.get("task")) if run is not None and run.get("task") in TASKS else None
    card = read_json(path / "card.json")
    if run is not None:
        scores = read_json(path / "scores.json")
        card = {"scores": scores.get("metrics"), "main": scores.get("main"), "data": run.get("data")} | card
    kind = kind_of_task(task, path) if task else kind_of_config(config)
    layers, heads = sizes(config)
    title = str(card.get("title") or name)
    writes = config.get("type") == "Pair" or bool(config.get("is_encoder_decoder")) or is_pair(config)
    return Entry(
        name,
        title,
        kind,
        task,
        layers,
        heads,
        source,
        path,
        card,
        last_written(path, folder),
        kind != "image" and writes,
    )


def is_pair(config: dict[str, Any]) -> bool:
    return config.get("model_type") in ("t5", "marian", "whisper")


def last_written(path: Path, folder: Path) -> float:
    """When the newest of a model's files was written."""
    held = [*folder.glob("*.safetensors"), *folder.glob("*.json"), path / "run.json", path / "task.json"]
    return max((one.stat().st_mtime for one in held if one.is_file()), default=0.0)


def kind_of_task(task: str, path: Path) -> str:
    if task == "classify":
        return str(read_json(path / "task.json").get("kind", "text"))
    return KINDS.get(task, "text")


def kind_of_config(config: dict[str, Any]) -> str:
    """What a checkpoint reads, from its configuration."""
    made, embed = config.get("type"), config.get("embed")
    reads = embed.get("type") if isinstance(embed, dict) else None
    if made in ("Graph", "GraphEncoder"):
        return "graph"
    if made == "TwoTowers":
        return "text" if config.get("image") is None else "image"
    if made == "Detection" or reads in ("Image", "Stages"):
        return "image"
    if reads == "Sound":
        return "sound"
    if made == "Pair":
        return "pair"
    theirs = config.get("model_type")
    if theirs in ("vit", "deit", "clip", "clip_vision_model", "detr"):
        return "image"
    if theirs == "whisper":
        return "sound"
    return "pair" if config.get("is_encoder_decoder") or is_pair(config) else "text"


def sizes(config: dict[str, Any]) -> tuple[int, int]:
    """Layers and heads, as a configuration says; 0 where it does not."""
    for inner in ("image", "text", "vision_config", "stack"):  # of two towers the one that sees; of a model its stack
        config = config[inner] if isinstance(config.get(inner), dict) else config
    found = []
    for names in (
        ("layers", "num_hidden_layers", "n_layer", "num_layers", "encoder_layers", "n_layers"),
        ("heads", "num_attention_heads", "n_head", "num_heads", "encoder_attention_heads", "n_heads"),
    ):
        found.append(next((config[name] for name in names if isinstance(config.get(name), int)), 0))
    return found[0], found[1]


def built_in() -> list[Entry]:
    """The models that need no file: one for sentences, and one for long texts, which opens on Long alone."""
    meanings = {
        "en": "Words whose meanings are given by hand; no training. Head 1 looks far, head 2 near.",
        "zh": "词义由人工给定，未经训练。第 1 个头看得远，第 2 个头看得近。",
    }
    recall = {
        "en": "Finds where what stands here stood before, in any text; made by hand, no training.",
        "zh": "在任意文本中查找此处的内容以前在哪里出现过；人工构造，未经训练。",
    }
    return [
        Entry(MEANINGS, MEANINGS, "text", None, 1, 2, "shipped", None, {"about": meanings}),
        Entry(RECALL, RECALL, "long", None, 1, 2, "shipped", None, {"about": recall}),
    ]


def read(entry: Entry) -> Loaded:
    """Load what an entry names."""
    if entry.name == RECALL:
        raise BadInput(f"{RECALL} is made for long texts. Open it on the page Long.")
    if entry.path is None:
        from .builtin.meanings import Meanings

        return Loaded(entry, Meanings().eval())
    run = (entry.path / "run.json").is_file()
    if run:
        task, model, description = open_run(entry.path, find_task)
        return Loaded(entry, model, task, description)
    ours = (entry.path / CONFIGS["regard"]).is_file()
    file = entry.path / CONFIGS["regard" if ours else "huggingface"]
    with reading(file):
        model = load(entry.path)
    model.preprocessor = read_json(entry.path / "preprocessor_config.json")  # type: ignore[assignment]
    model.labels = labels_in(read_json(file))  # type: ignore[assignment]
    return Loaded(entry, model)


def labels_in(config: dict[str, Any]) -> list[str] | None:
    """The words for the classes that a checkpoint's configuration has, by their numbers."""
    said = config.get("id2label")
    if not isinstance(said, dict) or not all(str(n) in said for n in range(len(said))):
        return None
    return [str(said[str(n)]) for n in range(len(said))] or None
