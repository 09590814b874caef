"""What was worked out once, kept for when it is wanted again, by mask (`Memory`).

A mask is known by its class and fields: numbers by value, tensors by identity and version, so that one that was written
to is another. A mask with a field that cannot be compared so is known by itself alone.
"""

from __future__ import annotations

import functools
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from .parts.mask import Mask
from .tensor_cache import tensor_cache as constant  # noqa: F401

PLAIN = (str, float, bool, type(None))


class Memory:
    """At most `limit` things, by mask and key; the ones not asked for the longest are forgotten first."""

    def __init__(self, limit: int):
        self.limit = limit
        self.kept: OrderedDict[Any, tuple[list[Any], Any]] = OrderedDict()

    def find(self, mask: Mask, key: Any, make: Callable[[], Any]) -> Any:
        """What `make` made for this mask and key, now or earlier."""
        name, marked = name_of(mask)
        marks, found = self.kept.get((name, key), (None, None))
        if marks is None or not all(holds(mark, x) for mark, x in zip(marks, marked, strict=True)):
            found = make()
            self.keep((name, key), marked, found)
        else:
            self.touch((name, key))
        return found

    def keep(self, name: Any, marked: list[Any], found: Any) -> None:
        self.kept[name] = [mark(x) for x in marked], found
        self.kept.move_to_end(name)
        for old in [k for k, (marks, _) in list(self.kept.items()) if any(ref() is None for ref, _ in marks)]:
            self.kept.pop(old, None)
        while len(self.kept) > self.limit:
            self.kept.popitem(last=False)

    def touch(self, name: Any) -> None:
        try:
            self.kept.move_to_end(name)
        except KeyError:  # another thread's call has just pushed it out
            return

    def forget(self) -> None:
        self.kept.clear()


def name_of(mask: Mask) -> tuple[Any, list[Any]]:
    """What tells a mask from others, and the objects that it stands for only as long as they are as they were."""
    tensors: list[Tensor] = []
    try:
        return named(mask, tensors), tensors
    except TypeError:
        return id(mask), [mask, *mask.tensors()]


def named(value: Any, tensors: list[Tensor]) -> Any:
    """A field as something to compare; its tensors are added to the list."""
    kind = type(value)
    if kind is int:
        return value
    if kind in PLAIN:
        return kind, value
    if isinstance(value, Mask):
        names = compared(kind)
        inside = sorted(vars(value)) if names is None else names
        return kind, *[named(getattr(value, name), tensors) for name in inside]
    if isinstance(value, Tensor):
        tensors.append(value)
        return kind, id(value)
    if kind is tuple:
        return kind, *[named(item, tensors) for item in value]
    raise TypeError(kind)


@functools.cache
def compared(kind: type) -> tuple[str, ...] | None:
    """The names of a dataclass's fields that tell its values apart; None for other classes."""
    return tuple(field.name for field in fields(kind) if field.compare) if is_dataclass(kind) else None


def mark(x: Mask | Tensor) -> tuple[Any, Any]:
    """What shows later that an object is the same: a tensor's version, or a copy where torch counts none."""
    if isinstance(x, Mask):
        return weakref.ref(x), None
    return weakref.ref(x), x.clone() if x.is_inference() else x._version


def holds(mark: tuple[Any, Any], x: Mask | Tensor) -> bool:
    """Whether the mark was made of this very object, with its contents as they are."""
    ref, version = mark
    if ref() is not x:
        return False
    if isinstance(version, Tensor):
        return torch.equal(version, x)  # type: ignore[arg-type]
    return version is None or version == x._version  # type: ignore[union-attr]
