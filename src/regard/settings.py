"""How a model is trained: one dataclass, from which flags, files and forms are made."""

from __future__ import annotations

import difflib
import math
import types
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from .errors import BadInput


@dataclass(frozen=True)
class Training:
    """How a model is trained. Whichever of `epochs`, `steps` and `minutes` ends first ends the run.

    A step is one update: `accumulate` batches of about `batch_tokens` real tokens (or `batch_size` examples) each,
    shared by the processes. Unless given, a batch is about a 25th of the examples, so that a small file is learned from
    in more than a few steps, but at most 4,096 tokens and hardly less than 512, or than eight examples. The rate rises
    over `warmup` steps (but a fifth of the run at most, so that a small file is not all warm-up) to `rate` and falls by
    `schedule` to `floor`·rate. `weight_decay` shrinks the weights themselves, or (`decay` "gradient") is the L2 term in
    the gradient. `average` keeps the mean of the last so many evaluated weights, `ema` a running one; the best of them
    on dev is what is kept. More than `patience` evaluations in a row without a better score end the run.
    `evaluate_every` and `save_every` count steps; None is once an epoch. On one GPU `record` keeps an update as a CUDA
    graph, which is started as one; elsewhere it does nothing. `tensorboard` writes what the log says for TensorBoard
    too, into the run's folder of that name.
    """

    epochs: int | None = 20
    steps: int | None = None
    minutes: float | None = None
    batch_tokens: int | None = None
    batch_size: int | None = None
    accumulate: int = 1
    rate: float = 1e-3
    warmup: int = 200
    schedule: Literal["inverse", "cosine", "linear", "constant"] = "inverse"
    floor: float = 0.0
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.01
    decay: Literal["weights", "gradient"] = "weights"
    clip: float = 1.0
    label_smoothing: float = 0.0
    ema: float = 0.0
    average: int = 0
    patience: int | None = None
    evaluate_every: int | None = None
    save_every: int | None = None
    precision: Literal["no", "bf16", "fp16"] = "no"
    compile: bool = False
    record: bool = False
    tensorboard: bool = False
    device: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.epochs is None and self.steps is None and self.minutes is None:
            raise BadInput("Nothing says when to stop. Give epochs, steps or minutes.")
        if self.device not in ("auto", "cpu", "cuda"):
            raise BadInput(f"device is {self.device!r}; it must be cpu, cuda or auto.")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise BadInput(f"betas are {self.betas!r}; they must be two numbers, each at least 0 and less than 1.")
        for name in ("warmup", "clip", "weight_decay", "average", "patience"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise BadInput(f"{name} is {value!r}; it must be at least 0.")
        counts = ("epochs", "steps", "batch_tokens", "batch_size", "accumulate", "evaluate_every", "save_every")
        for name in (*counts, "minutes", "rate"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise BadInput(f"{name} is {value!r}; it must be greater than 0.")
        for name in ("ema", "label_smoothing", "floor"):
            if not 0 <= getattr(self, name) < 1:
                raise BadInput(f"{name} is {getattr(self, name)!r}; it must be at least 0 and less than 1.")

    def tokens_of_a_batch(self, sizes: Sequence[int]) -> int | None:
        """How many tokens a batch of examples of these sizes may have; None where examples are counted.

        >>> Training().tokens_of_a_batch([20] * 100), Training().tokens_of_a_batch([20] * 20_000)
        (512, 4096)
        """
        if self.batch_size or self.batch_tokens or not sizes:
            return None if self.batch_size else self.batch_tokens
        return min(4096, max(512, 8 * sum(sizes) // len(sizes), sum(sizes) // 25))

    def rate_at(self, step: int, total: int, spent: float = 0.0) -> float:
        """The learning rate of update `step` (from 0) of `total`, when a share `spent` of the minutes is gone.

        A run that the clock ends has then come down to its lowest rate as one does that its steps end.
        """
        warmup = min(self.warmup, total // 5)
        if step < warmup:
            return self.rate * (step + 1) / warmup
        share = min(1.0, max(spent, (step - warmup) / max(1, total - warmup)))
        if self.schedule == "inverse":
            factor = math.sqrt(max(1, warmup) / (step + 1))
        elif self.schedule == "cosine":
            factor = 0.5 * (1 + math.cos(math.pi * share))
        else:
            factor = 1 - share if self.schedule == "linear" else 1.0
        return self.rate * max(self.floor, self.floor + (1 - self.floor) * factor)


KINDS = {int: "a whole number", float: "a number"}
"""What types are called in messages."""


def with_settings(settings: Any, changes: dict[str, Any]) -> Any:
    """The dataclass with some fields changed; text is read as the field's type, an unknown name names the nearest.

    >>> with_settings(Training(), {"rate": "5e-3", "patience": "10"}).patience
    10
    """
    hints = get_type_hints(type(settings))
    names = [field.name for field in fields(settings)]
    for name in changes:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(names)}."
            raise BadInput(f"There is no setting {name!r}. {hint}")
    read = {name: as_type(value, hints[name], name) for name, value in changes.items()}
    for name, value in read.items():
        need_range(name, value)
    return replace(settings, **read)


COUNTS = (
    *("patch", "size", "stack", "longest", "vocabulary", "context", "letters", "members", "shared", "new", "top_k"),
    *("bins", "beams", "out_heads", "queries", "order", "sample_rate"),
)
SIGNED = ("length_penalty", "seed", "draw")
SHARES = ("word_dropout",)
"""Settings of tasks, which `Architecture` and `Training` do not look after: counts, what may be below 0, shares."""


def need_range(name: str, value: Any) -> None:
    """Raise for a number that no setting of that name can be: each is at least 0, but those that may be less."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    least = 1 if name in COUNTS else 0
    if not math.isfinite(value) or (value < least and name not in SIGNED):
        raise BadInput(f"{name} is {value!r}; it must be a number of at least {least}.")
    if name in SHARES and value >= 1:
        raise BadInput(f"{name} is {value!r}; it is a share, at least 0 and less than 1.")


def as_type(value: Any, kind: Any, name: str) -> Any:
    """A value, perhaps text, as the type of its field."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if value is None or (isinstance(value, str) and value.lower() == "none"):
            return None
        return as_type(value, next(one for one in inside if one is not type(None)), name)
    if origin is Literal:
        if value not in inside:
            raise BadInput(f"{name} is {value!r}; it must be one of {', '.join(map(repr, inside))}.")
        return value
    if origin is tuple:
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, list | tuple):
            raise BadInput(f"{name} is {value!r}; it must be several values, with commas between.")
        return tuple(as_type(one, inside[0], name) for one in parts)
    if kind is bool:
        return as_bool(value, name)
    if kind is int and (isinstance(value, bool) or (isinstance(value, float) and not value.is_integer())):
        raise BadInput(f"{name} is {value!r}; it must be a whole number.")
    try:
        return kind(value)
    except (TypeError, ValueError):
        raise BadInput(f"{name} is {value!r}; it must be {KINDS.get(kind, kind.__name__)}.") from None


def as_bool(value: Any, name: str) -> bool:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if isinstance(value, bool):
        return value
    if str(value).lower() not in words:
        raise BadInput(f"{name} is {value!r}; it must be true or false.")
    return words[str(value).lower()]
