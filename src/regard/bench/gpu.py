"""Comparisons on a GPU: workloads, sizes, peers and goals, each measured in a worker process."""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import NamedTuple

import torch
from torch import Tensor

import regard as rg
from regard import machine
from regard.bench import gpu_methods as methods
from regard.bench import gpu_parts as parts
from regard.bench import gpu_workloads as workloads
from regard.bench.gpu_workloads import Forward, TensorFactory, Workload
from regard.bench.measure import Call, WrongNumbers, check_close, gpu_median_times, gpu_peak_memory, median_times
from regard.bench.result import BenchmarkResult, GpuBenchmarkRow, PassCost, SpeedupGoal


@dataclass(frozen=True)
class GpuComparison:
    """A workload at one size, with its peers and the goal for each.

    At `small_sizes` our result is checked against the formula in float64 within `tolerance`; a quick run uses the same
    sizes. `peer_tolerance` is for full size, where both sides round. `recorded_costs` are costs of peers that were
    measured on an H200 in an earlier run.
    """

    workload: str
    make_workload: Callable[..., Workload]
    sizes: dict[str, int]
    small_sizes: dict[str, int]
    peers: dict[str, SpeedupGoal] = field(default_factory=dict)
    recorded_costs: dict[str, tuple[PassCost, SpeedupGoal]] = field(default_factory=dict)
    dtype: torch.dtype = torch.bfloat16
    tolerance: float = 1e-2
    peer_tolerance: float = 5e-2

    @property
    def name(self) -> str:
        return f"{self.workload}, {format_shape(self.sizes)}"


class ComparisonOutcome(NamedTuple):
    """The rows of a comparison, notes on peers that were left out, and the reason of a failure.

    `broken`: the device no longer responds in that process.
    """

    lines: tuple[GpuBenchmarkRow, ...] = ()
    notes: tuple[str, ...] = ()
    failed: str | None = None
    broken: bool = False


LONG = {"batch": 1, "heads": 16, "tokens": 32768, "dim": 64}
SHORT = {"batch": 1, "heads": 2, "tokens": 1500, "dim": 64}
GRAPH, SMALL_GRAPH = {"nodes": 1_000_000, "edges": 20_000_000}, {"nodes": 300, "edges": 4000}
CUDNN_GRAPH_API = "cuDNN's graph API, noted earlier"
LAYER_PEERS = {"FlexAttention in transformers": SpeedupGoal(1.0, 1.0), "transformers, eager": SpeedupGoal(1.0, 1.0)}
SMALL_LAYER = {"heads": 4, "kv_heads": 2, "tokens": 300, "dim": 64, "before": 40}
PEER_PACKAGES = {"PyG": "torch_geometric", "transformers": "transformers"}  # by the beginning of the peer's name

