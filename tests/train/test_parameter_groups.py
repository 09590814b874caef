"""Rates by layer and head, and weights that are not trained."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import regard as rg
from regard.models.families.bert import bert
from regard.models.heads import ClassificationHeadConfig
from regard.settings import Training
from regard.train.trainer import freeze_weights, make_optimizer


def classifier() -> nn.Module:
    head = ClassificationHeadConfig(3, 12, pool="first")
    return bert(layers=2, dim=12, heads=3, hidden=20, vocabulary=11, positions=8, pooler=False, head=head).build()


def rates(model: nn.Module, training: Training) -> dict[str, float]:
    """The rate factor of each parameter."""
    groups = make_optimizer(model, training).param_groups
    factor = {id(parameter): group["rate_factor"] for group in groups for parameter in group["params"]}
    return {name: factor[id(parameter)] for name, parameter in model.named_parameters() if id(parameter) in factor}


def test_rates_fall_from_the_head_to_the_embeddings() -> None:
    factors = rates(classifier(), Training(learning_rate=1e-4, layer_decay=0.5, head_learning_rate=1e-3))
    assert factors["head.out.weight"] == pytest.approx(10.0)
    assert factors["stack.blocks.1.attention.q.weight"] == 1.0
    assert factors["stack.blocks.0.feed_forward.up.bias"] == 0.5
    assert factors["embed.tokens.weight"] == factors["embed.norm.weight"] == 0.25


def test_the_fused_optimizer_makes_the_same_steps() -> None:
    weights = []
    for fused in (False, True):
        torch.manual_seed(0)
        model = classifier()
        optimizer = make_optimizer(model, Training(layer_decay=0.5, learning_rate=0.01), fused=fused)
        generator = torch.Generator().manual_seed(1)
        for _ in range(5):
            for parameter in model.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=generator)
            optimizer.step()
        weights.append(dict(model.named_parameters()))
    for name, weight in weights[0].items():
        torch.testing.assert_close(weights[1][name], weight, msg=name)


def test_one_rate_gives_the_two_groups_of_matrices_and_vectors() -> None:
    groups = make_optimizer(classifier(), Training()).param_groups
    assert [(group["rate_factor"], group["weight_decay"]) for group in groups] == [(1.0, 0.01), (1.0, 0.0)]
    assert all(p.dim() > 1 for p in groups[0]["params"]) and all(p.dim() <= 1 for p in groups[1]["params"])


@pytest.mark.parametrize(
    ("freeze", "trained"),
    [
        ("none", {"embed", "0", "1", "head"}),
        ("embeddings", {"0", "1", "head"}),
        ("1", {"1", "head"}),
        ("all", {"head"}),
    ],
)
def test_frozen_weights_are_not_trained(freeze: str, trained: set[str]) -> None:
    model = classifier()
    freeze_weights(model, freeze)
    names = {name.split(".")[2 if ".blocks." in name else 0] for name in rates(model, Training())}
    assert names == trained


def test_nothing_to_train_is_said() -> None:
    model = classifier()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(rg.BadInput, match="Every weight is frozen"):
        make_optimizer(model, Training())


def test_freeze_must_be_known() -> None:
    with pytest.raises(rg.BadInput, match="none, embeddings, all, or a number of layers"):
        Training(freeze="some")
