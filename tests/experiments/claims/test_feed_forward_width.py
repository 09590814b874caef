"""The claim feed-forward-width: its verdict."""

from typing import Any

from regard.experiments.claims import feed_forward_width
from regard.experiments.toolkit.metrics import summarize


def make_numbers(one: float, four: float, sixteen: float, weights: int = 2000) -> dict[str, Any]:
    ratios = [0.25, 0.5, 1, 2, 4, 8, 16]
    stored = [0.1, 0.2, one, four, four, four, sixteen]
    return {
        "ratios": ratios,
        "stored": [summarize([value]) for value in stored],
        "feed_forward": [weights] * 7,
        "attention": 1000,
        "chance": 0.06,
    }


def test_verdict() -> None:
    assert feed_forward_width.verdict(make_numbers(0.5, 0.97, 1.0)).kind == "holds"
    small = feed_forward_width.verdict(make_numbers(0.5, 0.8, 1.0))
    assert [part.name for part in small.subclaims if not part.holds] == ["enough", "diminishing"]
    assert feed_forward_width.verdict(make_numbers(0.8, 0.8, 1.0, weights=10)).kind == "fails"
