"""The survey of random calls."""

import json
import random
from time import perf_counter

import pytest
import torch

import regard as rg
from regard.bench.survey import survey
from regard.bench.survey.processes import Worker, measure_in_processes
from regard.bench.survey.survey import (
    SurveyCall,
    SurveyRow,
    alternatives,
    draw_call,
    make_arguments,
    run_survey,
    survey_call,
)


def test_calls_are_drawn_by_their_seed_and_cover_every_part():
    calls = [draw_call(random.Random(seed), "cuda") for seed in range(400)]
    assert calls == [draw_call(random.Random(seed), "cuda") for seed in range(400)]
    assert {call.mask for call in calls} == set(survey.MASKS)
    assert {call.position for call in calls} == set(survey.POSITIONS)
    assert {call.use for call in calls} == {"training", "prefill", "decoding"}
    assert any(call.score == "Additive" for call in calls) and any(call.kv_heads < call.heads for call in calls)
    assert max(call.keys for call in calls) > 20_000 and min(call.keys for call in calls) < 64


SMALL = {"batch": 2, "heads": 2, "kv_heads": 2, "head_dim": 16, "dtype": "float32", "seed": 3}


@pytest.mark.parametrize("mask", sorted(set(survey.MASKS)))
@pytest.mark.parametrize("position", ["none", "Alibi", "Bias"])
def test_every_alternative_gives_our_result(mask, position):
    call = SurveyCall("training", queries=33, keys=33, score="Dot", position=position, mask=mask, **SMALL)
    a = make_arguments(call, "cpu")
    results = {name: function() for name, function in alternatives(a, "cpu", None)}
    assert results
    for output in results.values():
        torch.testing.assert_close(output, rg.attend(a.q, a.k, a.v, **a.parts), atol=1e-5, rtol=1e-4)


def test_an_alternative_with_another_result_is_not_timed(monkeypatch):
    call = SurveyCall("prefill", queries=17, keys=17, score="Dot", position="none", mask="window", **SMALL)
    monkeypatch.setattr(survey, "alternatives", lambda *_: [("wrong", lambda: torch.zeros(2, 2, 17, 16))])
    assert survey_call(call, "cpu", False, 0.0).others == {}


def test_a_survey_has_quantiles_and_names_the_worst(monkeypatch):
    times = iter(range(1, 100))
    monkeypatch.setattr(
        survey, "survey_call", lambda call, *_: SurveyRow(call, "sdpa", 1.0, {"SDPA": float(next(times))})
    )
    result = run_survey(20, 5, "cpu", report=lambda line: None)
    assert result.as_dict()["quantiles"] == {"worst": 1.0, "5 %": 2.0, "median": 11.0, "95 %": 20.0}
    assert "The ten worst:\n   1.00  " in str(result)


def test_an_alternative_without_our_gradients_is_not_timed(monkeypatch):
    call = SurveyCall("training", queries=17, keys=17, score="Dot", position="Bias", mask="none", **SMALL)
    fixed = lambda a, *_: iter([("fixed bias", lambda: rg.attend(a.q, a.k, a.v, position=detached(a)))])  # noqa: E731
    detached = lambda a: rg.Bias(a.parts["position"].table.detach(), zero=128)  # noqa: E731
    monkeypatch.setattr(survey, "alternatives", fixed)
    row = survey_call(call, "cpu", False, 0.0)
    assert row.others == {} and row.left_out == {"fixed bias": "another result, by inf"}


def test_a_survey_takes_measured_rows_as_they_are_and_ends_in_time(tmp_path):
    drawn = [draw_call(draw, "cpu") for draw in [random.Random(7)] for _ in range(3)]
    row = SurveyRow(drawn[1], "sdpa", 1.0, {"SDPA": 1.5}, {"formula": "out of memory"})
    first = run_survey(3, 7, "cpu", minutes=0.0, measured=[row], report=lambda line: None)
    assert first.rows == [row]
    path = tmp_path / "survey.json"
    path.write_text(json.dumps(first.as_dict()))
    assert survey.read_rows(path, 7) == [row] and survey.read_rows(path, 8) == []


def test_processes_prepare_and_time_every_call():
    names = dict(queries=17, keys=17, score="Dot", position="none", mask="none")
    calls = [SurveyCall("prefill", **(SMALL | names | {"seed": seed})) for seed in range(3)]
    broken = SurveyCall("prefill", **(SMALL | names | {"dtype": "int8"}))
    results = dict(measure_in_processes([*calls, broken], "cpu", perf_counter() + 120.0, lambda line: None))
    assert [results[call].call for call in calls] == calls
    assert all("SDPA" in results[call].others for call in calls)
    assert isinstance(results[broken], str)


def test_a_process_that_takes_too_long_is_ended():
    call = SurveyCall("prefill", queries=17, keys=17, score="Dot", position="none", mask="none", **SMALL)
    worker = Worker("cpu")
    try:
        assert worker.time(call, 0.0) == "was not timed in 0 s"
        assert not worker.alive and worker.time(call, 1.0) == "its process was ended by another call"
    finally:
        worker.stop()


def test_large_tensors_are_made_again_for_timing():
    call = SurveyCall("training", queries=17, keys=17, score="Dot", position="none", mask="window", **SMALL)
    prepared = survey.prepare_call(call, "cpu", compiled=False)
    assert prepared.bytes == 3 * 2 * 2 * 2 * 17 * 16 * 4
    prepared.release()
    row = survey.time_prepared(prepared, "cpu", 0.0)
    assert set(row.others) == prepared.names == {"SDPA, mask tensor", "formula"}
