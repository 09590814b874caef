"""Editing changes the chosen heads as it says, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import regard as rg
from regard import BadInput
from regard.nn import MultiHeadAttention, Stack, StackConfig
from regard.nn.hooks.attentions import find_attentions
from regard.nn.hooks.edit import EDITS, active_edits, edit, shuffle_weights
from regard.nn.hooks.watch import watch

LENGTHS = torch.tensor([7, 4])


def layer(**options: Any) -> MultiHeadAttention:
    return MultiHeadAttention(12, 4, kv_heads=2, mask="Causal()", **options)


def heads_of(model: MultiHeadAttention, x: Tensor, changes: dict | None = None) -> Tensor:
    """What the output projection is given, `[batch, tokens, heads, head_dim]`."""
    given: list[Tensor] = []
    handle = model.out.register_forward_pre_hook(lambda _, args: given.append(args[0]))
    with edit(model, {"attend": changes or {}}):
        model(x, lengths=LENGTHS)
    handle.remove()
    return given[0].unflatten(-1, (4, 3))


def values_of(model: MultiHeadAttention, x: Tensor, head: int) -> Tensor:
    return model.split_heads(model.v(x), 2, None)[:, head // 2]


def allowed_pairs() -> Tensor:
    return (rg.Causal() & rg.Lengths(LENGTHS)).dense(7, 7)[:, 0]


@pytest.mark.parametrize("change", ["silent", "uniform", "shuffle", torch.eye(7), lambda w: w.flip(0)])
def test_other_heads_keep_their_bits_and_the_chosen_one_changes(change: Any) -> None:
    model, x = layer(), torch.randn(2, 7, 12)
    before, after = heads_of(model, x), heads_of(model, x, {2: change})
    assert torch.equal(before[:, :, [0, 1, 3]], after[:, :, [0, 1, 3]])
    assert not torch.allclose(before[:, :, 2], after[:, :, 2])
    assert torch.equal(heads_of(model, x), before)


def test_silent_equals_taking_the_head_out_of_the_projection() -> None:
    model, x = layer(), torch.randn(2, 7, 12)
    with edit(model, {"attend": {1: "silent", 3: "silent"}}):
        actual = model(x)
    with torch.no_grad():
        model.out.weight.unflatten(1, (4, 3))[:, [1, 3]] = 0.0
    torch.testing.assert_close(actual, model(x))


def test_uniform_is_the_mean_of_the_allowed_values() -> None:
    model, x = layer(position="Alibi()"), torch.randn(2, 7, 12)
    actual = heads_of(model, x, {3: "uniform", 0: "uniform"})
    weights = allowed_pairs() / allowed_pairs().sum(-1, keepdim=True)
    for head in (0, 3):
        torch.testing.assert_close(actual[:, :, head], weights @ values_of(model, x, head))


def test_given_weights_are_used_as_they_are() -> None:
    model, x = layer(), torch.randn(2, 7, 12)
    weights = torch.rand(2, 7, 7).softmax(-1)  # the future included
    weights[1, 2] = 0.0
    actual = heads_of(model, x, {2: weights, 1: weights[0]})
    torch.testing.assert_close(actual[:, :, 2], weights @ values_of(model, x, 2))
    torch.testing.assert_close(actual[:, :, 1], weights[0] @ values_of(model, x, 1))


def test_a_function_is_given_the_heads_own_weights() -> None:
    model, x = layer(), torch.randn(2, 7, 12)
    with watch(model, weights=True) as seen:
        model(x, lengths=LENGTHS)
    given: list[Tensor] = []

    def keep(weights: Tensor) -> Tensor:
        given.append(weights)
        return weights

    same = heads_of(model, x, {2: keep})
    assert torch.equal(given[0], seen["attend"].weights[:, 2])
    torch.testing.assert_close(same, heads_of(model, x))


def test_shuffling_deals_the_same_weights_among_allowed_keys(generator: torch.Generator) -> None:
    weights = torch.rand(2, 7, 7).masked_fill(~allowed_pairs(), 0.0)
    actual = shuffle_weights(weights, allowed_pairs(), generator)
    assert torch.equal(actual.sort(-1).values, weights.sort(-1).values)
    assert not actual.masked_fill(allowed_pairs(), 0.0).any() and not torch.equal(actual, weights)
    assert torch.equal(actual, shuffle_weights(weights, allowed_pairs(), torch.Generator().manual_seed(0)))


def test_shuffling_leaves_the_default_generator_alone(generator: torch.Generator) -> None:
    model, x = layer(), torch.randn(2, 7, 12)
    state = torch.get_rng_state()
    with edit(model, {(0, 1): "shuffle"}, generator=generator):
        model(x)
    assert torch.equal(torch.get_rng_state(), state)


def test_layers_and_heads_by_number() -> None:
    model, x = Stack(StackConfig(dim=12, layers=3, heads=4)), torch.randn(2, 7, 12)
    with edit(model, {(1, 2): "silent", (2, 0): "uniform"}):
        short = model(x)
    with edit(model, {"blocks.1.attention": {2: "silent"}, "blocks.2.attention": {0: "uniform"}}):
        assert torch.equal(model(x), short)
    assert not torch.equal(model(x), short)


def test_all_of_it_holds_when_attention_is_to_a_memory() -> None:
    model, x, memory = MultiHeadAttention(12, 4), torch.randn(2, 3, 12), torch.randn(2, 5, 12)
    with edit(model, {(0, h): "uniform" for h in range(4)}):
        actual = model(x, memory)
    wanted = model.out(model.v(memory).mean(1, keepdim=True).expand(-1, 3, -1))
    torch.testing.assert_close(actual, wanted)


def test_gradients_go_through_the_values_of_an_edited_head() -> None:
    model, x = layer(), torch.randn(2, 7, 12)
    with edit(model, {"attend": {head: "uniform" for head in range(4)}}):
        model(x).square().sum().backward()
    assert model.v.weight.grad.abs().max() > 0
    assert model.q.weight.grad is None or model.q.weight.grad.abs().max() == 0


@pytest.mark.parametrize("watch_first", [True, False])
def test_watching_shows_the_weights_in_effect(watch_first: bool) -> None:
    model, x = layer(), torch.randn(2, 7, 12)
    given = torch.rand(7, 7).softmax(-1)
    changes = {"attend": {0: "silent", 1: "uniform", 2: given}}
    wish = {"top": 2, "map": (2, 3), "weights": True}
    with watch(model, **wish) as plain:
        model(x, lengths=LENGTHS)
    if watch_first:
        with watch(model, **wish) as seen, edit(model, changes):
            model(x, lengths=LENGTHS)
    else:
        with edit(model, changes), watch(model, **wish) as seen:
            model(x, lengths=LENGTHS)
    view, before = seen["attend"], plain["attend"]
    assert not view.weights[:, 0].any() and (view.lse[:, 0] == -torch.inf).all() and (view.top_keys[:, 0] == -1).all()
    torch.testing.assert_close(view.weights[:, 1], allowed_pairs() / allowed_pairs().sum(-1, keepdim=True))
    torch.testing.assert_close(view.entropy[:, 1], allowed_pairs().sum(-1).float().log())
    torch.testing.assert_close(view.weights[:, 2], given.expand(2, 7, 7))
    torch.testing.assert_close(view.received[:, 2], given.sum(0).expand(2, 7))
    torch.testing.assert_close(view.entropy[:, 2], -(given * given.log()).sum(-1).expand(2, 7))
    assert torch.equal(view.top_keys[:, 2], given.topk(2).indices.expand(2, 7, 2))
    for name in ("weights", "entropy", "map", "lse", "received"):
        assert torch.equal(getattr(view, name)[:, 3], getattr(before, name)[:, 3]), name


def test_an_edit_leaves_nothing_behind() -> None:
    model, x = layer(), torch.randn(2, 7, 12)
    attend = find_attentions(model)["attend"]
    with pytest.raises(ZeroDivisionError), edit(model, {(0, 1): "silent"}):
        raise ZeroDivisionError
    assert not attend._forward_hooks and not EDITS[attend] and not active_edits(attend)
    with watch(model, weights=True) as seen:
        model(x)
    assert seen["attend"].weights[:, 1].any()


def test_two_edits_of_different_heads_at_once() -> None:
    model, x = layer(), torch.randn(2, 7, 12)
    with edit(model, {(0, 1): "silent"}), edit(model, {(0, 2): "uniform"}):
        nested = model(x)
    with edit(model, {"attend": {1: "silent", 2: "uniform"}}):
        assert torch.equal(model(x), nested)


def test_dropout_of_the_other_heads_falls_as_without_the_edit() -> None:
    model, x = layer(dropout=0.5).train(), torch.randn(2, 7, 12)
    torch.manual_seed(3)
    before = heads_of(model, x)
    torch.manual_seed(3)
    after = heads_of(model, x, {0: "uniform", 1: "silent"})
    assert torch.equal(before[:, :, 2:], after[:, :, 2:])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attention": {0: "silent"}}, "no attention 'attention'. Did you mean 'attend'"),
        ({(1, 0): "silent"}, "no layer 1: the model has 1 attentions"),
        ({"attend": "silent"}, "give each head its own"),
        ({"attend": {-1: "silent"}}, "at least 0"),
        ({"attend": {0: "quiet"}}, "'silent', 'uniform', 'shuffle'"),
        ({"attend": {0: "silent"}, (0, 0): "uniform"}, "changed twice"),
        ({"attend": {4: "silent"}}, "attend has 4 heads, 0 … 3; there is no head 4"),
        ({"attend": {0: torch.eye(6)}}, r"weights are \[6, 6\]; this call's are .* \[2, 7, 7\]"),
        ({"attend": {0: torch.eye(7).long()}}, "int64"),
        ({"attend": {0: lambda weights: None}}, "NoneType"),
        ({"attend": {0: 1.5 * torch.eye(7)}}, "sums to neither 1 nor 0"),
        ({"attend": {0: 2 * torch.eye(7) - 1 / 7}}, "negative"),
        ({"attend": {0: torch.full((7, 7), torch.nan)}}, "no numbers"),
    ],
)
def test_refusals(changes: dict, words: str) -> None:
    model, x = layer(), torch.randn(2, 7, 12)
    with pytest.raises(BadInput, match=words), edit(model, changes):
        model(x)


def test_a_head_that_is_edited_already_is_refused() -> None:
    model = nn.Sequential(layer())
    refused = pytest.raises(BadInput, match="head 1 is edited already")
    with edit(model, {(0, 1): "silent"}), refused, edit(model, {(0, 1): "uniform"}):
        pass
