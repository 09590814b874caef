"""`regard check-kernels`: random calls agree with the formula, and a wrong backend is found with its call."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import regard as rg
from regard.bench.differential.check_kernels import CallSource, make_case, run_calls, run_processes, usable_backends
from regard.bench.differential.coverage import part_names
from regard.bench.differential.oracle import Case, cancellation_sizes, compare_backends, random_gradient
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


@pytest.mark.parametrize("seed", [14, 15])
def test_a_sum_over_few_rows_may_err_by_what_cancels_in_it(seed: int) -> None:
    """Each query sees one key: the formula's gradient of scores is 0 exactly, that of a recomputed weight is not."""
    g = torch.Generator().manual_seed(seed)
    sizes = (1, 1, 7, 33), (1, 1, 53, 33), (1, 1, 53, 8), (1, 33)
    q, k, v, weight = (torch.randn(size, generator=g, dtype=torch.float64) for size in sizes)
    slopes = rg.Alibi(torch.tensor([0.002], dtype=torch.float64))
    case = Case(q, k, v, rg.Additive(weight), slopes, rg.RandomBlocks(1, 1, seed), seed=seed)
    flow = random_gradient(torch.empty(1, 1, 7, 8), torch.float64, seed).abs()
    distances = torch.arange(46, 53)[:, None] - torch.arange(53)
    seen = rg.RandomBlocks(1, 1, seed).dense(7, 53)[..., :7, :].reshape(7, 53)
    terms = (flow[0, 0] @ v[0, 0].abs().mT).amax(1) * (distances.abs() * seen).amax(1)
    size = cancellation_sizes(case)["gradient of position.slopes"]
    assert terms.norm() / 2 < size <= terms.sum() * (1 + 1e-9)
    assert all(x.agrees for x in compare_backends(case, ["blockwise"]))


def test_a_float16_table_of_few_pairs_has_its_gradient_summed_in_float32() -> None:
    g = torch.Generator().manual_seed(0)
    q, k, v, table = (torch.randn(size, generator=g) for size in ((1, 2, 2, 8), (1, 2, 53, 8), (1, 2, 53, 5), (2, 7)))
    mask = rg.Documents(torch.arange(53)[None] // 30)
    case = Case(*(x.double() for x in (q, k, v)), rg.Dot(), rg.Bias(table.double(), zero=6), mask, dtype=torch.float16)
    found = {x.name: x for x in compare_backends(case, ["sdpa"])}
    assert found["gradient of position.table"].agrees, found


def test_a_bfloat16_table_of_few_entries_is_not_left_to_torch() -> None:
    """Its kernel rounds every term of a gradient's sum, in which all cancel."""
    source = CallSource(43, "cpu")
    case = make_case(source, 760)
    assert case.dtype == torch.bfloat16 and isinstance(case.position, rg.Bias)
    assert "sdpa" not in usable_backends(case, "cpu")
    assert all(x.agrees for x in compare_backends(case, usable_backends(case, "cpu")))


def test_a_call_is_a_function_of_seed_and_number() -> None:
    first, again, other = (make_case(CallSource(seed, "cpu"), 7) for seed in (5, 5, 6))
    assert str(first) == str(again) and torch.equal(first.q, again.q)
    assert str(first) != str(other)
    assert usable_backends(first, "cpu") == usable_backends(again, "cpu")


def test_calls_of_a_kind_share_what_kernels_are_compiled_for() -> None:
    source = CallSource(3, "cuda", kind_calls=8)

    def compiled_for(number: int) -> tuple[object, ...]:
        case = make_case(source, number)
        sizes = [x.shape[3] for x in (case.q, case.k, case.v)] + [case.q.shape[1], case.k.shape[1]]
        parts = sorted({x for x in part_names(case) if not x.startswith("mask ")})
        return parts, sizes, case.dtype, case.carried, case.layout, case.q.shape[2] == 1, case.q.shape[0] == 1

    kinds = [[compiled_for(8 * kind + x) for x in range(8)] for kind in range(12)]
    assert all(one == kind[0] for kind in kinds for one in kind)
    assert len({str(kind[0]) for kind in kinds}) == 12
    keys = {make_case(source, number).k.shape[2] for number in range(8)}
    assert len(keys) > 2 and str(make_case(source, 0)) != str(make_case(source, 1))


def test_processes_share_the_calls_by_kind() -> None:
    source = CallSource(3, "cpu", kind_calls=2)
    shares = [list(source.numbers(10, 9, process, 3)) for process in range(3)]
    assert shares == [[12, 13, 18], [14, 15], [10, 11, 16, 17]]
    report = run_processes(source, 4, 0.0, 0, 2)
    alone = run_calls(source, 4)
    assert report.calls == 4 and report.processes == 2 and not report.failed
    assert report.gradients == alone.gradients and report.dtypes == alone.dtypes
    assert report.coverage.parts == alone.coverage.parts
