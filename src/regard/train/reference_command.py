"""The command `reference`: what a run was trained on, for hints about inputs that are unlike it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from regard.terminal import Debug, Json, print_message, print_result, report_errors, typer

if TYPE_CHECKING:
    from regard.data.json_values import JsonObject


def reference(
    run: Annotated[Path, typer.Argument(help="Folder of a training run, or the name of a shipped model.")],
    data: Annotated[list[Path], typer.Option("--data", help="The files that the run was trained on.")],
    held_out: Annotated[
        list[Path],
        typer.Option("--held-out", help="Files that it was not trained on. Default: the test split of --data."),
    ] = [],  # noqa: B006
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Record what a run was trained on: its longest input and, of images and sounds, a reference for unlike inputs.

    `regard predict`, `regard look` and the lab then report inputs that are longer than, or unlike, the training data.
    """
    with report_errors(debug):
        from regard.assets import resolve_folder
        from regard.tasks.classify import Classify
        from regard.tasks.reference import fit_reference
        from regard.tasks.splits import select_split, split_data
        from regard.train.progress import format_table
        from regard.train.run import open_run
        from regard.train.run_folder import RunFolder

        folder = RunFolder(resolve_folder(run))
        task, model, description = open_run(run)
        reading = task.read(data, task.settings)
        reading.require_examples()
        others = task.read(held_out, task.settings) if held_out else None
        training, validation = split_data(reading, others, type(task), description["training"]["seed"])
        document: JsonObject = {"run": str(run), "training_length": task.training_length(training.examples)}
        if document["training_length"] is not None:
            folder.write("run.json", {**folder.read("run.json"), "training_length": document["training_length"]})
        if isinstance(task, Classify) and task.inputs.kind != "text":
            tested = others.examples if others is not None else select_split(reading, "test", "dev").examples
            tested = validation.examples if len(tested) == len(reading.examples) else tested
            print_message(f"Computing features of {len(training.examples) + len(tested)} inputs …")
            fitted = fit_reference(task, model, training.examples, tested)
            path = fitted.save(folder.path)
            document |= {"reference": str(path), "held out": fitted.held_out, "false alarms": fitted.false_alarms}
        rows = [(name, f"{value:.4f}" if isinstance(value, float) else value) for name, value in document.items()]
        print_result(document, format_table(rows), as_json)
