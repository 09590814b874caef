"""The page Honest: five attributions of one prediction side by side, and predictions with edited heads."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ...errors import BadInput
from ...models.model import Model
from ..attribution.ablation import Ablation, ablate, ablation_methods
from ..attribution.graphs import GraphPass, GraphTarget, ablate_edges, run_graph_pass
from ..attribution.methods import (
    METHODS,
    AttributionPass,
    compare_prediction,
    edit_all_heads,
    head_effects,
    predict_edited,
    rank_correlations,
    run_pass,
)
from ..attribution.target import MAX_UNITS, MAX_WEIGHTS, AttributionTarget, TargetChoice, Units
from ..inputs.images import class_labels
from ..inputs.model_input import ModelInput, Token
from ..inspect.capture import locate_attention
from ..inspect.predictions import label_name, token_text, top_classes
from ..lab import Lab, read_seed
from ..library import LoadedModel, read_json_or_empty
from ..server.jobs import Job
from .heads import output_differences
from .request import check_index, read_optional_int

SHUFFLES = 5
"""How often weights are shuffled: one random permutation shows little."""
MAX_GROUPS = 64
"""Blocks of a detector's cells, or stretches of a recording, that are ablated one by one."""
NO_WEIGHTS = {
    "en": "The keys of this attention are the text being written, not the input, so it gives no attribution to these "
    "units. Choose a cross-attention or an attention of the encoder.",
    "zh": "这个注意力的键是正在写的文本，而不是输入，因此无法归因到这些单元。请选择交叉注意力或编码器的注意力。",
}
OTHER_KEYS = {
    "en": "The keys of this attention are blocks or summaries, not input tokens; it has no weight for a single unit.",
    "zh": "这个注意力的键是分块或摘要，不是输入词元，没有单个单元的权重。",
}
TOO_MANY = {
    "en": "Shuffled and mean weights need the full weight matrix, which is too large here.",
    "zh": "打乱和平均权重需要完整的权重矩阵，这里太大。",
}


class AttributionSession:
    """A model with one input: the target, the units of the input, and the texts of its labels."""

    def __init__(self, lab: Lab, request: dict[str, Any], job: Job) -> None:
        self.loaded, prepared = lab.prepare(request, job)
        model, task = self.loaded.model, self.loaded.task
        choice = TargetChoice(read_optional_int(request, "place"), read_optional_int(request, "label"))
        self.side, self.metadata = prepared.side, prepared.metadata
        self.labels = class_labels(model, task) or self.metadata.get("labels")
        self.tokenizer = None if task is None else task.tokenizer
        if self.tokenizer is None and isinstance(model, Model):
            self.tokenizer = model.tokenizer
        if prepared.side == "nodes":
            numeric = task is not None and task.target is not None and task.target.kind != "class"
            self.target: AttributionTarget = GraphTarget(model, prepared.arguments, choice, numeric)
            self.tokens = [prepared.tokens["nodes"][n] for n in self.target.sources.tolist()]
        else:
            units, self.tokens = group_units(prepared)
            generated = self.metadata.get("numbers", ())[1:]
            self.target = AttributionTarget(model, prepared.arguments, choice, units, generated)
        self.positions = self.list_positions(prepared)

    def list_positions(self, prepared: ModelInput) -> list[dict[str, Any]] | int:
        """The tokens whose prediction can be explained; of a graph or a grid of cells, how many there are."""
        if self.target.kind == "generated":
            return prepared.metadata["target_tokens"]
        if self.target.kind in ("tag", "next", "word"):
            return [token.as_dict() for token in prepared.tokens[prepared.side]]
        if prepared.side == "nodes":
            return self.target.tokens
        return len(prepared.tokens.get("target", prepared.tokens[prepared.side])) if self.target.kind == "object" else 0

    def run_pass(self) -> AttributionPass | GraphPass:
        return run_graph_pass(self.target) if isinstance(self.target, GraphTarget) else run_pass(self.target)

    @property
    def ablations(self) -> list[Ablation]:
        return ["drop"] if isinstance(self.target, GraphTarget) else ablation_methods(self.target)

    def ablate(self, method: Any, job: Job) -> Tensor:
        """The measured effect of each unit."""
        progress = lambda done, total: job.report(done, total, "")  # noqa: E731
        if isinstance(self.target, GraphTarget):
            return ablate_edges(self.target, method, progress)
        return ablate(self.target, method, progress)

    def describe_units(self) -> dict[str, Any]:
        """The units' tokens and, of an image, its pixels and how the units lie in it."""
        described: dict[str, Any] = {"side": self.side, "tokens": [token.as_dict() for token in self.tokens]}
        if self.side == "image":
            m, units = self.metadata, self.target.units
            described |= {"pixels": m["pixels"], "grid": units.grid, "first": units.first}
            described |= {"box": [m["grid"][n] * m["cell"][n] / m["size"][n] for n in (0, 1)]}
        return described

    def label_text(self, label: int | None) -> str | None:
        if label is None:
            return None
        if self.target.kind in ("next", "word", "generated"):
            return str(label) if self.tokenizer is None else token_text(self.tokenizer.target, label)
        if self.target.kind == "object" and label == len(self.target.prediction) - 1:
            return "∅"
        return label_name(label, self.labels)

    def describe_target(self) -> dict[str, Any]:
        """The number that is explained, and the labels to choose from."""
        target, score = self.target, self.target.initial_score
        described = {"type": target.kind, "place": target.position, "label": target.label, "score": score}
        if target.label is None:
            return described | {"choices": []}
        choices = [
            {"label": n, "word": self.label_text(n), "probability": p} for n, p in top_classes(target.prediction)
        ]
        own = {"word": self.label_text(target.label), "probability": math.exp(score)}
        return described | own | {"choices": choices}

    def compare(self, after: Tensor) -> dict[str, Any]:
        """Another prediction compared with the model's own, with the texts of its labels."""
        result = compare_prediction(self.target, after)
        if "top" not in result:
            return result
        items = [{"label": n, "word": self.label_text(n), "probability": p} for n, p in top_classes(after, 3)]
        return result | {"top_word": self.label_text(result["top"]), "items": items}


