"""Execution plans: what was worked out for a mask and for a kind of call, cached in one place.

    mask → MaskCache        get(key, make): what depends on the mask alone, such as tile lists and schedules
             kind of call → ExecutionPlan
                            get(key, make): what a backend works out for such calls, such as tile shapes and launches
    shapes → backend, function of a mask
                            for masks that differ in the contents of their tensors alone

A mask is identified by its class and fields: numbers by value, tensors by identity and version, so a tensor that was
written to makes another mask. A mask with a field that cannot be compared this way is identified by the object itself.
An entry holds weak references to a mask's tensors and is dropped when one of them is gone.

Everything else that is cached depends on neither a mask nor a call, and would be made again for each if it were
part of a plan. `tensor_cache` holds tensors that are made of plain numbers alone (Rotary's angles, Alibi's biases,
Performer's directions): every mask and every layer share them, and parts make them without a plan at hand.
`kernels.launch.COMPILED` is the set of configurations whose kernels were compiled together: Triton holds the compiled
kernels for the whole process, so a second mask must not compile them again. `backends.mask_codec` numbers the masks
that pass through an operator of torch: a weak registry, from which nothing is computed. `compared_fields`,
`launch.multiprocessors` and `edges.silence_sparse_warning` are facts about a class, a device and the process.
"""

from __future__ import annotations

import functools
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from .parts.mask import Mask
from .parts.part import Part

if TYPE_CHECKING:
    from .backends.backend import Backend

T = TypeVar("T")
P = ParamSpec("P")
AttentionFunction = Callable[..., Tensor]
"""From q, k and v, and from a table by distance where that is learned, to the output."""
FunctionOfMask = Callable[[Mask], AttentionFunction]
"""Makes the function of a plan for a mask with other contents."""
Reference = tuple["weakref.ref[Mask | Tensor]", Tensor | int | None]
"""A weak reference, and the version of a tensor, or a copy of it where torch counts none."""

MASKS = 128  # masks in the cache
KINDS = 128  # kinds of call for each mask
VALUES = 64  # values of each mask, and of each plan
TENSORS = 32  # results of each function with a `tensor_cache`
PLAIN = (str, float, bool, type(None))
MISSING = object()


class Storage:
    """At most `limit` values by key; the least recently used is dropped first."""

    def __init__(self, limit: int = VALUES) -> None:
        self.limit = limit
        self.values: OrderedDict[Hashable, Any] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of `key`; `make()` makes it the first time."""
        value = self.find(key, MISSING)
        if value is MISSING:
            value = make()
            self.put(key, value)
        return value

    def find(self, key: Hashable, default: object = None) -> Any:
        """The value of `key`, which becomes the most recently used; the default where there is none."""
        value = self.values.get(key, default)
        if value is not default:
            try:
                self.values.move_to_end(key)
            except KeyError:  # another thread has just dropped it
                return value
        return value

    def put(self, key: Hashable, value: object) -> None:
        self.values[key] = value
        self.values.move_to_end(key)
        while len(self.values) > self.limit:
            self.values.popitem(last=False)


class ExecutionPlan(Storage):
    """How calls of one kind and mask are run.

    `backend` runs them; `unmasked` says that their mask allows every pair, so `Everything()` replaces it; `empty` that
    they have no pairs. `function` computes (q, k, v) → output where nothing else is needed; None otherwise. `of_mask`
    makes it for a mask with other contents, where nothing else of the plan depends on them. `get(key, make)` caches
    what the backend works out. A plan must not refer to the mask, whose tensors it may outlive.
    """

    def __init__(
        self,
        backend: Backend | None = None,
        unmasked: bool = False,
        empty: bool = False,
        function: AttentionFunction | None = None,
        of_mask: FunctionOfMask | None = None,
        learns: bool = False,
    ) -> None:
        super().__init__()
        self.learns = learns  # whether `function` takes the position's tensors
        self.function = function
        self.of_mask = of_mask
        self.backend = backend
        self.unmasked = unmasked
        self.empty = empty


def new_plan() -> ExecutionPlan:
    """An empty plan. torch.compile traces this function, and not a class, as a field's default factory."""
    return ExecutionPlan()


class MaskCache(Storage):
    """What was worked out for one mask: `get(key, make)` for the mask alone, `plans` for the kinds of call.

    `warm` has the plans with a function by a shorter key, for calls that have no part but score, position and mask.
    """

    def __init__(self, references: list[Reference]) -> None:
        super().__init__()
        self.references = references
        self.plans = Storage(KINDS)
        self.warm = Storage(KINDS)

    def describes(self, objects: list[Mask | Tensor]) -> bool:
        """Whether the mask's tensors are the ones that the entry was made for, unchanged."""
        return all(same_contents(*pair) for pair in zip(self.references, objects, strict=True))

    @property
    def is_current(self) -> bool:
        """Whether the tensors that the entry was made for exist, with the same contents."""
        for reference, version in self.references:
            x = reference()
            if x is None or not (isinstance(x, Mask) or has_version(x, version)):
                return False
        return True

    @property
    def alive(self) -> bool:
        """Whether the mask's tensors still exist."""
        return all(reference() is not None for reference, _ in self.references)


class FrozenParts(NamedTuple):
    """A mask and other parts whose fields stay, the key of their entry, and the entry if they have no tensors."""

    mask: weakref.ref[Mask]
    parts: list[weakref.ref[Part]]
    key: Hashable
    constant: MaskCache | None


