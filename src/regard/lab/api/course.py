"""The page Course: its chapters and steps as data, and the numbers of a step for the reader's values."""

from __future__ import annotations

from dataclasses import asdict, fields, is_dataclass
from functools import cache
from typing import TypedDict

import numpy as np

from ...course import find_step, list_chapters
from ...course.controls import Control
from ...course.pictures import Drawing, Picture
from ...course.step import Evidence, Step
from ...errors import BadInput
from ...experiments.results import VERDICT_LABELS, VERDICT_SIGNS, load_verdict, published_result
from ..lab import Lab
from ..protocol import Answer, Request, Translated
from ..server.jobs import Job


class VerdictPart(TypedDict):
    text: Translated
    holds: bool
    figures: Translated


class VerdictSummary(TypedDict):
    kind: str
    key: Translated
    why: Translated
    parts: list[VerdictPart]


class EvidenceFields(TypedDict):
    """The published verdict that a step refers to; None where it was not published."""

    experiment: str
    title: Translated | None
    verdict: VerdictSummary | None


class StepFields(TypedDict):
    """A step as the page needs it; `start` has the start values in each language."""

    name: str
    title: Translated
    claim: Translated
    task: Translated
    controls: list[Answer]
    pictures: list[Answer]
    start: dict[str, dict[str, object]]
    code: str
    attend: str
    answer: str
    link: str
    evidence: list[EvidenceFields]


class ChapterFields(TypedDict):
    number: int
    name: str
    title: Translated
    lead: Translated
    steps: list[StepFields]


class Course(TypedDict):
    """Every chapter, and the texts and signs of the kinds of verdicts."""

    chapters: list[ChapterFields]
    kinds: dict[str, Translated]


class CheckedFinding(TypedDict):
    en: str
    zh: str
    holds: bool


class AttendResult(TypedDict):
    """The output of `attend`, and its largest difference from the step's own."""

    output: object
    difference: float


class StepRun(TypedDict):
    result: dict[str, object]
    findings: list[CheckedFinding]
    attend: AttendResult | None


def list_course(lab: Lab, request: Request, job: Job) -> Course:
    """Every chapter with its steps: texts in both languages, controls, pictures, code and verdicts."""
    return describe_course()


@cache
def describe_course() -> Course:
    """The answer of `list_course`, which is the same for all."""
    chapters: list[ChapterFields] = [
        {
            "number": chapter.number,
            "name": chapter.name,
            "title": asdict(chapter.title),
            "lead": asdict(chapter.lead),
            "steps": [describe_step(step) for step in chapter.steps],
        }
        for chapter in list_chapters()
    ]
    kinds = {verdict: asdict(label) | {"sign": VERDICT_SIGNS[verdict]} for verdict, label in VERDICT_LABELS.items()}
    return {"chapters": chapters, "kinds": kinds}


def describe_step(step: Step) -> StepFields:
    return {
        "name": step.name,
        "title": asdict(step.title),
        "claim": asdict(step.claim),
        "task": asdict(step.task),
        "controls": [describe_part(control) for control in step.controls],
        "pictures": [describe_part(picture) for picture in step.pictures],
        "start": {"en": step.start_values("en"), "zh": step.start_values("zh")},
        "code": step.numpy_code,
        "attend": step.regard_code,
        "answer": step.answer,
        "link": step.link,
        "evidence": [describe_evidence(evidence) for evidence in step.evidence],
    }


def describe_part(part: Control | Picture) -> Answer:
    """The fields of a control or a picture, with the name of its class as `type`."""
    plain = {field.name: as_plain(getattr(part, field.name)) for field in fields(part)}
    experiment = published_result(part.experiment) if isinstance(part, Drawing) and part.experiment else None
    return {"type": type(part).__name__} | plain | ({"numbers": experiment["numbers"]} if experiment else {})


def as_plain(value: object) -> object:
    """Dataclasses as dictionaries and tuples as lists, all the way down."""
    if isinstance(value, tuple | list):
        return [as_plain(item) for item in value]
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def describe_evidence(evidence: Evidence) -> EvidenceFields:
    """The published verdict that a step refers to, with the sub-claims it names (all where it names none)."""
    result = published_result(evidence.experiment)
    if result is None:
        return {"experiment": evidence.experiment, "title": None, "verdict": None}
    verdict = load_verdict(result["verdict"])
    chosen = [part for part in verdict.subclaims if not evidence.subclaims or part.name in evidence.subclaims]
    parts: list[VerdictPart] = [
        {"text": asdict(p.text), "holds": p.holds, "figures": asdict(p.figures)} for p in chosen
    ]
    summary: VerdictSummary = {
        "kind": verdict.kind,
        "key": asdict(verdict.key),
        "why": asdict(verdict.why),
        "parts": parts,
    }
    return {"experiment": evidence.experiment, "title": result["claim"]["title"], "verdict": summary}


def run(lab: Lab, request: Request, job: Job) -> StepRun:
    """The result of a step for given values, its findings with whether they hold, and the answer of `attend`."""
    step = find_step(str(request.get("step")))
    values, language = request.get("values", {}), request.get("language", "en")
    if not isinstance(values, dict):
        raise BadInput(f"values is {values!r:.40}; it must be an object of controls and their values.")
    if language not in ("en", "zh"):
        raise BadInput(f"language is {language!r:.20}; it must be en or zh.")
    result = step.run(values, language)
    findings: list[CheckedFinding] = [
        {
            "en": finding.text.en.format(**result),
            "zh": finding.text.zh.format(**result),
            "holds": bool(finding.check(result)),
        }
        for finding in step.findings
    ]
    attended: AttendResult | None = None
    if step.attend is not None:
        output = step.run_attend(values, language)
        difference = np.abs(output - np.asarray(result[step.answer])).max(initial=0.0)
        attended = {"output": to_numbers(output), "difference": float(difference)}
    plain = {name: to_numbers(value) for name, value in result.items()}
    return {"result": plain, "findings": findings, "attend": attended}


def to_numbers(value: object) -> object:
    """Arrays as nested lists; infinite numbers and NaN, which JSON does not have, as the words of JavaScript."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, dict):
        return {name: to_numbers(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_numbers(item) for item in value]
    if isinstance(value, float) and not np.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    return value


CALLS = {"list": list_course, "run": run}