COMPARISONS = (
    GpuComparison(
        "dense causal",
        workloads.dense,
        {"batch": 4, "heads": 16, "tokens": 8192, "dim": 128},
        {"batch": 2, "heads": 2, "tokens": 700, "dim": 128},
        {"SDPA": SpeedupGoal(0.98, 0.98, 0.98), "SDPA, cuDNN": SpeedupGoal(0.98, 0.98)},
    ),
    GpuComparison(
        "window ±512",
        workloads.window,
        LONG | {"before": 512, "after": 512},
        SHORT | {"before": 130, "after": 130},
        {"FlexAttention": SpeedupGoal(1.0, 1.3)},
        {CUDNN_GRAPH_API: (PassCost(0.47e-3), SpeedupGoal())},
    ),
    GpuComparison(
        "window ±512 with ALiBi",
        partial(workloads.window, alibi=True),
        LONG | {"before": 512, "after": 512},
        SHORT | {"before": 130, "after": 130},
        {"FlexAttention": SpeedupGoal(1.5, 1.4)},
    ),
    GpuComparison(
        "causal window of 1024 back",
        workloads.window,
        LONG | {"before": 1024, "after": 0},
        SHORT | {"before": 260, "after": 0},
        {"FlexAttention": SpeedupGoal()},
        {CUDNN_GRAPH_API: (PassCost(0.45e-3, 1.58e-3), SpeedupGoal(0.98, 0.98))},
    ),
    GpuComparison(
        "causal window of 1024 back with ALiBi",
        partial(workloads.window, alibi=True),
        LONG | {"before": 1024, "after": 0},
        SHORT | {"before": 260, "after": 0},
        {"FlexAttention": SpeedupGoal()},
        {CUDNN_GRAPH_API: (PassCost(0.54e-3, 1.75e-3), SpeedupGoal(0.98, 0.98))},
    ),
    GpuComparison(
        "Longformer layer",
        workloads.longformer,
        {"heads": 16, "tokens": 32768, "dim": 64, "before": 512},
        {"heads": 2, "tokens": 1024, "dim": 64, "before": 64},
        {"transformers": SpeedupGoal(both=30)},
    ),
    GpuComparison(
        "BigBird, block 64",
        workloads.bigbird,
        {"heads": 16, "tokens": 16384, "dim": 64, "block": 64},
        {"heads": 2, "tokens": 1024, "dim": 64, "block": 64},
        {"FlexAttention": SpeedupGoal(10, 5), "FlexAttention, blocks of 64": SpeedupGoal(10, 5)},
    ),
    GpuComparison(
        "learned bias by distance",
        workloads.learned_bias,
        {"batch": 2, "heads": 16, "tokens": 4096, "dim": 64},
        {"batch": 2, "heads": 2, "tokens": 500, "dim": 64},
        {"FlexAttention": SpeedupGoal(3, 2.5)},
    ),
    *[
        GpuComparison(
            name,
            make,
            {"batch": 2, "heads": 16, "tokens": tokens, "dim": dim},
            {"batch": 2, "heads": 2, "tokens": 300, "dim": dim},
            {"FlexAttention": SpeedupGoal(1.2, 1.2)},
        )
        for name, make, tokens, dim in (
            ("causal with a cap on scores", parts.capped, 8192, 128),
            ("causal with sinks", parts.sinks, 8192, 128),
            ("learned bias by pair", parts.pair_bias, 4096, 64),
        )
    ],
    GpuComparison(
        "Gemma 2 attention layer",
        parts.gemma_layer,
        {"heads": 8, "kv_heads": 4, "tokens": 8192, "dim": 256, "before": 4095},
        SMALL_LAYER,
        LAYER_PEERS,
    ),
    GpuComparison(
        "gpt-oss attention layer",
        parts.gpt_oss_layer,
        {"heads": 64, "kv_heads": 8, "tokens": 8192, "dim": 64, "before": 127},
        SMALL_LAYER,
        LAYER_PEERS,
        peer_tolerance=1e-1,  # transformers rounds FlexAttention's log-sum-exp before it adds the sinks
    ),
    GpuComparison(
        "Transformer-XL",
        workloads.transformer_xl,
        {"batch": 2, "heads": 16, "tokens": 4096, "memory": 4096, "dim": 64},
        {"batch": 2, "heads": 2, "tokens": 300, "memory": 230, "dim": 64},
        {"compiled": SpeedupGoal(5, 3, 20), "eager": SpeedupGoal()},
    ),
    GpuComparison(
        "additive (tanh)",
        workloads.additive,
        {"batch": 8, "heads": 1, "tokens": 2048, "dim": 128},
        {"batch": 2, "heads": 1, "tokens": 150, "dim": 128},
        {"compiled": SpeedupGoal(5, 10), "eager": SpeedupGoal()},
    ),
    GpuComparison(
        "additive (tanh)",
        workloads.additive,
        {"batch": 1, "heads": 8, "tokens": 8192, "dim": 64},
        {"batch": 1, "heads": 2, "tokens": 150, "dim": 64},
        {"compiled": SpeedupGoal(5, 10)},
    ),
    GpuComparison(
        "sentences of 32–1024 tokens",
        workloads.sentences,
        {"batch": 64, "heads": 16, "tokens": 1024, "dim": 64, "shortest": 32},
        {"batch": 5, "heads": 2, "tokens": 300, "dim": 64, "shortest": 32},
        {"FlexAttention": SpeedupGoal(1.3, 1.3)},
    ),
    GpuComparison(
        "GAT layer, 8 × 16",
        workloads.gat_layer,
        GRAPH,
        SMALL_GRAPH,
        {"PyG, compiled": SpeedupGoal(5, 3, 3), "PyG": SpeedupGoal()},
        dtype=torch.float32,
        tolerance=1e-4,
        # Over millions of edges PyG's own gradient of att_dst, a sum that nearly cancels, is more than 1e-4 off.
        peer_tolerance=5e-3,
    ),
    GpuComparison(
        "GATv2 layer, 8 × 16",
        workloads.gatv2_layer,
        GRAPH,
        SMALL_GRAPH,
        {"PyG, compiled": SpeedupGoal(5, 15, 2), "PyG": SpeedupGoal()},
        dtype=torch.float32,
        tolerance=1e-4,
        peer_tolerance=5e-3,
    ),
    GpuComparison(
        "look: entropy, top 8, received, map 256 × 256",
        workloads.look,
        {"heads": 16, "tokens": 16384, "dim": 64, "cells": 256},
        {"heads": 2, "tokens": 1024, "dim": 64, "cells": 16},
        {"eager": SpeedupGoal(15)},
    ),
    GpuComparison(
        "look: entropy, top 8, received, map 256 × 256",
        workloads.look,
        {"heads": 16, "tokens": 131072, "dim": 64, "cells": 256},
        {"heads": 2, "tokens": 1024, "dim": 64, "cells": 16},
    ),
    GpuComparison(
        "decoding one token",
        workloads.decode,
        {"batch": 16, "heads": 32, "kv_heads": 8, "tokens": 32768, "dim": 128},
        {"batch": 2, "heads": 4, "kv_heads": 2, "tokens": 1000, "dim": 128},
        {"SDPA": SpeedupGoal(0.98), "SDPA, cuDNN": SpeedupGoal(0.98)},
    ),
    *[
        GpuComparison(
            name,
            make,
            LONG | {size: 256},
            {"batch": 1, "heads": 2, "tokens": 1024, "dim": 64, size: 64},
            {"compiled": SpeedupGoal(1, 1, 1), "compiled, in float32": SpeedupGoal(1, 1, 1)},
            tolerance=tolerance,
        )
        for name, make, size, tolerance in (
            ("Linformer", methods.linformer, "projected", 1e-2),
            # Its inverse amplifies rounding errors: in bfloat16 the formula's own gradients of q and k are 2e-2 off.
            ("Nyström", methods.nystrom, "landmarks", 2e-2),
            ("Performer", methods.performer, "features", 1e-2),
        )
    ],
)


