"""The commands of `regard`. Each prints text, or with --json one JSON document; messages go to stderr."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

if TYPE_CHECKING:
    from regard.bench.result import BenchmarkResult

from regard.bench import plan_commands
from regard.bench.differential.check_kernels import check_kernels
from regard.experiments import commands as experiment_commands
from regard.inference import embed_commands
from regard.serve import commands as serve_commands
from regard.terminal import Debug, Json, print_message, print_result, report_errors, typer
from regard.train import commands
from regard.train.reference_command import reference

app = typer.Typer(
    help="Regard: attention mechanisms for PyTorch, with tools to train, inspect and measure them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def main() -> None:
    """Entry point of the command `regard`."""
    try:
        app()
    except SystemExit as ended:
        leave_process_group(ended.code)
        raise


def leave_process_group(status: object) -> None:
    """End the connections between processes of a launcher, whose threads would abort the interpreter at its end.

    After an error the others may be gone, and a farewell would wait for them: this process then ends at once.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    if status in (None, 0) or (isinstance(status, int) and status > 128):  # finished, or saved after a signal
        distributed.destroy_process_group()
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status if isinstance(status, int) else 1)


app.command(epilog="Example: regard check train.conllu --task tag")(commands.check)
app.command(
    epilog="Example: regard train tag --train train.conllu --dev dev.conllu --out runs/pos --minutes 5 --set layers=3"
)(commands.train)
app.command(epilog="Example: regard evaluate runs/pos --data test.conllu")(commands.evaluate)
app.command(epilog='Example: regard predict runs/pos "The cat sat on the mat"')(commands.predict)
app.command(epilog="Example: regard embed MODEL --data texts.txt --out vectors.npy")(embed_commands.embed)
app.command(epilog='Example: regard search MODEL "how do I reset my password" --data questions.csv')(
    embed_commands.search
)
app.command(epilog="Example: regard serve runs/reviews --port 8000")(serve_commands.serve)
app.command(epilog="Example: regard export runs/reviews --out reviews.onnx")(serve_commands.export)
app.command(epilog="Example: regard reference runs/digits --data digits.npz")(reference)
app.command(epilog="Example: regard settings tag")(commands.settings)
app.command(epilog="Example: regard recipes --json")(commands.recipes)
app.command("check-kernels", epilog="Example: regard check-kernels --minutes 5")(check_kernels)
app.add_typer(experiment_commands.app, name="experiment")
app.add_typer(plan_commands.app, name="plan")


@app.command(epilog="Example: regard info --json")
def info(as_json: Json = False, debug: Debug = False) -> None:
    """Show versions, devices and backends. For a backend that cannot run here, show the reason."""
    with report_errors(debug):
        facts = collect_info()
        print_result(facts, format_info(facts), as_json)


def collect_info() -> dict:
    """Collect the facts that `info` prints."""
    import torch

    from regard import machine
    from regard.attention.backends import BACKENDS

    return {
        "versions": machine.versions(),
        "devices": machine.devices(),
        "threads": torch.get_num_threads(),
        "backends": {name: refusal(name) for name in BACKENDS},
        "advice": machine.known_problems(),
    }


def refusal(backend: str) -> str | None:
    """Why a backend cannot run on this machine, or None if it can."""
    import torch

    import regard as rg

    device = "cuda" if torch.cuda.is_available() else "cpu"
    q = torch.ones(1, 1, 32, 16, device=device)
    loops = torch.arange(32, device=device).expand(2, -1)
    mask = rg.Edges(loops) if backend == "edges" else None
    try:
        rg.attend(q, q, q, mask=mask, backend=backend)
    except rg.RegardError as error:
        return " ".join(str(error).split())
    return None


def format_info(facts: dict) -> str:
    """Format the facts as text."""
    lines = [f"{name:16} {version or 'not installed'}" for name, version in facts["versions"].items()]
    lines += ["", *facts["devices"], f"{facts['threads']} threads", ""]
    lines += [f"{name:16} {reason or 'available'}" for name, reason in facts["backends"].items()]
    return "\n".join(lines + [f"\n{line}" for line in facts["advice"]])


