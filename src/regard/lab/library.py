"""The models and runs that the lab may open: the shipped ones, those of the given folders, and two built-in ones.

A request names a model; only names found in these folders are accepted, never paths. A model is loaded once and stays
in memory while there is room.
"""

from __future__ import annotations

import json
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..data.languages import LANGUAGES
from ..errors import BadInput
from ..models.checkpoint.checkpoint import load
from ..models.checkpoint.folder import CONFIGS
from ..models.config import OLD_TYPES
from ..tasks import TASKS
from ..tasks.reference import Reference
from ..tasks.task import Task
from ..train.run import explain_damage, open_run
from .server.jobs import Job

MAX_DEPTH = 3
"""How many folders deep models are searched for."""
MAX_LOADED = 4 << 30
"""Bytes of models that stay loaded."""
TASK_MODALITIES = {
    "tag": "text",
    "lm": "text",
    "translate": "pair",
    "nodes": "graph",
    "graphs": "graph",
    "transcribe": "sound",
    "match": "image",
    "detect": "image",
}
MEANINGS, RECALL = "meanings", "recall"
SEQ2SEQ_TYPES = ("t5", "marian", "whisper")


class NotFound(BadInput):
    """There is nothing of that name."""


@dataclass(frozen=True)
class ModelEntry:
    """A model that can be opened, as its files describe it; listing it loads nothing.

    `modality` is what the model reads: "text", "pair" (text to text), "image", "sound", "graph" or "long".
    """

    name: str
    title: str
    modality: str
    task: str | None
    layers: int
    heads: int
    source: str
    path: Path | None
    card: dict[str, Any] = field(default_factory=dict)
    modified: float = 0.0
    """When its files were last written; a run that has been written since is loaded again."""
    generates: bool = False
    """Whether it has a decoder that generates text."""
    languages: tuple[str, ...] = ()
    """The languages that it reads, such as "en"; empty where that is not known."""
    training_length: int | None = None
    """Tokens of the longest input that it was trained on; None where that is not known."""
    folder: str = ""
    """The name of the folder of --models that it is in."""
    hand_made: bool = False
    """Whether it was set by hand instead of trained."""

    def as_dict(self) -> dict[str, Any]:
        names = ("name", "title", "task", "layers", "heads", "source", "card", "modality", "generates")
        more = ("languages", "training_length", "folder", "hand_made")
        return {name: getattr(self, name) for name in (*names, *more)} | {"examples": self.examples()}

    def examples(self) -> list[str]:
        """The example files beside the model."""
        folder = None if self.path is None else self.path / "examples"
        if folder is None or not folder.is_dir():
            return []
        return sorted(path.name for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))

    def read_example(self, name: str) -> bytes:
        if self.path is None or name not in self.examples():
            raise NotFound(f"{self.name} has no example {name!r:.60}. It has: {', '.join(self.examples()) or 'none'}.")
        return (self.path / "examples" / name).read_bytes()


@dataclass(eq=False)
class LoadedModel:
    """A model in memory; a caller holds its lock while running it."""

    entry: ModelEntry
    model: Any
    task: Task[Any] | None = None
    description: dict[str, Any] = field(default_factory=dict)
    reference: Reference | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def modality(self) -> str:
        return self.entry.modality

    @property
    def bytes(self) -> int:
        return sum(x.numel() * x.element_size() for x in self.model.parameters())


class ModelLibrary:
    """The models that can be opened, and those that are loaded."""

    def __init__(self, folders: list[Path] | None = None, shipped: bool = True) -> None:
        self.folders = [Path(folder).resolve() for folder in folders or []]
        for folder in self.folders:
            if not folder.is_dir():
                raise BadInput(f"{folder} is not a folder. Give --models a folder that has models or runs in it.")
        self.shipped = Path(str(files("regard.assets"))) if shipped else None
        self.lock = threading.Lock()
        self.known: dict[str, ModelEntry] = {}
        self.loading: dict[str, threading.Lock] = {}
        self.loaded: OrderedDict[str, LoadedModel] = OrderedDict()

    def entries(self) -> dict[str, ModelEntry]:
        """All models that the folders hold now, by name: those of --models first."""
        shipped = {}
        if self.shipped is not None:
            for path in model_folders(self.shipped):
                shipped[path.name] = describe_folder(path, path.name, "shipped")
        entries: dict[str, ModelEntry] = {}
        for root in self.folders:
            for path in model_folders(root):
                name = relative_name(path, root)
                name = name if name not in entries and name not in shipped else f"{root.name}/{name}"
                entries[name] = replace(describe_folder(path, name, "folder"), folder=root.name)
        self.known = entries | shipped | {entry.name: entry for entry in builtin_entries()}
        return self.known

    def entry(self, name: Any) -> ModelEntry:
        """The entry of that name, or `NotFound`; the folders are searched again where it is not known."""
        entries = self.known if isinstance(name, str) and name in self.known else self.entries()
        if not isinstance(name, str) or name not in entries:
            raise NotFound(
                f"There is no model {name!r:.80} in the lab's folders. There are: {', '.join(entries)}. Start the lab "
                "with --models DIR to give it another folder."
            )
        return entries[name]

    def open(self, name: Any, job: Job) -> LoadedModel:
        """The model of that name, loaded once."""
        entry = self.entry(name)
        with self.lock:
            loading = self.loading.setdefault(entry.name, threading.Lock())
        with job.hold(loading):
            loaded = self.loaded.get(entry.name)
            if loaded is None or (loaded.entry.path, loaded.entry.modified) != (entry.path, entry.modified):
                job.report(0, 1, {"en": "loading the model", "zh": "正在加载模型"})
                loaded = load_entry(entry)
            with self.lock:
                self.loaded[entry.name] = loaded
                self.loaded.move_to_end(entry.name)
                while len(self.loaded) > 1 and sum(model.bytes for model in self.loaded.values()) > MAX_LOADED:
                    self.loaded.popitem(last=False)
        return loaded

    def runs(self) -> dict[str, Path]:
        """The folders of training runs, by name; also of those that have no model yet."""
        runs = {}
        for root in ([self.shipped] if self.shipped is not None else []) + self.folders:
            for path in walk_folders(root, MAX_DEPTH):
                if (path / "run.json").is_file():
                    runs[relative_name(path, root)] = path
        return runs


