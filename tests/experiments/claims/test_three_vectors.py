"""The claim three-vectors: its verdict, its data and its models."""

from typing import Any

import torch

from regard.experiments.claims import three_vectors
from regard.experiments.toolkit.metrics import summarize


def make_numbers(**changed: float) -> dict[str, Any]:
    values = {"all": 1.0, "q = k": 0.4, "k = v": 0.6, "no v": 0.7} | changed
    row = {variant: summarize([value]) for variant, value in values.items()}
    return {"dims": {"wide": 32, "narrow": 8}, "accuracy": {"wide": row, "narrow": row}, "chance": 0.125}


def test_verdict() -> None:
    assert three_vectors.verdict(make_numbers()).kind == "holds"
    limited = three_vectors.verdict(make_numbers(**{"k = v": 0.97, "no v": 0.99}))
    assert [part.name for part in limited.subclaims if part.holds] == ["all-three", "same-query-key"]
    assert limited.kind == "limited" and three_vectors.verdict(make_numbers(all=0.9)).kind == "fails"


def test_no_two_tokens_point_at_each_other() -> None:
    x, targets = three_vectors.sample_pointers(6, 5, torch.Generator().manual_seed(0))
    pointers, contents = x[..., 5:10].argmax(-1), x[..., 10:].argmax(-1)
    assert torch.equal(contents.gather(1, pointers), targets)
    back = pointers.gather(1, pointers)
    assert (back != torch.arange(5)).all() and (pointers != torch.arange(5)).all()


def test_equal_projections_make_the_scores_symmetric() -> None:
    model = three_vectors.Lookup("q = k", 5, 8)
    x, _ = three_vectors.sample_pointers(1, 5, torch.Generator().manual_seed(0))
    k = model.k(model.embed(x))
    assert torch.allclose(k @ k.mT, (k @ k.mT).mT)
    for variant in three_vectors.VARIANTS:
        assert three_vectors.Lookup(variant, 5, 8)(x).shape == (1, 5, three_vectors.CONTENTS)
