"""Longformer's layer against transformers', its masks, and its padding."""

import pytest
import torch
from transformers import LongformerConfig
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

import regard as rg
from regard.errors import BadInput
from regard.nn.sparse.longformer import LocalGlobal

DIM, HEADS, TOKENS = 8, 2, 12
CLOSE = 2e-6  # float32: theirs gives NaN in float64, where its most negative number does not fit its softmax
NAMES = ("query", "key", "value", "query_global", "key_global", "value_global")


def longformer(window):
    config = LongformerConfig(
        hidden_size=DIM, num_attention_heads=HEADS, attention_window=[window], attention_probs_dropout_prob=0.0
    )
    return LongformerSelfAttention(config, 0).eval()


def ask_longformer(theirs, x, lengths, chosen):
    """Their layer's output, with LongformerModel's mask: −, 0, + for padding, local and global."""
    real = torch.arange(x.shape[1]) < lengths[:, None]
    attention_mask = torch.where(real, torch.where(chosen, 10000.0, 0.0), -10000.0)
    return theirs(
        x,
        attention_mask=attention_mask,
        is_index_masked=attention_mask < 0,
        is_index_global_attn=attention_mask > 0,
        is_global_attn=bool((attention_mask > 0).any()),
    )[0]


def same_weights(theirs, window):
    mine = LocalGlobal(DIM, HEADS, window)
    for name in NAMES:
        getattr(mine, name).load_state_dict(getattr(theirs, name).state_dict())
    with torch.no_grad():
        mine.out.weight.copy_(torch.eye(DIM))
        mine.out.bias.zero_()
    return mine


@pytest.mark.parametrize("window", [4, 6])
@pytest.mark.parametrize("positions", [[[0], [0]], [[0, 5, 11], [2, 3]], [[], [1, 4, 6]], [[], []]])
def test_local_global_equals_longformer(positions, window, generator):
    theirs = longformer(window)
    mine = same_weights(theirs, window)
    x = torch.randn(2, TOKENS, DIM, generator=generator)
    lengths = torch.tensor([TOKENS, 7])
    chosen = torch.zeros(2, TOKENS, dtype=torch.bool)
    for row, which in zip(chosen, positions, strict=True):
        row[which] = True
    real = (torch.arange(TOKENS) < lengths[:, None])[..., None]
    grad = torch.randn(2, TOKENS, DIM, generator=generator) * real
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    y, wanted = mine(a, lengths=lengths, global_tokens=chosen), ask_longformer(theirs, b, lengths, chosen)
    assert torch.allclose(y * real, wanted * real, atol=CLOSE)
    (y * grad).sum().backward()
    (wanted * grad).sum().backward()
    assert torch.allclose(a.grad, b.grad, atol=CLOSE)
    for name in NAMES:
        for mine_p, their_p in zip(getattr(mine, name).parameters(), getattr(theirs, name).parameters(), strict=True):
            theirs_grad = torch.zeros_like(their_p) if their_p.grad is None else their_p.grad
            assert torch.allclose(mine_p.grad, theirs_grad, atol=CLOSE), name


def test_without_global_tokens_only_the_window_matters(generator):
    layer = LocalGlobal(DIM, HEADS, 4)
    x = torch.randn(1, TOKENS, DIM, generator=generator)
    none = torch.zeros(1, TOKENS, dtype=torch.bool)
    assert torch.allclose(layer(x), layer(x, global_tokens=none), atol=1e-6)
    far = x.clone()
    far[:, 5:] += 1
    assert torch.equal(layer(x)[:, :3], layer(far)[:, :3])
    assert not torch.allclose(layer(x)[:, 3], layer(far)[:, 3])


def test_a_global_token_in_the_padding_is_none(generator):
    layer = LocalGlobal(DIM, HEADS, 4)
    x = torch.randn(2, TOKENS, DIM, generator=generator)
    lengths = torch.tensor([TOKENS, 5])
    chosen = torch.zeros(2, TOKENS, dtype=torch.bool)
    chosen[1, 8] = True
    assert torch.allclose(layer(x, lengths=lengths, global_tokens=chosen), layer(x, lengths=lengths), atol=1e-6)


@pytest.mark.parametrize("positions", [[[0], [0]], [[0, 5, 11], [2, 3]], [[], [1, 4, 6]], [[], []]])
def test_while_learning_only_global_tokens_ask_and_the_same_comes_of_it(positions, generator):
    layer = LocalGlobal(DIM, HEADS, 4).double()
    x = torch.randn(2, TOKENS, DIM, generator=generator, dtype=torch.float64)
    lengths = torch.tensor([TOKENS, 7])
    chosen = torch.zeros(2, TOKENS, dtype=torch.bool)
    for row, some in enumerate(positions):
        chosen[row, some] = True

    def ask(training):
        layer.train(training)
        output = layer(x, lengths=lengths, global_tokens=chosen)
        return [output, *torch.autograd.grad(output.sin().sum(), list(layer.parameters()))]

    for got, want in zip(ask(True), ask(False), strict=True):
        torch.testing.assert_close(got, want)


