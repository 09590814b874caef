"""Differential attention against transformers' DiffLlama, and gates against Qwen3-Next, with their weights."""

import pytest
import torch
from transformers import DiffLlamaConfig, Qwen3NextConfig
from transformers.models.diffllama.modeling_diffllama import DiffLlamaAttention, DiffLlamaRotaryEmbedding
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextAttention, Qwen3NextRotaryEmbedding

import regard as rg
from regard.errors import BadInput
from regard.models.config import as_dict, from_dict
from regard.nn import Cache, DifferentialConfig, GateConfig, MultiHeadAttention, Stack, StackConfig
from regard.nn.activations import ZeroRMSNorm

DIM, HEADS, KV_HEADS, HEAD_DIM, TOKENS = 24, 4, 2, 6, 11
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}  # their cosines and sines are float32


def their_output(theirs, rotary, x):
    embeddings = rotary(x, torch.arange(x.shape[1])[None])
    allowed = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
    mask = torch.zeros(allowed.shape, dtype=x.dtype).masked_fill(~allowed, torch.finfo(x.dtype).min)[None, None]
    return theirs(x, position_embeddings=embeddings, attention_mask=mask)[0]


def assert_same(theirs, rotary, mine, wanted_gradients, generator):
    x = torch.randn(2, TOKENS, DIM, generator=generator, dtype=torch.float64)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    wanted, y = their_output(theirs, rotary, a), mine(b)
    torch.testing.assert_close(y, wanted, **TOLERANCE)
    grad = torch.randn(y.shape, generator=generator, dtype=torch.float64)
    wanted.backward(grad)
    y.backward(grad)
    torch.testing.assert_close(b.grad, a.grad, **TOLERANCE)
    grads, theirs_grads = {name: p.grad for name, p in mine.named_parameters()}, wanted_gradients()
    assert grads.keys() == theirs_grads.keys()
    for name, grad in theirs_grads.items():
        torch.testing.assert_close(grads[name], grad, rtol=1e-5, atol=1e-4, msg=name)


def differential_name(name):
    for letter in "qkvo":
        name = name.replace(f"{letter}_proj", "out" if letter == "o" else letter)
    return f"differential.{name}" if name.startswith("lambda") else name


def make_differential(layer, bias):
    config = DiffLlamaConfig(
        hidden_size=DIM,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        attention_bias=bias,
        attn_implementation="eager",
        rms_norm_eps=1e-5,
    )
    theirs, rotary = DiffLlamaAttention(config, layer).double(), DiffLlamaRotaryEmbedding(config)
    mine = MultiHeadAttention(
        DIM,
        HEADS,
        kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        bias="qkvo" if bias else "",
        differential=DifferentialConfig(),
        position=rg.Rotary(),
        mask=rg.Causal(),
        layer=layer,
    ).double()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    mine.load_state_dict({differential_name(name): value for name, value in theirs.state_dict().items()})
    return theirs, rotary, mine


@pytest.mark.parametrize(("layer", "bias"), [(0, False), (3, True)])
def test_outputs_and_gradients_are_those_of_diffllama(layer, bias, generator):
    theirs, rotary, mine = make_differential(layer, bias)
    gradients = lambda: {differential_name(name): p.grad for name, p in theirs.named_parameters()}  # noqa: E731
    assert_same(theirs, rotary, mine, gradients, generator)


def test_watch_shows_both_maps(generator):
    """The output follows from the two maps that a view has, head h and head h + heads/2."""
    _, _, mine = make_differential(1, False)
    x = torch.randn(1, TOKENS, DIM, generator=generator, dtype=torch.float64)
    with rg.watch(mine, weights=True) as views:
        y = mine(x)
    maps = views["attend"].weights
    assert maps.shape == (1, HEADS, TOKENS, TOKENS)
    values = mine.v(x).unflatten(-1, (KV_HEADS, HEAD_DIM)).transpose(1, 2)
    joined = torch.cat([values[:, 0], values[:, 1]], -1)
    first, second = maps.chunk(2, dim=1)
    difference = (first - mine.differential.subtraction_weight() * second) @ joined[:, None]
    mixed = (1 - mine.differential.start) * mine.differential.norm(difference)
    torch.testing.assert_close(mine.out(mixed.transpose(1, 2).flatten(2)), y)


