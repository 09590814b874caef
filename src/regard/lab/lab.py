"""The state behind the pages' calls: the models, the uploads, and caches of forward passes and answers."""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Generic, TypeVar

import torch

from ..errors import BadInput
from ..nn.hooks.edit import HeadEdit
from .inputs.model_input import SHORT, Limits, ModelInput
from .inputs.notices import find_notices
from .inputs.prepare import FileReader, decode_base64, prepare
from .inspect.capture import Capture, capture
from .library import LoadedModel, ModelLibrary, NotFound
from .protocol import Answer, Json, Request
from .server.jobs import Job, JobQueue

MAX_CAPTURES = 1 << 28
"""Bytes of cached forward passes."""
MAX_UPLOADS, MAX_UPLOAD = 64 << 20, 10 << 20
"""Bytes of all uploads together, and of one."""
MAX_ANSWERS, MAX_INPUTS = 128, 32
"""Cached answers of slow calls, which an export reads again, and cached inputs, whose target may be generated."""

Item = TypeVar("Item")
AnswerType = TypeVar("AnswerType", bound=Answer)


class Lab:
    """The state of one server; everything in it can be computed again."""

    def __init__(self, library: ModelLibrary | None = None, jobs: JobQueue | None = None) -> None:
        self.library, self.jobs = library or ModelLibrary(), jobs or JobQueue()
        self.captures: LRUCache[Capture] = LRUCache(MAX_CAPTURES, lambda capture: capture.bytes)
        self.uploads: LRUCache[bytes] = LRUCache(MAX_UPLOADS, len)
        self.answers: LRUCache[Any] = LRUCache(MAX_ANSWERS, lambda answer: 1)  # of every call, by its name and request
        self.inputs: LRUCache[ModelInput] = LRUCache(MAX_INPUTS, lambda prepared: 1)

    def open(self, name: Json, job: Job) -> LoadedModel:
        """The model of that name."""
        return self.library.open(name, job)

    def prepare(self, request: Request, job: Job, limits: Limits = SHORT) -> tuple[LoadedModel, ModelInput]:
        """The requested model and its input. The caller holds the model's lock, since the model may generate."""
        fields = request.get("input")
        if not isinstance(fields, dict):
            raise BadInput(f'The input is {fields!r:.60}; it must be an object, such as {{"text": "..."}}.')
        loaded = self.open(request.get("model"), job)
        key = fingerprint(
            {"model": request["model"], "input": fields, "limits": limits, "modified": loaded.entry.modified}
        )
        prepared = self.inputs.get(key)
        if prepared is None:
            read_file = self.file_reader(loaded)
            prepared = prepare(loaded.model, loaded.task, loaded.modality, fields, read_file, limits)
            text = fields.get("text") if loaded.modality in ("text", "pair") else ""
            notices = find_notices(loaded, self.library.known, text if isinstance(text, str) else "", prepared)
            prepared = replace(prepared, metadata={**prepared.metadata, "notices": notices})
            self.inputs.put(key, prepared)
        return loaded, prepared

    def capture(self, request: Request, job: Job, limits: Limits = SHORT) -> Capture:
        """The forward pass of the requested model, input and edits, from the cache or new."""
        modified = self.library.entry(request.get("model")).modified
        fields = {name: request.get(name) for name in ("model", "input", "edits", "seed")}
        key = fingerprint(fields | {"limits": limits, "modified": modified})
        cached = self.captures.get(key)
        if cached is not None:
            return cached
        loaded = self.open(request.get("model"), job)
        with job.hold(loaded.lock):
            cached = self.captures.get(key)
            if cached is None:
                _, prepared = self.prepare(request, job, limits)
                cached = capture(loaded.model, prepared, read_edits(request.get("edits")), job, read_seed(request))
                self.captures.put(key, cached)
        return cached

    def cached_answer(self, call: str, request: Request, make: Callable[[], AnswerType]) -> AnswerType:
        """The answer of a slow call, from the cache or new."""
        key = fingerprint({"call": call, "request": request})
        answer = self.answers.get(key)
        if answer is None:
            answer = make()
            self.answers.put(key, answer)
        return answer

    def file_reader(self, loaded: LoadedModel) -> FileReader:
        """A function that reads the bytes an input names: an upload, one of the model's examples, or base64."""

        def read(fields: Request) -> bytes:
            if "example" in fields:
                return loaded.entry.read_example(str(fields["example"]))
            if "base64" in fields:
                return decode_base64(fields["base64"])
            if "upload" in fields:
                data = self.uploads.get(str(fields["upload"]))
                if data is None:
                    raise NotFound("That upload is no longer in memory. Upload the file again.")
                return data
            raise BadInput(f"The input is {sorted(fields)}; this model reads a file: give upload, example or base64.")

        return read

    def store_upload(self, data: bytes) -> str:
        """Store an upload; returns its name, which cannot be guessed."""
        name = secrets.token_hex(12)
        self.uploads.put(name, data)
        return name


