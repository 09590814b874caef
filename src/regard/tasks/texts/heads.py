"""The heads of a model with several: which task, files and weight each has, from a TOML file."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from ...data.annotations.pairs import LabelledPair
from ...data.text import LabelledText
from ...errors import BadInput
from ...settings import update_settings
from ..classify import ClassifySettings
from .pairs import PairsSettings

SPLITS = ("train", "dev", "test")
HEAD_SETTINGS: dict[str, type[ClassifySettings] | type[PairsSettings]] = {
    "classify": ClassifySettings,
    "pairs": PairsSettings,
}
SHARED = ("unit", "vocab_size", "lowercase", "max_length", "word_dropout")
"""Settings of inputs that all heads have in common."""


@dataclass(frozen=True)
class HeadSpec:
    """A head as the TOML file describes it: its name, the task whose files and labels it has, and its weight."""

    name: str
    task: str
    settings: ClassifySettings | PairsSettings
    weight: float = 1.0


@dataclass(frozen=True)
class HeadExample:
    """An example of a head."""

    spec: HeadSpec
    example: LabelledText | LabelledPair
    split: str = ""

    @property
    def label(self) -> str:
        return self.example.label


def read_heads(path: Path) -> list[tuple[HeadSpec, dict[str, list[str]]]]:
    """The heads of a TOML file, each with the files of its splits; `BadInput` for what cannot be used."""
    try:
        document = tomllib.loads(path.read_text("utf8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(
            f"{path} cannot be read as TOML ({error}). Give a table for each head; see the page on kinds of labels."
        ) from None
    heads = []
    for name, table in document.items():
        if not isinstance(table, dict) or str(table.get("task")) not in HEAD_SETTINGS:
            raise BadInput(f"{path}: the head {name} needs task = one of {', '.join(map(repr, HEAD_SETTINGS))}.")
        weight = table.get("weight", 1.0)
        if not isinstance(weight, int | float) or weight <= 0:
            raise BadInput(f"{path}: the weight of the head {name} is {weight!r}; it must be more than 0.")
        named = {key: table[key] for key in SPLITS if key in table}
        splits = {key: list(map(str, x)) if isinstance(x, list) else [str(x)] for key, x in named.items()}
        if not splits:
            raise BadInput(f"{path}: the head {name} names no file. Give train = FILE, and dev or test.")
        own = {key: value for key, value in table.items() if key not in ("task", "weight", *SPLITS, *SHARED)}
        if common := [key for key in table if key in SHARED]:
            raise BadInput(f"{path}: {common[0]} belongs to all heads. Give it with --set {common[0]}=...")
        try:
            settings = update_settings(HEAD_SETTINGS[table["task"]](), own)
        except BadInput as error:
            raise BadInput(f"{path}: the head {name}: {error}") from None
        heads.append((HeadSpec(name, table["task"], settings, float(weight)), splits))
    if not heads:
        raise BadInput(f"{path} has no head. Give a table for each, such as [topic] with task and train.")
    return heads


def texts_of(example: LabelledText | LabelledPair) -> tuple[str, ...]:
    return (example.text,) if isinstance(example, LabelledText) else (example.first, example.second)
