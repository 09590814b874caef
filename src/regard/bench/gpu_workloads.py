"""Workloads on a GPU: the same function in several implementations over the same inputs.

Calling an implementation prepares it (it may compile, or fail because a package is missing) and returns a forward pass;
the backward pass is autograd's. `eager` is the formula, which is the oracle for small sizes in float64.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.functional import leaky_relu, linear, pad, scaled_dot_product_attention

import regard as rg
from regard.attention.parts.mask import PairGrid
from regard.bench.result import ResourceNeed

Forward = Callable[[], Tensor | tuple[Tensor, ...]]
MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""`mask_mod(b, h, i, j)` of FlexAttention: whether query i may attend to key j in batch b and head h."""


class TensorFactory(NamedTuple):
    """Makes tensors on a device in a dtype, rounded to `rounding_dtype` first."""

    device: str
    dtype: torch.dtype
    rounding_dtype: torch.dtype

    def normal(self, *shape: int, seed: int, size: float = 1.0) -> Tensor:
        """Normal numbers with standard deviation `size`, the same in every dtype."""
        generator = torch.Generator(self.device).manual_seed(seed)
        numbers = size * torch.randn(shape, generator=generator, device=self.device)
        return numbers.to(self.rounding_dtype).to(self.dtype)

    def parameter(self, *shape: int, seed: int, size: float = 1.0) -> Parameter:
        """Normal numbers as a parameter."""
        return Parameter(self.normal(*shape, seed=seed, size=size))


class Workload(NamedTuple):
    """One function of `inputs` by implementation; without inputs there is no backward pass."""

    inputs: tuple[Tensor, ...]
    implementations: Mapping[str, Callable[[], Forward]]
    need: ResourceNeed


def attend_scores(scores: Tensor, v: Tensor, allowed: Tensor | None = None) -> Tensor:
    """softmax(scores) v; a row without an allowed key gives zeros."""
    if allowed is None:
        return scores.softmax(-1).to(v.dtype) @ v
    weights = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min).softmax(-1)
    return (weights * allowed.any(-1, keepdim=True)).to(v.dtype) @ v


def scaled_dot_products(q: Tensor, k: Tensor) -> Tensor:
    """q kᵀ / √dim, `[batch, heads, queries, keys]`."""
    return q @ k.mT / math.sqrt(q.shape[-1])


def mask_matrix(mask_mod: MaskMod, batch: int, tokens: int, device: str) -> Tensor:
    """The mask as a matrix, `[batch or 1, 1, tokens, tokens]`."""
    b, index = torch.arange(batch, device=device), torch.arange(tokens, device=device)
    allowed = mask_mod(b.view(-1, 1, 1, 1), torch.zeros_like(b[:1]), index[:, None], index)
    return allowed.reshape(*(1,) * (4 - allowed.dim()), *allowed.shape)


def prepare_flex_attention(
    x: Sequence[Tensor],
    mask_mod: MaskMod | None = None,
    score_mod: Callable[..., Tensor] | None = None,
    batch: int | None = None,
    block: int = 128,
    tile: tuple[int, int] | None = None,
    lse: bool = False,
) -> Callable[[], Any]:
    """FlexAttention, compiled on a GPU; on a CPU it has no backward pass. `tile` overrides the forward tile.

    With `lse` it returns (output, what has the log-sum-exp as `lse`).
    """
    from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

    q, k, v = x if x[0].is_cuda else (y.detach() for y in x)
    run = torch.compile(flex_attention, dynamic=False) if q.is_cuda else flex_attention
    sizes, blocks = (q.shape[2], k.shape[2]), None
    if mask_mod is not None:
        blocks = create_block_mask(mask_mod, batch, None, *sizes, device=str(q.device), BLOCK_SIZE=block)
    if block < 128:  # the default tile of 128 queries does not fit into smaller blocks
        tile = block, block
    options = None if tile is None else {"fwd_BLOCK_M": tile[0], "fwd_BLOCK_N": tile[1]}
    fixed: dict[str, Any] = {"score_mod": score_mod, "block_mask": blocks, "kernel_options": options}
    fixed |= {"return_aux": AuxRequest(lse=True)} if lse else {}
    return lambda: run(q, k, v, **fixed)


def compile_forward(function: Callable[..., Tensor], *x: object) -> Forward:
    """The function compiled for these arguments."""
    run = torch.compile(function, dynamic=False)
    return lambda: run(*x)


