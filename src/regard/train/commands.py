"""The commands about data and runs: check, train, evaluate, predict, settings, recipes."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

from regard.tasks import TASKS
from regard.terminal import Debug, Json, print_message, print_result, report_errors, typer

if TYPE_CHECKING:
    from regard.data.json_values import JsonObject, ParsedObject
    from regard.data.reading import Fault
    from regard.settings import SettingDescription
    from regard.tasks.task import AnyTask
    from regard.train.predictions import InputRow
    from regard.train.run import RunConfig

DataFiles = Annotated[list[Path], typer.Argument(help="Files of a data set (two parallel files for translation).")]
TaskName = Annotated[str, typer.Option("--task", help="Task of the data: tag, classify, translate, …")]
Strict = Annotated[bool, typer.Option("--strict", help="Fail on malformed lines instead of skipping and listing them.")]
Set = Annotated[list[str], typer.Option("--set", help="Setting as name=value; can be repeated.")]
Checkpoint = Annotated[
    str | None,
    typer.Option("--from", help="Checkpoint to start from: a Hugging Face folder, a run, or a Hub id owner/name."),
]
RunPath = Annotated[Path, typer.Argument(help="Folder of a training run.")]


def check(
    paths: DataFiles,
    task: TaskName,
    strict: Strict = False,
    checkpoint: Checkpoint = None,
    changed: Set = [],  # noqa: B006
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show what is read from data files before training: sizes, labels, examples and every malformed line."""
    with report_errors(debug):
        from regard import RegardError
        from regard.train.run import RunConfig

        given = {} if checkpoint is None else {"checkpoint": checkpoint}
        config = RunConfig.from_changes(task, given, parse_assignments(changed))
        reading = config.task.read(paths, config.settings)
        if strict:
            reading.strict()
        facts: JsonObject = {}
        if reading.examples:
            try:
                facts = config.prepare(reading.examples).describe(reading.examples)
            except RegardError:
                report_faults(reading.faults)  # they may be the reason
                raise
        facts |= {"notes": list(reading.notes), "faults": [str(fault) for fault in reading.faults]}
        print_result(facts, format_facts(facts), as_json)
        if not reading.examples:
            raise typer.Exit(1)