def test_a_stack_with_a_cache(generator):
    config = StackConfig(
        *(DIM, 2, HEADS),
        kv_heads=KV_HEADS,
        attention=DifferentialConfig(),
        gate=GateConfig(by_head=True),
        mask=rg.Causal(),
        position=rg.Rotary(),
    )
    assert from_dict(as_dict(config)) == config
    stack = Stack(config).eval()
    x, cache, steps = torch.randn(2, TOKENS, DIM, generator=generator), Cache(), []
    with torch.no_grad():
        for part in x.split(4, dim=1):
            cache = cache.next()
            steps.append(stack(part, cache=cache))
            cache.length += part.shape[1]
        torch.testing.assert_close(torch.cat(steps, 1), stack(x), rtol=1e-4, atol=1e-5)
        short = stack(x, lengths=torch.tensor([TOKENS, 4]))
        torch.testing.assert_close(short[1, :4], stack(x[1:, :4])[0], rtol=1e-4, atol=1e-5)


def test_gates_and_norms_are_those_of_qwen3_next(generator):
    """Its output gate stands in q's projection, beside the queries of each head; q and k have norms of a head."""
    config = Qwen3NextConfig(
        hidden_size=DIM,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=8,
        attention_bias=False,
        attn_implementation="eager",
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    )
    theirs, rotary = Qwen3NextAttention(config, 0).double(), Qwen3NextRotaryEmbedding(config)
    mine = MultiHeadAttention(
        DIM,
        HEADS,
        kv_heads=KV_HEADS,
        head_dim=8,
        bias="",
        gate=GateConfig(),
        qk_norms=(ZeroRMSNorm(8, eps=config.rms_norm_eps), ZeroRMSNorm(8, eps=config.rms_norm_eps)),
        position=rg.Rotary(dim=4),
        mask=rg.Causal(),
    ).double()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)

    def convert(tensors):
        q, gate = tensors["q_proj.weight"].unflatten(0, (HEADS, 2, 8)).unbind(1)
        return {
            "q.weight": q.flatten(0, 1),
            "output_gate.linear.weight": gate.flatten(0, 1),
            "k.weight": tensors["k_proj.weight"],
            "v.weight": tensors["v_proj.weight"],
            "out.weight": tensors["o_proj.weight"],
            "q_norm.weight": tensors["q_norm.weight"],
            "k_norm.weight": tensors["k_norm.weight"],
        }

    mine.load_state_dict(convert(theirs.state_dict()))
    assert_same(theirs, rotary, mine, lambda: convert({n: p.grad for n, p in theirs.named_parameters()}), generator)


@pytest.mark.parametrize("by_head", [False, True])
def test_gated_values_are_multiplied_before_attention(by_head, generator):
    layer = MultiHeadAttention(DIM, HEADS, kv_heads=KV_HEADS, gate=GateConfig("values", by_head, bias=True))
    x, memory = (torch.randn(2, tokens, DIM, generator=generator) for tokens in (5, 7))
    q, k, v = (
        part(y).unflatten(-1, (-1, HEAD_DIM)) for part, y in ((layer.q, x), (layer.k, memory), (layer.v, memory))
    )
    gate = torch.sigmoid(layer.value_gate.linear(memory))
    v = v * (gate[..., None] if by_head else gate.unflatten(-1, (KV_HEADS, HEAD_DIM)))
    mixed = rg.attend(*(y.transpose(1, 2) for y in (q, k, v))).transpose(1, 2).flatten(2)
    torch.testing.assert_close(layer(x, memory), layer.out(mixed))


def test_gates_close_and_open(generator):
    layer = MultiHeadAttention(DIM, HEADS, bias="", gate=GateConfig(bias=True))
    plain = MultiHeadAttention(DIM, HEADS, bias="")
    plain.load_state_dict({n: x for n, x in layer.state_dict().items() if not n.startswith("output_gate")})
    x = torch.randn(2, 5, DIM, generator=generator)
    with torch.no_grad():
        layer.output_gate.linear.weight.zero_()
        for bias, wanted in ((50.0, plain(x)), (-50.0, torch.zeros_like(x))):
            layer.output_gate.linear.bias.fill_(bias)
            torch.testing.assert_close(layer(x), wanted)


def test_wrong_configurations_are_refused():
    with pytest.raises(BadInput, match="both must be even"):
        MultiHeadAttention(DIM, 3, differential=DifferentialConfig())
    with pytest.raises(BadInput, match="'output' or 'values'"):
        GateConfig("keys")
