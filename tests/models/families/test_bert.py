"""BERT equals transformers'."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from regard.errors import Unsupported
from regard.models.families.bert import bert, read
from regard.models.heads import SpanHeadConfig

from ..checkpoint_equality import assert_close, assert_same, assert_writes_back, loaded, ragged, random_weights

transformers = pytest.importorskip("transformers")

SIZES = {
    "num_hidden_layers": 3, "hidden_size": 33, "num_attention_heads": 3, "intermediate_size": 29, "vocab_size": 41,
    "max_position_embeddings": 37, "type_vocab_size": 3,
}  # fmt: skip


def theirs(kind: str, **more):
    return random_weights(getattr(transformers, kind)(transformers.BertConfig(**SIZES, **more)))


def exact(model, folder: Path):
    """Our model from theirs; both in double precision, where rounding hides no difference."""
    ours = loaded(model, folder).double()
    model.double()
    return ours


def inputs(lengths: list[int]) -> tuple[dict, dict]:
    """A ragged batch with segments, in our words and in theirs."""
    batch = ragged(lengths, 41)
    segments = torch.arange(batch["tokens"].shape[1]).expand_as(batch["tokens"]) % 3
    ours = {"tokens": batch["tokens"], "lengths": batch["lengths"], "segments": segments}
    return ours, {"input_ids": batch["tokens"], "attention_mask": batch["mask"], "token_type_ids": segments}


def test_hidden_and_pooled(tmp_path: Path) -> None:
    model = theirs("BertModel")
    ours, (mine, yours) = exact(model, tmp_path), inputs([37, 5, 1, 18])
    a, b = ours(**mine), model(**yours)
    assert a.logits is None
    assert_close(a.pooled, b.pooler_output, "pooled")
    assert_same(ours, model, torch.cat([a.pooled[:, None], a.hidden], 1),
                torch.cat([b.pooler_output[:, None], b.last_hidden_state], 1), mine["lengths"] + 1)  # fmt: skip
    assert_writes_back(ours.float(), model.float(), tmp_path, **yours)


def test_without_pooler_and_segments_given(tmp_path: Path) -> None:
    model = random_weights(transformers.BertModel(transformers.BertConfig(**SIZES), add_pooling_layer=False))
    ours, tokens = exact(model, tmp_path), ragged([11], 41)["tokens"]
    assert ours.pooler is None
    assert_same(ours, model, ours(tokens=tokens).hidden, model(tokens).last_hidden_state)


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu", "silu", "swish", "gelu_pytorch_tanh"])
def test_masked_words(tmp_path: Path, activation: str) -> None:
    model = theirs("BertForMaskedLM", hidden_act=activation)
    ours, (mine, yours) = exact(model, tmp_path), inputs([11, 5, 8])
    labels = mine["tokens"].masked_fill(yours["attention_mask"] == 0, -100)
    a, b = ours(**mine, labels=labels), model(**yours, labels=labels)
    torch.testing.assert_close(a.loss.double(), b.loss, rtol=1e-5, atol=1e-5)
    assert_same(ours, model, a.logits, b.logits, mine["lengths"])
    if activation in ("gelu", "gelu_new", "relu", "silu"):
        assert_writes_back(ours.float(), model.float(), tmp_path, **yours)


def test_untied_words(tmp_path: Path) -> None:
    model = theirs("BertForMaskedLM", tie_word_embeddings=False)
    ours, (mine, yours) = exact(model, tmp_path), inputs([11, 5])
    assert_same(ours, model, ours(**mine).logits, model(**yours).logits, mine["lengths"])
    ours.float().save(tmp_path / "theirs", format="huggingface")
    again = type(model).from_pretrained(tmp_path / "theirs").eval()
    assert torch.equal(again(**yours).logits, model.float()(**yours).logits)


def test_pretraining(tmp_path: Path) -> None:
    model = theirs("BertForPreTraining")
    ours, (mine, yours) = exact(model, tmp_path), inputs([11, 5, 8])
    a, b = ours(**mine), model(**yours)
    assert_same(ours, model, a.logits, b.prediction_logits, mine["lengths"])
    assert_close(a.pooled, model.bert(**yours).pooler_output, "pooled")


def test_next_sentence_reads_as_the_bare_model(tmp_path: Path) -> None:
    model = theirs("BertForNextSentencePrediction")
    ours, (mine, yours) = exact(model, tmp_path), inputs([9, 4])
    assert ours.head is None
    assert_close(ours(**mine).pooled, model.bert(**yours).pooler_output, "pooled")


@pytest.mark.parametrize("classes", [1, 5])
def test_classes_of_texts(tmp_path: Path, classes: int) -> None:
    model = theirs("BertForSequenceClassification", num_labels=classes)
    ours, (mine, yours) = exact(model, tmp_path), inputs([7, 4, 13])
    labels = torch.tensor([0.5, -1.0, 2.0]) if classes == 1 else torch.tensor([4, 0, 2])
    a, b = ours(**mine, labels=labels), model(**yours, labels=labels)
    torch.testing.assert_close(a.loss.double(), b.loss, rtol=1e-5, atol=1e-5)
    assert_same(ours, model, a.logits, b.logits)
    assert_writes_back(ours.float(), model.float(), tmp_path, **yours)


def test_classes_of_tokens(tmp_path: Path) -> None:
    model = theirs("BertForTokenClassification", num_labels=7)
    ours, (mine, yours) = exact(model, tmp_path), inputs([7, 4, 13])
    labels = (mine["tokens"] % 7).masked_fill(yours["attention_mask"] == 0, -100)
    a, b = ours(**mine, labels=labels), model(**yours, labels=labels)
    torch.testing.assert_close(a.loss.double(), b.loss, rtol=1e-5, atol=1e-5)
    assert_same(ours, model, a.logits, b.logits, mine["lengths"])
    assert_writes_back(ours.float(), model.float(), tmp_path, **yours)


def test_answers_to_questions(tmp_path: Path) -> None:
    model = theirs("BertForQuestionAnswering")
    ours, (mine, yours) = exact(model, tmp_path), inputs([13, 13, 13])
    begin, end = torch.tensor([3, 0, 12]), torch.tensor([5, 1, 12])
    a = ours(**mine, labels=torch.stack([begin, end], 1))
    b = model(**yours, start_positions=begin, end_positions=end)
    torch.testing.assert_close(a.loss.double(), b.loss, rtol=1e-5, atol=1e-5)
    assert isinstance(ours.config.head, SpanHeadConfig)
    assert_same(ours, model, a.logits, torch.stack([b.start_logits, b.end_logits], -1))
    assert_writes_back(ours.float(), model.float(), tmp_path, **yours)


def test_padding_is_no_place_of_an_answer(tmp_path: Path) -> None:
    ours, (mine, _) = loaded(theirs("BertForQuestionAnswering"), tmp_path), inputs([13, 6])
    labels = torch.tensor([[3, 5], [0, 2]])
    together = ours(**mine, labels=labels).loss
    alone = [ours(tokens=mine["tokens"][n : n + 1, :size], segments=mine["segments"][n : n + 1, :size],
                  labels=labels[n : n + 1]).loss for n, size in enumerate((13, 6))]  # fmt: skip
    torch.testing.assert_close(together, sum(alone) / 2)


def test_what_padding_holds_never_matters(tmp_path: Path) -> None:
    ours, (mine, _) = loaded(theirs("BertModel"), tmp_path), inputs([9, 4])
    other = mine["tokens"].clone()
    other[1, 4:] = 7
    assert torch.equal(ours(**mine).hidden, ours(**{**mine, "tokens": other}).hidden)


def test_published_size() -> None:
    with torch.device("meta"):
        assert sum(p.numel() for p in bert().build().parameters()) == 109_482_240


def test_refusals() -> None:
    config = transformers.BertConfig(**SIZES).to_dict()
    with pytest.raises(Unsupported, match="decoder"):
        read({**config, "is_decoder": True}, {})
    with pytest.raises(Unsupported, match="mish"):
        read({**config, "hidden_act": "mish"}, {})
