"""Sweeps: one parameter of an experiment takes several values, which shows where the verdict turns.

    docs/experiments/sweeps/grey-ball.json  grey-ball.en.png  grey-ball.zh.png

A sweep has `name`, `parameter`, `values`, `settings`, `size`, `seed` and, for each value, a point with the verdict's
`kind` and the sub-claims' `value`, `bound` and `holds`. `SWEEPS` has the sweeps that are published, measured with one
seed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BadInput
from .experiment import Experiment, Verdict
from .parameters import Bilingual, Language, Parameter, Settings, Size, resolve_settings
from .progress import ProgressCallback, ignore_progress, nth_subprogress
from .registry import find_experiment
from .results import LANGUAGES, REPOSITORY_FOLDER, ResultDocument
from .runner import measure_experiment, save_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Sweep:
    """The values that a parameter takes; `settings` are the other parameters that differ from the defaults."""

    parameter: str
    values: tuple[float, ...]
    settings: Settings = field(default_factory=lambda: {"seeds": 1})
    size: Size = "usual"


SWEEPS: dict[str, Sweep] = {
    "soft-dictionary": Sweep("dim", (1, 2, 3, 4, 8, 16)),
    "grey-ball": Sweep("grey", (0.01, 0.02, 0.03, 0.05, 0.08, 0.15)),
    "fixed-weights": Sweep("steps", (50, 100, 200, 400, 800, 1500)),
    "scaling": Sweep("std", (0.1, 0.25, 0.5, 1.0, 2.0)),
    "embedding-scaling": Sweep("spread", (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)),
    "order": Sweep("steps", (20, 50, 100, 200, 400)),
    "length": Sweep("tokens", (4, 8, 16, 32)),
    "cost": Sweep("dim", (16, 64, 256), {"longest": 4096}),
    "convolution": Sweep("steps", (50, 100, 200, 500, 1000)),
    "heads": Sweep("tokens", (4, 8, 12, 16, 24)),
    "additive": Sweep("largest_dim", (32, 64, 192)),
    "masked-training": Sweep("steps", (20, 50, 100, 200, 500), {}),
    "feed-forward": Sweep("steps", (50, 100, 200, 500)),
    "activation": Sweep("turns", (0.25, 0.5, 1.0, 1.5, 2.5)),
    "sparse": Sweep("noise", (0.5, 1.0, 1.5, 2.5), {"seeds": 1, "steps": 300}),
    "graphs": Sweep("density", (0.1, 0.2, 0.3, 0.5)),
    "coreference": Sweep("templates", (1, 2, 3, 4, 5), {}),
    "explanation": Sweep("divergence", (0.05, 0.1, 0.2, 0.3, 0.5), {"steps": 500}),
    "plugged": Sweep("length", (12, 24, 48)),
    "meaning": Sweep("dim", (1, 2, 4, 8, 16)),
    "copy": Sweep("longest", (8, 16, 32), {"steps": 300}),
    "paths": Sweep("dim", (16, 64, 256), {"budget": 0.3}),
    "three-vectors": Sweep("tokens", (3, 6, 12, 24)),
    "feed-forward-width": Sweep("facts", (128, 512, 2048, 8192), {"seeds": 1, "steps": 300}),
    "normalisation": Sweep("blocks", (1, 2, 3, 6), {"seeds": 1, "steps": 300}),
    "images": Sweep("few", (100, 300, 1000), {"seeds": 1, "steps": 400, "many": 2000}),
    "long-range": Sweep("distance", (64, 256, 1024), {"seeds": 1, "steps": 400}),
    "layers": Sweep("sentences", (60, 200, 600), {}),
    "tables": Sweep("rows", (300, 1000, 3000)),
    "positions": Sweep("tokens", (8, 16, 24), {"seeds": 1, "steps": 250}),
}
"""The sweeps that are published where they were measured; an experiment that takes many minutes has none."""


def run_sweep(
    experiment: Experiment, sweep: Sweep, seed: int = 1, progress: ProgressCallback = ignore_progress
) -> ResultDocument:
    """Measure and judge an experiment at each value of a parameter."""
    parameter = find_parameter(experiment, sweep.parameter)
    for value in sweep.values:
        resolve_settings(experiment.PARAMETERS, sweep.size, {**sweep.settings, parameter.name: value})
    start, points = time.monotonic(), []
    for n, value in enumerate(sweep.values):
        settings = {**sweep.settings, parameter.name: value}
        run_progress = nth_subprogress(progress, n, len(sweep.values), f"{parameter.name} = {value:g}")
        result = measure_experiment(experiment, sweep.size, seed, run_progress, settings=settings)
        points.append(describe_point(value, experiment.verdict(result["numbers"])))
    return {
        "name": experiment.CLAIM.name,
        "parameter": parameter.name,
        "values": list(sweep.values),
        "settings": dict(sweep.settings),
        "size": sweep.size,
        "seed": seed,
        "points": points,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - start, 1),
    }


def find_parameter(experiment: Experiment, name: str) -> Parameter:
    """The parameter of that name; raises `BadInput` that lists the names."""
    for parameter in experiment.PARAMETERS:
        if parameter.name == name:
            return parameter
    names = ", ".join(parameter.name for parameter in experiment.PARAMETERS)
    raise BadInput(f"{experiment.CLAIM.name} has no parameter {name!r}. It has: {names}.")


def describe_point(value: float, verdict: Verdict) -> ResultDocument:
    """The verdict at one value of the parameter."""
    subclaims = [
        {"name": part.name, "value": part.value, "bound": part.bound, "holds": part.holds} for part in verdict.subclaims
    ]
    return {"value": value, "kind": verdict.kind, "subclaims": subclaims}


def sweep_path(folder: Path, name: str) -> Path:
    """Where a folder of results has the sweep of an experiment."""
    return folder / "sweeps" / f"{name}.json"


def read_sweep(folder: Path, name: str) -> ResultDocument | None:
    """A saved sweep; None if there is none."""
    try:
        sweep = json.loads(sweep_path(folder, name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return sweep if isinstance(sweep, dict) and "points" in sweep else None


def published_sweep(name: str) -> ResultDocument | None:
    """The sweep of an experiment that ships with the package; None if it has none."""
    from .results import PUBLISHED_FOLDER

    return read_sweep(PUBLISHED_FOLDER, name)


def save_sweep(sweep: ResultDocument, folder: Path, indent: int | None = 1) -> Path:
    """Write a sweep; returns its path."""
    path = sweep_path(folder, sweep["name"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(sweep, ensure_ascii=False, indent=indent) + "\n", encoding="utf-8")
    return path


def save_sweep_figures(experiment: Experiment, sweep: ResultDocument, folder: Path) -> None:
    """Draw a sweep in both languages beside its file."""
    for language in LANGUAGES:
        path = sweep_path(folder, sweep["name"]).with_suffix(f".{language}.png")
        save_png(draw_sweep(experiment, sweep, language), path)


def refresh_sweeps(folder: Path) -> None:
    """Draw the sweeps of a folder again, without measuring."""
    for path in sorted((folder / "sweeps").glob("*.json")):
        if (sweep := read_sweep(folder, path.stem)) is not None:
            save_sweep_figures(find_experiment(sweep["name"]), sweep, folder)


def publish_sweeps(folder: Path = REPOSITORY_FOLDER, target: Path | None = None) -> list[Path]:
    """Copy the sweeps of a folder to the package, without figures."""
    from .results import PUBLISHED_FOLDER

    sweeps = [read_sweep(folder, path.stem) for path in sorted((folder / "sweeps").glob("*.json"))]
    return [save_sweep(sweep, target or PUBLISHED_FOLDER, indent=None) for sweep in sweeps if sweep]


def draw_sweep(experiment: Experiment, sweep: ResultDocument, language: Language) -> Figure:
    """The value of each sub-claim over the parameter, beside its threshold; the side where it holds is shaded."""
    from .toolkit.figures import subplots

    parameter = find_parameter(experiment, sweep["parameter"])
    criteria = experiment.CLAIM.criteria
    columns = min(len(criteria), 3)
    rows = -(-len(criteria) // columns)
    with subplots(language, columns, rows, width=3.6, height=2.6) as (figure, axes):
        for n, (criterion, panel) in enumerate(zip(criteria, axes, strict=False)):
            parts = [point["subclaims"][n] for point in sweep["points"]]
            draw_subclaim(panel, sweep["values"], parts, criterion.compare)
            panel.set_title(shorten(criterion.text(language), 34 if language == "en" else 20), fontsize=8.5)
            panel.set_xlabel(parameter.text(language), fontsize=8)
            panel.set_ylabel(VALUE_LABEL(language), fontsize=8)
        for panel in axes[len(criteria) :]:
            panel.set_axis_off()
        return figure


VALUE_LABEL = Bilingual("measured value", "测得的值")


def draw_subclaim(axes: Axes, values: Sequence[float], parts: Sequence[ResultDocument], compare: str) -> None:
    """One sub-claim: filled markers where it holds, hollow ones where it does not, and the threshold."""
    from .toolkit.figures import COLOURS

    heights, bound = [part["value"] for part in parts], parts[0]["bound"]
    axes.plot(values, heights, color=COLOURS[0], linewidth=1.2, zorder=2)
    for value, part in zip(values, parts, strict=True):
        colour = COLOURS[2] if part["holds"] else COLOURS[1]
        filled = colour if part["holds"] else "white"
        axes.plot(value, part["value"], "o" if part["holds"] else "X", color=colour, markerfacecolor=filled, zorder=3)
    if len(values) > 2 and max(values) / min(values) > 5:
        axes.set_xscale("log")
        axes.set_xticks(list(values), [f"{value:g}" for value in values], fontsize=7.5)
        axes.minorticks_off()
    if min(*heights, bound) > 0 and max(*heights, bound) / min(*heights, bound) > 100:
        axes.set_yscale("log")
    low, high = axes.get_ylim()
    low, high = min(low, bound), max(high, bound)
    margin = 0.08 * (high - low) if axes.get_yscale() == "linear" else 0
    low, high = low - margin, high + margin
    axes.axhspan(*((bound, high) if compare == ">=" else (low, bound)), color=COLOURS[2], alpha=0.10, zorder=0)
    axes.axhline(bound, color="#444444", linewidth=1, linestyle="--", zorder=1)
    axes.set_ylim(low, high)


def shorten(text: str, length: int) -> str:
    """A text broken into at most three lines of about this length.

    >>> shorten("one two three four", 9)
    'one two\\nthree\\nfour'
    """
    import textwrap

    lines = textwrap.wrap(text, length) if " " in text else [text[n : n + length] for n in range(0, len(text), length)]
    return "\n".join(lines[:3]) + ("…" if len(lines) > 3 else "")
