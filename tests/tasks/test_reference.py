"""The reference of a run: distances to its training data, thresholds, and the length of its longest input."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import regard as rg
from regard.assets import list_assets
from regard.cli import app
from regard.data.tagged import Tagged
from regard.tasks.reference import (
    FEATURES,
    Reference,
    conformal_quantile,
    fit_reference,
    input_hints,
    mahalanobis,
    precision,
)
from regard.tasks.texts.tag import Tag
from regard.train.run import open_run


def test_the_distance_is_mahalanobis() -> None:
    x = torch.randn(500, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 2.0, 0.5]) + 7
    distances = mahalanobis(x, x.mean(0), precision(x))
    assert float(distances.square().mean()) == pytest.approx(3.0, rel=0.05)  # the number of dimensions
    assert distances.argmax() == ((x - x.mean(0)) / x.std(0)).norm(dim=1).argmax()


def test_a_threshold_is_exceeded_by_at_most_the_rate() -> None:
    generator = torch.Generator().manual_seed(0)
    above = []
    for _ in range(300):
        drawn = torch.rand(400, generator=generator)
        above.append(float((torch.rand(400, generator=generator) > conformal_quantile(drawn, 0.01)).double().mean()))
    assert 0.006 < sum(above) / len(above) <= 0.0105
    assert conformal_quantile(torch.tensor([3.0, 1.0, 2.0]), 0.01) == 3.0  # too few: the largest


def test_a_reference_is_saved_and_tells_unlike_images(tmp_path: Path) -> None:
    task, model, _ = open_run("digits")
    examples = [task.inputs.example_of(str(path)) for path in sorted((list_assets()["digits"] / "examples").iterdir())]
    made = fit_reference(task, model, examples * 3, examples * 2)
    made.save(tmp_path)
    loaded = Reference.load(tmp_path)
    assert loaded is not None and loaded.thresholds == made.thresholds and loaded.held_out == 20
    arguments = {"images": torch.randn(1, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 3}
    assert loaded.distances(model, arguments) == pytest.approx(made.distances(model, arguments))
    assert max(loaded.distances(model, arguments).values()) > 1
    assert all(torch.equal(loaded.means[name], made.means[name]) for name in FEATURES)
    (tmp_path / "reference.safetensors").write_bytes(b"damaged")
    with pytest.raises(rg.BadInput, match="regard reference"):
        Reference.load(tmp_path)
    assert Reference.load(tmp_path / "none") is None


def test_other_tasks_have_no_reference_but_a_length() -> None:
    examples = [Tagged(("a",) * n, ("X",) * n) for n in (3, 7, 5)]
    task = Tag.prepare(examples, Tag.Settings())
    assert task.training_length(examples) == 7
    with pytest.raises(rg.Unsupported, match="images or sounds"):
        fit_reference(task, task.config(Tag.ARCHITECTURE).build(), examples, examples)


def test_predict_gives_hints_on_stderr() -> None:
    task, model, _ = open_run("tagger")
    folder = list_assets()["tagger"]
    assert input_hints(task, model, folder, "The cat sat.") == []
    done = CliRunner().invoke(app, ["predict", "tagger", "猫追狗"])
    assert "this model reads English" in done.stderr and "this model" not in done.stdout
