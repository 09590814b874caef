"""Patches by hand; residual networks and image positions against transformers'."""

import math
import re

import pytest
import torch
from transformers import DetrConfig, DetrModel, ResNetConfig, ResNetModel
from transformers.models.detr.modeling_detr import DetrLearnedPositionEmbedding, DetrSinePositionEmbedding

from regard.errors import BadInput
from regard.nn.embeddings.images import (
    RESNET_BLOCKS,
    FeatureMap,
    FrozenBatchNorm,
    LearnedPositions2d,
    Patches,
    ResNet,
    SinusoidalPositions2d,
    flatten_map,
    make_shortcut,
    shrink_mask,
)


def test_patches_are_a_linear_map_of_each_square(generator):
    layer = Patches(2, 3, 5)
    images = torch.randn(2, 2, 6, 9, generator=generator, requires_grad=True)
    weight = layer.projection.weight.flatten(1)
    wanted = torch.stack(
        [
            images[:, :, r : r + 3, c : c + 3].flatten(1) @ weight.T + layer.projection.bias
            for r in (0, 3)
            for c in (0, 3, 6)
        ],
        dim=1,
    )
    assert torch.allclose(layer(images), wanted, atol=1e-5)
    grad = torch.randn(wanted.shape, generator=generator)
    mine, theirs = (torch.autograd.grad(y, (images, *layer.parameters()), grad) for y in (layer(images), wanted))
    for a, b in zip(mine, theirs, strict=True):
        assert torch.allclose(a, b, atol=1e-4)
    assert layer.grid(6, 9) == (2, 3)
    assert Patches(2, 3, 5, bias=False).projection.bias is None


@pytest.mark.parametrize("size", [(28, 28), (9, 13), (1, 1)])
def test_feature_map_has_the_grid_it_says(size, generator):
    layer = FeatureMap(1, 6, hidden=(4, 5), strides=(2, 3))
    images = torch.randn(2, 1, *size, generator=generator)
    x, grid = layer(images)
    assert grid == tuple(math.ceil(math.ceil(side / 2) / 3) for side in size)
    assert x.shape == (2, grid[0] * grid[1], 6)
    by_hand = layer.projection(layer.stages[1](layer.stages[0](images).relu()).relu())
    assert torch.equal(x[:, 0], by_hand[:, :, 0, 0]) and torch.equal(x[:, -1], by_hand[:, :, -1, -1])
    assert torch.equal(flatten_map(by_hand).x, x)


def theirs_by_ours(name):
    """Our parameter's name in transformers' ResNet."""
    name = re.sub(r"layer(\d)\.(\d+)\.", lambda m: f"encoder.stages.{int(m[1]) - 1}.layers.{m[2]}.", name)
    name = re.sub(r"downsample\.0", "shortcut.convolution", name)
    name = re.sub(r"downsample\.1", "shortcut.normalization", name)
    stem = "" if name.startswith("encoder") else "embedder.embedder."
    layer = (lambda m: f"layer.{int(m[1]) - 1}.") if not stem else (lambda m: "")
    name = re.sub(r"conv(\d)\.", lambda m: layer(m) + "convolution.", name)
    return stem + re.sub(r"bn(\d)\.", lambda m: layer(m) + "normalization.", name)


def their_resnet(depth):
    basic = depth < 50
    config = ResNetConfig(
        depths=list(RESNET_BLOCKS[depth]),
        layer_type="basic" if basic else "bottleneck",
        hidden_sizes=[64, 128, 256, 512] if basic else [256, 512, 1024, 2048],
    )
    model = ResNetModel(config).eval()
    for name, value in model.state_dict().items():
        if "normalization" in name and value.is_floating_point():
            value.copy_(torch.rand_like(value) + 0.5 if name.endswith("var") else torch.randn_like(value) * 0.3)
        if name.endswith("normalization.weight"):
            value.add_(0.7)
    return model


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("depth", [18, 50])
def test_resnet_equals_transformers(depth, frozen, generator):
    theirs, mine = their_resnet(depth), ResNet(depth, frozen_norm=frozen).eval()
    state = theirs.state_dict()
    mine.load_state_dict({name: state.pop(theirs_by_ours(name)) for name in mine.state_dict()})
    assert all(name.endswith("num_batches_tracked") for name in state)
    images = torch.randn(2, 3, 65, 40, generator=generator)
    a, b = images.clone().requires_grad_(), images.clone().requires_grad_()
    y, wanted = mine(a), theirs(b).last_hidden_state
    assert y.shape == (2, mine.dim, 3, 2)
    scale = wanted.abs().max()
    assert torch.allclose(y / scale, wanted / scale, atol=1e-5)
    y.mean().backward()
    wanted.mean().backward()
    assert torch.allclose(a.grad, b.grad, rtol=1e-3, atol=1e-5 * b.grad.abs().max().item())
    their_grads = dict(theirs.named_parameters())
    for name, parameter in mine.named_parameters():
        grad = their_grads[theirs_by_ours(name)].grad
        assert torch.allclose(parameter.grad, grad, rtol=1e-3, atol=1e-4 * grad.abs().max().item()), name


