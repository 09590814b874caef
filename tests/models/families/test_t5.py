"""T5 equals transformers'."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from regard.errors import BadInput, Unsupported
from regard.models.checkpoint.checkpoint import load
from regard.models.families.t5 import t5

from ..checkpoint_equality import assert_close, assert_same, assert_writes_back, loaded, ragged, random_weights
from ..encoder_decoder import TARGETS, assert_cache_equals_no_cache, assert_padding_never_matters, batches

transformers = pytest.importorskip("transformers")

SIZES = {
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 3,
    "d_model": 23,
    "d_kv": 7,
    "d_ff": 29,
    "vocab_size": 41,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 11,
    "decoder_start_token_id": 0,
}


def theirs(kind: str = "T5ForConditionalGeneration", **more):
    model = random_weights(getattr(transformers, kind)(transformers.T5Config(**{**SIZES, **more})))
    if more.get("tie_word_embeddings") is False:
        model.lm_head.weight = nn.Parameter(torch.randn(41, 23) * 0.3)
    return model


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"feed_forward_proj": "gated-gelu"},
        {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        {"feed_forward_proj": "gated-silu", "num_decoder_layers": 1, "d_kv": 5},
        {"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128, "layer_norm_epsilon": 1e-3},
    ],
)
def test_translation(tmp_path: Path, more: dict) -> None:
    model = theirs(**more)
    ours, (source, labels) = loaded(model, tmp_path), batches(41)
    assert ours.head.config.tied == more.get("tie_word_embeddings", True)
    a = ours(tokens=source["tokens"], lengths=source["lengths"], labels=labels)
    inputs = {"input_ids": source["tokens"], "attention_mask": source["mask"], "labels": labels}
    b = model(**inputs)
    torch.testing.assert_close(a.loss, b.loss, rtol=1e-5, atol=1e-5)
    assert_same(ours, model, a.logits, b.logits, torch.tensor(TARGETS))
    assert_writes_back(ours, model, tmp_path, **inputs)


def test_gap_in_labels(tmp_path: Path) -> None:
    """A place that does not count, in the middle, is read by the decoder as the padding token."""
    model = theirs()
    ours, (source, labels) = loaded(model, tmp_path), batches(41)
    labels[0, 2] = -100
    a = ours(tokens=source["tokens"], labels=labels)
    b = model(input_ids=source["tokens"], labels=labels)
    torch.testing.assert_close(a.loss, b.loss, rtol=1e-5, atol=1e-5)
    assert_close(a.logits, b.logits, "logits")


def test_target_padding_and_loss_of_given_targets(tmp_path: Path) -> None:
    model = theirs()
    ours, (source, labels) = loaded(model, tmp_path), batches(41)
    targets = ragged(TARGETS, 41, seed=9)
    lengths = targets["lengths"]
    a = ours(tokens=source["tokens"], targets=targets["tokens"], target_lengths=lengths, labels=labels)
    given = {"decoder_input_ids": targets["tokens"], "decoder_attention_mask": targets["mask"]}
    b = model(input_ids=source["tokens"], **given, labels=labels)
    torch.testing.assert_close(a.loss, b.loss, rtol=1e-5, atol=1e-5)
    assert_same(ours, model, a.logits, b.logits, lengths)


def test_bare_pair(tmp_path: Path) -> None:
    model = theirs("T5Model")
    ours, (source, labels) = loaded(model, tmp_path), batches(41)
    assert ours.head is None
    targets = labels.clamp(min=0)
    inputs = {"input_ids": source["tokens"], "attention_mask": source["mask"], "decoder_input_ids": targets}
    a = ours(tokens=source["tokens"], lengths=source["lengths"], targets=targets)
    assert_same(ours, model, a.hidden, model(**inputs).last_hidden_state)
    assert_writes_back(ours, model, tmp_path, **inputs)
    with pytest.raises(BadInput, match="no head"):
        ours(tokens=source["tokens"], labels=targets)


@pytest.mark.parametrize("feed_forward", ["relu", "gated-gelu"])
def test_encoder_alone(tmp_path: Path, feed_forward: str) -> None:
    model = theirs("T5EncoderModel", feed_forward_proj=feed_forward)
    ours, source = loaded(model, tmp_path), ragged([11, 5, 8], 41)
    inputs = {"input_ids": source["tokens"], "attention_mask": source["mask"]}
    a = ours(tokens=source["tokens"], lengths=source["lengths"])
    assert_same(ours, model, a.hidden, model(**inputs).last_hidden_state, source["lengths"])
    assert_writes_back(ours, model, tmp_path, **inputs)


def test_long_input(tmp_path: Path) -> None:
    model = theirs(relative_attention_num_buckets=32, relative_attention_max_distance=128)
    ours, source, target = loaded(model, tmp_path), ragged([301], 41), ragged([187], 41, seed=3)
    a = ours(tokens=source["tokens"], targets=target["tokens"])
    assert_same(ours, model, a.logits, model(source["tokens"], decoder_input_ids=target["tokens"]).logits)


def test_cache_and_padding(tmp_path: Path) -> None:
    ours, (source, labels) = loaded(theirs(feed_forward_proj="gated-gelu"), tmp_path), batches(41)
    targets = labels.clamp(min=0)
    assert_cache_equals_no_cache(ours, targets, tokens=source["tokens"], lengths=source["lengths"])
    assert_padding_never_matters(ours, targets, source)


def test_version_of_the_folder(tmp_path: Path) -> None:
    """Tied in an old folder that holds a copy of the matrix; untied in an old one that says so."""
    model = theirs(tie_word_embeddings=False)
    loaded(model, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["scale_decoder_outputs"]
    for tied in (True, False):
        (tmp_path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": tied}))
        head = load(tmp_path).config.head
        assert (head.tied, head.scale) == ((True, 23**-0.5) if tied else (False, 1.0))


def test_refusals(tmp_path: Path) -> None:
    ours, (source, labels) = loaded(theirs(), tmp_path), batches(41)
    with pytest.raises(BadInput, match="needs targets"):
        ours(tokens=source["tokens"])
    with pytest.raises(BadInput, match="targets has 2 rows, the source 3"):
        ours(tokens=source["tokens"], targets=labels[:2].clamp(min=0))
    theirs(feed_forward_proj="gated-tanh").save_pretrained(tmp_path / "tanh")
    with pytest.raises(Unsupported, match=r"'gated-tanh'.*gated-gelu"):
        load(tmp_path / "tanh")


def test_published_size() -> None:
    with torch.device("meta"):
        assert sum(p.numel() for p in t5().build().parameters()) == 60_506_624
