"""The models and runs that the lab may open: the shipped ones, those of the given folders, and two built-in ones.

A request names a model; only names found in these folders are accepted, never paths. A model is loaded once and stays
in memory while there is room.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import TypedDict

from torch import nn

from ..data.languages import LANGUAGES, count_scripts
from ..errors import BadInput, explain_damage
from ..models.checkpoint.checkpoint import load
from ..models.checkpoint.folder import CONFIGS
from ..models.config import OLD_TYPES
from ..tasks import TASKS
from ..tasks.reference import Reference
from ..tasks.task import AnyTask
from ..train.run import open_run
from .folders import MAX_DEPTH, is_file, model_folders, read_json_or_empty, relative_name, walk_folders
from .loading import BackgroundCall, check_links
from .protocol import Json, JsonObject, Request, Translated
from .server.jobs import Job

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


class EntryFields(TypedDict):
    """A `ModelEntry` as pages receive it, with the names of its example files."""

    name: str
    title: str | JsonObject
    task: str | None
    layers: int
    heads: int
    source: str
    card: JsonObject
    modality: str
    generates: bool
    languages: tuple[str, ...]
    scripts: tuple[str, ...]
    training_length: int | None
    folder: str
    hand_made: bool
    problem: Translated | None
    examples: list[str]


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
    card: JsonObject = field(default_factory=dict)
    modified: float = 0.0
    """When its files were last written; a run that has been written since is loaded again."""
    generates: bool = False
    """Whether it has a decoder that generates text."""
    languages: tuple[str, ...] = ()
    """The languages that it reads, such as "en"; empty where that is not known."""
    scripts: tuple[str, ...] = ()
    """The scripts of its vocabulary of words, such as "LATIN"; empty where it reads any."""
    training_length: int | None = None
    """Tokens of the longest input that it was trained on; None where that is not known."""
    folder: str = ""
    """The name of the folder of --models that it is in."""
    hand_made: bool = False
    """Whether it was set by hand instead of trained."""
    root: Path | None = None
    """The folder of --models that it is in; its files are not read from outside of it."""
    problem: Translated | None = None
    """Why it cannot be opened, by language."""

    def as_dict(self) -> EntryFields:
        title = self.card.get("title")  # of a shipped model in both languages
        return {
            "name": self.name,
            "title": title if isinstance(title, dict) else self.title,
            "task": self.task,
            "layers": self.layers,
            "heads": self.heads,
            "source": self.source,
            "card": self.card,
            "modality": self.modality,
            "generates": self.generates,
            "languages": self.languages,
            "scripts": self.scripts,
            "training_length": self.training_length,
            "folder": self.folder,
            "hand_made": self.hand_made,
            "problem": self.problem,
            "examples": self.examples(),
        }

    def examples(self) -> list[str]:
        """The example files beside the model; the one that its card names as `start` is the first."""
        folder = None if self.path is None else self.path / "examples"
        if folder is None or not folder.is_dir():
            return []
        names = (path.name for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
        return sorted(names, key=lambda name: (name != self.card.get("start"), name))

    def read_example(self, name: str) -> bytes:
        if self.path is None or name not in self.examples():
            raise NotFound(f"{self.name} has no example {name!r:.60}. It has: {', '.join(self.examples()) or 'none'}.")
        return (self.path / "examples" / name).read_bytes()


@dataclass(eq=False)
class LoadedModel:
    """A model in memory; a caller holds its lock while running it."""

    entry: ModelEntry
    model: nn.Module
    task: AnyTask | None = None
    description: JsonObject = field(default_factory=dict)
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
        self.pending: dict[tuple[str, float], BackgroundCall[LoadedModel]] = {}
        self.loaded: OrderedDict[str, LoadedModel] = OrderedDict()

    def entries(self) -> dict[str, ModelEntry]:
        """All models that the folders hold now, by name: those of --models first."""
        shipped = {}
        if self.shipped is not None:
            for path in model_folders(self.shipped):
                shipped[path.name] = describe_folder(path, path.name, "shipped")
        entries: dict[str, ModelEntry] = {}
        for root in self.folders:
            unreadable: dict[Path, OSError] = {}
            for path in [*model_folders(root, unreadable), *unreadable]:
                name = relative_name(path, root)
                name = name if name not in entries and name not in shipped else f"{root.name}/{name}"
                try:
                    if path in unreadable:
                        raise unreadable[path]
                    entry = describe_folder(path, name, "folder")
                except Exception as error:  # one damaged folder does not keep the others from being listed
                    entry = unusable_entry(path, name, error)
                entries[name] = replace(entry, folder=root.name, root=root)
        self.known = entries | shipped | {entry.name: entry for entry in builtin_entries()}
        return self.known

    def entry(self, name: Json) -> ModelEntry:
        """The entry of that name, or `NotFound`; the folders are searched again where it is not known."""
        entries = self.known if isinstance(name, str) and name in self.known else self.entries()
        if not isinstance(name, str) or name not in entries:
            raise NotFound(
                f"There is no model {name!r:.80} in the lab's folders. There are: {', '.join(entries)}. Start the lab "
                "with --models DIR to give it another folder."
            )
        return entries[name]

    def open(self, name: Json, job: Job) -> LoadedModel:
        """The model of that name, loaded once.

        A model is loaded in a thread of its own: a request that is cancelled leaves, and the next one finds the model
        where it has been loaded meanwhile.
        """
        entry = self.entry(name)
        if entry.problem is not None:
            raise BadInput(f"{entry.name} cannot be used: {entry.problem['en']}")
        with self.lock:
            loading = self.loading.setdefault(entry.name, threading.Lock())
        with job.hold(loading):
            loaded = self.loaded.get(entry.name)
            if loaded is None or (loaded.entry.path, loaded.entry.modified) != (entry.path, entry.modified):
                key = (entry.name, entry.modified)
                if key not in self.pending:
                    self.pending[key] = BackgroundCall(lambda: load_entry(entry))
                job.report(0, 0, {"en": "loading the model", "zh": "正在加载模型"})
                call = self.pending[key]
                call.wait(job)
                del self.pending[key]
                loaded = call.result()
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
            for path in walk_folders(root, MAX_DEPTH, {}):
                if is_file(path / "run.json"):
                    runs[relative_name(path, root)] = path
        return runs


def unusable_entry(path: Path, name: str, error: Exception) -> ModelEntry:
    """The entry of a folder that cannot be described, with the reason."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else f"{type(error).__name__}: {error}"
    zh = f"文件夹无法读取（{reason}）。" if isinstance(error, OSError) else f"配置文件已损坏（{reason}）。"
    problem = {"en": f"its files cannot be read ({reason:.200}).", "zh": zh}
    return ModelEntry(name, name, "unusable", None, 0, 0, "folder", path, problem=problem)


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
        str(card["title"]) if isinstance(card.get("title"), str) else name,
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
        scripts=read_scripts(folder),
        training_length=read_training_length(run, config),
    )