def train(
    task: Annotated[str, typer.Argument(help=f"{', '.join(TASKS)}.")] = "",
    training: Annotated[list[Path], typer.Option("--train", help="Training files.")] = [],  # noqa: B006
    dev: Annotated[list[Path], typer.Option("--dev", help="Validation files. Default: a tenth of --train.")] = [],  # noqa: B006
    out: Annotated[Path, typer.Option("--out", help="Folder of the run.")] = Path("run"),
    checkpoint: Checkpoint = None,
    model: Annotated[
        str | None, typer.Option(help="transformer, longformer, lstm, cnn, mlp, lstm+attention, …")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Number of epochs.")] = None,
    steps: Annotated[int | None, typer.Option(help="Number of optimizer updates.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Maximum training time in minutes.")] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or auto.")] = None,
    recipe: Annotated[
        str | None, typer.Option(help="Name of a recipe: settings that reproduce a known result.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="TOML or JSON file with settings.")] = None,
    changed: Set = [],  # noqa: B006
    strict: Strict = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Train a model from files. If the folder holds an unfinished run, the run is resumed.

    Ctrl-C, SIGTERM, SIGHUP and SIGUSR1 save the run and end it with the status 128 + the signal's number.
    """
    with report_errors(debug):
        from regard import BadInput
        from regard.train.recipes import find_recipe
        from regard.train.run import RunConfig, is_main_process
        from regard.train.run_folder import RunFolder

        known = find_recipe(recipe) if recipe else None
        if known and task not in ("", known.task):
            raise BadInput(f"The recipe {recipe} is for {known.task}, not {task}. Leave the task out, or the recipe.")
        task = task or (known.task if known else "")
        if not task:
            raise BadInput("Give a task: regard train tag --train FILE. regard train --help lists the tasks.")
        flags: dict[str, str | float | None] = {
            "checkpoint": checkpoint,
            "model": model,
            "seed": seed,
            "device": device,
        }
        flags |= {"epochs": epochs, "steps": steps, "minutes": minutes}
        given = {name: value for name, value in flags.items() if value is not None}
        sources = known.settings if known else {}, read_config(config), given, parse_assignments(changed)
        stop_signal = train_from_files(
            RunConfig.from_changes(task, *sources, train=training, dev=dev, adaptive=known is None), out, strict
        )
        if not is_main_process():
            end_stopped_run(stop_signal)
            return
        if not (out / "scores.json").is_file():  # stopped before the first evaluation
            print_result({"run": str(out), "metrics": None, "verdict": None}, f"run  {out}", as_json)
            end_stopped_run(stop_signal)
            return
        scores = RunFolder(out).read("scores.json")
        verdict = known.verdict(scores["metrics"]) if known else None
        print_result({"run": str(out), **scores, "verdict": verdict}, format_scores(out, scores), as_json)
        for sentence in scores.get("summary", []):
            print_message(sentence)
        end_stopped_run(stop_signal)
        if verdict:
            print_message(verdict)
            raise typer.Exit(1)


def end_stopped_run(signal: int) -> None:
    """End every process of a run that a signal has stopped with the status 128 + its number; nothing for signal 0.

    They end together: a launcher ends the others when the first has gone.
    """
    if not signal:
        return
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        distributed.barrier()
    raise typer.Exit(128 + signal)


def train_from_files(config: "RunConfig", out: Path, strict: bool = False) -> int:
    """Read the files of a `RunConfig`, prepare its task, and train it into the folder `out`.

    Returns the number of the signal that stopped the run, 0 if it reached its end.
    """
    from regard import BadInput
    from regard.tasks.architecture import unused_parts
    from regard.train.progress import Progress
    from regard.train.run import is_main_process, read_data, train_run

    if not config.train:
        raise BadInput("There is no training data. Give --train FILE.")
    for path in (*config.train, *config.dev):
        if path.is_dir() and out.resolve().is_relative_to(path.resolve()):
            raise BadInput(f"--out {out} is inside the data folder {path}. Give an --out outside of it.")
    config = config.use_former_defaults(out)
    if (unused := unused_parts(config.architecture)) and is_main_process():
        print_message(f"{config.architecture.model} does not use {', '.join(unused)}; ignored.")
    reads_parts = config.task.reads_parts(config.settings)
    data = read_data(config, lambda faults: report_faults(faults, None if strict else out, reads_parts), strict)
    defaults, config = config, config.adapt(data.train, out)
    task = config.prepare(data.train)
    report_unknown_labels(task, data.validation)
    if is_main_process():
        for text in (*data.notes, *task.choices(data.train)):
            print_message(text)
        if changed := config.changes_from(defaults):
            print_message(f"Other defaults for these data: {', '.join(changed)}. --set NAME=VALUE gives others.")
    progress = Progress(config.training.minutes)
    train_run(task, config.architecture, config.training, data, out, config.files, progress)
    return progress.stop_signal


def evaluate(
    run: RunPath,
    data: Annotated[list[Path], typer.Option("--data", help="Files to evaluate on.")],
    split: Annotated[
        str,
        typer.Option(help="Split to evaluate, if the files define splits: train, dev or test. Default: test or dev."),
    ] = "",
    part: Annotated[str, typer.Option(hidden=True, help="Former name of --split.")] = "",
    changed: Set = [],  # noqa: B006
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Evaluate a trained model on other files."""
    with report_errors(debug):
        from regard.tasks.splits import select_split
        from regard.train.run import open_run

        task, model, _ = open_run(run, parse_assignments(changed))
        reading = task.read(data, task.settings)
        reading.require_examples()
        report_faults(reading.faults)
        split = split or part
        reading = reading.select(split) if split else select_split(reading, "test", "dev")
        report_unknown_labels(task, reading.examples)
        scores = task.evaluate(model, reading.examples)
        document = {"metrics": scores.metrics, "main": scores.main, **scores.details}
        print_result(document, format_scores(run, document), as_json)


def predict(
    run: RunPath,
    inputs: Annotated[
        list[str],
        typer.Argument(
            help="Texts, files of texts (a table or lines), images, recordings or a folder of them; '-' reads lines."
        ),
    ] = [],  # noqa: B006
    data: Annotated[list[Path], typer.Option("--data", help="Files or folders with the inputs.")] = [],  # noqa: B006
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="File for the predictions (.csv, .tsv, .json, .jsonl), or a folder for images with boxes."
        ),
    ] = None,
    changed: Set = [],  # noqa: B006
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Predict with a trained model.

    An input that cannot be read is reported, the others are predicted, and the exit status is 1.
    """
    with report_errors(debug):
        from regard.assets import resolve_folder
        from regard.tasks.reference import input_hints
        from regard.train.predictions import OUTPUT_FORMATS, predict_rows, read_inputs, split_chunks, write_predictions
        from regard.train.run import open_run

        given = [*inputs, *map(str, data)]
        if not given:
            raise typer.BadParameter("give texts, files, or '-' for lines on stdin", param_hint="INPUTS")
        for path in data:
            if not path.exists():
                raise typer.BadParameter(f"{path} does not exist", param_hint="--data")
        task, model, _ = open_run(run, parse_assignments(changed))
        if out is not None and out.suffix[1:].lower() not in OUTPUT_FORMATS:
            predictions = task.draw_predictions(model, given, out)
            if predictions is None:
                formats = ", ".join(f".{name}" for name in OUTPUT_FORMATS)
                raise typer.BadParameter(
                    f"the task {task.name!r} saves no images; give a file named {formats}", param_hint="--out"
                )
            print_result([result.to_dict() for result in predictions], "\n".join(map(str, predictions)), as_json)
            return
        rows = []
        streams = not as_json and out is None
        chunks = split_chunks(read_inputs(task, given)) if given != ["-"] else stdin_chunks()
        for row in predict_rows(task, model, chunks):
            rows.append(row)
            if row.error:
                print_message(f"{row.row.input}: {row.error}" if row.row.input not in row.error else row.error)
            elif streams:
                print(row.result, flush=True)
            for hint in [] if row.error else input_hints(task, model, resolve_folder(run), str(row.row.input)):
                print_message(hint)
        if out is not None:
            write_predictions(out, rows)
            print_message(f"{len(rows):,} predictions in {out}")
        if as_json:
            print_result([row.to_dict() for row in rows], "", True)
        if any(row.error for row in rows):
            raise typer.Exit(1)


def settings(
    task: Annotated[str, typer.Argument(help="tag, classify, translate, …")],
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """List all settings of a task with default, range and help."""
    with report_errors(debug):
        from regard.settings import describe_settings
        from regard.tasks import find_task

        cls = find_task(task)
        groups = {"task": cls.Settings(), "architecture": cls.ARCHITECTURE, "training": cls.TRAINING}
        document = {name: describe_settings(group) for name, group in groups.items()}
        print_result(document, format_settings(document), as_json)


def recipes(as_json: Json = False, debug: Debug = False) -> None:
    """List the recipes: settings that reproduce a known result."""
    with report_errors(debug):
        from regard.train.progress import format_table
        from regard.train.recipes import find_recipe, recipe_names

        every = [find_recipe(name) for name in recipe_names()]
        document = [{"name": recipe.name, "task": recipe.task, "about": recipe.about} for recipe in every]
        rows = [(recipe.name, f"{recipe.task:10}  {recipe.about}") for recipe in every]
        print_result(document, format_table(rows), as_json)


def stdin_chunks() -> Iterator[list["InputRow"]]:
    """The lines on stdin as inputs, decoded as UTF-8: lists of those that are there, without waiting for more."""
    import io
    import sys

    from regard import BadInput
    from regard.train.predictions import CHUNK, InputRow

    number, rest, stream = 0, b"", cast(io.BufferedReader, sys.stdin.buffer)
    while data := stream.read1(1 << 16):
        *lines, rest = (rest + data).split(b"\n")
        for start in range(0, len(lines), CHUNK):
            chunk = lines[start : start + CHUNK]
            yield [InputRow(decode_line(line, number + n)) for n, line in enumerate(chunk, 1)]
            number += len(chunk)
    if rest:
        number += 1
        yield [InputRow(decode_line(rest, number))]
    if not number:
        raise BadInput("There are no lines on stdin. Give one text per line.")


def decode_line(line: bytes, number: int) -> str:
    """A line of stdin as text; raises `BadInput` with its number where it is not UTF-8."""
    from regard import BadInput

    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise BadInput(
            f"Line {number} on stdin has a byte (0x{byte:02X}) that is not UTF-8. "
            "Convert it first: iconv -f ENCODING -t UTF-8."
        ) from None


def parse_assignments(changed: list[str]) -> dict[str, str]:
    """`name=value` texts as a dictionary."""
    for text in changed:
        if "=" not in text:
            raise typer.BadParameter(f"{text!r} is not name=value", param_hint="--set")
    return dict(text.split("=", 1) for text in changed)


def read_config(path: Path | None) -> "JsonObject":
    """The settings in a TOML or JSON file."""
    import json
    import tomllib

    from regard import BadInput
    from regard.limits import JSON_BYTES

    if path is None:
        return {}
    try:
        if message := JSON_BYTES.excess(path.stat().st_size):
            raise BadInput(f"{path}: {message}")
        text = path.read_text("utf8")
        data = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"The settings in {path} cannot be read: {error}.") from None
    if not isinstance(data, dict) or any(isinstance(value, dict) for value in data.values()):
        raise BadInput(f"{path} holds {data!s:.60}; give names and values only, such as steps = 100.")
    return data


def report_faults(faults: Sequence["Fault"], out: Path | None = None, every_process: bool = False) -> None:
    """Print the first lines that were skipped, how many there are, and where a run into `out` lists them.

    The main process does, or `every_process` where each reads files of its own; the list has those of the main one.
    """
    from regard.train.run import is_main_process

    if not faults or not (is_main_process() or every_process):
        return
    for fault in faults[:5]:
        print_message(str(fault))
    where = f", listed in {out / 'faults.txt'}" if out is not None and is_main_process() else ""
    lines = "1 malformed line was" if len(faults) == 1 else f"{len(faults):,} malformed lines were"
    print_message(f"{lines} skipped{where}.")


def report_unknown_labels(task: "AnyTask", examples: Sequence[object]) -> None:
    """Print the labels of an evaluation that the training data does not have."""
    from regard.train.run import is_main_process

    unknown = task.unknown_labels(examples)
    if unknown and is_main_process():
        labels = ", ".join(f"{label!r} ({count} times)" for label, count in unknown.most_common(5))
        more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
        print_message(f"Labels that the training data does not have: {labels}{more}. Check their spelling.")


def format_scores(run: Path, document: "ParsedObject") -> str:
    """Scores as a table."""
    from regard.train.progress import format_table

    rows = [("run", run), *((name, f"{value:.4f}") for name, value in document["metrics"].items())]
    for name, metrics in document.get("baselines", {}).items():
        rows.append((name, ", ".join(f"{metric} {value:.4f}" for metric, value in metrics.items())))
    return format_table(rows)


def format_settings(document: dict[str, list["SettingDescription"]]) -> str:
    """Settings as text: name, default, type and range, help."""
    lines = []
    for group, rows in document.items():
        lines.append(f"{group}:")
        for row in rows:
            limits = "; ".join(text for text in (row["type"], row["range"]) if text)
            former = f" Former name: {', '.join(row['former'])}." if row["former"] else ""
            lines += [f"  {row['name']} = {row['default']}  ({limits})", f"      {row['help']}{former}"]
    return "\n".join(lines)


def format_facts(facts: "JsonObject") -> str:
    """The result of `check` as a table that fits on one screen."""
    from regard.train.progress import format_table

    rows = []
    for name, value in facts.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {count}" for key, count in list(value.items())[:20])
        if isinstance(value, list):
            rows += [(name if n == 0 else "", item) for n, item in enumerate(value[:20])]
            rows += [("", f"… and {len(value) - 20} more")] if len(value) > 20 else []
        else:
            rows.append((name, f"{value:.4f}" if isinstance(value, float) else value))
    return format_table(rows)
