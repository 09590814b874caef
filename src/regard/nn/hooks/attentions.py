"""The attention modules of a model by name: Regard's own, and those of other libraries that call Regard."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Unpack
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from ...attention.parts.parts import PartOptions, Parts
from ...attention.sharding import SequenceLayout
from ...errors import BadInput, Unsupported
from ..attention import Attend, ShardedOptions
from .direct import calls_attend, direct_attend, without_interception

EXTERNAL_ATTENDS: WeakKeyDictionary[nn.Module, Attend] = WeakKeyDictionary()
EXTERNAL_MODULES: list[Callable[[nn.Module], bool]] = []
"""Predicates: whether a module of another library calls `external_attend`."""


class ExternalAttend(Attend):
    """Stands for the attention of a module of another library, which calls it and not `attend`."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, **options: Unpack[ShardedOptions]) -> Tensor:
        with without_interception():
            return super().forward(q, k, v, **options)


def external_attend(module: nn.Module) -> Attend:
    """The `Attend` of a module of another library: the same at every call, and not a child of the module."""
    if module not in EXTERNAL_ATTENDS:
        EXTERNAL_ATTENDS[module] = ExternalAttend()
    return EXTERNAL_ATTENDS[module]


def find_attentions(model: nn.Module) -> dict[str, Attend]:
    """Every attention of a model under the name of its module, in the model's order.

    Of several in one module the one called `attend` has the module's name; the others have their own. A module whose
    code calls `regard.attend` counts as one.

    >>> from regard.nn import Stack, StackConfig
    >>> list(find_attentions(Stack(StackConfig(dim=8, layers=2, heads=2))))
    ['blocks.0.attention', 'blocks.1.attention']
    """
    check_eager(model)
    attends: dict[str, Attend] = {}
    for name, module in model.named_modules():
        if isinstance(module, Attend):
            attends[name.removesuffix(".attend") or "attend"] = module
        elif any(calls_regard(module) for calls_regard in EXTERNAL_MODULES):
            attends[name or "attend"] = external_attend(module)
        elif calls_attend(module):
            attends[name or "attend"] = direct_attend(module)
    if not attends:
        raise BadInput(
            f"{type(model).__name__} has no attention that goes through Regard. Build it of regard.nn (Attend is "
            "regard.attend as a module) or call regard.attend in its code; load a Hugging Face model with "
            "attn_implementation='regard' after `import regard.integrations.transformers`."
        )
    return attends


def find_owner(model: nn.Module, name: str) -> nn.Module:
    """The module of the attention of that name."""
    if name == "attend":
        return model
    module = model.get_submodule(name)
    return model.get_submodule(name.rpartition(".")[0]) if isinstance(module, Attend) else module


@dataclass(frozen=True)
class AttendCall:
    """The arguments of a call of `Attend`."""

    q: Tensor
    k: Tensor
    v: Tensor
    parts: Parts
    layout: SequenceLayout | None = None

    @property
    def sizes(self) -> list[int]:
        """`[batch, queries, keys]`."""
        return [self.q.shape[0], self.q.shape[2], self.k.shape[2]]


def read_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> AttendCall:
    """The call that a hook on `Attend` received."""

    def make(
        q: Tensor, k: Tensor, v: Tensor, layout: SequenceLayout | None = None, **parts: Unpack[PartOptions]
    ) -> AttendCall:  # by position or name
        return AttendCall(q, k, v, Parts(**parts), layout)

    return make(*args, **kwargs)


def nearest_name(name: str, names: Iterable[str]) -> str:
    """The most similar of the names, or the first."""
    names = list(names)
    return (difflib.get_close_matches(name, names, n=1, cutoff=0.0) or names)[0]


def check_eager(model: nn.Module) -> None:
    """Raise when a compiled graph would run instead of the modules that hooks are put on."""
    for name, module in model.named_modules():
        if hasattr(module, "_orig_mod"):
            path = f"model.{name}" if name else "model"
            hint = f"Use the module it was compiled from, which has the same weights: {path}._orig_mod."
        elif getattr(module, "_compiled_call_impl", None) is not None:
            hint = "Make it without .compile(), or call .compile() afterwards."
        else:
            continue
        raise Unsupported(
            f"{name or type(model).__name__} is compiled: its graph runs no hooks, and a graph with hooks "
            f"would compute other bits. {hint}"
        )
