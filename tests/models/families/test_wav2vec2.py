"""wav2vec 2 equals transformers'."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from regard.errors import BadInput, Unsupported
from regard.models.checkpoint.checkpoint import load
from regard.models.families.wav2vec2 import wav2vec2
from regard.nn.embeddings.waveform import normalize_samples

from ..checkpoint_equality import assert_close, assert_same, assert_writes_back, loaded, random_weights, real

transformers = pytest.importorskip("transformers")

SIZES = {
    "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 24, "intermediate_size": 31, "vocab_size": 11,
    "conv_dim": [8, 10, 12], "conv_kernel": [10, 3, 2], "conv_stride": [5, 2, 2], "num_conv_pos_embeddings": 6,
    "num_conv_pos_embedding_groups": 3, "ctc_loss_reduction": "mean", "ctc_zero_infinity": True,
}  # fmt: skip
STABLE = {"do_stable_layer_norm": True, "feat_extract_norm": "layer", "conv_bias": True}
LENGTHS = torch.tensor([531, 200, 402])


def theirs(kind: str = "Wav2Vec2ForCTC", **more):
    return random_weights(getattr(transformers, kind)(transformers.Wav2Vec2Config(**{**SIZES, **more})))


def sound(samples: int = 531) -> Tensor:
    return torch.randn(3, samples, generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize(
    "more",
    [
        {},
        STABLE,
        {"pad_token_id": 3, "num_conv_pos_embeddings": 7, "mask_time_prob": 0.0, "hidden_act": "relu"},
        {"conv_bias": True, "feat_extract_activation": "relu", "layer_norm_eps": 1e-2},
    ],
)
def test_letters(tmp_path: Path, more: dict) -> None:
    model = theirs(**more)
    ours, x = loaded(model, tmp_path), sound()
    labels = torch.tensor([[5, 5, 2], [1, 4, -100], [7, -100, -100]])
    a, b = ours(sound=x, labels=labels), model(x, labels=labels)
    assert_close(a.logits, b.logits, "logits")
    assert_same(ours, model, a.loss, b.loss)
    assert_same(ours, model, ours(sound=x).logits, model(x).logits)
    assert_writes_back(ours, model, tmp_path, input_values=x)


def test_padded_frames(tmp_path: Path) -> None:
    """Models that normalize each frame take a mask, and give each row what it gives alone."""
    model = theirs(**STABLE)
    ours, x = loaded(model, tmp_path), sound()
    mask = torch.arange(531) < LENGTHS[:, None]
    a, b = ours(sound=x, lengths=LENGTHS), model(x * mask, attention_mask=mask.long())
    assert_same(ours, model, a.logits, b.logits, ours.embed.lengths_after(LENGTHS))


@pytest.mark.parametrize("more", [{}, STABLE])
def test_padded_recordings(tmp_path: Path, more: dict) -> None:
    """Each row of a padded batch is what transformers gives for it alone, whatever the padding holds."""
    model = theirs(**more)
    ours, x = loaded(model, tmp_path), sound()
    alone = torch.cat([model(x[n : n + 1, :length]).logits[0] for n, length in enumerate(LENGTHS.tolist())])
    counts = ours.embed.lengths_after(LENGTHS)
    padded = torch.where(torch.arange(531) < LENGTHS[:, None], x, torch.tensor([[0.0], [torch.nan], [torch.inf]]))
    batch = ours(sound=padded, lengths=LENGTHS).logits
    assert_same(ours, model, real(batch, counts), alone)


@pytest.mark.parametrize("kind", ["Wav2Vec2Model", "Wav2Vec2ForPreTraining"])
def test_encoder(tmp_path: Path, kind: str) -> None:
    """The encoder, also of a folder with the quantizer of its training."""
    model = theirs(kind)
    ours, x = loaded(model, tmp_path), sound()
    encoder = model if kind == "Wav2Vec2Model" else model.wav2vec2
    assert_close(ours(sound=x).hidden, encoder(x).last_hidden_state, "hidden")
    if kind == "Wav2Vec2Model":
        assert_same(ours, model, ours(sound=x).hidden, model(x).last_hidden_state)
        assert_writes_back(ours, model, tmp_path, input_values=x)


def test_older_names_of_normalized_weights(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    ours, path = loaded(theirs(), tmp_path), tmp_path / "model.safetensors"
    ends = {"parametrizations.weight.original0": "weight_g", "parametrizations.weight.original1": "weight_v"}
    tensors = load_file(path)
    for new, old in ends.items():
        tensors = {name.replace(new, old): x for name, x in tensors.items()}
    save_file(tensors, path)
    assert any(name.endswith("weight_g") for name in tensors)
    for name, tensor in load(tmp_path).state_dict().items():
        assert torch.equal(ours.state_dict()[name], tensor), name


def test_samples_as_the_processor_prepares_them() -> None:
    extractor = transformers.Wav2Vec2FeatureExtractor(do_normalize=True, return_attention_mask=True)
    rows = [x[:length].numpy() for x, length in zip(3 * sound() + 1, LENGTHS.tolist(), strict=True)]
    wanted = extractor(rows, sampling_rate=16000, padding=True, return_tensors="pt").input_values
    torch.testing.assert_close(normalize_samples(3 * sound() + 1, LENGTHS), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("own_file", [True, False])
def test_a_folder_as_published(tmp_path: Path, own_file: bool) -> None:
    """Letters and feature extractor come with the model, and are written back with it."""
    model = theirs(hidden_size=24)
    model.save_pretrained(tmp_path)
    (tmp_path / "vocab.json").write_text(json.dumps({x: n for n, x in enumerate(["<pad>", "|", "<unk>", *"ETAOINSH"])}))
    tokenizer = transformers.Wav2Vec2CTCTokenizer(tmp_path / "vocab.json", bos_token=None, eos_token=None)
    extractor = transformers.Wav2Vec2FeatureExtractor(do_normalize=True)
    if own_file:
        extractor.save_pretrained(tmp_path)
        tokenizer.save_pretrained(tmp_path)
    processor = transformers.Wav2Vec2Processor(extractor, tokenizer)
    if not own_file:
        processor.save_pretrained(tmp_path)
    ours, x = load(tmp_path), 3 * sound()[:1] + 1
    assert ours.preprocessor["do_normalize"] and ours.preprocessor["sampling_rate"] == 16000
    inputs = processor(x[0].numpy(), sampling_rate=16000, return_tensors="pt")
    wanted = processor.batch_decode(model(**inputs).logits.argmax(-1))
    assert ours.tokenizer.decode(ours(sound=normalize_samples(x)).logits.argmax(-1)) == wanted
    ours.save(tmp_path / "written", format="huggingface")
    again = transformers.Wav2Vec2Processor.from_pretrained(tmp_path / "written")
    assert torch.equal(again(x[0].numpy(), sampling_rate=16000, return_tensors="pt").input_values, inputs.input_values)
    assert again.batch_decode(torch.tensor([[3, 3, 0, 3, 1, 4]])) == ["EE T"]


def test_published_sizes() -> None:
    large = {"layers": 24, "dim": 1024, "heads": 16, "hidden": 4096}
    with torch.device("meta"):
        models = wav2vec2(), wav2vec2(**large, pre_norm=True, conv_norm="layer", conv_bias=True, vocabulary=None)
        counts = [sum(p.numel() for p in model.build().parameters()) for model in models]
    assert counts == [94_396_320, 315_438_720]


def test_refusals(tmp_path: Path) -> None:
    ours = loaded(theirs(), tmp_path)
    with pytest.raises(BadInput, match="sound has 20 samples; this model needs 30 at least"):
        ours(sound=sound(20))
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "add_adapter": True}))
    with pytest.raises(Unsupported, match="wav2vec 2 has adapters"):
        load(tmp_path)
    theirs("Wav2Vec2ForSequenceClassification").save_pretrained(tmp_path / "classes")
    with pytest.raises(Unsupported, match="classifier of recordings"):
        load(tmp_path / "classes")
    with pytest.raises(BadInput, match="3 channels, 7 kernels and 7 strides"):
        wav2vec2(channels=(8, 8, 8))
    with pytest.raises(BadInput, match="position_groups 16"):
        wav2vec2(dim=24, heads=2).build()


def test_compiles_whole() -> None:
    sizes = {"layers": 1, "dim": 12, "heads": 2, "hidden": 5, "channels": (6, 6), "kernels": (10, 3), "strides": (5, 2)}
    model = random_weights(wav2vec2(**sizes, position_kernel=4, position_groups=2).build())
    whole, inputs = torch.compile(model, fullgraph=True, backend="eager"), {"sound": sound(), "lengths": LENGTHS}
    assert_close(whole(**inputs).logits, model(**inputs).logits, "logits", 1e-5)
