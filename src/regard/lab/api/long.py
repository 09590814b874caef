"""The page Long: texts of up to 200,000 characters. Maps are pooled, and nothing is quadratic in memory.

A trained model reads a text longer than its training inputs by windows (`inspect/windows.py`), or at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TypedDict

import torch

from ...errors import BadInput
from ...experiments import LANGUAGES
from ...models.model import SequenceModel
from ..builtin.recall import recall
from ..inputs.long_texts import verses
from ..inputs.model_input import LONG, WINDOWED, InputMetadata, ModelInput, Token
from ..inputs.notices import Notice
from ..inputs.text import check_text
from ..inspect.attention_fields import AttentionFields
from ..inspect.capture import Capture
from ..inspect.capture import capture as run_model
from ..inspect.captured_attention import CapturedAttention
from ..inspect.windows import WindowedAttention, WindowPlan, drop_values, plan_windows, window_input
from ..lab import Lab, fingerprint
from ..library import RECALL, LoadedModel
from ..protocol import Json, Request
from ..server.jobs import Job
from .course import describe_course
from .request import check_index, read_region

MAX_CELLS, MAX_CACHED_CELLS = 512, 256 * 256
"""Cells of a map's side, and of a map that is cached."""
MAX_EXACT, SAMPLE = 16_384, 2_048
"""Queries of a region that are all computed, and how many of more are sampled unless `exact` is requested."""


MIN_PARAGRAPH = 90
"""Characters of an English text of the course that is longer than a heading."""
MIN_WINDOW, MAX_WINDOW = 16, 1024
"""Tokens of a window; a model whose training length is not known gets the largest."""


class WindowCount(TypedDict):
    length: int
    count: int


class LongRun(TypedDict):
    """A long text: how many tokens it has, their offsets `[tokens, 2]`, and which are unknown."""

    side: str
    tokens: int
    offsets: torch.Tensor
    unknown: torch.Tensor
    notices: list[Notice]
    attentions: list[AttentionFields]
    metadata: InputMetadata
    windows: WindowCount | None


class LongMap(TypedDict):
    """See `map`."""

    map: torch.Tensor
    masked: torch.Tensor
    entropy: torch.Tensor
    distance: torch.Tensor
    received: torch.Tensor
    links: torch.Tensor
    link_weights: torch.Tensor
    visited: int
    of: int
    rows: list[int]
    keys: list[int]


class LongRow(TypedDict):
    """The largest weights of one query with their keys, and its weights pooled along the whole text."""

    keys: torch.Tensor
    weights: torch.Tensor
    profile: torch.Tensor


class LongText(TypedDict):
    text: str


@dataclass(frozen=True)
class LongPass:
    """A long text as a model has read it: its tokens, its attentions, and the windows, None where there are none."""

    tokens: list[Token]
    side: str
    attentions: Sequence[CapturedAttention | WindowedAttention]
    notices: list[Notice]
    metadata: InputMetadata
    plan: WindowPlan | None = None

    def attention(self, which: Json) -> CapturedAttention | WindowedAttention:
        """The attention of that number or name."""
        for n, attention in enumerate(self.attentions):
            if attention.name == which or (type(which) is int and n == which):
                return attention
        raise BadInput(f"There are attentions 0 … {len(self.attentions) - 1}; got {which!r:.40}.")


def read_text(lab: Lab, request: Request, job: Job) -> LongPass:
    """The text as the model reads it: by windows where `windows` is requested and the text is longer than one."""
    if request.get("windows") is True and request.get("model", RECALL) != RECALL:
        loaded = lab.open(request.get("model"), job)
        with job.hold(loaded.lock):
            _, prepared = lab.prepare(request, job, WINDOWED)
        length = max(MIN_WINDOW, min(loaded.entry.training_length or MAX_WINDOW, MAX_WINDOW))
        if len(prepared.tokens[prepared.side]) > length:
            return read_windows(lab, loaded, request, prepared, length, job)
    whole = capture(lab, request, job)
    (side, tokens), *_ = whole.tokens.items()
    return LongPass(tokens, side, whole.attentions, whole.notices, whole.metadata)


def read_windows(
    lab: Lab, loaded: LoadedModel, request: Request, prepared: ModelInput, length: int, job: Job
) -> LongPass:
    """The text by windows; the passes are cached while there is room, and made again on request."""
    tokens = prepared.tokens[prepared.side]
    causal = isinstance(loaded.model, SequenceModel) and loaded.model.causal
    plan = plan_windows(tokens, length, causal)
    fields = {"model": request["model"], "input": request["input"], "modified": loaded.entry.modified, "window": length}
    text = fingerprint(fields)

    def read_window(n: int) -> Capture:
        key = f"{text}-{n}"
        cached = lab.captures.get(key)
        if cached is None:
            with job.hold(loaded.lock):
                cached = drop_values(run_model(loaded.model, window_input(prepared, plan, n), {}, Job()))
            lab.captures.put(key, cached)
        return cached

    first = read_window(0).attentions
    size = len(plan.positions(0))
    chosen = [n for n, attention in enumerate(first) if attention.queries == attention.keys == size]
    attentions = [WindowedAttention(plan, n, read_window, job) for n in chosen]
    notices: list[Notice] = [notice for notice in prepared.metadata.get("notices", []) if notice["type"] != "length"]
    return LongPass(tokens, prepared.side, attentions, notices, {}, plan)


def capture(lab: Lab, request: Request, job: Job) -> Capture:
    """The forward pass over a long text, or the built-in recall."""
    if request.get("model", RECALL) != RECALL:
        return lab.capture(request, job, LONG)
    key = fingerprint({"recall": request.get("input")})
    cached = lab.captures.get(key)
    if cached is None:
        fields = request.get("input")
        cached = recall(check_text(fields if isinstance(fields, dict) else {}, LONG))
        lab.captures.put(key, cached)
    return cached


