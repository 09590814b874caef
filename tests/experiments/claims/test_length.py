"""The claim length: its verdict, its data and its models."""

import pytest
import torch

from regard.experiments.claims import length
from regard.experiments.toolkit.metrics import summarize
from regard.models.heads import IGNORED


@pytest.mark.parametrize(
    ("accuracies", "outcome"),
    [
        ([0.9, 0.9, 0.88, 0.85], "holds"),
        ([0.9, 0.85, 0.5, 0.3], "limited"),
        ([0.9, 0.6, 0.5, 0.3], "fails"),
        ([0.5, 0.5, 0.5, 0.5], "fails"),
    ],
)
def test_verdict(accuracies, outcome, toy):
    numbers = toy(length)
    numbers["accuracy"]["sinusoidal"] = [summarize([value]) for value in accuracies]
    assert length.verdict(numbers).kind == outcome


def test_texts_follow_the_markov_chain():
    chain = torch.zeros(length.SYMBOLS, length.SYMBOLS, length.SYMBOLS)
    a, b = torch.meshgrid(torch.arange(length.SYMBOLS), torch.arange(length.SYMBOLS), indexing="ij")
    chain[a, b, (a + 2 * b) % length.SYMBOLS] = 1.0
    text = length.sample_texts(chain, 3, 11, torch.Generator().manual_seed(0))
    assert (text[:, 2:] == (text[:, :-2] + 2 * text[:, 1:-1]) % length.SYMBOLS).all()
    labels = length.likeliest_labels(chain, text)["labels"]
    assert (labels[:, :5] == IGNORED).all()
    assert (labels[:, 5:-1] == text[:, 6:]).all()
