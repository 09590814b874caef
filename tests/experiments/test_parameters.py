"""Parameters of experiments: their declarations, their range, and their effect."""

from typing import Any

import pytest

from regard.errors import BadInput
from regard.experiments import find_experiment, list_experiments
from regard.experiments.parameters import Bilingual, Parameter, constant, count, resolve_settings
from regard.experiments.sweeps import SWEEPS

PARAMETERS = (
    count("steps", Bilingual.same("steps"), 1, 100, {"toy": 2, "usual": 20, "full": 50}),
    Parameter("noise", Bilingual.same("noise"), 0.0, 1.0, constant(0.5)),
    count("dim", Bilingual.same("dim"), 8, 64, 16, multiple=8),
)


def test_defaults_depend_on_the_size() -> None:
    assert resolve_settings(PARAMETERS, "toy", {}) == {"steps": 2, "noise": 0.5, "dim": 16}
    assert resolve_settings(PARAMETERS, "full", {"noise": 1, "dim": 24.0}) == {"steps": 50, "noise": 1.0, "dim": 24}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"step": 3}, "no parameter 'step'. Did you mean 'steps'"),
        ({"steps": 101}, "steps is 101; wanted: 1 to 100"),
        ({"steps": 2.5}, "wanted: a whole number"),
        ({"dim": 12}, "wanted: a multiple of 8"),
        ({"noise": float("nan")}, "noise is nan"),
        ({"noise": "much"}, "noise is 'much'"),
    ],
)
def test_wrong_settings_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        resolve_settings(PARAMETERS, "usual", settings)


def test_every_experiment_has_two_parameters_in_both_languages() -> None:
    for experiment in list_experiments():
        names = [parameter.name for parameter in experiment.PARAMETERS]
        assert len(names) >= 2 and len(set(names)) == len(names), experiment.CLAIM.name
        for parameter in experiment.PARAMETERS:
            assert parameter.text.en and parameter.text.zh
            for default in parameter.defaults.values():
                resolve_settings(experiment.PARAMETERS, "usual", {parameter.name: default})


def test_published_sweeps_are_within_the_ranges() -> None:
    for name, sweep in SWEEPS.items():
        parameters = find_experiment(name).PARAMETERS
        for value in sweep.values:
            resolve_settings(parameters, sweep.size, {**sweep.settings, sweep.parameter: value})


def test_a_darker_ball_is_found_more_often() -> None:
    grey_ball: Any = find_experiment("grey-ball")
    faint, dark = (
        grey_ball.measure("toy", 0, lambda fraction, text: None, {"grey": grey, "steps": 2})["found"]["rule"][0]["mean"]
        for grey in (0.005, 0.2)
    )
    assert dark == 1.0 and faint < 0.5
