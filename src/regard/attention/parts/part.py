"""The base class of all parts: a frozen dataclass that compares, prints and describes itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import BadInput


class Part:
    """A frozen value: the score, position, mask or method of an attention."""

    formula = ""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        # @dataclass(frozen=True, eq=False) leaves these alone; tensors need their own notion of equality.
        cls.__eq__ = Part.__eq__
        cls.__hash__ = Part.__hash__

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Part) or type(self) is not type(other):
            return False
        return all(equal_values(a, b) for a, b in zip(self.field_values(), other.field_values(), strict=True))

    def __hash__(self) -> int:
        return hash((type(self), *(hash_key(value) for value in self.field_values())))

    def field_values(self) -> tuple[object, ...]:
        """The part's fields, in order (for a plain subclass: its attributes)."""
        if dataclasses.is_dataclass(self):
            return tuple(getattr(self, field.name) for field in dataclasses.fields(self) if field.compare)
        return tuple(value for _, value in sorted(vars(self).items()))

    def __repr__(self) -> str:
        if not dataclasses.is_dataclass(self):
            return f"{type(self).__name__}()"
        shown = [
            f"{field.name}={format_value(getattr(self, field.name))}"
            for field in dataclasses.fields(self)
            if field.repr and not equal_values(getattr(self, field.name), field.default)
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


class PartSpec(Part):
    """A learned part before its tensors exist: its line in a configuration, such as `LearnedT5Bias(buckets=32)`.

    A subclass is also a `Score`, a `Position` or a `Method`, so it is a member of `Parts` like any other. A layer,
    which knows its sizes, calls `build`; `attend` refuses it.
    """

    def build(self, heads: int, head_dim: int, layer: int = 0) -> nn.Module:
        """The module that makes the part, for a layer with these sizes and this number in its stack."""
        raise NotImplementedError(f"{type(self).__name__} has no build(heads, head_dim, layer).")

    def check(self, q: Tensor, k: Tensor) -> None:
        raise BadInput(
            f"{self!r} has no tensors yet: it specifies a part that a layer learns. Pass it to "
            "regard.nn.MultiHeadAttention or StackConfig, or pass attend a part with its tensors."
        )


def equal_values(a: object, b: object) -> bool:
    """Whether two fields are equal; tensors by shape, type, device and content."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a is b or (a.dtype == b.dtype and a.device == b.device and torch.equal(a, b))
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return False
    equal: Any = type(a) is type(b) and a == b  # an array of another library compares element by element
    return bool(equal.all()) if hasattr(equal, "all") else bool(equal)


def hash_key(value: object) -> Hashable:
    """What a field adds to the hash: a tensor its shape, a plain value itself."""
    if isinstance(value, Tensor):
        return tuple(value.shape)
    return value if isinstance(value, int | float | str | Part) else None


def format_value(value: object) -> str:
    """A field as text; a small tensor by its numbers, a large one by its type and shape."""
    if not isinstance(value, Tensor):
        return repr(value)
    if value.dim() <= 1 and value.numel() <= 8 and value.device.type != "meta":
        return f"tensor({value.tolist()})"
    dtype = str(value.dtype).removeprefix("torch.")
    return f"<{dtype} {list(value.shape)}>"


def check_tensor(value: object, name: str, dims: tuple[int, ...], shape: str, floating: bool = True) -> None:
    """Raise `BadInput` unless `value` is a tensor with one of `dims` dimensions (floating point where `floating`)."""
    if not isinstance(value, Tensor):
        raise BadInput(f"{name} is a {type(value).__name__}; it must be a tensor {shape}. Pass torch.as_tensor(...).")
    if value.dim() not in dims:
        raise BadInput(f"{name} has shape {list(value.shape)}; it must be {shape}. Reshape it.")
    if floating and not value.dtype.is_floating_point:
        raise BadInput(f"{name} is {value.dtype}; it must be floating point. Call .float() on it.")


def check_count(value: object, name: str, least: int = 0) -> None:
    """Raise `BadInput` unless `value` is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | torch.SymInt) or value < least:
        raise BadInput(f"{name} is {value!r}; it must be a whole number of at least {least}.")
