"""Random requests to the lab: valid ones of every page, changed in one or several places, and plain nonsense."""

from __future__ import annotations

import base64
import json
import random
from dataclasses import dataclass, field
from typing import Any

TEXT = {"text": "The animal didn't cross the street because it was too tired."}
PAIR = {"model": "pair", "input": {"text": "the cat sat"}}
IMAGE = {"model": "objects", "input": {"example": "square.png"}}
GRAPH = {"model": "karate", "input": {"example": "karate.npz"}}
SILENCE = base64.b64encode(b"RIFF" + bytes(40)).decode()
SEEDS: list[tuple[str, dict[str, Any]]] = [
    ("heads/run", {"model": "bert", "input": TEXT}),
    ("heads/overview", {"model": "bert", "input": TEXT}),
    ("heads/map", {"model": "bert", "input": TEXT, "attention": 1, "head": 1, "rows": [0, 4], "keys": [0, 4]}),
    ("heads/row", {"model": "llama", "input": TEXT, "attention": 0, "head": 0, "query": 2}),
    ("heads/tokens", {"model": "bert", "input": TEXT, "attention": 0, "head": 0}),
    ("heads/roles", {"model": "bert", "input": TEXT}),
    ("heads/pair", {"model": "bert", "input": TEXT, "queries": [1], "keys": [2]}),
    ("formula/run", {"model": "bert", "input": TEXT, "attention": 0, "head": 0}),
    ("formula/row", {"model": "bert", "input": TEXT, "attention": 0, "head": 0, "query": 1, "keys": [0, 3]}),
    ("formula/cell", {"model": "bert", "input": TEXT, "attention": 0, "head": 0, "query": 1, "key": 2}),
    ("formula/map", {"model": "bert", "input": TEXT, "attention": 0, "head": 0, "stage": "score"}),
    ("alignment/write", {**PAIR, "beams": 2, "penalty": 1.0}),
    ("alignment/read", {**PAIR, "head": 0, "attention": 0}),
    ("honest/read", {"model": "reviews-0", "input": {"text": "the cat"}, "place": 0}),
    ("honest/change", {"model": "reviews-0", "input": {"text": "the cat"}, "edits": [{"attention": 0, "head": 0}]}),
    ("honest/heads", {"model": "reviews-0", "input": {"text": "the cat"}}),
    ("image/run", IMAGE),
    ("image/query", {**IMAGE, "query": 2, "crossed": True}),
    ("image/rollout", IMAGE),
    ("sound/run", {"model": "spoken-digits", "input": {"base64": SILENCE}}),
    ("sound/query", {"model": "spoken-digits", "input": {"example": "3_nicolas_0.wav"}, "query": 1}),
    ("sound/audio", {"model": "spoken-digits", "input": {"example": "3_nicolas_0.wav"}}),
    ("graph/run", GRAPH),
    ("graph/around", {**GRAPH, "attention": 0, "node": 3}),
    ("graph/around", {"model": "cora", "input": {"example": "cora.npz"}, "attention": 0, "node": 3, "hops": 1}),
    ("graph/run", {"model": "karate", "input": {"edges": [[0, 1]], "nodes": 3}}),
    ("long/run", {"model": "recall", "input": TEXT}),
    ("long/map", {"model": "recall", "input": TEXT, "shape": [8, 8], "rows": [0, 9], "keys": [0, 9], "links": 4}),
    (
        "long/map",
        {"model": "tagger", "input": {"text": "a cat " * 200}, "shape": [8, 8], "windows": True, "exact": True},
    ),
    ("long/row", {"model": "recall", "input": TEXT, "query": 4, "top": 3}),
    ("long/sample", {"characters": 200, "language": "zh"}),
    ("mechanisms/plan", {"mask": "Causal()", "position": "Alibi()", "sizes": {"tokens": 8, "heads": 2, "head_dim": 4}}),
    ("mechanisms/choices", {}),
    ("mechanisms/dictionary", {"query": "apple", "entries": {"apple": 10, "pear": 3}, "sharpness": 4}),
    ("course/list", {}),
    ("course/run", {"chapter": "qkv", "values": {}}),
    ("experiments/list", {}),
    ("experiments/figure", {"name": "meaning", "language": "en"}),
    ("experiments/sweep", {"name": "meaning"}),
    ("runs/list", {}),
    ("runs/overview", {}),
    ("runs/curves", {"run": "reviews-0", "after": 0}),
    ("runs/about", {"run": "reviews-0"}),
    ("runs/samples", {"run": "reviews-0", "start": 0, "count": 3}),
    (
        "page",
        {"state": {"page": "heads"}, "asks": [{"path": "heads/run", "body": {"model": "meanings", "input": TEXT}}]},
    ),
]
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 7, 2**31, -(2**63), 10**400, 0.5, -0.0, 1e308, 5e-324),
    *("", "a", "bert", "../bert", "\x00", "\ud800", "𝒳" * 9, "猫追狗", "</script>", "0", "-1", "NaN", "a" * 5000),
    *([], [[]], [0], [0, 0], [1, 0], [-1, 2], [0, 10**9], [None], ["a", "b"], [[0.5, 0.5]], list(range(300))),
    *({}, {"text": ""}, {"text": 3}, {"tensor": 0, "at": 0}, {"base64": "@@"}, {"upload": "x"}, {"example": "../x"}),
]
KEYS = [
    "model",
    "input",
    "head",
    "attention",
    "query",
    "rows",
    "keys",
    "edits",
    "seed",
    "shape",
    "place",
    "windows",
    "base",
    "shown",
]
PARTS = [
    "Causal()",
    "Window(3)",
    "Rotary(dim=-1)",
    "Dot(",
    "__import__('os')",
    "Lengths([1])",
    "A" * 300,
    "Bias(1e999)",
]
PATHS = [
    "/",
    "/api/models",
    "/api/job/x",
    "/static/main.js",
    "/static/%2e%2e/app.py",
    "/api//",
    "/api/heads/run/x",
    "/%ff",
]


