"""The commands `regard experiment list`, `run`, `sweep`, `refresh` and `report`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from regard.terminal import Debug, Json, explain, print_message, print_result, report_errors, typer

if TYPE_CHECKING:
    from regard.experiments.parameters import Size
    from regard.experiments.results import ResultDocument
    from regard.experiments.sweeps import Sweep

app = typer.Typer(
    help="Test textbook claims about attention.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog="Example: regard experiment run grey-ball",
)

Name = Annotated[str, typer.Argument(help="An experiment's name, or all.")]
Out = Annotated[Path, typer.Option(help="The folder for results, figures and the report.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="A parameter of the experiment, such as grey=0.02; can be repeated. See `parameters`."),
]


@app.command("list", epilog="Example: regard experiment list --json")
def list_command(as_json: Json = False, debug: Debug = False) -> None:
    """List the experiments and their claims."""
    with report_errors(debug):
        from dataclasses import asdict

        from regard.experiments import list_experiments

        claims = [experiment.CLAIM for experiment in list_experiments()]
        lines = [f"{claim.number:>2}  {claim.name:<20}  {claim.claim.en}" for claim in claims]
        print_result([asdict(claim) for claim in claims], "\n".join(lines), as_json)


@app.command("run", epilog="Example: regard experiment run grey-ball --set grey=0.02 --out experiments")
def run_command(
    name: Name,
    size: Annotated[
        str, typer.Option(help="toy (seconds), usual (a minute or two each), full (many minutes each).")
    ] = "usual",
    full: Annotated[bool, typer.Option("--full", help="The same as --size full.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the random numbers.")] = 0,
    out: Out = Path("experiments"),
    device: Annotated[
        str, typer.Option(help="cpu, cuda, or auto: the GPU for --full if there is one, else the CPU.")
    ] = "auto",
    again: Annotated[bool, typer.Option("--again", help="Measure again even if there is a saved result.")] = False,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Experiments to run in parallel; default: the number of cores.")
    ] = None,
    settings: Set = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Run one experiment or all; saved results of the same size, seed and device are reused.

    The exit status is 0 if every experiment ran, whatever the verdicts.
    """
    with report_errors(debug):
        from regard import experiments
        from regard.experiments.report import write_report
        from regard.experiments.runner import count_cores

        chosen_size = resolve_size(size, full)
        if settings and name == "all":
            raise typer.BadParameter("each experiment has its own parameters; name one", param_hint="--set")
        chosen = experiments.list_experiments() if name == "all" else [experiments.find_experiment(name)]
        results, errors = experiments.run_experiments(
            chosen,
            out,
            size=chosen_size,
            seed=seed,
            again=again,
            jobs=jobs or count_cores(),
            device=resolve_device(device, chosen_size),
            settings=parse_settings(settings or []),
        )
        page = write_report(out)
        print_result({"report": str(page), "experiments": results}, format_results(results, page), as_json)
        for failed, error in errors.items():
            print_message(f"{failed} did not run: {explain(error)}")
        if errors:
            raise typer.Exit(1)


@app.command("parameters", epilog="Example: regard experiment parameters grey-ball")
def parameters_command(name: Name, as_json: Json = False, debug: Debug = False) -> None:
    """List the parameters of an experiment, with ranges and defaults at the usual size."""
    with report_errors(debug):
        from dataclasses import asdict

        from regard.experiments import find_experiment

        parameters = find_experiment(name).PARAMETERS
        lines = [
            f"{parameter.name:<12}  {parameter.low:g} to {parameter.high:g}, default {parameter.defaults['usual']:g}"
            f"  {parameter.text.en}"
            for parameter in parameters
        ]
        print_result([asdict(parameter) for parameter in parameters], "\n".join(lines), as_json)


