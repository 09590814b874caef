"""Marian equals transformers'."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from regard.errors import Unsupported
from regard.models.checkpoint.checkpoint import load
from regard.models.families.marian import marian

from ..checkpoint_equality import assert_close, assert_same, assert_writes_back, loaded, ragged, random_weights
from ..encoder_decoder import TARGETS, assert_cache_equals_no_cache, assert_padding_never_matters, batches

transformers = pytest.importorskip("transformers")

SIZES = {
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 7,
    "d_model": 21,
    "encoder_ffn_dim": 31,
    "decoder_ffn_dim": 19,
    "vocab_size": 41,
    "max_position_embeddings": 400,
    "activation_function": "swish",
    "scale_embedding": True,
    "pad_token_id": 40,
    "decoder_start_token_id": 40,
}


def theirs(kind: str = "MarianMTModel", **more):
    """With the logits' bias as a parameter, so that its gradient can be compared."""
    model = random_weights(getattr(transformers, kind)(transformers.MarianConfig(**{**SIZES, **more})))
    with torch.no_grad():
        for module in model.modules():
            if hasattr(module, "create_weight"):
                module.weight.copy_(module.create_weight())
    if kind == "MarianMTModel":
        bias = torch.randn_like(model.final_logits_bias)
        del model.final_logits_bias
        model.final_logits_bias = nn.Parameter(bias)
    return model


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"scale_embedding": False, "activation_function": "relu", "d_model": 42},
        {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 43},
        {"tie_word_embeddings": False, "share_encoder_decoder_embeddings": False},
        {"decoder_start_token_id": 2},
    ],
)
def test_translation(tmp_path: Path, more: dict) -> None:
    model = theirs(**more)
    ours, (source, labels) = loaded(model, tmp_path), batches(40)
    a = ours(tokens=source["tokens"], lengths=source["lengths"], labels=labels)
    inputs = {"input_ids": source["tokens"], "attention_mask": source["mask"], "labels": labels}
    b = model(**inputs)
    torch.testing.assert_close(a.loss, b.loss, rtol=1e-5, atol=1e-5)
    assert_same(ours, model, a.logits, b.logits, torch.tensor(TARGETS))
    assert_writes_back(ours, model, tmp_path, **inputs)


def test_gap_in_labels(tmp_path: Path) -> None:
    """A place that does not count, in the middle, is read as the padding token, not as the start token."""
    model = theirs(decoder_start_token_id=2)
    ours, (source, labels) = loaded(model, tmp_path), batches(40)
    labels[0, 2] = -100
    a = ours(tokens=source["tokens"], labels=labels)
    b = model(input_ids=source["tokens"], labels=labels)
    torch.testing.assert_close(a.loss, b.loss, rtol=1e-5, atol=1e-5)
    assert_close(a.logits, b.logits, "logits")


def test_target_padding(tmp_path: Path) -> None:
    model = theirs()
    ours, (source, _), target = loaded(model, tmp_path), batches(40), ragged(TARGETS, 40, seed=9)
    a = ours(tokens=source["tokens"], targets=target["tokens"], target_lengths=target["lengths"])
    b = model(source["tokens"], decoder_input_ids=target["tokens"], decoder_attention_mask=target["mask"])
    assert_same(ours, model, a.logits, b.logits, target["lengths"])


@pytest.mark.parametrize("share", [True, False])
def test_bare_pair(tmp_path: Path, share: bool) -> None:
    model = theirs("MarianModel", share_encoder_decoder_embeddings=share)
    ours, (source, labels) = loaded(model, tmp_path), batches(40)
    assert ours.head is None
    targets = labels.clamp(min=0)
    inputs = {"input_ids": source["tokens"], "attention_mask": source["mask"], "decoder_input_ids": targets}
    a = ours(tokens=source["tokens"], lengths=source["lengths"], targets=targets)
    assert_same(ours, model, a.hidden, model(**inputs).last_hidden_state)
    ours.save(tmp_path / "theirs", format="huggingface")
    again, actual = type(model).from_pretrained(tmp_path / "theirs", output_loading_info=True)
    assert actual["missing_keys"] == {"encoder.embed_positions.weight", "decoder.embed_positions.weight"}  # sinusoids
    assert torch.equal(again.eval()(**inputs).last_hidden_state, model(**inputs).last_hidden_state)


def test_long_input(tmp_path: Path) -> None:
    model = theirs()
    ours, source, target = loaded(model, tmp_path), ragged([301], 40), ragged([187], 40, seed=3)
    a = ours(tokens=source["tokens"], targets=target["tokens"])
    assert_same(ours, model, a.logits, model(source["tokens"], decoder_input_ids=target["tokens"]).logits)


def test_cache_and_padding(tmp_path: Path) -> None:
    ours, (source, labels) = loaded(theirs(), tmp_path), batches(40)
    targets = labels.clamp(min=0)
    assert_cache_equals_no_cache(ours, targets, tokens=source["tokens"], lengths=source["lengths"])
    assert_padding_never_matters(ours, targets, source)


def test_unknown_activation_is_refused(tmp_path: Path) -> None:
    theirs(activation_function="tanh").save_pretrained(tmp_path)
    with pytest.raises(Unsupported, match=r"'tanh'.*swish"):
        load(tmp_path)


def test_published_size() -> None:
    """opus-mt-en-de: transformers counts 74,410,496, of which 2 · 512 · 512 are sinusoids that it stores."""
    with torch.device("meta"):
        model = marian().build()
        assert sum(p.numel() for p in model.parameters()) == 74_410_496 - 2 * 512 * 512 + 58_101
