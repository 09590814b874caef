"""The page Honest: five attributions of one prediction side by side, and predictions with edited heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TypedDict, TypeVar

from torch import Tensor

from ...errors import BadInput
from ...nn.hooks.edit import HeadEdit
from ..attribution.ablation import Ablation
from ..attribution.agreement import MIN_UNITS, count_units, measure_agreement
from ..attribution.methods import (
    METHODS,
    AttributionPass,
    edit_all_heads,
    head_effects,
    predict_edited,
    rank_correlations,
)
from ..attribution.session import AttributionSession, LabelledChange, TargetFields, UnitFields
from ..attribution.target import MAX_WEIGHTS, TargetChoice
from ..inputs.model_input import TokenFields
from ..inputs.notices import Notice
from ..inspect.capture import locate_attention
from ..lab import Lab, read_seed
from ..library import LoadedModel, read_json_or_empty
from ..protocol import Answer, Json, Request, Translated
from ..records import read_section
from ..server.jobs import Job
from .heads import output_differences
from .request import check_index, read_optional_int

SHUFFLES = 5
"""How often weights are shuffled: one random permutation shows little."""
MAX_REPEATED = 64
"""Units up to which a second ablation is measured too, to see how well the measurement agrees with itself."""
NO_WEIGHTS = {
    "en": "The keys of this attention are the text being generated, not the input, so it gives no attribution to these "
    "units. Choose a cross-attention or an attention of the encoder.",
    "zh": "这个注意力的键是正在生成的文本，而不是输入，因此无法归因到这些单元。请选择交叉注意力或编码器的注意力。",
}
OTHER_KEYS = {
    "en": "The keys of this attention are blocks or summaries, not input tokens; it has no weight for a single unit.",
    "zh": "这个注意力的键是分块或摘要，不是输入词元，没有单个单元的权重。",
}
TOO_MANY = {
    "en": "Shuffled and mean weights need the full weight matrix, which is too large here.",
    "zh": "打乱权重和取平均都需要完整的权重矩阵，而这里的矩阵太大。",
}

AnswerType = TypeVar("AnswerType", bound=Answer)


class NamedAttention(TypedDict):
    name: str
    label: Translated
    heads: int


class RepeatedAblation(TypedDict):
    """Another way to ablate, and how well its effects agree with those of the first."""

    ablation: Ablation
    correlation: float | None


class UnitCount(TypedDict):
    count: int
    least: int


class RankCorrelations(TypedDict):
    size: dict[str, dict[str, float | None]]
    signed: dict[str, dict[str, float | None]]


class Attributions(UnitFields):
    """See `read`."""

    notices: list[Notice]
    places: list[TokenFields] | int
    question: TargetFields
    attentions: list[NamedAttention]
    attention: int
    head: int | None
    ablation: str
    ablations: list[Ablation]
    read: Tensor
    attributions: dict[str, Tensor | None]
    reasons: dict[str, Translated]
    backend: str
    difference: float
    agreement: Answer | None
    repeated: RepeatedAblation | None
    units: UnitCount
    correlations: RankCorrelations


class Baseline(LabelledChange):
    change_kind: str


class ShuffledBaseline(LabelledChange):
    seed: int


class OtherSeed(TypedDict):
    """The prediction of a model that was trained from another seed, and how well its weights agree."""

    model: str
    seed: Json
    question: TargetFields
    correlation: float | None


class Baselines(TypedDict):
    """See `baselines`."""

    question: TargetFields
    baselines: list[Baseline]
    shuffled: list[ShuffledBaseline]
    note: Translated | None
    others: list[OtherSeed]


class HeadChange(TypedDict):
    before: LabelledChange
    after: LabelledChange
    question: TargetFields


class HeadEffects(TypedDict):
    change: str
    heads: Tensor


@contextmanager
def open_session(lab: Lab, request: Request, job: Job) -> Iterator[AttributionSession]:
    """The session of a request; the model is locked while it is open."""
    with job.hold(lab.open(request.get("model"), job).lock):
        loaded, prepared = lab.prepare(request, job)
        choice = TargetChoice(read_optional_int(request, "place"), read_optional_int(request, "label"))
        yield AttributionSession(loaded, prepared, choice)


def read(lab: Lab, request: Request, job: Job) -> Attributions:
    """The attributions of one prediction, `[units]` each, their rank correlations, and their agreement with ablation.

    `agreement` is None of fewer units than `units.least`; `repeated` is how well two ways to ablate agree.
    An attribution that does not apply to the chosen attention is None, and `reasons` says why.
    """
    capture = lab.capture({"model": request.get("model"), "input": request.get("input")}, job)
    with open_session(lab, request, job) as session:
        target, ablations = session.target, session.ablations
        ablation = session.read_ablation(request.get("ablation"))
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
        agreement = measure_agreement(attributions)
        repeated: RepeatedAblation | None = None
        if agreement is not None and len(ablations) > 1 and target.units.count <= MAX_REPEATED:
            other: Ablation = next(method for method in ablations if method != ablation)
            measured: dict[str, Tensor | None] = {
                "effect": attributions["effect"],
                "repeated": session.ablate(other, job),
            }
            repeated = {"ablation": other, "correlation": rank_correlations(measured)["effect"]["repeated"]}
        missing = isinstance(run, AttributionPass) and target.sides(name)[1] == "target"
        reason = NO_WEIGHTS if missing else OTHER_KEYS
        return {
            **session.describe_units(),
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
            "agreement": None if agreement is None else asdict(agreement),
            "repeated": repeated,
            "units": {"count": count_units(attributions), "least": MIN_UNITS},
            "correlations": {
                "size": rank_correlations(attributions),
                "signed": rank_correlations(attributions, signed=True),
            },
        }


def baselines(lab: Lab, request: Request, job: Job) -> Baselines:
    """The prediction with every head uniform, at its mean, silent, and shuffled by several seeds; and the predictions
    of models that were trained alike from other seeds."""
    seed = read_seed(request)
    with open_session(lab, request, job) as session:
        target = session.target
        small = target.weights <= MAX_WEIGHTS
        runs = [(change, seed) for change in (("uniform", "mean", "silent") if small else ("uniform", "silent"))]
        runs += [("shuffle", seed + n) for n in range(SHUFFLES)] if small else []
        changed: list[Baseline] = []
        shuffled: list[ShuffledBaseline] = []
        for done, (change, drawn) in enumerate(runs):
            job.report(done, len(runs), change)
            after = session.compare(predict_edited(target, edit_all_heads(target, change), drawn))
            if change == "shuffle":
                shuffled.append({"seed": drawn, **after})
            else:
                changed.append({"change_kind": change, **after})
        question, raw = session.describe_target(), default_weights(session)
    others: list[OtherSeed] = []
    for name, other_seed in other_seed_runs(lab, session.loaded):
        with open_session(lab, {**request, "model": name, "label": None}, job) as other:
            weights, described = default_weights(other), other.describe_target()
        comparable = raw is not None and weights is not None and weights.shape == raw.shape
        correlation = rank_correlations({"a": raw, "b": weights})["a"]["b"] if comparable else None
        others.append({"model": name, "seed": other_seed, "question": described, "correlation": correlation})
    return {
        "question": question,
        "baselines": changed,
        "shuffled": shuffled,
        "note": None if small else TOO_MANY,
        "others": others,
    }


def other_seed_runs(lab: Lab, loaded: LoadedModel) -> list[tuple[str, Json]]:
    """Names and seeds of the runs that differ from this one in their seed alone."""
    own = loaded.description
    runs = []
    for name, entry in lab.library.entries().items() if own else ():
        if entry.task != loaded.entry.task or name == loaded.entry.name or entry.path is None:
            continue
        other = read_json_or_empty(entry.path / "run.json")
        if all(other.get(section) == own.get(section) for section in ("settings", "architecture")):
            first, second = (read_section(run, "training") for run in (other, own))
            names = {*first, *second} - {"seed", "device"}
            if first.get("seed") != second.get("seed") and all(first.get(n) == second.get(n) for n in names):
                runs.append((name, first["seed"]))
    return runs


def default_weights(session: AttributionSession) -> Tensor | None:
    """The mean weights of the default attention."""
    run = session.run_pass()
    weights = run.raw(run.names[run.default_attention()], None)
    return None if weights is None else weights.detach()


def change(lab: Lab, request: Request, job: Job) -> HeadChange:
    """The prediction with the heads of `edits` changed: `[{"attention": name, "head": 2, "change": "silent"}]`."""
    with open_session(lab, request, job) as session:
        changes: dict[str, dict[int, HeadEdit]] = {}
        edits = request.get("edits") or []
        if not isinstance(edits, list):
            raise BadInput(f"edits is {edits!r:.60}; it must be a list of objects with attention, head and change.")
        for edit in edits:
            fields = edit if isinstance(edit, dict) else {}
            attention, head = fields.get("attention"), fields.get("head")
            if not isinstance(attention, str) or not isinstance(head, int):
                raise BadInput(f"An edit is {edit!r:.80}; it must have attention (a name), head (a number) and change.")
            changes.setdefault(attention, {})[head] = str(fields.get("change"))
        return {
            "before": session.compare(session.target.prediction),
            "after": session.compare(predict_edited(session.target, changes, read_seed(request))),
            "question": session.describe_target(),
        }


def heads(lab: Lab, request: Request, job: Job) -> HeadEffects:
    """The change of the score when each head alone is changed, `[attentions, heads]`."""
    change = str(request.get("change", "silent"))
    with open_session(lab, request, job) as session:
        progress = lambda done, total: job.report(done, total, change)  # noqa: E731
        effects = head_effects(session.target, change, read_seed(request), progress)
    return {"change": change, "heads": effects}


def cache_answers(
    name: str, call: Callable[[Lab, Request, Job], AnswerType]
) -> Callable[[Lab, Request, Job], AnswerType]:
    """The call with its answer taken from the lab's cache."""
    return lambda lab, request, job: lab.cached_answer(f"honest/{name}", request, lambda: call(lab, request, job))


CALLS = {
    "read": cache_answers("read", read),
    "baselines": cache_answers("baselines", baselines),
    "change": cache_answers("change", change),
    "heads": cache_answers("heads", heads),
}
