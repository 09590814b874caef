"""Swin equals transformers'."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

import regard as rg
from regard import BadInput, Unsupported
from regard.models.checkpoint.checkpoint import load
from regard.models.families.swin import swin
from regard.nn.sparse.shifted_windows import ShiftedWindowsConfig

from ..checkpoint_equality import assert_close, assert_same, assert_writes_back, loaded, random_weights

transformers = pytest.importorskip("transformers")

SIZES = {
    "image_size": 24, "patch_size": 2, "num_channels": 2, "embed_dim": 6, "depths": [2, 3], "num_heads": [1, 3],
    "window_size": 3, "mlp_ratio": 2.5,
}  # fmt: skip
SMALL = {"dim": 6, "depths": (2, 2), "heads": (1, 3), "window": 3, "size": 24, "patch": 2, "channels": 2}


def theirs(kind: str = "SwinForImageClassification", **more):
    config = transformers.SwinConfig(**{**SIZES, "num_labels": 7, **more})
    return random_weights(getattr(transformers, kind)(config))


def images(*size: int, seed: int = 1) -> Tensor:
    return torch.randn(2, 2, *(size or (24, 24)), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"hidden_act": "relu", "layer_norm_eps": 1e-2, "qkv_bias": False, "num_labels": 1},
        {
            "use_absolute_embeddings": True,
            "window_size": 4,
            "depths": [2, 1, 2],
            "num_heads": [1, 2, 3],
            "image_size": 32,
        },
    ],
)
def test_classes(tmp_path: Path, more: dict) -> None:
    model, size = theirs(**more), more.get("image_size", 24)
    ours, x = loaded(model, tmp_path), images(size, size)
    assert_same(ours, model, ours(images=x).logits, model(x).logits)
    assert_writes_back(ours, model, tmp_path, pixel_values=x)


@pytest.mark.parametrize("height, width", [(24, 24), (28, 20), (23, 27), (13, 40), (12, 12)])
def test_grids_that_windows_do_not_divide(tmp_path: Path, height: int, width: int) -> None:
    """Grids are padded to whole windows, which attention reads; merging and patches pad too."""
    model = theirs("SwinModel")
    ours, x = loaded(model, tmp_path), images(height, width)
    assert_same(ours, model, ours(images=x).hidden, model(x).last_hidden_state)


def test_encoder(tmp_path: Path) -> None:
    model = theirs("SwinModel")
    ours, x = loaded(model, tmp_path), images()
    a, b = ours(images=x), model(x)
    assert a.logits is None
    assert_close(a.hidden.mean(1), b.pooler_output, "mean")
    assert_writes_back(ours, model, tmp_path, pixel_values=x)


def test_positions_of_another_size(tmp_path: Path) -> None:
    model = theirs(use_absolute_embeddings=True)
    ours, x = loaded(model, tmp_path), images(28, 20)
    assert_same(ours, model, ours(images=x).logits, model(x, interpolate_pos_encoding=True).logits)


def test_loss(tmp_path: Path) -> None:
    model, labels = theirs(), torch.tensor([0, 6])
    ours, x = loaded(model, tmp_path), images()
    torch.testing.assert_close(ours(images=x, labels=labels).loss, model(x, labels=labels).loss, rtol=1e-5, atol=1e-5)


def test_the_shift_is_a_mask() -> None:
    """Tokens of different regions have no weight for each other, in the shifted block alone."""
    model = random_weights(swin(**SMALL, classes=None).build())
    with rg.watch(model, weights=True) as views:
        model(images=images())
    plain, shifted = (views[f"stack.blocks.{n}.attention"].weights for n in (0, 1))
    assert (plain > 0).all() and (shifted == 0).any()
    torch.testing.assert_close(shifted.sum(-1), torch.ones_like(shifted[..., 0]))
    assert shifted.shape == (2 * 16, 1, 9, 9)


def test_published_sizes() -> None:
    with torch.device("meta"):
        tiny, base = swin().build(), swin(dim=128, depths=(2, 2, 18, 2), heads=(4, 8, 16, 32)).build()
    assert [sum(p.numel() for p in model.parameters()) for model in (tiny, base)] == [28_288_354, 87_768_224]


def test_refusals(tmp_path: Path) -> None:
    ours = loaded(theirs(), tmp_path)
    with pytest.raises(BadInput, match="The grid has 2 rows and 2 columns, fewer than windows of 3 × 3"):
        ours(images=images(8, 8))
    with pytest.raises(BadInput, match="2 dims, 1 depths and 2 heads"):
        ShiftedWindowsConfig((6, 12), (2,), (1, 3))
    with pytest.raises(BadInput, match=r"depths are \(2, 0\)"):
        ShiftedWindowsConfig((6, 12), (2, 0), (1, 3))
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "patch_size": [2, 3]}))
    with pytest.raises(Unsupported, match=r"Swin's patches are \[2, 3\]"):
        load(tmp_path)
    theirs("SwinForMaskedImageModeling", encoder_stride=4).save_pretrained(tmp_path / "pixels")
    with pytest.raises(Unsupported, match="Swin has a mask token"):
        load(tmp_path / "pixels")


def test_one_graph_for_every_width() -> None:
    model = random_weights(swin(**{**SMALL, "depths": (2,), "heads": (1,)}, classes=5).build())
    whole = torch.compile(model, fullgraph=True, backend="eager")
    for x in (images(), images(24, 28)):
        torch._dynamo.mark_dynamic(x, 3)
        assert_close(whole(images=x).logits, model(images=x).logits, "logits", 1e-5)
