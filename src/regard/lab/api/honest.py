"""Honest reading: five readings of one answer side by side, and what happens to it when heads are changed."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ...errors import BadInput
from ..attribution.ablation import removed, ways_to_remove
from ..attribution.graphs import GraphAsked, GraphLook, dropped, look_at_graph
from ..attribution.methods import READINGS, Look, compared, correlations, each_head, edited, every_head, look
from ..attribution.target import MOST_UNITS, MOST_WEIGHTS, Asked, Question, Units
from ..inputs.images import names_of
from ..inputs.prepared import Prepared, Token
from ..inspect.capture import placed
from ..inspect.predictions import name_of, named, top
from ..lab import Lab, read_seed
from ..library import Loaded, read_json
from ..server.jobs import Job
from .heads import need_index, worst

DRAWS = 5
"""How often weights are shuffled: once says little."""
PIECES = 64
"""Blocks of a detector's cells, or stretches of a recording, that are removed one by one."""
NO_WEIGHTS = {
    "en": "This attention looks at the text that is being written, not at what was read, so it says nothing of these "
    "units. Choose a cross-attention, or one of the encoder's.",
    "zh": "这个注意力看的是正在写的文本，而不是读入的内容，所以对这些单元没有意义。请选择交叉注意力或编码器的注意力。",
}
OTHER_KEYS = {
    "en": "This attention's keys are not the input's tokens (blocks, summaries), so it says nothing of single units.",
    "zh": "这个注意力的键不是输入的词元（而是分块或摘要），所以对单个单元没有意义。",
}
TOO_MANY = {
    "en": "Shuffled and mean weights need every pair at once, which are too many here.",
    "zh": "打乱和平均权重需要一次列出所有的对，这里太多了。",
}


class Reading:
    """A model that was asked something: the question, the units of its input, and the words for its labels."""

    def __init__(self, lab: Lab, ask: dict[str, Any], job: Job) -> None:
        self.loaded, prepared = lab.prepare(ask, job)
        model, task = self.loaded.model, self.loaded.task
        question = Question(whole_or_none(ask, "place"), whole_or_none(ask, "label"))
        self.side, self.about = prepared.side, prepared.about
        self.labels = getattr(task, "tags", None) or names_of(model, task) or self.about.get("labels")
        self.tokenizer = getattr(task, "tokenizer", None) or getattr(model, "tokenizer", None)
        if prepared.side == "nodes":
            numbers = getattr(getattr(task, "target", None), "kind", "class") != "class"
            self.asked: Asked = GraphAsked(model, prepared.arguments, question, numbers)
            self.tokens = [prepared.tokens["nodes"][n] for n in self.asked.sources.tolist()]
        else:
            units, self.tokens = units_of(prepared)
            self.asked = Asked(model, prepared.arguments, question, units, self.about.get("numbers", ())[1:])
        self.places = self.askable(prepared)

    def askable(self, prepared: Prepared) -> list[dict[str, Any]] | int:
        """The tokens that can be asked about; of a graph or a grid of cells, how many places there are."""
        if self.asked.kind == "written":
            return prepared.about["writes"]
        if self.asked.kind in ("tag", "next", "word"):
            return [token.as_dict() for token in prepared.tokens[prepared.side]]
        if prepared.side == "nodes":
            return self.asked.tokens
        return len(prepared.tokens.get("target", prepared.tokens[prepared.side])) if self.asked.kind == "object" else 0

    def look(self) -> Look | GraphLook:
        return look_at_graph(self.asked) if isinstance(self.asked, GraphAsked) else look(self.asked)

    @property
    def ways(self) -> list[Any]:
        return ["drop"] if isinstance(self.asked, GraphAsked) else ways_to_remove(self.asked)

    def effect(self, how: Any, job: Job) -> Tensor:
        """The measured effect of removing each unit."""
        tell = lambda done, of: job.tell(done, of, "")  # noqa: E731
        return (dropped if isinstance(self.asked, GraphAsked) else removed)(self.asked, how, tell)  # type: ignore[operator]

    def drawn(self) -> dict[str, Any]:
        """What a picture or a recording looks like, and how its units lie in it."""
        found: dict[str, Any] = {"side": self.side, "tokens": [token.as_dict() for token in self.tokens]}
        if self.side == "image":
            grid = self.asked.units.grid
            found |= {"pixels": self.about["pixels"], "grid": grid, "first": self.asked.units.first}
            found |= {"box": [self.about["grid"][n] * self.about["cell"][n] / self.about["size"][n] for n in (0, 1)]}
        return found

    def word(self, label: int | None) -> str | None:
        """A label as it is read."""
        if label is None:
            return None
        if self.asked.kind in ("next", "word", "written"):
            return str(label) if self.tokenizer is None else named(self.tokenizer.target, label)
        if self.asked.kind == "object" and label == len(self.asked.before) - 1:
            return "∅"
        return name_of(label, self.labels)

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


