"""The output of `regard look`: a model's attention in the terminal, as JSON, or in a file."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import torch
from torch import Tensor

from ...attention.look import look
from ...attention.view import View
from ...data.languages import unread_script
from ...errors import BadInput
from ...plots.labels import visible
from ...plots.page import PALETTE
from ..lab import Lab
from ..library import MEANINGS, ModelEntry, ModelLibrary
from ..protocol import Answer, JsonObject
from ..server.jobs import Job
from .capture import Capture
from .captured_attention import CapturedAttention
from .predictions import PredictionFields

if TYPE_CHECKING:
    from rich.console import Console

    from ..inputs.notices import Notice

DEFAULT_MODELS = ("tagger", "tagger-zh", MEANINGS)
"""Shipped models of which the first that reads the text is used when none is named."""
UNKNOWN_MARK = "?"
"""Before a token that the model does not know."""
MAX_NUMBERED = 12
"""Keys up to which the cells of a map show their numbers."""
MAX_LABEL = 14
"""Characters of a token in the margin."""


class LargestWeight(TypedDict):
    query: str
    key: str
    weight: float


class HeadSummary(TypedDict):
    """The statistics of one head, and its largest weight between two known tokens."""

    layer: int
    head: int
    entropy: float
    entropy_share: float
    distance: float
    peak: float
    special: float
    strongest: LargestWeight | None


@dataclass(frozen=True)
class AttentionReport:
    """A forward pass, and the requested layer and head; None for all."""

    entry: ModelEntry
    capture: Capture
    layer: int | None
    head: int | None

    @property
    def attention(self) -> CapturedAttention:
        return self.capture.attentions[self.layer or 0]

    def labels(self, side: str) -> list[str]:
        """The tokens of a side; unknown ones have a mark before them."""
        return [UNKNOWN_MARK * token.unknown + visible(token.text) for token in self.capture.tokens[side]]

    def known_tokens(self, side: str) -> Tensor:
        """Which tokens of a side the model knows, `[tokens]`."""
        return torch.tensor([not token.unknown for token in self.capture.tokens[side]])

    @property
    def all_unknown(self) -> bool:
        """Whether the model knows no token of the input, so that its weights mean nothing."""
        return any(notice["type"] == "unknown" and notice["count"] == notice["total"] for notice in self.notices)

    @property
    def notices(self) -> list[Notice]:
        return self.capture.notices

    def view(self) -> View:
        """The view of the requested attention."""
        call = self.attention.scores.call
        parts = {"score": call.score, "position": call.position, "mask": call.mask}
        return look(call.q.float(), call.k.float(), call.v.float(), **parts, weights=True)

    def save(self, path: Path) -> Path:
        if self.all_unknown:
            raise BadInput(" ".join(format_notice(notice) for notice in self.notices))
        attention = self.attention
        title = f"{self.entry.title} · {attention.label['en']}"
        queries, keys = self.labels(attention.query_side), self.labels(attention.key_side)
        return self.view().save(path, head=self.head, title=title, queries=queries, keys=keys)

    def document(self) -> Answer:
        """The report as JSON: the weights of one head, or the statistics of all."""
        document = {
            "model": self.entry.name,
            "tokens": {side: [token.text for token in tokens] for side, tokens in self.capture.tokens.items()},
            "unknown": {
                side: [n for n, token in enumerate(tokens) if token.unknown]
                for side, tokens in self.capture.tokens.items()
            },
            "notices": self.notices,
            "prediction": self.capture.prediction,
        }
        if self.layer is None and self.head is None:
            return document | {"attentions": [row for n in range(len(self.capture.attentions)) for row in self.rows(n)]}
        if self.head is None:
            return document | {"attentions": self.rows(self.layer or 0)}
        return document | {
            "attention": self.attention.name,
            "layer": self.layer or 0,
            "head": self.head,
            "weights": self.attention.weights(self.head).tolist(),
        }

    def rows(self, layer: int) -> list[HeadSummary]:
        """The statistics of each head of an attention, and its largest weight between two known tokens."""
        attention = self.capture.attentions[layer]
        stats = attention.stats(self.capture.special(attention.key_side))
        queries, keys = self.labels(attention.query_side), self.labels(attention.key_side)
        rows: list[HeadSummary] = []
        for head in range(attention.heads):
            largest = find_largest(
                attention, head, self.known_tokens(attention.query_side), self.known_tokens(attention.key_side)
            )
            strongest: LargestWeight | None = None
            if largest is not None:
                strongest = {"query": queries[largest[0]], "key": keys[largest[1]], "weight": largest[2]}
            rows.append(
                {
                    "layer": layer,
                    "head": head,
                    "entropy": float(stats["entropy"][head]),
                    "entropy_share": float(stats["entropy_share"][head]),
                    "distance": float(stats["distance"][head]),
                    "peak": float(stats["peak"][head]),
                    "special": float(stats["special"][head]),
                    "strongest": strongest,
                }
            )
        return rows


def find_largest(
    attention: CapturedAttention, head: int, known_queries: Tensor, known_keys: Tensor
) -> tuple[int, int, float] | None:
    """Query, key and value of a head's largest weight; None where the model knows no query or no key.

    Unknown tokens and a token's weight on itself do not count.
    """
    weights = attention.weights(head)
    others = weights.clone()
    others[~known_queries] = -1.0
    others[:, ~known_keys] = -1.0
    if attention.role == "self" and weights.shape[0] == weights.shape[1] and weights.shape[0] > 1:
        others.fill_diagonal_(-1.0)
    i, j = divmod(int(others.argmax()), weights.shape[1])
    return (i, j, float(weights[i, j])) if float(others[i, j]) >= 0 else None


def make_report(text: str, model: str, layer: int | None, head: int | None) -> AttentionReport:
    """Run a model on a text, or on the path of an image or a recording, and select a layer and a head."""
    lab, name = open_model(model, text)
    entry = lab.library.entry(name)
    capture = lab.capture({"model": name, "input": read_input(text, entry)}, Job())
    if layer is not None and not 0 <= layer < len(capture.attentions):
        raise BadInput(
            f"layer is {layer}; {name} has {len(capture.attentions)} attentions, 0 … {len(capture.attentions) - 1}."
        )
    report = AttentionReport(entry, capture, layer, head)
    if head is not None:
        report.attention.check_region(head, None, None)
    return report


def open_model(model: str, text: str) -> tuple[Lab, str]:
    """A lab that has the model, given by a shipped name or a folder, and the model's name there.

    Without a name it is the first of `DEFAULT_MODELS` that reads the text.
    """
    shipped = ModelLibrary()
    names = shipped.entries()
    if not model:
        defaults = [names[name] for name in DEFAULT_MODELS if name in names]
        reading = [entry for entry in defaults if unread_script(text, entry.languages) is None]
        return Lab(shipped), (reading or defaults)[0].name
    if model in names:
        return Lab(shipped), model
    if not Path(model).is_dir():
        raise BadInput(f"{model!r} is neither a folder nor a shipped model. Shipped are: {', '.join(names)}.")
    library = ModelLibrary([Path(model)], shipped=False)
    root = Path(model).resolve().name
    if root not in library.entries():
        raise BadInput(f"{model} contains no model itself. Give one of its subfolders.")
    return Lab(library), root


def read_input(text: str, entry: ModelEntry) -> JsonObject:
    """The input: the text, or for models of images, sound and graphs the content of that file."""
    if entry.modality in ("text", "pair") or entry.task == "graphs":
        return {"text": text}
    if text in entry.examples():
        return {"example": text}
    if not Path(text).is_file():
        ready = ", ".join(entry.examples()[:6]) or "none"
        raise BadInput(f"{entry.name} reads a file of {entry.modality}; {text!r:.60} is none. Ready examples: {ready}.")
    return {"base64": base64.b64encode(Path(text).read_bytes()).decode()}


def print_report(report: AttentionReport, console: Console) -> None:
    """Print one head as a map of coloured blocks, or a line for each head."""
    from rich.text import Text

    console.print(Text(" · ".join([report.entry.title, *format_prediction(report.capture.prediction)])))
    for notice in report.notices:
        console.print(Text(format_notice(notice), "yellow"))
    if report.all_unknown:
        return
    if report.head is None:
        layers = range(len(report.capture.attentions)) if report.layer is None else [report.layer]
        print_heads([row for layer in layers for row in report.rows(layer)], report, console)
        return
    attention = report.attention
    console.print(
        Text(f"layer {report.layer or 0}, head {report.head} ({attention.name}) · rows: queries; columns: keys")
    )
    print_map(report, report.head, console)


def format_prediction(prediction: PredictionFields) -> list[str]:
    """The prediction in one line; empty where there is none."""
    if "text" in prediction:
        return [prediction["text"]]
    many = None if prediction["type"] in ("tags", "nodes") else 3
    items = [item for item in prediction["items"][:many] if item["probability"] is not None]
    if many is None:
        return [" ".join(item["label"] for item in items)]
    return [", ".join(f"{visible(item['label'])} {item['probability']:.2f}" for item in items)] if items else []


def format_notice(notice: Notice) -> str:
    """A notice about the input as a sentence."""
    match notice["type"]:
        case "hand_made":
            return "This model was set by hand, not trained."
        case "language":
            reads = " and ".join(language["en"] for language in notice["reads"])
            offer = f" Try --model {notice['offer']}." if notice["offer"] else ""
            return f"The text is mostly {notice['script']['en']}; this model reads {reads}.{offer}"
        case "unknown" if notice["count"] == notice["total"]:
            return "Every token is unknown to this model, so its weights say nothing about the text."
        case "unknown":
            return (
                f"{notice['count']} of {notice['total']} tokens are unknown to this model; they are marked "
                f"{UNKNOWN_MARK} and left out of “strongest”."
            )
        case "length":
            return (
                f"The input has {notice['total']} tokens; the longest that this model was trained on has "
                f"{notice['training_length']}. What lies beyond may mean little."
            )
        case _:
            return f"This input is unlike the training data (distance {notice['distance']:.1f} × the threshold)."


def print_heads(rows: list[HeadSummary], report: AttentionReport, console: Console) -> None:
    """Print a line for each head."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("layer", "head", "entropy", "÷ log(keys)", "distance", "largest", "strongest"):
        table.add_column(name, justify="left" if name == "strongest" else "right")
    for row in rows:
        best, role = row["strongest"], report.capture.attentions[row["layer"]].role
        place = f"{row['layer']}{' cross' if role == 'cross' else ''}" if row["head"] == 0 else ""
        share = Text(f"{row['entropy_share']:.2f}", style=style(row["entropy_share"]))
        numbers = [f"{row['entropy']:.2f}", share, f"{row['distance']:.1f}", f"{row['peak']:.2f}"]
        strongest = "–" if best is None else f"{best['query']} → {best['key']} {best['weight']:.2f}"
        table.add_row(place, str(row["head"]), *numbers, Text(strongest))
    console.print(table)


