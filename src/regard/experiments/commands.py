"""The commands about experiments: list, run, report."""

from pathlib import Path
from typing import Annotated, Any

from regard.terminal import Debug, Json, answer, explain, one_paragraph, say, typer

app = typer.Typer(
    help="What textbooks claim of attention, each claim put to the test.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog="Example: regard experiment run grey-ball",
)

Name = Annotated[str, typer.Argument(help="An experiment's name, or all.")]
Out = Annotated[Path, typer.Option(help="The folder for results, figures and the report.")]


@app.command("list", epilog="Example: regard experiment list --json")
def list_command(as_json: Json = False, debug: Debug = False) -> None:
    """The experiments and what each claims."""
    with one_paragraph(debug):
        from dataclasses import asdict

        from regard.experiments.runner import found

        claims = [one.CLAIM for one in found()]
        lines = [f"{claim.number:>2}  {claim.name:<20}  {claim.claim.en}" for claim in claims]
        answer([asdict(claim) for claim in claims], "\n".join(lines), as_json)


@app.command("run", epilog="Example: regard experiment run all --out experiments")
def run_command(
    name: Name,
    size: Annotated[
        str, typer.Option(help="toy (seconds), usual (a minute or two each), full (many minutes each).")
    ] = "usual",
    full: Annotated[bool, typer.Option("--full", help="The same as --size full.")] = False,
    seed: Annotated[int, typer.Option(help="What the random numbers begin with.")] = 0,
    out: Out = Path("experiments"),
    device: Annotated[
        str, typer.Option(help="cpu, cuda, or auto: the GPU for --full where there is one, else the processor.")
    ] = "auto",
    again: Annotated[bool, typer.Option("--again", help="Measure anew what is already there.")] = False,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="How many run side by side; as many as there are cores unless given.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Run one experiment or all of them; what an equal call has already measured is kept.

    The status is 0 when everything ran, whatever the verdicts are: a claim that does not hold is a result.
    """
    with one_paragraph(debug):
        from regard.experiments import report, runner

        chosen_size = wanted_size(size, full)
        chosen = runner.found() if name == "all" else [runner.find(name)]
        where, jobs = wanted_device(device, chosen_size), jobs or runner.cores()
        documents, refused = runner.run_all(
            chosen, out, size=chosen_size, seed=seed, again=again, jobs=jobs, device=where
        )
        page = report.write(out)
        answer({"report": str(page), "experiments": documents}, screen(documents, page), as_json)
        for failed, error in refused.items():
            say(f"{failed} did not run: {explain(error)}")
        if refused:
            raise typer.Exit(1)


@app.command("report", epilog="Example: regard experiment report docs/experiments --index docs/experiments.md")
def report_command(
    folder: Annotated[Path, typer.Argument(help="A folder with results.")] = Path("experiments"),
    index: Annotated[
        Path | None, typer.Option(help="Write the table of verdicts there too, in Chinese beside it as .zh.md.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Make the page, and a table in Markdown, of the results in a folder, without measuring."""
    with one_paragraph(debug):
        from regard import BadInput
        from regard.experiments import report, results

        if not results.saved(folder):
            raise BadInput(f"There are no results in {folder}. regard experiment run all --out {folder} makes them.")
        made = [report.write(folder)]
        if index is not None:
            made += [index, index.with_suffix(f".zh{index.suffix}")]
            for path, language in zip(made[1:], results.LANGUAGES, strict=True):
                path.write_text(report.index(folder, path, language), encoding="utf-8")
        answer({"files": [str(path) for path in made]}, "\n".join(map(str, made)), as_json)


def wanted_size(size: str, full: bool) -> Any:
    """The size that was asked for, if it is one."""
    from regard.experiments.runner import SIZES

    if full and size != "usual":
        raise typer.BadParameter(f"--full and --size {size} contradict each other", param_hint="--full")
    size = "full" if full else size
    if size not in SIZES:
        raise typer.BadParameter(f"{size!r} is none of {', '.join(SIZES)}", param_hint="--size")
    return size


def wanted_device(device: str, size: str) -> str:
    """Where to compute."""
    import torch

    if device not in ("auto", "cpu", "cuda"):
        raise typer.BadParameter(f"{device!r} is none of auto, cpu, cuda", param_hint="--device")
    if device == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter(
            "torch sees no GPU here; --device cpu computes on the processor", param_hint="--device"
        )
    if device != "auto":
        return device
    return "cuda" if size == "full" and torch.cuda.is_available() else "cpu"


def screen(documents: list[dict[str, Any]], page: Path) -> str:
    """Verdicts for a person, and where the figures are."""
    lines = [
        f"{document['claim']['number']:>2}  {document['name']:<20}  {document['verdict']['kind']:<8}"
        f"  {document['verdict']['why']['en']}"
        for document in documents
    ]
    return "\n".join([*lines, f"Report: {page}"])