def run(
    quick: bool = False,
    only: str = "",
    budget: float = 0.3,
    report: Callable[[str], None] = lambda _: None,
    save: Callable[[BenchmarkResult], None] = lambda _: None,
    patience: float = 180.0,
) -> BenchmarkResult:
    """Run the comparisons whose name contains `only`, or one of several words between commas, in a worker process.

    `report` receives the name of each when it starts and its rows when it ends; `save` receives the result so far. A
    comparison that fails, computes a wrong result or takes longer than `patience` seconds is recorded as failed; the
    others still run. Raises `RegardError` if no name matches.
    """
    wanted = [word.strip().lower() for word in only.split(",")]
    numbers = [n for n, comparison in enumerate(COMPARISONS) if any(w in comparison.name.lower() for w in wanted)]
    if not numbers:
        names = "; ".join(comparison.name for comparison in COMPARISONS)
        raise rg.RegardError(f"No comparison on a GPU has {only!r} in its name. They are: {names}.")
    outcomes: list[ComparisonOutcome] = []
    worker = BenchmarkWorker()
    try:
        for number in numbers:
            report(COMPARISONS[number].name)
            outcome = worker.run_comparison(number, quick, budget, patience)
            outcomes.append(outcome)
            lines = ["  ".join(filter(None, line.cells()[2:])) for line in outcome.lines]
            for text in filter(None, (*lines, *outcome.notes, outcome.failed)):
                report(f"  {text}")
            save(collect_result(outcomes, quick))
    finally:
        worker.stop()
    return collect_result(outcomes, quick)