def relative_name(path: Path, root: Path) -> str:
    """The path below the root; the root's own name for the root itself."""
    inside = path.relative_to(root)
    return root.name if str(inside) == "." else inside.as_posix()


def walk_folders(root: Path, depth: int) -> Iterator[Path]:
    """A folder and those inside it, sorted by name; symbolic links are not followed."""
    yield root
    if depth:
        for child in sorted(os.scandir(root), key=lambda child: child.name):
            if child.is_dir(follow_symlinks=False) and not child.name.startswith((".", "__")):
                yield from walk_folders(Path(child.path), depth - 1)


def model_folders(root: Path) -> Iterator[Path]:
    """The folders that hold a model, a run's or a checkpoint; folders inside a run are left out."""
    runs: list[Path] = []
    for path in walk_folders(root, MAX_DEPTH):
        if any(run in path.parents for run in runs):
            continue
        if (path / "run.json").is_file():
            runs.append(path)
            if (path / "model" / CONFIGS["regard"]).is_file():
                yield path
        elif (path / CONFIGS["regard"]).is_file() or is_huggingface(path):
            yield path


def is_huggingface(path: Path) -> bool:
    """Whether a folder is a Hugging Face checkpoint; one with a broken configuration is refused when it is opened."""
    file = path / CONFIGS["huggingface"]
    return "model_type" in read_json_or_empty(file) or (file.is_file() and any(path.glob("*.safetensors")))


