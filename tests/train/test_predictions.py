"""Predictions for texts, tables, folders and streams; what cannot be read does not end the others."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from regard.cli import app
from regard.train.predictions import read_inputs, rows_of_table
from regard.train.run import open_run

SMALL = ["dim=16", "layers=1", "heads=2", "learning_rate=1e-2", "warmup=5"]


def call(*words: str | Path, **options) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], **options)


def train_run(data: Path, out: Path, *more: str) -> Path:
    settings = [word for value in (*SMALL, *more) for word in ("--set", value)]
    given = ("--train", data, "--out", out, "--steps", "60", "--device", "cpu", "--set", "evaluate_every=60")
    done = call("train", "classify", *given, *settings)
    assert done.exit_code == 0, done.output
    return out


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier of good and bad reviews."""
    folder = tmp_path_factory.mktemp("texts")
    rows = [(f"a {word} film number {n}", label) for n in range(40) for word, label in (("fine", "+"), ("dull", "-"))]
    with (folder / "train.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    return train_run(folder / "train.csv", folder / "run")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier of dark and light pictures, beside the folder of its pictures."""
    folder = tmp_path_factory.mktemp("pictures")
    for name, value in (("dark", 20), ("light", 230)):
        (folder / "train" / name).mkdir(parents=True)
        for n in range(10):
            Image.fromarray(np.full((8, 8), value + n, np.uint8)).save(folder / "train" / name / f"{n}.png")
    return train_run(folder / "train", folder / "run", "patch_size=4")


def test_a_table_is_read_and_its_columns_come_back(texts: Path, tmp_path: Path) -> None:
    table, out = tmp_path / "new.csv", tmp_path / "out" / "labelled.csv"
    table.write_text("id,text,label\n7,a fine film,?\n8,a dull film,?\n")
    for given in (("--data", table), (table,)):
        done = call("predict", texts, *given, "--out", out)
        assert done.exit_code == 0, done.output
        rows = list(csv.DictReader(out.open()))
        assert [(row["id"], row["predicted_label"]) for row in rows] == [("7", "+"), ("8", "-")]
        assert all(float(row["p(+)"]) + float(row["p(-)"]) == pytest.approx(1, abs=2e-4) for row in rows)


def test_columns_have_the_names_that_they_had_in_training(tmp_path: Path) -> None:
    """Also where a file of two rows does not tell by its values what is an identifier, a text, a label."""
    rows = [(f"c-{n}", f"odd {n}", f"a fine film number {n} of the year", f"note {n}", "+-"[n % 2]) for n in range(40)]
    with (tmp_path / "train.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("code", "nick", "opinion", "remark", "verdict"), *rows])
    run = train_run(tmp_path / "train.csv", tmp_path / "run", "input=opinion", "nb_linear=0")
    (tmp_path / "new.csv").write_text("code,nick,remark,opinion\nc-1,odd,some note,a fine film\nc-2,a,other,dull\n")
    assert json.loads((run / "run.json").read_text())["columns"] == {"text": "opinion", "label": "verdict"}
    task, *_ = open_run(run)
    task.input_column = None  # as if it had been found by its values
    assert [row.input for row in read_inputs(task, [str(tmp_path / "new.csv")])] == ["a fine film", "dull"]


def test_several_columns_of_texts_are_ambiguous(texts: Path, tmp_path: Path) -> None:
    table = tmp_path / "new.csv"
    table.write_text("nick,remark\n" + "".join(f"name {n},note {n}\n" for n in range(5)))
    done = call("predict", texts, "--data", table)
    assert done.exit_code == 1 and "which column is the text? There are" in done.output
    assert call("predict", texts, "--data", table, "--set", "input=remark").exit_code == 0


def test_lines_of_a_file_and_json_lines(texts: Path, tmp_path: Path) -> None:
    lines, out = tmp_path / "new.txt", tmp_path / "out.jsonl"
    lines.write_text("a fine film\n\na dull film\n")
    assert call("predict", texts, lines, "--out", out).exit_code == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["input"], row["label"]) for row in rows] == [("a fine film", "+"), ("a dull film", "-")]


def test_lines_of_stdin(texts: Path) -> None:
    done = call("predict", texts, "-", input="a fine film\na dull film\n")
    assert [line.split("label: ")[1][0] for line in done.stdout.splitlines()] == ["+", "-"]
    document = json.loads(call("predict", texts, "a fine film", "--json").stdout)
    assert set(document[0]["probabilities"]) == {"+", "-"} and document[0]["label"] == "+"


