"""Key tables: the names of tensors in Hugging Face checkpoints and here. One table serves reading and writing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ...errors import BadInput
from ..interfaces import ModelConfig
from .files import JsonObject
from .weights import Weights

RENAMED = (
    (r"LayerNorm\.gamma$", "LayerNorm.weight"),
    (r"LayerNorm\.beta$", "LayerNorm.bias"),
    (r"\.weight_g$", ".parametrizations.weight.original0"),
    (r"\.weight_v$", ".parametrizations.weight.original1"),
    (r"^lm_predictions\.lm_head\.(dense|LayerNorm)\.", r"cls.predictions.transform.\1."),
    (r"^lm_predictions\.lm_head\.bias$", "cls.predictions.bias"),
    (r"^(model\.)?language_model\.(model\.)?", "model."),
)
"""Parts of names in some folders, and the names that tables have for them."""

Shapes = dict[str, tuple[int, ...]]
"""The shapes of a checkpoint's tensors by name."""


class TensorTransform(NamedTuple):
    """How one of their tensors becomes ours, and back."""

    read: Callable[[Tensor], tuple[Tensor, ...]]
    write: Callable[..., Tensor]


SAME = TensorTransform(lambda x: (x,), lambda x: x)
TRANSPOSED = TensorTransform(lambda x: (x.t(),), lambda x: x.t())


def stack_of(count: int, dim: int = 0, transposed: bool = False) -> TensorTransform:
    """Their tensor is `count` of ours, one after the other along its `dim`; theirs may also be transposed."""

    def read(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(part.t() if transposed else part for part in x.chunk(count, dim))

    def write(*parts: Tensor) -> Tensor:
        return torch.cat([part.t() if transposed else part for part in parts], dim)

    return TensorTransform(read, write)


def split_of(sizes: Sequence[int], dim: int = 0) -> TensorTransform:
    """Their tensor is one of ours for each of the sizes, one after the other along its `dim`."""
    return TensorTransform(lambda x: x.split(list(sizes), dim), lambda *parts: torch.cat(parts, dim))


def interleaved_heads(count: int, heads: int) -> TensorTransform:
    """Their tensor has, for each head, its rows of `count` of ours: `[heads, count, head_dim, …]`."""

    def read(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(part.flatten(0, 1) for part in x.unflatten(0, (heads, count, -1)).unbind(1))

    def write(*parts: Tensor) -> Tensor:
        return torch.stack([part.unflatten(0, (heads, -1)) for part in parts], dim=1).flatten(0, 2)

    return TensorTransform(read, write)


@dataclass(frozen=True)
class Key:
    """Their name of a tensor and ours, with `{n}` for a number and `{p}` for the last word, the same in both.

    With several names of ours, theirs holds all of them; `change` splits it. With none (`constant`) it is written, and
    not read.
    """

    theirs: str
    ours: str | tuple[str, ...]
    change: TensorTransform = SAME

    @property
    def names(self) -> tuple[str, ...]:
        return (self.ours,) if isinstance(self.ours, str) else self.ours


class Family(Protocol):
    """A module of `families`: how the folder of one architecture becomes a model, and back.

    `read` makes our configuration from theirs and the shapes of their tensors; `write` the reverse; `keys` is the
    table. `PREFIX` begins the names of a model with a head; `IGNORED` are patterns of names without weights of
    ours (buffers, copies of tied tensors, heads of other tasks).
    """

    PREFIX: str
    IGNORED: tuple[str, ...]

    def read(self, config: JsonObject, shapes: Shapes) -> ModelConfig: ...
    def write(self, config: ModelConfig) -> JsonObject: ...
    def keys(self, config: ModelConfig) -> list[Key]: ...


class KeyMapping(NamedTuple):
    """One row of the table of a model."""

    theirs: str
    ours: tuple[str, ...]
    change: TensorTransform


def make_table(keys: Iterable[Key], names: Iterable[str]) -> list[KeyMapping]:
    """The table for a model with these tensors, each of which must be in it once."""
    names = list(names)
    rows = [row for key in keys for row in expand(key, names)]
    covered = [name for row in rows for name in row.ours]
    missing = sorted(set(names) - set(covered))
    double = sorted({name for name in covered if covered.count(name) > 1}) if len(covered) != len(set(covered)) else []
    if missing or double:
        raise BadInput(
            f"The key table is incomplete. Missing: {shorten_names(missing)}. Twice: {shorten_names(double)}."
        )
    return rows


def constant(theirs: str, make: Callable[[], Tensor]) -> Key:
    """A tensor of theirs that is computed here, such as a table of sinusoids."""
    return Key(theirs, (), TensorTransform(lambda x: (), make))


def expand(key: Key, names: list[str]) -> list[KeyMapping]:
    """The rows of a key: one for each name that its pattern matches."""
    if not key.names:
        return [KeyMapping(key.theirs, (), key.change)]
    pattern = re.compile(re.escape(key.names[0]).replace(r"\{n\}", r"(?P<n>\d+)").replace(r"\{p\}", r"(?P<p>\w+)"))
    rows = []
    for name in names:
        if match := pattern.fullmatch(name):
            words = match.groupdict()
            ours = tuple(own.format(**words) for own in key.names)
            rows.append(KeyMapping(key.theirs.format(**words), ours, key.change))
    return rows


def read_tensors(
    rows: list[KeyMapping], weights: Weights, prefix: str, ignored: tuple[str, ...], where: str
) -> dict[str, Tensor]:
    """Our tensors from theirs, or `BadInput` that lists what is missing and what is left over."""
    theirs = {normalize_key(name, prefix): name for name in weights.names()}
    wanted = {normalize_key(row.theirs, prefix): row for row in rows}
    wanted = {key: row for key, row in wanted.items() if row.ours or key in theirs}
    missing = sorted(set(wanted) - set(theirs))
    unread = {key: name for key, name in theirs.items() if key not in wanted}
    left = [name for key, name in unread.items() if not any(re.fullmatch(pattern, key) for pattern in ignored)]
    if missing or left:
        raise BadInput(
            f"{where}: the weights do not fit the configuration. Missing: {shorten_names(missing)}. "
            f"Left over: {shorten_names(left)}. "
            "The folder holds another architecture than its config.json says, or not all of it."
        )
    tensors: dict[str, Tensor] = {}
    for key, row in wanted.items():
        tensors |= dict(zip(row.ours, row.change.read(weights.tensor(theirs[key])), strict=True))
    return tensors


def write_tensors(rows: list[KeyMapping], ours: dict[str, Tensor]) -> dict[str, Tensor]:
    """Their tensors from ours."""
    return {row.theirs: row.change.write(*(ours[name] for name in row.ours)).contiguous() for row in rows}


def normalize_key(name: str, prefix: str) -> str:
    """A name without the prefix of models with a head, and with today's names of norms and normalized weights."""
    for old, new in RENAMED:
        name = re.sub(old, new, name)
    return name.removeprefix(prefix)


def shorten_names(names: list[str]) -> str:
    """The first names, and how many more there are."""
    if not names:
        return "none"
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return ", ".join(names[:6]) + more
