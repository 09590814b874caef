"""CLIP and its towers equal transformers'."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from regard import BadInput, Unsupported
from regard.models.checkpoint.checkpoint import load
from regard.models.dual_encoder import find_end
from regard.models.families.clip import clip

from ..checkpoint_equality import assert_close, assert_same, assert_writes_back, loaded, random_weights

transformers = pytest.importorskip("transformers")

TEXT = {
    "num_hidden_layers": 2, "num_attention_heads": 3, "hidden_size": 21, "intermediate_size": 17, "vocab_size": 31,
    "max_position_embeddings": 13, "eos_token_id": 30, "bos_token_id": 0, "pad_token_id": 1, "projection_dim": 11,
}  # fmt: skip
IMAGE = {
    "num_hidden_layers": 3, "num_attention_heads": 5, "hidden_size": 15, "intermediate_size": 19, "image_size": 14,
    "patch_size": 7, "num_channels": 2, "projection_dim": 11,
}  # fmt: skip


def theirs(text: dict | None = None, image: dict | None = None):
    config = transformers.CLIPConfig(
        text_config={**TEXT, **(text or {})}, vision_config={**IMAGE, **(image or {})}, projection_dim=11
    )
    return random_weights(transformers.CLIPModel(config))


def texts(lengths: list[int], end: int = 30, seed: int = 1) -> dict[str, torch.Tensor]:
    """Rows that end with the end token, padded with it; and one that has it twice."""
    generator = torch.Generator().manual_seed(seed)
    size = torch.tensor(lengths)
    tokens = torch.randint(3, 30, (len(lengths), max(lengths)), generator=generator)
    places = torch.arange(tokens.shape[1])
    tokens = tokens.masked_fill(places >= size[:, None] - 1, end)
    return {"tokens": tokens, "lengths": size, "mask": (places < size[:, None]).long()}


def images(batch: int, *size: int) -> torch.Tensor:
    return torch.randn(batch, 2, *(size or (14, 14)), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(
    "text, image",
    [
        ({}, {}),
        ({"eos_token_id": 2}, {}),
        ({"hidden_act": "gelu", "layer_norm_eps": 1e-3}, {"hidden_act": "gelu", "layer_norm_eps": 1e-2}),
        ({"num_attention_heads": 7}, {"patch_size": 2, "num_attention_heads": 1}),
    ],
)
def test_both_towers(tmp_path: Path, text: dict, image: dict) -> None:
    model = theirs(text, image)
    ours, batch, x = loaded(model, tmp_path), texts([9, 4, 12]), images(3)
    a = ours(tokens=batch["tokens"], lengths=batch["lengths"], images=x, labels=torch.arange(3))
    b = model(batch["tokens"], x, attention_mask=batch["mask"], return_loss=True)
    assert_close(a.text, b.text_embeds, "text")
    assert_close(a.image, b.image_embeds, "image")
    torch.testing.assert_close(a.loss, b.loss, rtol=1e-5, atol=1e-5)
    assert_same(ours, model, a.logits, b.logits_per_image)
    inputs = {"input_ids": batch["tokens"], "pixel_values": x, "attention_mask": batch["mask"]}
    assert_writes_back(ours, model, tmp_path, **inputs)


def test_gradients_of_the_loss(tmp_path: Path) -> None:
    model = theirs()
    ours, batch, x = loaded(model, tmp_path), texts([5, 13, 2]), images(3)
    a = ours(tokens=batch["tokens"], lengths=batch["lengths"], images=x, labels=True)
    b = model(batch["tokens"], x, attention_mask=batch["mask"], return_loss=True)
    assert_same(ours, model, a.loss, b.loss)


def test_padding_never_matters(tmp_path: Path) -> None:
    ours, batch = loaded(theirs({"eos_token_id": 2}), tmp_path), texts([9, 4])
    longer = functional.pad(batch["tokens"], (0, 3), value=5)
    longer[1, 4:] = 29
    longer[1, 3] = 28
    alone = ours(tokens=longer[1:, :4]).text
    torch.testing.assert_close(ours(tokens=longer, lengths=batch["lengths"]).text[1:], alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("projected", [False, True])
def test_text_tower(tmp_path: Path, projected: bool) -> None:
    kind = transformers.CLIPTextModelWithProjection if projected else transformers.CLIPTextModel
    model = random_weights(kind(transformers.CLIPTextConfig(**TEXT)))
    ours, batch = loaded(model, tmp_path), texts([5, 11, 3])
    inputs = {"input_ids": batch["tokens"], "attention_mask": batch["mask"]}
    a, b = ours(tokens=batch["tokens"], lengths=batch["lengths"]), model(**inputs)
    if projected:
        assert_same(ours, model, a.text, functional.normalize(b.text_embeds, dim=-1))
    else:
        assert_close(a.pooled, b.pooler_output, "pooled")
        assert_same(ours, model, a.hidden, b.last_hidden_state, batch["lengths"])
    assert_writes_back(ours, model, tmp_path, **inputs)


@pytest.mark.parametrize("projected", [False, True])
def test_vision_tower(tmp_path: Path, projected: bool) -> None:
    kind = transformers.CLIPVisionModelWithProjection if projected else transformers.CLIPVisionModel
    model = random_weights(kind(transformers.CLIPVisionConfig(**IMAGE)))
    ours, x = loaded(model, tmp_path), images(4)
    a, b = ours(images=x), model(x)
    if projected:
        assert_same(ours, model, a.image, functional.normalize(b.image_embeds, dim=-1))
    else:
        assert_close(a.pooled, b.pooler_output, "pooled")
        assert_same(ours, model, a.hidden, model.post_layernorm(b.last_hidden_state))
    assert_writes_back(ours, model, tmp_path, pixel_values=x)


@pytest.mark.parametrize("side", ["text", "vision"])
def test_a_tower_with_its_name_before_every_tensor(tmp_path: Path, side: str) -> None:
    """Folders of a tower alone were long written with `text_model.` and `vision_model.`."""
    from safetensors.torch import load_file, save_file

    kind, config = (
        (transformers.CLIPTextModel, transformers.CLIPTextConfig(**TEXT))
        if side == "text"
        else (transformers.CLIPVisionModel, transformers.CLIPVisionConfig(**IMAGE))
    )
    model = random_weights(kind(config))
    ours = loaded(model, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({f"{side}_model.{name}": x for name, x in tensors.items()}, tmp_path / "model.safetensors")
    again = load(tmp_path)
    for name, tensor in ours.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


def test_settings_spread_over_two(tmp_path: Path) -> None:
    """Older folders have `text_config_dict` and `vision_config_dict` beside the others, and they win."""
    ours, path = loaded(theirs(), tmp_path), tmp_path / "config.json"
    config = json.loads(path.read_text())
    for side in ("text", "vision"):
        whole = config[f"{side}_config"]
        config[f"{side}_config_dict"] = {name: whole[name] for name in ("hidden_size", "num_attention_heads")}
        config[f"{side}_config"] = {**whole, "hidden_size": 512}
    path.write_text(json.dumps(config))
    assert load(tmp_path).config == ours.config


def test_images_of_another_size(tmp_path: Path) -> None:
    model = theirs()
    ours, x = loaded(model, tmp_path), images(2, 21, 35)
    b = model.get_image_features(x, interpolate_pos_encoding=True).pooler_output
    assert_same(ours, model, ours(images=x).image, functional.normalize(b, dim=-1))


def test_labels_in_any_order(tmp_path: Path) -> None:
    """Texts in another order, with labels that say so, have the same loss; two images may share a text."""
    ours, batch, x = loaded(theirs(), tmp_path), texts([9, 4, 12]), images(3)
    order = torch.tensor([2, 0, 1])
    straight = ours(tokens=batch["tokens"], lengths=batch["lengths"], images=x, labels=True).loss
    turned = ours(tokens=batch["tokens"][order], lengths=batch["lengths"][order], images=x, labels=order.argsort()).loss
    torch.testing.assert_close(straight, turned)
    logits = (shared := ours(tokens=batch["tokens"][:2], images=x, labels=torch.tensor([1, 0, 1]))).logits
    by_hand = logits.log_softmax(1)[[0, 1, 2], [1, 0, 1]].mean() + logits.log_softmax(0)[[0, 1, 2], [1, 0, 1]].mean()
    torch.testing.assert_close(shared.loss, -by_hand / 2)


def test_where_a_text_ends() -> None:
    tokens = torch.tensor([[4, 9, 9, 9], [4, 5, 6, 7], [9, 3, 2, 1]])
    lengths = torch.tensor([4, 2, 3])
    assert find_end(tokens, lengths, 9).tolist() == [1, 1, 0]
    assert find_end(tokens, None, 7).tolist() == [3, 3, 3]
    assert find_end(tokens, lengths, "highest").tolist() == [1, 1, 0]


def test_published_size() -> None:
    with torch.device("meta"):
        assert sum(p.numel() for p in clip().build().parameters()) == 151_277_313


def test_wrong_calls(tmp_path: Path) -> None:
    ours, batch, x = loaded(theirs(), tmp_path), texts([3, 4]), images(3)
    with pytest.raises(BadInput, match="given neither"):
        ours()
    with pytest.raises(BadInput, match="both tokens and images"):
        ours(images=x, labels=True)
    with pytest.raises(BadInput, match="3 images and 2 texts"):
        ours(images=x, tokens=batch["tokens"], labels=True)
    with pytest.raises(BadInput, match="no tower"):
        tower = {"layers": 1, "dim": 8, "heads": 2, "hidden": 4}
        clip(text=None, image=tower).build()(tokens=batch["tokens"])


def test_refuses_a_classifier(tmp_path: Path) -> None:
    config = transformers.CLIPConfig(text_config=TEXT, vision_config=IMAGE, projection_dim=11)
    transformers.CLIPForImageClassification(config).save_pretrained(tmp_path)
    with pytest.raises(Unsupported, match="head of classes"):
        load(tmp_path)


def test_compiles_whole() -> None:
    tower = {"layers": 1, "dim": 8, "heads": 2, "hidden": 4}
    sizes = {"vocabulary": 31, "end": 30, "size": 14, "patch": 7, "channels": 2, "shared": 5}
    model = random_weights(clip(text=tower, image=tower, **sizes).build())
    batch, whole = texts([3, 7]), torch.compile(model, fullgraph=True, backend="eager")
    inputs = {"tokens": batch["tokens"], "lengths": batch["lengths"], "images": images(2), "labels": True}
    torch.testing.assert_close(whole(**inputs).loss, model(**inputs).loss)
