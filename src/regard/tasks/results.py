"""Results of `predict`: for each input one frozen dataclass, whose type is that of the task.

Numbers are exact in the fields, and rounded to four digits in `to_dict()`, which is what `regard predict --json` and
`--out` write. `str(result)` is the line that `regard predict` prints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal, TypeAlias

from ..data.json_values import JsonObject, JsonValue

DIGITS = 4
FieldValue: TypeAlias = (
    "bool | int | float | str | Result | Mapping[str, FieldValue] | list[FieldValue] | tuple[FieldValue, ...] | None"
)
"""What a field of a result may hold."""


@dataclass(frozen=True)
class Result:
    """What a model predicts for one input. Fields that are None are not in `to_dict()`."""

    def to_dict(self) -> JsonObject:
        """The result as JSON."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: as_json(value) for name, value in values.items() if value is not None}

    def records(self) -> Sequence[Result]:
        """The results that are a row each in a table: this one, or those of its parts."""
        return (self,)

    def __str__(self) -> str:
        return " ".join(f"{name}: {value}" for name, value in self.to_dict().items() if name != "probabilities")


def as_json(value: FieldValue) -> JsonValue:
    """A field as JSON.

    >>> as_json((Span("PER", "Ada", 0, 3, 0.98765),))
    [{'label': 'PER', 'text': 'Ada', 'start': 0, 'end': 3, 'probability': 0.9877}]
    """
    if isinstance(value, Result):
        return value.to_dict()
    if isinstance(value, float):
        return round(value, DIGITS)
    if isinstance(value, Mapping):
        return {str(name): as_json(item) for name, item in value.items()}
    return [as_json(item) for item in value] if isinstance(value, tuple | list) else value


@dataclass(frozen=True)
class Classification(Result):
    """One class of several, and the probability of each.

    >>> result = Classification.from_probabilities("a fine film", ["bad", "good"], [0.25, 0.75])
    >>> result.label, result.probability
    ('good', 0.75)
    >>> print(result)
    input: a fine film label: good probability: 0.75
    """

    input: str
    label: str
    probability: float
    probabilities: Mapping[str, float]

    @classmethod
    def from_probabilities(cls, given: str, labels: Sequence[str], probabilities: Sequence[float]) -> Classification:
        """The class of the highest probability."""
        best = max(range(len(labels)), key=probabilities.__getitem__)
        return cls(given, labels[best], probabilities[best], dict(zip(labels, probabilities, strict=True)))


@dataclass(frozen=True)
class MultiLabel(Result):
    """The labels that apply, any number of them, and the probability of each label."""

    input: str
    labels: tuple[str, ...]
    probabilities: Mapping[str, float]

    @classmethod
    def from_probabilities(
        cls, given: str, labels: Sequence[str], probabilities: Sequence[float], threshold: float = 0.5
    ) -> MultiLabel:
        """The labels whose probability is above the threshold."""
        pairs = dict(zip(labels, probabilities, strict=True))
        return cls(given, tuple(label for label, p in pairs.items() if p > threshold), pairs)


@dataclass(frozen=True)
class Regression(Result):
    """One or several numbers.

    >>> Regression("CCO", (1.23456,)).to_dict()
    {'input': 'CCO', 'value': 1.2346}
    """

    input: str
    values: tuple[float, ...]

    @property
    def value(self) -> float:
        """The number, or the first of several."""
        return self.values[0]

    def to_dict(self) -> JsonObject:
        number = {"value": self.value} if len(self.values) == 1 else {"values": self.values}
        return {"input": self.input, **{name: as_json(value) for name, value in number.items()}}


@dataclass(frozen=True)
class HeadResults(Result):
    """What each head of a model with several heads predicts for an input, by the head's name."""

    input: str
    results: Mapping[str, Result]

    def to_dict(self) -> JsonObject:
        """The results by head, each without its input."""
        heads = {name: result.to_dict() for name, result in self.results.items()}
        return {"input": self.input, **{n: {k: v for k, v in row.items() if k != "input"} for n, row in heads.items()}}

    def __str__(self) -> str:
        lines = (str(result).removeprefix(f"input: {self.input} ") for result in self.results.values())
        return f"input: {self.input} " + " ".join(f"[{n}] {line}" for n, line in zip(self.results, lines, strict=True))


@dataclass(frozen=True)
class Tagging(Result):
    """The words of a text, and a tag for each."""

    words: tuple[str, ...]
    tags: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join(f"{word}/{tag}" for word, tag in zip(self.words, self.tags, strict=True))


@dataclass(frozen=True)
class Span(Result):
    """A part of a text, its characters from `start` to before `end`, with a label."""

    label: str
    text: str
    start: int
    end: int
    probability: float | None = None


@dataclass(frozen=True)
class Spans(Result):
    """The labelled parts of a text."""

    input: str
    spans: tuple[Span, ...]

    def __str__(self) -> str:
        return f"{self.input}  " + " ".join(f"[{span.text}]/{span.label}" for span in self.spans)


@dataclass(frozen=True)
class Answer(Result):
    """The part of a passage that answers a question; the text is empty where the passage has no answer."""

    input: str
    text: str
    start: int
    end: int
    probability: float

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class RankedText(Result):
    """A candidate of a query and its score."""

    text: str
    score: float


@dataclass(frozen=True)
class Ranking(Result):
    """The candidates of a query, best first."""

    input: str
    candidates: tuple[RankedText, ...]

    def __str__(self) -> str:
        return f"{self.input}  " + " | ".join(
            f"{candidate.text} ({candidate.score:.4f})" for candidate in self.candidates
        )


@dataclass(frozen=True)
class GeneratedText(Result):
    """A text that a model wrote: a translation or summary, or a prompt with its continuation."""

    input: str
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Transcript(Result):
    """The text of a recording."""

    file: str
    text: str


@dataclass(frozen=True)
class DetectedObject(Result):
    """An object on an image: its class, score, and box (left, top, right, bottom) in pixels."""

    label: str
    score: float
    box: tuple[float, float, float, float]


@dataclass(frozen=True)
class Detection(Result):
    """The objects on an image, best first. `drawn` is the image with their boxes, if it was saved."""

    file: str
    objects: tuple[DetectedObject, ...]
    drawn: str | None = None


@dataclass(frozen=True)
class NodeLabel(Result):
    """The class of a node of a graph, by the node's name or number."""

    node: str | int
    label: str
    probability: float
    probabilities: Mapping[str, float]


@dataclass(frozen=True)
class NodeLabels(Result):
    """The class of every node of a graph."""

    file: str
    nodes: tuple[NodeLabel, ...]

    def records(self) -> Sequence[Result]:
        return self.nodes


@dataclass(frozen=True)
class GraphResults(Result):
    """The result of every graph in a table of edges, named as the table names the graph."""

    file: str
    graphs: tuple[Result, ...]

    def records(self) -> Sequence[Result]:
        return self.graphs


@dataclass(frozen=True)
class Similar(Result):
    """A text or image beside another, and the cosine of their vectors."""

    what: str
    cosine: float


@dataclass(frozen=True)
class Matches(Result):
    """The nearest texts of an image, or the nearest images of a text, best first.

    >>> Matches("image", "cat.png", (Similar("a cat", 0.5),)).to_dict()
    {'image': 'cat.png', 'texts': [{'what': 'a cat', 'cosine': 0.5}]}
    """

    modality: Literal["image", "text"]
    input: str
    nearest: tuple[Similar, ...]

    def to_dict(self) -> JsonObject:
        others = "texts" if self.modality == "image" else "images"
        return {self.modality: self.input, others: as_json(self.nearest)}
