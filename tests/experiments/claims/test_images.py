"""The claim images: its verdict, its data and its models."""

import pytest
import torch

from regard.experiments.claims import images
from regard.experiments.toolkit.metrics import summarize


@pytest.mark.parametrize(
    ("vit_many", "vit_few", "hybrid", "outcome"),
    [(0.7, 0.3, 0.95, "holds"), (0.94, 0.3, 0.95, "limited"), (0.94, 0.6, 0.95, "limited"), (0.7, 0.3, 0.5, "limited")],
)
def test_verdict(vit_many, vit_few, hybrid, outcome):
    accuracies = {
        "detail/few/ViT": vit_few, "detail/few/CNN": 0.6, "detail/few/hybrid": 0.5,
        "detail/many/ViT": vit_many, "detail/many/CNN": 0.95, "detail/many/hybrid": hybrid,
        "relation/few/ViT": 0.6, "relation/few/CNN": 0.5, "relation/few/hybrid": 0.6,
        "relation/many/ViT": 0.97, "relation/many/CNN": 0.6, "relation/many/hybrid": 0.97,
    }  # fmt: skip
    numbers = {
        "accuracy": {name: summarize([accuracy]) for name, accuracy in accuracies.items()},
        "distance": {"detail/ViT": [[3.0], [8.0]]},
        "evenly": 12.0,
    }
    verdict = images.verdict(numbers)
    held = {subclaim.name: subclaim.holds for subclaim in verdict.subclaims}
    assert verdict.kind == outcome and held["relation"]
    assert held["detail-many"] == (vit_many == 0.7) and held["hybrid"] == (hybrid == 0.95)


def test_positions_of_shapes_match_the_labels():
    torch.manual_seed(0)
    samples, labels = images.sample_relation(200)
    assert samples.shape == (200, 1, images.SIDE, images.SIDE)
    square = torch.ones(5, 5)
    square[1:4, 1:4] = 0
    cross = torch.zeros(5, 5)
    cross[2], cross[:, 2] = 1, 1
    columns = []
    for shape in (cross, square):
        best = torch.nn.functional.conv2d(samples, (shape - shape.mean())[None, None]).flatten(1).argmax(1)
        columns.append(best % (images.SIDE - 4))
    assert ((columns[0] > columns[1]) == (labels == 1)).float().mean() > 0.9
