"""The commands. Each prints for a person, or with --json one document for a machine; all else goes to stderr."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

if TYPE_CHECKING:
    from regard.bench.result import Result

from regard.experiments import commands as experiment_commands
from regard.terminal import Debug, Json, answer, one_paragraph, say, typer
from regard.train import commands

app = typer.Typer(
    help="Regard: every attention in one call, and a look inside.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def main() -> None:
    """What the command `regard` runs."""
    app()


app.command(epilog="Example: regard check train.conllu --task tag")(commands.check)
app.command(
    epilog="Example: regard train tag --train train.conllu --dev dev.conllu --out runs/pos --minutes 5 --set layers=3"
)(commands.train)
app.command(epilog="Example: regard evaluate runs/pos --data test.conllu")(commands.evaluate)
app.command(epilog='Example: regard predict runs/pos "The cat sat on the mat"')(commands.predict)
app.add_typer(experiment_commands.app, name="experiment")


@app.command(epilog="Example: regard info --json")
def info(as_json: Json = False, debug: Debug = False) -> None:
    """Versions, devices, and the backends that can run here, with the reason where one cannot."""
    with one_paragraph(debug):
        facts = gather()
        answer(facts, describe(facts), as_json)


def gather() -> dict:
    """What `info` tells."""
    import torch

    from regard import machine
    from regard.attention.backends import BACKENDS

    return {
        "versions": machine.versions(),
        "devices": machine.devices(),
        "threads": torch.get_num_threads(),
        "backends": {name: refusal(name) for name in BACKENDS},
        "advice": machine.traps(),
    }


def refusal(backend: str) -> str | None:
    """Why a backend cannot do what it is there for on this machine; `None` when it can."""
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


def describe(facts: dict) -> str:
    """The facts, for a person."""
    lines = [f"{name:16} {found or 'not installed'}" for name, found in facts["versions"].items()]
    lines += ["", *facts["devices"], f"{facts['threads']} threads", ""]
    lines += [f"{name:16} {'runs here' if why is None else why}" for name, why in facts["backends"].items()]
    return "\n".join(lines + [f"\n{line}" for line in facts["advice"]])


Out = Annotated[
    Path | None, typer.Option(help="JSON file; where benchmarks/results exists, one there named after the device.")
]


@app.command(epilog="Example: regard bench --quick")
def bench(
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes: does it run, not how fast is it.")] = False,
    out: Out = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of torch, on the CPU.")] = 2,
    device: Annotated[str, typer.Option(help="cpu or cuda; the GPU where there is one, unless said.")] = "",
    only: Annotated[str, typer.Option(help="Only the comparisons on a GPU with this in their name or shape.")] = "",
    models: Annotated[bool, typer.Option("--models", help="Whole models instead of single attentions.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Time and memory beside what else is installed (torch's own attention, PyG, transformers), in one run here."""
    if out and not out.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {out.parent}", param_hint="--out")
    if device not in ("", "cpu", "cuda"):
        raise typer.BadParameter(f"{device!r} is neither cpu nor cuda", param_hint="--device")
    with one_paragraph(debug):
        import torch

        from regard.bench import result

        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        if only and device == "cpu":
            raise typer.BadParameter("it chooses among the comparisons on a GPU", param_hint="--only")
        if models:
            found = bench_models(device, quick, only, threads, out)
        else:
            found = bench_gpu(quick, only, out) if device == "cuda" else bench_cpu(quick, threads, out)
        answer(found.as_dict(), result.table(found), as_json)
        if found.failed:
            raise typer.Exit(1)


def bench_cpu(quick: bool, threads: int, out: Path | None) -> "Result":
    """The comparisons on the CPU, written to their file."""
    import torch

    from regard.bench import cpu

    torch.set_num_threads(threads)
    found = cpu.run(quick, tell=say)
    if path := out or usual_place(quick, "cpu.json"):
        found.write(path)
        say(f"Written to {path}")
    return found


def bench_gpu(quick: bool, only: str, out: Path | None) -> "Result":
    """The comparisons on the GPU, written to their file after each, so that a run cut short keeps what it had."""
    import torch

    from regard import Unsupported
    from regard.bench import gpu

    if not torch.cuda.is_available():
        raise Unsupported("There is no GPU that torch can use here. Run regard bench --device cpu.")
    path = out or usual_place(quick or bool(only), gpu.file_name(gpu.device_name()))
    if path:
        say(f"Writing to {path}")
    return gpu.run(quick, only, tell=say, save=lambda found: found.write(path) if path else None)


def bench_models(device: str, quick: bool, only: str, threads: int, out: Path | None) -> "Result":
    """Whole models: decoding, evaluation and encoding on the CPU, steps of training on a GPU."""
    import torch

    from regard.bench import gpu, models, steps

    name = "cpu.json" if device == "cpu" else gpu.file_name(gpu.device_name())
    path = out or usual_place(quick or bool(only), name.replace(".json", "-models.json"))
    if device == "cuda":
        return steps.run(quick, only, tell=say, save=lambda found: found.write(path) if path else None)
    torch.set_num_threads(threads)
    found = models.run(quick, tell=say)
    if path:
        found.write(path)
    return found


def usual_place(quick: bool, name: str) -> Path | None:
    """Where results are kept; none outside a checkout, and none for numbers that mean nothing."""
    folder = Path("benchmarks/results")
    return folder / name if folder.is_dir() and not quick else None


@app.command(epilog="Example: regard lab --models runs")
def lab(
    models: Annotated[
        list[Path] | None, typer.Option(help="A folder of runs or checkpoints to open besides; may be given again.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of 127.0.0.1; 0 takes a free one.")] = 0,
    opened: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = True,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """A page that shows what attends to what. Its address, token included, is the first line printed."""
    with one_paragraph(debug):
        from regard.lab.server.serve import serve

        def tell(address: str) -> None:
            answer({"address": address}, address, as_json)
            sys.stdout.flush()
            say("Ctrl+C stops the lab.")

        serve(models or [], port, opened, tell)


@app.command(epilog='Example: regard look "The animal was too tired" --layer 0 --head 1 --save heads.html')
def look(
    text: Annotated[str, typer.Argument(help="What the model reads: a text, or the file of a picture or recording.")],
    model: Annotated[str, typer.Option(help="Name of a shipped model, or a folder; a shipped one by default.")] = "",
    layer: Annotated[int | None, typer.Option(min=0, help="Which attention, counted from 0; all by default.")] = None,
    head: Annotated[int | None, typer.Option(min=0, help="Which head, counted from 0; all by default.")] = None,
    save: Annotated[Path | None, typer.Option(help="Write the picture to a file, .html, .png or .svg.")] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """What attends to what in a model: coloured blocks in the terminal, or a picture in a file."""
    if save and save.suffix not in (".html", ".png", ".svg"):
        raise typer.BadParameter(f"{save.name!r} ends in none of .html, .png, .svg", param_hint="--save")
    if save and not save.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {save.parent}", param_hint="--save")
    with one_paragraph(debug):
        from rich.console import Console

        from regard.lab.inspect import look as looking

        looked = looking.look(text, model, layer, head)
        if save:
            path = looked.save(save).absolute()
            answer({"saved": str(path)}, str(path), as_json)
        elif as_json:
            answer(looked.document(), "", True)
        else:
            looking.print_looked(looked, Console(highlight=False))


if __name__ == "__main__":
    main()