def test_resnet_50_has_the_known_number_of_parameters():
    count = sum(parameter.numel() for parameter in ResNet(50, frozen_norm=False).parameters())
    assert count == 23_508_032
    frozen = ResNet(50)
    norms = sum(2 * m.weight.numel() for m in frozen.modules() if isinstance(m, FrozenBatchNorm))
    assert sum(parameter.numel() for parameter in frozen.parameters()) == count - norms


@pytest.mark.parametrize("depth", [34, 101])
def test_other_depths_have_transformers_parameters(depth):
    with torch.device("meta"):
        mine = ResNet(depth, frozen_norm=False)
    wanted = {name: value.shape for name, value in their_shapes(depth).items()}
    assert {theirs_by_ours(name): value.shape for name, value in mine.state_dict().items()} == wanted


def their_shapes(depth):
    with torch.device("meta"):
        return their_resnet(depth).state_dict()


def test_names_are_those_of_detr_with_a_resnet_of_transformers():
    config = DetrConfig(
        backbone_config=ResNetConfig(out_features=["stage4"]),
        use_timm_backbone=False,
        encoder_layers=1,
        decoder_layers=1,
    )
    with torch.device("meta"):
        theirs, mine = DetrModel(config).state_dict(), ResNet(50).state_dict()
    wanted = {name for name in theirs if name.startswith("backbone.")}
    assert {f"backbone.model.{theirs_by_ours(name)}" for name in mine} == wanted


def test_frozen_norm_does_not_learn_and_equals_batch_norm_in_evaluation(generator):
    frozen, plain = FrozenBatchNorm(4), torch.nn.BatchNorm2d(4).eval()
    for name, buffer in frozen.named_buffers():
        buffer.copy_(torch.rand(4, generator=generator) + 0.1)
        getattr(plain, name).data.copy_(buffer)
    x = torch.randn(2, 4, 3, 5, generator=generator)
    assert torch.allclose(frozen.train()(x), plain(x), atol=1e-6)
    assert not list(frozen.parameters())


def some_mask():
    """Images of 64 × 96 and 40 × 57 pixels, padded to the larger."""
    mask = torch.zeros(2, 64, 96, dtype=torch.bool)
    mask[0], mask[1, :40, :57] = True, True
    return mask


@pytest.mark.parametrize("normalize", [True, False])
def test_sine_places_equal_detr(normalize):
    mask = shrink_mask(some_mask(), (4, 6))
    theirs = DetrSinePositionEmbedding(8, normalize=normalize)
    wanted = theirs(torch.Size([2, 16, 4, 6]), device="cpu", dtype=torch.float32, mask=mask)
    mine = SinusoidalPositions2d(16, normalize)(mask)
    assert mine.shape == (2, 24, 16)
    assert torch.allclose(mine, wanted.flatten(2).mT, atol=1e-5)


def test_learned_places_equal_detr():
    theirs, mine = DetrLearnedPositionEmbedding(5), LearnedPositions2d(10)
    mine.rows.load_state_dict(theirs.row_embeddings.state_dict())
    mine.columns.load_state_dict(theirs.column_embeddings.state_dict())
    wanted = theirs(torch.Size([2, 10, 3, 4]), "cpu", torch.float32).flatten(2).mT
    assert torch.equal(mine(torch.ones(2, 3, 4, dtype=torch.bool)), wanted)


def test_shrunken_masks_equal_detr():
    mask = some_mask()
    wanted = torch.nn.functional.interpolate(mask[None].float(), size=(5, 7)).to(torch.bool)[0]
    assert torch.equal(shrink_mask(mask, (5, 7)), wanted)


def test_wrong_calls_are_refused():
    with pytest.raises(BadInput, match="8 × 9 pixels"):
        Patches(3, 4, 8)(torch.zeros(1, 3, 8, 9))
    with pytest.raises(BadInput, match=r"\[1, 1, 8, 8\]"):
        Patches(3, 4, 8)(torch.zeros(1, 1, 8, 8))
    with pytest.raises(BadInput, match="depth is 49"):
        ResNet(49)
    with pytest.raises(BadInput, match="multiple of 4"):
        SinusoidalPositions2d(6)
    with pytest.raises(BadInput, match="60 × 3 positions"):
        LearnedPositions2d(8)(torch.ones(1, 60, 3, dtype=torch.bool))
    with pytest.raises(BadInput, match="boolean"):
        SinusoidalPositions2d(8)(torch.ones(1, 6, 3))
    with pytest.raises(BadInput, match="2 hidden sizes and 1 strides"):
        FeatureMap(3, 8, (4, 4), (2,))


def test_the_shortcut_is_the_strided_convolution():
    part = make_shortcut(4, 8, 2, torch.nn.BatchNorm2d)[0]
    x = torch.randn(2, 4, 7, 6, requires_grad=True)
    actual, wanted = part(x), torch.nn.functional.conv2d(x, part.weight, stride=2)
    assert torch.allclose(actual, wanted, atol=1e-6)
    ours, theirs = (torch.autograd.grad(y.square().sum(), (x, part.weight)) for y in (actual, wanted))
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(ours, theirs, strict=True))
