"""The claim layers: distances, depths of peaks and the verdict."""

from typing import Any

import pytest
import torch

from regard.experiments.claims import layers


def make_numbers(rises: bool = True, low: int = 0, high: int = 2) -> dict[str, Any]:
    distance = [[1.0, 1.2], [2.0, 2.2], [3.0, 3.2]]
    curves = {name: [0.9 if n == peak else 0.5 for n in range(3)] for name, peak in (("low", low), ("high", high))}
    rows = {"distance": distance if rises else distance[::-1], "uniform": 4.0, **curves}
    return {"text": rows | {"special": [2.0, 3.0, 4.0]}, "image": rows, "named": 0.5}


def failed_parts(numbers: dict[str, Any]) -> list[str]:
    return [part.name for part in layers.verdict(numbers).subclaims if not part.holds]


def test_verdict() -> None:
    assert layers.verdict(make_numbers()).kind == "holds"
    assert layers.verdict(make_numbers(low=2)).kind == "limited"
    assert failed_parts(make_numbers(low=2)) == ["text-low", "image-low"]
    assert failed_parts(make_numbers(high=0)) == ["text-high", "image-high"]
    falls = make_numbers(rises=False)
    assert layers.verdict(falls).kind == "fails"
    assert failed_parts(falls) == ["text-distance", "text-depth", "image-distance", "image-depth"]


def test_heads_that_differ_more_than_layers() -> None:
    numbers = make_numbers()
    numbers["image"] = numbers["image"] | {"distance": [[1.0, 9.0], [2.0, 10.0], [3.0, 11.0]]}
    assert "heads" in failed_parts(numbers)
    assert layers.compare_deviations([[1.0, 1.0], [2.0, 2.0]]) > 1e6


def test_mean_distance() -> None:
    distances = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    assert layers.mean_distance(torch.eye(2), distances).item() == 0
    assert layers.mean_distance(torch.tensor([[0.1, 0.3], [0.3, 0.1]]), distances).item() == pytest.approx(0.75)


def test_correlation_with_depth() -> None:
    assert layers.correlate_depth([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]) == pytest.approx(1)
    assert layers.correlate_depth([[3.0, 3.0], [1.0, 1.0]]) == pytest.approx(-1)


def test_distances_of_the_emoji_model_are_pixels_of_the_picture() -> None:
    model, normalize = layers.load("emoji").eval(), layers.read_normalization()
    examples = layers.read_examples()
    assert examples.shape == (18, 3, 32, 32) and examples.min() >= 0 and examples.max() <= 1
    measured = layers.image_distance(model, normalize(examples[:2]))
    assert [len(row) for row in measured["distance"]] == [4, 4, 4]
    assert 16 < measured["uniform"] < 17.5  # 32 pixels wide: about 0.52 of the side
    assert all(0 < value < 32 for row in measured["distance"] for value in row)
