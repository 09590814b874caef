"""Runs: train a task into a folder, resume it, open it again."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..assets import resolve_folder
from ..data.reading import Fault, Reading
from ..errors import BadInput, RegardError
from ..models.checkpoint.checkpoint import load
from ..models.checkpoint.folder import CONFIGS
from ..settings import (
    Settings,
    Training,
    former_names,
    load_settings,
    update_each,
    update_settings,
    use_former_defaults,
)
from ..tasks import find_task
from ..tasks.architecture import Architecture
from ..tasks.reference import training_length
from ..tasks.splits import split_data
from ..tasks.task import Scores, Task
from .fingerprint import fingerprint
from .run_folder import RunFolder
from .tensorboard import TensorBoardLogger
from .trainer import EventCallback, Trainer, TrainEvent, TrainState

RESUMABLE = {"epochs", "steps", "minutes", "patience", "device", "save_every", "save_minutes", "tensorboard"}
"""Settings of training that may differ when a run is resumed."""


@dataclass(frozen=True)
class RunConfig:
    """What a run is made of: the task's class, all settings, and the files of training and validation data."""

    task: type[Task[Any]]
    settings: Settings
    architecture: Architecture
    training: Training
    train: tuple[Path, ...] = ()
    dev: tuple[Path, ...] = ()

    @classmethod
    def from_changes(
        cls, task: str, *changes: Mapping[str, Any], train: Sequence[Path] = (), dev: Sequence[Path] = ()
    ) -> RunConfig:
        """The configuration of a task by name: its defaults with these changes, later ones over earlier ones."""
        task_class = find_task(task)
        defaults = [task_class.Settings(), task_class.ARCHITECTURE, task_class.TRAINING]
        settings, architecture, training = update_each(defaults, *changes)
        return cls(task_class, settings, architecture, training, tuple(train), tuple(dev))

    def use_former_defaults(self, out: Path) -> RunConfig:
        """The configuration to resume the run in `out` with, if an earlier version began it with other defaults."""
        folder = RunFolder(out)
        if not folder.has_weights:
            return self
        saved = folder.read("run.json").get("settings", {})
        return replace(self, settings=use_former_defaults(self.settings, saved))

    @property
    def files(self) -> dict[str, list[str]]:
        """The data files as run.json has them."""
        return {"train": [str(path) for path in self.train], "dev": [str(path) for path in self.dev]}


@dataclass(frozen=True)
class RunData:
    """The examples of a run: training and validation data, the lines that could not be read, and what was guessed."""

    train: Sequence[Any]
    validation: Sequence[Any]
    faults: Sequence[Fault] = ()
    notes: Sequence[str] = ()


def read_data(config: RunConfig, report_faults: Callable[[list[Fault]], None], strict: bool = False) -> RunData:
    """Read the files of a run. If `strict`, lines that cannot be read raise `BadInput`."""
    train = config.task.read(config.train, config.settings)
    dev = config.task.read(config.dev, config.settings) if config.dev else None
    readings: list[Reading[Any]] = [train] if dev is None else [train, dev]
    faults = [fault for reading in readings for fault in reading.faults]
    report_faults(faults)
    for reading in readings:
        if strict:
            reading.strict()
        reading.require_examples()
    train, validation = split_data(train, dev, config.task, config.training.seed)
    notes = list(dict.fromkeys(note for reading in readings for note in reading.notes))
    return RunData(train.examples, validation.examples, faults, notes)


def train_run(
    task: Task[Any],
    architecture: Architecture,
    training: Training,
    data: RunData,
    out: str | Path,
    files: dict[str, list[str]],
    on_event: EventCallback = lambda event: None,
) -> TrainState:
    """Train a task into a run folder, or resume the run that is there."""
    folder = RunFolder(out)
    description = {
        "task": task.name,
        "settings": asdict(task.settings),
        "architecture": asdict(architecture),
        "training": asdict(training),
        "data": files,
        "learned": fingerprint(task, data.train, files),
        "training_length": training_length(task, data.train),
    }
    with folder.lock() if is_main_process() else nullcontext():
        check_resumable(folder, description, task)
        if is_main_process():
            folder.write("run.json", {**description, "versions": versions()})
            folder.write("task.json", task.as_dict())
            folder.write_faults(data.faults)
        torch.manual_seed(training.seed)
        fitted = task.fit(architecture, data.train)
        model: Any = task.config(architecture).build() if fitted is None else fitted
        model.tokenizer, model.rules = task.tokenizer, task.rules
        task.initialize(model)
        records = task.example_records(data.validation)

        def save_best(model: nn.Module, scores: Scores) -> None:
            folder.save_best(model, scores, records)

        logger = RunLogger(folder, training.tensorboard and is_main_process(), on_event)
        if fitted is None:
            examples = data.train, data.validation
            return Trainer(task, model, *examples, training, folder.path, save_best, logger).fit()
        scores = task.evaluate(model, data.validation)
        if is_main_process():
            save_best(model, scores)
        logger(TrainEvent("score", TrainState(), 0, scores.metrics, scores))
        return TrainState()