@app.command("sweep", epilog="Example: regard experiment sweep grey-ball grey 0.01 0.02 0.05 --set seeds=1")
def sweep_command(
    name: Name,
    parameter: Annotated[str | None, typer.Argument(help="The parameter; by default as published.")] = None,
    values: Annotated[list[float] | None, typer.Argument(help="Its values.")] = None,
    settings: Set = None,
    size: Annotated[str, typer.Option(help="toy, usual or full.")] = "usual",
    seed: Annotated[int, typer.Option(help="Seed of the random numbers.")] = 1,
    out: Out = Path("experiments"),
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Run an experiment at several values of a parameter, and draw where the verdict turns."""
    with report_errors(debug):
        from regard.experiments import find_experiment
        from regard.experiments.progress import ProgressPrinter
        from regard.experiments.sweeps import Sweep, run_sweep, save_sweep, save_sweep_figures

        if parameter is not None and not values:
            raise typer.BadParameter(f"give the values of {parameter} too", param_hint="VALUES")
        experiment = find_experiment(name)
        given = (
            Sweep(parameter, tuple(values or ()), parse_settings(settings or []), resolve_size(size, False))
            if parameter
            else None
        )
        printer = ProgressPrinter(name)
        sweep = run_sweep(experiment, given or find_published_sweep(name), seed, printer)
        printer.close()
        path = save_sweep(sweep, out)
        save_sweep_figures(experiment, sweep, out)
        lines = [f"{sweep['parameter']} = {point['value']:g}: {point['kind']}" for point in sweep["points"]]
        print_result(sweep, "\n".join([*lines, str(path)]), as_json)


@app.command("refresh", epilog="Example: regard experiment refresh docs/experiments")
def refresh_command(
    folder: Annotated[Path, typer.Argument(help="A folder with results.")] = Path("experiments"),
    package: Annotated[
        bool, typer.Option("--package", help="Also copy the results into the package, for a release.")
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Judge saved results by the present thresholds and draw their figures again, without measuring."""
    with report_errors(debug):
        from regard.experiments.results import publish_results
        from regard.experiments.runner import refresh_results
        from regard.experiments.sweeps import publish_sweeps, refresh_sweeps

        results = refresh_results(folder) + refresh_results(folder / "full", figures=False)
        refresh_sweeps(folder)
        if package:
            publish_results(folder)
            publish_sweeps(folder)
        lines = [f"{result['name']:<20}  {result['size']:<6}  {result['verdict']['kind']}" for result in results]
        print_result({"results": [result["name"] for result in results]}, "\n".join(lines), as_json)


@app.command("report", epilog="Example: regard experiment report docs/experiments --index docs/experiments.md")
def report_command(
    folder: Annotated[Path, typer.Argument(help="A folder with results.")] = Path("experiments"),
    index: Annotated[
        Path | None,
        typer.Option(
            help="Also write the table of verdicts to this Markdown file, and in Chinese to .zh.md beside it."
        ),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write the HTML report, and optionally a Markdown table, of the results in a folder."""
    with report_errors(debug):
        from regard import BadInput
        from regard.experiments import LANGUAGES, read_results
        from regard.experiments.report import render_index, write_report

        if not read_results(folder):
            raise BadInput(f"There are no results in {folder}. regard experiment run all --out {folder} creates them.")
        paths = [write_report(folder)]
        if index is not None:
            paths += [index, index.with_suffix(f".zh{index.suffix}")]
            for path, language in zip(paths[1:], LANGUAGES, strict=True):
                path.write_text(render_index(folder, path, language), encoding="utf-8")
        print_result({"files": [str(path) for path in paths]}, "\n".join(map(str, paths)), as_json)


def resolve_size(size: str, full: bool) -> "Size":
    """The size that `--size` and `--full` select; raises `BadParameter` where they contradict or name none."""
    from regard.experiments.runner import SIZES

    if full and size != "usual":
        raise typer.BadParameter(f"--full and --size {size} contradict each other", param_hint="--full")
    for known in SIZES:
        if known == ("full" if full else size):
            return known
    raise typer.BadParameter(f"{size!r} is none of {', '.join(SIZES)}", param_hint="--size")


def parse_settings(texts: list[str]) -> dict[str, float]:
    """Settings from texts such as `grey=0.02`; raises `BadParameter` for anything else."""
    settings = {}
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            settings[name.strip()] = float(value) if "." in value or "e" in value.lower() else int(value)
        except ValueError:
            equals = ""
        if not equals:
            raise typer.BadParameter(f"{text!r} is not of the form name=number", param_hint="--set")
    return settings


def find_published_sweep(name: str) -> "Sweep":
    """The sweep of an experiment that is published; raises `BadParameter` where there is none."""
    from regard.experiments.sweeps import SWEEPS

    if name not in SWEEPS:
        raise typer.BadParameter(
            f"{name} has no published sweep; name a parameter and its values", param_hint="PARAMETER"
        )
    return SWEEPS[name]


def resolve_device(device: str, size: "Size") -> str:
    """The device that `--device` selects."""
    import torch

    if device not in ("auto", "cpu", "cuda"):
        raise typer.BadParameter(f"{device!r} is none of auto, cpu, cuda", param_hint="--device")
    if device == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter("torch finds no GPU here; use --device cpu", param_hint="--device")
    if device != "auto":
        return device
    return "cuda" if size == "full" and torch.cuda.is_available() else "cpu"


def format_results(results: "list[ResultDocument]", page: Path) -> str:
    """The verdicts and the path of the report, for the terminal."""
    lines = [
        f"{result['claim']['number']:>2}  {result['name']:<20}  {result['verdict']['kind']:<8}"
        f"  {result['verdict']['why']['en']}"
        for result in results
    ]
    return "\n".join([*lines, f"Report: {page}"])