@dataclass(frozen=True)
class SentRequest:
    """A request as it is sent."""

    method: str
    path: str
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)


def mutate(value: Any, source: random.Random) -> Any:
    """The value changed in one place, at random."""
    if isinstance(value, dict) and value and source.random() < 0.85:
        changed, key = dict(value), source.choice(list(value))
        choice = source.random()
        if choice < 0.15:
            del changed[key]
        elif choice < 0.3:
            changed[source.choice(KEYS)] = source.choice(VALUES)
        else:
            changed[key] = mutate(changed[key], source)
        return changed
    if isinstance(value, list) and value and source.random() < 0.6:
        changed = list(value)
        n = source.randrange(len(changed))
        changed[n] = mutate(changed[n], source)
        return changed
    if isinstance(value, int) and not isinstance(value, bool) and source.random() < 0.5:
        return value + source.choice([-1, 1, 10, 1000])
    return source.choice([*VALUES, *PARTS])


def random_request(source: random.Random) -> SentRequest:
    """One request: mostly a valid one with one to three changes."""
    choice = source.random()
    if choice < 0.05:
        return SentRequest(source.choice(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS"]), source.choice(PATHS))
    if choice < 0.1:
        return SentRequest("POST", "/api/upload", source.randbytes(source.randrange(200)))
    path, body = source.choice(SEEDS)
    headers = {"content-type": "application/json", "x-job": source.choice(["", "a", "../x", "a" * 99])}
    if choice < 0.15:
        return SentRequest("POST", f"/api/{path}", source.randbytes(source.randrange(60)), headers)
    for _ in range(source.randrange(4)):
        body = mutate(body, source)
    data = json.dumps(body).encode("utf-8", "replace")
    if choice < 0.2:
        cut = source.randrange(len(data) + 1)
        data = data[:cut] + source.randbytes(2) + data[cut:]
    return SentRequest("POST", f"/api/{path}", data, headers)
