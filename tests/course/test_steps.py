"""What holds for every step of the course: values, findings, code, evidence, texts, pictures."""

from __future__ import annotations

import re
import string
import time
from dataclasses import fields, is_dataclass
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import regard as rg
from regard.course import find_step, list_chapters, list_steps
from regard.course.pictures import Drawing
from regard.course.source import write_numpy, write_regard
from regard.course.step import Step
from regard.errors import BadInput
from regard.experiments.experiment import Bilingual
from regard.experiments.registry import module_names
from regard.experiments.results import LANGUAGES, published_verdict

DRAWINGS = Path(str(files("regard.lab").joinpath("static/course/drawings")))
MAX_LINES, MAX_WIDTH, MAX_SECONDS = 15, 110, 0.05
STEPS = list_steps()
every_step = pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
every_language = pytest.mark.parametrize("language", LANGUAGES)


def texts_of(value: Any) -> list[Bilingual]:
    """Every text in a step, at any depth."""
    if isinstance(value, Bilingual):
        return [value]
    if isinstance(value, tuple):
        return [text for item in value for text in texts_of(item)]
    parts = [getattr(value, field.name) for field in fields(value)] if is_dataclass(value) else []
    return [text for part in parts for text in texts_of(part)]


def code_lines(code: str) -> list[str]:
    return [line for line in code.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def test_chapters_and_steps_have_names_of_their_own() -> None:
    assert [chapter.number for chapter in list_chapters()] == [1, 2, 3, 4, 5]
    assert len({step.name for step in STEPS}) == len(STEPS) >= 35
    assert STEPS[0].name == "sentence"
    for step in STEPS:
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", step.name)
        names = [control.name for control in step.controls]
        assert len(set(names)) == len(names)
    with pytest.raises(BadInput, match="Did you mean 'soft-dictionary'"):
        find_step("soft-dictionery")


@every_step
@every_language
def test_findings_hold_at_the_start_values(step: Step, language: Any) -> None:
    result = step.run(language=language)
    assert step.findings
    for finding in step.findings:
        assert finding.check(result), finding.text(language).format(**result)
        for text in (finding.text.en, finding.text.zh):
            assert any(field for _, field, _, _ in string.Formatter().parse(text)), f"no number of the result: {text}"


@every_step
@every_language
def test_attend_equals_compute(step: Step, language: Any) -> None:
    if step.attend is None:
        return
    answer = np.asarray(step.run(language=language)[step.answer], dtype=np.float64)
    attended = step.run_attend(language=language)
    assert attended.shape == answer.shape
    assert np.abs(attended - answer).max() <= 1e-6


@every_step
@every_language
def test_code_stands_alone(step: Step, language: Any) -> None:
    """The values and the NumPy, as shown, compute the answer; then the lines of Regard do."""
    names: dict[str, Any] = {"np": np, "torch": torch, "rg": rg}
    with np.errstate(all="ignore"):
        exec(write_numpy(step, language), names)
    result = step.run(language=language)
    controls = {control.name for control in step.controls}
    assert (set(result) - controls) & set(names), "the shown code computes nothing of the result"
    if step.answer in result:
        assert np.allclose(names[step.answer], result[step.answer], atol=1e-6, equal_nan=True)
    if step.attend is not None:
        exec(write_regard(step), names)
        assert np.abs(names["output"].numpy() - np.asarray(result[step.answer])).max() <= 1e-6


@every_step
def test_code_is_short_and_fast(step: Step) -> None:
    assert len(code_lines(step.numpy_code)) <= MAX_LINES
    assert max(map(len, step.numpy_code.splitlines())) <= MAX_WIDTH
    step.run()
    times = []
    for _ in range(3):
        start = time.thread_time()
        step.run()
        times.append(time.thread_time() - start)
    assert min(times) <= MAX_SECONDS


@every_step
def test_texts_are_in_both_languages(step: Step) -> None:
    assert step.title.zh and step.claim.zh and step.task.zh
    for text in texts_of(step):
        assert bool(text.en) == bool(text.zh), text
        assert not re.search("[一-鿿]{5,}", text.en), f"Chinese in the English text: {text.en}"
        assert not re.search("您|遮蔽|屏蔽", text.zh), text.zh
        assert not re.search(r"[一-鿿][,;?!]", text.zh), f"Western punctuation: {text.zh}"


@every_step
def test_claims_are_short(step: Step) -> None:
    assert len(step.claim.en) <= 330 and len(step.claim.zh) <= 130
    assert len(step.title.en) <= 60 and len(step.title.zh) <= 26


@every_step
def test_evidence_exists(step: Step) -> None:
    for evidence in step.evidence:
        assert evidence.experiment.replace("-", "_") in module_names()
        verdict = published_verdict(evidence.experiment)
        assert verdict is not None, f"{evidence.experiment} has no published result"
        assert set(evidence.subclaims) <= {part.name for part in verdict.subclaims}


@every_step
def test_pictures_name_what_there_is(step: Step) -> None:
    """Every name in a picture is an entry of the result or a control; a drawing has its two modules."""
    known = set(step.run()) | {control.name for control in step.controls}
    assert step.pictures
    for picture in step.pictures:
        if isinstance(picture, Drawing):
            assert (DRAWINGS / f"{picture.name}.js").is_file()
            assert find_spec(f"regard.course.drawings.{picture.name}") is not None
            continue
        named = [getattr(picture, field) for field in ("data", "x", "masked", "marker") if getattr(picture, field, "")]
        named += [name for pairs in ("ys", "vectors") for name, _ in getattr(picture, pairs, ())]
        labels = [getattr(picture, field, "") for field in ("labels", "groups", "rows", "columns")]
        named += [label for label in labels if label and isinstance(label, str)]
        assert set(named) <= known, f"{picture}"


def test_values_are_checked() -> None:
    step = find_step("soft-dictionary")
    for values, words in (
        ({"query": [1.0]}, "2 numbers"),
        ({"query": [1.0, 99.0]}, "from -6 to 6"),
        ({"query": ["a", "b"]}, "2 numbers"),
        ({"nothing": 1}, "no control 'nothing'"),
    ):
        with pytest.raises(BadInput, match=words):
            step.run(values)
