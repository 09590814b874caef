"""DETR equals transformers', its loss too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from regard import BadInput, Unsupported
from regard.models.checkpoint.checkpoint import load
from regard.models.families.detr import detr
from regard.models.set_loss import Detections, SetLoss, giou, set_loss

from ..checkpoint_equality import (
    assert_close,
    assert_same,
    assert_same_gradients,
    assert_writes_back,
    loaded,
    random_weights,
)

transformers = pytest.importorskip("transformers")
pytest.importorskip("scipy")

SIZES = {
    "d_model": 24, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 3, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 29, "decoder_ffn_dim": 31, "num_queries": 7, "num_labels": 5,
}  # fmt: skip
BASIC = {"layer_type": "basic", "hidden_sizes": [64, 128, 256, 512]}
RESNETS = {18: {**BASIC, "depths": [2, 2, 2, 2]}, 50: {"layer_type": "bottleneck"}}


def theirs(kind: str = "DetrForObjectDetection", depth: int = 18, **more):
    """Their model; the backbone as it is drawn, every norm in it moved away from rest, all of it trained."""
    resnet = transformers.ResNetConfig(**RESNETS[depth], out_features=["stage4"])
    config = transformers.DetrConfig(use_timm_backbone=False, backbone_config=resnet, **{**SIZES, **more})
    model = getattr(transformers, kind)(config)
    backbone = (model.model if hasattr(model, "model") else model).backbone
    kept = {name: p.detach().clone() for name, p in backbone.named_parameters()}
    random_weights(model)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in backbone.named_parameters():
            parameter.copy_(kept[name])
        for name, buffer in backbone.named_buffers():
            noise = torch.randn(buffer.shape, generator=generator)
            buffer.copy_(noise * 0.1 if name.endswith(("bias", "mean")) else 0.7 + 0.2 * noise.abs())
    return model.requires_grad_(True)


def images(batch: int = 2, height: int = 64, width: int = 96) -> torch.Tensor:
    return torch.randn(batch, 3, height, width, generator=torch.Generator().manual_seed(1))


def labels(counts: list[int], classes: int = 5, seed: int = 2) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        {
            "classes": torch.randint(0, classes, (n,), generator=generator),
            "boxes": 0.1 + 0.4 * torch.rand(n, 4, generator=generator),
        }
        for n in counts
    ]


def as_theirs(labels: list[dict[str, torch.Tensor]]) -> list[dict[str, torch.Tensor]]:
    return [{"class_labels": one["classes"], "boxes": one["boxes"]} for one in labels]


def pixel_mask(x: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    mask = torch.zeros(len(x), *x.shape[2:], dtype=torch.long)
    for n, (height, width) in enumerate(sizes.tolist()):
        mask[n, :height, :width] = 1
    return mask


@pytest.mark.parametrize("sizes", [None, [[64, 96], [37, 70]], [[50, 33], [64, 64]]])
def test_detection(tmp_path: Path, sizes: list | None) -> None:
    model, x = theirs(), images()
    ours = loaded(model, tmp_path)
    real = None if sizes is None else torch.tensor(sizes)
    mask = None if real is None else pixel_mask(x, real)
    a, b = ours(images=x, sizes=real), model(x, pixel_mask=mask)
    assert_close(a.hidden, b.last_hidden_state, "hidden")
    assert_same(ours, model, torch.cat([a.logits, a.boxes], -1), torch.cat([b.logits, b.pred_boxes], -1))
    if sizes is not None:
        assert_writes_back(ours, model, tmp_path, pixel_values=x, pixel_mask=mask)


def test_bottlenecks_and_no_heads(tmp_path: Path) -> None:
    """In float64: so deep, rounding in float32 turns a ReLU on or off."""
    model, x = theirs("DetrModel", depth=50, encoder_layers=1, decoder_layers=1).double(), images(1).double()
    ours = loaded(model, tmp_path)
    a, b = ours(images=x), model(x)
    assert a.logits is None and a.boxes is None
    assert_same(ours, model, a.hidden, b.last_hidden_state)
    ours.save(tmp_path / "theirs", format="huggingface")
    again = transformers.DetrModel.from_pretrained(tmp_path / "theirs").state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(again[name], tensor), name


def test_learned_places(tmp_path: Path) -> None:
    model, x = theirs(position_embedding_type="learned", activation_function="gelu"), images()
    ours = loaded(model, tmp_path)
    assert_same(ours, model, ours(images=x).logits, model(x).logits)
    assert_writes_back(ours, model, tmp_path, pixel_values=x)


@pytest.mark.parametrize("counts", [[3, 1], [0, 4], [0, 0], [9, 2]])
def test_loss(tmp_path: Path, counts: list[int]) -> None:
    """Few objects, none at all, and more than there are queries."""
    model, x, truth = theirs(bbox_cost=3, eos_coefficient=0.3, giou_loss_coefficient=4), images(), labels(counts)
    ours = loaded(model, tmp_path)
    a, b = ours(images=x, labels=truth), model(x, labels=as_theirs(truth))
    torch.testing.assert_close(a.loss, b.loss, rtol=1e-5, atol=1e-5)
    a.loss.backward()
    b.loss.backward()
    assert_same_gradients(ours, model)


def test_auxiliary_loss() -> None:
    """The loss of every layer of the decoder, as transformers computes it of the same answers."""
    from transformers.loss.loss_for_object_detection import ForObjectDetectionLoss

    ours = random_weights(detr(**SMALL).build())
    x, truth = images(height=16, width=24), labels([2, 5])
    hidden = ours.decode(ours.encode(x))
    assert len(hidden) == 3
    logits, boxes = (
        torch.stack([ours.classes(x) for x in hidden]),
        torch.stack([ours.boxes(x) for x in hidden]).sigmoid(),
    )
    config = transformers.DetrConfig(**{**SIZES, "auxiliary_loss": True})
    wanted = ForObjectDetectionLoss(logits[-1], as_theirs(truth), "cpu", boxes[-1], config, logits, boxes)[0]
    torch.testing.assert_close(ours(images=x, labels=truth).loss, wanted)
    last = set_loss(SetLoss(), Detections(logits[-1], boxes[-1]), truth)
    assert last < wanted


SMALL = {
    "layers": 2, "dim": 24, "heads": 3, "hidden": 17, "decoder": {"layers": 3}, "queries": 7, "classes": 5,
    "backbone": (6, 10),
}  # fmt: skip


def test_padding_never_matters() -> None:
    """An image in a larger frame is seen as if it were alone, where the grid's borders agree."""
    ours, x = random_weights(detr(**{**SMALL, "backbone": ()}).build()), images(1, 5, 7)
    framed = torch.nn.functional.pad(x, (0, 4, 0, 6), value=9.0)
    a, b = ours(images=framed, sizes=torch.tensor([[5, 7]])), ours(images=x)
    torch.testing.assert_close(a.logits, b.logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(a.boxes, b.boxes, rtol=1e-4, atol=1e-4)


def test_overlap_by_hand() -> None:
    box = torch.tensor([0.5, 0.5, 0.2, 0.4])
    torch.testing.assert_close(giou(box, box), torch.tensor(1.0))
    apart = giou(torch.tensor([0.1, 0.1, 0.2, 0.2]), torch.tensor([0.9, 0.9, 0.2, 0.2]))
    torch.testing.assert_close(apart, torch.tensor(0.08 - 1.0))
    assert giou(torch.zeros(4), torch.zeros(4)).isfinite()


def test_learns_one_object() -> None:
    torch.manual_seed(0)
    ours = detr(**SMALL, dropout=0.0).build()
    x, truth = images(2, 16, 16), labels([1, 2])
    optimizer = torch.optim.Adam(ours.parameters(), 0.003)
    first = ours(images=x, labels=truth).loss.item()
    for _ in range(25):
        optimizer.zero_grad()
        (loss := ours(images=x, labels=truth).loss).backward()
        optimizer.step()
    assert loss.item() < 0.5 * first


def test_published_size() -> None:
    """All parameters, and those that the paper trains: not the first convolution, not the first stage."""
    with torch.device("meta"):
        model = detr().build()
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    kept = ("embed.backbone.conv1.", "embed.backbone.layer1.")
    assert sum(sizes.values()) == 41_524_768
    assert sum(size for name, size in sizes.items() if not name.startswith(kept)) == 41_302_368


def test_timm_names(tmp_path: Path) -> None:
    """Published folders name the backbone as timm does, and say so in either of two ways."""
    from safetensors.torch import load_file

    ours = random_weights(detr(**{**SMALL, "backbone": 18, "family": "detr_timm"}).build())
    ours.save(tmp_path, format="huggingface")
    names = set(load_file(tmp_path / "model.safetensors"))
    stem = "model.backbone.conv_encoder.model."
    assert {stem + "conv1.weight", stem + "bn1.running_var", stem + "layer2.0.downsample.1.bias"} <= names
    assert stem + "layer4.1.conv2.weight" in names and "model.decoder.layers.2.encoder_attn.out_proj.bias" in names
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["backbone"] == "resnet18" and config["use_timm_backbone"]
    newer = {"backbone_config": {"model_type": "timm_backbone", "backbone": "resnet18"}, "backbone": None}
    for change in ({}, newer):
        (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
        again = load(tmp_path)
        assert again.config.family == "detr_timm"
        for name, tensor in ours.state_dict().items():
            assert torch.equal(again.state_dict()[name], tensor), name


def test_saved_and_loaded(tmp_path: Path) -> None:
    ours, x = random_weights(detr(**SMALL).build()), images(2, 16, 16)
    ours.save(tmp_path)
    again = load(tmp_path)
    assert again.config == ours.config and torch.equal(again(images=x).boxes, ours(images=x).boxes)
    with pytest.raises(Unsupported, match="no counterpart of Detection models"):
        ours.save(tmp_path, format="huggingface")


@pytest.mark.parametrize(
    "change, why",
    [
        ({"auxiliary_loss": True}, "auxiliary_loss"),
        ({"dilation": True}, "DC5"),
        ({"backbone_config": {"model_type": "resnet", "out_features": ["stage2", "stage3"]}}, "'stage3'"),
        ({"backbone_config": {"model_type": "swin", "backbone": "swin_tiny"}}, "swin_tiny"),
        ({"backbone_config": {"model_type": "resnet", "depths": [1, 1, 1, 1]}}, r"\[1, 1, 1, 1\]"),
    ],
)
def test_refuses_by_name(tmp_path: Path, change: dict, why: str) -> None:
    random_weights(detr(**{**SMALL, "backbone": 18}).build()).save(tmp_path, format="huggingface")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(Unsupported, match=why):
        load(tmp_path)


def test_wrong_calls() -> None:
    ours, x = detr(**SMALL).build(), images(2, 16, 16)
    with pytest.raises(BadInput, match=r"sizes has shape \[2\]; it must be \[2, 2\]"):
        ours(images=x, sizes=torch.tensor([16, 16]))
    with pytest.raises(BadInput, match="1 entries for 2 images"):
        ours(images=x, labels=labels([1]))
    with pytest.raises(BadInput, match=r"labels\[1\]"):
        ours(images=x, labels=[*labels([1]), {"boxes": torch.zeros(1, 4)}])
    with pytest.raises(BadInput, match=r"classes \[2\] and boxes \[1, 4\]"):
        ours(images=x, labels=[*labels([1]), {"classes": torch.zeros(2), "boxes": torch.zeros(1, 4)}])
    with pytest.raises(BadInput, match="no heads"):
        detr(**{**SMALL, "classes": None}).build()(images=x, labels=labels([1, 1]))


def test_compiles_whole() -> None:
    model, x = random_weights(detr(**SMALL).build()), images(2, 16, 24)
    inputs = {"images": x, "sizes": torch.tensor([[16, 24], [9, 20]])}
    whole = torch.compile(model, fullgraph=True, backend="eager")
    assert_close(whole(**inputs).boxes, model(**inputs).boxes, "boxes", 1e-5)