Out = Annotated[
    Path | None,
    typer.Option(help="JSON file for the results. Default: benchmarks/results/<device>.json if that folder exists."),
]


@app.command(epilog="Example: regard bench --quick")
def bench(
    quick: Annotated[
        bool, typer.Option("--quick", help="Use small sizes, as a smoke test; the times mean nothing.")
    ] = False,
    out: Out = None,
    threads: Annotated[int, typer.Option(min=1, help="Number of torch threads on the CPU.")] = 2,
    device: Annotated[str, typer.Option(help="cpu or cuda. Default: cuda if available.")] = "",
    only: Annotated[
        str, typer.Option(help="Run only the GPU comparisons whose name or shape contains this text (several: a, b).")
    ] = "",
    models: Annotated[
        bool, typer.Option("--models", help="Benchmark whole models instead of single attention calls.")
    ] = False,
    survey: Annotated[
        bool, typer.Option("--survey", help="Compare random everyday calls with the fastest alternative.")
    ] = False,
    calls: Annotated[int, typer.Option(min=1, help="Number of calls of the survey.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed of the survey's calls.")] = 0,
    minutes: Annotated[
        float, typer.Option(min=0.0, help="Minutes after which the survey ends with what it has; 0: no limit.")
    ] = 0.0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Take the calls that the survey's file has of this seed as they are.")
    ] = False,
    calibrate: Annotated[
        bool,
        typer.Option("--calibrate", help="Measure on this GPU the costs by which `attend` chooses its kernels."),
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Benchmark time and memory against the other installed libraries (torch SDPA, PyG, transformers)."""
    if out and not out.parent.is_dir():
        raise typer.BadParameter(f"folder {out.parent} does not exist", param_hint="--out")
    if device not in ("", "cpu", "cuda"):
        raise typer.BadParameter(f"{device!r} is neither cpu nor cuda", param_hint="--device")
    with report_errors(debug):
        import torch

        from regard.bench.result import format_table

        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        if only and device == "cpu":
            raise typer.BadParameter("--only needs --device cuda", param_hint="--only")
        if calibrate:
            print_result(*bench_calibrate(out), as_json)
            return
        if survey:
            print_result(*bench_survey(calls, seed, device, minutes, resume, threads, out), as_json)
            return
        if models:
            result = bench_models(device, quick, only, threads, out)
        else:
            result = bench_gpu(quick, only, out) if device == "cuda" else bench_cpu(quick, threads, out)
        print_result(result.as_dict(), format_table(result), as_json)
        if result.failed:
            raise typer.Exit(1)


def bench_cpu(quick: bool, threads: int, out: Path | None) -> "BenchmarkResult":
    """Run the comparisons on the CPU and write the results."""
    import torch

    from regard.bench import cpu

    torch.set_num_threads(threads)
    result = cpu.run(quick, report=print_message)
    if path := out or default_result_path(quick, "cpu.json"):
        result.write(path)
        print_message(f"Written to {path}")
    return result


def bench_gpu(quick: bool, only: str, out: Path | None) -> "BenchmarkResult":
    """Run the comparisons on the GPU; the results are written after each, so that an interrupted run keeps them."""
    import torch

    from regard import Unsupported
    from regard.bench import gpu

    if not torch.cuda.is_available():
        raise Unsupported("torch finds no CUDA device. Run regard bench --device cpu.")
    path = out or default_result_path(quick or bool(only), gpu.result_file_name(gpu.device_name()))
    if path:
        print_message(f"Writing to {path}")
    return gpu.run(quick, only, report=print_message, save=lambda result: result.write(path) if path else None)


def bench_survey(
    calls: int, seed: int, device: str, minutes: float, resume: bool, threads: int, out: Path | None
) -> tuple[dict[str, object], str]:
    """Run a survey and write it as it goes; its data and its text."""
    import json
    import math

    import torch

    from regard.bench.survey.survey import Survey, read_rows, run_survey

    torch.set_num_threads(threads)
    path = out or default_result_path(calls < 100, f"survey-{device}.json")

    def save(survey: Survey) -> None:
        if path:
            path.write_text(json.dumps(survey.as_dict(), indent=1) + "\n")

    measured = read_rows(path, seed) if resume and path and path.is_file() else []
    limits = {"minutes": minutes or math.inf, "measured": measured}
    result = run_survey(calls, seed, device, **limits, report=print_message, save=save)
    if path:
        print_message(f"Written to {path}")
    return result.as_dict(), str(result)


def bench_calibrate(out: Path | None) -> tuple[dict[str, object], str]:
    """Measure the costs that decide between kernels, and write them to where `attend` reads them."""
    from dataclasses import asdict

    from regard.attention.costs import costs_file
    from regard.bench.calibrate import calibrate, format_costs

    costs = calibrate(out or costs_file())
    print_message(f"Written to {out or costs_file()}")
    return {kind: asdict(values) for kind, values in costs.items()}, format_costs(costs)


def bench_models(device: str, quick: bool, only: str, threads: int, out: Path | None) -> "BenchmarkResult":
    """Benchmark whole models: decoding, evaluation and encoding on the CPU, training steps on a GPU."""
    import torch

    from regard.bench import gpu, models, train_steps

    name = "cpu.json" if device == "cpu" else gpu.result_file_name(gpu.device_name())
    path = out or default_result_path(quick or bool(only), name.replace(".json", "-models.json"))
    if device == "cuda":
        return train_steps.run(
            quick, only, report=print_message, save=lambda result: result.write(path) if path else None
        )
    torch.set_num_threads(threads)
    result = models.run(quick, report=print_message)
    if path:
        result.write(path)
    return result


def default_result_path(quick: bool, name: str) -> Path | None:
    """Default file for the results; None outside a checkout or with --quick."""
    folder = Path("benchmarks/results")
    return folder / name if folder.is_dir() and not quick else None


@app.command(epilog="Example: regard lab --models runs")
def lab(
    models: Annotated[
        list[Path] | None, typer.Option(help="Folder of training runs or checkpoints to open; can be repeated.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 picks a free port.")] = 0,
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = True,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Start the lab, a web page for inspecting attention. Prints its URL (with token) first."""
    with report_errors(debug):
        from regard.lab.server.serve import serve

        def report(address: str) -> None:
            print_result({"address": address}, address, as_json)
            sys.stdout.flush()
            print_message("Press Ctrl+C to stop the lab.")

        serve(models or [], port, open_browser, report)


@app.command(epilog='Example: regard look "The animal was too tired" --layer 0 --head 1 --save heads.html')
def look(
    text: Annotated[str, typer.Argument(help="Input: a text, or the path of an image or audio file.")],
    model: Annotated[
        str,
        typer.Option(help="Name of a shipped model, or a model folder. Default: a shipped model that fits the input."),
    ] = "",
    layer: Annotated[
        int | None, typer.Option(min=0, help="Index of the attention layer, from 0. Default: all.")
    ] = None,
    head: Annotated[int | None, typer.Option(min=0, help="Index of the head, from 0. Default: all.")] = None,
    save: Annotated[Path | None, typer.Option(help="Save the figure to a file (.html, .png or .svg).")] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show the attention weights of a model in the terminal, or save them as a figure."""
    if save and save.suffix not in (".html", ".png", ".svg"):
        raise typer.BadParameter(
            f"{save.name!r} has an unsupported suffix; use .html, .png or .svg", param_hint="--save"
        )
    if save and not save.parent.is_dir():
        raise typer.BadParameter(f"folder {save.parent} does not exist", param_hint="--save")
    with report_errors(debug):
        from rich.console import Console

        from regard.lab.inspect.report import make_report, print_report

        report = make_report(text, model, layer, head)
        if save:
            path = report.save(save).absolute()
            print_result({"saved": str(path)}, str(path), as_json)
        elif as_json:
            print_result(report.document(), "", True)
        else:
            print_report(report, Console(highlight=False))


if __name__ == "__main__":
    main()
