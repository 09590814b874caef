"""`regard check-kernels`: random calls of every backend that can run them, beside the formula in float64.

A call is a function of the seed and its number: random parts, masks and sizes in a random dtype. Its output and the
gradient of every tensor that went in may be off by twice what the formula itself is off in that dtype (see `oracle`).
On a GPU nearly every such call compiles kernels, for seconds; of calls that are drawn by kind, many share them.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Annotated, Any

from ...errors import RegardError
from ...terminal import Debug, Json, print_message, print_result, report_errors, typer
from .coverage import Coverage

PROGRESS_SECONDS = 30
MAX_FAILURES = 50
"""Failures that a process reports; the others are counted."""


@dataclass(frozen=True)
class CallSource:
    """Where calls come from: a function of seed and number, on a device.

    With `kind_calls` above 1, so many neighbouring numbers are calls of one kind: they share what kernels are compiled
    for, and differ in sizes, batch, contents, masks, scales and seeds.
    """

    seed: int
    device: str
    interpreted: bool = False  # whether Triton's kernels run in its interpreter
    kind_calls: int = 1

    def numbers(self, first: int, calls: int, process: int = 0, processes: int = 1) -> Iterator[int]:
        """The numbers of one of the processes, from `first` on, `calls` of them in all processes; 0 is no limit."""
        number = first
        while not calls or number < first + calls:
            if number // self.kind_calls % processes == process:
                yield number
            number += 1

    def command(self, number: int) -> str:
        """The command that repeats a call."""
        again = f"regard check-kernels --seed {self.seed} --first {number} --calls 1"
        again += f" --kind-calls {self.kind_calls}" if self.kind_calls > 1 else ""
        return again + (" --interpret" if self.interpreted else "")


@dataclass
class BackendReport:
    """The calls of a backend: tensors that were compared, and the largest error as a share of what is allowed."""

    calls: int = 0
    tensors: int = 0
    largest_share: float = 0.0

    def add(self, other: BackendReport) -> None:
        self.calls += other.calls
        self.tensors += other.tensors
        self.largest_share = max(self.largest_share, other.largest_share)


@dataclass
class KernelReport:
    """What came of random calls; `failed` counts tensors that are off by more than is allowed, and calls that raise."""

    device: str
    versions: dict[str, str | None]
    seed: int
    first: int
    interpreted: bool = False  # whether Triton's kernels ran in its interpreter
    kind_calls: int = 1
    processes: int = 1
    calls: int = 0
    gradients: int = 0
    seconds: float = 0.0
    backends: dict[str, BackendReport] = field(default_factory=dict)
    dtypes: dict[str, int] = field(default_factory=dict)
    failed: int = 0
    failures: list[str] = field(default_factory=list)
    coverage: Coverage = field(default_factory=Coverage)

    def to_json(self) -> dict[str, Any]:
        """The report as plain values: of the coverage the counts by part, and the pairs of parts that no call had."""
        covered = {"parts": self.coverage.parts, "pairs": len(self.coverage.pairs)}
        covered["missing_pairs"] = self.coverage.missing_pairs()
        return {name: getattr(self, name) for name in vars(self)} | {
            "backends": {name: asdict(backend) for name, backend in self.backends.items()},
            "coverage": covered,
        }

    def add_failure(self, message: str, again: str) -> None:
        """Count a failure and keep its text, with the command that repeats it."""
        self.failed += 1
        if len(self.failures) < MAX_FAILURES:
            self.failures.append(f"{message[:600]} ({again})")

    def add(self, other: KernelReport) -> None:
        """Add the calls of another process."""
        self.calls += other.calls
        self.gradients += other.gradients
        self.seconds = max(self.seconds, other.seconds)
        self.failed += other.failed
        self.failures += other.failures
        for dtype, calls in other.dtypes.items():
            self.dtypes[dtype] = self.dtypes.get(dtype, 0) + calls
        for name, backend in other.backends.items():
            self.backends.setdefault(name, BackendReport()).add(backend)
        self.coverage.merge(other.coverage)

    def __str__(self) -> str:
        lines = [f"{self.calls:,} random calls on {self.device} in {self.seconds:.0f} s, {self.gradients:,} gradients"]
        lines += [
            f"  {name:12}{report.calls:9,} calls{report.tensors:10,} tensors   "
            f"largest error {report.largest_share:4.0%} of what is allowed"
            for name, report in sorted(self.backends.items())
        ]
        lines += [f"  {failure}" for failure in self.failures]
        missing = self.coverage.missing_pairs()
        lines.append(
            f"{len(self.coverage.parts)} parts, {len(self.coverage.pairs):,} pairs of parts in a call together"
        )
        lines += [f"  not yet: {'; '.join(missing[:10])}{' …' if len(missing) > 10 else ''}"] if missing else []
        tensors = sum(report.tensors for report in self.backends.values())
        return "\n".join([*lines, f"{self.failed} of {tensors:,} tensors are off by more"])


def new_report(source: CallSource, first: int, processes: int = 1) -> KernelReport:
    """A report without calls."""
    from ... import machine

    device, versions = device_name(source.device), machine.versions()
    return KernelReport(device, versions, source.seed, first, source.interpreted, source.kind_calls, processes)


def run_calls(
    source: CallSource,
    calls: int,
    minutes: float = 0.0,
    first: int = 0,
    report_progress: Callable[[KernelReport], None] = lambda report: None,
    process: int = 0,
    processes: int = 1,
) -> KernelReport:
    """Run a process's share of calls `first`, `first` + 1, … until there are `calls` or the time is over."""
    report, start = new_report(source, first), time.monotonic()
    reported = start
    for number in source.numbers(first, calls, process, processes):
        if minutes and time.monotonic() - start >= 60 * minutes:
            break
        run_call(report, source, number)
        report.calls += 1
        report.seconds = round(time.monotonic() - start, 1)
        if time.monotonic() - reported > PROGRESS_SECONDS:
            reported = time.monotonic()
            report_progress(report)
    return report


