"""The claim positions: its verdict, its data and its models."""

from typing import Any

import torch

from regard.experiments.claims import positions
from regard.experiments.toolkit.metrics import summarize


def make_numbers(text: float, texture: float, relation: float) -> dict[str, Any]:
    rows = {"generation": (text, text), "detail": (texture, 0.97), "relation": (relation, 0.5)}
    return {
        "accuracy": {
            task: {"with": summarize([0.98]), "without": summarize([without]), "shuffled": summarize([shuffled])}
            for task, (without, shuffled) in rows.items()
        }
    }


def test_verdict() -> None:
    assert positions.verdict(make_numbers(0.6, 0.97, 0.96)).kind == "holds"
    needed = positions.verdict(make_numbers(0.6, 0.97, 0.5))
    assert needed.kind == "limited" and [part.name for part in needed.subclaims if not part.holds] == ["relation"]
    assert positions.verdict(make_numbers(0.95, 0.97, 0.96)).kind == "fails"


def test_shuffled_patches_are_the_same_patches() -> None:
    torch.manual_seed(0)
    images = torch.arange(2 * 24 * 24.0).reshape(2, 1, 24, 24)
    shuffled = positions.shuffle_patches(images)
    assert not torch.equal(images, shuffled)

    def corners(batch: torch.Tensor) -> list[float]:
        return sorted(batch[0, 0, ::4, ::4].flatten().tolist())

    assert corners(images) == corners(shuffled) and torch.equal(images.sum((2, 3)), shuffled.sum((2, 3)))


def test_without_positions_the_order_of_patches_does_not_matter() -> None:
    torch.manual_seed(0)
    model = positions.PatchTransformer(torch.nn.Conv2d(1, positions.DIM, 4, 4), 2).eval()
    with torch.no_grad():
        model.positions.zero_()
        images = torch.randn(3, 1, 24, 24)
        assert torch.allclose(model(images), model(positions.shuffle_patches(images)), atol=1e-5)
