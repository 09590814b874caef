"""Modules that call `regard.attend` themselves: found by their code, and followed while the model runs.

Such a call has no module that hooks could be put on. While a model is followed, every module that is running stands on
a stack, and a call of `attend` goes through an `Attend` that belongs to the module on top.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from types import CodeType, FunctionType
from typing import TypedDict, Unpack, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ...attention.attend import attend
from ...attention.interception import INTERCEPTORS, AttendArguments
from ...attention.parts.parts import Parts
from ...attention.sharding import SequenceLayout
from ..attention import Attend, ShardedOptions

PART_NAMES = {field.name for field in fields(Parts)}


@dataclass(eq=False)
class Frame:
    """A module that is running, under its name in the model, and how often it has called `attend`."""

    module: nn.Module
    name: str
    calls: int = 0


class OtherArguments(TypedDict, total=False):
    """The arguments of `attend` that are neither tensors nor parts."""

    generator: torch.Generator | None
    backend: str
    layout: SequenceLayout | None


FRAMES: ContextVar[tuple[Frame, ...]] = ContextVar("frames", default=())
"""The running modules of a followed model, in the current thread and task."""
OTHER_ARGUMENTS: ContextVar[OtherArguments | None] = ContextVar("other_arguments", default=None)
"""The arguments of an intercepted call that are no parts; None outside of one. Calls inside are not intercepted."""


class DirectAttend(Attend):
    """Stands for the calls of `attend` in the code of another module."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, **options: Unpack[ShardedOptions]) -> Tensor:
        arguments: AttendArguments = {"q": q, "k": k, "v": v, **options, **(OTHER_ARGUMENTS.get() or {})}
        return attend(**arguments)


DIRECT_ATTENDS: WeakKeyDictionary[nn.Module, list[DirectAttend]] = WeakKeyDictionary()


def direct_attend(module: nn.Module, index: int = 0) -> DirectAttend:
    """The `Attend` of a module's call number `index` in one forward pass: the same every time."""
    attends = DIRECT_ATTENDS.setdefault(module, [])
    attends += [DirectAttend() for _ in range(index + 1 - len(attends))]
    return attends[index]


def calls_attend(module: nn.Module) -> bool:
    """Whether the code of a module's class calls `regard.attend`, itself or in a function of its own file."""
    return class_calls_attend(type(module)) and not any(isinstance(child, Attend) for child in module.children())


@functools.cache
def class_calls_attend(cls: type[nn.Module]) -> bool:
    """Whether the code of a class calls `regard.attend`, itself or in a function of its own file."""
    if is_own(cls):
        return False
    methods = [value for base in cls.__mro__ if not is_own(base) for value in vars(base).values()]
    functions = [value for value in methods if isinstance(value, FunctionType)]
    called = [function.__globals__.get(name) for function in functions for name in names_in(function.__code__)]
    helpers = [value for value in called if isinstance(value, FunctionType) and not is_own(value)]
    return any(mentions_attend(function) for function in (*functions, *helpers))


def is_own(named: type | FunctionType) -> bool:
    """Whether a class or function is of torch or of this package."""
    return named is object or named.__module__.partition(".")[0] in ("torch", "regard")


def mentions_attend(function: FunctionType) -> bool:
    names, scope = names_in(function.__code__), function.__globals__
    if any(scope.get(name) is attend for name in names):
        return True
    modules = [scope[name] for name in names if name in scope]
    return "attend" in names and any(getattr(value, "attend", None) is attend for value in modules)


def names_in(code: CodeType) -> set[str]:
    """The global names and attributes in a function's code, those of functions inside it included."""
    inner = [names_in(value) for value in code.co_consts if isinstance(value, CodeType)]
    return set(code.co_names).union(*inner)


@contextmanager
def follow_calls(model: nn.Module, on_call: Callable[[str, DirectAttend], None]) -> Iterator[None]:
    """While open, calls of `attend` in the code of the model's modules go through their `DirectAttend`.

    `on_call` gets the name of the call before it runs: the module's name, with `[1]`, `[2]` … for further calls in the
    same forward pass.
    """
    handles = []

    def intercept_call(arguments: AttendArguments) -> Tensor | None:
        frames = FRAMES.get()
        if not frames or OTHER_ARGUMENTS.get() is not None or is_own(type(frames[-1].module)):
            return None
        frame = frames[-1]
        proxy, suffix = direct_attend(frame.module, frame.calls), f"[{frame.calls}]" if frame.calls else ""
        frame.calls += 1
        on_call(frame.name + suffix, proxy)
        q, k, v = arguments["q"], arguments["k"], arguments["v"]
        parts = {name: value for name, value in arguments.items() if name in PART_NAMES}
        others = {name: value for name, value in arguments.items() if name in OtherArguments.__annotations__}
        token = OTHER_ARGUMENTS.set(cast(OtherArguments, others))
        try:
            return proxy(q, k, v, **parts)
        finally:
            OTHER_ARGUMENTS.reset(token)

    if all(is_own(type(module)) for module in model.modules()):
        yield
        return
    try:
        for name, module in model.named_modules():
            if type(module).__module__.partition(".")[0] != "torch":  # whose modules never call `attend`
                handles += push_and_pop(module, name or "attend")
        INTERCEPTORS.append(intercept_call)
        yield
    finally:
        if intercept_call in INTERCEPTORS:
            INTERCEPTORS.remove(intercept_call)
        for handle in handles:
            handle.remove()


def push_and_pop(module: nn.Module, name: str) -> list[RemovableHandle]:
    """Hooks that put a module on the stack while it runs."""

    def push(module: nn.Module, args: object) -> None:
        FRAMES.set((*FRAMES.get(), Frame(module, name)))

    def pop(module: nn.Module, args: object, output: object) -> None:
        FRAMES.set(FRAMES.get()[:-1])

    return [
        module.register_forward_pre_hook(push),
        module.register_forward_hook(pop, always_call=True),
    ]


@contextmanager
def without_interception() -> Iterator[None]:
    """While open, calls of `attend` are answered by itself: those of hooks."""
    token = OTHER_ARGUMENTS.set({})
    try:
        yield
    finally:
        OTHER_ARGUMENTS.reset(token)
