"""Settings: dataclasses whose fields carry a range, a help sentence and former names.

The command line, recipes, saved runs and the lab's forms are all made from these fields.
"""

from __future__ import annotations

import difflib
import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar, Union, get_args, get_origin, get_type_hints

from .errors import BadInput

T = TypeVar("T")
V = TypeVar("V")
S = TypeVar("S", bound="Settings")


@dataclass(frozen=True)
class SettingSpec:
    """The metadata of a field besides its type and default: help, range, former names, and whether it names a file."""

    help: str
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    former: tuple[str, ...] = ()
    file: bool = False
    former_default: object = None

    @property
    def range(self) -> str:
        """The range in words, empty where every value of the type is allowed."""
        words = {"at least": self.ge, "greater than": self.gt, "at most": self.le, "less than": self.lt}
        return " and ".join(f"{word} {bound:g}" for word, bound in words.items() if bound is not None)

    def allows(self, value: float) -> bool:
        return (
            math.isfinite(value)
            and (self.ge is None or value >= self.ge)
            and (self.gt is None or value > self.gt)
            and (self.le is None or value <= self.le)
            and (self.lt is None or value < self.lt)
        )


def setting(
    default: T,
    help: str,
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    former: str | Sequence[str] = (),
    file: bool = False,
    former_default: object = None,
) -> T:
    """A dataclass field with a default, a help sentence and the range `ge`, `gt`, `le`, `lt` of its value.

    `former` are names that the setting had before; they are still accepted. `file` says that the value is a path whose
    contents belong to the training data. `former_default` is what earlier versions took by default: their unfinished
    runs go on with it.
    """
    names = (former,) if isinstance(former, str) else tuple(former)
    return field(default=default, metadata={"spec": SettingSpec(help, ge, gt, le, lt, names, file, former_default)})


@dataclass(frozen=True)
class Settings:
    """Base class of dataclasses whose fields are declared with `setting`. A value out of range raises `BadInput`."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value, spec = getattr(self, item.name), spec_of(item)
            for number in value if isinstance(value, tuple) else (value,):
                if isinstance(number, int | float) and not isinstance(number, bool) and not spec.allows(number):
                    raise BadInput(f"{item.name} is {value!r}; it must be {spec.range or 'a finite number'}.")


Group: TypeAlias = Settings | type[Settings]
"""Settings, or the class of them."""


def spec_of(item: Field[object]) -> SettingSpec:
    """The declaration of a field."""
    return item.metadata.get("spec") or SettingSpec("")


def update_settings(settings: S, changes: Mapping[str, object]) -> S:
    """The dataclass with some fields changed. Text is read as the field's type; an unknown name raises `BadInput`.

    >>> update_settings(Training(), {"learning_rate": "5e-3", "patience": "10"}).patience
    10
    >>> update_settings(Training(), {"rate": 0.5}).learning_rate  # a former name
    0.5
    """
    hints = get_type_hints(type(settings))
    changes = use_current_names([settings], changes)
    return replace(settings, **{name: parse_value(value, hints[name], name) for name, value in changes.items()})


def update_each(groups: Sequence[Any], *sources: Mapping[str, object]) -> list[Any]:
    """Several dataclasses with changes, each of which goes to the dataclass that has a field of that name.

    Later sources (a recipe, a file, flags) override earlier ones.
    """
    changes: dict[str, object] = {}
    for source in sources:
        changes |= use_current_names(groups, source)
    names = [{item.name for item in fields(group)} for group in groups]
    return [
        update_settings(group, {name: value for name, value in changes.items() if name in own})
        for group, own in zip(groups, names, strict=True)
    ]


def use_current_names(groups: Sequence[Group], changes: Mapping[str, V]) -> dict[str, V]:
    """The changes with former names replaced by current ones. A name that no group has raises `BadInput`."""
    names = [item.name for group in groups for item in fields(group)]
    current = former_names(*groups) | {name: name for name in names}
    renamed: dict[str, V] = {}
    for name, value in changes.items():
        if name not in current:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(names)}."
            raise BadInput(f"There is no setting {name!r}. {hint}")
        if current[name] in renamed:
            raise BadInput(f"{current[name]} is given twice, also under its former name. Give it once.")
        renamed[current[name]] = value
    return renamed


def former_names(*groups: Group) -> dict[str, str]:
    """The current name by each former name."""
    return {old: item.name for group in groups for item in fields(group) for old in spec_of(item).former}


def load_settings(cls: type[S], saved: Mapping[str, object]) -> S:
    """The settings that a saved run has, under current or former names.

    A setting that no longer exists is ignored if it was None, and otherwise raises `BadInput`.
    """
    names = {item.name for item in fields(cls)} | set(former_names(cls))
    hints = get_type_hints(cls)
    current = use_current_names([cls], {k: v for k, v in saved.items() if k in names or v is not None})
    return cls(**{name: parse_value(value, hints[name], name) for name, value in current.items()})


def use_former_defaults(settings: S, saved: Mapping[str, object]) -> S:
    """The settings, where both are defaults, with the former default that a saved run has instead of today's."""
    current = former_names(type(settings))
    before = {current.get(name, name): value for name, value in saved.items()}
    changes = {
        item.name: before[item.name]
        for item in fields(settings)
        if (former := spec_of(item).former_default) is not None
        and before.get(item.name) == former
        and getattr(settings, item.name) == item.default
    }
    return replace(settings, **changes)


