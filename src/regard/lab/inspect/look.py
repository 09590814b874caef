"""What `regard look` shows: a model's attention in the terminal, as JSON, or in a file."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...attention.look import look as look_at
from ...attention.view import View
from ...errors import BadInput
from ...plots.labels import visible
from ...plots.page import PALETTE
from ..lab import Lab
from ..library import MEANINGS, Entry, Library
from ..server.jobs import Job
from .capture import Attention, Capture

USUAL = "tagger"
"""The shipped model that is asked when none is named."""
NUMBERED = 12
"""Keys up to which the cells of a map have their numbers."""
WIDEST = 14
"""Letters of a token in the margin."""


@dataclass(frozen=True)
class Looked:
    """A pass, and what of it was asked for; None for all."""

    entry: Entry
    capture: Capture
    layer: int | None
    head: int | None

    @property
    def attention(self) -> Attention:
        return self.capture.attentions[self.layer or 0]

    def words(self, side: str) -> list[str]:
        return [visible(token.text) for token in self.capture.tokens[side]]

    def view(self) -> View:
        """The weights of the chosen attention, which draw and save themselves."""
        call = self.attention.regions.call
        parts = {"score": call.score, "position": call.position, "mask": call.mask}
        return look_at(call.q.float(), call.k.float(), call.v.float(), **parts, weights=True)

    def save(self, path: Path) -> Path:
        a = self.attention
        title = f"{self.entry.title} · {a.label['en']}"
        words = {"queries": self.words(a.query_side), "keys": self.words(a.key_side)}
        return self.view().save(path, head=self.head, title=title, **words)

    def document(self) -> dict[str, Any]:
        """The same for a machine: the weights of one head, or what can be said of all."""
        a = self.attention
        found: dict[str, Any] = {
            "model": self.entry.name,
            "tokens": {side: [token.text for token in tokens] for side, tokens in self.capture.tokens.items()},
            "prediction": self.capture.prediction,
        }
        if self.layer is None and self.head is None:
            return found | {"attentions": [row for n in range(len(self.capture.attentions)) for row in self.rows(n)]}
        if self.head is None:
            return found | {"attentions": self.rows(self.layer or 0)}
        return found | {
            "attention": a.name,
            "layer": self.layer or 0,
            "head": self.head,
            "weights": a.weights(self.head).tolist(),
        }

    def rows(self, layer: int) -> list[dict[str, Any]]:
        """What can be said of each head of an attention, and its strongest link between two tokens."""
        a = self.capture.attentions[layer]
        stats = a.stats(self.capture.special(a.key_side))
        queries, keys = self.words(a.query_side), self.words(a.key_side)
        rows = []
        for head in range(a.heads):
            i, j, weight = strongest(a.weights(head), a)
            rows.append(
                {
                    "layer": layer,
                    "head": head,
                    **{
                        name: float(stats[name][head])
                        for name in ("entropy", "entropy_share", "distance", "peak", "special")
                    },
                    "strongest": {"query": queries[i], "key": keys[j], "weight": weight},
                }
            )
        return rows


def strongest(weights: Tensor, attention: Attention) -> tuple[int, int, float]:
    """The largest weight of a token on another one than itself, and where it is."""
    others = weights.clone()
    if attention.role == "self" and weights.shape[0] == weights.shape[1] and weights.shape[0] > 1:
        others.fill_diagonal_(-1.0)
    at = int(others.argmax())
    i, j = at // weights.shape[1], at % weights.shape[1]
    return i, j, float(weights[i, j])


def look(given: str, model: str, layer: int | None, head: int | None) -> Looked:
    """Run a model on a text (or on the file of a picture or recording) and choose what to show."""
    lab, name = opened(model)
    entry = lab.library.entry(name)
    ask = {"model": name, "input": read_given(given, entry)}
    found = lab.capture(ask, Job())
    if layer is not None and not 0 <= layer < len(found.attentions):
        raise BadInput(
            f"layer is {layer}; {name} has {len(found.attentions)} attentions, 0 … {len(found.attentions) - 1}."
        )
    looked = Looked(entry, found, layer, head)
    if head is not None:
        looked.attention.need_region(head, None, None)
    return looked


def opened(model: str) -> tuple[Lab, str]:
    """A lab that knows the model, and its name there: a shipped one's name, or a folder."""
    shipped = Library()
    names = shipped.entries()
    if not model:
        return Lab(shipped), USUAL if USUAL in names else MEANINGS
    if model in names:
        return Lab(shipped), model
    if not Path(model).is_dir():
        raise BadInput(f"{model!r} is neither a folder nor a shipped model. Shipped are: {', '.join(names)}.")
    library = Library([Path(model)], shipped=False)
    root = Path(model).resolve().name
    if root not in library.entries():
        raise BadInput(f"{model} holds no model of its own. Give one of the folders in it that do.")
    return Lab(library), root


