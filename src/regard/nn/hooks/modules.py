"""The attentions of a model, by name: its own, and those of modules that others wrote and that come to Regard."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from ...errors import BadInput, Unsupported
from ..attention import Attend

EXTERNAL_ATTENDS: WeakKeyDictionary[nn.Module, Attend] = WeakKeyDictionary()
EXTERNAL_MODULES: list[Callable[[nn.Module], bool]] = []
"""Each says whether a module that others wrote will ask `external_attend` for its attention."""


def external_attend(module: nn.Module) -> Attend:
    """The `Attend` of a module that others wrote: the same at every call, beside the module and not inside it."""
    if module not in EXTERNAL_ATTENDS:
        EXTERNAL_ATTENDS[module] = Attend()
    return EXTERNAL_ATTENDS[module]


def find_attentions(model: nn.Module) -> dict[str, Attend]:
    """Every attention of a model under the name of the module that owns it, in the model's order.

    A module that owns several gives its name to the one it calls `attend`; the others have their own.

    >>> from regard.nn import Stack, StackConfig
    >>> list(find_attentions(Stack(StackConfig(dim=8, layers=2, heads=2))))
    ['blocks.0.attention', 'blocks.1.attention']
    """
    need_eager(model)
    found: dict[str, Attend] = {}
    for name, module in model.named_modules():
        if isinstance(module, Attend):
            found[name.removesuffix(".attend") or "attend"] = module
        elif any(borrows(module) for borrows in EXTERNAL_MODULES):
            found[name or "attend"] = external_attend(module)
    if not found:
        raise BadInput(
            f"{type(model).__name__} has no attention that goes through Regard. Build it of regard.nn; load a Hugging "
            "Face model with attn_implementation='regard' after `import regard.integrations.transformers`."
        )
    return found


def find_owner(model: nn.Module, name: str) -> nn.Module:
    """The module that owns the attention of that name."""
    if name == "attend":
        return model
    module = model.get_submodule(name)
    return model.get_submodule(name.rpartition(".")[0]) if isinstance(module, Attend) else module


def call_arguments(q: Tensor, k: Tensor, v: Tensor, **parts: Any) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
    """What an `Attend` was called with, however it was passed."""
    return q, k, v, parts


def nearest_name(name: str, names: Iterable[str]) -> str:
    """The name that is most like this one, or the first."""
    names = list(names)
    return (difflib.get_close_matches(name, names, n=1, cutoff=0.0) or names)[0]


def need_eager(model: nn.Module) -> None:
    """Raise when a compiled graph would run instead of the modules that hooks are put on."""
    for name, module in model.named_modules():
        if hasattr(module, "_orig_mod"):
            place = f"model.{name}" if name else "model"
            way = f"Use the module it was made of, which has the same weights: {place}._orig_mod."
        elif getattr(module, "_compiled_call_impl", None) is not None:
            way = "Make it without .compile(), or call .compile() afterwards."
        else:
            continue
        raise Unsupported(
            f"{name or type(model).__name__} is compiled: its graph was made without what would look or change "
            f"something, and one made anew would compute other bits. {way}"
        )
