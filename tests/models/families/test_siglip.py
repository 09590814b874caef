"""SigLIP and SigLIP 2 equal transformers'."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from regard import BadInput, Unsupported
from regard.models.checkpoint.checkpoint import load
from regard.models.dual_encoder import sigmoid_loss
from regard.models.families.siglip import siglip, siglip2
from regard.nn.embeddings.patch_embedding import fit_patches

from ..checkpoint_equality import assert_close, assert_same, assert_writes_back, loaded, random_weights

transformers = pytest.importorskip("transformers")

TEXT = {
    "num_hidden_layers": 2, "num_attention_heads": 3, "hidden_size": 18, "intermediate_size": 29, "vocab_size": 31,
    "max_position_embeddings": 13, "pad_token_id": 4,
}  # fmt: skip
IMAGE = {
    "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 18, "intermediate_size": 19, "patch_size": 7,
    "num_channels": 2,
}  # fmt: skip
FIXED, NAFLEX = {**IMAGE, "image_size": 14}, {**IMAGE, "num_patches": 9}
GRIDS = torch.tensor([[2, 3], [3, 3], [4, 1]])


def theirs(name: str = "Siglip", text: dict | None = None, image: dict | None = None):
    sizes = FIXED if name == "Siglip" else NAFLEX
    config = {"text_config": {**TEXT, **(text or {})}, "vision_config": {**sizes, **(image or {})}}
    return random_weights(getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**config)))


def texts(columns: int = 9) -> Tensor:
    return torch.randint(5, 31, (3, columns), generator=torch.Generator().manual_seed(1))


def images(*size: int) -> Tensor:
    return torch.randn(3, 2, *(size or (14, 14)), generator=torch.Generator().manual_seed(3))


def naflex_inputs(x: Tensor, grids: Tensor = GRIDS) -> dict[str, Tensor]:
    """Images padded to one size as transformers takes them: flattened patches, channels last, and a mask."""
    rows = []
    for image, (height, width) in zip(x, grids.tolist(), strict=True):
        cut = image[:, : 7 * height, : 7 * width].unflatten(1, (height, 7)).unflatten(3, (width, 7))
        rows.append(cut.permute(1, 3, 2, 4, 0).flatten(0, 1).flatten(1))
    mask = torch.arange(int(grids.prod(1).max())) < grids.prod(1)[:, None]
    patches = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return {"pixel_values": patches, "pixel_attention_mask": mask.long(), "spatial_shapes": grids}


@pytest.mark.parametrize(
    "text, image",
    [({}, {}), ({"hidden_act": "gelu", "layer_norm_eps": 1e-3}, {"hidden_act": "relu", "layer_norm_eps": 1e-2})],
)
def test_both_towers(tmp_path: Path, text: dict, image: dict) -> None:
    model = theirs("Siglip", text, image)
    ours, tokens, x = loaded(model, tmp_path), texts(), images()
    a, b = ours(tokens=tokens, images=x, labels=True), model(tokens, x, return_loss=True)
    assert_close(a.text, b.text_embeds, "text")
    assert_close(a.image, b.image_embeds, "image")
    assert_close(a.logits, b.logits_per_image, "logits")
    assert_same(ours, model, a.loss, b.loss)
    assert_writes_back(ours, model, tmp_path, input_ids=tokens, pixel_values=x)


def test_sizes_of_one_batch(tmp_path: Path) -> None:
    """NaFlex: images of different sizes, whose padding never matters, and positions resized to the grid of each."""
    model = theirs("Siglip2")
    ours, tokens, x, sizes = loaded(model, tmp_path), texts(), images(28, 21), GRIDS * 7
    inputs = {"input_ids": tokens, **naflex_inputs(x)}
    a, b = ours(tokens=tokens, images=x, sizes=sizes, labels=True), model(**inputs, return_loss=True)
    assert_close(a.logits, b.logits_per_image, "logits")
    assert_same(ours, model, a.loss, b.loss)
    for n, (height, width) in enumerate(sizes.tolist()):
        alone = ours(images=x[n : n + 1, :, :height, :width]).image
        assert_close(a.image[n : n + 1], alone, f"image {n} alone", 1e-5)
        x[n, :, height:], x[n, :, :, width:] = torch.nan, torch.inf
    assert torch.equal(ours(images=x, sizes=sizes).image, a.image)
    assert_writes_back(ours, model, tmp_path, **inputs)


@pytest.mark.parametrize("name", ["Siglip", "Siglip2"])
def test_lengths_fill_up_texts(tmp_path: Path, name: str) -> None:
    """Texts with lengths give what the padding token up to all positions gives, which the model was trained with."""
    model, lengths = theirs(name), torch.tensor([9, 3, 6])
    ours, tokens = loaded(model, tmp_path), texts()
    filled = functional.pad(tokens, (0, 4)).masked_fill(torch.arange(13) >= lengths[:, None], 4)
    wanted = functional.normalize(model.get_text_features(filled).pooler_output, dim=-1)
    assert_same(ours, model, ours(tokens=tokens, lengths=lengths).text, wanted)
    with pytest.raises(BadInput, match="14 tokens; this model reads 13"):
        ours(tokens=texts(14), lengths=torch.tensor([14, 3, 6]))


@pytest.mark.parametrize("name", ["Siglip", "Siglip2"])
def test_text_tower(tmp_path: Path, name: str) -> None:
    config = getattr(transformers, f"{name}TextConfig")(**TEXT, projection_size=7)
    model = random_weights(getattr(transformers, f"{name}TextModel")(config))
    ours, tokens = loaded(model, tmp_path), texts()
    a, b = ours(tokens=tokens), model(tokens)
    assert_close(a.hidden, b.last_hidden_state, "hidden")
    assert_same(ours, model, a.text, functional.normalize(b.pooler_output, dim=-1))
    assert_writes_back(ours, model, tmp_path, input_ids=tokens)


def test_a_rest_that_no_patch_reads(tmp_path: Path) -> None:
    """As of 384 pixels by patches of 14 in the largest models."""
    config = transformers.SiglipVisionConfig(**{**FIXED, "image_size": 3 * FIXED["patch_size"] - 1})
    model = random_weights(transformers.SiglipVisionModel(config))
    ours, x = loaded(model, tmp_path), images(config.image_size, config.image_size)
    assert_same(ours, model, ours(images=x).hidden, model(x).last_hidden_state)
    assert_writes_back(ours, model, tmp_path, pixel_values=x)
    with pytest.raises(BadInput, match="is not cut by patches"):
        ours(images=images(config.image_size + 2, config.image_size))


@pytest.mark.parametrize("head", [True, False])
def test_vision_tower(tmp_path: Path, head: bool) -> None:
    config = transformers.SiglipVisionConfig(**FIXED, vision_use_head=head)
    model = random_weights(transformers.SiglipVisionModel(config))
    ours, x = loaded(model, tmp_path), images()
    assert_same(ours, model, ours(images=x).hidden, model(x).last_hidden_state)
    if head:
        assert_same(ours, model, ours(images=x).pooled, model(x).pooler_output)
    assert_writes_back(ours, model, tmp_path, pixel_values=x)


def test_naflex_tower(tmp_path: Path) -> None:
    model = random_weights(transformers.Siglip2VisionModel(transformers.Siglip2VisionConfig(**NAFLEX)))
    ours, x = loaded(model, tmp_path), images(28, 21)
    a, b = ours(images=x, sizes=GRIDS * 7), model(**naflex_inputs(x))
    real = torch.arange(9) < GRIDS.prod(1)[:, None]
    assert_close(a.hidden[real], b.last_hidden_state[real], "hidden")
    assert_same(ours, model, a.pooled, b.pooler_output)
    assert_writes_back(ours, model, tmp_path, **naflex_inputs(x))


def test_images_of_another_size(tmp_path: Path) -> None:
    model = theirs()
    ours, x = loaded(model, tmp_path), images(21, 35)
    wanted = model.get_image_features(x, interpolate_pos_encoding=True).pooler_output
    assert_same(ours, model, ours(images=x).image, functional.normalize(wanted, dim=-1))


@pytest.mark.parametrize("height, width, patch, most", [(480, 640, 16, 256), (37, 1001, 14, 100), (999, 31, 16, 7)])
def test_pixels_that_fit(height: int, width: int, patch: int, most: int) -> None:
    """The grid of the largest scale, both sides rounded up to whole patches, that has at most so many."""
    scales = torch.linspace(1e-4, 10, 1_000_000, dtype=torch.float64)
    rows, columns = ((side * scales / patch).ceil().clamp(min=1) for side in (height, width))
    largest = int((rows * columns <= most).nonzero().max())
    assert fit_patches(height, width, patch, most) == (int(rows[largest]) * patch, int(columns[largest]) * patch)


def test_published_sizes() -> None:
    with torch.device("meta"):
        counts = [sum(p.numel() for p in make().build().parameters()) for make in (siglip, siglip2)]
    assert counts == [203_155_970, 375_234_050]


def test_sigmoid_loss_of_labels() -> None:
    """Two images may have one text; the loss is that of all pairs by their labels."""
    logits = torch.randn(3, 2, generator=torch.Generator().manual_seed(0))
    signs = torch.tensor([[1.0, -1], [-1, 1], [1, -1]])
    by_hand = -(signs * logits).sigmoid().log().sum() / 3
    torch.testing.assert_close(sigmoid_loss(logits, torch.tensor([0, 1, 0])), by_hand)
    with pytest.raises(BadInput, match="3 images and 2 texts"):
        sigmoid_loss(logits, True)


def test_gemma_padding(tmp_path: Path) -> None:
    """SigLIP 2's configurations name the padding token of the first SigLIP; Gemma's tokenizer pads with 0."""
    siglip(text={"layers": 1, "dim": 8, "heads": 2, "hidden": 4}, image=None, vocabulary=256_000).build().save(
        tmp_path, format="huggingface"
    )
    assert json.loads((tmp_path / "config.json").read_text())["pad_token_id"] == 1
    assert load(tmp_path).config.text.fill == 0


def test_refusals(tmp_path: Path) -> None:
    config = transformers.SiglipConfig(text_config=TEXT, vision_config=FIXED)
    transformers.SiglipForImageClassification(config).save_pretrained(tmp_path / "classes")
    with pytest.raises(Unsupported, match="SigLIP has a head of classes"):
        load(tmp_path / "classes")
    theirs(text={"projection_size": 7}).save_pretrained(tmp_path / "unequal")
    with pytest.raises(Unsupported, match="projects texts to 7 dims"):
        load(tmp_path / "unequal")
    with pytest.raises(BadInput, match="siglip2's patches is 10"):
        siglip2(patches=10)
    tower = {"layers": 1, "dim": 8, "heads": 2, "hidden": 4}
    ours = siglip2(text=None, image=tower, patches=4, patch=7, channels=2).build()
    with pytest.raises(BadInput, match=r"sizes is torch.int64 \[2, 2\]"):
        ours(images=images(), sizes=torch.tensor([[7, 7], [7, 7]]))
    with pytest.raises(BadInput, match="21 × 7 pixels, and images have 14 × 14"):
        ours(images=images(), sizes=torch.tensor([[7, 7], [21, 7], [7, 7]]))
    with pytest.raises(BadInput, match="8 × 7 pixels is not cut"):
        ours(images=images(), sizes=torch.tensor([[7, 7], [8, 7], [7, 7]]))


def test_compiles_whole() -> None:
    tower = {"layers": 1, "dim": 8, "heads": 2, "hidden": 4}
    model = random_weights(siglip(text=tower, image=tower, vocabulary=31, size=14, patch=7, channels=2).build())
    whole = torch.compile(model, fullgraph=True, backend="eager")
    inputs = {"tokens": texts(), "lengths": torch.tensor([9, 3, 4]), "images": images(), "labels": True}
    torch.testing.assert_close(whole(**inputs).loss, model(**inputs).loss)
