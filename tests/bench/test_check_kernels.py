"""`regard check-kernels`: random calls agree with the formula, and a wrong backend is found with its call."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import regard as rg
from regard.bench.differential.check_kernels import CallSource, make_case, run_calls, usable_backends
from regard.cli import app


def test_random_calls_agree(tmp_path: Path) -> None:
    out = tmp_path / "kernels.json"
    given = ["check-kernels", "--calls", "20", "--seed", "3", "--device", "cpu", "--out"]
    done = CliRunner().invoke(app, [*given, str(out)])
    assert done.exit_code == 0, done.output
    report = json.loads(out.read_text())
    assert report["calls"] == 20 and report["failed"] == 0 and report["gradients"] > 100
    assert {"auto", "blockwise"} <= set(report["backends"]) and sum(report["dtypes"].values()) == 20
    assert all(backend["largest_share"] <= 1 for backend in report["backends"].values())


def test_a_wrong_backend_is_found_with_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    attend = rg.attend

    def attend_off_by_little(*args, backend: str, **options):
        output = attend(*args, backend=backend, **options)
        return output if backend == "reference" else output * 1.001 + 1e-3

    monkeypatch.setattr(rg, "attend", attend_off_by_little)
    report = run_calls(CallSource(0, "cpu"), 4)
    assert report.failed and "--first 0 --calls 1" in report.failures[0] and "blockwise" in " ".join(report.failures)


def test_a_call_is_a_function_of_seed_and_number() -> None:
    first, again, other = (make_case(CallSource(seed, "cpu"), 7) for seed in (5, 5, 6))
    assert str(first) == str(again) and torch.equal(first.q, again.q)
    assert str(first) != str(other)
    assert usable_backends(first, "cpu") == usable_backends(again, "cpu")
