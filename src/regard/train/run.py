"""Runs: train a task into a folder, resume it, open it again."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

import torch

from ..assets import resolve_folder
from ..data.json_values import JsonValue, ParsedObject
from ..data.reading import Fault, Reading, split_of
from ..errors import BadInput, explain_damage
from ..models.checkpoint.adapter import save_adapter
from ..models.checkpoint.checkpoint import load
from ..models.checkpoint.folder import CONFIGS
from ..models.model import Model
from ..nn.lora import add_lora
from ..settings import (
    Settings,
    Training,
    former_names,
    load_settings,
    update_each,
    update_settings,
    use_current_names,
    use_former_defaults,
)
from ..tasks import find_task
from ..tasks.architecture import Architecture
from ..tasks.pretrained.defaults import check_free, fine_tuning, fine_tuning_architecture, fine_tuning_settings
from ..tasks.pretrained.pretrained import Pretrained, open_checkpoint, resolve_checkpoint
from ..tasks.splits import split_data
from ..tasks.task import AnyTask, Scores
from .fingerprint import fingerprint
from .run_folder import RunFolder
from .tensorboard import TensorBoardLogger
from .trainer import EventCallback, Trainer, TrainEvent, TrainState

RESUMABLE = {"epochs", "steps", "minutes", "patience", "device", "save_every", "save_minutes", "tensorboard"}
RESUMABLE |= {"sequence_parallel", "hang_minutes", "precision"}
"""Settings of training that may differ when a run is resumed."""


OWN_MODEL = frozenset(item.name for item in fields(Architecture)) - {"dim", "layers", "dropout", "kernel_size"}
"""Settings of a model that keep `RunConfig.adapt` from choosing another model."""

ALTERNATIVES = ({"batch_size", "batch_tokens"}, {"epochs", "steps", "minutes"})
"""Settings of which one that is given keeps the others from being chosen."""


@dataclass(frozen=True)
class RunConfig:
    """What a run is made of: the task's class, all settings, and the files of training and validation data."""

    task: type[AnyTask]
    settings: Settings
    architecture: Architecture
    training: Training
    train: tuple[Path, ...] = ()
    dev: tuple[Path, ...] = ()
    pretrained: Pretrained | None = None
    given: frozenset[str] | None = None

    @classmethod
    def from_changes(
        cls,
        task: str,
        *changes: Mapping[str, JsonValue],
        train: Sequence[Path] = (),
        dev: Sequence[Path] = (),
        adaptive: bool = True,
    ) -> RunConfig:
        """The configuration of a task by name: its defaults with these changes, later ones over earlier ones.

        If `adaptive`, `adapt` may set what no change sets.
        """
        task_class = find_task(task)
        defaults = [task_class.Settings(), task_class.ARCHITECTURE, task_class.TRAINING]
        settings, architecture, training = update_each(defaults, *changes)
        if architecture.checkpoint is None:
            names = frozenset(name for source in changes for name in use_current_names(defaults, source))
            given = names if adaptive else None
            return cls(task_class, settings, architecture, training, tuple(train), tuple(dev), given=given)
        check_free(changes, defaults)
        pretrained, lora = open_pretrained(architecture.checkpoint), architecture.lora_rank > 0
        defaults[0] = fine_tuning_settings(task_class.Settings(), pretrained)
        defaults[1] = fine_tuning_architecture(task_class.ARCHITECTURE, pretrained)
        defaults[2] = fine_tuning(task_class.TRAINING, task, pretrained, lora)
        settings, architecture, training = update_each(defaults, *changes)
        return cls(task_class, settings, architecture, training, tuple(train), tuple(dev), pretrained)

    def prepare(self, examples: Sequence[object]) -> AnyTask:
        """The task for these training examples, with the inputs of the checkpoint where there is one."""
        if self.pretrained is None:
            return self.task.prepare(examples, self.settings)
        return self.task.prepare_from(examples, self.settings, self.pretrained)

    def adapt(self, examples: Sequence[object], out: str | Path) -> RunConfig:
        """The configuration with the defaults that the task has for these training examples, where none was given.

        A run that is resumed keeps those that it began with.
        """
        if self.given is None:
            return self
        suggested = self.task.suggest_settings(examples, self.settings)
        given = self.given.union(*(group for group in ALTERNATIVES if self.given & group))
        if "model" in suggested and given & OWN_MODEL:  # what was given may not go with another model and its rates
            return self
        suggested = {name: value for name, value in suggested.items() if name not in given}
        groups, folder = [self.settings, self.architecture, self.training], RunFolder(out)
        if folder.has_weights:
            description = folder.read("run.json")
            sections = [description.get(name, {}) for name in ("settings", "architecture", "training")]
            current = former_names(*groups)
            saved = {current.get(name, name): value for section in sections for name, value in section.items()}
            suggested = {name: saved.get(name, value) for name, value in suggested.items()}
        settings, architecture, training = update_each(groups, suggested)
        return replace(self, settings=settings, architecture=architecture, training=training)

    def changes_from(self, other: RunConfig) -> list[str]:
        """The settings that differ from those of another configuration, as `name=value`."""
        pairs = (
            (self.settings, other.settings),
            (self.architecture, other.architecture),
            (self.training, other.training),
        )
        values = [(asdict(own), asdict(before)) for own, before in pairs]
        return [f"{name}={value}" for own, before in values for name, value in own.items() if value != before[name]]

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
    """The examples of a run: training and validation data, the lines that could not be read, and what was guessed.

    `held_out` says that the validation data was drawn from the training files, which say nothing of splits. `columns`
    are those of a table that were read, by their role.
    """

    train: Sequence[object]
    validation: Sequence[object]
    faults: Sequence[Fault] = ()
    notes: Sequence[str] = ()
    held_out: bool = False
    columns: Mapping[str, str] = field(default_factory=dict)