def group_units(prepared: ModelInput) -> tuple[Units, list[Token]]:
    """The units of an input and how each is drawn: tokens, blocks of an image's cells, stretches of a recording."""
    tokens, metadata = prepared.tokens[prepared.side], prepared.metadata
    if prepared.side == "image":
        return group_cells(tokens, metadata, MAX_GROUPS if metadata["detects"] else MAX_UNITS)
    if prepared.side != "sound":
        return Units(torch.arange(len(tokens))), tokens
    heard, size = metadata["heard"], -(-metadata["heard"] // MAX_GROUPS)
    of = torch.arange(len(tokens)) // size
    of[heard:] = -(-heard // size)
    shown = [Token(tokens[n].text, n, min(n + size, heard)) for n in range(0, heard, size)]
    shown += [Token("…", heard, len(tokens), special=True)] if heard < len(tokens) else []
    return Units(of, frames=metadata["frames_per_token"], quietest=metadata["quietest"]), shown


def group_cells(tokens: list[Token], metadata: dict[str, Any], most: int) -> tuple[Units, list[Token]]:
    """An image's cells in the smallest square blocks that are at most `most`; a class token is a unit by itself."""
    rows, columns = metadata["grid"]
    first, size = len(tokens) - rows * columns, 1
    while -(-rows // size) * -(-columns // size) + first > most:
        size += 1
    down, across = -(-rows // size), -(-columns // size)
    cell = torch.arange(rows * columns)
    of = torch.cat([torch.arange(first), first + cell // columns // size * across + cell % columns // size])
    shown = tokens[:first] + [Token(f"{n // across},{n % across}", n, n + 1) for n in range(down * across)]
    return Units(of, (down, across, size), tuple(metadata["cell"]), columns, first), shown


@contextmanager
def open_session(lab: Lab, request: dict[str, Any], job: Job) -> Iterator[AttributionSession]:
    """The session of a request; the model is locked while it is open."""
    with job.hold(lab.open(request.get("model"), job).lock):
        yield AttributionSession(lab, request, job)


def read(lab: Lab, request: dict[str, Any], job: Job) -> dict[str, Any]:
    """The attributions of one prediction, `[units]` each, and their rank correlations.

    An attribution that does not apply to the chosen attention is None, and `reasons` says why.
    """
    capture = lab.capture({"model": request.get("model"), "input": request.get("input")}, job)
    with open_session(lab, request, job) as session:
        target, ablations = session.target, session.ablations
        ablation = request.get("ablation") or ablations[0]
        job.report(0, target.units.count, "")
        run = session.run_pass()
        names, number = run.names, run.default_attention()
        if request.get("attention") is not None:
            number = check_index(request["attention"], len(names), "attention")
        name, head = names[number], read_optional_int(request, "head")
        if head is not None:
            check_index(head, run.heads(name), "head")
        weights_only = (run.raw(name, head), run.value(name, head), run.rollout(name), run.gradient(name, head))
        attributions: dict[str, Tensor | None] = {
            method: None if values is None else values.detach().float()
            for method, values in zip(METHODS, weights_only, strict=False)
        }
        attributions["effect"] = session.ablate(ablation, job)
        missing = isinstance(run, AttributionPass) and target.sides(name)[1] == "target"
        reason = NO_WEIGHTS if missing else OTHER_KEYS
        return session.describe_units() | {
            "notices": capture.notices,
            "places": session.positions,
            "question": session.describe_target(),
            "attentions": [
                {"name": each, "label": locate_attention(each, session.side).label, "heads": run.heads(each)}
                for each in names
            ],
            "attention": number,
            "head": head,
            "ablation": ablation,
            "ablations": ablations,
            "read": target.units.pool(run.readout) if isinstance(run, AttributionPass) else run.readout,
            "attributions": attributions,
            "reasons": {method: reason for method, values in attributions.items() if values is None},
            "backend": capture.attention(name).backend,
            "difference": output_differences(capture, job)["largest"],
            "correlations": {
                "size": rank_correlations(attributions),
                "signed": rank_correlations(attributions, signed=True),
            },
        }


def baselines(lab: Lab, request: dict[str, Any], job: Job) -> dict[str, Any]:
    """The prediction with every head uniform, at its mean, silent, and shuffled by several seeds; and the predictions
    of models that were trained alike from other seeds."""
    seed = read_seed(request)
    with open_session(lab, request, job) as session:
        target = session.target
        small = target.weights <= MAX_WEIGHTS
        runs = [(change, seed) for change in (("uniform", "mean", "silent") if small else ("uniform", "silent"))]
        runs += [("shuffle", seed + n) for n in range(SHUFFLES)] if small else []
        changed: list[dict[str, Any]] = []
        shuffled: list[dict[str, Any]] = []
        for done, (change, drawn) in enumerate(runs):
            job.report(done, len(runs), change)
            after = session.compare(predict_edited(target, edit_all_heads(target, change), drawn))
            if change == "shuffle":
                shuffled.append({"seed": drawn} | after)
            else:
                changed.append({"change_kind": change} | after)
        answer = {
            "question": session.describe_target(),
            "baselines": changed,
            "shuffled": shuffled,
            "note": None if small else TOO_MANY,
        }
        raw = default_weights(session)
    others = []
    for name, other_seed in other_seed_runs(lab, session.loaded):
        with open_session(lab, {**request, "model": name, "label": None}, job) as other:
            weights, described = default_weights(other), other.describe_target()
        comparable = raw is not None and weights is not None and weights.shape == raw.shape
        correlation = rank_correlations({"a": raw, "b": weights})["a"]["b"] if comparable else None
        others.append({"model": name, "seed": other_seed, "question": described, "correlation": correlation})
    return answer | {"others": others}


def other_seed_runs(lab: Lab, loaded: LoadedModel) -> list[tuple[str, int]]:
    """Names and seeds of the runs that differ from this one in their seed alone."""
    own = loaded.description
    runs = []
    for name, entry in lab.library.entries().items() if own else ():
        if entry.task != loaded.entry.task or name == loaded.entry.name or entry.path is None:
            continue
        other = read_json_or_empty(entry.path / "run.json")
        if all(other.get(section) == own.get(section) for section in ("settings", "architecture")):
            first, second = (run.get("training") or {} for run in (other, own))
            names = {*first, *second} - {"seed", "device"}
            if first.get("seed") != second.get("seed") and all(first.get(n) == second.get(n) for n in names):
                runs.append((name, first["seed"]))
    return runs


def default_weights(session: AttributionSession) -> Tensor | None:
    """The mean weights of the default attention."""
    run = session.run_pass()
    weights = run.raw(run.names[run.default_attention()], None)
    return None if weights is None else weights.detach()


def change(lab: Lab, request: dict[str, Any], job: Job) -> dict[str, Any]:
    """The prediction with the heads of `edits` changed: `[{"attention": name, "head": 2, "change": "silent"}]`."""
    with open_session(lab, request, job) as session:
        changes: dict[str, dict[int, Any]] = {}
        for edit in request.get("edits") or []:
            attention, head = (edit.get("attention"), edit.get("head")) if isinstance(edit, dict) else (None, None)
            if not isinstance(attention, str) or not isinstance(head, int):
                raise BadInput(f"An edit is {edit!r:.80}; it must have attention (a name), head (a number) and change.")
            changes.setdefault(attention, {})[head] = str(edit.get("change"))
        return {
            "before": session.compare(session.target.prediction),
            "after": session.compare(predict_edited(session.target, changes, read_seed(request))),
            "question": session.describe_target(),
        }


def heads(lab: Lab, request: dict[str, Any], job: Job) -> dict[str, Any]:
    """The change of the score when each head alone is changed, `[attentions, heads]`."""
    change = request.get("change", "silent")
    with open_session(lab, request, job) as session:
        progress = lambda done, total: job.report(done, total, change)  # noqa: E731
        effects = head_effects(session.target, change, read_seed(request), progress)
    return {"change": change, "heads": effects}


def cache_answers(
    name: str, call: Callable[[Lab, dict[str, Any], Job], dict[str, Any]]
) -> Callable[..., dict[str, Any]]:
    """The call with its answer taken from the lab's cache."""
    return lambda lab, request, job: lab.cached_answer(f"honest/{name}", request, lambda: call(lab, request, job))


CALLS = {
    name: cache_answers(name, call)
    for name, call in {"read": read, "baselines": baselines, "change": change, "heads": heads}.items()
}
