"""A run's folder: everything that evaluating, predicting, loading and going on need."""

from __future__ import annotations

import errno
import gzip
import json
import os
import shutil
import signal
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import SafetensorError
from typer.testing import CliRunner, Result

import regard as rg
from regard.cli import app
from regard.settings import (
    Training,
    describe_settings,
    former_names,
    load_settings,
    update_each,
    update_settings,
)
from regard.tasks import TASKS, find_task
from regard.tasks.architecture import Architecture, unused_parts
from regard.tasks.classify import ClassifySettings
from regard.tasks.task import Scores
from regard.tasks.translate import TranslateSettings
from regard.terminal import explain
from regard.train.progress import Progress
from regard.train.recipes import Recipe, find_recipe, recipe_names
from regard.train.run_folder import RunFolder
from regard.train.trainer import TrainEvent, TrainState

SENTENCES = [("the", "DET"), ("cat", "NOUN"), ("sat", "VERB"), ("on", "ADP"), ("a", "DET"), ("mat", "NOUN")]


def conllu(path: Path, count: int) -> Path:
    """Sentences that turn the same words about."""
    blocks = []
    for n in range(count):
        words = SENTENCES[n % 6 :] + SENTENCES[: n % 6]
        rows = ["\t".join([str(i), w, "_", t, "_", "_", "_", "_", "_", "_"]) for i, (w, t) in enumerate(words, 1)]
        blocks.append("\n".join(rows) + "\n\n")
    path.write_text("".join(blocks), "utf8")
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small tagger, trained from the command line."""
    folder = tmp_path_factory.mktemp("run")
    data, out = conllu(folder / "train.conllu", 60), folder / "out"
    small = {"dim": 16, "layers": 1, "heads": 2, "batch_tokens": 60, "learning_rate": 1e-2, "warmup": 5}
    settings = [word for name, value in small.items() for word in ("--set", f"{name}={value}")]
    given = ["train", "tag", "--train", str(data), "--out", str(out), "--epochs", "6", "--device", "cpu", "--json"]
    done = CliRunner().invoke(app, given + settings)
    assert done.exit_code == 0, done.output
    return out


def test_the_folder_is_whole(run: Path) -> None:
    names = {"run.json", "task.json", "model", "checkpoints", "log.jsonl", "scores.json", "hypotheses.txt", "curve.png"}
    assert names <= {path.name for path in run.iterdir()}
    told = json.loads((run / "run.json").read_text("utf8"))
    assert told["task"] == "tag" and told["training"]["epochs"] == 6 and told["architecture"]["dim"] == 16
    assert set(told["training"]) == {field for field in Training.__dataclass_fields__}
    assert json.loads((run / "scores.json").read_text("utf8"))["metrics"]["accuracy"] > 0.95


def test_a_run_loads_as_a_model(run: Path) -> None:
    model = rg.load(run)
    assert not model.training and sum(p.numel() for p in model.parameters()) > 0
    assert torch.isfinite(model(tokens=torch.ones(1, 3, 21, dtype=torch.long)).logits).all()


def test_predictions_stand_beside_input_and_gold(run: Path) -> None:
    lines = (run / "hypotheses.txt").read_text("utf8").splitlines()
    records = [json.loads(line) for line in (run / "hypotheses.jsonl").read_text("utf8").splitlines()]
    assert [record["prediction"] for record in records] == lines
    assert all(len(record["input"].split()) == len(record["gold"].split()) == 6 for record in records)


def test_evaluate_and_predict(run: Path, tmp_path: Path) -> None:
    data = conllu(tmp_path / "test.conllu", 7)
    found = CliRunner().invoke(app, ["evaluate", str(run), "--data", str(data), "--json"])
    assert found.exit_code == 0 and json.loads(found.stdout)["metrics"]["accuracy"] > 0.95
    said = CliRunner().invoke(app, ["predict", str(run), "the cat sat on a mat"])
    assert said.exit_code == 0 and said.stdout.split() == [f"{w}/{t}" for w, t in SENTENCES]


def test_another_run_is_not_gone_on_with(run: Path, tmp_path: Path) -> None:
    """Settings that change what is computed cannot change in the middle."""
    data = conllu(tmp_path / "train.conllu", 60)
    done = CliRunner().invoke(app, ["train", "tag", "--train", str(data), "--out", str(run), "--set", "dim=32"])
    assert done.exit_code == 1 and "other settings" in done.output and "another --out" in done.output


def test_unknown_names_name_the_nearest(tmp_path: Path) -> None:
    data = conllu(tmp_path / "train.conllu", 6)
    for arguments, hint in (
        (["train", "tagg", "--train", str(data)], "'tag'"),
        (["train", "tag", "--train", str(data), "--set", "layer=2"], "'layers'"),
        (["train", "tag", "--train", str(data), "--model", "lstmm"], "'lstm'"),
        (["train", "--recipe", "ewtt", "--train", str(data)], "'ewt'"),
    ):
        done = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "out")])
        assert done.exit_code == 1 and f"Did you mean {hint}" in done.output, done.output


@pytest.mark.parametrize("name", recipe_names())
def test_recipes_fit_their_task(name: str) -> None:
    """Every setting of a recipe is one of its task's, the architecture's or training's, and has its type."""
    from regard.tasks import find_task

    recipe = find_recipe(name)
    kind = find_task(recipe.task)
    bases = kind.Settings(), kind.ARCHITECTURE, kind.TRAINING
    assert len(update_each(bases, dict(recipe.settings))) == 3
    assert recipe.about.strip()


