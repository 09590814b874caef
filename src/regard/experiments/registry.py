"""Finds experiments: every module of `claims` is one, under its name with hyphens."""

from __future__ import annotations

import difflib
import pkgutil
from importlib import import_module
from itertools import pairwise
from typing import cast

from ..errors import BadInput
from . import claims
from .experiment import Claim, Experiment


def list_experiments() -> list[Experiment]:
    """Every experiment, by number; raises `BadInput` that names an experiment which is broken."""
    experiments = sorted(map(load_experiment, module_names()), key=lambda experiment: experiment.CLAIM.number)
    for first, second in pairwise(experiments):
        if first.CLAIM.number == second.CLAIM.number:
            raise BadInput(f"{first.CLAIM.name} and {second.CLAIM.name} both have the number {first.CLAIM.number}.")
    return experiments


def find_experiment(name: str) -> Experiment:
    """The experiment of that name, without loading the others; raises `BadInput` that suggests the nearest name."""
    module = name.replace("-", "_")
    if module not in module_names():
        names = [other.replace("_", "-") for other in module_names()]
        nearest = difflib.get_close_matches(name, names, n=1)
        hint = f"Did you mean {nearest[0]!r}? " if nearest else ""
        raise BadInput(f"There is no experiment {name!r}. {hint}`regard experiment list` shows all.")
    return load_experiment(module)


def module_names() -> list[str]:
    """The names of the modules of `claims`."""
    return [module.name for module in pkgutil.iter_modules(claims.__path__)]


def load_experiment(module: str) -> Experiment:
    """Import a module of `claims`; raises `BadInput` unless it fulfils the contract of `experiment.py`."""
    try:
        experiment = import_module(f"{claims.__name__}.{module}")
    except Exception as error:
        raise BadInput(f"The experiment {module} cannot be imported: {type(error).__name__}: {error}.") from error
    claim = getattr(experiment, "CLAIM", None)
    if not isinstance(claim, Claim):
        raise BadInput(f"The experiment {module} has a CLAIM that is a {type(claim).__name__}, not a Claim.")
    if claim.name != module.replace("_", "-"):
        raise BadInput(f"The experiment in {module}.py is called {claim.name!r}: file and name must agree.")
    if not isinstance(getattr(experiment, "PARAMETERS", None), tuple):
        raise BadInput(f"The experiment {module} has no PARAMETERS, a tuple.")
    for function in ("measure", "verdict", "draw"):
        if not callable(getattr(experiment, function, None)):
            raise BadInput(f"The experiment {module} has no {function}().")
    return cast(Experiment, experiment)