def read_json_or_empty(path: Path) -> dict[str, Any]:
    """The file's JSON object, empty where it cannot be read, so that a listing continues."""
    try:
        content = json.loads(path.read_text("utf8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def describe_folder(path: Path, name: str, source: str) -> ModelEntry:
    """The entry of a folder, from its small files."""
    run = read_json_or_empty(path / "run.json") if (path / "run.json").is_file() else None
    folder = path if run is None else path / "model"
    own = read_json_or_empty(folder / CONFIGS["regard"]).get("model")
    config = own if isinstance(own, dict) else read_json_or_empty(folder / CONFIGS["huggingface"])
    task = str(run.get("task")) if run is not None and run.get("task") in TASKS else None
    card = read_json_or_empty(path / "card.json")
    if run is not None:
        scores = read_json_or_empty(path / "scores.json")
        card = {"scores": scores.get("metrics"), "main": scores.get("main"), "data": run.get("data")} | card
    modality = task_modality(task, path) if task else config_modality(config)
    layers, heads = count_layers_and_heads(config)
    files = [*folder.glob("*.safetensors"), *folder.glob("*.json"), path / "run.json", path / "task.json"]
    return ModelEntry(
        name,
        str(card.get("title") or name),
        modality,
        task,
        layers,
        heads,
        source,
        path,
        card,
        modified=max((file.stat().st_mtime for file in files if file.is_file()), default=0.0),
        generates=modality != "image" and is_seq2seq(config),
        languages=read_languages(card, run),
        training_length=read_training_length(run, config),
    )


def read_languages(card: dict[str, Any], run: dict[str, Any] | None) -> tuple[str, ...]:
    """The languages that a model reads: those of its card, or the source language of a translation."""
    languages = card.get("languages")
    if isinstance(languages, list) and all(isinstance(language, str) for language in languages):
        return tuple(languages)
    settings = (run or {}).get("settings")
    source = settings.get("source") if isinstance(settings, dict) else None
    return (source,) if source in LANGUAGES else ()


def read_training_length(run: dict[str, Any] | None, config: dict[str, Any]) -> int | None:
    """Tokens of the longest training input: as the run says, the context of a language model, or its positions."""
    settings = (run or {}).get("settings")
    embed = config.get("embed")
    lengths = [
        (run or {}).get("training_length"),
        settings.get("context") if isinstance(settings, dict) and (run or {}).get("task") == "lm" else None,
        embed.get("positions", embed.get("places")) if isinstance(embed, dict) else None,
        config.get("max_position_embeddings", config.get("n_positions")),
    ]
    return next((length for length in lengths if type(length) is int and length > 0), None)


def config_type(config: Any) -> str:
    """The present name of a configuration's type; empty where it has none."""
    name = str(config.get("type", "")) if isinstance(config, dict) else ""
    return OLD_TYPES.get(name, name)


def is_seq2seq(config: dict[str, Any]) -> bool:
    theirs = config.get("is_encoder_decoder") or config.get("model_type") in SEQ2SEQ_TYPES
    return config_type(config) == "EncoderDecoderConfig" or bool(theirs)


def task_modality(task: str, path: Path) -> str:
    if task == "classify":
        saved = read_json_or_empty(path / "task.json")
        return str(saved.get("modality") or saved.get("kind") or "text")
    return TASK_MODALITIES.get(task, "text")


def config_modality(config: dict[str, Any]) -> str:
    """What a checkpoint reads, from its configuration."""
    model, embedding, theirs = config_type(config), config_type(config.get("embed")), config.get("model_type")
    if model in ("GATConfig", "GraphEncoderConfig"):
        return "graph"
    if model == "DualEncoderConfig":
        return "text" if config.get("image") is None else "image"
    if model == "DetectionConfig" or embedding in ("ImageEmbeddingConfig", "ResidualEmbeddingConfig"):
        return "image"
    if theirs in ("vit", "deit", "clip", "clip_vision_model", "detr"):
        return "image"
    if embedding == "SoundEmbeddingConfig" or theirs == "whisper":
        return "sound"
    return "pair" if is_seq2seq(config) else "text"


def count_layers_and_heads(config: dict[str, Any]) -> tuple[int, int]:
    """Layers and heads in a configuration; 0 where it does not have them."""
    for inner in ("image", "text", "vision_config", "stack"):  # the image tower of two; the stack of a model
        config = config[inner] if isinstance(config.get(inner), dict) else config
    layers, heads = (
        next((config[name] for name in names if isinstance(config.get(name), int)), 0)
        for names in (
            ("layers", "num_hidden_layers", "n_layer", "num_layers", "encoder_layers", "n_layers"),
            ("heads", "num_attention_heads", "n_head", "num_heads", "encoder_attention_heads", "n_heads"),
        )
    )
    return layers, heads


def builtin_entries() -> list[ModelEntry]:
    """The models that need no file: one for sentences, and one for long texts, which only the page Long opens."""
    meanings = {
        "en": "Words with meanings set by hand, not trained. Head 0 attends to similar words, head 1 to near ones.",
        "zh": "词义由人工设定，未经训练。头 0 关注意思相近的词，头 1 关注其中距离近的词。",
    }
    recall = {
        "en": "Finds earlier occurrences of the current characters in any text; set by hand, not trained.",
        "zh": "在任意文本中查找当前字符此前出现的位置；人工设定，未经训练。",
    }
    made: dict[str, Any] = {"hand_made": True, "languages": ("en", "zh")}
    return [
        ModelEntry(MEANINGS, MEANINGS, "text", None, 1, 2, "shipped", None, {"summary": meanings}, **made),
        ModelEntry(RECALL, RECALL, "long", None, 1, 2, "shipped", None, {"summary": recall}, hand_made=True),
    ]


def load_entry(entry: ModelEntry) -> LoadedModel:
    """Load the model of an entry."""
    if entry.name == RECALL:
        raise BadInput(f"{RECALL} is for long texts. Open it on the page Long text.")
    if entry.path is None:
        from .builtin.meanings import Meanings

        return LoadedModel(entry, Meanings().eval())
    if (entry.path / "run.json").is_file():
        task, model, description = open_run(entry.path)
        return LoadedModel(entry, model, task, description, Reference.load(entry.path))
    own = (entry.path / CONFIGS["regard"]).is_file()
    file = entry.path / CONFIGS["regard" if own else "huggingface"]
    with explain_damage(file):
        model = load(entry.path)
    model.preprocessor = read_json_or_empty(entry.path / "preprocessor_config.json")
    model.labels = read_labels(read_json_or_empty(file))
    return LoadedModel(entry, model)


def read_labels(config: dict[str, Any]) -> list[str] | None:
    """The labels of the classes in a checkpoint's configuration, by their numbers."""
    labels = config.get("id2label")
    if not isinstance(labels, dict) or not all(str(n) in labels for n in range(len(labels))):
        return None
    return [str(labels[str(n)]) for n in range(len(labels))] or None
