"""What random calls have covered: every part on every backend, in every dtype, in training and decoding, in pairs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING

from ...attention.parts.mask import Mask

if TYPE_CHECKING:
    from .oracle import Case

KINDS = ("score", "position", "mask", "others")


@dataclass
class Coverage:
    """Calls by part (`score Dot`, `mask Causal`, `others sink`, …), each by backend, dtype, one query or several.

    `pairs` are those of two parts of different kinds that were in a call together.
    """

    parts: dict[str, dict[str, int]] = field(default_factory=dict)
    pairs: set[tuple[str, str]] = field(default_factory=set)

    def add(self, case: Case, backends: list[str]) -> None:
        """Count a call that ran on these backends."""
        names = sorted(set(part_names(case)))
        step = "one query" if case.q.shape[2] == 1 else "several queries"
        for name in names:
            counts = self.parts.setdefault(name, {})
            for column in (*backends, str(case.dtype).removeprefix("torch."), step):
                counts[column] = counts.get(column, 0) + 1
        self.pairs |= {(a, b) for a, b in combinations(names, 2) if a.split()[0] != b.split()[0]}

    def merge(self, other: Coverage) -> None:
        """Add what other calls have covered."""
        for name, columns in other.parts.items():
            counts = self.parts.setdefault(name, {})
            for column, calls in columns.items():
                counts[column] = counts.get(column, 0) + calls
        self.pairs |= other.pairs

    def missing_pairs(self) -> list[str]:
        """Pairs of the parts seen that go together and were in no call together."""
        pairs = ((a, b) for a, b in combinations(sorted(self.parts), 2) if a.split()[0] != b.split()[0])
        return [f"{a} with {b}" for a, b in pairs if (a, b) not in self.pairs and go_together(a, b)]

    def table(self) -> str:
        """The counts, a line for each part."""
        columns = sorted({column for counts in self.parts.values() for column in counts})
        width = max((len(name) for name in self.parts), default=0)
        lines = [" " * width + "".join(f"{column:>{len(column) + 2}}" for column in columns)]
        for name in sorted(self.parts, key=lambda name: (KINDS.index(name.split()[0]), name)):
            counts = self.parts[name]
            lines.append(f"{name:{width}}" + "".join(f"{counts.get(c, 0):>{len(c) + 2},}" for c in columns))
        return "\n".join(lines)


def part_names(case: Case) -> Iterator[str]:
    """The names of a call's parts, each with its kind; of a mask those that it is combined of."""
    activation = getattr(case.score, "activation", "")
    yield f"score {type(case.score).__name__}" + (f" {activation}" if activation else "")
    yield f"position {type(case.position).__name__ if case.position is not None else None}"
    yield from (f"mask {name}" for name in mask_names(case.mask))
    flags = {"cap": case.score.cap, "sink": case.sink, "bias": case.bias, "places": case.places}
    yield from (f"others {name}" for name, part in flags.items() if part is not None)
    if case.dropout:
        yield "others dropout"
    if case.q.shape[1] != case.k.shape[1]:
        yield "others grouped heads"
    if case.edges is not None:
        yield from (f"others edge {name}" for name in case.edges.tensors())


def mask_names(mask: object) -> Iterator[str]:
    """The names of the masks that a mask is combined of by `&`, `|` and `~`."""
    inner = [x for x in vars(mask).values() if isinstance(x, Mask)] if mask is not None else []
    combined = type(mask).__name__ in ("And", "Or", "Not")
    if not combined:
        yield type(mask).__name__ if mask is not None else "None"
    for x in inner if combined else []:
        yield from mask_names(x)


def go_together(a: str, b: str) -> bool:
    """Whether a call may have both parts."""
    names = {a, b}
    dot_only = {f"position {name}" for name in ("Shaw", "TransformerXL", "Disentangled", "Rotary", "AxialRotary")}
    scores = {name for name in names if name.startswith("score ")}
    if scores and names & dot_only and scores != {"score Dot"}:
        return False
    edges = {name for name in names if name.startswith("others edge")}
    masks = {name for name in names if name.startswith("mask ")}
    if edges and masks and masks != {"mask Edges"}:
        return False
    return not ("others edge keys" in names and names & {"score Cosine", "position Rotary", "position AxialRotary"})
