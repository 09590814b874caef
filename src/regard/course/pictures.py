"""How a step draws what it computed. A picture names entries of the result of `compute`, or controls, by their names.

The lab draws each type in the browser (`lab/static/course`), the pages of the documentation as SVG by matplotlib.
Labels are a tuple of texts, or the name of an entry of the result that holds a list of strings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..experiments.experiment import Bilingual

Labels = tuple[Bilingual, ...] | str
Role = Literal["query", "key", "value", "weight", "score", "output", "plain"]
"""Decides the colour: those of query, key and value are the same on every page."""


@dataclass(frozen=True)
class Bars:
    """A bar for each number of a vector `data`, or groups of bars for the rows of a matrix named by `groups`."""

    title: Bilingual
    data: str
    labels: Labels = ()
    groups: Labels = ()
    role: Role = "weight"
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Heatmap:
    """A matrix as coloured cells with its numbers; `masked` names a boolean array of cells that are crossed out."""

    title: Bilingual
    data: str
    rows: Labels = ()
    columns: Labels = ()
    role: Role = "weight"
    masked: str = ""


@dataclass(frozen=True)
class Plane:
    """Vectors of two dimensions as arrows. `vectors` pairs a name with a role; a name that is a control can be dragged.

    A matrix is one arrow for each row, labelled by `labels[name]`.
    """

    title: Bilingual
    vectors: tuple[tuple[str, Role], ...]
    labels: tuple[tuple[str, Labels], ...] = ()
    extent: float = 3.0


@dataclass(frozen=True)
class Lines:
    """Curves over `x`; `ys` pairs the name of a vector with its label. `marker` names a number: a vertical line."""

    title: Bilingual
    x: str
    ys: tuple[tuple[str, Bilingual], ...]
    x_label: Bilingual
    y_label: Bilingual
    log_x: bool = False
    log_y: bool = False
    marker: str = ""


@dataclass(frozen=True)
class NumberTable:
    """A table of the matrix `data`, whose entries may be texts.

    `links` names a list that says where each row was measured: `step:reach` or `experiment:grey-ball`.
    """

    title: Bilingual
    data: str
    rows: Labels = ()
    columns: Labels = ()
    links: str = ""


@dataclass(frozen=True)
class Drawing:
    """A picture of its own: the function of that name in `lab/static/course/drawings` and in `course/drawings`.

    `experiment` names an experiment whose published numbers the picture shows: `step.picture.numbers` in the browser.
    """

    title: Bilingual
    name: str
    experiment: str = ""


Picture = Bars | Heatmap | Plane | Lines | NumberTable | Drawing
