"""Activations and norms by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..errors import BadInput

T = TypeVar("T")

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": functional.silu,
    "elu": functional.elu,
    "tanh": torch.tanh,
    "none": lambda x: x,
}
NORMS: dict[str, type[nn.LayerNorm] | type[nn.RMSNorm]] = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}


def choose(name: str, choices: Mapping[str, T], setting: str) -> T:
    """The choice of that name; `BadInput` names the nearest one.

    >>> choose("rms", NORMS, "norm").__name__
    'RMSNorm'
    """
    if name not in choices:
        near = difflib.get_close_matches(name, choices, n=1) or list(choices)
        raise BadInput(f"{setting} is {name!r}. Did you mean {near[0]!r}? Known: {', '.join(choices)}.")
    return choices[name]