def test_a_recipe_says_when_a_run_falls_below_its_band() -> None:
    high = Recipe("a", "tag", metric="accuracy", low=0.9)
    low = Recipe("b", "lm", metric="loss", high=1.5)
    assert high.verdict({"accuracy": 0.91}) is None and "0.9" in (high.verdict({"accuracy": 0.8}) or "")
    assert low.verdict({"loss": 1.4}) is None and "1.5" in (low.verdict({"loss": 1.6}) or "")


def test_rates() -> None:
    """Up over the warm-up, then down by the schedule."""
    how = Training(learning_rate=1.0, warmup=4, min_lr_ratio=0.1)
    assert [how.learning_rate_at(n, 100) for n in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert how.learning_rate_at(15, 100) == pytest.approx(0.1 + 0.9 * 0.5)
    assert replace(how, schedule="linear").learning_rate_at(52, 100) == pytest.approx(0.1 + 0.9 * 0.5)
    assert replace(how, schedule="cosine").learning_rate_at(100, 100) == pytest.approx(0.1)
    assert replace(how, schedule="constant").learning_rate_at(99, 100) == 1.0
    long = replace(how, warmup=200)
    assert [long.learning_rate_at(n, 20) for n in range(4)] == [0.25, 0.5, 0.75, 1.0], "a fifth at most"
    by_the_clock = replace(how, schedule="linear").learning_rate_at(5, 10**9, elapsed=0.5)
    assert by_the_clock == pytest.approx(0.1 + 0.9 * 0.5)
    assert how.learning_rate_at(0, 100, elapsed=0.9) == 0.25


def test_settings_are_read_as_their_type() -> None:
    texts = {"learning_rate": "1e-2", "patience": "none", "betas": "0.8,0.9", "compile": "yes"}
    made = update_settings(Training(), texts)
    assert (made.learning_rate, made.patience, made.betas, made.compile) == (0.01, None, (0.8, 0.9), True)
    with pytest.raises(rg.BadInput, match="precision is 'half'"):
        update_settings(Training(), {"precision": "half"})
    with pytest.raises(rg.BadInput, match="says when to stop"):
        Training(epochs=None)


def test_a_run_without_an_evaluation_says_to_go_on(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "young", ignore=shutil.ignore_patterns("model"))
    said = CliRunner().invoke(app, ["predict", str(tmp_path / "young"), "the cat"])
    assert said.exit_code == 1 and "before its first evaluation" in said.output and "regard train" in said.output


def test_a_run_that_has_ended_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    tell = Progress()
    tell(TrainEvent("resumed", TrainState(step=5), 9, {}))
    assert "Resuming from step 5." in capsys.readouterr().err
    tell(TrainEvent("resumed", TrainState(step=9), 9, {}))
    assert "This run is finished" in capsys.readouterr().err


def test_a_try_that_learned_nothing_binds_nobody(tmp_path: Path) -> None:
    """After a setting that ends a run at once, the same folder takes another."""
    given = ["train", "tag", "--train", str(conllu(tmp_path / "a.conllu", 12)), "--out", str(tmp_path / "out")]
    given += ["--steps", "1", "--device", "cpu", "--set", "dim=16", "--set", "layers=1", "--set", "heads=2"]
    first = CliRunner().invoke(app, [*given, "--set", "position=t5"])
    assert first.exit_code == 1 and "not the text of a part" in first.output
    assert CliRunner().invoke(app, given).exit_code == 0


def classify(table: Path, dev: Path, out: Path, *more: str) -> Result:
    """A few steps of a small classifier from the command line."""
    small = ["--set", "dim=16", "--set", "layers=1", "--set", "heads=2", "--device", "cpu", "--steps", "2"]
    return CliRunner().invoke(
        app, ["train", "classify", "--train", str(table), "--dev", str(dev), "--out", str(out), *small, *more]
    )


def reviews(path: Path, *more: str) -> Path:
    path.write_text("text,label\n" + "a good film,yes\na bad film,no\n" * 5 + "".join(f"{line}\n" for line in more))
    return path


def test_other_data_does_not_spoil_a_run(tmp_path: Path) -> None:
    table, out = reviews(tmp_path / "a.csv"), tmp_path / "out"
    assert classify(table, table, out).exit_code == 0
    before = (out / "task.json").read_bytes(), (out / "run.json").read_bytes()
    reviews(table, "a zebra,perhaps")
    done = classify(table, table, out)
    assert done.exit_code == 1 and "trained on other data" in done.output and "--out" in done.output
    assert before == ((out / "task.json").read_bytes(), (out / "run.json").read_bytes())
    assert classify(reviews(table), table, out).exit_code == 0


def test_bad_lines_of_dev_are_told_and_strict(tmp_path: Path) -> None:
    table, dev = reviews(tmp_path / "a.csv"), reviews(tmp_path / "dev.csv", "alone")
    done = classify(table, dev, tmp_path / "out")
    assert done.exit_code == 0 and "dev.csv:12: has 1 column" in (tmp_path / "out" / "faults.txt").read_text("utf8")
    done = classify(table, dev, tmp_path / "strict", "--strict")
    assert done.exit_code == 1 and "dev.csv:12: has 1 column" in done.output


def test_a_dev_file_without_examples_ends_before_training(tmp_path: Path) -> None:
    table, dev = reviews(tmp_path / "a.csv"), tmp_path / "dev.csv"
    dev.write_text("text,label\n")
    done = classify(table, dev, tmp_path / "out")
    assert done.exit_code == 1 and "No example was read from" in done.output and "no rows" in done.output
    assert not (tmp_path / "out" / "run.json").exists()
    assert done.output.count("no rows") == 1 and "faults.txt" not in done.output, "told once, and listed nowhere"


@pytest.mark.parametrize(
    "change",
    [
        *({"max_grad_norm": -1}, {"average_checkpoints": -1}, {"patience": -1}, {"warmup": -1}, {"weight_decay": "-1"}),
        *({"save_every": 0}, {"evaluate_every": 0}, {"learning_rate": "inf"}, {"learning_rate": "nan"}),
        *({"betas": "0.9"}, {"betas": "0.9,1.5"}, {"device": "gpu"}, {"steps": 2.5}, {"steps": True}),
    ],
)
def test_settings_out_of_range_are_named(change: dict[str, object]) -> None:
    with pytest.raises(rg.BadInput, match=next(iter(change))):
        update_settings(Training(), change)


@pytest.mark.parametrize(
    "change",
    [
        *({"patch_size": 0}, {"image_size": 0}, {"stack_frames": 0}, {"max_length": -1}, {"word_dropout": 3}),
        *({"r_drop": -1}, {"rare_word_dropout": "nan"}, {"max_affix": -1}, {"ensemble": 0}),
    ],
)
def test_a_tasks_settings_out_of_range_are_named(change: dict[str, object]) -> None:
    with pytest.raises(rg.BadInput, match=next(iter(change))):
        update_settings(ClassifySettings(), change)
    assert update_settings(TranslateSettings(), {"length_penalty": -0.5}).length_penalty == -0.5


def test_a_full_disk_is_told_apart_from_a_closed_one() -> None:
    said = [
        explain(OSError(number, os.strerror(number), "a/b")) for number in (errno.ENOSPC, errno.EROFS, errno.ENOENT)
    ]
    assert "a/b could not be read or written" in said[0] and "Free some disk space" in said[0]
    assert "Choose a writable folder" in said[1] and said[2].endswith("directory.")


def test_a_label_only_in_dev_is_told(tmp_path: Path) -> None:
    table, dev = reviews(tmp_path / "a.csv"), reviews(tmp_path / "dev.csv", "a film,perhaps", "one film,perhaps")
    done = classify(table, dev, tmp_path / "out")
    assert done.exit_code == 0 and "does not have: 'perhaps' (2 times). Check their spelling" in done.output
    again = CliRunner().invoke(app, ["evaluate", str(tmp_path / "out"), "--data", str(dev)])
    assert again.exit_code == 0 and "'perhaps' (2 times)" in again.output
    assert "does not have" not in classify(table, table, tmp_path / "same").output


def test_two_processes_do_not_share_a_folder(tmp_path: Path) -> None:
    first, second = (RunFolder(tmp_path).lock() for _ in range(2))
    with first, pytest.raises(rg.BadInput, match="Another process"), second:
        pass
    with RunFolder(tmp_path).lock():
        pass


def test_a_changed_text_is_other_data(tmp_path: Path) -> None:
    """The same labels and words, as often: only the files tell."""
    table, out = reviews(tmp_path / "a.csv"), tmp_path / "out"
    assert classify(table, table, out).exit_code == 0
    table.write_text(table.read_text().replace("a good film,yes", "film a good,yes", 1))
    done = classify(table, table, out)
    assert done.exit_code == 1 and "trained on other data" in done.output


def test_a_refused_command_leaves_the_list_of_faults(tmp_path: Path) -> None:
    table, out = reviews(tmp_path / "a.csv", "alone"), tmp_path / "out"
    assert classify(table, table, out).exit_code == 0
    listed = (out / "faults.txt").read_bytes()
    other = reviews(tmp_path / "b.csv", "one", "two")
    assert classify(other, other, out).exit_code == 1
    assert (out / "faults.txt").read_bytes() == listed


def test_tensorboard_reads_what_a_run_tells(tmp_path: Path) -> None:
    """Losses and rates of every step and dev's scores; after going on, what came after the checkpoint is not there."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    table, out = reviews(tmp_path / "a.csv"), tmp_path / "out"
    for steps in ("2", "5"):
        done = classify(table, table, out, "--set", "tensorboard=true", "--set", "warmup=0", "--steps", steps)
        assert done.exit_code == 0, done.output
    found = accumulator.EventAccumulator(str(out / "tensorboard"))
    found.Reload()
    steps = [json.loads(line) for line in (out / "log.jsonl").read_text("utf8").splitlines()]
    losses = {line["step"]: line["loss"] for line in steps if line["kind"] == "step"}
    told = {one.step: one.value for one in found.Scalars("train/loss")}
    assert told == pytest.approx(losses, abs=1e-5) and list(told) == [1, 2, 3, 4, 5]
    assert {"train/rate", "train/norm", "dev/accuracy"} <= set(found.Tags()["scalars"])


def test_parts_that_a_model_has_no_place_for_are_named(tmp_path: Path) -> None:
    table = reviews(tmp_path / "a.csv")
    done = classify(table, table, tmp_path / "a", "--model", "lstm", "--set", "position=Alibi()")
    assert done.exit_code == 0 and "lstm does not use position=Alibi(); ignored" in done.output
    done = classify(table, table, tmp_path / "b", "--model", "cnn+attention", "--set", "position=Alibi()")
    assert done.exit_code == 0 and "does not use" not in done.output


def run_training(*given: object, steps: int = 2) -> Result:
    small = ["--set", "dim=16", "--set", "layers=1", "--set", "heads=2", "--device", "cpu"]
    return CliRunner().invoke(app, ["train", *map(str, given), "--steps", str(steps), *small])


def films(path: Path, count: int = 40) -> Path:
    path.write_text("text,label\n" + "".join(f"word{n % 7} film,{'ab'[n % 2]}\n" for n in range(count)), "utf8")
    return path


def test_gzipped_files_are_the_same_files(tmp_path: Path) -> None:
    given = "classify", "--out", tmp_path / "out", "--train"
    assert run_training(*given, films(tmp_path / "a.csv")).exit_code == 0
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress((tmp_path / "a.csv").read_bytes()))
    assert run_training(*given, tmp_path / "b.csv.gz", steps=3).exit_code == 0


def test_files_that_settings_name_may_not_change(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text("source,target\n" + "".join(f"{n},{(n + 2) % 30}\n" for n in range(30)), "utf8")
    (tmp_path / "x.csv").write_text("node,f\n" + "".join(f"{n},{n % 5}\n" for n in range(30)), "utf8")
    (tmp_path / "y.csv").write_text("node,label\n" + "".join(f"{n},{'ab'[n % 2]}\n" for n in range(30)), "utf8")
    given = (
        "nodes",
        "--train",
        tmp_path / "edges.csv",
        "--out",
        tmp_path / "out",
        "--set",
        f"features={tmp_path / 'x.csv'}",
    )
    given = *given, "--set", f"labels={tmp_path / 'y.csv'}"
    assert run_training(*given).exit_code == 0 and run_training(*given, steps=3).exit_code == 0
    (tmp_path / "y.csv").write_text("node,label\n" + "".join(f"{n},{'ba'[n % 2]}\n" for n in range(30)), "utf8")
    again = run_training(*given, steps=4)
    assert again.exit_code == 1 and "other data" in again.output


def test_folders_of_data(tmp_path: Path) -> None:
    for n in range(12):
        path = tmp_path / "data" / "ab"[n % 2] / f"{n}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), 20 * n, "uint8")).save(path)
    given = "classify", "--train", tmp_path / "data", "--out"
    assert run_training(*given, tmp_path / "out").exit_code == 0
    (tmp_path / "data" / "a" / ".DS_Store").write_bytes(b"x")
    assert run_training(*given, tmp_path / "out", steps=3).exit_code == 0
    inside = run_training(*given, tmp_path / "data" / "run")
    assert inside.exit_code == 1 and "is inside" in inside.output


def test_a_run_killed_before_its_first_checkpoint_has_one_log(tmp_path: Path) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    given = "classify", "--train", films(tmp_path / "a.csv"), "--out", tmp_path / "out", "--set", "tensorboard=true"
    assert run_training(*given).exit_code == 0
    shutil.rmtree(tmp_path / "out" / "checkpoints")
    assert run_training(*given).exit_code == 0
    steps = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text("utf8").splitlines()]
    assert [line["step"] for line in steps if line["kind"] == "step"] == [1, 2]
    board = events.EventAccumulator(str(tmp_path / "out" / "tensorboard"))
    board.Reload()
    assert [one.step for one in board.Scalars("train/loss")] == [1, 2]


def test_what_may_be_below_zero() -> None:
    assert update_settings(Training(), {"seed": "-1"}).seed == -1


@pytest.mark.parametrize("model", ["gat", "gatv2", "transformer-xl", "ngram"])
def test_layers_with_their_own_parts_have_no_place_for_others(model: str) -> None:
    assert unused_parts(Architecture(model, score="Additive()")) == ["score=Additive()"]


@pytest.mark.parametrize(
    "task, name",
    [
        *(("classify", "bins"), ("classify", "sample_rate"), ("translate", "beams"), ("transcribe", "beams")),
        *(("nodes", "out_heads"), ("detect", "queries"), ("lm", "order"), ("transcribe", "sample_rate")),
    ],
)
def test_counts_of_nothing(task: str, name: str) -> None:
    with pytest.raises(rg.BadInput, match=f"{name} is 0; it must be at least 1"):
        update_settings(find_task(task).Settings(), {name: 0})


def test_no_setting_of_a_task_hides_another() -> None:
    for name in TASKS:
        groups = Architecture, Training, find_task(name).Settings
        names = [field.name for group in groups for field in fields(group)]
        former = [old for group in groups for old in former_names(group)]
        assert len(set(names + former)) == len(names + former), name


def test_every_setting_has_a_help_sentence() -> None:
    for name in TASKS:
        for group in (Architecture(), Training(), find_task(name).Settings()):
            for row in describe_settings(group):
                assert row["help"].endswith("."), row


@pytest.mark.parametrize("name", TASKS)
def test_settings_lists_every_field(name: str) -> None:
    done = CliRunner().invoke(app, ["settings", name, "--json"])
    assert done.exit_code == 0, done.output
    listed = {row["name"] for rows in json.loads(done.stdout).values() for row in rows}
    assert listed == {
        field.name for group in (Architecture, Training, find_task(name).Settings) for field in fields(group)
    }
    assert "learning_rate = " in CliRunner().invoke(app, ["settings", name]).stdout


def test_recipes_are_listed() -> None:
    done = CliRunner().invoke(app, ["recipes", "--json"])
    assert done.exit_code == 0 and [row["name"] for row in json.loads(done.stdout)] == recipe_names()


def test_a_former_name_and_its_new_name_are_the_same_setting() -> None:
    assert update_each([Training()], {"learning_rate": 1.0}, {"rate": 2.0})[0].learning_rate == 2.0
    with pytest.raises(rg.BadInput, match="learning_rate is given twice"):
        update_settings(Training(), {"learning_rate": 1.0, "rate": 2.0})


@pytest.mark.parametrize(
    ("task", "former", "name", "value"),
    [
        ("tag", "unpunctuated", "punctuation_dropout", 0.5),
        ("spans", "texts", "unlabelled_text", "plain.txt"),
        ("similarity", "likeness", "similarity", "score"),
        ("similarity", "pooling", "pool", "max"),
        ("graphs", "label_type", "target", "class"),
        ("table", "categories", "categorical_columns", "zip"),
        ("table", "ignored", "ignored_columns", "id"),
        ("classify", "frozen", "freeze_vectors", True),
        ("match", "frozen", "freeze_vectors", True),
    ],
)
def test_former_names_of_task_settings_are_accepted(task: str, former: str, name: str, value: str | float) -> None:
    settings = find_task(task).Settings
    assert update_settings(settings(), {former: value}) == load_settings(settings, {former: value})
    assert update_settings(settings(), {former: value}) == update_settings(settings(), {name: value}) != settings()


def test_a_model_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    class Full:
        def save(self, folder: Path) -> None:
            raise SafetensorError("No space left on device (os error 28)")

    with pytest.raises(rg.BadInput, match=r"could not be written to .*model: No space left .* Free some disk space"):
        RunFolder(tmp_path).save_best(Full(), Scores({}, "accuracy"))  # type: ignore[arg-type]


def test_half_written_files_are_removed_at_the_next_start(tmp_path: Path) -> None:
    given = "classify", "--train", films(tmp_path / "a.csv"), "--out", tmp_path / "out"
    assert run_training(*given).exit_code == 0
    out = tmp_path / "out"
    (out / "model" / ".writing-0123").mkdir()
    left = [".run.json.writing", "model/.writing-0123/model.safetensors", "model/.tmpAbC123", "model/.x.json.0f.tmp"]
    for name in left:
        (out / name).write_text("half")
    (out / "notes.tmp").write_text("mine")
    assert run_training(*given).exit_code == 0
    assert not list(out.rglob(".writing-*")) and not any((out / name).exists() for name in left)
    assert (out / "notes.tmp").is_file()


def test_a_damaged_description_of_a_run_is_noticed(run: Path, tmp_path: Path) -> None:
    out = shutil.copytree(run, tmp_path / "out")
    text = (out / "task.json").read_text("utf8")
    (out / "task.json").write_text(text.replace("NOUN", "NOUM"), "utf8")
    with pytest.raises(rg.BadInput, match=r"task\.json is damaged.*remove its entry"):
        rg.open(out)


@pytest.mark.parametrize("name, status", [("SIGINT", 130), ("SIGTERM", 143), ("SIGUSR1", 128 + signal.SIGUSR1)])
def test_a_stopped_command_exits_with_its_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, status: int
) -> None:
    """The run is saved, and a shell or a scheduler sees that it did not end by itself."""

    def stop(self: Progress, event: TrainEvent) -> None:
        if event.state.step == 2:
            os.kill(os.getpid(), getattr(signal, name))

    monkeypatch.setattr(Progress, "step", stop)
    (tmp_path / "a.tsv").write_text("the\tDET\ncat\tNOUN\n\na\tDET\ndog\tNOUN\n\n" * 10)
    sizes = [word for item in ("dim=16", "layers=1", "heads=2") for word in ("--set", item)]
    given = ["--train", str(tmp_path / "a.tsv"), "--out", str(tmp_path / "run"), "--steps", "50", "--device", "cpu"]
    done = CliRunner().invoke(app, ["train", "tag", *given, *sizes])
    assert done.exit_code == status and "Stopped after step 2, which is saved" in done.output


def test_the_time_left_knows_the_minutes(capsys: pytest.CaptureFixture[str]) -> None:
    """A step takes about no time and 10**6 of them remain: the minutes that are left are shown if they are fewer."""
    for minutes, shown in ((0.5, "0:10 left"), (None, "? left")):
        progress = Progress(minutes, every=0.0)
        progress(TrainEvent("step", TrainState(step=1, seconds=20.0), 10**9, {"loss": 1.0, "labels": 1.0}))
        assert shown in capsys.readouterr().err
