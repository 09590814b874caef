"""The oracle of `regard check-kernels`, as assertions."""

from __future__ import annotations

from torch import Tensor

from regard.bench.differential.oracle import (
    ULPS,
    Case,
    Comparison,
    cancellation_sizes,
    compare_backends,
    compare_results,
    make_leaves,
    poison_memory,
    random_gradient,
    reference_errors,
    results,
    round_case,
)

__all__ = [
    "ULPS",
    "Case",
    "assert_backends_agree",
    "assert_same_results",
    "cancellation_sizes",
    "compare_backends",
    "make_leaves",
    "poison_memory",
    "random_gradient",
    "reference_errors",
    "results",
    "round_case",
]


def assert_backends_agree(case: Case, *backends: str) -> None:
    """Assert that each backend agrees with the oracle, in its output and in every gradient."""
    assert_agreement(str(case), compare_backends(case, backends))


def assert_same_results(
    label: str, actual: dict[str, Tensor], truth: dict[str, Tensor], own: dict[str, float], sizes: dict[str, float]
) -> None:
    """Assert the rule for each tensor by name; `own` is what the reference errs, `sizes` what cancels or is rounded."""
    assert actual.keys() == truth.keys(), f"{label}: {list(actual)}, not {list(truth)}"
    assert_agreement(label, compare_results("", actual, truth, own, sizes))


def assert_agreement(label: str, comparisons: list[Comparison]) -> None:
    for comparison in comparisons:
        assert comparison.agrees, f"{comparison.backend} {label}: {comparison}"
