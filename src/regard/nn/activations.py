"""Activations and norms by name."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Mapping
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..errors import BadInput

T = TypeVar("T")


def gelu_tanh(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


def quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def identity(x: Tensor) -> Tensor:
    return x


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": gelu_tanh,
    "quick_gelu": quick_gelu,
    "silu": functional.silu,
    "elu": functional.elu,
    "tanh": torch.tanh,
    "none": identity,
}


class ZeroRMSNorm(nn.RMSNorm):
    """x / rms(x) · (1 + weight): the weight is stored as its distance from one, as Gemma does."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self.normalized_shape, None, self.eps) * (1 + self.weight)

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)


NORMS: dict[str, Callable[..., nn.Module]] = {
    "layer": nn.LayerNorm,
    "layer_no_bias": functools.partial(nn.LayerNorm, bias=False),
    "rms": nn.RMSNorm,
    "rms_zero": ZeroRMSNorm,
}
NormName = Literal["layer", "layer_no_bias", "rms", "rms_zero"]


def choose(name: str, choices: Mapping[str, T], setting: str) -> T:
    """The choice of that name; `BadInput` names the nearest one.

    >>> choose("rms", NORMS, "norm").__name__
    'RMSNorm'
    """
    if name not in choices:
        near = difflib.get_close_matches(name, choices, n=1) or list(choices)
        raise BadInput(f"{setting} is {name!r}. Did you mean {near[0]!r}? Known: {', '.join(choices)}.")
    return choices[name]