def test_masks_of_the_same_global_tokens_are_made_once(generator):
    layer, x = LocalGlobal(DIM, HEADS, 4), torch.randn(1, TOKENS, DIM, generator=generator)
    chosen = torch.zeros(1, TOKENS, dtype=torch.bool)
    once, again = (layer.masks(x, None, chosen) for _ in range(2))
    assert once.local is again.local
    chosen[0, 3] = True
    anew = layer.masks(x, None, chosen)
    assert anew.local is not once.local and anew.is_global is not None and bool(anew.is_global[0, 3])


def test_local_global_visits_few_of_the_pairs(generator):
    layer, x = LocalGlobal(DIM, HEADS, 64).eval(), torch.randn(2, 4096, DIM, generator=generator)
    shares = {}

    def plan(module, arrays, parts):
        shares[module] = rg.plan(*arrays, mask=parts["mask"]).tiles

    for attend in (layer.attend, layer.attend_global):
        attend.register_forward_pre_hook(plan, with_kwargs=True)
    chosen = torch.zeros(2, 4096, dtype=torch.bool)
    chosen[:, 0] = True
    with torch.no_grad():
        layer(x, lengths=torch.tensor([4096, 3000]), global_tokens=chosen)
    assert 0 < shares[layer.attend] < 0.2 and 0 < shares[layer.attend_global] < 0.1


@pytest.mark.parametrize("counts", [(1, 1), (2, 1), (1, 0)], ids=str)
def test_few_global_tokens_need_no_keys(generator: torch.Generator, counts: tuple[int, int]) -> None:
    """Whoever hooks attention gets keys and values; without, the same comes out, and so do all gradients."""
    layer = LocalGlobal(16, 2, 4).double().train()
    x = torch.randn(2, TOKENS, 16, generator=generator, dtype=torch.float64)
    lengths, weight = torch.tensor([TOKENS, TOKENS - 3]), torch.randn(x.shape, generator=generator, dtype=x.dtype)
    chosen = torch.arange(TOKENS)[None] < torch.tensor(counts)[:, None]
    actual = []
    for hooked in (False, True):
        given, seen = x.clone().requires_grad_(), []
        handle = layer.attend_global.register_forward_hook(lambda *_, s=seen: s.append(1)) if hooked else None
        (layer(given, lengths=lengths, global_tokens=chosen) * weight).sum().backward()
        assert bool(seen) == hooked
        actual.append([given.grad, *(p.grad for p in layer.parameters())])
        layer.zero_grad()
        if handle:
            handle.remove()
    for without, with_keys in zip(*actual, strict=True):
        torch.testing.assert_close(without, with_keys, rtol=1e-9, atol=1e-11)


def replace_padding(x, noise):
    """x with other numbers behind the lengths 9 and 4."""
    other = x.clone()
    other[0, 9:], other[1, 4:] = noise, -noise
    return other


def test_padding_never_matters(generator):
    layer, lengths = LocalGlobal(DIM, HEADS, 4), torch.tensor([9, 4])
    x = torch.randn(2, 11, DIM, generator=generator)
    chosen = torch.zeros(2, 11, dtype=torch.bool)
    chosen[:, 1] = True
    y, other = (layer(given, lengths=lengths, global_tokens=chosen) for given in (x, replace_padding(x, 7.0)))
    for row, length in enumerate(lengths.tolist()):
        assert torch.equal(y[row, :length], other[row, :length])
    assert torch.allclose(y[1:, :4], layer(x[1:, :4], global_tokens=chosen[1:, :4]), atol=1e-6)


def test_empty_rows_give_numbers_and_gradients(generator):
    layer = LocalGlobal(DIM, HEADS, 2)
    x = torch.randn(2, 5, DIM, generator=generator, requires_grad=True)
    y = layer(x, lengths=torch.tensor([5, 0]))
    y.sum().backward()
    assert y.isfinite().all() and x.grad.isfinite().all() and x.grad[1].abs().sum() == 0
    assert layer(x.detach(), lengths=torch.tensor([0, 0])).isfinite().all()


def test_wrong_calls_are_refused():
    with pytest.raises(BadInput, match="window is 3"):
        LocalGlobal(DIM, HEADS, 3)
    with pytest.raises(BadInput, match=r"global_tokens is torch.int64 \[2, 4\]"):
        LocalGlobal(DIM, HEADS, 2)(torch.zeros(2, 4, DIM), global_tokens=torch.zeros(2, 4).long())
