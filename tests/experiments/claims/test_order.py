"""The claim order: its verdict, its data and its models."""

import math
from typing import Any

import torch

from regard.experiments.claims import order
from regard.experiments.toolkit.metrics import summarize


def make_numbers(**changed: float) -> dict[str, Any]:
    right = dict.fromkeys(order.SCHEMES, 0.99) | {"none": 0.5} | changed
    return {"shuffled": {"none": 1e-15}, "accuracy": {scheme: summarize([value]) for scheme, value in right.items()}}


def test_verdict() -> None:
    assert order.verdict(make_numbers()).kind == "holds"
    mirrored = order.verdict(make_numbers(ALiBi=0.5))
    assert mirrored.kind == "limited" and "mirror" in mirrored.why.en and "镜像" in mirrored.why.zh
    assert order.verdict(make_numbers(none=0.9)).kind == "fails"


def test_positions_break_permutation_equivariance() -> None:
    assert order.permutation_error("none", 0) < 1e-12
    for scheme in ("sinusoidal", "learned", "rotary", "ALiBi", "none, causal"):
        assert order.permutation_error(scheme, 0) > 1e-6, scheme


def test_alibi_is_symmetric_under_reversal() -> None:
    torch.manual_seed(0)
    words = torch.randint(20, (4, 3))
    for scheme, least, most in (("ALiBi", 0.0, 1e-12), ("ALiBi, causal", 1e-3, math.inf), ("rotary", 1e-3, math.inf)):
        model = order.SentenceModel(scheme).double().eval()
        far = (model(words) - model(words.flip(1))).abs().max().item()
        assert least <= far <= most, scheme


def test_train_and_test_pairs_are_disjoint() -> None:
    known, unseen = order.split_pairs(torch.Generator().manual_seed(0))
    pairs = [{tuple(pair) for pair in half.tolist()} for half in (known, unseen)]
    assert not pairs[0] & pairs[1]
    assert len(pairs[0] | pairs[1]) == 20 * 19
    assert all((b, a) in pairs[1] for a, b in pairs[1])
