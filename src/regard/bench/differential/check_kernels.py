"""`regard check-kernels`: random calls of every backend that can run them, beside the formula in float64.

A call is a function of the seed and its number: random parts, masks and sizes in a random dtype. Its output and the
gradient of every tensor that went in may be off by twice what the formula itself is off in that dtype (see `oracle`).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from ...errors import RegardError
from ...terminal import Debug, Json, print_message, print_result, report_errors, typer
from .coverage import Coverage

SHAPES = ((300, 500), (129, 64), (1, 700), (500, 260))
"""Queries and keys of one call in ten, which has many tiles."""
MAX_FAILURES = 20
"""Failures that are reported; the others are counted."""


@dataclass
class BackendReport:
    """The calls of a backend: tensors that were compared, and the largest error as a share of what is allowed."""

    calls: int = 0
    tensors: int = 0
    largest_share: float = 0.0


@dataclass
class KernelReport:
    """What came of random calls; `failed` counts tensors that are off by more than is allowed, and calls that raise."""

    device: str
    versions: dict[str, str | None]
    seed: int
    first: int
    interpreted: bool = False  # whether Triton's kernels ran in its interpreter
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

    def add_failure(self, number: int, message: str) -> None:
        """Count a failure and keep its text, with the command that repeats it."""
        self.failed += 1
        if len(self.failures) < MAX_FAILURES:
            again = f"regard check-kernels --seed {self.seed} --first {number} --calls 1"
            again += " --interpret" if self.interpreted else ""
            self.failures.append(f"{message[:600]} ({again})")

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


def run_calls(
    calls: int,
    minutes: float,
    seed: int,
    device: str,
    first: int = 0,
    report_progress: Callable[[str], None] = lambda text: None,
    interpreted: bool = False,
) -> KernelReport:
    """Run calls `first`, `first` + 1, … until there are `calls` of them or the time is over, whichever is set."""
    from ... import machine

    report = KernelReport(device_name(device), machine.versions(), seed, first, interpreted)
    start = told = time.monotonic()
    while (not calls or report.calls < calls) and (not minutes or time.monotonic() - start < 60 * minutes):
        run_call(report, first + report.calls, device)
        report.calls += 1
        report.seconds = round(time.monotonic() - start, 1)
        if time.monotonic() - told > 60:
            told = time.monotonic()
            report_progress(f"{report.calls:,} calls, {report.failed} tensors off")
    return report


def run_call(report: KernelReport, number: int, device: str) -> None:
    """Compare every backend that can run the call of this number with the oracle."""
    from .oracle import compare_backends

    case = make_case(report.seed, number, device, report.interpreted)
    dtype = str(case.dtype).removeprefix("torch.")
    report.dtypes[dtype] = report.dtypes.get(dtype, 0) + 1
    try:
        backends = usable_backends(case, device, report.interpreted)
        comparisons = compare_backends(case, backends, device)
    except Exception as error:  # whatever a backend raises is a failure of this call
        report.add_failure(number, f"{case}: {type(error).__name__}: {error}")
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
            report.add_failure(number, f"{comparison.backend}: {case}: {comparison}")


def make_case(seed: int, number: int, device: str, interpreted: bool = False) -> Any:
    """The random call of this number: one in ten over many tiles, two in ten graphs, the others of any kind.

    Half of them have a cap, a sink or a bias by pair, and a quarter explicit places.
    """
    import torch

    from .random_calls import RandomCalls

    draw = RandomCalls(f"{seed} {number}")
    doubles = 6 if device == "cpu" else 1
    dtypes = [torch.float64] * doubles + [torch.float32] * 3 + [torch.float16, torch.bfloat16] * (1 + (device != "cpu"))
    dtypes = [torch.float32, torch.float16] if interpreted else dtypes  # what the interpreter computes
    dtype = draw.rng.choice(dtypes)
    turn = number % 10
    shape = draw.rng.choice(SHAPES) if turn == 0 else draw.sizes()
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
    threads: Annotated[int, typer.Option(help="Threads of the CPU.", min=1)] = 1,
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
        report = run_calls(calls, limit, seed, chosen, first, print_message, interpret and chosen == "cpu")
        if out is not None:
            out.write_text(json.dumps(report.to_json(), indent=1) + "\n", "utf8")
            print_message(f"Written to {out}")
        print_result(report.to_json(), str(report), as_json)
        if report.failed:
            raise RegardError(f"{report.failed} tensors of {report.calls:,} calls do not agree with the formula.")