def run_processes(
    source: CallSource,
    calls: int,
    minutes: float,
    first: int,
    processes: int,
    report_progress: Callable[[KernelReport], None] = lambda report: None,
) -> KernelReport:
    """`run_calls` in several processes, each with every so-manieth kind; one that dies is a failure."""
    context = multiprocessing.get_context("spawn")
    workers, waiting = [], list[Connection]()
    for process in range(processes):
        receiver, sender = context.Pipe(duplex=False)
        arguments = (sender, source, calls, minutes, first, process, processes)
        workers.append(context.Process(target=run_worker, args=arguments))
        workers[-1].start()
        sender.close()
        waiting.append(receiver)
    latest: dict[Connection, KernelReport] = {}
    merged = new_report(source, first, processes)
    while waiting:
        for receiver in [x for x in wait(waiting) if isinstance(x, Connection)]:
            try:
                latest[receiver] = receiver.recv()
            except EOFError:
                waiting.remove(receiver)
        merged = new_report(source, first, processes)
        for report in latest.values():
            merged.add(report)
        report_progress(merged)
    for worker in workers:
        worker.join()
        if worker.exitcode:
            again = f"{source.command(first)} --processes {processes}"
            merged.add_failure(f"a process died with status {worker.exitcode}", again)
    return merged


def run_worker(
    sender: Connection, source: CallSource, calls: int, minutes: float, first: int, process: int, processes: int
) -> None:
    """Send the report of `run_calls`, and before that what there is of it now and then."""
    import torch

    torch.set_num_threads(1)
    sender.send(run_calls(source, calls, minutes, first, sender.send, process, processes))


def run_call(report: KernelReport, source: CallSource, number: int) -> None:
    """Compare every backend that can run the call of this number with the oracle."""
    from .oracle import compare_backends

    device, again = source.device, source.command(number)
    case = make_case(source, number)
    dtype = str(case.dtype).removeprefix("torch.")
    report.dtypes[dtype] = report.dtypes.get(dtype, 0) + 1
    try:
        backends = usable_backends(case, device, source.interpreted)
        comparisons = compare_backends(case, backends, device)
    except Exception as error:  # whatever a backend raises is a failure of this call
        report.add_failure(f"{case}: {type(error).__name__}: {error}", again)
        return
    report.coverage.add(case, backends)
    for name in backends:
        report.backends.setdefault(name, BackendReport()).calls += 1
    for comparison in comparisons:
        backend = report.backends[comparison.backend]
        backend.tensors += 1
        report.gradients += comparison.name != "output"
        if comparison.agrees:
            backend.largest_share = max(backend.largest_share, comparison.error / comparison.limit)
        else:
            report.add_failure(f"{comparison.backend}: {case}: {comparison}", again)


