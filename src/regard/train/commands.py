"""The commands about a person's own files: check, train, evaluate, predict."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from regard.terminal import Debug, Json, answer, one_paragraph, say, typer

Files = Annotated[list[Path], typer.Argument(help="The files of a data set (two parallel ones for translation).")]
TaskName = Annotated[str, typer.Option("--task", help="What the files are for: tag, classify, translate, …")]
Strict = Annotated[bool, typer.Option("--strict", help="Bad lines are an error instead of being skipped and listed.")]
Set = Annotated[list[str], typer.Option("--set", help="A setting, name=value; may be given several times.")]
RunPath = Annotated[Path, typer.Argument(help="The folder of a run.")]


def check(
    paths: Files,
    task: TaskName,
    strict: Strict = False,
    changed: Set = [],  # noqa: B006
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """What the reader sees in a file before anything is trained: sizes, labels, examples, and every bad line."""
    with one_paragraph(debug):
        from regard.tasks import find_task

        kind = find_task(task)
        settings = settled(kind.Settings(), pairs_of(changed))
        reading = kind.read(paths, settings)
        if strict:
            reading.strict()
        facts = described(kind, reading, settings) if reading.examples else {}
        facts |= {"notes": list(reading.notes), "faults": [str(fault) for fault in reading.faults]}
        answer(facts, screen(facts), as_json)
        if not reading.examples:
            raise typer.Exit(1)


def train(
    task: Annotated[
        str, typer.Argument(help="tag, classify, translate, lm, nodes, graphs, match, detect, transcribe.")
    ] = "",
    training: Annotated[list[Path], typer.Option("--train", help="Files to learn from.")] = [],  # noqa: B006
    dev: Annotated[list[Path], typer.Option("--dev", help="Files to choose by; a tenth of --train unless given.")] = [],  # noqa: B006
    out: Annotated[Path, typer.Option("--out", help="The folder of the run.")] = Path("run"),
    model: Annotated[
        str | None, typer.Option(help="transformer, longformer, lstm, cnn, mlp, lstm+attention, …")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Times through the data.")] = None,
    steps: Annotated[int | None, typer.Option(help="Updates.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Time.")] = None,
    seed: Annotated[int | None, typer.Option(help="What the random numbers begin with.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, or auto.")] = None,
    recipe: Annotated[str | None, typer.Option(help="Settings that reach a known result, by name.")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML or JSON file of settings.")] = None,
    changed: Set = [],  # noqa: B006
    strict: Strict = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Train a model from files. A folder that holds an unfinished run is gone on with."""
    with one_paragraph(debug):
        from regard import BadInput
        from regard.train.recipes import find_recipe
        from regard.train.run import RunFolder, first

        known = find_recipe(recipe) if recipe else None
        flags = {"model": model, "epochs": epochs, "steps": steps, "minutes": minutes, "seed": seed, "device": device}
        wanted = dict(known.settings) if known else {}
        wanted |= read_config(config) | {k: v for k, v in flags.items() if v is not None} | pairs_of(changed)
        if known and task not in ("", known.task):
            raise BadInput(f"The recipe {recipe} is for {known.task}, not {task}. Leave the task out, or the recipe.")
        folder = start(task or (known.task if known else ""), training, dev, out, wanted, strict)
        if not first():
            return
        if not (folder / "scores.json").is_file():  # stopped before the first evaluation
            answer({"run": str(folder), "metrics": None, "verdict": None}, f"run  {folder}", as_json)
            return
        scores = RunFolder(folder).read("scores.json")
        verdict = known.verdict(scores["metrics"]) if known else None
        answer({"run": str(folder), **scores, "verdict": verdict}, result(folder, scores), as_json)
        if verdict:
            say(verdict)
            raise typer.Exit(1)