def collect_result(outcomes: Sequence[ComparisonOutcome], quick: bool) -> BenchmarkResult:
    """The result so far."""
    lines = tuple(line for outcome in outcomes for line in outcome.lines)
    notes = tuple(note for outcome in outcomes for note in outcome.notes)
    failed = tuple(outcome.failed for outcome in outcomes if outcome.failed)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return BenchmarkResult(device_name(), now, torch.get_num_threads(), quick, machine.versions(), lines, notes, failed)


def device_name() -> str:
    """The name of the GPU."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"


def result_file_name(device: str) -> str:
    """The file name for results of a device.

    >>> result_file_name("NVIDIA H200"), result_file_name("NVIDIA A100-SXM4-80GB")
    ('h200.json', 'a100-sxm4-80gb.json')
    """
    return "-".join(device.lower().replace("nvidia", "").split()) + ".json"


class BenchmarkWorker:
    """A process that measures one comparison after another; it is replaced after a failure of the device."""

    def __init__(self) -> None:
        self.process: SpawnProcess | None = None
        self.pipe: Connection | None = None

    def run_comparison(self, number: int, quick: bool, budget: float, patience: float) -> ComparisonOutcome:
        """The outcome of a comparison, which is stopped after `patience` seconds."""
        if self.process is None or self.pipe is None:
            context = get_context("spawn")
            self.pipe, child_pipe = context.Pipe()
            self.process = context.Process(target=serve_comparisons, args=(child_pipe,))
            self.process.start()
            child_pipe.close()
        name = COMPARISONS[number].name
        try:
            self.pipe.send((number, quick, budget))
            if not self.pipe.poll(patience):
                self.stop(wait=False)
                return ComparisonOutcome(failed=f"{name}: took longer than {patience:g} s and was stopped")
            outcome = self.pipe.recv()
        except (EOFError, ConnectionError):
            self.stop(wait=False)
            return ComparisonOutcome(failed=f"{name}: the process that measured it died")
        if outcome.broken:
            self.stop()
        return outcome

    def stop(self, wait: bool = True) -> None:
        """End the process; `wait` up to ten seconds for the current comparison."""
        if self.process is None or self.pipe is None:
            return
        self.pipe.close()
        self.process.join(10 if wait else 0)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process = self.pipe = None


def serve_comparisons(pipe: Connection) -> None:
    """Measure the requested comparisons until the pipe is closed."""
    if torch.cuda.is_available():  # initialize CUDA and Triton, so that the time of a first call does not include it
        x = torch.ones(1, 1, 16, 16, dtype=torch.bfloat16, device="cuda")
        rg.attend(x, x, x, mask=rg.Window(4, 4), backend="triton")
        torch.cuda.synchronize()
    while True:
        try:
            number, quick, budget = pipe.recv()
        except (EOFError, ConnectionError):
            return
        outcome = try_comparison(COMPARISONS[number], quick, budget)
        pipe.send(outcome)
        if outcome.broken:
            return


def try_comparison(comparison: GpuComparison, quick: bool, budget: float, device: str = "cuda") -> ComparisonOutcome:
    """The outcome of a comparison, also where it failed."""
    notes: list[str] = []
    try:
        lines = tuple(compare_implementations(comparison, quick, budget, device, notes))
        return ComparisonOutcome(lines, tuple(notes))
    except WrongNumbers as error:
        return ComparisonOutcome((), tuple(notes), f"Wrong numbers: {error}")
    except Exception as error:
        return ComparisonOutcome(
            (), tuple(notes), f"{comparison.name}: {summarize_error(error)}", broken=not device_responds(device)
        )
    finally:
        torch.compiler.reset()
        gc.collect()
        if device == "cuda" and device_responds(device):
            torch.cuda.empty_cache()


def device_responds(device: str) -> bool:
    """Whether the device still responds; after an illegal memory access it does not in this process."""
    try:
        torch.ones(1, device=device).sum().item()
    except Exception:
        return False
    return True


def summarize_error(error: BaseException) -> str:
    """The error's class and the beginning of its message."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


