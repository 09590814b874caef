"""DistilBERT equals transformers'."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from regard.models.families.distilbert import distilbert

from ..checkpoint_equality import assert_same, assert_writes_back, loaded, ragged, random_weights

transformers = pytest.importorskip("transformers")

SIZES = {"n_layers": 3, "dim": 33, "n_heads": 3, "hidden_dim": 29, "vocab_size": 41, "max_position_embeddings": 37}


def theirs(kind: str, **more):
    config = transformers.DistilBertConfig(**{**SIZES, **more})
    return random_weights(getattr(transformers, f"DistilBert{kind}")(config))


def exact(model, folder: Path):
    """Our model from theirs; both in double precision, where rounding hides no difference."""
    ours = loaded(model, folder).double()
    model.double()
    return ours


def inputs(lengths: list[int]) -> tuple[dict, dict]:
    """A ragged batch in our words and in theirs."""
    batch = ragged(lengths, 41)
    ours = {"tokens": batch["tokens"], "lengths": batch["lengths"]}
    return ours, {"input_ids": batch["tokens"], "attention_mask": batch["mask"]}


@pytest.mark.parametrize("more", [{}, {"n_layers": 1, "dim": 35, "n_heads": 5, "sinusoidal_pos_embds": True}])
def test_hidden(tmp_path: Path, more: dict) -> None:
    model = theirs("Model", **more)
    ours, (mine, yours) = exact(model, tmp_path), inputs([37, 5, 1])
    model.embeddings.position_embeddings.weight.requires_grad_()
    assert_same(ours, model, ours(**mine).hidden, model(**yours).last_hidden_state, mine["lengths"])
    assert_writes_back(ours.float(), model.float(), tmp_path, **yours)


@pytest.mark.parametrize("more", [{}, {"activation": "relu"}, {"tie_word_embeddings": False}])
def test_masked_words(tmp_path: Path, more: dict) -> None:
    model = theirs("ForMaskedLM", **more)
    ours, (mine, yours) = exact(model, tmp_path), inputs([11, 5, 8])
    assert_same(ours, model, ours(**mine).logits, model(**yours).logits, mine["lengths"])
    assert_writes_back(ours.float(), model.float(), tmp_path, **yours)


def test_classes_of_texts(tmp_path: Path) -> None:
    model = theirs("ForSequenceClassification", num_labels=5)
    ours, (mine, yours) = exact(model, tmp_path), inputs([7, 4, 13])
    assert_same(ours, model, ours(**mine).logits, model(**yours).logits)
    assert_writes_back(ours.float(), model.float(), tmp_path, **yours)


def test_classes_of_tokens(tmp_path: Path) -> None:
    model = theirs("ForTokenClassification", num_labels=7)
    ours, (mine, yours) = exact(model, tmp_path), inputs([7, 4, 13])
    assert_same(ours, model, ours(**mine).logits, model(**yours).logits, mine["lengths"])
    assert_writes_back(ours.float(), model.float(), tmp_path, **yours)


def test_answers_to_questions(tmp_path: Path) -> None:
    model = theirs("ForQuestionAnswering")
    ours, (mine, yours) = exact(model, tmp_path), inputs([7, 13])
    a, b = ours(**mine), model(**yours)
    assert_same(ours, model, a.logits, torch.stack([b.start_logits, b.end_logits], -1), mine["lengths"])
    assert_writes_back(ours.float(), model.float(), tmp_path, **yours)


def test_published_size() -> None:
    with torch.device("meta"):
        assert sum(p.numel() for p in distilbert().build().parameters()) == 66_362_880