def make_case(source: CallSource, number: int) -> Any:
    """The random call of this number: one in ten over many tiles, two in ten graphs, the others of any kind.

    Half of them have a cap, a sink or a bias by pair, and a quarter explicit places.
    """
    import torch

    from .random_calls import RandomCalls

    on_cpu, kind = source.device == "cpu", number // source.kind_calls
    variant = number % source.kind_calls if source.kind_calls > 1 else None
    draw = RandomCalls(f"{source.seed} {kind}", variant)
    doubles = 6 if on_cpu else 1
    dtypes = [torch.float64] * doubles + [torch.float32] * 3 + [torch.float16, torch.bfloat16] * (1 if on_cpu else 2)
    dtypes = [torch.float32, torch.float16] if source.interpreted else dtypes  # what the interpreter computes
    dtype = draw.rng.choice(dtypes)
    turn = kind % 10
    shape = draw.sizes(many=turn == 0)
    graph = "edges" if turn in (1, 6) else "any"
    return draw.case(*shape, dtype, graph, small=turn == 0, others=turn == 2, places=turn == 3)


def usable_backends(case: Any, device: str, interpreted: bool = False) -> list[str]:
    """Every backend without a reason against the case; the formula itself is the oracle, so it is left out.

    On a CPU Triton's kernels run in its interpreter, which takes seconds to minutes for each call, only if asked for.
    """
    from ...attention.backends import BACKENDS
    from ...attention.call import make_call
    from .oracle import make_leaves, poison_memory

    leaves, parts = make_leaves(case, case.dtype, case.carried or case.dtype, device)
    mask = case.mask if case.mask is None or device == "cpu" else case.mask.to(device)
    places = case.places
    if places is not None:
        places = replace(places, **{name: x.to(device) for name, x in places.tensors().items()})
    call = make_call(*(leaves[name] for name in "qkv"), **parts, mask=mask, dropout=case.dropout, places=places)
    left_out = {"reference"} if interpreted or device != "cpu" else {"reference", "triton"}
    with poison_memory():  # as results are computed: some backends refuse under deterministic algorithms
        able = [name for name, module in BACKENDS.items() if module.unsupported_reason(call) is None]
    return [name for name in able if name not in left_out] + ["auto"]


def device_name(device: str) -> str:
    """The device as results name it."""
    import torch

    return torch.cuda.get_device_name() if device == "cuda" else "cpu"


def check_kernels(
    minutes: Annotated[float, typer.Option(help="Stop after so many minutes; 0 is no limit.", min=0.0)] = 0.0,
    calls: Annotated[int, typer.Option(help="Stop after so many calls; 0 is no limit.", min=0)] = 0,
    seed: Annotated[int, typer.Option(help="Decides the random calls.")] = 0,
    first: Annotated[int, typer.Option(help="Number of the first call.", min=0)] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    interpret: Annotated[bool, typer.Option(help="Without a GPU, also run Triton's kernels interpreted.")] = False,
    kind_calls: Annotated[
        int,
        typer.Option(help="Neighbouring calls that can share compiled kernels; 100 for many calls on a GPU.", min=1),
    ] = 1,
    processes: Annotated[int, typer.Option(help="Processes that share the calls.", min=1)] = 1,
    threads: Annotated[int, typer.Option(help="Threads of the CPU, without --processes.", min=1)] = 1,
    out: Annotated[Path | None, typer.Option(help="Also write the result to this JSON file.")] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare every backend with the formula in float64 over random calls, outputs and gradients."""
    with report_errors(debug):
        import torch

        from ... import Unsupported

        if device not in ("auto", "cpu", "cuda"):
            raise typer.BadParameter(f"{device!r} is not auto, cpu or cuda", param_hint="--device")
        if device == "cuda" and not torch.cuda.is_available():
            raise Unsupported("torch finds no CUDA device. Run regard check-kernels --device cpu.")
        chosen = device if device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
        torch.set_num_threads(threads)
        if interpret and chosen == "cpu":
            os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
        limit = minutes if minutes or calls else 5.0
        source = CallSource(seed, chosen, interpret and chosen == "cpu", kind_calls)
        tell = lambda report: print_message(f"{report.calls:,} calls, {report.failed} tensors off")  # noqa: E731
        if processes > 1:
            report = run_processes(source, calls, limit, first, processes, tell)
        else:
            report = run_calls(source, calls, limit, first, tell)
        if out is not None:
            out.write_text(json.dumps(report.to_json(), indent=1) + "\n", "utf8")
            print_message(f"Written to {out}")
        print_result(report.to_json(), str(report), as_json)
        if report.failed:
            raise RegardError(f"{report.failed} tensors of {report.calls:,} calls do not agree with the formula.")
