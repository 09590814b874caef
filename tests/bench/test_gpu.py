"""The comparisons on a GPU compare the same function; a failure is reported, and the others still run."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from regard import RegardError, Unsupported
from regard.bench import gpu
from regard.bench import gpu_workloads as workloads
from regard.bench.gpu import (
    COMPARISONS,
    BenchmarkWorker,
    ComparisonOutcome,
    GpuComparison,
    TensorFactory,
    check_against_float64,
    compare_implementations,
    format_shape,
    forward_backward,
    try_comparison,
)
from regard.bench.measure import check_close
from regard.bench.result import (
    CHINESE,
    BenchmarkResult,
    GpuBenchmarkRow,
    PassCost,
    ResourceNeed,
    SpeedupGoal,
    format_markdown,
    format_table,
    replace_section,
)

HERE, EXACT = TensorFactory("cpu", torch.float32, torch.float32), TensorFactory("cpu", torch.float64, torch.float32)
LINES = (
    GpuBenchmarkRow(
        "window ±512",
        "B1 H16 N32768 D64",
        PassCost(0.5e-3, 2e-3, 1e8, 3e8),
        ResourceNeed("matrix products", 1.375e11, 4.8e11),
        1.5,
        "FlexAttention",
        PassCost(0.55e-3, 2.3e-3, 1e8, 6e8),
        SpeedupGoal(1.0, 1.3),
    ),
    GpuBenchmarkRow("decoding one token", "B16", PassCost(0.5e-3), ResourceNeed("memory", 2.1e9)),
)
RESULT = BenchmarkResult(
    "NVIDIA H200", "2026-01-02T03:04:05", 2, False, {"torch": "2.11"}, LINES, ("a note",), ("look: no",)
)


def comparison_id(comparison: GpuComparison) -> str:
    return comparison.name


@pytest.mark.parametrize("comparison", COMPARISONS, ids=comparison_id)
def test_ours_agrees_with_the_formula_in_float64(comparison: GpuComparison) -> None:
    check_against_float64(replace(comparison, tolerance=1e-5), "cpu", torch.float32)


@pytest.mark.parametrize("comparison", [c for c in COMPARISONS if c.peers], ids=comparison_id)
def test_peers_compute_the_formula(comparison: GpuComparison) -> None:
    exact = comparison.make_workload(EXACT, **comparison.small_sizes)
    expected = forward_backward(exact, exact.implementations["eager"]())
    work = comparison.make_workload(HERE, **comparison.small_sizes)
    for peer in comparison.peers:
        if peer == "FlexAttention in transformers":
            with pytest.raises(Unsupported, match="on a GPU"):
                work.implementations[peer]()
        elif peer.startswith("FlexAttention"):  # it has no backward pass on a CPU
            with torch.no_grad():
                check_close(peer, [work.implementations[peer]()()], expected[:1])  # type: ignore[list-item]
        elif "compiled" not in peer:
            check_close(peer, forward_backward(work, work.implementations[peer]()), expected)


def test_formula_that_is_compiled_is_the_same() -> None:
    q, k, v = workloads.random_qkv(HERE, 2, 1, 13, 5)
    weight = HERE.parameter(1, 5, seed=3)
    check_close(
        "additive",
        [workloads.additive_by_sum(q, k, v, weight).detach()],
        [workloads.additive_by_matmul(q, k, v, weight).detach()],
    )


def test_useful_operations_are_those_of_the_mask() -> None:
    work = workloads.window(HERE, batch=2, heads=2, tokens=50, dim=8, before=7, after=3)
    index = torch.arange(50)
    pairs = 2 * 2 * int(((index[:, None] - index <= 7) & (index - index[:, None] <= 3)).sum())
    assert work.need.forward == 4 * 8 * pairs
    assert work.need.both == 14 * 8 * pairs


def test_edges_are_distinct_and_sorted_by_target() -> None:
    source, target = workloads.random_edges(50, 500, "cpu")
    number = target * 50 + source
    assert len(number) == 500
    assert (number.diff() > 0).all()


@pytest.mark.parametrize("work", [workloads.decode, workloads.look, workloads.dense])
def test_comparison_gives_a_line_for_each_peer(work: object) -> None:
    comparison = next(c for c in COMPARISONS if c.make_workload is work)
    notes: list[str] = []
    lines = list(compare_implementations(comparison, quick=True, budget=0.0, device="cpu", notes=notes))
    assert [line.against for line in lines] == [*comparison.peers]
    assert all(line.ours.forward and line.first and line.goal == SpeedupGoal() for line in lines)
    assert all((line.ours.both is None) == (work is not workloads.dense) for line in lines)
    assert not notes


TINY = {"batch": 1, "heads": 1, "tokens": 7, "dim": 3}


def break_implementation(at: TensorFactory, who: str, fault: object, **sizes: int) -> workloads.Workload:
    work = workloads.dense(at, **sizes)
    right = work.implementations[who]()

    def forward() -> torch.Tensor:
        if isinstance(fault, float):
            return fault * right()  # type: ignore[return-value,operator]
        raise RuntimeError(fault)

    return work._replace(implementations={**work.implementations, who: lambda: forward})


def tiny(who: str, fault: object) -> GpuComparison:
    return GpuComparison(
        "dense",
        partial(break_implementation, who=who, fault=fault),
        TINY,
        TINY,
        {"SDPA": SpeedupGoal(), "eager": SpeedupGoal()},
    )


@pytest.mark.parametrize(("who", "text"), [("regard", "dense, B1 H1 N7 D3: result 0"), ("SDPA", "beside SDPA")])
def test_wrong_numbers_are_reported_and_not_timed(who: str, text: str) -> None:
    outcome = try_comparison(tiny(who, 1.1), quick=False, budget=0.0, device="cpu")
    assert not outcome.lines and not outcome.broken
    assert outcome.failed and outcome.failed.startswith("Wrong numbers") and text in outcome.failed


def test_peer_that_fails_is_noted_and_the_others_measured() -> None:
    outcome = try_comparison(tiny("SDPA", "out of memory"), quick=False, budget=0.0, device="cpu")
    assert [line.against for line in outcome.lines] == ["eager"]
    assert outcome.notes == ("dense, B1 H1 N7 D3: SDPA has no forward pass: RuntimeError: out of memory",)
    assert outcome.failed is None


def test_failure_of_ours_is_reported() -> None:
    outcome = try_comparison(tiny("regard", "no such kernel"), quick=False, budget=0.0, device="cpu")
    assert outcome == ComparisonOutcome((), (), "dense, B1 H1 N7 D3: RuntimeError: no such kernel")


def test_peer_whose_package_is_missing_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "find_spec", lambda _: None)
    comparison = next(c for c in COMPARISONS if c.make_workload is workloads.gat_layer)
    outcome = try_comparison(comparison, quick=True, budget=0.0, device="cpu")
    assert [line.against for line in outcome.lines] == [None]
    assert all("torch_geometric is not installed" in note for note in outcome.notes) and len(outcome.notes) == 2


def test_comparison_that_takes_too_long_is_stopped() -> None:
    worker = BenchmarkWorker()
    outcome = worker.run_comparison(len(COMPARISONS) - 1, quick=True, budget=0.0, patience=0.0)
    assert outcome.failed and "took longer than 0 s" in outcome.failed
    assert worker.process is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="shows what happens without a GPU")
def test_run_continues_after_failures(tmp_path: Path) -> None:
    reported: list[str] = []
    path = tmp_path / "x.json"
    result = gpu.run(
        quick=True, only="LOOK", report=reported.append, save=lambda partial_result: partial_result.write(path)
    )
    assert len(result.failed) == 2
    assert BenchmarkResult.read(path).failed == result.failed
    assert [line for line in reported if not line.startswith(" ")] == [c.name for c in COMPARISONS if "look" in c.name]


def test_several_names_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BenchmarkWorker, "run_comparison", lambda *_: ComparisonOutcome())
    reported: list[str] = []
    gpu.run(only="gemma, SINKS", report=reported.append)
    assert [name.split(",")[0] for name in reported] == ["causal with sinks", "Gemma 2 attention layer"]


def test_unknown_name_is_refused() -> None:
    with pytest.raises(RegardError, match=r"'nonsense'.*dense causal"):
        gpu.run(only="nonsense")


def test_result_round_trips(tmp_path: Path) -> None:
    RESULT.write(tmp_path / "h200.json")
    assert BenchmarkResult.read(tmp_path / "h200.json") == RESULT
    row = json.loads((tmp_path / "h200.json").read_text(encoding="utf-8"))["rows"][0]
    assert row["better"]["memory"] == 2.0
    assert row["met"] is False
    assert 0.3 < row["share"]["forward"] < 0.4


def test_table_has_a_line_for_each() -> None:
    text = format_table(RESULT)
    assert "1.1×, 1.15×" in text
    assert "≥ 1×, ≥ 1.3×, not met" in text
    assert "37 %, 32 % of matrix products" in text
    assert text.endswith("a note\nFailed: look: no")


@pytest.mark.parametrize(("language", "verdict"), [("en", "not met"), ("zh", "未达到")])
def test_page_gets_the_table_in_its_language(language: str, verdict: str) -> None:
    page = "<!-- bench:gpu -->\nold\n<!-- /bench:gpu -->\n"
    new = replace_section(page, format_markdown(RESULT, language), "gpu")
    assert verdict in new and "old" not in new
    lines = [line for line in new.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in lines}) == 1


def test_every_workload_and_peer_has_a_chinese_name() -> None:
    workloads_and_peers = {c.workload for c in COMPARISONS} | {
        name for c in COMPARISONS for name in (*c.peers, *c.recorded_costs)
    }
    assert workloads_and_peers - {"SDPA", "FlexAttention", "PyG", "transformers"} <= set(CHINESE)


def test_names_are_distinct() -> None:
    assert len({comparison.name for comparison in COMPARISONS}) == len(COMPARISONS)
    assert (
        format_shape({"batch": 16, "heads": 32, "kv_heads": 8, "tokens": 32768, "dim": 128}) == "B16 H32/8 N32768 D128"
    )


@pytest.mark.gpu
@pytest.mark.parametrize("comparison", COMPARISONS, ids=comparison_id)
def test_small_comparison_runs_on_a_gpu(comparison: GpuComparison) -> None:
    outcome = try_comparison(replace(comparison, peers={}), quick=True, budget=0.02)
    assert outcome.failed is None
    assert all(line.ours.forward and line.ours.forward_bytes for line in outcome.lines)
