"""A run: its folder holds everything that evaluating, predicting, loading and going on need.

run.json          task, settings, architecture and training in full, versions, data files and what they held, in short
task.json         what the task learned from the data: labels, vocabularies
model/            the best weights on dev, as `regard.load` reads them, with the tokenizer
checkpoints/      where to go on from
log.jsonl         a line a step and an evaluation;  curve.png  the same as a picture;  tensorboard/  if it is wanted
scores.json       the best scores;  hypotheses.txt  what the model said;  faults.txt  lines that were skipped
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..assets import folder_of
from ..errors import BadInput, RegardError
from ..models.checkpoint.checkpoint import load
from ..models.checkpoint.folder import CONFIGS, read_json
from ..settings import Training, load_settings, with_settings
from ..tasks.architecture import Architecture
from ..tasks.task import Scores
from .checkpoints import write_text
from .fingerprint import fingerprint
from .loop import Event, Place, train
from .tensorboard import Board


class RunFolder:
    """The files of a run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    @property
    def begun(self) -> bool:
        """Whether anything was learned here: a description alone may be of a try that its settings ended."""
        learned = (self / "model").is_dir() or any((self / "checkpoints").glob("step-*"))
        return learned and (self / "run.json").is_file()

    def read(self, name: str) -> Any:
        """The JSON of one of the folder's files."""
        if not (self / name).is_file():
            raise BadInput(
                f"{self.path} has no {name}: it is not the folder of a run. `regard train ... --out` makes one."
            )
        return read_json(self / name)

    def write(self, name: str, data: Any) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        write_text(self / name, json.dumps(data, ensure_ascii=False, indent=1) + "\n")

    def keep(self, model: nn.Module, scores: Scores) -> None:
        """Save the best model so far, its scores and what it said."""
        from safetensors import SafetensorError

        try:
            model.save(self / "model")  # type: ignore[operator]
        except (OSError, SafetensorError) as error:
            why = getattr(error, "strerror", None) or error
            raise BadInput(
                f"The model could not be written to {self / 'model'}: {why}. Make room and run the same command: it "
                "goes on from the last checkpoint."
            ) from error
        self.write("scores.json", {"metrics": scores.metrics, "main": scores.main, **scores.details})
        write_text(self / "hypotheses.txt", "".join(line + "\n" for line in scores.hypotheses))

    def log(self, event: Event) -> None:
        """A line for the log."""
        line = {"kind": event.kind, "step": event.place.step, "epoch": event.place.epoch, "time": round(time.time(), 2)}
        line |= {name: round(value, 6) for name, value in event.values.items()}
        with (self / "log.jsonl").open("a", encoding="utf8") as file:
            file.write(json.dumps(line) + "\n")

    def lines(self) -> list[dict[str, Any]]:
        """The log, without a last line that was cut off."""
        path, found = self / "log.jsonl", []
        for line in path.read_text("utf8").splitlines() if path.is_file() else []:
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return found

    def list_faults(self, faults: Sequence[Any]) -> None:
        """Write down the lines of the data that were skipped."""
        if faults:
            write_text(self / "faults.txt", "".join(f"{fault}\n" for fault in faults))
        else:
            (self / "faults.txt").unlink(missing_ok=True)

    def forget_after(self, step: int) -> None:
        """Take out of the log what happened after a checkpoint that the run goes on from."""
        kept = [line for line in self.lines() if line["step"] <= step]
        write_text(self / "log.jsonl", "".join(json.dumps(line) + "\n" for line in kept))


def begin(
    task: Any,
    architecture: Architecture,
    training: Training,
    examples: Sequence[Any],
    dev: Sequence[Any],
    out: str | Path,
    files: dict[str, list[str]],
    tell: Callable[[Event], None] = lambda event: None,
    faults: Sequence[Any] = (),
) -> tuple[RunFolder, Place]:
    """Train a task into a run folder, or go on with the run that is there; `faults` are the lines that were skipped."""
    folder = RunFolder(out)
    description = {
        "task": task.name,
        "settings": asdict(task.settings),
        "architecture": asdict(architecture),
        "training": asdict(training),
        "data": files,
        "learned": fingerprint(task, examples, files),
    }
    with alone_in(folder) if first() else nullcontext():
        need_same(folder, description)
        if first():
            folder.write("run.json", {**description, "versions": versions()})
            folder.write("task.json", task.as_dict())
            folder.list_faults(faults)
        torch.manual_seed(training.seed)
        counted = task.fit(architecture, examples)
        model = task.config(architecture).build() if counted is None else counted
        model.tokenizer, model.rules = task.tokenizer, task.rules
        task.initialize(model)
        note = Notes(folder, training.tensorboard and first(), tell)
        if counted is None:
            return folder, train(task, model, examples, dev, training, folder.path, folder.keep, note)
        scores = task.evaluate(model, dev)
        if first():
            folder.keep(model, scores)
        note(Event("score", Place(), 0, scores.metrics, scores))
        return folder, Place()


