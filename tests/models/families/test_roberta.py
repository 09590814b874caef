"""RoBERTa and its kin equal transformers'."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from regard.errors import BadInput
from regard.models.families.roberta import roberta

from ..checkpoint_equality import assert_close, assert_same, assert_writes_back, loaded, ragged, random_weights

transformers = pytest.importorskip("transformers")

SIZES = {
    "num_hidden_layers": 2, "hidden_size": 33, "num_attention_heads": 3, "intermediate_size": 29, "vocab_size": 41,
    "max_position_embeddings": 37, "type_vocab_size": 1, "bos_token_id": 0, "eos_token_id": 2,
}  # fmt: skip


def theirs(kind: str, name: str = "Roberta", **more):
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **more})
    return random_weights(getattr(transformers, name + kind)(config))


def exact(model, folder: Path):
    """Our model from theirs; both in double precision, where rounding hides no difference."""
    ours = loaded(model, folder).double()
    model.double()
    return ours


def inputs(lengths: list[int], padding: int = 1) -> tuple[dict, dict]:
    """A ragged batch in our words and in theirs; theirs tell padding by its token."""
    batch = ragged(lengths, 41, low=padding + 1)
    tokens = batch["tokens"].masked_fill(batch["mask"] == 0, padding)
    return {"tokens": tokens, "lengths": batch["lengths"]}, {"input_ids": tokens, "attention_mask": batch["mask"]}


@pytest.mark.parametrize("padding", [1, 0, 5])
def test_hidden_and_pooled(tmp_path: Path, padding: int) -> None:
    model = theirs("Model", pad_token_id=padding)
    longest = 37 - padding - 1
    ours, (mine, yours) = exact(model, tmp_path), inputs([longest, 5, 1, 18], padding)
    a, b = ours(**mine), model(**yours)
    assert_same(ours, model, torch.cat([a.pooled[:, None], a.hidden], 1),
                torch.cat([b.pooler_output[:, None], b.last_hidden_state], 1), mine["lengths"] + 1)  # fmt: skip
    assert_writes_back(ours.float(), model.float(), tmp_path, **yours)
    with pytest.raises(BadInput, match=f"has {longest} position embeddings"):
        ours(tokens=torch.full((1, longest + 1), 9))


@pytest.mark.parametrize("more", [{}, {"hidden_act": "relu", "type_vocab_size": 2}])
def test_masked_words(tmp_path: Path, more: dict) -> None:
    model = theirs("ForMaskedLM", **more)
    ours, (mine, yours) = exact(model, tmp_path), inputs([11, 5, 8])
    labels = mine["tokens"].masked_fill(yours["attention_mask"] == 0, -100)
    a, b = ours(**mine, labels=labels), model(**yours, labels=labels)
    torch.testing.assert_close(a.loss.double(), b.loss, rtol=1e-5, atol=1e-5)
    assert_same(ours, model, a.logits, b.logits, mine["lengths"])
    assert_writes_back(ours.float(), model.float(), tmp_path, **yours)


def test_untied_words(tmp_path: Path) -> None:
    model = theirs("ForMaskedLM", tie_word_embeddings=False)
    ours, (mine, yours) = exact(model, tmp_path), inputs([11, 5])
    assert_same(ours, model, ours(**mine).logits, model(**yours).logits, mine["lengths"])


@pytest.mark.parametrize("name", ["Roberta", "XLMRoberta", "Camembert"])
def test_classes_of_texts(tmp_path: Path, name: str) -> None:
    model = theirs("ForSequenceClassification", name, num_labels=5)
    ours, (mine, yours) = exact(model, tmp_path), inputs([7, 4, 13])
    assert_same(ours, model, ours(**mine).logits, model(**yours).logits)
    ours.float().save(tmp_path / "theirs", format="huggingface")
    again = transformers.RobertaForSequenceClassification.from_pretrained(tmp_path / "theirs").eval()
    assert torch.equal(again(**yours).logits, model.float()(**yours).logits)


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


def test_padding_never_matters(tmp_path: Path) -> None:
    ours, (mine, _) = exact(theirs("Model"), tmp_path), inputs([9, 4])
    alone = ours(tokens=mine["tokens"][1:, :4]).hidden
    assert_close(ours(**mine).hidden[1:, :4], alone, "a row alone", 1e-9)


def test_published_size() -> None:
    with torch.device("meta"):
        assert sum(p.numel() for p in roberta().build().parameters()) == 124_645_632