def read_languages(card: Request, run: Request | None) -> tuple[str, ...]:
    """The languages that a model reads: those of its card, or the source language of a translation."""
    languages = card.get("languages")
    if isinstance(languages, list):
        names = [language for language in languages if isinstance(language, str)]
        if len(names) == len(languages):
            return tuple(names)
    settings = (run or {}).get("settings")
    source = settings.get("source") if isinstance(settings, dict) else None
    return (source,) if isinstance(source, str) and source in LANGUAGES else ()


def read_scripts(folder: Path) -> tuple[str, ...]:
    """The scripts that the words of a tokenizer are written in; none where it has pieces of words, which spell any."""
    model = read_json_or_empty(folder / "tokenizer.json").get("model")
    words = model.get("vocab") if isinstance(model, dict) and model.get("type") == "WordLevel" else None
    if not isinstance(words, dict):
        return ()
    letters = count_scripts("".join(word for word in words if not re.fullmatch(r"[<\[].*[>\]]", word)))  # no [PAD]
    return tuple(script for script, count in letters.items() if 20 * count > letters.total())


def read_training_length(run: Request | None, config: Request) -> int | None:
    """Tokens of the longest training input: as the run says, the context of a language model, or its positions."""
    settings = (run or {}).get("settings")
    embed = config.get("embed")
    lengths = [
        (run or {}).get("training_length"),
        settings.get("context") if isinstance(settings, dict) and (run or {}).get("task") == "lm" else None,
        embed.get("positions", embed.get("places")) if isinstance(embed, dict) else None,
        config.get("max_position_embeddings", config.get("n_positions")),
    ]
    return next((n for n in lengths if isinstance(n, int) and not isinstance(n, bool) and n > 0), None)