class Notes:
    """Writes down what a run tells, in its log, its picture and for TensorBoard, and passes it on."""

    def __init__(self, folder: RunFolder, board: bool, tell: Callable[[Event], None]) -> None:
        self.folder, self.tell, self.drawn, self.begun = folder, tell, 0.0, False
        self.board = Board(folder / "tensorboard") if board else None

    def __call__(self, event: Event) -> None:
        if not self.begun:  # a run that was killed before its first checkpoint begins anew
            self.folder.forget_after(event.place.step if event.kind == "resumed" else -1)
            self.begun = True
        self.folder.log(event)
        if self.board is not None:
            self.board(event)
        due = event.kind == "score" and time.monotonic() - self.drawn > 10
        if due or event.kind in ("finished", "stopped"):
            draw_curve(self.folder)
            self.drawn = time.monotonic()
        self.tell(event)


def first() -> bool:
    """Whether this process is the one that writes and speaks: the only one, or the first of those launched together."""
    return os.environ.get("RANK", "0") == "0"


MAY_CHANGE = {"epochs", "steps", "minutes", "patience", "device", "save_every", "tensorboard"}
"""Settings of training that a run may be continued with other values of."""


def need_same(folder: RunFolder, description: dict[str, Any]) -> None:
    """Raise when the folder holds a run that was begun otherwise, or from other data."""
    if not folder.begun:
        return
    before = folder.read("run.json")
    if before.get("task") != description["task"]:
        raise BadInput(
            f"{folder.path} holds a run of the task {before.get('task')!r}, not of {description['task']!r}. Give "
            "another --out."
        )
    for part in ("settings", "architecture", "training"):
        old, new = before.get(part, {}), json.loads(json.dumps(description[part]))
        changed = [name for name in old if name in new and old[name] != new[name] and name not in MAY_CHANGE]
        if changed:
            what = f"{changed[0]} was {old[changed[0]]!r}, now {new[changed[0]]!r}"
            raise BadInput(
                f"{folder.path} holds a run that was begun otherwise ({what}). Go on with the same settings, or give "
                "another --out."
            )
    if before.get("learned", description["learned"]) != description["learned"]:
        raise BadInput(
            f"{folder.path} holds a run that learned from other data: these files, or what they say, have changed "
            "since. Go on with the same files, or give another --out."
        )


@contextmanager
def alone_in(folder: RunFolder) -> Iterator[None]:
    """While open, no other process can train into the folder; raises where one does."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    folder.path.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInput(
                f"Another process trains into {folder.path} now. Wait for its end, or give another --out."
            ) from None
        except OSError:  # a file system without locks
            pass
        yield


def open_run(
    path: str | Path, find: Callable[[str], Any], changes: dict[str, Any] | None = None
) -> tuple[Any, nn.Module, dict[str, Any]]:
    """Task, model (in evaluation mode) and description of a run; `changes` are other settings of the task.

    `path` is the folder of the run, or the name of one that comes with the package.
    """
    folder = RunFolder(folder_of(path))
    description = folder.read("run.json")
    with reading(folder / "run.json"):
        kind = find(description["task"])
        settings = with_settings(load_settings(kind.Settings, description["settings"]), changes or {})
    if not (folder / "model").is_dir():
        raise BadInput(
            f"{path} holds a run that was stopped before its first evaluation, so no model is kept there yet. "
            "Go on with it: the same `regard train` command."
        )
    with reading(folder / "model" / CONFIGS["regard"]):
        model = load(folder.path)
    learned = folder.read("task.json")
    with reading(folder / "task.json"):
        task = kind.from_dict(learned, settings, model.tokenizer)
    return task, model, description


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """While open, what a file of a model lacks, or has that cannot be used, is told by the file and the part."""
    again = "It was written by another version, or is damaged. Fetch it again, or train the model anew."
    try:
        yield
    except RegardError:
        raise
    except KeyError as error:
        raise BadInput(f"{file} lacks {error.args[0]!r}. {again}") from error
    except (TypeError, ValueError, IndexError, AttributeError) as error:
        raise BadInput(f"{file} has a part that cannot be used ({error}). {again}") from error


def versions() -> dict[str, str]:
    from .. import __version__

    return {"regard": __version__, "torch": torch.__version__, "python": platform.python_version()}


def draw_curve(folder: RunFolder) -> None:
    """The learning curve as a picture; nothing where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    lines = folder.lines()
    steps = [line for line in lines if line["kind"] == "step"]
    scores = [line for line in lines if line["kind"] == "score"]
    if not steps:
        return
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(
        [line["step"] for line in steps], [line["loss"] for line in steps], color="#0072b2", label="training loss"
    )
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    main = folder.read("scores.json")["main"] if (folder / "scores.json").is_file() else None
    if main and scores:
        right = axes.twinx()
        right.plot([x["step"] for x in scores], [x[main] for x in scores], "o-", color="#d55e00", label=f"dev {main}")
        right.set_ylabel(f"dev {main}")
    figure.legend(loc="outside upper center", ncols=2)
    figure.savefig(folder / "curve.png", dpi=120)