def compare_implementations(
    comparison: GpuComparison, quick: bool, budget: float, device: str, notes: list[str]
) -> Iterator[GpuBenchmarkRow]:
    """The rows of a comparison, one for each peer, after a check against float64.

    The reason why a peer could not be measured is added to `notes`. Raises `WrongNumbers`.
    """
    dtype = comparison.dtype if device == "cuda" else torch.float32
    sizes = comparison.small_sizes if quick else comparison.sizes
    workload = comparison.make_workload(TensorFactory(device, dtype, dtype), **sizes)
    ours = workload.implementations["regard"]()
    first = time_call(partial(forward_backward, workload, ours), device)
    check_against_float64(comparison, device, dtype)
    forwards = {"regard": ours}
    for peer in comparison.peers:
        if (forward := prepare_peer(comparison, workload, peer, notes)) is not None:
            forwards[peer] = forward
    costs = measure_costs(comparison, workload, forwards, budget, device, notes)
    limited = device == "cuda" and "H200" in device_name() and not quick
    line = partial(
        GpuBenchmarkRow,
        comparison.workload,
        format_shape(sizes),
        costs.pop("regard"),
        workload.need,
        first,
        limited=limited,
    )
    # A goal is for the full size.
    yield from (
        line(peer, peer_cost, SpeedupGoal() if quick else comparison.peers[peer]) for peer, peer_cost in costs.items()
    )
    if limited:
        yield from (line(peer, peer_cost, goal) for peer, (peer_cost, goal) in comparison.recorded_costs.items())
    if not costs:
        yield line()


def time_call(call: Call, device: str) -> float:
    """Seconds of a call, including the synchronization with the device."""
    start = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def check_against_float64(comparison: GpuComparison, device: str, dtype: torch.dtype) -> None:
    """Raise `WrongNumbers` unless our result at small sizes agrees with the formula in float64."""
    name = f"{comparison.workload}, {format_shape(comparison.small_sizes)}"
    workload = comparison.make_workload(TensorFactory(device, dtype, dtype), **comparison.small_sizes)
    exact = comparison.make_workload(TensorFactory(device, torch.float64, dtype), **comparison.small_sizes)
    expected = forward_backward(exact, exact.implementations["eager"]())
    check_close(name, forward_backward(workload, workload.implementations["regard"]()), expected, comparison.tolerance)


def forward_backward(workload: Workload, forward: Forward) -> tuple[Tensor, ...]:
    """The output and the gradient of each input for a fixed random upstream gradient."""
    if not workload.inputs:
        with torch.no_grad():
            return as_tuple(forward())
    output = forward()
    if not isinstance(output, Tensor):
        raise TypeError(f"A workload with gradients must return a tensor, not {type(output).__name__}.")
    return output.detach(), *torch.autograd.grad(output, workload.inputs, upstream_gradient(output))


