"""Tables of numbers, categories and dates: what columns hold, models that learn, predictions, the lab."""

import json
import math
import pickle
import random

import pytest
import torch
from typer.testing import CliRunner

from regard.cli import app
from regard.data.tables.feature_rows import read_feature_rows
from regard.errors import BadInput, Unsupported
from regard.lab.inputs.prepare import prepare
from regard.models.config import as_dict, from_dict
from regard.nn.embeddings.columns import ColumnEmbeddingConfig
from regard.tasks import find_task
from regard.tasks.architecture import Architecture
from regard.tasks.tables.column_features import (
    ABSENT,
    UNKNOWN,
    CategoryColumn,
    ColumnFeatures,
    DateColumn,
    NumberColumn,
    fit_columns,
)
from regard.train.run import RunConfig, open_run, read_data, train_run


def make_rows(count=160, seed=0):
    """Rows whose class is decided by a number and a category together, with some values missing."""
    rng = random.Random(seed)
    rows = []
    for n in range(count):
        size, color = rng.gauss(5, 2), rng.choice(["red", "green", "blue"])
        day = f"2024-{rng.randrange(1, 13):02d}-{rng.randrange(1, 28):02d}"
        label = "yes" if (size > 5) == (color == "red") else "no"
        shown = "" if rng.random() < 0.05 else f"{size:.3f}"
        rows.append([str(n + 1), shown, color, day, f"note {rng.random()}", "same", label])
    return rows


NAMES = ["id", "size", "color", "day", "remark", "constant", "verdict"]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "data.csv"
    path.write_text("\n".join(",".join(row) for row in [NAMES, *make_rows()]) + "\n")
    return path


def test_columns_are_profiled(table):
    reading = read_feature_rows(table).strict()
    assert "label = column 'verdict', the last one" in reading.notes[0]
    features = fit_columns([row.values for row in reading.examples])
    assert features.names == ["size", "color", "day", "day (month)", "day (weekday)"]
    assert [type(column) for column in features.columns] == [NumberColumn, CategoryColumn, *[DateColumn] * 3]
    assert features.sizes == (0, 5, 0, 14, 9)
    notes = " ".join(features.notes)
    assert "'id' numbers the rows" in notes and "'constant' has 1 value" in notes
    assert "'remark' has 160 different texts in 160 rows" in notes


@pytest.mark.parametrize(
    "name, numbers, left_out",
    [
        ("Unnamed: 0", [n for n in range(60) if n % 5], True),  # a fifth of the rows is held out
        ("PassengerId", [7 * n % 60 for n in range(60)], True),
        ("user_id", [10_000 + 37 * n for n in range(60)], True),
        ("seconds", [1_700_000_000 + 300 * n for n in range(60)], False),
        ("rank", [7 * n % 60 for n in range(60)], False),
        ("age", [20 + n % 50 for n in range(60)], False),
    ],
)
def test_numbers_that_name_rows_are_left_out(name, numbers, left_out):
    features = fit_columns([{name: str(number)} for number in numbers])
    assert (features.names == [], "numbers the rows" in " ".join(features.notes)) == (left_out, left_out)


def test_values_are_encoded():
    rows = [{"x": text, "c": name} for text, name in zip("2143", "abab", strict=True)]
    features = fit_columns(rows)
    encoded = features.encode([{"x": "2.5", "c": "b"}, {"x": "n/a", "c": None}, {"c": "z", "x": 4}, {}])
    assert encoded[0, 0] == 0 and encoded[2, 0] == pytest.approx((4 - 2.5) / math.sqrt(1.25))
    assert encoded[[1, 3], 0].isnan().all()
    assert encoded[:, 1].tolist() == [3, ABSENT, UNKNOWN, ABSENT]
    again = ColumnFeatures.from_dict(json.loads(json.dumps(features.as_dict())))
    assert again.columns == features.columns


def test_quantiles_do_not_care_about_the_scale():
    values = [str(math.exp(n / 10)) for n in range(100)]
    column = fit_columns([{"x": value} for value in values], quantiles=True).columns[0]
    encoded = [column.encode(value) for value in values]
    assert encoded == sorted(encoded) and abs(sum(encoded)) < 1e-6
    assert encoded[-1] == pytest.approx(3, abs=0.01) and encoded[0] == pytest.approx(-3, abs=0.01)


def test_numbers_can_be_categories_and_columns_ignored():
    rows = [{"zip": str(n % 7), "x": str(n), "y": str(n * n)} for n in range(50)]
    features = fit_columns(rows, categories=["zip"])
    assert isinstance(features.columns[0], CategoryColumn) and isinstance(features.columns[-1], NumberColumn)


def test_the_embedding_has_a_token_for_each_column():
    embed = ColumnEmbeddingConfig((0, 3, 0), 4).build()
    columns = torch.tensor([[2.0, 1.0, math.nan]])
    tokens = embed(columns)[0]
    assert torch.equal(tokens[0], embed.first[0])
    assert torch.allclose(tokens[1], 2 * embed.weight[0] + embed.bias[0])
    assert torch.allclose(tokens[2], embed.categories[1] + embed.bias[1])
    assert torch.allclose(tokens[3], embed.missing[2] + embed.bias[2])
    embed(columns).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in embed.parameters())
    with pytest.raises(BadInput, match=r"must be \[batch, 3\]"):
        embed(torch.zeros(1, 2))


