"""Explanations equal their definitions, computed by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from regard import BadInput, Unsupported
from regard.nn import MultiHeadAttention, Stack, StackConfig
from regard.nn.explain import gradient_times_attention, rollout, value_norms
from regard.nn.graphs.attention import GraphAttention
from regard.nn.hooks.edit import edit
from regard.nn.hooks.watch import Views, watch

LENGTHS = torch.tensor([6, 4])


def stack(**options) -> Stack:
    return Stack(StackConfig(**{"dim": 12, "layers": 3, "heads": 4, **options})).eval()


def run(model: nn.Module, *inputs: Tensor, weights: bool = True, **named) -> tuple[Views, Tensor]:
    with watch(model, weights=weights) as seen:
        output = model(*inputs, **named)
    return seen, output


def test_rollout_is_the_product_of_the_layers() -> None:
    seen, _ = run(stack(), torch.randn(2, 6, 12), lengths=LENGTHS)
    wanted = torch.eye(6).expand(2, 6, 6)
    for view in seen.values():
        wanted = (0.5 * torch.eye(6) + 0.5 * view.weights.mean(1)) @ wanted
    actual = rollout(seen)
    torch.testing.assert_close(actual, wanted)
    torch.testing.assert_close(actual.sum(-1), torch.ones(2, 6))
    assert not actual[1, :4, 4:].any(), "real tokens hold nothing of the padding"


def test_rollout_by_hand() -> None:
    """Two causal layers of equal weights over two tokens: the second holds ¼ of the first, then ¼ + ¾ · ¼."""
    model = stack(layers=2, mask="Causal()")
    with torch.no_grad():
        for block in model.blocks:
            block.attention.q.weight.zero_()
            block.attention.q.bias.zero_()
    seen, _ = run(model, torch.randn(1, 2, 12))
    torch.testing.assert_close(rollout(seen)[0], torch.tensor([[1.0, 0.0], [0.4375, 0.5625]]))
    torch.testing.assert_close(rollout(seen, ["blocks.0.attention"])[0], torch.tensor([[1.0, 0.0], [0.25, 0.75]]))
    torch.testing.assert_close(rollout(seen, residual=1.0)[0], torch.eye(2))


def test_rollout_of_a_silent_layer_changes_nothing() -> None:
    model = stack(layers=1)
    with edit(model, {(0, head): "silent" for head in range(4)}):
        seen, _ = run(model, torch.randn(1, 5, 12))
    torch.testing.assert_close(rollout(seen)[0], torch.eye(5))


def test_rollout_refuses_what_is_not_square_or_not_kept() -> None:
    layer = MultiHeadAttention(12, 4)
    seen, _ = run(layer, torch.randn(2, 3, 12), torch.randn(2, 5, 12))
    with pytest.raises(BadInput, match="3 queries and 5 keys"):
        rollout(seen)
    seen, _ = run(layer, torch.randn(2, 3, 12), weights=False)
    with pytest.raises(BadInput, match="weights=True"):
        rollout(seen)
    with pytest.raises(BadInput, match="No attention was seen"):
        rollout(seen, [])


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_value_norms_are_the_lengths_of_what_each_key_adds(kv_heads: int) -> None:
    layer = MultiHeadAttention(12, 4, kv_heads=kv_heads, head_dim=5)
    x, memory = torch.randn(2, 3, 12), torch.randn(2, 6, 12)
    seen, output = run(layer, x, memory, lengths=LENGTHS)
    v = layer.split_heads(layer.v(memory), kv_heads, None).repeat_interleave(4 // kv_heads, 1)
    added = torch.einsum("bhij,bhjd,ehd->bhije", seen["attend"].weights, v, layer.out.weight.unflatten(1, (4, 5)))
    torch.testing.assert_close(added.sum((1, 3)) + layer.out.bias, output)
    actual = value_norms(seen)["attend"]
    torch.testing.assert_close(actual, added.norm(dim=-1).detach())
    assert actual.shape == (2, 4, 3, 6) and not actual[1, :, :, 4:].any()


def test_value_norms_of_values_wider_than_the_model() -> None:
    layer = MultiHeadAttention(3, 2, head_dim=7)
    seen, _ = run(layer, torch.randn(1, 4, 3))
    values = seen.records["attend"][0].values
    added = torch.einsum("bhij,bhjd,ehd->bhije", seen["attend"].weights, values, layer.out.weight.unflatten(1, (2, 7)))
    torch.testing.assert_close(value_norms(seen)["attend"], added.norm(dim=-1).detach())


def test_value_norms_take_a_projection_where_none_is_found() -> None:
    layer = GraphAttention(dim_in=5, dim=6, heads=2)
    seen, _ = run(layer, torch.randn(3, 5), torch.tensor([[0, 1], [1, 2]]))
    with pytest.raises(BadInput, match="no output projection was found"):
        value_norms(seen)
    with pytest.raises(BadInput, match=r"\[6, 5\]; it must be .*\[dim, 6\]"):
        value_norms(seen, {"attend": torch.eye(6)[:, :5]})
    lengths = seen.records["attend"][0].values.norm(dim=-1)
    actual = value_norms(seen, {"attend": torch.eye(6)})["attend"]
    torch.testing.assert_close(actual, seen["attend"].weights * lengths[:, :, None])


@pytest.mark.parametrize("kv_heads", [2, 4])
def test_gradient_times_attention_is_autograds(kv_heads: int) -> None:
    """Against the gradient that autograd gives to weights which are written out."""
    layer = MultiHeadAttention(12, 4, kv_heads=kv_heads)
    x, memory = torch.randn(2, 3, 12), torch.randn(2, 6, 12)
    seen, output = run(layer, x, memory, lengths=LENGTHS)
    output.square().sum().backward()
    weights = seen["attend"].weights.requires_grad_()
    v = layer.split_heads(layer.v(memory), kv_heads, None).repeat_interleave(4 // kv_heads, 1)
    again = layer.out((weights @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(again, output)
    (gradient,) = torch.autograd.grad(again.square().sum(), weights)
    actual = gradient_times_attention(seen)["attend"]
    torch.testing.assert_close(actual, (weights * gradient).detach())
    assert not actual[1, :, :, 4:].any()


def test_gradient_times_attention_in_a_stack_with_padding() -> None:
    """The first layer's worth, against a finite change of one weight there."""
    model, x = stack(layers=2).double(), torch.randn(2, 6, 12, dtype=torch.float64)
    seen, output = run(model, x, lengths=LENGTHS)
    output.sin().sum().backward()
    worth, weights = gradient_times_attention(seen)["blocks.0.attention"], seen["blocks.0.attention"].weights

    def loss(step: float) -> float:
        def perturb(own: Tensor) -> Tensor:
            own = own.clone()
            own[1, 2, 0] += step
            own[1, 2, 3] -= step
            return own

        with edit(model, {(0, 1): perturb}), torch.no_grad():
            return model(x, lengths=LENGTHS).sin().sum().item()

    slope = (loss(1e-5) - loss(-1e-5)) / 2e-5
    gradient = worth[1, 1, 2] / weights[1, 1, 2]
    assert slope == pytest.approx((gradient[0] - gradient[3]).item(), rel=1e-5)


def test_gradients_that_never_came_and_dropout_are_refused() -> None:
    seen, _ = run(stack(), torch.randn(1, 4, 12))
    with pytest.raises(BadInput, match="call backward"):
        gradient_times_attention(seen)
    layer = MultiHeadAttention(12, 4, dropout=0.5)
    seen, output = run(layer, torch.randn(1, 4, 12))
    output.sum().backward()
    with pytest.raises(Unsupported, match=r"dropped 0\.5"):
        gradient_times_attention(seen)


def test_an_attention_that_the_scalar_does_not_depend_on_is_left_out() -> None:
    model = nn.ModuleList([MultiHeadAttention(12, 4), MultiHeadAttention(12, 4)])
    x = torch.randn(1, 4, 12)
    with watch(model, weights=True) as seen:
        first, _ = (layer(x) for layer in model)
    first.sum().backward()
    assert list(gradient_times_attention(seen)) == ["0"]
