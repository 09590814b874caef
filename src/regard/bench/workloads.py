"""Workloads on a CPU: the same function in several implementations, forward and backward over the same inputs.

Each function returns calls by implementation; a call returns the output and the gradients.
"""

import math
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import regard as rg

Calls = dict[str, Callable[[], tuple[Tensor, ...]]]


def random_input(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Normal numbers that require gradients, the same in every dtype."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return values.to(dtype).requires_grad_()


def with_gradients(forward: Callable[[], Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
    """The output, and the gradient of each input for a fixed sine wave as upstream gradient."""
    output = forward()
    wave = torch.arange(output.numel(), dtype=torch.float32).sin_().to(output.dtype).view_as(output)
    return output.detach(), *torch.autograd.grad(output, inputs, wave)


def eager_attention(
    q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """The formula: a matrix of scores, a softmax, a product."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])  # [batch, heads, queries, keys]
    if bias is not None:
        scores = scores + bias
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -math.inf)
    return scores.softmax(-1) @ v


def distance_matrix(tokens: int) -> Tensor:
    """i − j, `[tokens, tokens]`."""
    index = torch.arange(tokens)
    return index[:, None] - index


def random_qkv(heads: int, tokens: int, dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v of one sequence."""
    q, k, v = (random_input(1, heads, tokens, dim, dtype=dtype, seed=seed) for seed in range(3))
    return q, k, v


def plain(heads: int, tokens: int, dim: int, dtype: torch.dtype = torch.float32) -> Calls:
    """softmax(q kᵀ / √dim) v."""
    x = random_qkv(heads, tokens, dim, dtype)
    return {
        "regard": lambda: with_gradients(lambda: rg.attend(*x), *x),
        "SDPA": lambda: with_gradients(lambda: scaled_dot_product_attention(*x), *x),
        "eager": lambda: with_gradients(lambda: eager_attention(*x), *x),
    }


def causal(heads: int, tokens: int, dim: int, dtype: torch.dtype = torch.float32) -> Calls:
    """Causal attention."""
    x = random_qkv(heads, tokens, dim, dtype)
    return {
        "regard": lambda: with_gradients(lambda: rg.attend(*x, mask=rg.Causal()), *x),
        "SDPA": lambda: with_gradients(lambda: scaled_dot_product_attention(*x, is_causal=True), *x),
        "eager": lambda: with_gradients(lambda: eager_attention(*x, distance_matrix(tokens) >= 0), *x),
    }


def window(heads: int, tokens: int, dim: int, before: int, dtype: torch.dtype = torch.float32) -> Calls:
    """A causal window of `before` keys; the peers get their mask matrix outside the timed call."""
    x = random_qkv(heads, tokens, dim, dtype)
    mask = rg.Causal() & rg.Window(before)

    @cache  # computed for peers only: at 32768 tokens it is a gigabyte
    def mask_matrix() -> Tensor:
        return (distance_matrix(tokens) >= 0) & (distance_matrix(tokens) <= before)

    return {
        "regard": lambda: with_gradients(lambda: rg.attend(*x, mask=mask), *x),
        "SDPA": lambda: with_gradients(lambda: scaled_dot_product_attention(*x, attn_mask=mask_matrix()), *x),
        "eager": lambda: with_gradients(lambda: eager_attention(*x, mask_matrix()), *x),
    }


def alibi(heads: int, tokens: int, dim: int, dtype: torch.dtype = torch.float32) -> Calls:
    """Causal, with −slope·(i − j); `heads` is a power of two, whose slopes are 2^(−8h/heads), h from 1."""
    x = random_qkv(heads, tokens, dim, dtype)
    slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1, dtype=dtype) / heads)

    def formula() -> Tensor:
        distance = distance_matrix(tokens)
        return eager_attention(*x, distance >= 0, -slopes[:, None, None] * distance)

    return {
        "regard": lambda: with_gradients(lambda: rg.attend(*x, mask=rg.Causal(), position=rg.Alibi()), *x),
        "eager": lambda: with_gradients(formula, *x),
    }


def additive(heads: int, tokens: int, dim: int, dtype: torch.dtype = torch.float32) -> Calls:
    """softmax(wᵀ tanh(q + k)) v, with a gradient for w."""
    q, k, v = random_qkv(heads, tokens, dim, dtype)
    weight = random_input(heads, dim, dtype=dtype, seed=3)

    def formula() -> Tensor:
        hidden = torch.tanh(q[:, :, :, None] + k[:, :, None])  # [batch, heads, queries, keys, dim]
        scores = torch.einsum("bhijd,hd->bhij", hidden, weight)
        return scores.softmax(-1) @ v

    x = (q, k, v, weight)
    return {
        "regard": lambda: with_gradients(lambda: rg.attend(q, k, v, score=rg.Additive(weight)), *x),
        "eager": lambda: with_gradients(formula, *x),
    }


def random_edges(nodes: int, edges: int) -> Tensor:
    """Distinct edges `[2, edges]` in random order; PyG would count a repeated edge twice, Regard once."""
    generator = torch.Generator().manual_seed(4)
    number = torch.randint(nodes * nodes, (edges + edges // 8,), generator=generator).unique()
    number = number[torch.randperm(len(number), generator=generator)[:edges]]
    return torch.stack([number // nodes, number % nodes])


def graph(nodes: int, edges: int, dtype: torch.dtype = torch.float32) -> Calls:
    """A GAT layer of 8 heads × 16 from 128 features, with its projection and PyG's weights."""
    from torch_geometric.nn import GATConv

    torch.manual_seed(5)
    layer = GATConv(128, 16, heads=8, add_self_loops=False).to(dtype)
    edge_index = random_edges(nodes, edges)
    mask = rg.Edges(edge_index)
    weights = (layer.get_parameter(name) for name in ("lin.weight", "att_src", "att_dst", "bias"))
    x = random_input(nodes, 128, dtype=dtype), *weights
    return {
        "regard": lambda: with_gradients(lambda: gat(*x, mask=mask), *x),
        "regard, first call": lambda: with_gradients(lambda: gat(*x, mask=rg.Edges(edge_index)), *x),
        "PyG": lambda: with_gradients(lambda: layer(x[0], edge_index), *x),
    }


def gat(nodes: Tensor, projection: Tensor, source: Tensor, target: Tensor, bias: Tensor, mask: rg.Edges) -> Tensor:
    """GATConv by `attend`: query and key are one number per node and head."""
    _, heads, _ = source.shape
    values = (nodes @ projection.mT).unflatten(-1, (heads, -1))  # [nodes, heads, head_dim]
    k = (values * source).sum(-1).mT[None, :, :, None]  # [1, heads, nodes, 1]
    q = (values * target).sum(-1).mT[None, :, :, None]
    score = rg.Additive(values.new_ones(heads, 1), activation="leaky_relu", slope=0.2)
    mixed = rg.attend(q, k, values.transpose(0, 1)[None], score=score, mask=mask)  # [1, heads, nodes, head_dim]
    return mixed[0].transpose(0, 1).flatten(1) + bias


def look(heads: int, tokens: int, dim: int, cells: int, dtype: torch.dtype = torch.float32) -> Calls:
    """Entropy, received weight, the eight largest weights and a map; no gradient."""
    q, k, _ = (x.detach() for x in random_qkv(heads, tokens, dim, dtype))

    def ours() -> tuple[Tensor, ...]:
        view = rg.look(q, k, top=8, map=(cells, cells))
        fields = (view.entropy, view.received, view.top_weights, view.map)
        return tuple(x for x in fields if x is not None)

    def formula() -> tuple[Tensor, ...]:
        weights = (q @ k.mT / math.sqrt(dim)).softmax(-1)
        size = tokens // cells
        pooled = weights.unflatten(-1, (cells, size)).sum(-1).unflatten(-2, (cells, size)).mean(-2)
        return -torch.xlogy(weights, weights).sum(-1), weights.sum(-2), weights.topk(8).values, pooled

    return {"regard": ours, "eager": formula}
