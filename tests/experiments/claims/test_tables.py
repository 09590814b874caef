"""The claim tables: its data, its models and the verdict."""

from typing import Any

import pytest
import torch

from regard.experiments.claims import tables
from regard.experiments.progress import ignore_progress
from regard.experiments.toolkit.metrics import summarize


def make_numbers(change: float = 0.0, **accuracy: float) -> dict[str, Any]:
    values = {"linear": 0.7, "mlp": 0.9, "attention": 0.9, "trees": 0.9} | accuracy
    rows = {
        name: {"given": summarize([value]), "permuted": summarize([value - change])} for name, value in values.items()
    }
    return {"columns": 12, "rows": 100, "accuracy": rows, "frequent": summarize([0.5])}


def failed_parts(numbers: dict[str, Any]) -> list[str]:
    return [part.name for part in tables.verdict(numbers).subclaims if not part.holds]


def test_verdict() -> None:
    assert tables.verdict(make_numbers()).kind == "holds"
    assert failed_parts(make_numbers(trees=0.95)) == ["trees"]
    assert failed_parts(make_numbers(attention=0.95)) == ["attention"]
    assert failed_parts(make_numbers(change=0.05)) == ["order", "order-attention"]
    assert tables.verdict(make_numbers(linear=0.88)).kind == "fails"


def test_labels_depend_on_the_relevant_columns_only() -> None:
    rows, labels = tables.sample_rows(20000, 3, torch.Generator().manual_seed(0))
    assert rows.shape == (20000, 9) and labels.float().mean().item() == pytest.approx(0.5, abs=0.02)
    sign = 2.0 * labels - 1
    linear, first, second, band, left, right, *irrelevant = rows.T
    assert (linear * sign).mean() > 0.3
    assert (first * sign).mean().abs() < 0.03 and ((first * second).sign() * sign).mean() > 0.2
    assert ((band.abs() > 0.6745) * sign).mean() > 0.1
    assert (((left > -0.5449) & (right > -0.5449)) * sign).mean() > 0.1
    assert all((column * sign).mean().abs() < 0.03 for column in irrelevant)


def test_permuting_columns_with_their_weights_changes_nothing() -> None:
    torch.manual_seed(0)
    model, rows, order = tables.ColumnAttention(5), torch.randn(3, 5), torch.tensor([3, 0, 4, 1, 2])
    given = model(rows)
    model.scale.data, model.shift.data = model.scale.data[order], model.shift.data[order]
    assert torch.allclose(model(rows[:, order]), given, atol=1e-6)
    assert not torch.allclose(model(rows), given, atol=1e-3)


def test_a_linear_model_learns_a_linear_label() -> None:
    torch.manual_seed(0)
    rows = torch.randn(500, 4)
    labels = (rows[:, 1] > 0).long()
    assert tables.run_network("linear", (rows, labels), (rows, labels), {"steps": 600}, ignore_progress) > 0.95
    assert tables.run_trees("trees", (rows, labels), (rows, labels), {"trees": 5}, ignore_progress) > 0.95
