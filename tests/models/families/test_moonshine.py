"""Moonshine equals transformers'."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from regard.errors import BadInput, Unsupported
from regard.models.checkpoint.checkpoint import load
from regard.models.families.moonshine import moonshine

from ..checkpoint_equality import assert_close, assert_same, assert_writes_back, loaded, random_weights
from ..encoder_decoder import TARGETS, assert_cache_equals_no_cache, assert_padding_never_matters, batches

transformers = pytest.importorskip("transformers")

SIZES = {
    "encoder_num_hidden_layers": 2,
    "decoder_num_hidden_layers": 3,
    "encoder_num_attention_heads": 2,
    "decoder_num_attention_heads": 2,
    "hidden_size": 20,
    "intermediate_size": 31,
    "vocab_size": 41,
    "pad_token_id": 40,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.65},
}


def theirs(kind: str = "MoonshineForConditionalGeneration", **more):
    return random_weights(getattr(transformers, kind)(transformers.MoonshineConfig(**{**SIZES, **more})))


def sound(samples: int = 5000) -> Tensor:
    return torch.randn(3, samples, generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"attention_bias": True, "encoder_hidden_act": "relu", "tie_word_embeddings": False},
        {"pad_head_dim_to_multiple_of": 8},
    ],
)
def test_transcription(tmp_path: Path, more: dict) -> None:
    model = theirs(**more)
    ours, x, (_, labels) = loaded(model, tmp_path), sound(), batches(40)
    inputs = {"input_values": x, "labels": labels}
    a, b = ours(sound=x, labels=labels), model(**inputs)
    torch.testing.assert_close(a.loss, b.loss, rtol=1e-5, atol=1e-5)
    assert_same(ours, model, a.logits, b.logits, torch.tensor(TARGETS))
    assert_writes_back(ours, model, tmp_path, **inputs)


def test_bare_pair(tmp_path: Path) -> None:
    model = theirs("MoonshineModel")
    ours, x, targets = loaded(model, tmp_path), sound(), batches(40)[1].clamp(min=0)
    inputs = {"input_values": x, "decoder_input_ids": targets}
    assert_same(ours, model, ours(sound=x, targets=targets).hidden, model(**inputs).last_hidden_state)
    assert_writes_back(ours, model, tmp_path, **inputs)


def test_padded_recordings(tmp_path: Path) -> None:
    """Each row of a padded batch is what transformers gives for it alone: its own batches normalize over padding."""
    model, lengths = theirs(), torch.tensor([5000, 1500, 3001])
    ours, x, targets = loaded(model, tmp_path), sound(), batches(40)[1].clamp(min=0)
    batch = ours(sound=x, lengths=lengths, targets=targets).logits
    alone = [
        model(x[n : n + 1, :length], decoder_input_ids=targets[n : n + 1]).logits
        for n, length in enumerate(lengths.tolist())
    ]
    assert_same(ours, model, batch, torch.cat(alone))


def test_cache_and_padding(tmp_path: Path) -> None:
    ours, targets = loaded(theirs(), tmp_path), batches(40)[1].clamp(min=0)
    source = {"sound": sound(), "lengths": torch.tensor([5000, 1501, 3000])}
    assert_cache_equals_no_cache(ours, targets, **source)
    assert_padding_never_matters(ours, targets, source, "sound")


def test_generation(tmp_path: Path) -> None:
    model = theirs()
    ours, x = loaded(model, tmp_path), sound()
    new = model.generate(x, max_new_tokens=6, do_sample=False, num_beams=1)
    assert torch.equal(ours.generate(sound=x, max_new=6), new)
    assert torch.equal(ours.generate(sound=x, max_new=6, cache=False), new)


def test_refusals(tmp_path: Path) -> None:
    ours, labels = loaded(theirs(), tmp_path), batches(40)[1]
    with pytest.raises(BadInput, match="sound has 700 samples; this model needs 895 at least"):
        ours(sound=sound(700), labels=labels)
    with pytest.raises(BadInput, match=r"reads samples, floating point \[batch, samples\]"):
        ours(sound=torch.zeros(3, 40, 80), labels=labels)
    linear = {"rope_type": "linear", "rope_theta": 10.0, "factor": 2.0}
    odd = {"rope_type": "default", "rope_theta": 10.0, "partial_rotary_factor": 0.5}
    cases = [
        ({"encoder_num_attention_heads": 4}, "Moonshine has decoder_num_attention_heads = 2 beside 4"),
        ({"rope_parameters": linear}, "Moonshine scales its rotary positions by 'linear'"),
        ({"rope_parameters": odd}, "rotates 5 of 10 coordinates"),
    ]
    config = json.loads((tmp_path / "config.json").read_text())
    for changes, message in cases:
        (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
        with pytest.raises(Unsupported, match=message):
            load(tmp_path)


def test_published_size() -> None:
    with torch.device("meta"):
        tiny = moonshine().build()
        base = moonshine(layers=8, dim=416, hidden=1664).build()
        counts = [sum(p.numel() for p in model.parameters()) for model in (tiny, base)]
        config = transformers.MoonshineConfig()
        assert counts[0] == transformers.MoonshineForConditionalGeneration(config).num_parameters()
    assert counts == [27_092_736, 61_513_920]


def test_compiles_whole() -> None:
    model = random_weights(moonshine(layers=1, dim=16, heads=2, hidden=5, vocabulary=41).build())
    whole, x, labels = torch.compile(model, fullgraph=True, backend="eager"), sound(1500), batches(40)[1]
    inputs = {"sound": x, "lengths": torch.tensor([1500, 900, 1400]), "labels": labels}
    assert_close(whole(**inputs).logits, model(**inputs).logits, "logits", 1e-5)