def test_a_stream_is_answered_line_by_line(texts: Path) -> None:
    """A line is answered while the stream is still open."""
    command = [sys.executable, "-m", "regard.cli", "predict", str(texts), "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        for text, label in (("a fine film", "+"), ("a dull film", "-")):
            process.stdin.write(text + "\n")
            process.stdin.flush()
            assert f"label: {label}" in process.stdout.readline()
        process.stdin.close()
    assert process.returncode == 0


def test_a_folder_is_no_text(texts: Path, tmp_path: Path) -> None:
    done = call("predict", texts, tmp_path)
    assert done.exit_code == 1 and "is a folder, and this model reads texts" in done.output


@pytest.mark.parametrize("name", ["tets.csv", "no/such/new.txt", "new.jsonl.gz"])
def test_the_name_of_a_file_that_is_not_there_is_no_text(texts: Path, name: str) -> None:
    done = call("predict", texts, name)
    assert done.exit_code == 1 and f"There is no file {name}" in done.output
    assert call("predict", texts, "-", input=name + "\n").exit_code == 0


def test_a_corrupt_picture_does_not_end_the_others(pictures: Path, tmp_path: Path) -> None:
    for n, value in enumerate((10, 240)):
        Image.fromarray(np.full((8, 8), value, np.uint8)).save(tmp_path / f"{n}.png")
    (tmp_path / "1-broken.png").write_bytes(b"\x89PNG\r\n\x1a\n and nothing more")
    done = call("predict", pictures, tmp_path, "--json")
    assert done.exit_code == 1
    first, broken, last = json.loads(done.stdout)
    assert (first["label"], last["label"]) == ("dark", "light")
    assert broken["input"].endswith("1-broken.png") and "1-broken.png" in broken["error"]
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "has no file that this model reads" in call("predict", pictures, empty).output


def test_pictures_that_a_table_lists(pictures: Path, tmp_path: Path) -> None:
    """By their paths, or with their bytes in the rows of a Parquet file."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for name, value in (("night", 10), ("noon", 240)):
        Image.fromarray(np.full((8, 8), value, np.uint8)).save(tmp_path / f"{name}.png")
    (tmp_path / "list.csv").write_text("nr,file,label\n1,night.png,?\n2,noon.png,?\n3,gone.png,?\n")
    done = call("predict", pictures, "--data", tmp_path / "list.csv", "--out", tmp_path / "out.csv")
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert done.exit_code == 1 and "gone.png does not exist" in done.output
    assert [(row["nr"], row["predicted_label"]) for row in rows] == [("1", "dark"), ("2", "light"), ("3", "")]
    cells = [{"bytes": (tmp_path / "noon.png").read_bytes(), "path": name} for name in ("a.png", None)]
    parquet.write_table(arrow.table({"image": cells, "nr": [7, 8]}), tmp_path / "data.parquet")
    done = call("predict", pictures, tmp_path / "data.parquet", "--json")
    assert [row["label"] for row in json.loads(done.stdout)] == ["light", "light"], done.output


def test_a_run_that_is_told_what_was_guessed(tmp_path: Path) -> None:
    rows = [(f"r{n}", f"a {('fine', 'dull')[n % 2]} film number {n}", "+-"[n % 2]) for n in range(40)]
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("nr", "v2", "v1"), *rows])
    settings = [word for value in SMALL for word in ("--set", value)]
    given = ("--train", tmp_path / "a.csv", "--out", tmp_path / "run", "--steps", "2", "--device", "cpu")
    done = call("train", "classify", *given, *settings)
    assert "a.csv: text = column 'v2', label = column 'v1'" in done.output


def test_sentences_are_tagged_as_their_file_divides_them(tmp_path: Path) -> None:
    """A file in the form of the training data is not read as lines of text, for words or for spans."""
    rows = [(("Ann", "can't", "swim"), ("B-PER", "O", "O")), (("Bob's", "here"), ("B-PER", "O"))] * 20
    blocks = ["".join(f"{word} {tag}\n" for word, tag in zip(*row, strict=True)) for row in rows]
    (tmp_path / "a.conll").write_text("\n".join(blocks))
    lists = "".join(json.dumps({"words": row[0], "tags": row[1]}) + "\n" for row in rows)
    (tmp_path / "a.jsonl").write_text(lists)
    for task in ("tag", "spans"):
        run = tmp_path / task
        given = ("--train", tmp_path / "a.conll", "--out", run, "--steps", "1", "--device", "cpu")
        assert call("train", task, *given, "--set", "dim=16", "--set", "heads=2").exit_code == 0
        for name in ("a.conll", "a.jsonl"):
            done = call("predict", run, tmp_path / name, "--json")
            assert done.exit_code == 0, done.output
            got = [" ".join(row["words"]) if task == "tag" else row["input"] for row in json.loads(done.stdout)]
            assert got == [" ".join(row[0]) for row in rows]


def test_questions_of_squad_are_rows(tmp_path: Path) -> None:
    asked = {"id": "q1", "question": "Who?", "answers": [{"text": "Ann", "answer_start": 0}]}
    document = {"data": [{"paragraphs": [{"context": "Ann is here.", "qas": [asked]}]}]}
    (tmp_path / "squad.json").write_text(json.dumps(document))
    (row,) = rows_of_table(tmp_path / "squad.json")
    assert row.cells == {"id": "q1", "question": "Who?", "context": "Ann is here."} == json.loads(row.input)
