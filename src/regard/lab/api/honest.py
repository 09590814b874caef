"""Honest reading: five readings of one prediction side by side, and what happens to it when heads are changed."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from ...attention.errors import BadInput
from ..answers import named, top
from ..capture import placed
from ..lab import Lab, read_seed
from ..library import Loaded, read_json
from ..readings import (
    READINGS,
    Asked,
    Look,
    Question,
    compared,
    correlations,
    each_head,
    edited,
    every_head,
    look,
    removed,
    ways_to_remove,
)
from ..work import Job
from .heads import need_index, worst

DRAWS = 5
"""How often weights are shuffled: once says little."""


class Reading:
    """A model that was asked something: the question, and the words for its labels."""

    def __init__(self, lab: Lab, ask: dict[str, Any], job: Job) -> None:
        self.loaded, prepared = lab.prepare(ask, job)
        self.tokens = prepared.tokens.get("source", [])
        question = Question(whole_or_none(ask, "place"), whole_or_none(ask, "label"))
        self.asked = Asked(self.loaded.model, prepared.arguments, question)
        self.labels = getattr(self.loaded.task, "tags", None) or getattr(self.loaded.task, "labels", None)
        self.tokenizer = getattr(self.loaded.task, "tokenizer", None) or getattr(self.loaded.model, "tokenizer", None)

    def word(self, label: int | None) -> str | None:
        """A label as it is read."""
        if label is None:
            return None
        if self.asked.kind in ("next", "word"):
            return named(self.tokenizer, label)
        return str(self.labels[label]) if self.labels else str(label)

    def question(self) -> dict[str, Any]:
        """What is asked about, and the labels that could be."""
        asked, score = self.asked, self.asked.now()
        found = {"kind": asked.kind, "place": asked.place, "label": asked.label, "score": score}
        if asked.label is None:
            return found | {"choices": []}
        choices = [{"label": n, "word": self.word(n), "probability": p} for n, p in top(asked.before)]
        return found | {"word": self.word(asked.label), "probability": math.exp(score), "choices": choices}

    def outcome(self, after: Tensor) -> dict[str, Any]:
        """Another answer, with the words for what it says."""
        found = compared(self.asked, after)
        if "top" not in found:
            return found
        items = [{"label": n, "word": self.word(n), "probability": p} for n, p in top(after, 3)]
        return found | {"top_word": self.word(found["top"]), "items": items}


@contextmanager
def reading(lab: Lab, ask: dict[str, Any], job: Job):
    """The question, with the model held for as long as it is open."""
    with job.holding(lab.open(ask.get("model"), job).lock):
        yield Reading(lab, ask, job)


def whole_or_none(ask: dict[str, Any], name: str) -> int | None:
    value = ask.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise BadInput(f"{name} is {value!r:.40}; it must be a whole number, or left out.")
    return value


def read(lab: Lab, ask: dict[str, Any], job: Job) -> dict[str, Any]:
    """The readings of one prediction, `[tokens]` each, and their rank correlations."""
    ran = lab.capture({"model": ask.get("model"), "input": ask.get("input")}, job)
    with reading(lab, ask, job) as held:
        asked, ways = held.asked, ways_to_remove(held.asked)
        how = ask.get("removal") or ways[0]
        job.tell(0, asked.tokens, "")
        seen = look(asked)
        names = seen.names
        number = (
            len(names) - 1 if ask.get("attention") is None else need_index(ask["attention"], len(names), "attention")
        )
        head = whole_or_none(ask, "head")
        if head is not None:
            need_index(head, seen.heads(names[number]), "head")
        found = weighed(seen, names[number], head)
        found["effect"] = removed(asked, how, lambda done, of: job.tell(done, of, ""))
        return {
            "tokens": [token.as_dict() for token in held.tokens],
            "question": held.question(),
            "attentions": [
                {"name": name, "label": placed(name, "source")[1], "heads": seen.heads(name)} for name in names
            ],
            "attention": number,
            "head": head,
            "removal": how,
            "ways": ways,
            "read": seen.read,
            "readings": found,
            "backend": ran.attention(names[number]).backend,
            "difference": worst(ran, job)["largest"],
            "correlations": {"size": correlations(found), "signed": correlations(found, signed=True)},
        }


def weighed(seen: Look, name: str, head: int | None) -> dict[str, Tensor]:
    """The four readings that look at weights."""
    found = seen.raw(name, head), seen.value(name, head), seen.rollout(name), seen.gradient(name, head)
    return dict(zip(READINGS, (one.detach().float() for one in found), strict=False))


def baselines(lab: Lab, ask: dict[str, Any], job: Job) -> dict[str, Any]:
    """The prediction of the model with every head uniform, at its mean, silent, and shuffled by several seeds; and of
    models trained alike from other seeds."""
    seed = read_seed(ask)
    with reading(lab, ask, job) as held:
        asked = held.asked
        tries = [(how, seed) for how in ("uniform", "mean", "silent")] + [("shuffle", seed + n) for n in range(DRAWS)]
        found: list[dict[str, Any]] = []
        draws: list[dict[str, Any]] = []
        for done, (how, drawn) in enumerate(tries):
            job.tell(done, len(tries), how)
            after = held.outcome(edited(asked, every_head(asked, how), drawn))
            found.append({"change_kind": how} | after) if how != "shuffle" else draws.append({"seed": drawn} | after)
        answer = {"question": held.question(), "baselines": found, "shuffled": draws}
        own = look(asked)
        raw = own.raw(own.names[-1], None).detach()
    return answer | {"others": [other_seed(lab, ask, held, raw, entry, job) for entry in sisters(lab, held.loaded)]}


def sisters(lab: Lab, loaded: Loaded) -> list[tuple[str, int]]:
    """The models that were trained as this one was, but from other seeds: names and seeds."""
    mine = loaded.description
    found = []
    for name, entry in lab.library.entries().items() if mine else ():
        if entry.task != loaded.entry.task or name == loaded.entry.name or entry.path is None:
            continue
        other = read_json(entry.path / "run.json")
        if all(other.get(part) == mine.get(part) for part in ("settings", "architecture")) and alike(other, mine):
            found.append((name, other["training"]["seed"]))
    return found


def alike(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether two runs were trained alike but for the seed."""
    first, second = (run.get("training") or {} for run in (a, b))
    return first.get("seed") != second.get("seed") and all(
        first.get(name) == second.get(name) for name in {*first, *second} - {"seed", "device"}
    )