def random_qkv(
    tensors: TensorFactory, batch: int, heads: int, tokens: int, dim: int
) -> tuple[Parameter, Parameter, Parameter]:
    """q, k, v of one size."""
    q, k, v = (tensors.parameter(batch, heads, tokens, dim, seed=seed) for seed in range(3))
    return q, k, v


def matmul_need(pairs: float, dim: int, forward: int = 2, backward: int = 5) -> ResourceNeed:
    """The operations of `forward` and `backward` matrix products of 2·dim per pair; backward recomputes the scores."""
    return ResourceNeed("matrix products", 2.0 * forward * pairs * dim, 2.0 * (forward + backward) * pairs * dim)


def dense(tensors: TensorFactory, batch: int, heads: int, tokens: int, dim: int) -> Workload:
    """Causal softmax(q kᵀ / √dim) v."""
    x = random_qkv(tensors, batch, heads, tokens, dim)

    def eager() -> Tensor:
        return attend_scores(
            scaled_dot_products(x[0], x[1]), x[2], mask_matrix(lambda b, h, i, j: j <= i, 1, tokens, tensors.device)
        )

    implementations = {
        "regard": lambda: lambda: rg.attend(*x, mask=rg.Causal()),
        "SDPA": lambda: lambda: scaled_dot_product_attention(*x, is_causal=True),
        "SDPA, cuDNN": lambda: lambda: cudnn_sdpa(*x, is_causal=True),
        "eager": lambda: eager,
    }
    return Workload(x, implementations, matmul_need(batch * heads * tokens * (tokens + 1) / 2, dim))