def run(lab: Lab, request: Request, job: Job) -> LongRun:
    """The tokens' offsets in the text, and the attentions to choose from; `windows` where it was read by windows."""
    run = read_text(lab, request, job)
    tokens, plan = run.tokens, run.plan
    offsets = torch.tensor([(token.start, token.end) for token in tokens], dtype=torch.int32)
    attentions = [attention.describe() for attention in run.attentions]
    unknown = torch.tensor([token.unknown for token in tokens])
    return {
        "side": run.side,
        "tokens": len(tokens),
        "offsets": offsets,
        "unknown": unknown,
        "notices": run.notices,
        "attentions": attentions,
        "metadata": run.metadata,
        "windows": None if plan is None else {"length": plan.length, "count": len(plan.windows)},
    }


def find_long_head(lab: Lab, request: Request, job: Job) -> tuple[CapturedAttention | WindowedAttention, int]:
    attention = read_text(lab, request, job).attention(request.get("attention", 0))
    return attention, check_index(request.get("head", 0), attention.heads, "head")


def map(lab: Lab, request: Request, job: Job) -> LongMap:
    """A region pooled to at most 512 × 512 cells, with its curves and its largest weights.

    Of a region with more than 16,384 queries 2,048 evenly spaced ones are computed, unless `exact`; `visited` is their
    number. `received [columns]` is the mean weight that a column's keys get from a query.
    """
    down, across = read_shape(request.get("shape", [256, 256]))
    if down * across > MAX_CACHED_CELLS:
        return compute_map(lab, request, job)
    modified = 0.0 if request.get("model", RECALL) == RECALL else lab.library.entry(request["model"]).modified
    return lab.cached_answer("long/map", {**request, "modified": modified}, lambda: compute_map(lab, request, job))


def compute_map(lab: Lab, request: Request, job: Job) -> LongMap:
    attention, head = find_long_head(lab, request, job)
    rows, keys = read_region(request, attention)
    shape = read_shape(request.get("shape", [256, 256]))
    most = SAMPLE if rows[1] - rows[0] > MAX_EXACT and request.get("exact") is not True else None
    links = check_index(request.get("links", 32), 257, "links")
    apart = check_index(request.get("apart", 1), attention.keys + 1, "apart")
    summary = attention.summarize(head, shape, rows, keys, job, max_queries=most, links=links, min_distance=apart)
    received = torch.nn.functional.adaptive_avg_pool1d(summary.received[None], summary.map.shape[1])[0]
    return {
        "map": summary.map,
        "masked": summary.masked,
        "entropy": summary.entropy,
        "distance": summary.distance,
        "received": received / max(1, summary.visited),
        "links": summary.links.to(torch.int32),
        "link_weights": summary.link_weights,
        "visited": summary.visited,
        "of": rows[1] - rows[0],
        "rows": list(rows),
        "keys": list(keys),
    }


def read_shape(shape: Json) -> tuple[int, int]:
    rows, columns = shape if isinstance(shape, list) and len(shape) == 2 else (None, None)
    if type(rows) is not int or type(columns) is not int or not 1 <= rows <= MAX_CELLS or not 1 <= columns <= MAX_CELLS:
        raise BadInput(f"shape is {shape!r:.40}; it must be [rows, columns], each 1 to {MAX_CELLS}.")
    return rows, columns


def row(lab: Lab, request: Request, job: Job) -> LongRow:
    attention, head = find_long_head(lab, request, job)
    query = check_index(request.get("query", 0), attention.queries, "query")
    count = check_index(request.get("top", 32), 1025, "top")
    weights = attention.weights(head, (query, query + 1))[0]
    best = weights.topk(min(count, len(weights)))
    real = best.values > 0
    pooled = torch.nn.functional.adaptive_max_pool1d(weights[None], min(1024, len(weights)))[0]
    return {"keys": best.indices[real].to(torch.int32), "weights": best.values[real], "profile": pooled}


def sample(lab: Lab, request: Request, job: Job) -> LongText:
    """A long example text by its name: verses or the course's paragraphs in a `language`, or this package's source."""
    size = check_index(request.get("characters", 30_000), LONG.characters + 1, "characters")
    requested, name = request.get("language", "en"), request.get("name", "verses")
    language = next((known for known in LANGUAGES if known == requested), None)
    if language is None:
        raise BadInput(f"language is {requested!r:.20}; it must be en or zh.")
    if name == "verses":
        return {"text": verses(language)[:size]}
    if name == "course":
        return {"text": "\n".join(course_paragraphs(language))[:size]}
    if name != "source":
        raise BadInput(f"name is {name!r:.20}; it must be verses, course or source.")
    folder = files("regard.attention")
    names = sorted(file.name for file in folder.iterdir() if file.name.endswith(".py"))
    return {"text": "\n".join(folder.joinpath(name).read_text("utf8") for name in names)[:size]}


@cache
def course_paragraphs(language: str) -> list[str]:
    """The texts of the course that are longer than a heading."""
    texts: list[str] = []

    def collect(value: object) -> None:
        if isinstance(value, dict) and isinstance(value.get("en"), str) and isinstance(value.get("zh"), str):
            if len(value["en"]) > MIN_PARAGRAPH:
                texts.append(value[language])
        elif isinstance(value, dict | list | tuple):
            for inner in value.values() if isinstance(value, dict) else value:
                collect(inner)

    collect(describe_course())
    return list(dict.fromkeys(texts))


CALLS = {"sample": sample, "run": run, "map": map, "row": row}
