"""What is compared on a GPU: the same function written several ways over the same inputs.

A work has inputs, and ways to compute it by the name of who does. A way is prepared by calling it (it may compile, or
fail for want of a package) and gives a forward pass; the backward pass is autograd's. `eager` is the formula as one
writes it down, and serves as the oracle of a small problem in float64.
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
from regard.attention.parts.mask import Grid
from regard.bench.result import Need

Forward = Callable[[], Tensor | tuple[Tensor, ...]]
Allowed = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Whether in batch b and head h the query i may look at the key j, as FlexAttention asks it."""


class At(NamedTuple):
    """Where a work is done, in which type, and the type that its numbers are rounded to first."""

    device: str
    dtype: torch.dtype
    rounded: torch.dtype

    def draw(self, *shape: int, seed: int, size: float = 1.0) -> Tensor:
        """Normal numbers times `size`, the same in every type."""
        generator = torch.Generator(self.device).manual_seed(seed)
        numbers = size * torch.randn(shape, generator=generator, device=self.device)
        return numbers.to(self.rounded).to(self.dtype)

    def learned(self, *shape: int, seed: int, size: float = 1.0) -> Parameter:
        """The same, for gradients to flow to."""
        return Parameter(self.draw(*shape, seed=seed, size=size))


class Work(NamedTuple):
    """One function of `inputs`, to which gradients flow (none: there is no backward pass), by who computes it."""

    inputs: tuple[Tensor, ...]
    ways: Mapping[str, Callable[[], Forward]]
    need: Need


def formula(scores: Tensor, v: Tensor, allowed: Tensor | None = None) -> Tensor:
    """softmax(scores) v; a row with nothing allowed gives zeros."""
    if allowed is None:
        return scores.softmax(-1).to(v.dtype) @ v
    weights = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min).softmax(-1)
    return (weights * allowed.any(-1, keepdim=True)).to(v.dtype) @ v


def dots(q: Tensor, k: Tensor) -> Tensor:
    """q kᵀ / √dim, `[batch, heads, queries, keys]`."""
    return q @ k.mT / math.sqrt(q.shape[-1])


def square(allowed: Allowed, batch: int, tokens: int, device: str) -> Tensor:
    """Every pair's answer, `[batch or 1, 1, tokens, tokens]`."""
    b, place = torch.arange(batch, device=device), torch.arange(tokens, device=device)
    answers = allowed(b.view(-1, 1, 1, 1), torch.zeros_like(b[:1]), place[:, None], place)
    return answers.reshape(*(1,) * (4 - answers.dim()), *answers.shape)