def train_table(table, out, **changes):
    config = RunConfig.from_changes(
        "table", {"epochs": 40, "evaluate_every": 20, "save_every": 1000, **changes}, train=[table]
    )
    data = read_data(config, lambda faults: None, strict=True)
    task = config.task.prepare(data.train, config.settings)
    train_run(task, config.architecture, config.training, data, out, config.files)
    return open_run(out)


@pytest.fixture(scope="module")
def run(table, tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "transformer"
    return out, *train_table(table, out, dim=32, learning_rate=5e-3)


def test_attention_learns_what_two_columns_decide_together(run):
    out, task, model, _ = run
    scores = json.loads((out / "scores.json").read_text())
    assert scores["metrics"]["accuracy"] > 0.85
    assert set(scores["baselines"]["gradient boosting"]) >= {"accuracy", "macro F1", "loss"}
    results = task.predict(model, [{"size": 9, "color": "red"}, '{"size": 9, "color": "blue"}'])
    assert [result.label for result in results] == ["yes", "no"]
    for given in ("no json", "[1]", {"other": 3}):
        with pytest.raises(BadInput, match="row"):
            task.predict(model, [given])


def test_the_task_of_a_run_can_be_pickled(run):
    _, task, model, _ = run
    again, rows = pickle.loads(pickle.dumps(task)), [{"size": 9, "color": "red"}]
    assert again.predict(model, rows) == task.predict(model, rows)


def test_an_mlp_learns_too(table, tmp_path):
    task, model, _ = train_table(table, tmp_path / "mlp", model="mlp", dim=16, learning_rate=3e-3, baseline=False)
    rows = [row for row in read_feature_rows(table).examples]
    assert task.evaluate(model, rows).metrics["accuracy"] > 0.8
    assert "baselines" not in json.loads((tmp_path / "mlp" / "scores.json").read_text())


def test_numbers_are_predicted(tmp_path):
    path = tmp_path / "data.tsv"
    rng = random.Random(0)
    rows = [(rng.random(), rng.random()) for _ in range(120)]
    path.write_text("a\tb\ttarget\n" + "".join(f"{a}\t{b}\t{10 * a - 5 * b + 100}\n" for a, b in rows))
    task, model, _ = train_table(path, tmp_path / "run", dim=16, learning_rate=3e-3, layers=1)
    assert task.labels is None
    metrics = json.loads((tmp_path / "run" / "scores.json").read_text())["metrics"]
    assert metrics["R2"] > 0.9 and metrics["RMSE"] < 2
    assert task.predict(model, [{"a": 0.5, "b": 0.5}])[0].value == pytest.approx(102.5, abs=2)


def test_a_table_is_predicted_row_by_row(run, tmp_path):
    out = run[0]
    new = tmp_path / "new.csv"
    new.write_text("size,color,who\n9,red,Ada\n1,red,Bob\n")
    result = CliRunner().invoke(app, ["predict", str(out), "--data", str(new), "--out", str(tmp_path / "out.csv")])
    assert result.exit_code == 0, result.output
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert lines[0].startswith("size,color,who,label,probability") and lines[1].startswith("9,red,Ada,yes,")


def test_check_shows_what_columns_hold(table):
    result = CliRunner().invoke(app, ["check", str(table), "--task", "table", "--json"])
    facts = json.loads(result.stdout)
    assert facts["columns"]["color"] == "category of 3" and facts["columns"]["size"] == "number"
    assert facts["classes"].keys() == {"yes", "no"} and facts["missing values"]["size"] > 0


def test_the_lab_shows_columns_as_tokens(run):
    _, task, model, _ = run
    given = prepare(model, task, "text", {"text": '{"size": 9, "color": "red"}'}, lambda fields: b"")
    assert [token.text for token in given.tokens["source"]] == ["[row]", *task.features.names]
    prediction = given.read_output(model(**given.arguments))
    assert prediction["items"][0]["label"] == "yes"


def test_configurations_are_saved_and_models_that_do_not_fit_refused(table):
    examples = read_feature_rows(table).examples
    cls = find_task("table")
    task = cls.prepare(examples, cls.Settings())
    config = task.config(cls.ARCHITECTURE)
    assert from_dict(json.loads(json.dumps(as_dict(config)))) == config
    with pytest.raises(Unsupported, match="columns have none"):
        task.config(Architecture("lstm"))
    with pytest.raises(Unsupported, match="Leave out position"):
        task.config(Architecture(position="Alibi()"))
    with pytest.raises(BadInput, match="There is no column 'sizes'"):
        cls.prepare(examples, cls.Settings(ignored_columns="sizes"))


def test_labels_that_are_no_numbers_are_faults(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("x,target\n" + "".join(f"{n},{n / 3}\n" for n in range(30)) + "4,unknown\n")
    reading = read_feature_rows(path)
    assert len(reading) == 30 and str(reading.faults[0]).startswith(f"{path}:32:3: the label")
