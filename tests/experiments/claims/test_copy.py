"""The claim copy: its verdict, its data and its models."""

from typing import Any

import torch

from regard.experiments.claims import copy
from regard.experiments.toolkit.metrics import summarize


def make_numbers(**changed: float) -> dict[str, Any]:
    last = {"attention": 1.0, "convolution": 0.13, "recurrent": 0.2, "fully connected": 1.0} | changed
    return {
        "lengths": [4, 32],
        "accuracy": {name: [summarize([1.0]), summarize([value])] for name, value in last.items()},
        "doubled": {name: summarize([0.99]) for name in last},
        "parameters": {name: [100, 800] for name in last},
        "chance": 0.125,
    }


def test_verdict() -> None:
    assert copy.verdict(make_numbers()).kind == "holds"
    assert copy.verdict(make_numbers(recurrent=0.9)).kind == "limited"
    assert copy.verdict(make_numbers(attention=0.9)).kind == "fails"


def test_blanks_ask_for_the_symbols_in_order() -> None:
    tokens, symbols = copy.sample_copies(3, 5, torch.Generator().manual_seed(0))
    assert tokens.shape == (3, 11) and torch.equal(tokens[:, :5], symbols)
    assert (tokens[:, 5] == copy.SEPARATOR).all() and (tokens[:, 6:] == copy.BLANK).all()


def test_only_the_fully_connected_network_depends_on_the_length() -> None:
    for name in copy.NAMES:
        sizes = [sum(p.numel() for p in copy.build_model(name, length).parameters()) for length in (3, 6)]
        assert (sizes[0] == sizes[1]) == (name != "fully connected")
        assert copy.build_model(name, 6)(torch.zeros(2, 13, dtype=torch.long)).shape == (2, 13, copy.SYMBOLS)