def flex(
    x: Sequence[Tensor],
    allowed: Allowed | None = None,
    added: Callable[..., Tensor] | None = None,
    batch: int | None = None,
    block: int = 128,
    tile: tuple[int, int] | None = None,
) -> Forward:
    """FlexAttention, compiled for a GPU; on a CPU it has no backward pass. `tile` is forward's, where not its own."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, k, v = x if x[0].is_cuda else (y.detach() for y in x)
    run = torch.compile(flex_attention, dynamic=False) if q.is_cuda else flex_attention
    sizes, blocks = (q.shape[2], k.shape[2]), None
    if allowed is not None:
        blocks = create_block_mask(allowed, batch, None, *sizes, device=str(q.device), BLOCK_SIZE=block)
    if block < 128:  # its usual tile of 128 queries does not fit into smaller blocks
        tile = block, block
    options = None if tile is None else {"fwd_BLOCK_M": tile[0], "fwd_BLOCK_N": tile[1]}
    return lambda: run(q, k, v, score_mod=added, block_mask=blocks, kernel_options=options)  # type: ignore[arg-type]


def compiled(function: Callable[..., Tensor], *x: object) -> Forward:
    """The function compiled for these arguments."""
    run = torch.compile(function, dynamic=False)
    return lambda: run(*x)


def qkv(at: At, batch: int, heads: int, tokens: int, dim: int) -> tuple[Parameter, Parameter, Parameter]:
    """q, k, v of one size."""
    q, k, v = (at.learned(batch, heads, tokens, dim, seed=seed) for seed in range(3))
    return q, k, v


def products(pairs: float, dim: int, forward: int = 2, backward: int = 5) -> Need:
    """So many matrix products over the pairs, each of 2·dim operations a pair; backward computes the scores again."""
    return Need("matrix products", 2.0 * forward * pairs * dim, 2.0 * (forward + backward) * pairs * dim)


def dense(at: At, batch: int, heads: int, tokens: int, dim: int) -> Work:
    """softmax(q kᵀ / √dim) v, no key after the query."""
    x = qkv(at, batch, heads, tokens, dim)

    def formula_of() -> Tensor:
        return formula(dots(x[0], x[1]), x[2], square(lambda b, h, i, j: j <= i, 1, tokens, at.device))

    ways = {
        "regard": lambda: lambda: rg.attend(*x, mask=rg.Causal()),
        "SDPA": lambda: lambda: scaled_dot_product_attention(*x, is_causal=True),
        "SDPA, cuDNN": lambda: lambda: by_cudnn(*x, is_causal=True),
        "eager": lambda: formula_of,
    }
    return Work(x, ways, products(batch * heads * tokens * (tokens + 1) / 2, dim))


def by_cudnn(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """SDPA by cuDNN's kernel or not at all (anywhere but on a GPU, by whichever there is)."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION) if q.is_cuda else nullcontext():
        return scaled_dot_product_attention(q, k, v, **options)


