"""A view as one HTML page that works offline, and the choice of what a view shows, which figures share.

The page holds the tensors' own bytes (base64, little-endian), so every number on it is the number that was computed.
Its text, in English and Chinese, and its drawing are in `view.html`.
"""

from __future__ import annotations

import base64
import ctypes
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from ..attention.look import bucket_sizes, buckets
from ..attention.parts.mask import NONE, Grid, Tiling
from ..attention.parts.masks import four
from ..attention.view import View
from ..errors import BadInput, TooLarge

PALETTE = ["#fdfae7", "#e5f3c9", "#b8e1ba", "#79c9bd", "#3fa9c0", "#2b80b6", "#2a58a1", "#26357d", "#14184a"]
"""The colours of the weights from 0 to 1, evenly spaced; what lies between is interpolated."""
PAGE_NUMBERS, NOTEBOOK_NUMBERS = 2**24, 2**22
FEW_PAIRS = 2**22
Words = Sequence[str] | None
SIGNS = {"\n": "↵", "\r": "↵", "\t": "⇥"}


@dataclass(frozen=True)
class Shown:
    """What of a view is drawn: one batch, some heads, the words of the axes.

    `cells` `[heads, rows, columns]` are its weights, or else its map, or None; `masked` `[heads or 1, rows, columns]`
    is True where no pair of the cell is allowed, None where that is not known.
    """

    view: View
    batch: int
    heads: list[int]
    cells: Tensor | None
    masked: Tensor | None
    queries: list[str] | None
    keys: list[str] | None

    @property
    def kind(self) -> str:
        """What the cells are: "weights", "map" or, without any, "curves"."""
        return "weights" if self.view.weights is not None else "map" if self.view.map is not None else "curves"

    def part(self, name: str) -> Tensor:
        """A statistic of the chosen heads, `[heads, ...]`."""
        return plain(getattr(self.view, name)[self.batch, self.heads])

    def row_sums(self) -> tuple[float, float]:
        """The least and the greatest sum of a row; rows that may look at nothing are left out."""
        assert self.cells is not None
        sums = self.cells.double().sum(-1)
        alive = sums[self.pooled("peak") > 0]
        return (alive.min().item(), alive.max().item()) if alive.numel() else (0.0, 0.0)

    def pooled(self, name: str) -> Tensor:
        """A statistic of each row of the cells: the query's own, or the mean of the bucket's, `[heads, rows]`."""
        values = self.part(name)
        if self.kind != "map":
            return values
        size, rows = self.view.queries, self.cells.shape[-2]  # type: ignore[union-attr]
        sums = values.new_zeros(len(values), rows).index_add_(1, buckets(size, rows, values.device), values)
        return sums / bucket_sizes(size, rows, values.device).clamp(min=1)

    def dead(self) -> Tensor:
        """How many queries of each head may look at nothing, `[heads]`."""
        return self.part("lse").isneginf().sum(-1)


def choose(view: View, batch: int, head: int | None, queries: Words, keys: Words, most: int | None = None) -> Shown:
    """What to draw of a view, at most `most` of its heads; raises `BadInput` for words or indices that do not fit."""
    if not view.lse.numel() or not view.keys:
        raise BadInput(f"There is nothing to draw of {view!r}; look at one token or more.")
    batches, heads = view.lse.shape[:2]
    need_index(batch, batches, "batch")
    chosen = list(range(heads))[:most] if head is None else [need_index(head, heads, "head")]
    words = [
        None if given is None else need_words(given, size, name)
        for given, size, name in ((queries, view.queries, "queries"), (keys, view.keys, "keys"))
    ]
    square = view.weights if view.weights is not None else view.map
    cells = None if square is None else plain(square[batch, chosen])
    return Shown(view, batch, chosen, cells, masked_cells(view, batch, chosen), *words)


def need_index(index: Any, size: int, name: str) -> int:
    """The index; raises unless it is one of `size`."""
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < size:
        raise BadInput(f"{name} is {index!r}; there are {size}, so it must be a whole number from 0 to {size - 1}.")
    return index


def need_words(words: Sequence[object], size: int, name: str) -> list[str]:
    """The words as they are drawn; raises unless there is one for each of `size` tokens."""
    if isinstance(words, str):
        raise BadInput(f"{name} is the text {words!r:.40}; it must be a list of {size} words. Split it into them.")
    if len(words) != size:
        raise BadInput(f"{name} has {len(words)} words; there are {size} {name}. Give one word for each.")
    return [visible(str(word)) for word in words]


def visible(word: str) -> str:
    """The word with a sign for each character that would not be seen.

    >>> visible("\\n"), visible("  "), visible(" cat")
    ('↵', '␣␣', ' cat')
    """
    seen = "".join(SIGNS.get(letter, letter if letter.isprintable() else "\ufffd") for letter in word)
    return seen if seen.strip() else seen.replace(" ", "␣")


def plain(x: Tensor) -> Tensor:
    """The tensor's numbers on the CPU, in types that a page can hold: float32, float64 or int32."""
    x = x.detach().cpu()
    return x.int() if not x.is_floating_point() else x if x.dtype == torch.float64 else x.float()