def cudnn_sdpa(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False, enable_gqa: bool = False) -> Tensor:
    """SDPA with cuDNN's kernel only; on a CPU with any kernel."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION) if q.is_cuda else nullcontext():
        return scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=enable_gqa)


def window(
    tensors: TensorFactory, batch: int, heads: int, tokens: int, dim: int, before: int, after: int, alibi: bool = False
) -> Workload:
    """i − before ≤ j ≤ i + after, optionally with −slope·|i − j|; `heads` is a power of two."""
    x = random_qkv(tensors, batch, heads, tokens, dim)
    slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1, device=tensors.device) / heads)
    mask = rg.Window(before, after) if after else rg.Causal() & rg.Window(before)
    position = rg.Alibi() if alibi else None

    def near(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (i - j <= before) & (j - i <= after)

    def add_alibi(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score - slopes[h] * (i - j).abs()

    def eager() -> Tensor:
        index = torch.arange(tokens, device=tensors.device)
        bias = slopes[:, None, None] * (index[:, None] - index).abs() if alibi else 0.0
        return attend_scores(scaled_dot_products(x[0], x[1]) - bias, x[2], mask_matrix(near, 1, tokens, tensors.device))

    implementations = {
        "regard": lambda: lambda: rg.attend(*x, mask=mask, position=position),
        "FlexAttention": lambda: prepare_flex_attention(x, near, add_alibi if alibi else None),
        "eager": lambda: eager,
    }
    missing_pairs = before * (before + 1) / 2 + after * (after + 1) / 2  # pairs beyond the two ends of the sequence
    return Workload(
        x, implementations, matmul_need(batch * heads * (tokens * (before + 1 + after) - missing_pairs), dim)
    )


def longformer(tensors: TensorFactory, heads: int, tokens: int, dim: int, before: int) -> Workload:
    """A Longformer layer with its six projections: a window, and one global token with its own weights."""
    width = heads * dim
    hidden = tensors.parameter(1, tokens, width, seed=0)
    names = ("query", "key", "value", "query_global", "key_global", "value_global")
    weights = [tensors.parameter(width, width, seed=seed, size=width**-0.5) for seed in range(1, 7)]

    def split(weight: Tensor, rows: Tensor = hidden) -> Tensor:
        return linear(rows, weight).unflatten(-1, (heads, dim)).transpose(1, 2)  # [1, heads, tokens, dim]

    def layer(attention: Callable[..., Tensor], global_attention: Callable[..., Tensor]) -> Tensor:
        q, k, v = (split(weight) for weight in weights[:3])
        first = global_attention(split(weights[3], hidden[:, :1]), split(weights[4]), split(weights[5]))
        rest = attention(q, k, v)[:, :, 1:]
        return torch.cat([first, rest], 2).transpose(1, 2).flatten(2)

    def prepare_transformers() -> Forward:
        from transformers import LongformerConfig
        from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

        config = LongformerConfig(
            hidden_size=width,
            num_attention_heads=heads,
            attention_window=[2 * before],
            attention_probs_dropout_prob=0.0,
        )
        module = LongformerSelfAttention(config, 0).to(tensors.device, tensors.dtype)
        for name, weight in zip(names, weights, strict=True):
            getattr(module, name).weight = weight
            torch.nn.init.zeros_(getattr(module, name).bias)
        marks = torch.zeros(1, tokens, device=tensors.device, dtype=tensors.dtype)
        marks[:, 0] = 10000.0
        return lambda: module(
            hidden,
            attention_mask=marks,
            is_index_masked=marks < 0,
            is_index_global_attn=marks > 0,
            is_global_attn=True,
        )[0]

    def near(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return ((i - j).abs() <= before) | (i < 1) | (j < 1)

    mask = rg.Window(before, before) | rg.Global(1)

    def eager_window(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend_scores(scaled_dot_products(q, k), v, mask_matrix(near, 1, tokens, tensors.device))

    implementations = {
        "regard": lambda: lambda: layer(partial(rg.attend, mask=mask), rg.attend),
        "transformers": prepare_transformers,
        "eager": lambda: lambda: layer(eager_window, lambda q, k, v: attend_scores(scaled_dot_products(q, k), v)),
    }
    pairs = heads * tokens * (2 * before + 1)
    need, projection_flops = matmul_need(pairs, dim), 2.0 * 5 * tokens * width * width
    need = ResourceNeed(need.limit, need.forward + projection_flops, need.both + 3 * projection_flops)
    return Workload((hidden, *weights), implementations, need)


def bigbird(tensors: TensorFactory, heads: int, tokens: int, dim: int, block: int) -> Workload:
    """BigBird: three neighbouring blocks, three random blocks, and a global first block."""
    x = random_qkv(tensors, 1, heads, tokens, dim)
    index = torch.arange(tokens // block, device=tensors.device)
    drawn = rg.RandomBlocks(block, 3).drawn_blocks(PairGrid(tokens, tokens, device=tensors.device))
    random_blocks = (drawn[..., None] == index).any(1)  # [query blocks, key blocks]
    layout = random_blocks | ((index[:, None] - index).abs() <= 1) | (index[:, None] < 1) | (index < 1)

    def in_layout(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return layout[i // block, j // block]

    implementations = {
        "regard": lambda: lambda: rg.attend(*x, mask=rg.bigbird(block)),
        "FlexAttention": lambda: prepare_flex_attention(x, in_layout),
        "FlexAttention, blocks of 64": lambda: prepare_flex_attention(x, in_layout, block=block),
        "eager": lambda: (
            lambda: attend_scores(
                scaled_dot_products(x[0], x[1]), x[2], mask_matrix(in_layout, 1, tokens, tensors.device)
            )
        ),
    }
    return Workload(x, implementations, matmul_need(heads * float(layout.sum()) * block * block, dim))


def learned_bias(tensors: TensorFactory, batch: int, heads: int, tokens: int, dim: int) -> Workload:
    """A learned bias for each head and distance, with its gradient."""
    x = random_qkv(tensors, batch, heads, tokens, dim)
    exact = torch.promote_types(tensors.dtype, torch.float32)
    table = Parameter(tensors.normal(heads, 2 * tokens - 1, seed=3).to(exact))

    def add_bias(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score + table[h, i - j + tokens - 1]

    def eager() -> Tensor:
        index = torch.arange(tokens, device=tensors.device)
        return attend_scores(scaled_dot_products(x[0], x[1]) + table[:, index[:, None] - index + tokens - 1], x[2])

    implementations = {
        "regard": lambda: lambda: rg.attend(*x, position=rg.Bias(table, zero=tokens - 1)),
        # The default tile of 128 × 128 needs too much shared memory for the table; this is the fastest that fits.
        "FlexAttention": lambda: prepare_flex_attention(x, score_mod=add_bias, tile=(128, 64)),
        "eager": lambda: eager,
    }
    return Workload((*x, table), implementations, matmul_need(batch * heads * tokens * tokens, dim))


def transformer_xl(tensors: TensorFactory, batch: int, heads: int, tokens: int, memory: int, dim: int) -> Workload:
    """scale·((q + u)·k + (q + v)·r by distance), causal, with the keys of earlier tokens in front."""
    keys = memory + tokens
    q = tensors.parameter(batch, heads, tokens, dim, seed=0)
    k, v = (tensors.parameter(batch, heads, keys, dim, seed=seed) for seed in (1, 2))
    embedding = tensors.parameter(heads, keys, dim, seed=3, size=0.5)
    content, position = (tensors.parameter(heads, dim, seed=seed, size=0.5) for seed in (4, 5))
    x = (q, k, v, embedding, content, position)

    def ours() -> Tensor:
        part = rg.TransformerXL(embedding, content, position)
        return rg.attend(q, k, v, mask=rg.Causal(), position=part)

    implementations = {
        "regard": lambda: ours,
        "compiled": lambda: compile_forward(transformer_xl_formula, *x),
        "eager": lambda: lambda: transformer_xl_formula(*x),
    }
    pairs = batch * heads * (tokens * memory + tokens * (tokens + 1) / 2)
    return Workload(x, implementations, matmul_need(pairs, dim, forward=3, backward=8))


def transformer_xl_formula(
    q: Tensor, k: Tensor, v: Tensor, embedding: Tensor, content: Tensor, position: Tensor
) -> Tensor:
    """Transformer-XL by its authors' formula: a product with every distance, farthest first, then a shift."""
    *front, queries, _ = q.shape
    keys = k.shape[-2]
    by_distance = (q + position[:, None]) @ embedding.flip(1).mT  # [batch, heads, queries, keys]
    shifted = pad(by_distance, (1, 0)).reshape(*front, keys + 1, queries)[..., 1:, :].reshape(*front, queries, keys)
    scores = ((q + content[:, None]) @ k.mT + shifted) / math.sqrt(q.shape[-1])
    index = torch.arange(keys, device=q.device)
    return attend_scores(scores.masked_fill(index > index[keys - queries :, None], -math.inf), v)


