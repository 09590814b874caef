"""Masks as text, so that they can pass through an operator of torch.library and a compiled graph.

In eager mode the text is the id of the object. In a compiled graph, which outlives its objects, the fields of the
mask are written out: strings and other masks as text, tensors and whole numbers (which may differ from
call to call) numbered and passed beside it.
"""

from __future__ import annotations

import dataclasses
import json
import weakref
from typing import Any

import torch
from torch import Tensor

from ...errors import BadInput
from ..parts.mask import MASK_CLASSES, Mask

_objects: weakref.WeakValueDictionary[int, Mask] = weakref.WeakValueDictionary()


def encode(mask: Mask) -> tuple[str, list[Tensor], list[int]]:
    """Text, tensors and whole numbers from which `decode` restores the mask; in eager mode the mask must stay alive."""
    if torch.compiler.is_compiling():
        tensors: list[Tensor] = []
        whole: list[int] = []
        return encode_field(mask, tensors, whole), tensors, whole
    _objects[id(mask)] = mask
    return str(id(mask)), [], []


def decode(text: str, tensors: list[Tensor], whole: list[int]) -> Mask:
    """The mask that `encode` was given."""
    return _objects[int(text)] if text.isdecimal() else decode_field(json.loads(text), tensors, whole)


def live_object(text: str) -> Mask | None:
    """The object that must stay alive for the text to be decoded later."""
    return _objects[int(text)] if text.isdecimal() else None


def encode_field(value: object, tensors: list[Tensor], whole: list[int]) -> str:
    """A field as JSON; tensors and whole numbers are added to the lists."""
    if isinstance(value, Mask):
        names = [f.name for f in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else list(value.__dict__)
        inside = [f'"{name}": {encode_field(getattr(value, name), tensors, whole)}' for name in names]
        return f'{{"class": "{value.class_id}", "fields": {{{", ".join(inside)}}}}}'
    if isinstance(value, Tensor):
        tensors.append(value)
        return f'{{"tensor": {len(tensors) - 1}}}'
    if isinstance(value, tuple):
        return f"[{', '.join([encode_field(item, tensors, whole) for item in value])}]"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | torch.SymInt):
        whole.append(value)  # type: ignore[arg-type]
        return f'{{"whole": {len(whole) - 1}}}'
    if isinstance(value, float):
        return str(value)
    if isinstance(value, str):
        return json.dumps(value)
    raise BadInput(
        f"A mask in a compiled function holds a {type(value).__name__}; its fields must be numbers, strings, tensors, "
        "tuples or masks there. Keep other things out of its fields, or call attend outside torch.compile."
    )


def decode_field(node: Any, tensors: list[Tensor], whole: list[int]) -> Any:
    """The field that `encode_field` wrote."""
    if isinstance(node, list):
        return tuple(decode_field(item, tensors, whole) for item in node)
    if not isinstance(node, dict):
        return node
    if "tensor" in node:
        return tensors[node["tensor"]]
    if "whole" in node:
        return whole[node["whole"]]
    mask = object.__new__(MASK_CLASSES[node["class"]])
    for name, value in node["fields"].items():
        object.__setattr__(mask, name, decode_field(value, tensors, whole))
    return mask