class LRUCache(Generic[Item]):
    """The most recently used items that fit into `capacity` (the last one always stays)."""

    def __init__(self, capacity: int, size: Callable[[Item], int]) -> None:
        self.capacity, self.size, self.used = capacity, size, 0
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
            self.used += size - (self.items.pop(name)[1] if name in self.items else 0)
            self.items[name] = item, size
            while self.used > self.capacity and len(self.items) > 1:
                self.used -= self.items.popitem(last=False)[1][1]


def fingerprint(fields: Mapping[str, object]) -> str:
    """A hash that is equal for equal fields."""
    return hashlib.sha256(json.dumps(dict(fields), sort_keys=True).encode("utf-8", "replace")).hexdigest()


def read_seed(request: Request) -> int:
    seed = request.get("seed", 0)
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**31:
        raise BadInput(f"The seed is {seed!r:.40}; it must be a whole number of at least 0.")
    return seed


def read_edits(edits: Json) -> dict[str | tuple[int, int], HeadEdit | dict[int, HeadEdit]]:
    """Edits as `regard.edit` takes them, from `[{"attention": 0 or its name, "head": 2, "change": "silent"}]`.

    A change is "silent", "uniform", "shuffle", or weights as a list of rows. `"query": i` with `"weights": [...]`
    changes that one row and leaves the others.
    """
    if edits is None:
        return {}
    if not isinstance(edits, list) or not all(isinstance(edit, dict) for edit in edits):
        raise BadInput(f"edits is {edits!r:.60}; it must be a list of objects with attention, head and change.")
    by_layer: dict[tuple[int, int], HeadEdit] = {}
    by_name: dict[str, dict[int, HeadEdit]] = {}
    for edit in edits:
        attention, head = (edit.get("attention"), edit.get("head")) if isinstance(edit, dict) else (None, None)
        if not isinstance(edit, dict) or not isinstance(attention, int | str) or not isinstance(head, int):
            raise BadInput(f"An edit is {edit!r:.80}; it must have attention (a number or a name) and head (a number).")
        change = read_change(edit)
        if isinstance(attention, int):
            by_layer[attention, head] = change
        else:
            by_name.setdefault(attention, {})[head] = change
    return {**by_layer, **by_name}


def read_change(edit: Request) -> HeadEdit:
    """The change of an edit: a name, weights, or a function that replaces one row of them."""
    change = edit.get("change")
    if "query" in edit:
        return row_replacer(edit["query"], read_weights(edit.get("weights")))
    if isinstance(change, list):
        return read_weights(change)
    if not isinstance(change, str):
        raise BadInput(f"An edit is {edit!r:.80}; its change must be a name or a list of rows of weights.")
    return change


def read_weights(values: Json) -> torch.Tensor:
    try:
        return torch.tensor(values, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(f"The weights of an edit are not a list of numbers ({error}).") from None


def row_replacer(query: Json, weights: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function that replaces one query's row in a head's weights `[batch, queries, keys]`."""

    def replace_row(own: torch.Tensor) -> torch.Tensor:
        if not isinstance(query, int) or not 0 <= query < own.shape[1] or weights.shape != own.shape[2:]:
            raise BadInput(
                f"An edit gives query {query!r} {list(weights.shape)} weights; there are {own.shape[1]} queries and "
                f"{own.shape[2]} keys."
            )
        changed = own.clone()
        changed[:, query] = weights.to(own.dtype)
        return changed

    return replace_row