def config_type(config: Json) -> str:
    """The present name of a configuration's type; empty where it has none."""
    name = str(config.get("type", "")) if isinstance(config, dict) else ""
    return OLD_TYPES.get(name, name)


def is_seq2seq(config: JsonObject) -> bool:
    theirs = config.get("is_encoder_decoder") or config.get("model_type") in SEQ2SEQ_TYPES
    return config_type(config) == "EncoderDecoderConfig" or bool(theirs)


def task_modality(task: str, path: Path) -> str:
    if task == "classify":
        saved = read_json_or_empty(path / "task.json")
        return str(saved.get("modality") or saved.get("kind") or "text")
    return TASK_MODALITIES.get(task, "text")


def config_modality(config: JsonObject) -> str:
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


def count_layers_and_heads(config: JsonObject) -> tuple[int, int]:
    """Layers and heads in a configuration; 0 where it does not have them."""
    for inner in ("image", "text", "vision_config", "stack"):  # the image tower of two; the stack of a model
        part = config.get(inner)
        config = part if isinstance(part, dict) else config
    layers, heads = (
        next((value for name in names if isinstance(value := config.get(name), int)), 0)
        for names in (
            ("layers", "num_hidden_layers", "n_layer", "num_layers", "encoder_layers", "n_layers"),
            ("heads", "num_attention_heads", "n_head", "num_heads", "encoder_attention_heads", "n_heads"),
        )
    )
    return layers, heads


def builtin_entries() -> list[ModelEntry]:
    """The models that need no file: one for sentences, and one for long texts, which only the page Long opens."""
    meanings: JsonObject = {
        "en": "Words with meanings set by hand, not trained. Head 0 attends to similar words, head 1 to near ones.",
        "zh": "词义由人工设定，未经训练。头 0 关注意思相近的词，头 1 关注其中距离近的词。",
    }
    meanings_card: JsonObject = {"title": {"en": "Word meanings", "zh": "词义"}, "summary": meanings}
    recall: JsonObject = {
        "en": "Finds earlier occurrences of the current characters in any text; set by hand, not trained.",
        "zh": "在任意文本中查找当前字符此前出现的位置；人工设定，未经训练。",
    }
    recall_card: JsonObject = {"title": {"en": "Recall of earlier characters", "zh": "查找前文"}, "summary": recall}
    return [
        ModelEntry(
            MEANINGS,
            MEANINGS,
            "text",
            None,
            1,
            2,
            "shipped",
            None,
            meanings_card,
            languages=("en", "zh"),
            hand_made=True,
        ),
        ModelEntry(RECALL, RECALL, "long", None, 1, 2, "shipped", None, recall_card, hand_made=True),
    ]


def load_entry(entry: ModelEntry) -> LoadedModel:
    """Load the model of an entry."""
    if entry.name == RECALL:
        raise BadInput(f"{RECALL} is for long texts. Open it on the page Long text.")
    if entry.path is None:
        from .builtin.meanings import Meanings

        return LoadedModel(entry, Meanings().eval())
    if entry.root is not None:
        check_links(entry.path, entry.root)
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


def read_labels(config: Request) -> list[str] | None:
    """The labels of the classes in a checkpoint's configuration, by their numbers."""
    labels = config.get("id2label")
    if not isinstance(labels, dict) or not all(str(n) in labels for n in range(len(labels))):
        return None
    return [str(labels[str(n)]) for n in range(len(labels))] or None