def read_data(config: RunConfig, report_faults: Callable[[list[Fault]], None], strict: bool = False) -> RunData:
    """Read the files of a run. If `strict`, lines that cannot be read raise `BadInput`."""
    train = config.task.read(config.train, config.settings)
    dev = config.task.read(config.dev, config.settings) if config.dev else None
    readings: list[Reading[object]] = [train] if dev is None else [train, dev]
    for reading in readings:
        if strict:
            reading.strict()
        reading.require_examples()
    faults = [fault for reading in readings for fault in reading.faults]
    report_faults(faults)
    held_out = dev is None and all(split_of(example) != "dev" for example in train.examples)
    train, validation = split_data(train, dev, config.task, config.training.seed)
    notes = list(dict.fromkeys(note for reading in readings for note in reading.notes))
    return RunData(train.examples, validation.examples, faults, notes, held_out, train.columns)


def train_run(
    task: AnyTask,
    architecture: Architecture,
    training: Training,
    data: RunData,
    out: str | Path,
    files: dict[str, list[str]],
    on_event: EventCallback = lambda event: None,
) -> TrainState:
    """Train a task into a run folder, or resume the run that is there."""
    folder, began = RunFolder(out), time.monotonic()
    description = {
        "task": task.name,
        "settings": asdict(task.settings),
        "architecture": asdict(architecture),
        "training": asdict(training),
        "data": files,
        "columns": dict(data.columns),
        "learned": fingerprint(task, data.train, files),
        "training_length": task.training_length(data.train),
    }
    with folder.lock() if is_main_process() else nullcontext():
        check_resumable(folder, description, task)
        if is_main_process():
            folder.remove_unfinished()
            folder.write("run.json", {**description, "versions": versions()})
            folder.write("task.json", task.as_dict())
            folder.write_faults(data.faults)
        torch.manual_seed(training.seed)
        fitted = task.fit(architecture, data.train)
        model = task.config(architecture).build() if fitted is None else fitted
        model.tokenizer, model.rules = task.tokenizer, task.rules
        task.initialize(model)
        if architecture.lora_rank:
            add_lora(model, architecture.lora_rank, architecture.lora_alpha, architecture.lora_targets)
        records = task.example_records(data.validation)

        def save_best(model: Model, scores: Scores) -> None:
            every = [*data.train, *data.validation]
            with task.refit(model, every) if data.held_out else nullcontext("") as sentence:
                folder.save_best(model, scores.with_summary(sentence), records)
            if architecture.lora_rank:
                save_adapter(model, folder / "adapter", str(architecture.checkpoint), model.base_family)
            if tuned := task.tuned_values():
                folder.write("tuned.json", tuned)

        logger = RunLogger(folder, training.tensorboard and is_main_process(), on_event)
        if fitted is None:
            examples = data.train, data.validation
            trainer = Trainer(task, model, *examples, training, folder.path, save_best, logger)
            trainer.last_time = began  # what is fitted before the first step counts as time of the run
            return trainer.fit()
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
        if not is_main_process():
            self.on_event(event)
            return
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


def check_resumable(folder: RunFolder, description: ParsedObject, task: AnyTask) -> None:
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


def open_pretrained(name: str | Path) -> Pretrained:
    """A checkpoint to start from: a run with its task, a folder with a model, or a Hub id."""
    folder = resolve_checkpoint(name)
    if not (folder / "run.json").is_file():
        return open_checkpoint(name)
    task, model, _ = open_run(folder)
    return Pretrained(str(name), folder, model, task)


def open_run(path: str | Path, changes: Mapping[str, JsonValue] | None = None) -> tuple[AnyTask, Model, ParsedObject]:
    """Task, model (in evaluation mode) and description of a run; `changes` are other settings of the task.

    `path` is the folder of the run, or the name of a run that comes with the package.
    """
    with explain_damage(path):
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
    task.columns = description.get("columns", {})
    if (folder / "tuned.json").is_file():
        tuned = folder.read("tuned.json")
        with explain_damage(folder / "tuned.json"):
            task.restore_tuned(tuned)
    return task, model, description


def versions() -> dict[str, str]:
    """The versions that run.json names."""
    from .. import __version__

    return {"regard": __version__, "torch": torch.__version__, "python": platform.python_version()}
