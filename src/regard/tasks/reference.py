"""What a run was trained on: its longest input, and a reference that tells images and sounds unlike the training data.

The reference has the mean and the precision (inverse covariance) of two features of the training inputs: the mean and
the deviation of their token embeddings, and the vector that the classifier reads. An input is unlike the training data
when one of its Mahalanobis distances exceeds a threshold, which is set on held-out inputs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from ..data.files import is_file
from ..data.languages import language_name, script_name, unread_script
from ..errors import BadInput, Unsupported
from ..models.heads import ClassificationHead
from ..models.model import SequenceModel
from .classify import Classify, LabelledInput
from .task import AnyTask

FILE = "reference.safetensors"
FEATURES = ("embeddings", "pooled")
FALSE_ALARMS = 0.01
"""Share of inputs like the training data that may be reported as unlike it."""
RIDGE = 1e-3
"""Added to the covariance, in units of its mean variance."""


@dataclass(frozen=True, eq=False)
class Reference:
    """Mean `[dim]`, precision `[dim, dim]` and threshold of each feature, and the rate of false alarms.

    `false_alarms` is measured: thresholds of one half of the held-out inputs, applied to the other half.
    """

    means: dict[str, Tensor]
    precisions: dict[str, Tensor]
    thresholds: dict[str, float]
    false_alarms: float
    held_out: int

    def distances(self, model: nn.Module, arguments: dict[str, Tensor]) -> dict[str, float]:
        """The distance of one input by each feature, in units of its threshold: above 1 it is unlike the training data.

        `arguments` are the model's, for a batch of one.
        """
        features = input_features(model, arguments)
        return {name: float(self.distance(name, features[name])) / self.thresholds[name] for name in FEATURES}

    def distance(self, name: str, features: Tensor) -> Tensor:
        """Mahalanobis distances `[inputs]` of features `[inputs, dim]`."""
        return mahalanobis(features, self.means[name], self.precisions[name])

    def save(self, folder: Path) -> Path:
        tensors = {f"{name}.mean": self.means[name] for name in FEATURES}
        tensors |= {f"{name}.precision": self.precisions[name] for name in FEATURES}
        numbers = {f"{name}.threshold": str(self.thresholds[name]) for name in FEATURES}
        numbers |= {"false_alarms": str(self.false_alarms), "held_out": str(self.held_out)}
        path = folder / FILE
        path.write_bytes(save({name: x.contiguous() for name, x in tensors.items()}, metadata=numbers))
        return path

    @classmethod
    def load(cls, folder: Path) -> Reference | None:
        """The reference of a run; None where it has none."""
        path = folder / FILE
        if not path.is_file():
            return None
        try:
            with safe_open(path, "pt") as file:
                numbers = file.metadata()
                means = {name: file.get_tensor(f"{name}.mean") for name in FEATURES}
                precisions = {name: file.get_tensor(f"{name}.precision") for name in FEATURES}
            thresholds = {name: float(numbers[f"{name}.threshold"]) for name in FEATURES}
            return cls(means, precisions, thresholds, float(numbers["false_alarms"]), int(numbers["held_out"]))
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise BadInput(
                f"{path} cannot be read ({error}). Make it again: regard reference RUN --data FILE."
            ) from None


def fit_reference(
    task: AnyTask,
    model: nn.Module,
    training: Sequence[LabelledInput],
    held_out: Sequence[LabelledInput],
    rate: float = FALSE_ALARMS,
) -> Reference:
    """The reference of a classifier of images or sounds, from its training examples and examples it was not trained on.

    Each of the two thresholds is the distance that the share `rate` / 2 of inputs exceeds: the (n + 1)(1 − rate / 2)-th
    smallest of the n held-out distances, so that on inputs drawn as they were the two together give at most `rate`
    false alarms (for n of at least 2 / rate − 1; of fewer, the largest distance is taken).
    """
    if not isinstance(task, Classify) or task.inputs.kind == "text":
        raise Unsupported(f"A reference is for classifiers of images or sounds; this run's task is {task.name!r}.")
    if len(held_out) < 20:
        raise BadInput(f"There are {len(held_out)} held-out examples; a threshold needs at least 20.")
    features = stack_features(task, model, training)
    others = stack_features(task, model, held_out)
    means = {name: features[name].mean(0) for name in FEATURES}
    precisions = {name: precision(features[name]) for name in FEATURES}
    distances = {name: mahalanobis(others[name], means[name], precisions[name]) for name in FEATURES}
    thresholds = {name: conformal_quantile(distances[name], rate / 2) for name in FEATURES}
    return Reference(means, precisions, thresholds, measure_false_alarms(distances, rate), len(held_out))


def input_features(model: nn.Module, arguments: dict[str, Tensor]) -> dict[str, Tensor]:
    """The two features of inputs of one size, `[inputs, dim]`.

    These are the mean and deviation of an input's token embeddings, and the vector that the classifier reads.
    """
    if not isinstance(model, SequenceModel) or not isinstance(model.head, ClassificationHead):
        raise Unsupported("A reference needs a model with an embedding and one classifier; this one has not.")
    seen: dict[str, Tensor] = {}
    hooks = [
        model.embed.register_forward_hook(lambda module, args, output: seen.__setitem__("embeddings", output)),
        model.head.out.register_forward_pre_hook(lambda module, args: seen.__setitem__("pooled", args[0])),
    ]
    try:
        with torch.no_grad():
            model(**arguments)
    finally:
        for hook in hooks:
            hook.remove()
    tokens = seen["embeddings"].float()
    deviation = tokens.std(1, correction=0)
    return {"embeddings": torch.cat([tokens.mean(1), deviation], -1), "pooled": seen["pooled"].float()}


def stack_features(task: Classify, model: nn.Module, examples: Sequence[LabelledInput]) -> dict[str, Tensor]:
    """The features of examples, `[examples, dim]`; sounds one at a time, so that padding never matters."""
    size = 64 if task.inputs.kind == "image" else 1
    parts = []
    for n in range(0, len(examples), size):
        batch = task.batch(examples[n : n + size])
        parts.append(input_features(model, {name: value for name, value in batch.items() if name != "labels"}))
    return {name: torch.cat([part[name] for part in parts]) for name in FEATURES}


def precision(features: Tensor) -> Tensor:
    """The inverse covariance of features `[inputs, dim]`, with a ridge for directions without variance."""
    centred = (features - features.mean(0)).double()
    covariance = centred.mT @ centred / len(features)
    ridge = RIDGE * covariance.diagonal().mean().clamp(min=1e-12)
    return torch.linalg.inv(covariance + ridge * torch.eye(len(covariance), dtype=covariance.dtype)).float()


def mahalanobis(features: Tensor, mean: Tensor, precision: Tensor) -> Tensor:
    """√((x − mean)ᵀ precision (x − mean)) of features `[inputs, dim]`."""
    centred = (features - mean).double()
    return ((centred @ precision.double()) * centred).sum(-1).clamp(min=0).sqrt()


def conformal_quantile(distances: Tensor, rate: float) -> float:
    """The distance that a further one exceeds with a probability of at most `rate`; the largest where there are few."""
    rank = min(len(distances), math.ceil((len(distances) + 1) * (1 - rate)))
    return float(distances.sort().values[rank - 1])


def measure_false_alarms(distances: dict[str, Tensor], rate: float, repeats: int = 50) -> float:
    """The share of held-out inputs above thresholds that were set on the other half of them."""
    count = len(next(iter(distances.values())))
    generator, alarms = torch.Generator().manual_seed(0), []
    for _ in range(repeats):
        order = torch.randperm(count, generator=generator)
        first, second = order[: count // 2], order[count // 2 :]
        above = [held[second] > conformal_quantile(held[first], rate / 2) for held in distances.values()]
        alarms.append(float(torch.stack(above).any(0).double().mean()))
    return sum(alarms) / len(alarms)


def input_hints(task: AnyTask, model: nn.Module, folder: Path, text: str) -> list[str]:
    """What must be said of an input of `regard predict`: a language that the model does not read, or unlike contents.

    `text` is the input itself, or the path of an image or a recording.
    """
    if isinstance(task, Classify) and task.inputs.kind != "text":
        reference = Reference.load(folder)
        if reference is None or not is_file(Path(text)):
            return []
        batch = task.batch([task.inputs.example_of(text)])
        arguments = {name: value for name, value in batch.items() if name != "labels"}
        distance = max(reference.distances(model, arguments).values())
        return [f"{text}: unlike the training data ({distance:.1f} × the threshold)."] if distance > 1 else []
    languages = read_languages(folder)
    script = unread_script(text, languages)
    if script is None:
        return []
    names = " and ".join(language_name(language)["en"] for language in languages)
    return [f"{text:.40}: mostly {script_name(script)['en']}; this model reads {names}."]


def read_languages(folder: Path) -> tuple[str, ...]:
    """The languages that a run reads, by its card.json; empty where it has none."""
    path = folder / "card.json"
    languages = json.loads(path.read_text("utf8")).get("languages", ()) if path.is_file() else ()
    return tuple(languages)