class PlanCache:
    """The entries of at most `limit` masks; the least recently used is dropped first.

    For calls whose masks differ in the contents of their tensors alone, `choices` has their backends and `functions`
    what makes the function of their plans.
    """

    def __init__(self, limit: int = MASKS) -> None:
        self.masks = Storage(limit)
        self.frozen: dict[Hashable, FrozenParts] = {}  # of masks and parts whose fields stay, by ids
        self.choices = Storage(KINDS)
        self.functions = Storage(KINDS)

    def mask(self, mask: Mask, *parts: Part) -> MaskCache:
        """The entry of a mask, or of a mask and the contents of other parts, made where there is none."""
        number = id(mask) if not parts else (id(mask), *[id(part) for part in parts])
        known = self.frozen.get(number)
        if known is not None and known.mask() is mask and same_objects(known.parts, parts):
            kept = known.constant or self.masks.find(known.key)
            if kept is not None and kept.is_current:
                return kept
        objects: list[Mask | Tensor] = []  # which must be alive and unchanged for the key to hold
        try:
            key = field_key(mask, objects)
        except TypeError:
            key, objects = id(mask), [mask, *mask.tensors()]
        for part in parts:
            key = key, field_key(part, objects)
        entry: MaskCache | None = self.masks.find(key)
        if entry is None or (objects and not entry.describes(objects)):
            drop = functools.partial(self.drop, key) if objects else None
            entry = MaskCache([reference(x, drop) for x in objects])
            self.masks.put(key, entry)
        if is_frozen(mask) and all(is_frozen(part) for part in parts):
            forget = functools.partial(self.forget, number)
            references = [weakref.ref(part, forget) for part in parts]
            self.frozen[number] = FrozenParts(weakref.ref(mask, forget), references, key, None if objects else entry)
        return entry

    def forget(self, number: Hashable, _: object) -> None:
        """Drop what is known by the id of an object that is gone."""
        self.frozen.pop(number, None)

    def drop(self, key: Hashable, _: object) -> None:
        """Drop the entry of a mask one of whose tensors is gone."""
        entry = self.masks.values.get(key)
        if entry is not None and not entry.alive:
            self.masks.values.pop(key, None)

    def clear(self) -> None:
        for storage in (self.masks, self.choices, self.functions):
            storage.values.clear()
        self.frozen.clear()


CACHE = PlanCache()
mask_cache = CACHE.mask
"""The cache entry of a mask, made where there is none."""


def field_key(value: object, tensors: list[Mask | Tensor]) -> Hashable:
    """A field as a key; its tensors are appended to the list."""
    cls = type(value)
    if cls is int:
        return value
    if cls in PLAIN:
        return cls, value
    if isinstance(value, Part):
        names = compared_fields(cls)
        if not names:
            return cls if names is not None else (cls, *[field_key(x, tensors) for _, x in sorted(vars(value).items())])
        return cls, *[field_key(getattr(value, name), tensors) for name in names]
    if isinstance(value, Tensor):
        tensors.append(value)
        return cls, id(value)
    if isinstance(value, tuple) and cls is tuple:
        return cls, *[field_key(item, tensors) for item in value]
    raise TypeError(cls)


def is_frozen(value: object) -> bool:
    """Whether a field is always the same object: a number or a tensor, and frozen parts of such fields."""
    if isinstance(value, Part):
        frozen = is_dataclass(value) and type(value).__dataclass_params__.frozen  # pyright: ignore
        return frozen and all(is_frozen(x) for x in vars(value).values())
    return type(value) is int or type(value) in PLAIN or isinstance(value, Tensor)


@functools.cache
def compared_fields(cls: type) -> tuple[str, ...] | None:
    """The names of the fields that a dataclass compares; None for other classes."""
    return tuple(field.name for field in fields(cls) if field.compare) if is_dataclass(cls) else None


def reference(x: Mask | Tensor, drop: Callable[[object], None] | None = None) -> Reference:
    """A reference to x; `drop` is called when x is gone."""
    if isinstance(x, Mask):
        return weakref.ref(x, drop), None
    return weakref.ref(x, drop), x.clone() if x.is_inference() else x._version


def same_objects(references: list[weakref.ref[Part]], parts: tuple[Part, ...]) -> bool:
    """Whether parts are the objects that the references were made of."""
    return not parts or all([ref() is part for ref, part in zip(references, parts, strict=True)])


def same_contents(reference: Reference, x: Mask | Tensor) -> bool:
    """Whether x is the object that the reference was made of, with the same contents."""
    ref, version = reference
    if ref() is not x:
        return False
    return isinstance(x, Mask) or has_version(x, version)


def has_version(x: Tensor, version: Tensor | int | None) -> bool:
    """Whether a tensor has the contents that it had at a version; a copy of them stands for the version torch lacks."""
    return torch.equal(version, x) if isinstance(version, Tensor) else version == x._version


def tensor_cache(make: Callable[P, T]) -> Callable[P, T]:
    """Decorate `make`, a function from plain numbers to tensors, with a cache of its last results.

    Nothing is cached or reused where tensors are fake (in a compiled graph, under a dispatch mode of torch), nor cached
    during the capture of a CUDA graph, which owns its memory.
    """
    cache = Storage(TENSORS)

    @functools.wraps(make)
    def lookup(*args: P.args, **kwargs: P.kwargs) -> T:
        if torch.compiler.is_compiling() or _get_current_dispatch_mode() is not None:
            return make(*args, **kwargs)
        key = (*args, *kwargs.items())
        value = cache.find(key)
        if value is None:
            with torch.inference_mode(False):
                value = make(*args, **kwargs)
            if not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
                cache.put(key, value)
        return value

    return lookup
