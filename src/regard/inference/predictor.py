"""A trained model that is in use: `regard.open` gives a `Predictor`, whose `predict` answers with typed results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import cast, overload

import torch
from torch import Tensor

from ..assets import list_assets, resolve_folder
from ..data.json_values import JsonValue, ParsedObject
from ..errors import BadInput, explain_damage, explain_panic
from ..models.checkpoint.checkpoint import load
from ..models.checkpoint.folder import CONFIGS
from ..models.checkpoint.hub import push_folder
from ..models.config import EncoderDecoderConfig
from ..models.exporting.export import ExportedModel, Format, export_model
from ..models.generation.sampling import GenerationSettings
from ..models.model import Model, SequenceModel
from ..tasks.inputs.cache import MethodCache, TensorCache
from ..tasks.pretrained.embedder import Embedder
from ..tasks.pretrained.pretrained import Pretrained
from ..tasks.pretrained.texts import SubwordTexts
from ..tasks.results import Result
from ..tasks.target_task import TargetTask
from ..tasks.task import AnyTask, Task
from ..train.run import open_run
from ..train.run_folder import RunFolder
from .checkpoint_task import CheckpointTask, task_of_checkpoint

CHUNK = 1024
"""Inputs that are predicted together."""
EXAMPLE_TEXT, EXAMPLES = "The cat sat on the mat and saw a dog .", 3


class Predictor:
    """A model with its task: how texts, files or arrays become its inputs, and its outputs results.

    `task` is the run's task, or for a Hugging Face checkpoint what its head is for; `model` is the PyTorch module;
    `description` is the run.json of a run.
    """

    def __init__(
        self, name: str, task: AnyTask | CheckpointTask, model: Model, description: ParsedObject | None = None
    ) -> None:
        self.name, self.task, self.model, self.description = name, task, model, description

    @property
    def labels(self) -> list[str] | None:
        """Names of the classes or tags; None where the task has none."""
        return self.task.labels

    @property
    def device(self) -> torch.device:
        return self.model.device

    def to(self, device: str | torch.device) -> Predictor:
        """The same predictor, with its model on another device."""
        self.model.to(device)
        return self

    @overload
    def predict(self, inputs: str | Path | bytes | Mapping[str, object] | Tensor) -> Result: ...

    @overload
    def predict(self, inputs: Iterable[object]) -> list[Result]: ...

    def predict(self, inputs: object) -> Result | list[Result]:
        """The result of one input, or the list of results of many.

        An input is a text, a path, a dictionary such as `{"text": ...}` or a row of a table, an image as an array or
        from pillow, or a recording as `{"samples": ..., "sample_rate": ...}`: what the task reads.
        """
        if is_single(inputs):
            if self.task.compares_inputs:
                raise BadInput("This model compares its inputs with each other. Give a list of images and texts.")
            return next(self.stream([inputs]))
        if not isinstance(inputs, Iterable):
            raise BadInput(f"An input is {inputs!r:.60} ({type(inputs).__name__}). Give one input, or a list of them.")
        return list(self.stream(inputs))

    def stream(self, inputs: Iterable[object]) -> Iterator[Result]:
        """The result of each input in order, while inputs are still being read."""
        waiting = iter(inputs)
        size = None if self.task.compares_inputs else CHUNK
        while chunk := list(islice(waiting, size)):
            with torch.no_grad(), explain_panic(self.name):
                results = self.task.predict(self.model, chunk)
            yield from results

    def embed(self, inputs: str | Path | Sequence[str | Path | Tensor]) -> Tensor:
        """The vectors of texts (and, of a CLIP, of images) `[inputs, dim]`; of one input `[dim]`.

        Tokens are pooled as the checkpoint says, or by their mean, and vectors have length 1 unless it says otherwise.
        """
        task = self.task if isinstance(self.task, Task) else None
        pretrained = Pretrained(self.name, resolve_folder(self.name), self.model, task)
        vectors = Embedder.from_pretrained(pretrained).embed(inputs)
        return vectors[0] if isinstance(inputs, str | Path) else vectors

    def clear_caches(self) -> None:
        """Forget the inputs that the task has cached, which helps in training but not where each comes once."""
        inputs = [self.task.inputs] if isinstance(self.task, TargetTask) else []
        for holder in (self.task, *inputs):
            for value in vars(holder).values():
                if isinstance(value, TensorCache):
                    value.tensors.clear()
                    value.left = 0
                elif isinstance(value, SubwordTexts):
                    value.cache.clear()
                elif isinstance(value, MethodCache):
                    value.cache_clear()

    def save(self, folder: str | Path, format: str = "regard") -> None:
        """Write a folder that `regard.open` reads with the same task, or a model that transformers reads with equal
        outputs (format="huggingface").

        Raises `Unsupported` that names what transformers has no counterpart of.
        """
        self.model.labels = self.labels
        if format != "regard" or self.description is None or isinstance(self.task, CheckpointTask):
            self.model.save(folder, format)
            return
        run = RunFolder(folder)
        self.model.save(run / "model")
        run.write("run.json", self.description)
        run.write("task.json", self.task.as_dict())
        if tuned := self.task.tuned_values():
            run.write("tuned.json", tuned)

    def push(self, repository: str, *, format: str = "huggingface", private: bool = True) -> str:
        """Save the model and upload it to the Hugging Face Hub as `owner/name`; the address of the repository.

        Needs huggingface_hub, a network and a login (`hf auth login`). Nothing is uploaded unless this is called.
        """
        from tempfile import TemporaryDirectory

        with TemporaryDirectory() as folder:
            self.save(folder, format)
            return push_folder(folder, repository, private)

    def __repr__(self) -> str:
        labels = f", {len(self.labels)} labels" if self.labels else ""
        return f"Predictor({self.name!r}, task={self.task.name!r}{labels})"


def is_single(inputs: object) -> bool:
    """Whether this is one input: not a list, a tuple, an array of texts, a column of a table or a generator."""
    if isinstance(inputs, str | bytes | Path | Mapping | Tensor):
        return True
    dtype = getattr(inputs, "dtype", None)
    if dtype is not None:  # an array of numbers is an image
        return getattr(dtype, "kind", "O") in "biuf" and getattr(inputs, "ndim", 1) > 1
    return hasattr(inputs, "convert") and hasattr(inputs, "save")  # of pillow


def open_predictor(run: str | Path, settings: Mapping[str, JsonValue] | None = None) -> Predictor:
    """See `regard.open`."""
    with explain_damage(run):
        return open_folder(run, resolve_folder(run), settings)


def open_folder(run: str | Path, folder: Path, settings: Mapping[str, JsonValue] | None) -> Predictor:
    """The predictor of a run's folder or of a checkpoint's; `run` is what the user gave."""
    if (folder / "run.json").is_file():
        task, model, description = open_run(run, settings)
        return Predictor(str(run), task, model, {**description, "settings": asdict(task.settings)})
    if not folder.is_dir():
        raise BadInput(
            f"{run} {'is a file' if folder.is_file() else 'does not exist'}. Give the folder of a run "
            f"(regard train … --out FOLDER), a Hugging Face folder, or a shipped model: {', '.join(list_assets())}."
        )
    if not any((folder / name).is_file() for name in CONFIGS.values()):
        raise BadInput(
            f"{run} has neither run.json nor config.json. Give the folder of a run (regard train … --out FOLDER) or of "
            "a Hugging Face checkpoint."
        )
    model = load(folder)
    task = task_of_checkpoint(model, str(run))
    return Predictor(str(run), with_settings(task, settings or {}), model)


def with_settings(task: CheckpointTask, settings: Mapping[str, JsonValue]) -> CheckpointTask:
    """The task of a checkpoint with settings that were given; `BadInput` for one that it does not have."""
    known: Sequence[str] = ("max_new", "beams", "temperature", "top_k", "top_p") if task.generates else ()
    for name in settings:
        if name not in known:
            have = f"It has {', '.join(known)}." if known else "It has none."
            raise BadInput(f"A checkpoint of the task {task.name!r} has no setting {name!r}. {have}")
    return replace(task, generation=cast(GenerationSettings, {**task.generation, **settings}))


def export_predictor(
    model: Model | Predictor | str | Path,
    file: str | Path,
    format: Format | None = None,
    inputs: Mapping[str, Tensor] | None = None,
) -> ExportedModel:
    """See `regard.export`."""
    if isinstance(model, str | Path):
        model = open_predictor(model)
    if isinstance(model, Predictor):
        inputs = example_of_task(model) if inputs is None else inputs
        model = model.model
    return export_model(model, file, format, inputs)


def example_of_task(predictor: Predictor) -> dict[str, Tensor] | None:
    """Arguments of the model for an example text as the task reads them; None where the configuration says it."""
    task = predictor.task
    if not isinstance(task, Task) or isinstance(predictor.model.config, EncoderDecoderConfig):
        return None
    given = task.text_inputs(EXAMPLE_TEXT)
    model = predictor.model
    if given is None or (isinstance(model, SequenceModel) and model.causal):
        return None
    return {name: value.expand(EXAMPLES, *value.shape[1:]).clone() for name, value in given.items()}