def additive(tensors: TensorFactory, batch: int, heads: int, tokens: int, dim: int) -> Workload:
    """softmax(wᵀ tanh(q + k)) v, with a gradient for w."""
    q, k, v = random_qkv(tensors, batch, heads, tokens, dim)
    weight = tensors.parameter(heads, dim, seed=3, size=dim**-0.5)
    x = (q, k, v, weight)
    implementations = {
        "regard": lambda: lambda: rg.attend(q, k, v, score=rg.Additive(weight)),
        "compiled": lambda: compile_forward(additive_by_sum, *x),
        "eager": lambda: lambda: additive_by_matmul(*x),
    }
    tanh_count = float(batch * heads * tokens * tokens * dim)
    return Workload(x, implementations, ResourceNeed("exp unit", tanh_count, 2 * tanh_count))


def additive_by_sum(q: Tensor, k: Tensor, v: Tensor, weight: Tensor) -> Tensor:
    """Additive attention with a sum over dim, which a compiler can fuse."""
    hidden = torch.tanh(q[:, :, :, None] + k[:, :, None])  # [batch, heads, queries, keys, dim]
    return attend_scores((hidden * weight[:, None, None]).sum(-1), v)


def additive_by_matmul(q: Tensor, k: Tensor, v: Tensor, weight: Tensor) -> Tensor:
    """Additive attention with a matrix product, the fastest form in eager mode."""
    hidden = torch.tanh(q[:, :, :, None] + k[:, :, None])  # [batch, heads, queries, keys, dim]
    return attend_scores((hidden @ weight[:, None, :, None])[..., 0], v)


