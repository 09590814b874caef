"""A few hundred mutated files of every family, seeded; `make fuzz` runs many more (tests/fuzz/readers.py)."""

import importlib.util
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "fuzz"
INPUTS = 12
"""Mutated files of each family, of which there are almost thirty."""


def load_module(name):
    sys.path.insert(0, str(FOLDER))
    try:
        spec = importlib.util.spec_from_file_location(f"fuzz_{name}", FOLDER / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(FOLDER))
    return module


readers = load_module("readers")
FAMILIES = readers.families()


@pytest.mark.parametrize("name", FAMILIES)
def test_mutated_files_are_read_or_refused(name):
    report = readers.run_inputs(name, 1_000_000, INPUTS)
    assert report.inputs == INPUTS and not report.foreign and not report.guarded, report.examples
    assert not report.slow and report.max_mib < 300
    assert report.read + report.faults + report.refused >= INPUTS


def test_a_foreign_exception_is_counted(tmp_path):
    def fail(folder):
        raise KeyError("not ours")

    report = readers.Report()
    family = readers.Family({"a.csv": b"text,label\na,b\n"}, ("a.csv",), (fail,))
    readers.run_input(family, "csv", 0, tmp_path, report)
    assert report.foreign == {"builtins.KeyError": 1} and "foreign builtins.KeyError" in report.examples


def test_crashes_are_counted_and_the_other_inputs_run(monkeypatch):
    import os

    def crash_at_three(family, name, number, folder, report):
        if number == 3:
            os._exit(9)
        report.inputs += 1

    monkeypatch.setattr(readers, "run_input", crash_at_three)
    report = readers.run_family("csv", 0, 6)
    assert report.crashes == 1 and report.inputs == 6


def test_a_run_in_which_nothing_was_read_is_no_success():
    report = readers.Report(inputs=readers.BATCH, faults=readers.BATCH)
    assert report.over_limits
    report.read = 1
    assert not report.over_limits
    report.guarded["MemoryError"] += 1
    assert report.over_limits


def test_files_are_read_within_the_memory_of_a_subprocess():
    report = readers.run_family("csv", 0, 60)
    assert report.read > 10 and not report.guarded
