"""Any region, stage by stage, against `look` and the reference: for every score, position and kind of mask."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import regard as rg
from regard.attention.backends import reference
from regard.attention.call import make_call
from regard.attention.look import bucket_index, bucket_sizes
from regard.lab.inspect.region import HeadScores, gather_by_distance
from regard.lab.server.jobs import Cancelled, Job

TOLERANCE = 1e-10


def draw(*size: int) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(sum(size)), dtype=torch.float64)


PAIRS = torch.randperm(8100, generator=torch.Generator().manual_seed(0))[:400]
GRAPH = rg.Edges(torch.stack([PAIRS // 90, PAIRS % 90]))
CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "alibi": {"mask": rg.Causal(), "position": rg.Alibi()},
    "bias": {"mask": rg.Causal() & rg.Window(100) | rg.Global(3), "position": rg.Bias(draw(4, 50), zero=20)},
    "shaw": {"mask": rg.Window(40, 3), "position": rg.Shaw(draw(4, 33, 16), zero=16)},
    "xl": {"mask": rg.Causal(), "position": rg.TransformerXL(draw(4, 60, 16), draw(4, 16), draw(4, 16), zero=16)},
    "rotary": {"position": rg.Rotary(), "score": rg.Dot(scale=0.7)},
    "cosine": {"score": rg.Cosine(torch.tensor([1.0, 5.0, 2.0, 9.0])), "position": rg.T5Bias(draw(4, 32))},
    "bilinear": {"score": rg.Bilinear(draw(4, 16, 16))},
    "additive": {"score": rg.Additive(draw(4, 16)), "mask": rg.Lengths(torch.tensor([77]))},
    "graph": {
        "score": rg.Additive(draw(4, 16), "leaky_relu"),
        "mask": rg.Edges(torch.randint(0, 90, (2, 400), generator=torch.Generator().manual_seed(0))),
    },
    "graph at places": {
        "mask": GRAPH,
        "position": rg.Alibi(),
        "bias": rg.PairBias(draw(4, 90, 90)),
        "edges": rg.EdgeFeatures(draw(4, 400), draw(400, 16), draw(4, 400, 16)),
        "places": rg.Places(torch.arange(90) ** 2 // 9),
        "sink": rg.Sink(draw(4)),
    },
    "additive edges": {
        "score": rg.Additive(draw(4, 16), "leaky_relu"),
        "mask": GRAPH,
        "edges": rg.EdgeFeatures(keys=draw(4, 400, 16)),
    },
    "capped": {"score": rg.Dot(cap=2.0), "mask": rg.Causal(), "position": rg.Shaw(draw(4, 33, 16), zero=16)},
    "sink": {"sink": rg.Sink(draw(4)), "mask": rg.Window(70), "bias": rg.PairBias(draw(1, 2101))},
    "disentangled": {"position": rg.Disentangled(draw(4, 32, 16), draw(4, 32, 16), max_distance=60)},
    "places": {
        "mask": rg.Causal() & rg.Window(60),
        "position": rg.Bias(draw(4, 50), zero=20),
        "places": rg.Places(torch.arange(2101) * 5 // 7),
    },
}


def sizes(name: str) -> tuple[Tensor, Tensor]:
    """More queries than a tile has rows and more keys than it has columns, where that is not slow."""
    if name.startswith("additive") or name.startswith("graph"):
        return draw(1, 4, 90, 16), draw(1, 2 if name == "additive" else 4, 90, 16)
    return draw(1, 4, 301, 16), draw(1, 4 if name == "bilinear" else 2, 2101, 16)


@pytest.mark.parametrize("name", CALLS)
def test_survey_and_regions_equal_look(name: str) -> None:
    (q, k), parts = sizes(name), CALLS[name]
    regions = HeadScores(make_call(q, k, k, **parts))
    view = rg.look(q, k, k, weights=True, map=(37, 41), **parts)
    queries, keys = q.shape[2], k.shape[2]
    head, down = 2, bucket_sizes(queries, 37, q.device)
    weights = view.weights[0, head]  # type: ignore[index]
    summary = regions.summarize(head, (37, 41), (0, queries), (0, keys), Job(), links=10, min_distance=3)
    close = lambda a, b: torch.testing.assert_close(a, b, atol=TOLERANCE, rtol=0)  # noqa: E731
    close(summary.map, view.map[0, head])  # type: ignore[index]
    close(summary.received, view.received[0, head])
    for curve in ("entropy", "distance"):
        means = torch.zeros(37, dtype=q.dtype).index_add_(
            0, bucket_index(queries, 37, q.device), getattr(view, curve)[0, head]
        )
        close(getattr(summary, curve), means / down)
    places = parts.get("places", rg.Places(torch.arange(keys))).keys
    far = (places[keys - queries :, None] - places).abs() >= 3
    close(summary.link_weights, (weights * far).flatten().topk(len(summary.link_weights)).values)
    i, j = summary.links.unbind(1)
    close(weights[i, j], summary.link_weights)
    close(regions.weights(head, (5, queries - 7), (3, keys - 2)), weights[5 : queries - 7, 3 : keys - 2])
    part = regions.summarize(head, (8, 8), (5, queries - 7), (3, keys - 2), Job(), links=0)
    close(part.received, weights[5 : queries - 7, 3 : keys - 2].sum(0))
    close(regions.output(head, torch.arange(queries)), reference.run(make_call(q, k, k, **parts))[0, head])


@pytest.mark.parametrize("name", CALLS)
def test_stages_add_up_to_the_reference(name: str) -> None:
    (q, k), parts = sizes(name), CALLS[name]
    call = make_call(q, k, k, **parts)
    regions, wanted = HeadScores(call), reference.scores(call)[0, 3]
    rows, keys = (11, 47), (13, 71)
    stages = regions.stages(3, rows, keys)
    torch.testing.assert_close(stages.score, wanted[slice(*rows), slice(*keys)], atol=TOLERANCE, rtol=0)
    scaled = call.score.apply_cap(stages.raw * regions.scale(3))
    torch.testing.assert_close(scaled, stages.scaled, atol=TOLERANCE, rtol=0)
    assert torch.equal(stages.allowed, wanted[slice(*rows), slice(*keys)] > -torch.inf)
    assert torch.equal(regions.allowed_counts(3), (wanted > -torch.inf).sum(-1))


def test_masked_cells_are_those_without_an_allowed_pair() -> None:
    x = draw(1, 1, 300, 8)
    summary = HeadScores(make_call(x, x, x, mask=rg.Causal() & rg.Window(50))).summarize(
        0, (30, 30), (0, 300), (0, 300), Job()
    )
    allowed = (rg.Causal() & rg.Window(50)).dense(300, 300).view(30, 10, 30, 10).any(3).any(1)
    assert torch.equal(summary.masked, ~allowed)


def test_some_queries_stand_for_the_others() -> None:
    x = draw(1, 1, 1000, 8)
    regions = HeadScores(make_call(x, x, x, mask=rg.Causal()))
    every = regions.summarize(0, (10, 10), (0, 1000), (0, 1000), Job())
    some = regions.summarize(0, (10, 10), (0, 1000), (0, 1000), Job(), max_queries=200)
    assert (every.visited, some.visited) == (1000, 200)
    torch.testing.assert_close(some.map.sum(-1), torch.ones(10, dtype=x.dtype))
    torch.testing.assert_close(some.map, every.map, atol=0.05, rtol=0)
    assert not torch.equal(some.map, every.map)


def test_rows_without_a_key_are_zero() -> None:
    x = draw(1, 1, 6, 4)
    regions = HeadScores(make_call(x, x, x, mask=rg.Lengths(torch.tensor([4]), torch.tensor([4]))))
    assert regions.weights(0, (4, 6), (0, 6)).abs().sum() == 0
    summary = regions.summarize(0, (6, 6), (0, 6), (0, 6), Job())
    assert torch.isfinite(summary.map).all() and torch.isfinite(summary.entropy).all()
    assert summary.map[4:].abs().sum() == 0


@pytest.mark.parametrize("places", [[7, 6, 5], [5, 6, 7], [2, 9, 4]])
def test_numbers_by_distance_whatever_the_order(places: list[int]) -> None:
    table, i, j = draw(9), torch.tensor(places), torch.arange(3, 8)
    wanted = table[(i[:, None] - j + 2).clamp(0, 8)]
    assert torch.equal(gather_by_distance(table, 2, i, (3, 8)), wanted)


def test_a_survey_that_nobody_wants_ends() -> None:
    x, job = draw(1, 1, 600, 4), Job()
    job.cancel()
    with pytest.raises(Cancelled):
        HeadScores(make_call(x, x, x)).summarize(0, (4, 4), (0, 600), (0, 600), job)
