"""GPT-2 equals transformers'."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from regard.models import heads
from regard.models.families.gpt2 import gpt2

from ..checkpoint_equality import assert_same, assert_writes_back, loaded, ragged, random_weights

transformers = pytest.importorskip("transformers")

SIZES = {
    "n_layer": 3,
    "n_head": 3,
    "n_embd": 33,
    "vocab_size": 41,
    "n_positions": 37,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


def theirs(kind: str = "GPT2LMHeadModel", **more):
    return random_weights(getattr(transformers, kind)(transformers.GPT2Config(**SIZES, **more)))


@pytest.mark.parametrize("more", [{}, {"n_inner": 29}, {"activation_function": "relu"}, {"tie_word_embeddings": False}])
def test_language_model(tmp_path: Path, more: dict) -> None:
    model = theirs(**more)
    ours, batch = loaded(model, tmp_path), ragged([11, 5, 8], 41)
    labels = batch["tokens"].masked_fill(batch["mask"] == 0, -100)
    a = ours(tokens=batch["tokens"], lengths=batch["lengths"], labels=labels)
    b = model(input_ids=batch["tokens"], attention_mask=batch["mask"], labels=labels)
    torch.testing.assert_close(a.loss, b.loss, rtol=1e-5, atol=1e-5)
    assert_same(ours, model, a.logits, b.logits, batch["lengths"])
    assert_writes_back(ours, model, tmp_path, input_ids=batch["tokens"], attention_mask=batch["mask"])


def test_bare_stack(tmp_path: Path) -> None:
    model = theirs("GPT2Model")
    ours, batch = loaded(model, tmp_path), ragged([7], 41)
    assert ours.head is None
    assert_same(ours, model, ours(tokens=batch["tokens"]).hidden, model(batch["tokens"]).last_hidden_state)
    assert_writes_back(ours, model, tmp_path, input_ids=batch["tokens"])


def test_classes(tmp_path: Path) -> None:
    model = theirs("GPT2ForSequenceClassification", num_labels=5, pad_token_id=0)
    ours, batch = loaded(model, tmp_path), ragged([7, 4], 41)
    tokens = batch["tokens"].masked_fill(batch["mask"] == 0, 0)
    a = ours(tokens=tokens, lengths=batch["lengths"])
    assert_same(ours, model, a.logits, model(tokens, attention_mask=batch["mask"]).logits)


def test_published_size() -> None:
    from regard.models.families.gpt2 import gpt2

    with torch.device("meta"):
        assert sum(p.numel() for p in gpt2().build().parameters()) == 124_439_808


def test_a_vocabulary_that_is_rounded_up_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where products over many tokens want a multiple of eight words."""
    torch.manual_seed(0)
    model = gpt2(layers=1, dim=8, heads=2, vocabulary=21, positions=12, dropout=0.0).build()
    tokens = torch.randint(21, (3, 12))

    def ask() -> list[torch.Tensor]:
        output = model(tokens=tokens, labels=tokens)
        assert output.logits.shape == (3, 12, 21)
        return [output.loss, output.logits, *torch.autograd.grad(output.loss, list(model.parameters()))]

    wanted = ask()
    monkeypatch.setattr(heads, "vocabulary_padding", lambda x, words: -words % 8)
    for got, want in zip(ask(), wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