def sentences(tensors: TensorFactory, batch: int, heads: int, tokens: int, dim: int, shortest: int) -> Workload:
    """A padded batch of sentences with uniformly random lengths."""
    x = random_qkv(tensors, batch, heads, tokens, dim)
    generator = torch.Generator().manual_seed(6)
    lengths = torch.randint(shortest, tokens + 1, (batch,), generator=generator).to(tensors.device)
    mask = rg.Lengths(lengths, lengths)

    def within_lengths(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (i < lengths[b]) & (j < lengths[b])

    implementations = {
        "regard": lambda: lambda: rg.attend(*x, mask=mask),
        "FlexAttention": lambda: prepare_flex_attention(x, within_lengths, batch=batch),
        "eager": lambda: (
            lambda: attend_scores(
                scaled_dot_products(x[0], x[1]), x[2], mask_matrix(within_lengths, batch, tokens, tensors.device)
            )
        ),
    }
    return Workload(x, implementations, matmul_need(heads * float(lengths.double().square().sum()), dim))


def random_edges(nodes: int, edges: int, device: str) -> Tensor:
    """Distinct edges `[2, edges]`, sorted by target and then source."""
    generator = torch.Generator(device).manual_seed(4)
    numbers = torch.randint(nodes * nodes, (edges + edges // 8,), generator=generator, device=device).unique()
    order = torch.randperm(len(numbers), generator=generator, device=device)[:edges]
    number = numbers[order].sort().values
    return torch.stack([number % nodes, number // nodes])


def gat_layer(tensors: TensorFactory, nodes: int, edges: int) -> Workload:
    """A GAT layer of 8 heads × 16 from 128 features, with its projection."""
    projection = tensors.parameter(128, 128, seed=1, size=128**-0.5)
    source, target = (tensors.parameter(1, 8, 16, seed=seed, size=0.25) for seed in (2, 3))
    x = (tensors.parameter(nodes, 128, seed=0), projection, source, target, tensors.parameter(128, seed=4))
    names = ("lin.weight", "att_src", "att_dst", "bias")
    return graph_workload(tensors, x, dict(zip(names, x[1:], strict=True)), "GATConv", gat, edges, scalars=8)


def gatv2_layer(tensors: TensorFactory, nodes: int, edges: int) -> Workload:
    """A GATv2 layer of 8 heads × 16 from 128 features, with its projections."""
    names = ("lin_l.weight", "lin_l.bias", "lin_r.weight", "lin_r.bias", "att", "bias")
    shapes = ((128, 128), (128,), (128, 128), (128,), (1, 8, 16), (128,))
    weights = [tensors.parameter(*size, seed=seed, size=size[-1] ** -0.5) for seed, size in enumerate(shapes, 1)]
    x = (tensors.parameter(nodes, 128, seed=0), *weights)
    return graph_workload(tensors, x, dict(zip(names, weights, strict=True)), "GATv2Conv", gatv2, edges, scalars=0)


def graph_workload(
    tensors: TensorFactory,
    inputs: tuple[Tensor, ...],
    learned: Mapping[str, Parameter],
    layer: str,
    ours: Callable[..., Tensor],
    edges: int,
    scalars: int,
) -> Workload:
    """A graph layer over random edges: ours, PyG's with the same parameters, and the formula over all pairs.

    `ours` takes the attention and the inputs; `scalars` is how many numbers an edge reads beside the source's 128.
    """
    nodes = inputs[0].shape[0]
    edge_index = random_edges(nodes, edges, tensors.device)
    mask = rg.Edges(edge_index)

    def attend_edges(q: Tensor, k: Tensor, v: Tensor, weight: Tensor) -> Tensor:
        return rg.attend(q, k, v, score=rg.Additive(weight, activation="leaky_relu", slope=0.2), mask=mask)

    def attend_pairs(q: Tensor, k: Tensor, v: Tensor, weight: Tensor) -> Tensor:
        allowed = torch.zeros(nodes, nodes, dtype=torch.bool, device=tensors.device)
        allowed[edge_index[1], edge_index[0]] = True
        hidden = leaky_relu(q[:, :, :, None] + k[:, :, None], 0.2)  # [1, heads, nodes, nodes, head_dim]
        return attend_scores((hidden * weight[:, None, None]).sum(-1), v, allowed)

    def build_pyg() -> torch.nn.Module:
        from torch_geometric import nn

        module = getattr(nn, layer)(128, 16, heads=8, add_self_loops=False).to(tensors.device, tensors.dtype)
        for name, value in learned.items():
            owner, _, last = name.rpartition(".")
            setattr(module.get_submodule(owner), last, value)
        return module

    def prepare_pyg() -> Forward:
        module = build_pyg()
        return lambda: module(inputs[0], edge_index)

    implementations = {
        "regard": lambda: lambda: ours(attend_edges, *inputs),
        "PyG": prepare_pyg,
        "PyG, compiled": lambda: compile_forward(build_pyg(), inputs[0], edge_index),
        "eager": lambda: lambda: ours(attend_pairs, *inputs),
    }
    bytes_moved = 4.0 * edges * (128 + scalars + 1) + 4.0 * 3 * nodes * 128  # each edge reads its source's row
    return Workload(inputs, implementations, ResourceNeed("memory", bytes_moved, 3 * bytes_moved))


def gat(attend: Callable[..., Tensor], nodes: Tensor, projection: Tensor, *learned: Tensor) -> Tensor:
    """GATConv: query and key are one number per node and head."""
    source, target, bias = learned
    heads, head_dim = source.shape[1:]
    by_head = projection.unflatten(0, (heads, head_dim))  # [heads, head_dim, features]
    # side · (W x) = (side · W) x: one product gives the values and both numbers.
    sides = [(by_head * side[0, :, :, None]).sum(1) for side in (target, source)]  # [heads, features]
    projected = nodes @ torch.cat([projection, *sides]).mT
    values, q, k = projected.split([heads * head_dim, heads, heads], 1)
    q, k = (x.mT[None, :, :, None] for x in (q, k))  # [1, heads, nodes, 1]
    values = values.unflatten(-1, (heads, -1)).transpose(0, 1)[None]  # [1, heads, nodes, head_dim]
    mixed = attend(q, k, values, values.new_ones(heads, 1))
    return mixed.squeeze(0).transpose(0, 1).flatten(1) + bias  # indexing would materialize its gradient


def gatv2(attend: Callable[..., Tensor], nodes: Tensor, *learned: Tensor) -> Tensor:
    """GATv2Conv: projected sources are keys and values, projected targets are queries."""
    left, left_bias, right, right_bias, weight, bias = learned
    heads = weight.shape[1]
    k, q = (
        linear(nodes, matrix, shift).unflatten(-1, (heads, -1)).transpose(0, 1)[None]  # [1, heads, nodes, head_dim]
        for matrix, shift in ((left, left_bias), (right, right_bias))
    )
    return attend(q, k, k, weight[0]).squeeze(0).transpose(0, 1).flatten(1) + bias


def look(tensors: TensorFactory, heads: int, tokens: int, dim: int, cells: int) -> Workload:
    """Entropy, received weight, the eight largest weights and a map; no backward pass."""
    q, k = (tensors.normal(1, heads, tokens, dim, seed=seed) for seed in range(2))

    def ours() -> tuple[Tensor, ...]:
        view = rg.look(q, k, top=8, map=(cells, cells))
        fields = (view.entropy, view.received, view.top_weights, view.map)
        return tuple(x for x in fields if x is not None)

    def eager() -> tuple[Tensor, ...]:
        weights = scaled_dot_products(q, k).softmax(-1, dtype=torch.promote_types(tensors.dtype, torch.float32))
        size = tokens // cells
        pooled = weights.unflatten(-1, (cells, size)).sum(-1).unflatten(-2, (cells, size)).mean(-2)
        return -torch.xlogy(weights, weights).sum(-1), weights.sum(-2), weights.topk(8).values, pooled

    implementations = {"regard": lambda: ours, "eager": lambda: eager}
    return Workload((), implementations, matmul_need(heads * tokens * tokens, dim))


def decode(tensors: TensorFactory, batch: int, heads: int, kv_heads: int, tokens: int, dim: int) -> Workload:
    """One query over a cache; no backward pass."""
    q = tensors.normal(batch, heads, 1, dim, seed=0)
    k, v = (tensors.normal(batch, kv_heads, tokens, dim, seed=seed) for seed in (1, 2))
    group = heads // kv_heads

    def eager() -> Tensor:
        return attend_scores(scaled_dot_products(q, k.repeat_interleave(group, 1)), v.repeat_interleave(group, 1))

    implementations = {
        "regard": lambda: lambda: rg.attend(q, k, v, mask=rg.Causal()),
        "SDPA": lambda: lambda: scaled_dot_product_attention(q, k, v, enable_gqa=True),
        "SDPA, cuDNN": lambda: lambda: cudnn_sdpa(q, k, v, enable_gqa=True),
        "eager": lambda: eager,
    }
    bytes_moved = (k.numel() + v.numel() + 2 * q.numel()) * q.itemsize
    return Workload((), implementations, ResourceNeed("memory", float(bytes_moved)))