def as_tuple(output: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The output as a tuple."""
    return (output,) if isinstance(output, Tensor) else output


def upstream_gradient(output: Tensor) -> Tensor:
    """A fixed random gradient of the output, the same in every dtype."""
    generator = torch.Generator(output.device).manual_seed(9)
    numbers = torch.randn(output.shape, generator=generator, device=output.device)
    return numbers.to(torch.bfloat16).to(output.dtype)


def prepare_peer(comparison: GpuComparison, workload: Workload, peer: str, notes: list[str]) -> Forward | None:
    """A peer's forward pass; or `None`, with the reason in `notes`."""
    missing = next(
        (module for name, module in PEER_PACKAGES.items() if peer.startswith(name) and not find_spec(module)), None
    )
    if missing:
        notes.append(f"{comparison.name}: {peer} left out, because {missing} is not installed.")
        return None
    try:
        return workload.implementations[peer]()
    except Exception as error:
        notes.append(f"{comparison.name}: {peer} left out: {summarize_error(error)}")
        return None


def measure_costs(
    comparison: GpuComparison,
    workload: Workload,
    forwards: dict[str, Forward],
    budget: float,
    device: str,
    notes: list[str],
) -> dict[str, PassCost]:
    """The cost of each implementation.

    A peer's pass that fails is left out with a note. Raises `WrongNumbers` if a result differs from ours.
    """
    grad = upstream_gradient(forwards["regard"]()) if workload.inputs else None  # type: ignore[arg-type]
    calls: dict[str, Call] = {}
    memory: dict[str, float] = {}
    expected: tuple[Tensor, ...] = ()
    for name, forward in forwards.items():
        results: tuple[Tensor, ...] = ()
        for pass_name, call in pass_calls(workload, forward, grad).items():
            try:
                results += as_tuple(call())
                memory[f"{name}: {pass_name}"] = gpu_peak_memory(call) if device == "cuda" else 0.0
                calls[f"{name}: {pass_name}"] = call
            except Exception as error:
                if name == "regard" or not device_responds(device):
                    raise
                notes.append(f"{comparison.name}: {name} has no {pass_name} pass: {summarize_error(error)}")
                break
        expected = expected or results
        check_close(f"{comparison.name}, beside {name}", expected[: len(results)], results, comparison.peer_tolerance)
        results = ()
        free_memory(device)
    expected = ()
    free_memory(device)
    seconds = gpu_median_times(calls, budget) if device == "cuda" else median_times(calls, budget, min_rounds=1)
    return {name: pass_cost(name, seconds, memory) for name in forwards if f"{name}: forward" in seconds}


def pass_calls(
    workload: Workload, forward: Forward, grad: Tensor | None
) -> dict[str, Callable[[], Tensor | tuple[Tensor, ...]]]:
    """The measured passes: forward without gradients and, if the workload has inputs, forward and backward."""

    def forward_only() -> Tensor | tuple[Tensor, ...]:
        with torch.no_grad():
            return forward()

    def forward_and_backward() -> tuple[Tensor, ...]:
        return torch.autograd.grad(forward(), workload.inputs, grad)  # type: ignore[arg-type]

    return {"forward": forward_only} | ({"backward": forward_and_backward} if workload.inputs else {})


def pass_cost(name: str, seconds: dict[str, float], memory: dict[str, float]) -> PassCost:
    """The times and peaks of one implementation."""
    forward, backward = f"{name}: forward", f"{name}: backward"
    peaks = [memory.get(key) or None for key in (forward, backward)]
    return PassCost(seconds.get(forward), seconds.get(backward), *(peaks if backward in seconds else peaks[:1]))


def free_memory(device: str) -> None:
    """Free unused memory."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def format_shape(sizes: dict[str, int]) -> str:
    """Sizes as text for tables.

    >>> format_shape({"batch": 2, "heads": 16, "tokens": 4096, "memory": 4096, "dim": 64})
    'B2 H16 N4096+4096 D64'
    """
    if "nodes" in sizes:
        return ", ".join(f"{size:,} {name}" for name, size in sizes.items())
    letters = {"batch": "B", "heads": "H", "kv_heads": "/", "tokens": "N", "memory": "+", "dim": "D"}
    text = " ".join(f"{letters[name]}{size}" for name, size in sizes.items() if name in letters)
    return text.replace(" +", "+").replace(" /", "/")