class RunLogger:
    """Writes events to a run's log, its learning curve and TensorBoard, and passes them on."""

    def __init__(self, folder: RunFolder, tensorboard: bool, on_event: EventCallback) -> None:
        self.folder, self.on_event, self.curve_time, self.started = folder, on_event, 0.0, False
        self.tensorboard = TensorBoardLogger(folder / "tensorboard") if tensorboard else None

    def __call__(self, event: TrainEvent) -> None:
        if not self.started:  # a run that was killed before its first checkpoint starts again
            self.folder.truncate_log(event.state.step if event.name == "resumed" else -1)
            self.started = True
        self.folder.log_event(event)
        if self.tensorboard is not None:
            self.tensorboard(event)
        due = event.name == "score" and time.monotonic() - self.curve_time > 10
        if due or event.name in ("finished", "stopped"):
            self.folder.save_curve()
            self.curve_time = time.monotonic()
        self.on_event(event)


def is_main_process() -> bool:
    """Whether this process writes files and messages: the only process, or the first that was launched."""
    return os.environ.get("RANK", "0") == "0"


def check_resumable(folder: RunFolder, description: dict[str, Any], task: Task[Any]) -> None:
    """Raise `BadInput` when the folder holds a run with other settings or other training data."""
    if not folder.has_weights:
        return
    before = folder.read("run.json")
    if before.get("task") != description["task"]:
        raise BadInput(
            f"{folder.path} holds a run of the task {before.get('task')!r}, not of {description['task']!r}. Give "
            "another --out."
        )
    for section, cls in (("settings", task.Settings), ("architecture", Architecture), ("training", Training)):
        current = former_names(cls)
        old = {current.get(name, name): value for name, value in before.get(section, {}).items()}
        new = json.loads(json.dumps(description[section]))
        changed = [name for name in old if name in new and old[name] != new[name] and name not in RESUMABLE]
        if changed:
            change = f"{changed[0]} was {old[changed[0]]!r}, now {new[changed[0]]!r}"
            raise BadInput(
                f"{folder.path} holds a run with other settings ({change}). Resume it with the same settings, or give "
                "another --out."
            )
    if before.get("learned", description["learned"]) != description["learned"]:
        raise BadInput(
            f"{folder.path} holds a run that was trained on other data: the files or their contents have changed. "
            "Resume it with the same files, or give another --out."
        )


def open_run(path: str | Path, changes: Mapping[str, Any] | None = None) -> tuple[Task[Any], nn.Module, dict[str, Any]]:
    """Task, model (in evaluation mode) and description of a run; `changes` are other settings of the task.

    `path` is the folder of the run, or the name of a run that comes with the package.
    """
    folder = RunFolder(resolve_folder(path))
    description = folder.read("run.json")
    with explain_damage(folder / "run.json"):
        task_class = find_task(description["task"])
        try:
            saved = load_settings(task_class.Settings, description["settings"])
        except BadInput as error:
            raise BadInput(f"{folder / 'run.json'}: {error}") from None
    settings = update_settings(saved, changes or {})
    if not (folder / "model").is_dir():
        raise BadInput(
            f"{path} holds a run that was stopped before its first evaluation and has no model yet. "
            "Resume it with the same `regard train` command."
        )
    with explain_damage(folder / "model" / CONFIGS["regard"]):
        model = load(folder.path)
    data = folder.read("task.json")
    with explain_damage(folder / "task.json"):
        task = task_class.from_dict(data, settings, model.tokenizer)
    return task, model, description


@contextmanager
def explain_damage(file: Path) -> Iterator[None]:
    """While open, errors about missing or unusable contents of a model's file become `BadInput` with its path."""
    advice = "It was written by another version, or is damaged. Get it again, or train the model again."
    try:
        yield
    except RegardError:
        raise
    except KeyError as error:
        raise BadInput(f"{file} lacks {error.args[0]!r}. {advice}") from error
    except (TypeError, ValueError, IndexError, AttributeError) as error:
        raise BadInput(f"{file} has contents that cannot be used ({error}). {advice}") from error


def versions() -> dict[str, str]:
    """The versions that run.json names."""
    from .. import __version__

    return {"regard": __version__, "torch": torch.__version__, "python": platform.python_version()}
