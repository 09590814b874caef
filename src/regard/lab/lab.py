"""What the pages' calls work with: the models, what was uploaded, and the passes that were made lately."""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

from ..errors import BadInput
from .inputs.inputs import from_base64, prepare
from .inputs.prepared import FEW, Limits, Prepared
from .inspect.capture import Capture, capture
from .library import Library, Loaded, Unknown
from .server.jobs import Job, Work

CAPTURES = 1 << 28
"""Bytes of passes that are kept."""
UPLOADS, UPLOAD = 64 << 20, 10 << 20
"""Bytes of all uploads together, and of one."""
ANSWERS, INPUTS = 128, 32
"""Answers that took long and are kept: a saved view asks for its own again; and inputs, which may have been written."""


Item = TypeVar("Item")


class Lab:
    """The state of one server; everything in it can be made again."""

    def __init__(self, library: Library | None = None, work: Work | None = None) -> None:
        self.library, self.work = library or Library(), work or Work()
        self.captures: Kept[Capture] = Kept(CAPTURES, lambda one: one.bytes)
        self.uploads: Kept[bytes] = Kept(UPLOADS, len)
        self.answers: Kept[dict[str, Any]] = Kept(ANSWERS, lambda one: 1)
        self.inputs: Kept[Prepared] = Kept(INPUTS, lambda one: 1)

    def open(self, name: Any, job: Job) -> Loaded:
        """The model of that name."""
        return self.library.open(name, job)

    def prepare(self, ask: dict[str, Any], job: Job, limits: Limits = FEW) -> tuple[Loaded, Prepared]:
        """The model that was asked for and its input. Whoever calls this holds the model's lock if it writes itself."""
        given = ask.get("input")
        if not isinstance(given, dict):
            raise BadInput(f'The input is {given!r:.60}; it must be an object, such as {{"text": "..."}}.')
        loaded = self.open(ask.get("model"), job)
        key = fingerprint({"model": ask["model"], "input": given, "limits": limits, "written": loaded.entry.written})
        found = self.inputs.get(key)
        if found is None:
            fetch = self.fetcher(loaded)
            found = prepare(loaded.model, loaded.task, loaded.kind, given, fetch, limits)
            self.inputs.put(key, found)
        return loaded, found

    def capture(self, ask: dict[str, Any], job: Job, limits: Limits = FEW) -> Capture:
        """The pass that was asked for by model, input and edits: one that is kept, or a new one."""
        written = self.library.entry(ask.get("model")).written
        asked = {name: ask.get(name) for name in ("model", "input", "edits", "seed")}
        key = fingerprint(asked | {"limits": limits, "written": written})
        found = self.captures.get(key)
        if found is not None:
            return found
        loaded = self.open(ask.get("model"), job)
        with job.holding(loaded.lock):
            found = self.captures.get(key)
            if found is None:
                _, prepared = self.prepare(ask, job, limits)
                found = capture(loaded.model, prepared, read_edits(ask.get("edits")), job, read_seed(ask))
                self.captures.put(key, found)
        return found

    def remembered(self, call: str, ask: dict[str, Any], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """An answer that takes long: made once, as long as it is among those asked for last."""
        key = fingerprint({"call": call, "ask": ask})
        found = self.answers.get(key)
        if found is None:
            found = make()
            self.answers.put(key, found)
        return found

    def fetcher(self, loaded: Loaded) -> Callable[[dict[str, Any]], bytes]:
        """How an input's bytes are found: an upload by its name, one of the model's examples, or base64."""

        def fetch(given: dict[str, Any]) -> bytes:
            if "example" in given:
                return loaded.entry.example(str(given["example"]))
            if "base64" in given:
                return from_base64(given["base64"])
            if "upload" in given:
                found = self.uploads.get(str(given["upload"]))
                if found is None:
                    raise Unknown("That upload is not kept any more. Upload the file again.")
                return found
            raise BadInput(f"The input is {sorted(given)}; this model reads a file: give upload, example or base64.")

        return fetch

    def keep(self, data: bytes) -> str:
        """Keep what was uploaded, under a name that cannot be guessed."""
        name = secrets.token_hex(12)
        self.uploads.put(name, data)
        return name


class Kept(Generic[Item]):
    """The things asked for last, as many as fit into `room` bytes (the very last always)."""

    def __init__(self, room: int, size: Callable[[Item], int]) -> None:
        self.room, self.size, self.taken = room, size, 0
        self.items: OrderedDict[str, tuple[Item, int]] = OrderedDict()
        self.lock = threading.Lock()

    def get(self, name: str) -> Item | None:
        with self.lock:
            if name not in self.items:
                return None
            self.items.move_to_end(name)
            return self.items[name][0]

    def put(self, name: str, item: Item) -> None:
        size = self.size(item)
        with self.lock:
            self.taken += size - (self.items.pop(name)[1] if name in self.items else 0)
            self.items[name] = item, size
            while self.taken > self.room and len(self.items) > 1:
                self.taken -= self.items.popitem(last=False)[1][1]


def fingerprint(ask: dict[str, Any]) -> str:
    """The same for the same question."""
    return hashlib.sha256(json.dumps(ask, sort_keys=True).encode("utf-8", "replace")).hexdigest()


def read_seed(ask: dict[str, Any]) -> int:
    seed = ask.get("seed", 0)
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**31:
        raise BadInput(f"The seed is {seed!r:.40}; it must be a whole number of at least 0.")
    return seed


def read_edits(edits: Any) -> dict[str | tuple[int, int], Any]:
    """Edits as `regard.edit` takes them, from `[{"attention": 0 or its name, "head": 2, "change": "silent"}]`.

    A change is "silent", "uniform", "shuffle", or weights as a list of rows. `"query": i` with `"weights": [...]`
    changes that one row and leaves the others.
    """
    if edits is None:
        return {}
    if not isinstance(edits, list) or not all(isinstance(one, dict) for one in edits):
        raise BadInput(f"edits is {edits!r:.60}; it must be a list of objects with attention, head and change.")
    found: dict[Any, Any] = {}
    for one in edits:
        where, head, change = one.get("attention"), one.get("head"), one.get("change")
        if not isinstance(where, int | str) or not isinstance(head, int):
            raise BadInput(f"An edit is {one!r:.80}; it must say attention (a number or a name) and head (a number).")
        if "query" in one:
            change = row_changer(one["query"], numbers(one.get("weights")))
        elif isinstance(change, list):
            change = numbers(change)
        if isinstance(where, int):
            found[where, head] = change
        else:
            found.setdefault(where, {})[head] = change
    return found


def numbers(values: Any) -> torch.Tensor:
    try:
        return torch.tensor(values, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(f"The weights of an edit are no list of numbers ({error}).") from None


def row_changer(query: Any, weights: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """A head's weights with those of one query in the place of its own."""

    def change(own: torch.Tensor) -> torch.Tensor:
        if not isinstance(query, int) or not 0 <= query < own.shape[1] or weights.shape != own.shape[2:]:
            raise BadInput(
                f"An edit gives query {query!r} {list(weights.shape)} weights; there are {own.shape[1]} queries and "
                f"{own.shape[2]} keys."
            )
        other = own.clone()
        other[:, query] = weights.to(own.dtype)
        return other

    return change
