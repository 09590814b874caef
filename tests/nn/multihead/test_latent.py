"""Latent attention against transformers' DeepSeek-V2 and V3, with their weights."""

import pytest
import torch
import torch.distributed as dist
from transformers import DeepseekV2Config, DeepseekV3Config, DynamicCache
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Attention, DeepseekV2RotaryEmbedding
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention, DeepseekV3RotaryEmbedding

import regard as rg
from regard.errors import BadInput, Unsupported
from regard.models.config import as_dict, from_dict
from regard.nn import Cache, LatentConfig, MultiHeadLatentAttention, Stack, StackConfig
from regard.nn.parts.rotary import ScaledRotary, YarnRotary

DIM, HEADS, TOKENS = 24, 3, 11
SIZES = {"kv_rank": 10, "key_dim": 6, "rotary_dim": 4, "value_dim": 5}
NAMES = {
    "q_a_proj": "q_down",
    "q_a_layernorm": "q_norm",
    "q_b_proj": "q",
    "q_proj": "q",
    "kv_a_proj_with_mqa": "kv_down",
    "kv_a_layernorm": "kv_norm",
    "kv_b_proj": "kv",
    "o_proj": "out",
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 8,
    "mscale": 1.0,
    "mscale_all_dim": 0.7,
    "beta_fast": 32,
    "beta_slow": 1,
}


def make_pair(version=3, q_rank=7, bias=False, rope=None, interleaved=True):
    """Their layer, their rotary embedding, and ours with the same weights; float64 but for rotary in version 2."""
    sizes = dict(
        hidden_size=DIM,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        q_lora_rank=q_rank,
        kv_lora_rank=SIZES["kv_rank"],
        qk_nope_head_dim=SIZES["key_dim"],
        qk_rope_head_dim=SIZES["rotary_dim"],
        v_head_dim=SIZES["value_dim"],
        attention_bias=bias,
        attn_implementation="eager",
        max_position_embeddings=64,
    )
    sizes |= {} if rope is None else {"rope_parameters": rope}
    if version == 3:
        config = DeepseekV3Config(**sizes, rope_interleave=interleaved)
        theirs, rotary = DeepseekV3Attention(config, 0), DeepseekV3RotaryEmbedding(config)
    else:
        config = DeepseekV2Config(**sizes)
        theirs, rotary = DeepseekV2Attention(config, 0), DeepseekV2RotaryEmbedding(config)
    theirs = theirs.double()
    layout = "interleaved" if interleaved else "halves"
    position, score = ScaledRotary(layout=layout), rg.Dot()
    if rope is not None:
        magnitude = rotary.attention_scaling
        options = {"factor": 4.0, "original": 8, "scale": magnitude, "layout": layout}
        position, score = YarnRotary(**options), rg.Dot(scale=theirs.scaling)
    mine = MultiHeadLatentAttention(
        DIM,
        HEADS,
        LatentConfig(**SIZES, q_rank=q_rank),
        bias="qko" if bias else "",
        position=position,
        score=score,
        mask=rg.Causal(),
    ).double()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    mine.load_state_dict({rename(name): value for name, value in theirs.state_dict().items()})
    return theirs, rotary, mine


def rename(name):
    module, field = name.rsplit(".", 1)
    return f"{NAMES[module]}.{field}"


def their_output(theirs, rotary, x, start=0, cache=None):
    positions = torch.arange(start, start + x.shape[1])[None]
    embeddings = rotary(x, positions)
    keys = start + x.shape[1]
    allowed = torch.ones(keys, keys, dtype=torch.bool).tril()[start:]
    mask = torch.zeros(allowed.shape, dtype=x.dtype).masked_fill(~allowed, torch.finfo(x.dtype).min)[None, None]
    return theirs(x, position_embeddings=embeddings, attention_mask=mask, past_key_values=cache)[0]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"q_rank": None, "bias": True},
        {"interleaved": False, "bias": True},
        {"rope": YARN},
        {"version": 2},
        {"version": 2, "q_rank": None},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
def test_outputs_and_gradients_are_those_of_deepseek(options, generator):
    theirs, rotary, mine = make_pair(**options)
    x = torch.randn(2, TOKENS, DIM, generator=generator, dtype=torch.float64)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    wanted, y = their_output(theirs, rotary, a), mine(b)
    tolerance = {"rtol": 1e-5, "atol": 1e-5}  # their cosines and sines are float32
    torch.testing.assert_close(y, wanted, **tolerance)
    grad = torch.randn(y.shape, generator=generator, dtype=torch.float64)
    wanted.backward(grad)
    y.backward(grad)
    torch.testing.assert_close(b.grad, a.grad, **tolerance)
    grads = {name: parameter.grad for name, parameter in mine.named_parameters()}
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(grads.pop(rename(name)), parameter.grad, rtol=1e-5, atol=1e-4, msg=name)
    assert not grads