TYPE_NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
"""Names of types in messages and in lists of settings."""

BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def parse_value(value: Any, hint: Any, name: str) -> Any:
    """A value, perhaps text, as the type of its field; `BadInput` where it is none."""
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None or (isinstance(value, str) and value.lower() == "none"):
            return None
        return parse_value(value, next(option for option in inside if option is not type(None)), name)
    if origin is Literal:
        if value not in inside:
            raise BadInput(f"{name} is {value!r}; it must be one of {', '.join(map(repr, inside))}.")
        return value
    if origin is tuple:
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, list | tuple):
            raise BadInput(f"{name} is {value!r}; it must be several values, with commas between.")
        return tuple(parse_value(part, inside[0], name) for part in parts)
    if hint is bool:
        if str(value).lower() not in BOOLEANS:
            raise BadInput(f"{name} is {value!r}; it must be true or false.")
        return BOOLEANS[str(value).lower()]
    if hint is int and (isinstance(value, bool) or (isinstance(value, float) and not value.is_integer())):
        raise BadInput(f"{name} is {value!r}; it must be a whole number.")
    try:
        return hint(value)
    except (TypeError, ValueError):
        raise BadInput(f"{name} is {value!r}; it must be {TYPE_NAMES.get(hint, hint.__name__)}.") from None


class SettingDescription(TypedDict):
    """A setting as `regard settings` lists it."""

    name: str
    type: str
    default: Any
    range: str
    help: str
    former: list[str]


def describe_settings(settings: Settings) -> list[SettingDescription]:
    """Name, type, default, range, help and former names of each field, with the values of `settings` as defaults."""
    hints = get_type_hints(type(settings))
    return [
        {
            "name": item.name,
            "type": describe_type(hints[item.name]),
            "default": getattr(settings, item.name),
            "range": spec_of(item).range,
            "help": spec_of(item).help,
            "former": list(spec_of(item).former),
        }
        for item in fields(settings)
    ]


def describe_type(hint: Any) -> str:
    """A type in words.

    >>> describe_type(int | None), describe_type(Literal["mean", "first"])
    ('a whole number or none', 'mean, first')
    """
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return f"{describe_type(inside[0])} or none"
    if origin is Literal:
        return ", ".join(map(str, inside))
    if origin is tuple:
        return f"several, each {describe_type(inside[0])}"
    return TYPE_NAMES.get(hint, getattr(hint, "__name__", str(hint)))


