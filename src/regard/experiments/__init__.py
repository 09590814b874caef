"""Experiments that test textbook claims about attention: each claim has a measurement, a figure and a verdict.

>>> from regard import experiments
>>> experiments.find_experiment("grey-ball").CLAIM.number
2

`list_experiments` and `find_experiment` load them, `run_experiment` and `run_experiments` measure them and save results,
`read_result` and `read_results` read saved results.
"""

from .experiment import RULE, Claim, Criterion, Experiment, Subclaim, Verdict, VerdictKind, judge
from .parameters import Bilingual, Language, Parameter, Settings, Size
from .progress import ProgressCallback
from .registry import find_experiment, list_experiments
from .results import (
    LANGUAGES,
    VERDICT_LABELS,
    VERDICT_SIGNS,
    ResultDocument,
    figure_path,
    find_results_folder,
    published_result,
    published_verdict,
    read_result,
    read_results,
)
from .runner import run_experiment, run_experiments
from .toolkit.concepts import CONCEPTS

__all__ = [
    "CONCEPTS",
    "LANGUAGES",
    "RULE",
    "VERDICT_LABELS",
    "VERDICT_SIGNS",
    "Bilingual",
    "Claim",
    "Criterion",
    "Experiment",
    "Language",
    "Parameter",
    "ProgressCallback",
    "ResultDocument",
    "Settings",
    "Size",
    "Subclaim",
    "Verdict",
    "VerdictKind",
    "figure_path",
    "find_experiment",
    "find_results_folder",
    "judge",
    "list_experiments",
    "published_result",
    "published_verdict",
    "read_result",
    "read_results",
    "run_experiment",
    "run_experiments",
]
