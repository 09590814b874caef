"""The folder of a run: everything that evaluating, predicting, loading and resuming need.

run.json          task, settings, architecture and training in full, versions, data files and their fingerprint
task.json         labels, vocabularies and statistics of the training data
tuned.json        what was tuned on the validation data with the best weights, such as thresholds; not in every run
model/            the best weights on the validation data, as `regard.load` reads them, with the tokenizer
adapter/          the best LoRA, in the format of peft, where the run trains one
checkpoints/      the states to resume from
log.jsonl         a line for each step and evaluation;  curve.png  the same as a figure;  tensorboard/  if it is set
scores.json       the best scores;  faults.txt  lines that were skipped
hypotheses.txt    the predictions on the validation data;  hypotheses.jsonl  the same with input and gold
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from torch import nn

from ..data.json_values import JsonObject, ParsedObject
from ..data.reading import Fault
from ..errors import BadInput
from ..models.checkpoint.checksums import add_hash, check_json
from ..models.checkpoint.files import read_json, remove_unfinished
from ..models.model import Model
from ..nn.lora import merged_lora
from ..tasks.task import Scores
from .checkpoints import write_text
from .trainer import TrainEvent

SIGNED = ("run.json", "task.json", "tuned.json")
"""Files with a checksum of their own; `model/regard.json` has those of `model/`."""


class RunFolder:
    """The files of a run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    @property
    def has_weights(self) -> bool:
        """Whether the run has saved weights: a description alone may be left from a run that failed at its start."""
        saved = (self / "model").is_dir() or any((self / "checkpoints").glob("step-*"))
        return saved and (self / "run.json").is_file()

    def read(self, name: str) -> ParsedObject:
        """The JSON of one of the folder's files, checked against the SHA-256 that it has."""
        if not (self / name).is_file():
            advice = "`regard train ... --out` makes one."
            if (self / "config.json").is_file():
                advice = "It is a checkpoint: rg.open and `regard serve` predict with it, `train --from` trains it."
            raise BadInput(f"{self.path} has no {name}: it is not the folder of a run. {advice}")
        return check_json(read_json(self / name), self / name)

    def write(self, name: str, data: JsonObject) -> None:
        """Replace one of the folder's files; those that opening the run needs get the SHA-256 of their contents."""
        self.path.mkdir(parents=True, exist_ok=True)
        data = add_hash(data) if name in SIGNED else data
        write_text(self / name, json.dumps(data, ensure_ascii=False, indent=1) + "\n")

    def remove_unfinished(self) -> None:
        """Remove the files that a process that was killed has left half-written."""
        for folder in (self.path, self / "model", self / "adapter"):
            remove_unfinished(folder)

    def save_best(self, model: Model, scores: Scores, records: Sequence[dict[str, str]] = ()) -> None:
        """Save the best model so far, its scores and its predictions, with the input and the gold of each record."""
        from safetensors import SafetensorError

        try:
            with merged_lora(model) if isinstance(model, nn.Module) else nullcontext():
                model.save(self / "model")
        except (OSError, SafetensorError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or error
            raise BadInput(
                f"The model could not be written to {self / 'model'}: {reason}. Free some disk space and run the same "
                "command: it resumes from the last checkpoint."
            ) from error
        self.write("scores.json", {"metrics": scores.metrics, "main": scores.main, **scores.details})
        write_text(self / "hypotheses.txt", "".join(line + "\n" for line in scores.hypotheses))
        if records and len(records) == len(scores.hypotheses):
            rows = (record | {"prediction": line} for record, line in zip(records, scores.hypotheses, strict=True))
            lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
            write_text(self / "hypotheses.jsonl", "".join(lines))

    def log_event(self, event: TrainEvent) -> None:
        """Append a line to the log; that an evaluation begins is not logged."""
        if event.name == "evaluating":
            return
        line = {"kind": event.name, "step": event.state.step, "epoch": event.state.epoch, "time": round(time.time(), 2)}
        line |= {name: round(value, 6) for name, value in event.values.items()}
        with (self / "log.jsonl").open("a", encoding="utf8") as file:
            file.write(json.dumps(line) + "\n")

    def read_log(self) -> list[ParsedObject]:
        """The lines of the log that have a step, without a last line that was cut off."""
        path, lines = self / "log.jsonl", []
        for text in path.read_text("utf8", errors="replace").split("\n") if path.is_file() else []:
            try:
                line = json.loads(text)
            except (ValueError, RecursionError):
                continue
            if isinstance(line, dict) and isinstance(line.get("step"), int) and -1 <= line["step"] < 2**31:
                lines.append(line)
        return lines

    def truncate_log(self, step: int) -> None:
        """Remove what the log has after the checkpoint that the run resumes from."""
        lines = [line for line in self.read_log() if line["step"] <= step]
        write_text(self / "log.jsonl", "".join(json.dumps(line) + "\n" for line in lines))

    def write_faults(self, faults: Sequence[Fault]) -> None:
        """Write the lines of the data that were skipped."""
        if faults:
            write_text(self / "faults.txt", "".join(f"{fault}\n" for fault in faults))
        else:
            (self / "faults.txt").unlink(missing_ok=True)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """While open, no other process can train into the folder; raises `BadInput` where one does."""
        try:
            import fcntl
        except ImportError:  # Windows
            yield
            return
        self.path.mkdir(parents=True, exist_ok=True)
        with (self / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BadInput(
                    f"Another process trains into {self.path}. Wait until it ends, or give another --out."
                ) from None
            except OSError:  # a file system without locks
                pass
            yield

    def save_curve(self) -> None:
        """Save the learning curve as curve.png; no effect where matplotlib is not installed."""
        try:
            from matplotlib.figure import Figure
        except ImportError:
            return
        lines = self.read_log()
        steps, scores = ([line for line in lines if line["kind"] == name] for name in ("step", "score"))
        if not steps:
            return
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.subplots()
        losses = [line["loss"] for line in steps]
        axes.plot([line["step"] for line in steps], losses, color="#0072b2", label="training loss")
        axes.set_xlabel("step")
        axes.set_ylabel("loss")
        main = self.read("scores.json")["main"] if (self / "scores.json").is_file() else None
        if main and scores:
            right, values = axes.twinx(), [line[main] for line in scores]
            right.plot([line["step"] for line in scores], values, "o-", color="#d55e00", label=f"dev {main}")
            right.set_ylabel(f"dev {main}")
        figure.legend(loc="outside upper center", ncols=2)
        figure.savefig(self / "curve.png", dpi=120)