def window(at: At, batch: int, heads: int, tokens: int, dim: int, before: int, after: int, alibi: bool = False) -> Work:
    """i − before ≤ j ≤ i + after, with −slope·|i − j| where asked; `heads` is a power of two."""
    x = qkv(at, batch, heads, tokens, dim)
    slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1, device=at.device) / heads)
    mask = rg.Window(before, after) if after else rg.Causal() & rg.Window(before)
    position = rg.Alibi() if alibi else None

    def near(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (i - j <= before) & (j - i <= after)

    def leaning(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score - slopes[h] * (i - j).abs()

    def formula_of() -> Tensor:
        place = torch.arange(tokens, device=at.device)
        lean = slopes[:, None, None] * (place[:, None] - place).abs() if alibi else 0.0
        return formula(dots(x[0], x[1]) - lean, x[2], square(near, 1, tokens, at.device))

    ways = {
        "regard": lambda: lambda: rg.attend(*x, mask=mask, position=position),
        "FlexAttention": lambda: flex(x, near, leaning if alibi else None),
        "eager": lambda: formula_of,
    }
    cut = before * (before + 1) / 2 + after * (after + 1) / 2  # what the two ends of the sequence lack
    return Work(x, ways, products(batch * heads * (tokens * (before + 1 + after) - cut), dim))


def longformer(at: At, heads: int, tokens: int, dim: int, before: int) -> Work:
    """A Longformer layer, its six projections included: a window, and one token that sees all with its own weights."""
    width = heads * dim
    hidden = at.learned(1, tokens, width, seed=0)
    names = ("query", "key", "value", "query_global", "key_global", "value_global")
    weights = [at.learned(width, width, seed=seed, size=width**-0.5) for seed in range(1, 7)]

    def split(weight: Tensor, rows: Tensor = hidden) -> Tensor:
        return linear(rows, weight).unflatten(-1, (heads, dim)).transpose(1, 2)  # [1, heads, tokens, dim]

    def layer(attention: Callable[..., Tensor], whole: Callable[..., Tensor]) -> Tensor:
        q, k, v = (split(weight) for weight in weights[:3])
        first = whole(split(weights[3], hidden[:, :1]), split(weights[4]), split(weights[5]))
        rest = attention(q, k, v)[:, :, 1:]
        return torch.cat([first, rest], 2).transpose(1, 2).flatten(2)

    def theirs() -> Forward:
        from transformers import LongformerConfig
        from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

        config = LongformerConfig(
            hidden_size=width,
            num_attention_heads=heads,
            attention_window=[2 * before],
            attention_probs_dropout_prob=0.0,
        )
        module = LongformerSelfAttention(config, 0).to(at.device, at.dtype)
        for name, weight in zip(names, weights, strict=True):
            getattr(module, name).weight = weight
            torch.nn.init.zeros_(getattr(module, name).bias)
        marks = torch.zeros(1, tokens, device=at.device, dtype=at.dtype)
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
    by_hand = lambda q, k, v: formula(dots(q, k), v, square(near, 1, tokens, at.device))  # noqa: E731
    ways = {
        "regard": lambda: lambda: layer(partial(rg.attend, mask=mask), rg.attend),
        "transformers": theirs,
        "eager": lambda: lambda: layer(by_hand, lambda q, k, v: formula(dots(q, k), v)),
    }
    pairs = heads * tokens * (2 * before + 1)
    need, projected = products(pairs, dim), 2.0 * 5 * tokens * width * width
    need = Need(need.limit, need.forward + projected, need.both + 3 * projected)
    return Work((hidden, *weights), ways, need)


def bigbird(at: At, heads: int, tokens: int, dim: int, block: int) -> Work:
    """Three blocks around each, three drawn ones, and the first one seen by and seeing all."""
    x = qkv(at, 1, heads, tokens, dim)
    place = torch.arange(tokens // block, device=at.device)
    drawn = rg.RandomBlocks(block, 3).layout(Grid(tokens, tokens, device=at.device))
    layout = drawn | ((place[:, None] - place).abs() <= 1) | (place[:, None] < 1) | (place < 1)

    def chosen(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return layout[i // block, j // block]

    ways = {
        "regard": lambda: lambda: rg.attend(*x, mask=rg.bigbird(block)),
        "FlexAttention": lambda: flex(x, chosen),
        "FlexAttention, blocks of 64": lambda: flex(x, chosen, block=block),
        "eager": lambda: lambda: formula(dots(x[0], x[1]), x[2], square(chosen, 1, tokens, at.device)),
    }
    return Work(x, ways, products(heads * float(layout.sum()) * block * block, dim))


def learned_bias(at: At, batch: int, heads: int, tokens: int, dim: int) -> Work:
    """A number for each head and distance, learned: its gradient is wanted too."""
    x = qkv(at, batch, heads, tokens, dim)
    exact = torch.promote_types(at.dtype, torch.float32)
    table = Parameter(at.draw(heads, 2 * tokens - 1, seed=3).to(exact))

    def added(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score + table[h, i - j + tokens - 1]

    def formula_of() -> Tensor:
        place = torch.arange(tokens, device=at.device)
        return formula(dots(x[0], x[1]) + table[:, place[:, None] - place + tokens - 1], x[2])

    ways = {
        "regard": lambda: lambda: rg.attend(*x, position=rg.Bias(table, zero=tokens - 1)),
        # Its own tile of 128 × 128 would hold more numbers of the table than fit; this is the fastest of those that do.
        "FlexAttention": lambda: flex(x, added=added, tile=(128, 64)),
        "eager": lambda: formula_of,
    }
    return Work((*x, table), ways, products(batch * heads * tokens * tokens, dim))


def transformer_xl(at: At, batch: int, heads: int, tokens: int, memory: int, dim: int) -> Work:
    """scale·((q + u)·k + (q + v)·r by distance), causal, with keys of earlier tokens in front."""
    keys = memory + tokens
    q = at.learned(batch, heads, tokens, dim, seed=0)
    k, v = (at.learned(batch, heads, keys, dim, seed=seed) for seed in (1, 2))
    embedding = at.learned(heads, keys, dim, seed=3, size=0.5)
    content, position = (at.learned(heads, dim, seed=seed, size=0.5) for seed in (4, 5))
    x = (q, k, v, embedding, content, position)

    def ours() -> Tensor:
        part = rg.TransformerXL(embedding, content, position)
        return rg.attend(q, k, v, mask=rg.Causal(), position=part)

    ways = {
        "regard": lambda: ours,
        "compiled": lambda: compiled(relative, *x),
        "eager": lambda: lambda: relative(*x),
    }
    pairs = batch * heads * (tokens * memory + tokens * (tokens + 1) / 2)
    return Work(x, ways, products(pairs, dim, forward=3, backward=8))


def relative(q: Tensor, k: Tensor, v: Tensor, embedding: Tensor, content: Tensor, position: Tensor) -> Tensor:
    """Transformer-XL as its authors wrote it: a product with every distance, farthest first, then a shift."""
    *front, queries, _ = q.shape
    keys = k.shape[-2]
    by_distance = (q + position[:, None]) @ embedding.flip(1).mT  # [batch, heads, queries, keys]
    shifted = pad(by_distance, (1, 0)).reshape(*front, keys + 1, queries)[..., 1:, :].reshape(*front, queries, keys)
    scores = ((q + content[:, None]) @ k.mT + shifted) / math.sqrt(q.shape[-1])
    place = torch.arange(keys, device=q.device)
    return formula(scores.masked_fill(place > place[keys - queries :, None], -math.inf), v)


def additive(at: At, batch: int, heads: int, tokens: int, dim: int) -> Work:
    """softmax(wᵀ tanh(q + k)) v, the weight learned too."""
    q, k, v = qkv(at, batch, heads, tokens, dim)
    weight = at.learned(heads, dim, seed=3, size=dim**-0.5)
    x = (q, k, v, weight)
    ways = {
        "regard": lambda: lambda: rg.attend(q, k, v, score=rg.Additive(weight)),
        "compiled": lambda: compiled(summed, *x),
        "eager": lambda: lambda: multiplied(*x),
    }
    number = float(batch * heads * tokens * tokens * dim)
    return Work(x, ways, Need("exp unit", number, 2 * number))


def summed(q: Tensor, k: Tensor, v: Tensor, weight: Tensor) -> Tensor:
    """Additive attention as a compiler likes it: the sum over dim can be fused with what is summed."""
    hidden = torch.tanh(q[:, :, :, None] + k[:, :, None])  # [batch, heads, queries, keys, dim]
    return formula((hidden * weight[:, None, None]).sum(-1), v)


def multiplied(q: Tensor, k: Tensor, v: Tensor, weight: Tensor) -> Tensor:
    """Additive attention as it is fastest without a compiler."""
    hidden = torch.tanh(q[:, :, :, None] + k[:, :, None])  # [batch, heads, queries, keys, dim]
    return formula((hidden @ weight[:, None, :, None])[..., 0], v)


def sentences(at: At, batch: int, heads: int, tokens: int, dim: int, shortest: int) -> Work:
    """A padded batch of sentences whose lengths are drawn evenly."""
    x = qkv(at, batch, heads, tokens, dim)
    generator = torch.Generator().manual_seed(6)
    lengths = torch.randint(shortest, tokens + 1, (batch,), generator=generator).to(at.device)
    mask = rg.Lengths(lengths, lengths)

    def real(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (i < lengths[b]) & (j < lengths[b])

    ways = {
        "regard": lambda: lambda: rg.attend(*x, mask=mask),
        "FlexAttention": lambda: flex(x, real, batch=batch),
        "eager": lambda: lambda: formula(dots(x[0], x[1]), x[2], square(real, batch, tokens, at.device)),
    }
    return Work(x, ways, products(heads * float(lengths.double().square().sum()), dim))


def random_edges(nodes: int, edges: int, device: str) -> Tensor:
    """Distinct edges `[2, edges]`, sorted by target and then source."""
    generator = torch.Generator(device).manual_seed(4)
    drawn = torch.randint(nodes * nodes, (edges + edges // 8,), generator=generator, device=device).unique()
    kept = torch.randperm(len(drawn), generator=generator, device=device)[:edges]
    number = drawn[kept].sort().values
    return torch.stack([number % nodes, number // nodes])


def gat_layer(at: At, nodes: int, edges: int) -> Work:
    """A GAT layer of 8 heads × 16 from 128 features, its projection included."""
    projection = at.learned(128, 128, seed=1, size=128**-0.5)
    source, target = (at.learned(1, 8, 16, seed=seed, size=0.25) for seed in (2, 3))
    x = (at.learned(nodes, 128, seed=0), projection, source, target, at.learned(128, seed=4))
    learned = dict(zip(("lin.weight", "att_src", "att_dst", "bias"), x[1:], strict=True))
    return graph_work(at, x, learned, "GATConv", gat, edges, scalars=8)


def gatv2_layer(at: At, nodes: int, edges: int) -> Work:
    """A GATv2 layer of 8 heads × 16 from 128 features, its projections included."""
    names = ("lin_l.weight", "lin_l.bias", "lin_r.weight", "lin_r.bias", "att", "bias")
    shapes = ((128, 128), (128,), (128, 128), (128,), (1, 8, 16), (128,))
    weights = [at.learned(*size, seed=seed, size=size[-1] ** -0.5) for seed, size in enumerate(shapes, 1)]
    x = (at.learned(nodes, 128, seed=0), *weights)
    return graph_work(at, x, dict(zip(names, weights, strict=True)), "GATv2Conv", gatv2, edges, scalars=0)


def graph_work(
    at: At,
    x: tuple[Tensor, ...],
    learned: Mapping[Any, Parameter],
    layer: str,
    ours: Callable[..., Tensor],
    edges: int,
    scalars: int,
) -> Work:
    """A layer over random edges: ours, PyG's with the same parameters, and the formula over every pair of nodes.

    `ours` takes the attention and the inputs; `scalars` are the numbers an edge reads beside the source's 128.
    """
    nodes = x[0].shape[0]
    edge_index = random_edges(nodes, edges, at.device)
    mask = rg.Edges(edge_index)

    def along(q: Tensor, k: Tensor, v: Tensor, weight: Tensor) -> Tensor:
        return rg.attend(q, k, v, score=rg.Additive(weight, activation="leaky_relu", slope=0.2), mask=mask)

    def across(q: Tensor, k: Tensor, v: Tensor, weight: Tensor) -> Tensor:
        allowed = torch.zeros(nodes, nodes, dtype=torch.bool, device=at.device)
        allowed[edge_index[1], edge_index[0]] = True
        hidden = leaky_relu(q[:, :, :, None] + k[:, :, None], 0.2)  # [1, heads, nodes, nodes, head_dim]
        return formula((hidden * weight[:, None, None]).sum(-1), v, allowed)

    def theirs() -> torch.nn.Module:
        from torch_geometric import nn

        module = getattr(nn, layer)(128, 16, heads=8, add_self_loops=False).to(at.device, at.dtype)
        for name, value in learned.items():
            owner, _, last = name.rpartition(".")
            setattr(module.get_submodule(owner), last, value)
        return module

    def plain() -> Forward:
        module = theirs()
        return lambda: module(x[0], edge_index)

    ways = {
        "regard": lambda: lambda: ours(along, *x),
        "PyG": plain,
        "PyG, compiled": lambda: compiled(theirs(), x[0], edge_index),
        "eager": lambda: lambda: ours(across, *x),
    }
    moved = 4.0 * edges * (128 + scalars + 1) + 4.0 * 3 * nodes * 128  # each edge reads its source's row
    return Work(x, ways, Need("memory", moved, 3 * moved))


def gat(attend: Callable[..., Tensor], nodes: Tensor, projection: Tensor, *learned: Tensor) -> Tensor:
    """GATConv: one number a node and head is the query, one is the key."""
    source, target, bias = learned
    heads, head_dim = source.shape[1:]
    by_head = projection.unflatten(0, (heads, head_dim))  # [heads, head_dim, features]
    # side · (W x) = (side · W) x: one product makes the values and both numbers.
    sides = [(by_head * side[0, :, :, None]).sum(1) for side in (target, source)]  # [heads, features]
    made = nodes @ torch.cat([projection, *sides]).mT
    values, q, k = made.split([heads * head_dim, heads, heads], 1)
    q, k = (x.mT[None, :, :, None] for x in (q, k))  # [1, heads, nodes, 1]
    values = values.unflatten(-1, (heads, -1)).transpose(0, 1)[None]  # [1, heads, nodes, head_dim]
    mixed = attend(q, k, values, values.new_ones(heads, 1))
    return mixed.squeeze(0).transpose(0, 1).flatten(1) + bias  # an index would write its gradient out


def gatv2(attend: Callable[..., Tensor], nodes: Tensor, *learned: Tensor) -> Tensor:
    """GATv2Conv: projected sources are keys and values, projected targets are queries."""
    left, left_bias, right, right_bias, weight, bias = learned
    heads = weight.shape[1]
    k, q = (
        linear(nodes, matrix, shift).unflatten(-1, (heads, -1)).transpose(0, 1)[None]  # [1, heads, nodes, head_dim]
        for matrix, shift in ((left, left_bias), (right, right_bias))
    )
    return attend(q, k, k, weight[0]).squeeze(0).transpose(0, 1).flatten(1) + bias


def look(at: At, heads: int, tokens: int, dim: int, cells: int) -> Work:
    """Entropy, received weight, the eight largest weights and a map of plain attention; no backward pass."""
    q, k = (at.draw(1, heads, tokens, dim, seed=seed) for seed in range(2))

    def ours() -> tuple[Tensor, ...]:
        view = rg.look(q, k, top=8, map=(cells, cells))
        found = (view.entropy, view.received, view.top_weights, view.map)
        return tuple(x for x in found if x is not None)

    def formula_of() -> tuple[Tensor, ...]:
        weights = dots(q, k).softmax(-1, dtype=torch.promote_types(at.dtype, torch.float32))
        size = tokens // cells
        pooled = weights.unflatten(-1, (cells, size)).sum(-1).unflatten(-2, (cells, size)).mean(-2)
        return -torch.xlogy(weights, weights).sum(-1), weights.sum(-2), weights.topk(8).values, pooled

    ways = {"regard": lambda: ours, "eager": lambda: formula_of}
    return Work((), ways, products(heads * tokens * tokens, dim))


def decode(at: At, batch: int, heads: int, kv_heads: int, tokens: int, dim: int) -> Work:
    """One query over all that is cached; no backward pass."""
    q = at.draw(batch, heads, 1, dim, seed=0)
    k, v = (at.draw(batch, kv_heads, tokens, dim, seed=seed) for seed in (1, 2))
    group = heads // kv_heads

    def formula_of() -> Tensor:
        return formula(dots(q, k.repeat_interleave(group, 1)), v.repeat_interleave(group, 1))

    ways = {
        "regard": lambda: lambda: rg.attend(q, k, v, mask=rg.Causal()),
        "SDPA": lambda: lambda: scaled_dot_product_attention(q, k, v, enable_gqa=True),
        "SDPA, cuDNN": lambda: lambda: by_cudnn(q, k, v, enable_gqa=True),
        "eager": lambda: formula_of,
    }
    moved = (k.numel() + v.numel() + 2 * q.numel()) * q.itemsize
    return Work((), ways, Need("memory", float(moved)))