def other_seed(
    lab: Lab, ask: dict[str, Any], held: Reading, raw: Tensor, sister: tuple[str, int], job: Job
) -> dict[str, Any]:
    """The prediction and the weights of a model trained alike from another seed."""
    name, seed = sister
    with reading(lab, {**ask, "model": name, "label": None}, job) as other:
        seen = look(other.asked)
        weights = seen.raw(seen.names[-1], None).detach()
        found = {"model": name, "seed": seed, "question": other.question()}
    same = weights.shape == raw.shape
    return found | {"correlation": correlations({"a": raw, "b": weights})["a"]["b"] if same else None}


def change(lab: Lab, ask: dict[str, Any], job: Job) -> dict[str, Any]:
    """The prediction with the heads of `edits` changed: `[{"attention": name, "head": 2, "change": "silent"}]`."""
    with reading(lab, ask, job) as held:
        changes: dict[str, dict[int, Any]] = {}
        for one in ask.get("edits") or []:
            if (
                not isinstance(one, dict)
                or not isinstance(one.get("attention"), str)
                or not isinstance(one.get("head"), int)
            ):
                raise BadInput(f"An edit is {one!r:.80}; it must have attention (a name), head (a number) and change.")
            changes.setdefault(one["attention"], {})[one["head"]] = str(one.get("change"))
        before = held.outcome(held.asked.before)
        return {
            "before": before,
            "after": held.outcome(edited(held.asked, changes, read_seed(ask))),
            "question": held.question(),
        }


def heads(lab: Lab, ask: dict[str, Any], job: Job) -> dict[str, Any]:
    """The change of the score when each head alone is changed, `[attentions, heads]`."""
    how = ask.get("change", "silent")
    with reading(lab, ask, job) as held:
        changes = each_head(held.asked, how, read_seed(ask), lambda done, of: job.tell(done, of, how))
    return {"change": how, "heads": changes}


def kept(name: str, call: Callable[[Lab, dict[str, Any], Job], dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    return lambda lab, ask, job: lab.remembered(f"honest/{name}", ask, lambda: call(lab, ask, job))


CALLS = {
    name: kept(name, call)
    for name, call in {"read": read, "baselines": baselines, "change": change, "heads": heads}.items()
}
