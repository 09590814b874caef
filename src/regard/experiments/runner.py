"""Runs experiments and saves their results: `<name>.json` and a figure in each language."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from ..errors import BadInput, RegardError
from .experiment import Experiment, Measurements
from .parameters import NO_SETTINGS, Language, Settings, Size, resolve_settings
from .progress import ProgressCallback, ProgressPrinter, ignore_progress
from .registry import find_experiment
from .results import LANGUAGES, ResultDocument, dump_verdict, figure_path, read_result, read_results, save_result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZES: tuple[Size, ...] = get_args(Size)
PALETTE_COLOURS = 255
"""Colours of a saved figure: each is within a few levels of the drawn colour, and the file is a third as large."""


def run_experiment(
    experiment: Experiment,
    out: Path,
    *,
    size: Size = "usual",
    seed: int = 0,
    progress: ProgressCallback = ignore_progress,
    again: bool = False,
    device: str = "cpu",
    settings: Settings = NO_SETTINGS,
) -> ResultDocument:
    """Measure an experiment, save its result and figures in `out`, and return the result.

    A saved result of the same claim, size, seed, device and settings is reused unless `again`.
    """
    resolve_settings(experiment.PARAMETERS, size, settings)
    expected = {"claim": dump_claim(experiment), "size": size, "seed": seed, "settings": dict(settings)}
    cached = None if again else read_cached_result(experiment, out, expected, device)
    result = cached or measure_experiment(experiment, size, seed, progress, device, settings)
    save_result(result, out)
    for language in LANGUAGES:
        path = figure_path(out, experiment.CLAIM.name, language)
        if cached is None or not path.exists():
            save_experiment_figure(experiment, result["numbers"], language, path)
    return result


def dump_claim(experiment: Experiment) -> ResultDocument:
    """The claim of an experiment in the form that JSON holds."""
    claim = asdict(experiment.CLAIM)
    return claim | {"criteria": list(claim["criteria"])}


def measure_experiment(
    experiment: Experiment,
    size: Size,
    seed: int,
    progress: ProgressCallback,
    device: str = "cpu",
    settings: Settings = NO_SETTINGS,
) -> ResultDocument:
    """Measure and judge an experiment; the result has everything needed to reproduce it."""
    import torch

    from ..machine import devices, versions

    start = time.monotonic()
    with single_thread(), full_float32(), torch.device(device):
        numbers = experiment.measure(size, seed, progress, settings)
    try:
        # the verdict is computed from the numbers as they are saved
        numbers = json.loads(json.dumps(numbers, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise BadInput(f"The numbers of {experiment.CLAIM.name} cannot be written as JSON: {error}.") from None
    return {
        "name": experiment.CLAIM.name,
        "claim": dump_claim(experiment),
        "numbers": numbers,
        "verdict": dump_verdict(experiment.verdict(numbers)),
        "seed": seed,
        "size": size,
        "settings": dict(settings),
        "device": device,
        "versions": versions(),
        "devices": devices(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - start, 2),
    }


@contextmanager
def single_thread() -> Iterator[None]:
    """While open, torch computes on one thread: sums then have the same order on every machine."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def full_float32() -> Iterator[None]:
    """While open, convolutions on a GPU use full float32 instead of TF32."""
    import torch

    allowed = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = allowed


def read_cached_result(
    experiment: Experiment, out: Path, expected: ResultDocument, device: str
) -> ResultDocument | None:
    """A saved result with these fields and this device, with a fresh verdict; None if there is none to judge."""
    result = read_result(out / f"{experiment.CLAIM.name}.json")
    if result is None or result.get("device", "cpu") != device:
        return None
    if any(result.get(key, {}) != value for key, value in expected.items()):
        return None
    try:
        return result | {"verdict": dump_verdict(experiment.verdict(result["numbers"]))}
    except LookupError:  # an earlier version measured other numbers
        return None