def units_of(prepared: Prepared) -> tuple[Units, list[Token]]:
    """The units of an input, and how each is drawn: tokens, blocks of a picture's cells, stretches of a recording."""
    tokens, about = prepared.tokens[prepared.side], prepared.about
    if prepared.side == "image":
        return blocks(tokens, about, PIECES if about["detects"] else MOST_UNITS)
    if prepared.side != "sound":
        return Units(torch.arange(len(tokens))), tokens
    heard, size = about["heard"], -(-about["heard"] // PIECES)
    of = torch.arange(len(tokens)) // size
    of[heard:] = -(-heard // size)
    shown = [Token(tokens[n].text, n, min(n + size, heard)) for n in range(0, heard, size)]
    shown += [Token("…", heard, len(tokens), special=True)] if heard < len(tokens) else []
    return Units(of, frames=about["frames_per_token"], quietest=about["quietest"]), shown


def blocks(tokens: list[Token], about: dict[str, Any], most: int) -> tuple[Units, list[Token]]:
    """A picture's cells in square blocks, as few cells each as leave not too many blocks; a class token for itself."""
    rows, columns = about["grid"]
    first, size = len(tokens) - rows * columns, 1
    while -(-rows // size) * -(-columns // size) + first > most:
        size += 1
    down, across = -(-rows // size), -(-columns // size)
    cell = torch.arange(rows * columns)
    of = torch.cat([torch.arange(first), first + cell // columns // size * across + cell % columns // size])
    shown = tokens[:first] + [Token(f"{n // across},{n % across}", n, n + 1) for n in range(down * across)]
    return Units(of, (down, across, size), tuple(about["cell"]), columns, first), shown


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
    """The readings of one prediction, `[units]` each, and their rank correlations.

    A reading without meaning for the chosen attention is None, and `reasons` says why.
    """
    ran = lab.capture({"model": ask.get("model"), "input": ask.get("input")}, job)
    with reading(lab, ask, job) as held:
        asked, ways = held.asked, held.ways
        how = ask.get("removal") or ways[0]
        job.tell(0, asked.units.count, "")
        seen = held.look()
        names = seen.names
        number = seen.usual() if ask.get("attention") is None else need_index(ask["attention"], len(names), "attention")
        head = whole_or_none(ask, "head")
        if head is not None:
            need_index(head, seen.heads(names[number]), "head")
        found = weighed(seen, names[number], head)
        found["effect"] = held.effect(how, job)
        return held.drawn() | {
            "places": held.places,
            "question": held.question(),
            "attentions": [
                {"name": name, "label": placed(name, held.side)[1], "heads": seen.heads(name)} for name in names
            ],
            "attention": number,
            "head": head,
            "removal": how,
            "ways": ways,
            "read": asked.units.pooled(seen.read) if isinstance(seen, Look) else seen.read,
            "readings": found,
            "reasons": {name: why(seen, names[number]) for name, one in found.items() if one is None},
            "backend": ran.attention(names[number]).backend,
            "difference": worst(ran, job)["largest"],
            "correlations": {"size": correlations(found), "signed": correlations(found, signed=True)},
        }


def weighed(seen: Look | GraphLook, name: str, head: int | None) -> dict[str, Tensor | None]:
    """The four readings that look at weights."""
    found = seen.raw(name, head), seen.value(name, head), seen.rollout(name), seen.gradient(name, head)
    plain = (None if one is None else one.detach().float() for one in found)
    return dict(zip(READINGS, plain, strict=False))


def why(seen: Look | GraphLook, name: str) -> dict[str, str]:
    """Why an attention says nothing of the input's units."""
    return NO_WEIGHTS if isinstance(seen, Look) and seen.asked.sides(name)[1] == "target" else OTHER_KEYS


def baselines(lab: Lab, ask: dict[str, Any], job: Job) -> dict[str, Any]:
    """The prediction of the model with every head uniform, at its mean, silent, and shuffled by several seeds; and of
    models trained alike from other seeds."""
    seed = read_seed(ask)
    with reading(lab, ask, job) as held:
        asked = held.asked
        tries = [(how, seed) for how in ("uniform", "mean", "silent")] + [("shuffle", seed + n) for n in range(DRAWS)]
        few = asked.weights <= MOST_WEIGHTS
        tries = tries if few else [(how, drawn) for how, drawn in tries if how in ("uniform", "silent")]
        found: list[dict[str, Any]] = []
        draws: list[dict[str, Any]] = []
        for done, (how, drawn) in enumerate(tries):
            job.tell(done, len(tries), how)
            after = held.outcome(edited(asked, every_head(asked, how), drawn))
            found.append({"change_kind": how} | after) if how != "shuffle" else draws.append({"seed": drawn} | after)
        answer = {"question": held.question(), "baselines": found, "shuffled": draws, "note": None if few else TOO_MANY}
        raw = last_weights(held)
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
    lab: Lab, ask: dict[str, Any], held: Reading, raw: Tensor | None, sister: tuple[str, int], job: Job
) -> dict[str, Any]:
    """The prediction and the weights of a model trained alike from another seed."""
    name, seed = sister
    with reading(lab, {**ask, "model": name, "label": None}, job) as other:
        weights = last_weights(other)
        found = {"model": name, "seed": seed, "question": other.question()}
    same = raw is not None and weights is not None and weights.shape == raw.shape
    return found | {"correlation": correlations({"a": raw, "b": weights})["a"]["b"] if same else None}


def last_weights(held: Reading) -> Tensor | None:
    """The mean weights of the attention that is read unless another is asked for."""
    seen = held.look()
    found = seen.raw(seen.names[seen.usual()], None)
    return None if found is None else found.detach()


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