def print_map(report: AttentionReport, head: int, console: Console) -> None:
    """Print a row for each query and a block for each key, darker for more; with numbers where there are few keys."""
    from rich.cells import cell_len, set_cell_size
    from rich.text import Text

    attention = report.attention
    weights, queries, keys = (
        attention.weights(head),
        report.labels(attention.query_side),
        report.labels(attention.key_side),
    )
    margin = min(MAX_LABEL, max(cell_len(word) for word in queries))
    numbered = len(keys) <= MAX_NUMBERED
    cell = 5 if numbered else 2
    room = max(1, (console.width - margin - 8) // cell)
    shown = min(len(keys), room)
    header = Text(" " * (margin + 1))
    for j in range(shown):
        header.append(set_cell_size(keys[j], cell - 1) + " " if numbered else set_cell_size(keys[j], cell), "dim")
    console.print(header, soft_wrap=True)
    allowed = (
        attention.stages(0, (0, attention.queries), (0, attention.keys))[0].allowed
        if attention.parts.mask is not None
        else None
    )
    for i, word in enumerate(queries):
        line = Text(set_cell_size(word, margin) + " ")
        for j in range(shown):
            weight = float(weights[i, j])
            masked = allowed is not None and not bool(allowed[i, j])
            text = " ·" if masked else f"{weight:.2f}" if numbered else ""
            line.append(text.center(cell) if numbered else text.ljust(cell), "dim" if masked else style(weight))
        line.append(f" {float(weights[i].sum()):.3f}", "dim")
        console.print(line, soft_wrap=True)
    hidden = (
        f" {len(keys) - shown} more keys do not fit: widen the terminal, or --save them." if shown < len(keys) else ""
    )
    legend = Text("0 ")
    for n in range(11):
        legend.append("  ", style(n / 10))
    console.print(legend.append(f" 1, by its square root; right: each row's sum.{hidden}"))


def style(weight: float) -> str:
    """The style of a weight from 0 to 1: its colour on a square-root scale, and a readable text colour."""
    place = min(max(weight, 0.0), 1.0) ** 0.5 * (len(PALETTE) - 1)
    low = min(int(place), len(PALETTE) - 2)
    a, b = (torch.tensor([int(colour[n : n + 2], 16) for n in (1, 3, 5)]).float() for colour in PALETTE[low : low + 2])
    red, green, blue = (a + (b - a) * (place - low)).round().int().tolist()
    return f"{'white' if place > 4 else 'black'} on #{red:02x}{green:02x}{blue:02x}"
