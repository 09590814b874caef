"""The claim masked-training: its verdict, its data and its models."""

import random

import pytest
import torch

from regard.experiments.claims import masked_training
from regard.experiments.toolkit.tagger import build_tagger
from regard.nn import StackConfig


@pytest.mark.parametrize(
    ("difference", "ngram", "opened", "outcome"),
    [
        (1e-6, 2.0, 4.0, "holds"),
        (1e-6, 1.0, 4.0, "limited"),
        (1e-3, 2.0, 4.0, "fails"),
        (1e-6, 2.0, 1.6, "fails"),
    ],
)
def test_verdict(difference, ngram, opened, outcome, toy):
    numbers = toy(masked_training)
    numbers |= {"difference": difference, "ngrams": {"2": 3.0, "3": ngram}}
    numbers["kinds"]["masked"] |= {"trained": 1.5, "loss": 1.5, "right": 0.9}
    numbers["kinds"]["open"] |= {"trained": 0.01, "loss": opened, "right": 0.0}
    assert masked_training.verdict(numbers).kind == outcome


def test_grammar_accepts_its_sentences_and_rejects_others():
    draws = random.Random(0)
    assert all(masked_training.is_grammatical(masked_training.sample_sentence(draws)) for _ in range(200))
    assert masked_training.is_grammatical(masked_training.EXAMPLE)
    for text in (
        "<BOS> I likes you <EOS>",
        "<BOS> I like you because she sees me <EOS>",
        "<BOS> I like you",
        "<BOS> I you <EOS>",
        "<BOS> <EOS>",
    ):
        assert not masked_training.is_grammatical(text.split())


def test_masked_pass_equals_prefixes_and_unmasked_does_not():
    torch.manual_seed(0)
    draws = random.Random(0)
    test = [masked_training.sample_sentence(draws) for _ in range(6)]
    gaps = {}
    for mask in ("Causal()", None):
        stack = StackConfig(16, 2, 4, mask=mask)
        count = len(masked_training.WORDS)
        model = build_tagger(stack, count, count, positions=masked_training.MAX_WORDS).eval()
        gap = masked_training.pass_losses(model, test) - masked_training.prefix_losses(model, test)
        gaps[mask] = gap.abs().max().item()
    assert gaps["Causal()"] < 1e-5 < 1e-3 < gaps[None]