def refresh_results(folder: Path, figures: bool = True) -> list[ResultDocument]:
    """Judge the results in a folder by the present thresholds and draw their figures again, without measuring."""
    results = []
    for saved in read_results(folder):
        experiment = find_experiment(saved["name"])
        verdict = dump_verdict(experiment.verdict(saved["numbers"]))
        results.append(
            saved | {"claim": dump_claim(experiment), "settings": saved.get("settings", {}), "verdict": verdict}
        )
        save_result(results[-1], folder)
        for language in LANGUAGES if figures else ():
            path = figure_path(folder, saved["name"], language)
            save_experiment_figure(experiment, saved["numbers"], language, path)
    return results


def save_experiment_figure(experiment: Experiment, numbers: Measurements, language: Language, path: Path) -> None:
    """Draw the figure in one language and save it."""
    save_png(experiment.draw(numbers, language), path)


def save_png(figure: Figure, path: Path) -> None:
    """Save a figure with a palette, which makes the file small."""
    from PIL import Image

    from ..plots.figures import save_figure

    save_figure(figure, path)
    with Image.open(path) as image:
        image = image.convert("RGB").quantize(PALETTE_COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    image.save(path, optimize=True)


def count_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_experiments(
    experiments: Sequence[Experiment],
    out: Path,
    *,
    size: Size = "usual",
    seed: int = 0,
    again: bool = False,
    jobs: int = 1,
    device: str = "cpu",
    settings: Settings = NO_SETTINGS,
) -> tuple[list[ResultDocument], dict[str, RegardError]]:
    """The results of the experiments, and by name the errors of those that cannot run on this machine.

    `jobs` of them run side by side, each in its own process. Those that measure time run first, one after another.
    """
    jobs = min(jobs, len(experiments))
    run_one = partial(try_experiment, out=out, size=size, seed=seed, again=again, device=device, settings=settings)
    results: list[ResultDocument] = []
    errors: dict[str, RegardError] = {}

    def collect(name: str, outcome: ResultDocument | RegardError) -> None:
        if isinstance(outcome, RegardError):
            errors[name] = outcome
            return
        results.append(outcome)
        done = f"{len(results) + len(errors)} of {len(experiments)}"
        print(f"{name}: {outcome['verdict']['kind']}  {outcome['seconds']:.0f} s  {done}", file=sys.stderr, flush=True)

    sequential = [experiment for experiment in experiments if jobs == 1 or getattr(experiment, "TIMED", False)]
    for experiment in sequential:
        collect(experiment.CLAIM.name, run_one(experiment))
    parallel = [experiment.CLAIM.name for experiment in experiments if experiment not in sequential]
    if parallel:
        with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
            futures = {pool.submit(run_one, name, exclusive=False): name for name in parallel}
            try:
                for future in as_completed(futures):
                    collect(futures[future], future.result())
            except BaseException:
                pool.shutdown(cancel_futures=True)  # else the waiting ones would run before the error is raised
                raise
    order = [experiment.CLAIM.name for experiment in experiments]
    results.sort(key=lambda result: order.index(result["name"]))
    return results, {name: errors[name] for name in order if name in errors}


def try_experiment(
    experiment: Experiment | str,
    out: Path,
    *,
    size: Size,
    seed: int,
    again: bool,
    device: str = "cpu",
    settings: Settings = NO_SETTINGS,
    exclusive: bool = True,
) -> ResultDocument | RegardError:
    """The result, or the error of an experiment that cannot run here; a worker process receives only its name."""
    experiment = find_experiment(experiment) if isinstance(experiment, str) else experiment
    printer = ProgressPrinter(experiment.CLAIM.name, exclusive=exclusive)
    try:
        return run_experiment(
            experiment, out, size=size, seed=seed, progress=printer, again=again, device=device, settings=settings
        )
    except RegardError as error:
        return error
    finally:
        printer.close()
