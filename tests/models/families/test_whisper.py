"""Whisper equals transformers'."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from regard.errors import BadInput, Unsupported
from regard.models.checkpoint.checkpoint import load
from regard.models.families.whisper import whisper

from ..checkpoint_equality import assert_close, assert_same, assert_writes_back, loaded, ragged, random_weights
from ..encoder_decoder import TARGETS, assert_cache_equals_no_cache, assert_padding_never_matters, batches

transformers = pytest.importorskip("transformers")

SIZES = {
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 11,
    "d_model": 22,
    "encoder_ffn_dim": 31,
    "decoder_ffn_dim": 19,
    "vocab_size": 41,
    "num_mel_bins": 13,
    "max_source_positions": 17,
    "max_target_positions": 23,
    "pad_token_id": 40,
    "bos_token_id": 1,
    "eos_token_id": 1,
    "decoder_start_token_id": 2,
}


def theirs(kind: str = "WhisperForConditionalGeneration", **more):
    return random_weights(getattr(transformers, kind)(transformers.WhisperConfig(**{**SIZES, **more})))


def sound(frames: int = 34) -> torch.Tensor:
    return torch.randn(3, frames, 13)


@pytest.mark.parametrize("more", [{}, {"activation_function": "relu"}, {"tie_word_embeddings": False, "d_model": 44}])
def test_transcription(tmp_path: Path, more: dict) -> None:
    model = theirs(**more)
    ours, frames, (_, labels) = loaded(model, tmp_path), sound(), batches(40)
    a = ours(sound=frames, labels=labels)
    inputs = {"input_features": frames.mT, "labels": labels}
    b = model(**inputs)
    torch.testing.assert_close(a.loss, b.loss, rtol=1e-5, atol=1e-5)
    assert_same(ours, model, a.logits, b.logits, torch.tensor(TARGETS))
    assert_writes_back(ours, model, tmp_path, **inputs)


def test_gap_in_labels(tmp_path: Path) -> None:
    """A place that does not count, in the middle, is read as the padding token, not as the start token."""
    model = theirs()
    ours, frames, (_, labels) = loaded(model, tmp_path), sound(), batches(40)
    labels[0, 2] = -100
    a, b = ours(sound=frames, labels=labels), model(input_features=frames.mT, labels=labels)
    torch.testing.assert_close(a.loss, b.loss, rtol=1e-5, atol=1e-5)
    assert_close(a.logits, b.logits, "logits")


def test_target_padding(tmp_path: Path) -> None:
    model = theirs()
    ours, frames, target = loaded(model, tmp_path), sound(), ragged(TARGETS, 40, seed=9)
    a = ours(sound=frames, targets=target["tokens"], target_lengths=target["lengths"])
    b = model(frames.mT, decoder_input_ids=target["tokens"], decoder_attention_mask=target["mask"])
    assert_same(ours, model, a.logits, b.logits, target["lengths"])


def test_bare_pair(tmp_path: Path) -> None:
    model = theirs("WhisperModel")
    ours, frames, (_, labels) = loaded(model, tmp_path), sound(), batches(40)
    assert ours.head is None
    targets = labels.clamp(min=0)
    inputs = {"input_features": frames.mT, "decoder_input_ids": targets}
    a = ours(sound=frames, targets=targets)
    assert_same(ours, model, a.hidden, model(**inputs).last_hidden_state)
    assert_writes_back(ours, model, tmp_path, **inputs)


def test_long_input(tmp_path: Path) -> None:
    model = theirs(max_source_positions=301, max_target_positions=97)
    ours, frames, target = loaded(model, tmp_path), torch.randn(1, 602, 13), ragged([97], 40)
    a = ours(sound=frames, targets=target["tokens"])
    assert_same(ours, model, a.logits, model(frames.mT, decoder_input_ids=target["tokens"]).logits)


def test_cache_and_padding(tmp_path: Path) -> None:
    """With odd numbers of frames too: the convolutions must not see what is beyond a row's end."""
    ours, (_, labels) = loaded(theirs(), tmp_path), batches(40)
    targets, source = labels.clamp(min=0), {"sound": sound(33), "lengths": torch.tensor([33, 12, 7])}
    assert_cache_equals_no_cache(ours, targets, **source)
    assert_padding_never_matters(ours, targets, source, "sound")


def test_positions_of_the_preset() -> None:
    """Where nothing is loaded, the stored positions are what transformers begins with."""
    sizes = {"layers": 1, "dim": 22, "heads": 2, "hidden": 31, "vocabulary": 41, "sound_positions": 17, "positions": 23}
    ours = whisper(**sizes, start=2, padding=40).build()
    fresh = transformers.WhisperModel(transformers.WhisperConfig(**SIZES))
    torch.testing.assert_close(ours.embed.places.table, fresh.encoder.embed_positions.weight)
    assert "embed.places.table" not in dict(ours.named_parameters())


def test_refusals(tmp_path: Path) -> None:
    ours, (_, labels) = loaded(theirs(), tmp_path), batches(40)
    with pytest.raises(BadInput, match="18 tokens; this model has 17 positions"):
        ours(sound=sound(35), labels=labels)
    with pytest.raises(BadInput, match=r"must be \[batch, frames, 13\]"):
        ours(sound=sound().mT, labels=labels)
    with pytest.raises(BadInput, match="reads sound; it was given tokens"):
        ours(tokens=labels.clamp(min=0), labels=labels)
    theirs("WhisperForAudioClassification").save_pretrained(tmp_path / "classes")
    with pytest.raises(Unsupported, match="no decoder"):
        load(tmp_path / "classes")


def test_published_size() -> None:
    """transformers counts the 1500 · 384 kept sinusoids among whisper-tiny's 37,760,640 parameters."""
    with torch.device("meta"):
        model = whisper().build()
    assert sum(p.numel() for p in model.parameters()) + 1500 * 384 == 37_760_640
    assert sum(x.numel() for x in model.buffers()) == 1500 * 384
