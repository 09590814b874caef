"""DeBERTa-v3 equals transformers'."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from regard import BadInput, Unsupported
from regard.models.checkpoint.checkpoint import load
from regard.models.families.deberta_v3 import deberta_v3

from ..checkpoint_equality import assert_close, assert_same, assert_writes_back, loaded, ragged, random_weights

transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 41, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 29,
    "max_position_embeddings": 40, "relative_attention": True, "position_buckets": 8, "norm_rel_ebd": "layer_norm",
    "share_att_key": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False,
}  # fmt: skip


def theirs(kind: str = "DebertaV2Model", **more):
    return random_weights(getattr(transformers, kind)(transformers.DebertaV2Config(**{**SIZES, **more})))


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"position_buckets": -1, "max_relative_positions": 6, "norm_rel_ebd": "none"},
        {"pos_att_type": "c2p", "position_biased_input": True, "type_vocab_size": 3, "hidden_act": "relu"},
        {"pos_att_type": ["p2c"], "max_relative_positions": 13, "layer_norm_eps": 1e-3},
    ],
)
def test_encoder(tmp_path: Path, more: dict) -> None:
    """Texts beyond the exact buckets and, in the second, beyond all distances."""
    model = theirs(**more)
    ours, batch = loaded(model, tmp_path), ragged([31, 5, 18], 41)
    inputs, given = {"input_ids": batch["tokens"], "attention_mask": batch["mask"]}, {"tokens": batch["tokens"]}
    if "type_vocab_size" in more:
        inputs["token_type_ids"] = given["segments"] = batch["tokens"] % 3
    a, b = ours(**given, lengths=batch["lengths"]), model(**inputs)
    assert_same(ours, model, a.hidden, b.last_hidden_state, batch["lengths"])
    assert_writes_back(ours, model, tmp_path, **inputs)


@pytest.mark.parametrize(
    "kind, more",
    [
        ("MaskedLM", {}),
        ("MaskedLM", {"tie_word_embeddings": False}),
        ("SequenceClassification", {"pooler_hidden_act": "tanh", "num_labels": 5}),
        ("TokenClassification", {"num_labels": 5}),
        ("QuestionAnswering", {}),
    ],
)
def test_heads(tmp_path: Path, kind: str, more: dict) -> None:
    model = theirs(f"DebertaV2For{kind}", **more)
    ours, batch = loaded(model, tmp_path), ragged([13, 5, 9], 41)
    inputs = {"input_ids": batch["tokens"], "attention_mask": batch["mask"]}
    a, b = ours(tokens=batch["tokens"], lengths=batch["lengths"]), model(**inputs)
    wanted = torch.stack([b.start_logits, b.end_logits], -1) if kind == "QuestionAnswering" else b.logits
    assert_same(ours, model, a.logits, wanted, None if kind == "SequenceClassification" else batch["lengths"])
    if "tie_word_embeddings" not in more:  # else theirs has one more bias, which it does not read
        assert_writes_back(ours, model, tmp_path, **inputs)


def test_published_names_of_the_head(tmp_path: Path) -> None:
    """Microsoft's folders name the head `lm_predictions`, and hold that of their discriminator too."""
    from safetensors.torch import load_file, save_file

    model = theirs("DebertaV2ForMaskedLM", legacy=False)
    model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    save_file({**load_file(path), "mask_predictions.dense.weight": torch.zeros(24, 24)}, path)
    ours, batch = load(tmp_path), ragged([13, 5, 9], 41)
    b = model(input_ids=batch["tokens"], attention_mask=batch["mask"])
    assert_same(ours, model, ours(tokens=batch["tokens"], lengths=batch["lengths"]).logits, b.logits, batch["lengths"])


def test_loss(tmp_path: Path) -> None:
    model, labels = theirs("DebertaV2ForSequenceClassification", num_labels=5), torch.tensor([0, 4, 2])
    ours, batch = loaded(model, tmp_path), ragged([13, 5, 9], 41)
    wanted = model(input_ids=batch["tokens"], attention_mask=batch["mask"], labels=labels).loss
    actual = ours(tokens=batch["tokens"], lengths=batch["lengths"], labels=labels).loss
    torch.testing.assert_close(actual, wanted, rtol=1e-5, atol=1e-5)


def test_published_sizes() -> None:
    with torch.device("meta"):
        models = deberta_v3(), deberta_v3(layers=6), deberta_v3(layers=24, dim=1024, heads=16, hidden=4096)
        counts = [sum(p.numel() for p in model.build().parameters()) for model in models]
    assert counts == [183_831_552, 141_304_320, 434_012_160]


@pytest.mark.parametrize(
    "changes, why",
    [
        ({"relative_attention": False}, "no relative attention"),
        ({"share_att_key": False}, "projections of its own for distances"),
        ({"conv_kernel_size": 3}, "a convolution"),
        ({"embedding_size": 12}, "embedding_size 12"),
    ],
)
def test_refuses_by_name(tmp_path: Path, changes: dict, why: str) -> None:
    theirs(**changes).save_pretrained(tmp_path)
    with pytest.raises(Unsupported, match=f"This DeBERTa has .*{why}.*Use a DeBERTa-v3"):
        load(tmp_path)


def test_what_cannot_be_written(tmp_path: Path) -> None:
    from dataclasses import replace

    config = deberta_v3(layers=1, dim=8, heads=2, hidden=4, vocabulary=11)
    plain = replace(config, stack=replace(config.stack, parts=replace(config.stack.parts, position=None)))
    with pytest.raises(BadInput, match="cannot be written as a DeBERTa"):
        plain.build().save(tmp_path, format="huggingface")


def test_saved_as_text(tmp_path: Path) -> None:
    ours = loaded(theirs(), tmp_path)
    ours.save(tmp_path / "ours")
    text = json.loads((tmp_path / "ours" / "regard.json").read_text())["model"]["stack"]["position"]
    assert text.startswith("LearnedDisentangled(") and load(tmp_path / "ours").config == ours.config


def test_compiles_whole() -> None:
    model = random_weights(deberta_v3(layers=1, dim=8, heads=2, hidden=4, vocabulary=41, buckets=8).build())
    whole, batch = torch.compile(model, fullgraph=True, backend="eager"), ragged([13, 5, 9], 41)
    given = {"tokens": batch["tokens"], "lengths": batch["lengths"]}
    assert_close(whole(**given).hidden, model(**given).hidden, "hidden", 1e-5)