@dataclass(frozen=True)
class Training(Settings):
    """How a model is trained. The run ends at the first of `epochs`, `steps` and `minutes`.

    A step is one update: `accumulate` batches of about `batch_tokens` real tokens (or `batch_size` examples) each,
    divided among the processes. By default a batch is a 25th of the examples, between 512 and 4,096 tokens and at least
    eight examples, so that a small file still gives many steps.
    """

    epochs: int | None = setting(20, "Passes over the training data.", gt=0)
    steps: int | None = setting(None, "Updates of the weights.", gt=0)
    minutes: float | None = setting(None, "Time in minutes.", gt=0)
    batch_tokens: int | None = setting(None, "Tokens of a batch, padding not counted.", gt=0)
    batch_size: int | None = setting(None, "Examples of a batch, instead of batch_tokens.", gt=0)
    accumulate: int = setting(1, "Batches whose gradients are accumulated for one update.", gt=0)
    learning_rate: float = setting(1e-3, "Highest learning rate, reached after warmup.", gt=0, former="rate")
    warmup: int = setting(200, "Steps of linear warmup, at most a fifth of the run.", ge=0)
    schedule: Literal["inverse", "cosine", "linear", "constant"] = setting(
        "inverse", "How the learning rate falls after warmup; inverse is the inverse square root of the step."
    )
    min_lr_ratio: float = setting(0.0, "Lowest learning rate, as a share of the highest.", ge=0, lt=1, former="floor")
    betas: tuple[float, float] = setting((0.9, 0.98), "Adam's decay rates of the two moments.", ge=0, lt=1)
    weight_decay: float = setting(0.01, "Weight decay of matrices; vectors are not decayed.", ge=0)
    decay: Literal["weights", "gradient"] = setting(
        "weights", "weights: decoupled weight decay (AdamW); gradient: an L2 term in the gradient."
    )
    max_grad_norm: float = setting(1.0, "Norm that gradients are clipped to; 0 is off.", ge=0, former="clip")
    label_smoothing: float = setting(0.0, "Probability mass that is spread over all classes.", ge=0, lt=1)
    ema: float = setting(0.0, "Decay of an exponential moving average of the weights; 0 is off.", ge=0, lt=1)
    average_checkpoints: int = setting(0, "Evaluations whose weights are averaged; 0 is off.", ge=0, former="average")
    patience: int | None = setting(None, "Evaluations without a better score after which the run ends.", ge=0)
    evaluate_every: int | None = setting(None, "Steps between evaluations; once an epoch by default.", gt=0)
    save_every: int | None = setting(None, "Steps between checkpoints; once an epoch by default.", gt=0)
    save_minutes: float | None = setting(10.0, "Longest time in minutes between checkpoints; none is off.", gt=0)
    precision: Literal["auto", "no", "bf16", "fp16"] = setting(
        "no", "Mixed precision; auto is bf16 where the device multiplies it faster than float32, and else no."
    )
    freeze: str = setting(
        "none",
        "Weights of the model that are not trained: none, embeddings, a number of layers from the first, or all.",
    )
    layer_decay: float = setting(
        1.0, "Factor of the learning rate from each layer to the one below it; the head has the full rate.", gt=0, le=1
    )
    head_learning_rate: float | None = setting(
        None, "Learning rate of a new head on a checkpoint; learning_rate by default.", gt=0
    )
    gradient_checkpointing: bool = setting(
        False, "Compute the layers again in the backward pass instead of keeping their activations."
    )
    sequence_parallel: int = setting(
        1,
        "Processes that share the tokens of each batch; it must divide the number of processes.",
        ge=1,
    )
    hang_minutes: float | None = setting(
        30.0, "Minutes that processes wait for one that hangs before the run ends and names it; none is off.", gt=0
    )
    compile: bool = setting(False, "Compile the model with torch.compile.")
    cuda_graph: bool = setting(
        False, "On one GPU, capture each update as a CUDA graph; no effect elsewhere.", former="record"
    )
    tensorboard: bool = setting(False, "Write the log for TensorBoard too, into the run's folder tensorboard.")
    device: Literal["auto", "cpu", "cuda"] = setting("auto", "Device to train on.")
    seed: int = setting(0, "Seed of all random numbers.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epochs is None and self.steps is None and self.minutes is None:
            raise BadInput("Nothing says when to stop. Give epochs, steps or minutes.")
        if len(self.betas) != 2:
            raise BadInput(f"betas are {self.betas!r}; they must be two numbers, each at least 0 and less than 1.")
        if self.freeze not in ("none", "embeddings", "all") and not self.freeze.isdecimal():
            raise BadInput(f"freeze is {self.freeze!r}; it must be none, embeddings, all, or a number of layers.")
        if self.device not in ("auto", "cpu", "cuda"):
            raise BadInput(f"device is {self.device!r}; it must be cpu, cuda or auto.")

    def tokens_per_batch(self, sizes: Sequence[int]) -> int | None:
        """The token budget of a batch for examples of these sizes; None if `batch_size` counts examples.

        >>> Training().tokens_per_batch([20] * 100), Training().tokens_per_batch([20] * 20_000)
        (512, 4096)
        """
        if self.batch_size or self.batch_tokens or not sizes:
            return None if self.batch_size else self.batch_tokens
        return min(4096, max(512, 8 * sum(sizes) // len(sizes), sum(sizes) // 25))

    def learning_rate_at(self, step: int, total: int, elapsed: float = 0.0) -> float:
        """The learning rate of update `step` (from 0) of `total`, when a share `elapsed` of the minutes has passed.

        A run that ends by its minutes thus reaches its lowest rate like a run that ends by its steps.
        """
        warmup = min(self.warmup, total // 5)
        if step < warmup:
            return self.learning_rate * (step + 1) / warmup
        progress = min(1.0, max(elapsed, (step - warmup) / max(1, total - warmup)))
        if self.schedule == "inverse":
            factor = math.sqrt(max(1, warmup) / (step + 1))
        elif self.schedule == "cosine":
            factor = 0.5 * (1 + math.cos(math.pi * progress))
        else:
            factor = 1 - progress if self.schedule == "linear" else 1.0
        return self.learning_rate * max(self.min_lr_ratio, self.min_lr_ratio + (1 - self.min_lr_ratio) * factor)
