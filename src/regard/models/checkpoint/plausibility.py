"""A configuration is compared with the weights that it comes with before a model of its sizes is built."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path

from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from ...errors import BadInput
from .files import JsonObject
from .weights import Weights

COUNTS = re.compile(r"(^|_)(layers?|blocks|heads|experts|members|towers|stages|depth)$|^(n_layer|n_head|size)$")
"""Names of settings that count modules or heads."""
FREE = re.compile(r"seed|theta|base|_id$|_ids$|version")
"""Names of settings that say nothing about sizes."""
SIZE_FLOOR, COUNT_FLOOR, TEXT_LENGTH = 2**24, 2048, 20_000
"""A size or a count up to these is never refused, so that windows and numbers of positions may exceed the weights."""


def check_sizes(config: JsonObject, weights: Weights, path: Path) -> None:
    """Raise `BadInput` for a number in a configuration that is larger than the weights of its folder allow."""
    shapes = [weights.shape(name) for name in weights.names()]
    largest = max((max(shape, default=1) for shape in shapes), default=1)
    elements = sum(math.prod(shape) for shape in shapes)
    sizes, counts = max(SIZE_FLOOR, elements), max(COUNT_FLOOR, len(shapes), largest)
    for name, value in settings_in(config, ""):
        key = name.rpartition(".")[2]
        if isinstance(value, str) and len(value) > TEXT_LENGTH:
            raise BadInput(f"{path}: {name} is a text of {len(value):,} characters. Get the file again.")
        if not isinstance(value, int | float) or FREE.search(key):
            continue
        limit = counts if COUNTS.search(key) else sizes
        if limit == counts and value < 0:
            raise BadInput(f"{path}: {name} is {value}; it must not be negative. Get the folder again.")
        if isinstance(value, int) and abs(value) > limit:
            raise BadInput(
                f"{path}: {name} is {value}, which does not fit the weights: they have {len(shapes):,} tensors with "
                f"{elements:,} numbers, the largest dimension is {largest:,}. Get the folder again."
            )


def settings_in(value: object, name: str) -> Iterator[tuple[str, object]]:
    """Every number and text in a configuration with its path; truth values are left out."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from settings_in(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from settings_in(inner, name)
    elif not isinstance(value, bool):
        yield name, value


def check_types(config: object, path: Path) -> None:
    """Raise `BadInput` for a setting of a configuration that is a number by its type and something else by its value.

    What reads a file passes values on as they stand there; a text for `eps` would be noticed when the model is called.
    """
    if isinstance(config, list | tuple):
        for item in config:
            check_types(item, path)
    if not is_dataclass(config) or isinstance(config, type):
        return
    for field in fields(config):
        value, wanted = getattr(config, field.name), set(str(field.type).replace(" ", "").split("|"))
        if not wanted <= {"int", "float", "None"}:
            check_types(value, path)
            continue
        whole = isinstance(value, int) and not isinstance(value, bool)
        number = whole or ("float" in wanted and isinstance(value, float) and math.isfinite(value))
        if not number and (value is not None or "None" not in wanted):
            kind = "a number" if "float" in wanted else "a whole number"
            raise BadInput(f"{path}: {field.name} is {value!r:.60}; it must be {kind}. Get the file again.")


@contextmanager
def limit_parameters(weights: Weights, path: Path) -> Iterator[None]:
    """While open, this thread cannot build modules with many more parameters than a file has tensors.

    A tensor of a file becomes at most a few parameters (fused projections are split), and shared ones count twice.
    """
    thread, count, limit = threading.get_ident(), 0, 1000 + 8 * len(weights.names())

    def check(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal count
        if threading.get_ident() != thread or parameter is None:
            return
        count += 1
        if count > limit:
            raise BadInput(
                f"{path} describes a model with more than {limit:,} parameter tensors; its weights are "
                f"{len(weights.names()):,} tensors. Get the folder again."
            )

    handle = register_module_parameter_registration_hook(check)
    try:
        yield
    finally:
        handle.remove()
