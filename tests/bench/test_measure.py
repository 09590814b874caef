"""Times are taken in turn, memory is what a call adds, and wrong numbers are refused."""

from functools import partial

import pytest
import torch

from regard.bench import measure
from regard.bench.measure import WrongNumbers, check, extra_memory, peak_of, times


def test_calls_take_turns() -> None:
    seen: list[str] = []
    times({name: partial(seen.append, name) for name in "ab"}, budget=0.0, least=4)
    assert seen == ["a", "b"] * 5


def test_budget_ends_the_rounds() -> None:
    count: list[None] = []
    times({"a": partial(count.append, None)}, budget=0.02)
    assert len(count) > 4


def test_slower_takes_longer() -> None:
    x = torch.ones(400, 400)
    took = times({"one": lambda: x @ x, "many": lambda: [x @ x for _ in range(20)]}, budget=0.05)
    assert took["many"] > took["one"] > 0


def test_memory_is_what_the_call_adds() -> None:
    numbers = 50_000_000
    peak = extra_memory(partial(partial, torch.ones, numbers))
    assert 4 * numbers <= peak < 4 * numbers + 40e6


def test_inputs_do_not_count() -> None:
    assert extra_memory(partial(getattr, bytes(100_000_000), "isascii")) < 40e6


def test_memory_is_measured_where_peaks_cannot_be_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "forget_peak", lambda: False)
    numbers = measure.highest() // 4
    assert peak_of(partial(partial, torch.ones, numbers), torch.get_num_threads()) > numbers


def test_failure_in_the_fresh_process_comes_back() -> None:
    with pytest.raises(ZeroDivisionError):
        extra_memory(partial(partial, divmod, 1, 0))


@pytest.mark.parametrize("wrong", [1.01, float("nan"), float("inf")])
def test_wrong_numbers_are_refused(wrong: float) -> None:
    right = torch.ones(3)
    with pytest.raises(WrongNumbers, match="causal: result 1 is off by"):
        check("causal", [right, wrong * right], [right, right])


def test_wrong_shape_is_refused() -> None:
    with pytest.raises(WrongNumbers, match=r"\[3\], not \[1, 3\]"):
        check("causal", [torch.ones(3)], [torch.ones(1, 3)])


def test_missing_result_is_refused() -> None:
    with pytest.raises(ValueError, match="longer"):
        check("causal", [torch.ones(3)], [torch.ones(3), torch.ones(3)])


def test_rounding_passes() -> None:
    check("causal", [torch.full((3,), 1 / 3)], [torch.full((3,), 1 / 3, dtype=torch.float64)])