def evaluate(
    run: RunPath,
    data: Annotated[list[Path], typer.Option("--data", help="Files to score on.")],
    part: Annotated[
        str, typer.Option(help="train, dev or test, where the files say it; test or dev unless given.")
    ] = "",
    changed: Set = [],  # noqa: B006
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """The scores of a trained model on other files."""
    with one_paragraph(debug):
        from regard.train.splits import select_split

        task, model = opened(run, changed)
        reading = task.read(data, task.settings)
        tell_faults(reading.faults, None)
        reading.needed()
        reading = reading.part(part) if part else select_split(reading, "test", "dev")
        tell_unknown(task, reading.examples)
        scores = task.evaluate(model, reading.examples)
        document = {"metrics": scores.metrics, "main": scores.main, **scores.details}
        answer(document, result(run, document), as_json)


def predict(
    run: RunPath,
    inputs: Annotated[list[str], typer.Argument(help="Texts, or paths of images or recordings; '-' reads lines.")],
    out: Annotated[Path | None, typer.Option("--out", help="A folder to draw what was found into (detect).")] = None,
    changed: Set = [],  # noqa: B006
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """What a trained model says of something new."""
    with one_paragraph(debug):
        task, model = opened(run, changed)
        given = lines_given() if inputs == ["-"] else inputs
        if out is not None and not task.draws_predictions:
            raise typer.BadParameter(f"the task {task.name!r} draws nothing", param_hint="--out")
        found = task.predict(model, given) if out is None else task.predict(model, given, out=out)
        answer(found, "\n".join(shown(one) for one in found), as_json)


def described(kind: Any, reading: Any, settings: Any) -> dict[str, Any]:
    """What a task tells of its examples; where it refuses them, the bad lines, which may be why, are told first."""
    from regard import RegardError

    try:
        return kind.prepare(reading.examples, settings).describe(reading.examples)
    except RegardError:
        tell_faults(reading.faults, None)
        raise


def lines_given() -> list[str]:
    """The lines on stdin, from UTF-8."""
    import sys

    from regard import BadInput
    from regard.data.files import lines_of

    data = sys.stdin.buffer.read()
    try:
        lines = lines_of(data.decode("utf-8-sig").replace("\r\n", "\n"))
    except UnicodeDecodeError as error:
        line, byte = data.count(b"\n", 0, error.start) + 1, error.object[error.start]
        raise BadInput(
            f"Line {line} on stdin has a byte (0x{byte:02X}) that is not UTF-8. "
            "Convert it first: iconv -f ENCODING -t UTF-8."
        ) from None
    if not lines:
        raise BadInput("There are no lines on stdin. Give a text a line.")
    return lines


def start(task: str, training: list[Path], dev: list[Path], out: Path, wanted: dict[str, Any], strict: bool) -> Path:
    """Read the files, prepare the task, and train it into its folder."""
    from regard import BadInput
    from regard.tasks import find_task
    from regard.tasks.architecture import unused
    from regard.train.progress import Progress
    from regard.train.run import begin, first
    from regard.train.splits import split_data

    if not task:
        raise BadInput("Say what is to be learned: regard train tag --train FILE; regard train --help has the tasks.")
    kind = find_task(task)
    base = (kind.Settings(), kind.ARCHITECTURE, kind.TRAINING)
    settings, architecture, how = settled_all(base, wanted)
    if not training:
        raise BadInput("There is nothing to learn from. Give --train FILE.")
    need_outside(out, [*training, *dev])
    if (left := unused(architecture)) and first():
        say(f"{architecture.model} has no place for {', '.join(left)}, which is left out.")
    reading = kind.read(training, settings)
    held = kind.read(dev, settings) if dev else None
    both = [reading] if held is None else [reading, held]
    faults = [fault for one in both for fault in one.faults]
    tell_faults(faults, None if strict else out)
    for one in both:
        if strict:
            one.strict()
        one.needed()
    learned, chosen = split_data(reading, held, kind, how.seed)
    made = kind.prepare(learned.examples, settings)
    tell_unknown(made, chosen.examples)
    files = {"train": [str(path) for path in training], "dev": [str(path) for path in dev]}
    begin(made, architecture, how, learned.examples, chosen.examples, out, files, Progress(), faults)
    return out


def need_outside(out: Path, data: list[Path]) -> None:
    """Raise where a run would write into a folder that it learns from: what it writes would be read as data."""
    from regard import BadInput

    for path in data:
        if path.is_dir() and out.resolve().is_relative_to(path.resolve()):
            raise BadInput(f"--out {out} is inside {path}, which is learned from. Give an --out that is elsewhere.")


def settled_all(bases: tuple[Any, ...], wanted: dict[str, Any]) -> list[Any]:
    from regard.settings import update_each

    return update_each(bases, wanted)


def settled(base: Any, wanted: dict[str, Any]) -> Any:
    from regard.settings import with_settings

    return with_settings(base, wanted)


def pairs_of(changed: list[str]) -> dict[str, str]:
    """`name=value` texts as a dictionary."""
    for text in changed:
        if "=" not in text:
            raise typer.BadParameter(f"{text!r} is not name=value", param_hint="--set")
    return dict(text.split("=", 1) for text in changed)


def read_config(path: Path | None) -> dict[str, Any]:
    """The settings in a TOML or JSON file."""
    import json
    import tomllib

    from regard import BadInput

    if path is None:
        return {}
    try:
        text = path.read_text("utf8")
        found = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise BadInput(f"The settings in {path} cannot be read: {error}.") from None
    if not isinstance(found, dict) or any(isinstance(value, dict) for value in found.values()):
        raise BadInput(f"{path} holds {found!s:.60}; wanted names and values alone, such as steps = 100.")
    return found


def opened(run: Path, changed: list[str]) -> tuple[Any, Any]:
    """Task and model of a run, with other settings of the task where these are asked for."""
    from regard.tasks import find_task
    from regard.train.run import open_run

    task, model, _ = open_run(run, find_task, pairs_of(changed))
    return task, model


def tell_faults(faults: Sequence[Any], out: Path | None) -> None:
    """Say how many lines were skipped, the first of them, and where a run that goes into `out` will list them."""
    from regard.train.run import first

    if not faults or not first():
        return
    for fault in faults[:5]:
        say(str(fault))
    where = f", listed in {out / 'faults.txt'}" if out is not None else ""
    say(f"{len(faults)} bad lines were skipped{where}.")


def tell_unknown(task: Any, examples: Sequence[Any]) -> None:
    """Name the labels that a model is scored on and never learned."""
    from regard.train.run import first

    found = task.unknown_labels(examples)
    if found and first():
        named = ", ".join(f"{label!r} ({count} times)" for label, count in found.most_common(5))
        more = f" and {len(found) - 5} more" if len(found) > 5 else ""
        say(f"Labels to score on that were not learned from: {named}{more}. Are they written as in training?")


def result(run: Path, document: dict[str, Any]) -> str:
    """Scores for a person."""
    from regard.train.progress import table

    return table([("run", run), *((name, f"{value:.4f}") for name, value in document["metrics"].items())])


def screen(facts: dict[str, Any]) -> str:
    """What `check` found, on one screen."""
    from regard.train.progress import table

    rows = []
    for name, value in facts.items():
        if isinstance(value, dict):
            value = ", ".join(f"{k} {v}" for k, v in list(value.items())[:20])
        if isinstance(value, list):
            rows += [(name if n == 0 else "", one) for n, one in enumerate(value[:20])]
            rows += [("", f"… and {len(value) - 20} more")] if len(value) > 20 else []
        else:
            rows.append((name, f"{value:.4f}" if isinstance(value, float) else value))
    return table(rows)


def shown(one: Any) -> str:
    """A prediction as a line."""
    if isinstance(one, dict) and set(one) == {"words", "tags"}:
        return " ".join(f"{word}/{tag}" for word, tag in zip(one["words"], one["tags"], strict=True))
    return (
        one
        if isinstance(one, str)
        else " ".join(f"{k}: {v}" for k, v in one.items())
        if isinstance(one, dict)
        else str(one)
    )
