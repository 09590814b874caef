"""The claim grey-ball: its verdict, its data and its models."""

from typing import Any

import torch

from regard.experiments.claims import grey_ball
from regard.experiments.toolkit.metrics import summarize


def make_numbers(**changed: float) -> dict[str, Any]:
    accuracies = {"attention": 0.99, "convolution": 0.5, "recurrent": 0.5, "fully connected": 0.1} | changed
    pointed = {f"{query}, darker or lighter": summarize([value]) for query, value in (("held", 0.99), ("learned", 0.5))}
    return {
        "balls": [10, 100],
        "found": {"rule": [summarize([1.0])]}
        | {name: [summarize([1.0]), summarize([at])] for name, at in accuracies.items()},
        "pointed": pointed,
    }


def test_verdict() -> None:
    assert grey_ball.verdict(make_numbers()).kind == "holds"
    mostly = grey_ball.verdict(make_numbers(attention=0.93, recurrent=1.0))
    assert mostly.kind == "limited"
    assert [part.name for part in mostly.subclaims if not part.holds] == ["any-size", "best"]
    also = grey_ball.verdict(make_numbers(convolution=0.995))
    assert (
        also.kind == "limited" and "also, without attention: convolution" in also.why.en and "还有：卷积" in also.why.zh
    )
    assert grey_ball.verdict(make_numbers(**{"fully connected": 0.97})).kind == "fails"
    without = grey_ball.verdict(make_numbers(attention=0.9, recurrent=0.97)).why.en
    assert "attention 90% (of 100 balls)" in without and "only, without attention: recurrent" in without
    useless = make_numbers()
    useless["pointed"]["learned, darker or lighter"] = summarize([0.98])
    assert grey_ball.verdict(useless).kind == "limited"


def test_odd_ball_is_the_darkest() -> None:
    colours, odd, white = grey_ball.sample_bags(500, 10, False, torch.Generator().manual_seed(0))
    assert (colours.mean(-1).argmin(1) == odd).float().mean() > 0.99
    assert white.shape == (500, 3)
    both = grey_ball.sample_bags(500, 10, True, torch.Generator().manual_seed(0))
    assert 0.4 < (both[0].mean(-1).argmin(1) == both[1]).float().mean() < 0.65


def test_fully_connected_uses_the_first_ten_balls() -> None:
    model = grey_ball.build_finders()["fully connected"]
    colours = torch.randn(2, 30, 3)
    assert torch.equal(model(colours)[:, :10], model(colours[:, :10]))
    assert (model(colours)[:, 10:] < 0).all()


def test_pointer_weights_sum_to_one() -> None:
    for query in grey_ball.QUERIES:
        weights = grey_ball.Pointer(query)(torch.randn(4, 7, 3), torch.randn(4, 3))
        assert torch.allclose(weights.sum(1), torch.ones(4))
