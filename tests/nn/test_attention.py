"""The layer's parts as a call takes them."""

import pytest
import torch

import regard as rg
from regard.errors import BadInput, Unsupported
from regard.nn.attention import MultiHeadAttention


def test_linformer_projects_fewer_tokens_by_its_first_columns(generator):
    """As if zeros filled them up; padding beyond a row's length changes nothing."""
    layer = MultiHeadAttention(8, 2, method="Linformer(tokens=12, rank=3)")
    x, lengths = torch.randn(2, 7, 8, generator=generator), torch.tensor([7, 4])
    actual = layer(x, lengths=lengths)
    padded = torch.cat([x, torch.randn(2, 5, 8, generator=generator)], 1)
    assert torch.allclose(layer(padded, lengths=lengths)[:, :7], actual, atol=1e-6)
    actual.square().sum().backward()
    learned = layer.method.keys.grad
    assert learned[:, :7].any() and not learned[:, 7:].any()


def test_linformer_refuses_more_tokens_than_it_projects(generator):
    layer = MultiHeadAttention(8, 2, method="Linformer(tokens=6, rank=3)")
    with pytest.raises(BadInput, match="There are 7 tokens, and Linformer\\(tokens=6\\) projects 6 at most"):
        layer(torch.randn(2, 7, 8, generator=generator))


@pytest.mark.parametrize("score", ["LearnedAdditive()", "LearnedBilinear()", rg.Cosine(4.0)])
@pytest.mark.parametrize("position", ["Rotary()", "YarnRotary(factor=4.0)"])
def test_rotary_positions_need_a_dot_product(score, position):
    """Of rotated q and k another score is not one of their distance, so a layer refuses what `attend` refuses."""
    with pytest.raises(Unsupported, match="Rotary positions are part of a dot product and need the score Dot"):
        MultiHeadAttention(8, 2, score=score, position=position)
    with pytest.raises(Unsupported, match="Rotary positions"):
        rg.nn.StackConfig(8, 2, 2, score=score, position=(None, position))


def test_parts_of_one_call_are_not_those_of_a_layer():
    for part in ({"bias": rg.PairBias(torch.zeros(3, 3))}, {"places": rg.Places(torch.arange(3))}):
        with pytest.raises(BadInput, match="which is of one call and its rows"):
            MultiHeadAttention(8, 2, parts=rg.Parts(**part))


def test_key_heads_divide_the_heads():
    with pytest.raises(BadInput, match="5 heads do not share 2 key heads evenly"):
        rg.nn.StackConfig(20, 1, 5, kv_heads=2).build()
