"""The claim paths: lengths of paths, slopes and the verdict."""

import math
from typing import Any

import pytest

from regard.experiments.claims import paths


@pytest.mark.parametrize("distance", [4, 7, 16])
def test_path_lengths(distance: int) -> None:
    assert paths.path_length("attention", distance) == 1
    assert paths.path_length("recurrent", distance) == distance + 1
    assert paths.path_length("convolution", distance) == distance
    assert paths.path_length("dilated", distance) == math.ceil(math.log2(distance + 1))


def make_numbers(attention_dim: float = 1.0) -> dict[str, Any]:
    sizes = [64, 128, 256, 512]
    return {
        "distances": [16, 32, 64],
        "path": {"attention": [1, 1, 1], "recurrent": [17, 33, 65], "convolution": [16, 32, 64], "dilated": [5, 6, 7]},
        "lengths": sizes,
        "dims": sizes,
        "dim": 64,
        "length": 64,
        "times": {
            "attention": {"length": [n**2 / 64 for n in sizes], "dim": [64 * (n / 64) ** attention_dim for n in sizes]},
            "recurrent": {"length": [n for n in sizes], "dim": [n**2 / 60 for n in sizes]},
        },
    }


def test_verdict() -> None:
    assert paths.verdict(make_numbers()).kind == "holds"
    steep = paths.verdict(make_numbers(attention_dim=1.9))
    assert "attention-dim" in [part.name for part in steep.subclaims if not part.holds] and steep.kind == "limited"
    grows = make_numbers()
    grows["path"]["attention"] = [1, 2, 4]
    assert paths.verdict(grows).kind == "fails"