@pytest.mark.parametrize("version", [2, 3])
def test_cached_outputs_are_those_of_deepseek(version, generator):
    """A prompt, then single tokens, which attend to the latents themselves; and the same without a cache."""
    theirs, rotary, mine = make_pair(version)
    x = torch.randn(2, TOKENS, DIM, generator=generator, dtype=torch.float64)
    cache, whole, their_cache = Cache(), mine(x), DynamicCache()
    start = 0
    with torch.no_grad():
        for tokens in (5, 1, 1, 4):
            part = x[:, start : start + tokens]
            cache = cache.next()
            y = mine(part, cache=cache.layer(0))
            cache.length += tokens
            wanted = their_output(theirs, rotary, part, start, their_cache)
            torch.testing.assert_close(y, wanted, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(y, whole[:, start : start + tokens])
            start += tokens
    latent, shared = cache.entries["0.latent"].tensors()
    assert latent.shape == (2, 1, TOKENS, SIZES["kv_rank"]) and shared.shape == (2, 1, TOKENS, SIZES["rotary_dim"])


def test_absorbed_and_expanded_keys_have_the_same_weights_and_gradients(generator):
    layer = make_pair()[2]
    x = torch.randn(2, TOKENS, DIM, generator=generator, dtype=torch.float64)
    results = []
    for absorbs in (True, False):
        layer.absorbs = lambda *_, absorbs=absorbs: absorbs
        layer.zero_grad()
        with rg.watch(layer, weights=True) as views:
            y = layer(x)
        y.square().sum().backward()
        results.append([y.detach(), views["attend"].weights, *(p.grad.clone() for p in layer.parameters())])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(("queries", "absorbs"), [(1, True), (3, True), (90, False)])
def test_few_queries_are_absorbed(queries, absorbs):
    config = LatentConfig(kv_rank=64, key_dim=8, rotary_dim=4, value_dim=8)
    layer, cache = MultiHeadLatentAttention(DIM, HEADS, config), Cache(length=5)
    q = torch.zeros(1, HEADS, queries, 12)
    assert layer.absorbs(q, torch.zeros(1, 1, 5, 64), None, cache.layer(0)) == absorbs
    assert not layer.absorbs(q, torch.zeros(1, 1, 5, 64), None, None)


def test_a_stack_of_latent_attention(generator):
    """Padding, caches and JSON, as of other stacks; other parts go with it."""
    latent = LatentConfig(**SIZES, q_rank=7)
    config = StackConfig(DIM, 2, HEADS, attention=latent, bias="", mask=rg.Causal(), position=rg.Rotary(), norm="rms")
    assert from_dict(as_dict(config)) == config
    stack = Stack(config).eval()
    x = torch.randn(2, TOKENS, DIM, generator=generator)
    lengths = torch.tensor([TOKENS, 6])
    y = stack(x, lengths=lengths)
    torch.testing.assert_close(stack(x[1:, :6]), y[1:, :6], rtol=1e-4, atol=1e-5)
    cache, steps = Cache(), []
    with torch.no_grad():
        for part in x.split(4, dim=1):
            cache = cache.next()
            steps.append(stack(part, cache=cache))
            cache.length += part.shape[1]
    torch.testing.assert_close(torch.cat(steps, 1), stack(x), rtol=1e-4, atol=1e-5)
    other = StackConfig(
        DIM, 1, HEADS, attention=latent, position=rg.Alibi(), sink="LearnedSink()", mask=rg.Window(3, 3)
    )
    assert Stack(other)(x).shape == x.shape


def test_it_runs_sharded(generator, tmp_path):
    """Inside a layout, attention is that of the whole sequence; here of one process."""
    layer = make_pair()[2]
    x = torch.randn(2, TOKENS, DIM, generator=generator, dtype=torch.float64)
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        layout, whole = rg.shard(rg.Causal(), TOKENS), layer(x)
        with layout:
            torch.testing.assert_close(layer(layout.split(x, 1)), layout.split(whole, 1))
            with pytest.raises(Unsupported, match="not sharded"):
                layer(x, cache=Cache().layer(0))
    finally:
        dist.destroy_process_group()


def test_wrong_configurations_are_refused():
    latent = LatentConfig(**SIZES)
    with pytest.raises(BadInput, match="takes no gate"):
        StackConfig(DIM, 1, HEADS, attention=latent, kv_heads=1)
    with pytest.raises(Unsupported, match="Linformer"):
        MultiHeadLatentAttention(DIM, HEADS, latent, method="LearnedLinformer(tokens=16, rank=4)")
    with pytest.raises(Unsupported, match="position_embedding"):
        MultiHeadLatentAttention(DIM, HEADS, latent)(torch.zeros(1, 2, DIM), position_embedding=torch.zeros(1, 2, DIM))
    with pytest.raises(Unsupported, match="not a memory in training"):
        MultiHeadLatentAttention(DIM, HEADS, latent)(torch.zeros(1, 2, DIM), cache=Cache(memory_length=4).layer(0))


@pytest.mark.parametrize("position", ["LearnedShaw(4)", "LearnedTransformerXL(24, 2)", "LearnedT5Bias(8)", "Alibi()"])
def test_positions_by_distance_are_of_the_whole_head(position, generator):
    """Only rotary positions have the rotary part of a head; a cache gives what the whole text gives."""
    config = StackConfig(24, 2, 3, attention=LatentConfig(**SIZES), position=position, mask="Causal()")
    stack, x = config.build().eval(), torch.randn(2, TOKENS, 24, generator=generator)
    with torch.no_grad():
        whole, cache, steps = stack(x), Cache(), []
        for part in x.split([4, 1, 6], dim=1):
            cache = cache.next()
            steps.append(stack(part, cache=cache))
            cache.length += part.shape[1]
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=1e-4, atol=1e-5)
