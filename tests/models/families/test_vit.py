"""ViT equals transformers'."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from regard import BadInput, Unsupported
from regard.models.checkpoint.checkpoint import load
from regard.models.families.vit import vit

from ..checkpoint_equality import assert_close, assert_same, assert_writes_back, loaded, random_weights

transformers = pytest.importorskip("transformers")

SIZES = {
    "num_hidden_layers": 3, "num_attention_heads": 3, "hidden_size": 21, "intermediate_size": 29, "image_size": 15,
    "patch_size": 5, "num_channels": 2,
}  # fmt: skip


def theirs(kind: str = "ViTForImageClassification", **more):
    config = transformers.ViTConfig(**{**SIZES, "num_labels": 7, **more})
    return random_weights(getattr(transformers, kind)(config))


def images(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-3},
        {"qkv_bias": False, "hidden_act": "relu"},
        {"patch_size": 3, "num_channels": 1, "num_labels": 1},
        {"image_size": [15, 15]},
    ],
)
def test_classes(tmp_path: Path, more: dict) -> None:
    model = theirs(**more)
    ours, x = loaded(model, tmp_path), images(4, more.get("num_channels", 2), 15, 15)
    assert_same(ours, model, ours(images=x).logits, model(x).logits)
    assert_writes_back(ours, model, tmp_path, pixel_values=x)


def test_hidden_and_pooler(tmp_path: Path) -> None:
    model = theirs("ViTModel")
    ours, x = loaded(model, tmp_path), images(3, 2, 15, 15)
    assert_same(ours, model, ours(images=x).hidden, model(x).last_hidden_state)
    assert_same(ours, model, ours(images=x).pooled, model(x).pooler_output)
    assert_writes_back(ours, model, tmp_path, pixel_values=x)


def test_a_pooler_that_no_head_reads(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    ours = loaded(theirs(), tmp_path)
    tensors, pooler = load_file(tmp_path / "model.safetensors"), {"vit.pooler.dense.weight": torch.zeros(21, 21)}
    save_file({**tensors, **pooler}, tmp_path / "model.safetensors")
    assert load(tmp_path).config == ours.config


def test_without_pooler(tmp_path: Path) -> None:
    model = random_weights(transformers.ViTModel(transformers.ViTConfig(**SIZES), add_pooling_layer=False))
    ours, x = loaded(model, tmp_path), images(2, 2, 15, 15)
    assert ours(images=x).pooled is None
    assert_same(ours, model, ours(images=x).hidden, model(x).last_hidden_state)


@pytest.mark.parametrize("height, width", [(25, 10), (40, 40), (5, 45), (10, 10)])
def test_images_of_another_size(tmp_path: Path, height: int, width: int) -> None:
    model = theirs()
    ours, x = loaded(model, tmp_path), images(2, 2, height, width)
    assert_same(ours, model, ours(images=x).logits, model(x, interpolate_pos_encoding=True).logits)


def test_loss(tmp_path: Path) -> None:
    model = theirs()
    ours, x, labels = loaded(model, tmp_path), images(5, 2, 15, 15), torch.tensor([0, 6, 3, 3, 1])
    torch.testing.assert_close(ours(images=x, labels=labels).loss, model(x, labels=labels).loss, rtol=1e-5, atol=1e-5)


def test_published_sizes() -> None:
    with torch.device("meta"):
        count = sum(p.numel() for p in vit().build().parameters())
        pooled = sum(p.numel() for p in vit(classes=None, pooler="tanh").build().parameters())
        large = sum(p.numel() for p in vit(layers=24, dim=1024, heads=16, hidden=4096).build().parameters())
    assert (count, pooled, large) == (86_567_656, 86_389_248, 304_326_632)


def test_rectangles_are_saved(tmp_path: Path) -> None:
    ours = random_weights(vit(layers=1, dim=9, heads=3, hidden=5, size=(6, 9), patch=3, classes=2).build())
    ours.save(tmp_path)
    again, x = load(tmp_path), images(2, 3, 6, 9)
    assert again.config == ours.config and torch.equal(again(images=x).logits, ours(images=x).logits)


@pytest.mark.parametrize(
    "kind, more, why",
    [
        ("DeiTModel", {}, "distillation"),
        ("ViTForMaskedImageModeling", {"encoder_stride": 5}, "mask token"),
        ("ViTModel", {"pooler_output_size": 11}, "pooler"),
    ],
)
def test_refuses_by_name(tmp_path: Path, kind: str, more: dict, why: str) -> None:
    config = transformers.DeiTConfig if kind == "DeiTModel" else transformers.ViTConfig
    getattr(transformers, kind)(config(**SIZES, **more)).save_pretrained(tmp_path)
    with pytest.raises(Unsupported, match=why):
        load(tmp_path)


def test_refuses_patches_that_are_no_squares(tmp_path: Path) -> None:
    theirs().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "patch_size": [5, 3]}))
    with pytest.raises(Unsupported, match=r"\[5, 3\]"):
        load(tmp_path)


def test_wrong_images() -> None:
    model = vit(layers=1, dim=9, heads=3, hidden=5, size=6, patch=3, classes=2).build()
    with pytest.raises(BadInput, match=r"7 × 6 pixels"):
        model(images=torch.zeros(1, 3, 7, 6))
    with pytest.raises(BadInput, match=r"\[1, 1, 6, 6\]"):
        model(images=torch.zeros(1, 1, 6, 6))
    with pytest.raises(BadInput, match="reads images; it was given tokens"):
        model(tokens=torch.zeros(1, 1, dtype=torch.long))


def test_compiles_whole() -> None:
    model = random_weights(vit(layers=1, dim=9, heads=3, hidden=5, size=6, patch=3, classes=2).build())
    whole = torch.compile(model, fullgraph=True, backend="eager")
    for x in (images(2, 3, 6, 6), images(2, 3, 6, 9)):
        assert_close(whole(images=x).logits, model(images=x).logits, "logits", 1e-5)
