"""Calls take turns, memory is the peak that a call adds, and wrong numbers are refused."""

from functools import partial

import pytest
import torch

from regard.bench import measure
from regard.bench.measure import WrongNumbers, check_close, measure_peak_memory, median_times, peak_memory


def test_calls_take_turns() -> None:
    order: list[str] = []
    median_times({name: partial(order.append, name) for name in "ab"}, budget=0.0, min_rounds=4)
    assert order == ["a", "b"] * 5


def test_budget_ends_the_rounds() -> None:
    count: list[None] = []
    median_times({"a": partial(count.append, None)}, budget=0.02)
    assert len(count) > 4


def test_slower_takes_longer() -> None:
    x = torch.ones(400, 400)
    seconds = median_times({"one": lambda: x @ x, "many": lambda: [x @ x for _ in range(20)]}, budget=0.05)
    assert seconds["many"] > seconds["one"] > 0


def test_memory_is_what_the_call_allocates() -> None:
    numbers = 50_000_000
    peak = peak_memory(partial(partial, torch.ones, numbers))
    assert 4 * numbers <= peak < 4 * numbers + 40e6


def test_inputs_do_not_count() -> None:
    assert peak_memory(partial(getattr, bytes(100_000_000), "isascii")) < 40e6


def test_memory_is_measured_where_the_peak_cannot_be_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "reset_peak_memory", lambda: False)
    numbers = measure.max_resident_memory() // 4
    assert measure_peak_memory(partial(partial, torch.ones, numbers), torch.get_num_threads()) > numbers


def test_failure_in_the_new_process_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        peak_memory(partial(partial, divmod, 1, 0))


@pytest.mark.parametrize("wrong", [1.01, float("nan"), float("inf")])
def test_wrong_numbers_are_refused(wrong: float) -> None:
    right = torch.ones(3)
    with pytest.raises(WrongNumbers, match="causal: result 1 is off by"):
        check_close("causal", [right, wrong * right], [right, right])


def test_wrong_shape_is_refused() -> None:
    with pytest.raises(WrongNumbers, match=r"\[3\], not \[1, 3\]"):
        check_close("causal", [torch.ones(3)], [torch.ones(1, 3)])


def test_missing_result_is_refused() -> None:
    with pytest.raises(ValueError, match="longer"):
        check_close("causal", [torch.ones(3)], [torch.ones(3), torch.ones(3)])


def test_rounding_passes() -> None:
    check_close("causal", [torch.full((3,), 1 / 3)], [torch.full((3,), 1 / 3, dtype=torch.float64)])