def read_given(given: str, entry: Entry) -> dict[str, Any]:
    """The input: a text, or for models of pictures, sound and graphs the content of a file."""
    if entry.kind in ("text", "pair") or entry.task == "graphs":
        return {"text": given}
    if given in entry.examples():
        return {"example": given}
    if not Path(given).is_file():
        ready = ", ".join(entry.examples()[:6]) or "none"
        raise BadInput(f"{entry.name} reads a file of {entry.kind}; {given!r:.60} is none. Ready examples: {ready}.")
    return {"base64": base64.b64encode(Path(given).read_bytes()).decode()}


def print_looked(looked: Looked, console: Any) -> None:
    """The picture in the terminal: one head as a map of coloured blocks, or a line for each head."""
    from rich.text import Text

    console.print(Text(" · ".join([looked.entry.title, *answer_line(looked.capture.prediction)])))
    if looked.head is None:
        layers = range(len(looked.capture.attentions)) if looked.layer is None else [looked.layer]
        print_heads([row for layer in layers for row in looked.rows(layer)], looked, console)
        return
    a = looked.attention
    console.print(
        Text(f"layer {looked.layer or 0}, head {looked.head} ({a.name}) · rows: queries, who looks; columns: keys")
    )
    print_map(a.weights(looked.head), looked.words(a.query_side), looked.words(a.key_side), a, console)


def answer_line(prediction: dict[str, Any]) -> list[str]:
    """What the model says, in a few words; nothing where it says nothing."""
    if "text" in prediction:
        return [prediction["text"]]
    many = None if prediction["kind"] in ("tags", "nodes") else 3
    items = [item for item in prediction["items"][:many] if item["probability"] is not None]
    if many is None:
        return [" ".join(item["label"] for item in items)]
    return [", ".join(f"{visible(item['label'])} {item['probability']:.2f}" for item in items)] if items else []


def print_heads(rows: list[dict[str, Any]], looked: Looked, console: Any) -> None:
    """A line for each head."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("layer", "head", "entropy", "of most", "distance", "peak", "strongest"):
        table.add_column(name, justify="left" if name == "strongest" else "right")
    for row in rows:
        best, role = row["strongest"], looked.capture.attentions[row["layer"]].role
        place = f"{row['layer']}{' cross' if role == 'cross' else ''}" if row["head"] == 0 else ""
        share = Text(f"{row['entropy_share']:.2f}", style=style(row["entropy_share"]))
        numbers = [f"{row['entropy']:.2f}", share, f"{row['distance']:.1f}", f"{row['peak']:.2f}"]
        table.add_row(place, str(row["head"]), *numbers, Text(f"{best['query']} → {best['key']} {best['weight']:.2f}"))
    console.print(table)


def print_map(weights: Tensor, queries: list[str], keys: list[str], attention: Attention, console: Any) -> None:
    """A row for each query, a block for each key: darker is more; with the numbers where there are few keys."""
    from rich.cells import cell_len, set_cell_size
    from rich.text import Text

    margin = min(WIDEST, max(cell_len(word) for word in queries))
    numbered = len(keys) <= NUMBERED
    cell = 5 if numbered else 2
    room = max(1, (console.width - margin - 8) // cell)
    shown = min(len(keys), room)
    header = Text(" " * (margin + 1))
    for j in range(shown):
        header.append(set_cell_size(keys[j], cell - 1) + " " if numbered else set_cell_size(keys[j], cell), "dim")
    console.print(header, soft_wrap=True)
    allowed = (
        attention.stages(0, (0, attention.queries), (0, attention.keys))[0].allowed
        if attention.parts.get("mask")
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
    """Colours for a weight from 0 to 1 on the square root's scale, with ink that can be read on it."""
    place = min(max(weight, 0.0), 1.0) ** 0.5 * (len(PALETTE) - 1)
    low = min(int(place), len(PALETTE) - 2)
    a, b = (torch.tensor([int(colour[n : n + 2], 16) for n in (1, 3, 5)]).float() for colour in PALETTE[low : low + 2])
    red, green, blue = (a + (b - a) * (place - low)).round().int().tolist()
    return f"{'white' if place > 4 else 'black'} on #{red:02x}{green:02x}{blue:02x}"