def masked_cells(view: View, batch: int, heads: list[int]) -> Tensor | None:
    """True where no pair of a cell is allowed, `[heads or 1, rows, columns]`; None where that is not known."""
    if view.weights is not None:
        return ~pick(view.mask.dense(view.queries, view.keys), batch, heads)
    if view.map is None:
        return None
    rows, columns = view.map.shape[-2:]
    if view.queries * view.keys <= FEW_PAIRS:
        return empty_buckets(pick(view.mask.dense(view.queries, view.keys), batch, heads), rows, columns)
    if view.queries % rows or view.keys % columns:
        return None
    grid = Grid(view.queries, view.keys, device=view.mask.device())
    tiling = Tiling(grid, view.queries // rows, view.keys // columns)
    return pick(view.mask.tiles(tiling), batch, heads) == NONE


def pick(answers: Tensor, batch: int, heads: list[int]) -> Tensor:
    """A mask's answers for one batch and some heads, `[heads or 1, rows, columns]`."""
    every = four(answers)
    mine = every[batch if every.shape[0] > 1 else 0].cpu()
    return mine if mine.shape[0] == 1 else mine[heads]


def empty_buckets(allowed: Tensor, rows: int, columns: int) -> Tensor:
    """True where no pair of a bucket of queries × a bucket of keys is allowed, `[heads or 1, rows, columns]`."""
    down, across = members(allowed.shape[-2], rows), members(allowed.shape[-1], columns)
    return down.mT @ (allowed.float() @ across) == 0


def members(size: int, count: int) -> Tensor:
    """1 where a token is in a bucket, `[size, count]`."""
    return one_hot(buckets(size, count, torch.device("cpu")), count).float()


def view_html(
    view: View,
    *,
    batch: int = 0,
    head: int | None = None,
    queries: Words = None,
    keys: Words = None,
    title: str | None = None,
) -> str:
    """The view as a whole HTML document that needs nothing else; raises `TooLarge` when it would hold too many numbers.

    `queries` and `keys` are the words to write on the axes; without `head` the page has them all.
    """
    shown = choose(view, batch, head, queries, keys)
    if (count := numbers(shown)) > PAGE_NUMBERS:
        raise TooLarge(
            f"The page would hold {count:,} numbers; it can hold {PAGE_NUMBERS:,}. Give head= to show one head, or "
            "look with map=(256, 256) in place of weights=True."
        )
    return fill({"title": escape(title or view.description), "data": script_safe(payload(shown, title))})


def notebook_html(view: View, **options: Any) -> str:
    """The page inside a frame of its own, for a notebook's cell; a view too large for one is told in a sentence."""
    told = f"<code>{escape(repr(view))}</code>"
    if not view.lse.numel() or not view.keys:
        return f"<p>{told}</p>"
    if (count := numbers(choose(view, options.get("batch", 0), options.get("head"), None, None))) > NOTEBOOK_NUMBERS:
        save, plot = '<code>view.save("view.html")</code>', "<code>view.plot(head=0)</code>"
        return f"<p>{told}<br>{count:,} numbers are too many for a cell: {save} writes them, {plot} draws one head.</p>"
    style = "width:100%;height:760px;border:1px solid #ddd;border-radius:8px"
    return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{escape(view_html(view, **options))}"></iframe>'


def numbers(shown: Shown) -> int:
    """How many numbers a page holds, near enough."""
    if shown.cells is not None:
        return shown.cells.numel()
    width = 0 if shown.view.top_weights is None else 2 * shown.view.top_weights.shape[-1]
    return len(shown.heads) * (shown.view.queries * (3 + width) + shown.view.keys)


def payload(shown: Shown, title: str | None) -> dict[str, Any]:
    """Everything the page's script reads."""
    view = shown.view
    return {
        "kind": shown.kind,
        "title": title,
        "description": view.description,
        "sizes": {"batch": view.lse.shape[0], "heads": view.lse.shape[1], "queries": view.queries, "keys": view.keys},
        "batch": shown.batch,
        "heads": shown.heads,
        "words": {"queries": shown.queries, "keys": shown.keys},
        "palette": PALETTE,
        "cells": encode(shown.cells),
        "masked": None if shown.masked is None else encode_bits(shown.masked),
        **{name: encode(shown.pooled(name)) for name in ("entropy", "distance", "peak")},
        "received": encode(shown.part("received")) if shown.kind != "map" else None,
        "dead": shown.dead().tolist(),
        "top": top(shown),
    }


def top(shown: Shown) -> dict[str, Any] | None:
    """The largest weights of each query, for a page without the weights."""
    if shown.kind != "curves" or shown.view.top_weights is None:
        return None
    return {"weights": encode(shown.part("top_weights")), "keys": encode(shown.part("top_keys"))}


def encode(x: Tensor | None) -> dict[str, Any] | None:
    """A tensor's shape, type and bytes (base64, little-endian)."""
    if x is None:
        return None
    x = x.contiguous()
    # numpy, the usual way to the bytes, need not be installed
    held = ctypes.string_at(x.data_ptr(), x.numel() * x.element_size()) if x.numel() else b""
    kind = str(x.dtype).removeprefix("torch.")
    return {"shape": list(x.shape), "type": kind, "bytes": base64.b64encode(held).decode()}


def encode_bits(x: Tensor) -> dict[str, Any]:
    """A boolean tensor with eight to a byte, the first in the lowest bit."""
    flat = x.flatten()
    eights = pad(flat, (0, -flat.numel() % 8)).view(-1, 8).to(torch.uint8)
    held = (eights << torch.arange(8, dtype=torch.uint8)).sum(-1).to(torch.uint8)
    return encode(held) | {"shape": list(x.shape), "type": "bits"}  # type: ignore[operator]


def script_safe(value: Any) -> str:
    """JSON that may stand inside a script element, whatever its texts are."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return re.sub("[<>&\u2028\u2029\ud800-\udfff]", lambda found: f"\\u{ord(found[0]):04x}", text)


def fill(values: dict[str, str]) -> str:
    """The page's template with its places filled."""
    template = files("regard.plots").joinpath("view.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], template)
