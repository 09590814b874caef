"""Llama, Mistral and Qwen2 equal transformers'."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from regard.errors import BadInput, Unsupported
from regard.models.checkpoint.checkpoint import load
from regard.models.families.llama import llama
from regard.nn.parts.parse import parse_position
from regard.nn.parts.rotary import ScaledRotary

from ..checkpoint_equality import assert_close, assert_same, assert_writes_back, loaded, ragged, random_weights

transformers = pytest.importorskip("transformers")

SIZES = {
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "hidden_size": 30,
    "intermediate_size": 37,
    "vocab_size": 41,
    "head_dim": 10,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
VARIANTS = {
    "Llama": [
        {},
        {"num_key_value_heads": 6, "head_dim": 4},
        {"num_key_value_heads": 1, "tie_word_embeddings": True},
        {"attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-3},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 77.0}},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 300.0, "factor": 3.0}},
        {"rope_parameters": LLAMA3},
        {"hidden_act": "gelu_new"},
    ],
    "Mistral": [{"sliding_window": 3}, {"sliding_window": 1}, {"sliding_window": None}],
    "Qwen2": [
        {},
        {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0},
        {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1, "tie_word_embeddings": True},
    ],
}

CACHED = [("Llama", {"rope_parameters": LLAMA3}), ("Mistral", {"sliding_window": 4}), ("Qwen2", VARIANTS["Qwen2"][2])]


def theirs(family: str = "Llama", kind: str = "ForCausalLM", **more):
    config = getattr(transformers, family + "Config")(**{**SIZES, **more})
    return random_weights(getattr(transformers, family + kind)(config))


@pytest.mark.parametrize(("family", "more"), [(name, more) for name, all in VARIANTS.items() for more in all])
def test_language_model(tmp_path: Path, family: str, more: dict) -> None:
    model = theirs(family, **more)
    ours, batch = loaded(model, tmp_path), ragged([11, 5, 8], 41)
    labels = batch["tokens"].masked_fill(batch["mask"] == 0, -100)
    a = ours(tokens=batch["tokens"], lengths=batch["lengths"], labels=labels)
    b = model(input_ids=batch["tokens"], attention_mask=batch["mask"], labels=labels)
    torch.testing.assert_close(a.loss, b.loss, rtol=1e-5, atol=1e-5)
    assert_same(ours, model, a.logits, b.logits, batch["lengths"])
    assert_writes_back(ours, model, tmp_path, input_ids=batch["tokens"], attention_mask=batch["mask"])


@pytest.mark.parametrize("family", VARIANTS)
def test_bare_stack(tmp_path: Path, family: str) -> None:
    model = theirs(family, "Model")
    ours, batch = loaded(model, tmp_path), ragged([7], 41)
    assert ours.head is None
    assert_same(ours, model, ours(tokens=batch["tokens"]).hidden, model(batch["tokens"]).last_hidden_state)
    assert_writes_back(ours, model, tmp_path, input_ids=batch["tokens"])


@pytest.mark.parametrize("kind", ["ForSequenceClassification", "ForTokenClassification"])
def test_classes(tmp_path: Path, kind: str) -> None:
    model = theirs("Llama", kind, num_labels=5)
    ours, batch = loaded(model, tmp_path), ragged([7, 4], 41)
    tokens, lengths = batch["tokens"].masked_fill(batch["mask"] == 0, 0), batch["lengths"]
    a, b = ours(tokens=tokens, lengths=lengths), model(tokens, attention_mask=batch["mask"])
    assert_same(ours, model, a.logits, b.logits, lengths if kind == "ForTokenClassification" else None)
    assert_writes_back(ours, model, tmp_path, input_ids=tokens, attention_mask=batch["mask"])


@pytest.mark.parametrize("rope", [LLAMA3, {"rope_type": "default", "rope_theta": 10000.0}])
def test_long_input(tmp_path: Path, rope: dict) -> None:
    model = theirs(max_position_embeddings=512, rope_parameters=rope)
    ours, batch = loaded(model, tmp_path), ragged([307], 41)
    assert_same(ours, model, ours(tokens=batch["tokens"]).logits, model(batch["tokens"]).logits)


@pytest.mark.parametrize(("family", "more"), CACHED)
@torch.no_grad()
def test_cache_equals_no_cache(tmp_path: Path, family: str, more: dict) -> None:
    ours = loaded(theirs(family, **more), tmp_path)
    batch, step = ragged([9, 4, 6], 41), ragged([3, 3, 3], 41, seed=5)["tokens"]
    got = ours(tokens=batch["tokens"], lengths=batch["lengths"])
    later = [got := ours(tokens=step[:, n : n + 1], cache=got.cache) for n in range(3)]
    for row, length in enumerate(batch["lengths"].tolist()):
        whole = ours(tokens=torch.cat([batch["tokens"][row, :length], step[row]])[None]).logits
        assert_close(torch.stack([x.logits[row, 0] for x in later]), whole[0, length:], f"row {row}", 1e-5)


def test_old_words_for_rotary(tmp_path: Path) -> None:
    """Folders written before transformers 5 have `rope_theta` and `rope_scaling`, and older ones `type`."""
    model = theirs(rope_parameters=LLAMA3)
    new = loaded(model, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    scaling = {key: value for key, value in config.pop("rope_parameters").items() if key != "rope_theta"}
    config |= {"rope_theta": 500.0, "rope_scaling": scaling}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load(tmp_path).config == new.config
    config["rope_scaling"] = {"type": "linear", "factor": 4.0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load(tmp_path).config.stack.position == ScaledRotary(base=500.0, linear=4.0)


@pytest.mark.parametrize("factor", [2.0, 8.0, 32.0])
def test_llama3_rates(factor: float) -> None:
    rope = {**LLAMA3, "rope_theta": 500000.0, "factor": factor, "original_max_position_embeddings": 8192}
    config = transformers.LlamaConfig(**{**SIZES, "head_dim": 128, "rope_parameters": rope})
    wanted, _ = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"](config)
    line = f"Rotary(base=500000.0, factor={factor}, low=1.0, high=4.0, original=8192)"
    torch.testing.assert_close(torch.tensor(parse_position(line).build(2, 128).rates), wanted, rtol=1e-5, atol=0)


def test_interleaved_rotary() -> None:
    """Coordinates 2m and 2m + 1 are turned as m and m + dim/2 are in the other layout; the rest stays."""
    x = torch.randn(2, 3, 5, 10, generator=torch.Generator().manual_seed(0))
    place = torch.arange(2, 7)
    halves, interleaved = (
        ScaledRotary(base=50.0, dim=8, layout=layout).build(3, 10).angles(2, 5, x.device, x.dtype)
        for layout in ("halves", "interleaved")
    )
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7, 8, 9])
    torch.testing.assert_close(interleaved(x)[..., order], halves(x[..., order]))
    angle = place * 50.0 ** (-2 / 8)  # of coordinates 2 and 3
    wanted = x[..., 2] * angle.cos() - x[..., 3] * angle.sin()
    torch.testing.assert_close(interleaved(x)[..., 2], wanted)
    torch.testing.assert_close(interleaved(x)[..., 8:], x[..., 8:])


@pytest.mark.parametrize(
    ("rope", "word"),
    [
        ({"rope_type": "stretched", "factor": 4.0}, "'stretched'.*llama3, yarn"),
        ({"rope_type": "default", "partial_rotary_factor": 0.4}, "partial_rotary_factor"),
    ],
)
def test_unknown_stretching_is_refused(tmp_path: Path, rope: dict, word: str) -> None:
    theirs().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "rope_parameters": rope}))
    with pytest.raises(Unsupported, match=word):
        load(tmp_path)


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    sizes = {"layers": 2, "dim": 8, "heads": 2, "kv_heads": 1, "hidden": 8, "vocabulary": 11}
    with pytest.raises(BadInput, match="windows"):
        llama(**sizes, window=3).build().save(tmp_path, format="huggingface")
    with pytest.raises(BadInput, match="bias 'q'"):
        llama(**sizes, bias="q").build().save(tmp_path, format="huggingface")
    with pytest.raises(BadInput, match=r"position Alibi\(\)"):
        llama(**sizes, position="Alibi()").build().save(tmp_path, format="huggingface")


def test_published_size() -> None:
    """TinyLlama, Mistral 7B and Qwen2 0.5B."""
    mistral = llama(layers=32, dim=4096, kv_heads=8, hidden=14336, window=4096, family="mistral")
    qwen = llama(
        layers=24, dim=896, heads=14, kv_heads=2, hidden=4864, vocabulary=151936, bias="qkv", tied=True, family="qwen2"
    )
    with torch.device("meta"):
        sizes = [sum(p.numel() for p in config.build().parameters()) for config in (llama(), mistral, qwen)]
    assert sizes == [1_100_048_384, 7_241_732_096, 494_032_768]
