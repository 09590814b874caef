"""Workloads on a GPU with the parts of today's models: caps, sinks, biases by pair, and whole attention layers."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

import regard as rg
from regard.bench.gpu_workloads import (
    Forward,
    MaskMod,
    TensorFactory,
    Workload,
    attend_scores,
    mask_matrix,
    matmul_need,
    prepare_flex_attention,
    random_qkv,
    scaled_dot_products,
)
from regard.bench.result import ResourceNeed

CAP = 50.0  # Gemma 2's


def in_past(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """FlexAttention's causal mask."""
    return j <= i


def capped(tensors: TensorFactory, batch: int, heads: int, tokens: int, dim: int) -> Workload:
    """Causal attention with cap · tanh(score / cap)."""
    x = random_qkv(tensors, batch, heads, tokens, dim)

    def cap_score(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return CAP * torch.tanh(score / CAP)

    def eager() -> Tensor:
        scores = CAP * torch.tanh(scaled_dot_products(x[0], x[1]) / CAP)
        return attend_scores(scores, x[2], mask_matrix(in_past, 1, tokens, tensors.device))

    implementations = {
        "regard": lambda: lambda: rg.attend(*x, score=rg.Dot(cap=CAP), mask=rg.Causal()),
        "FlexAttention": lambda: prepare_flex_attention(x, in_past, cap_score),
        "eager": lambda: eager,
    }
    return Workload(x, implementations, matmul_need(batch * heads * tokens * (tokens + 1) / 2, dim))


def sinks(tensors: TensorFactory, batch: int, heads: int, tokens: int, dim: int) -> Workload:
    """Causal attention with a learned logit of each head in the softmax; FlexAttention adds it by its log-sum-exp."""
    x = random_qkv(tensors, batch, heads, tokens, dim)
    logits = tensors.parameter(heads, seed=3)

    def prepare_flex() -> Forward:
        flex = prepare_flex_attention(x, in_past, lse=True)

        def forward() -> Tensor:
            output, more = flex()
            share = torch.sigmoid(more.lse - logits.float()[:, None])  # what the keys get, [batch, heads, tokens]
            return (output * share[..., None]).to(output.dtype)

        return forward

    def eager() -> Tensor:
        allowed = mask_matrix(in_past, 1, tokens, tensors.device)
        scores = scaled_dot_products(x[0], x[1]).masked_fill(~allowed, -math.inf)
        return attend_with_sinks(scores, x[2], logits)

    implementations = {
        "regard": lambda: lambda: rg.attend(*x, mask=rg.Causal(), sink=rg.Sink(logits)),
        "FlexAttention": prepare_flex,
        "eager": lambda: eager,
    }
    need = matmul_need(batch * heads * tokens * (tokens + 1) / 2, dim)
    return Workload((*x, logits), implementations, need)


def attend_with_sinks(scores: Tensor, v: Tensor, logits: Tensor) -> Tensor:
    """softmax over the keys and a logit of each head, times v."""
    column = logits.to(scores.dtype)[:, None, None].expand(*scores.shape[:3], 1)
    return torch.cat([scores, column], -1).softmax(-1)[..., :-1].to(v.dtype) @ v


def pair_bias(tensors: TensorFactory, batch: int, heads: int, tokens: int, dim: int) -> Workload:
    """A learned number for each head and pair, with its gradient."""
    x = random_qkv(tensors, batch, heads, tokens, dim)
    bias = tensors.parameter(1, heads, tokens, tokens, seed=3)

    def add_bias(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score + bias[0, h, i, j]

    implementations = {
        "regard": lambda: lambda: rg.attend(*x, bias=rg.PairBias(bias)),
        "FlexAttention": lambda: prepare_flex_attention(x, score_mod=add_bias),
        "eager": lambda: lambda: attend_scores(scaled_dot_products(x[0], x[1]) + bias, x[2]),
    }
    return Workload((*x, bias), implementations, matmul_need(batch * heads * tokens * tokens, dim))


@dataclass(frozen=True)
class LayerSizes:
    """An attention layer whose width is heads · dim, over a causal window."""

    heads: int
    kv_heads: int
    tokens: int
    dim: int
    before: int

    def weights(self, tensors: TensorFactory) -> list[torch.nn.Parameter]:
        """The projections of q, k, v and of the output."""
        width, shared = self.heads * self.dim, self.kv_heads * self.dim
        rows = (width, shared, shared, width)
        return [tensors.parameter(n, width, seed=seed, size=width**-0.5) for seed, n in enumerate(rows, 1)]

    def run(self, attention: Callable[..., Tensor], hidden: Tensor, weights: list[torch.nn.Parameter]) -> Tensor:
        """The layer with an attention over q, k and v."""
        q, k, v = (linear(hidden, w).unflatten(-1, (-1, self.dim)).transpose(1, 2) for w in weights[:3])
        return linear(attention(q, k, v).transpose(1, 2).flatten(2), weights[3])

    def scores(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of rotated q and k, and which pairs are allowed."""
        q, k = rg.Rotary().transform(q, k.repeat_interleave(self.heads // self.kv_heads, 1))
        return scaled_dot_products(q, k), mask_matrix(self.near, 1, self.tokens, str(q.device))

    @property
    def near(self) -> MaskMod:
        """The mask as a function, which FlexAttention asks for: it takes no method."""
        before = self.before
        return lambda b, h, i, j: (j <= i) & (i - j <= before)

    @property
    def mask(self) -> rg.Mask:
        return rg.Causal() & rg.Window(self.before)

    def rotations(self, tensors: TensorFactory) -> tuple[Tensor, Tensor]:
        """Cosines and sines, `[1, tokens, dim / 2]`."""
        rates = 10000.0 ** -(torch.arange(0, self.dim, 2, dtype=torch.float64) / self.dim)
        angle = torch.arange(self.tokens, dtype=torch.float64)[:, None] * rates
        return angle.cos()[None].to(tensors.device, tensors.dtype), angle.sin()[None].to(tensors.device, tensors.dtype)

    def need(self) -> ResourceNeed:
        before = min(self.before, self.tokens - 1)
        pairs = self.heads * (self.tokens * (before + 1) - before * (before + 1) / 2)
        attention, width = matmul_need(pairs, self.dim), self.heads * self.dim
        projections = 2.0 * self.tokens * width * (2 * width + 2 * self.kv_heads * self.dim)
        return ResourceNeed(attention.limit, attention.forward + projections, attention.both + 3 * projections)


def gemma_layer(tensors: TensorFactory, heads: int, kv_heads: int, tokens: int, dim: int, before: int) -> Workload:
    """An attention layer of Gemma 2: projections, rotary positions, a window, a cap on scores."""
    sizes = LayerSizes(heads, kv_heads, tokens, dim, before)
    hidden, weights = tensors.parameter(1, tokens, heads * dim, seed=0), sizes.weights(tensors)

    def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return rg.attend(q, k, v, score=rg.Dot(cap=CAP), position=rg.Rotary(), mask=sizes.mask)

    def formula(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores, allowed = sizes.scores(q, k)
        return attend_scores(CAP * torch.tanh(scores / CAP), v.repeat_interleave(heads // kv_heads, 1), allowed)

    def prepare(implementation: str) -> Forward:
        from transformers import Gemma2Config
        from transformers.models.gemma2.modeling_gemma2 import Gemma2Attention

        fields = {"query_pre_attn_scalar": dim, "attn_logit_softcapping": CAP, "sliding_window": before + 1}
        config = Gemma2Config(**layer_fields(sizes), **fields, layer_types=["sliding_attention"])
        cos, sin = (torch.cat([x, x], -1) for x in sizes.rotations(tensors))
        return prepare_module(Gemma2Attention(config, 0), implementation, sizes, hidden, weights, (cos, sin), {})

    return layer_workload(sizes, hidden, weights, (), ours, formula, prepare)


def gpt_oss_layer(tensors: TensorFactory, heads: int, kv_heads: int, tokens: int, dim: int, before: int) -> Workload:
    """An attention layer of gpt-oss: projections, rotary positions, a window, sinks."""
    sizes = LayerSizes(heads, kv_heads, tokens, dim, before)
    hidden, weights = tensors.parameter(1, tokens, heads * dim, seed=0), sizes.weights(tensors)
    logits = tensors.parameter(heads, seed=9)

    def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return rg.attend(q, k, v, position=rg.Rotary(), mask=sizes.mask, sink=rg.Sink(logits))

    def formula(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores, allowed = sizes.scores(q, k)
        v = v.repeat_interleave(heads // kv_heads, 1)
        return attend_with_sinks(scores.masked_fill(~allowed, -math.inf), v, logits)

    def prepare(implementation: str) -> Forward:
        from transformers import GptOssConfig
        from transformers.models.gpt_oss.modeling_gpt_oss import GptOssAttention

        window = {"sliding_window": before + 1, "layer_types": ["sliding_attention"]}
        module = GptOssAttention(GptOssConfig(**layer_fields(sizes), **window), 0)
        rotations = sizes.rotations(tensors)
        return prepare_module(module, implementation, sizes, hidden, weights, rotations, {"sinks": logits})

    return layer_workload(sizes, hidden, weights, (logits,), ours, formula, prepare)


def layer_fields(sizes: LayerSizes) -> dict[str, Any]:
    """What configurations of transformers call the sizes of a layer."""
    heads = {"num_attention_heads": sizes.heads, "num_key_value_heads": sizes.kv_heads, "head_dim": sizes.dim}
    return {**heads, "hidden_size": sizes.heads * sizes.dim, "num_hidden_layers": 1, "attention_bias": False}


def prepare_module(
    module: torch.nn.Module,
    implementation: str,
    sizes: LayerSizes,
    hidden: Tensor,
    weights: list[torch.nn.Parameter],
    rotations: tuple[Tensor, Tensor],
    others: dict[str, torch.nn.Parameter],
) -> Forward:
    """A layer of transformers with these weights, by one of its implementations of attention."""
    for name, weight in zip("qkvo", weights, strict=True):
        getattr(module, f"{name}_proj").weight = weight
    for name, value in others.items():
        setattr(module, name, value)
    module.to(hidden.device, hidden.dtype).eval()
    module.config._attn_implementation = implementation  # type: ignore[union-attr]
    mask = block_mask(sizes, hidden) if implementation == "flex_attention" else added_mask(sizes.near, sizes, hidden)
    return lambda: module(hidden, position_embeddings=rotations, attention_mask=mask)[0]


def block_mask(sizes: LayerSizes, hidden: Tensor) -> Any:
    """The layer's mask as FlexAttention takes it; on a CPU transformers has no sinks with it, and no backward pass."""
    if not hidden.is_cuda:
        raise rg.Unsupported("FlexAttention in transformers is compared on a GPU.")
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(sizes.near, None, None, sizes.tokens, sizes.tokens, device=str(hidden.device))


def added_mask(mask_mod: MaskMod, sizes: LayerSizes, hidden: Tensor) -> Tensor:
    """The layer's mask as numbers that are added to scores."""
    allowed = mask_matrix(mask_mod, 1, sizes.tokens, str(hidden.device))
    return torch.zeros_like(allowed, dtype=hidden.dtype).masked_fill(~allowed, torch.finfo(hidden.dtype).min)


def layer_workload(
    sizes: LayerSizes,
    hidden: Tensor,
    weights: list[torch.nn.Parameter],
    others: tuple[Tensor, ...],
    ours: Callable[..., Tensor],
    formula: Callable[..., Tensor],
    prepare: Callable[[str], Forward],
) -> Workload:
    """A layer by Regard, by transformers' two implementations, and by the formula."""
    implementations = {
        "regard": lambda: lambda: sizes.run(ours, hidden, weights),
        "transformers, eager": lambda: prepare("eager"),
        "FlexAttention in transformers": lambda: prepare("flex_attention"),
        "eager": lambda: lambda: sizes.run(formula, hidden, weights),
    }
    return Workload((hidden, *weights, *others), implementations, sizes.need())
