"""Heads: logits and pooled vectors of the last layer, and their losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..attention.sharding import current_layout
from ..errors import BadInput
from ..nn.activations import ACTIVATIONS
from ..nn.attention import EncoderOutput, MultiHeadAttention
from ..nn.block import FeedForward
from ..nn.cross_entropy import IGNORED, cross_entropy
from ..nn.linear import linear
from ..nn.pooling import AttentionPooling, First, Last, Mean, Sum

MANY_TOKENS = 1024  # from here on padding the vocabulary is faster


@dataclass(frozen=True)
class PoolerConfig:
    """One vector for the whole input: activation(dense(first token)), as BERT has it."""

    dim: int
    activation: str = "tanh"

    def build(self) -> PoolerHead:
        return PoolerHead(self)


class PoolerHead(nn.Module):
    def __init__(self, config: PoolerConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.dim, config.dim)
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, hidden: Tensor) -> Tensor:
        return self.activation(self.dense(hidden[:, 0] if current_layout() is None else First()(hidden)))


@dataclass(frozen=True)
class AttentionPoolingHeadConfig:
    """One vector for the whole input: a learned query's attention over it, then a feed-forward network (SigLIP)."""

    dim: int
    heads: int
    hidden: int
    activation: str = "gelu_tanh"
    eps: float = 1e-6

    def build(self) -> AttentionPoolingHead:
        return AttentionPoolingHead(self)


class AttentionPoolingHead(nn.Module):
    """y = attention(probe, hidden);   pooled = y + feed_forward(norm(y)), `[batch, dim]`."""

    def __init__(self, config: AttentionPoolingHeadConfig) -> None:
        super().__init__()
        self.probe = nn.Parameter(torch.randn(config.dim) * config.dim**-0.5)
        self.attention = MultiHeadAttention(config.dim, config.heads)
        self.norm = nn.LayerNorm(config.dim, eps=config.eps)
        self.feed_forward = FeedForward(config.dim, config.hidden, config.activation)

    def forward(self, hidden: Tensor, lengths: Tensor | None = None) -> Tensor:
        y = self.attention(self.probe.expand(hidden.shape[0], 1, -1), EncoderOutput(hidden, lengths))[:, 0]
        return y + self.feed_forward(self.norm(y))


@dataclass(frozen=True)
class LMHeadConfig:
    """The head of a language model: a logit for each word of the vocabulary at each position.

    `tied` uses the token embedding as the output matrix; `transform` puts a dense layer, that activation and a norm
    before it, to `inner` dims where the embedding has fewer (`transform_bias` names those of dense layer "d" and norm
    "n" that have a bias); `inner` without it puts a dense layer alone (OPT 350M). `scale` multiplies the input (T5:
    dim^−½). `blank` is the blank token of a CTC loss. `cap` bounds the logits, cap · tanh(logit / cap) (Gemma 2).
    """

    vocabulary: int
    dim: int
    tied: bool = True
    bias: bool = False
    transform: str | None = None
    eps: float = 1e-12
    scale: float = 1.0
    blank: int | None = None
    inner: int | None = None
    transform_bias: str = "dn"
    cap: float | None = None

    def build(self) -> LMHead:
        return LMHead(self)


class LMHead(nn.Module):
    def __init__(self, config: LMHeadConfig) -> None:
        super().__init__()
        self.config = config
        dim = config.inner or config.dim
        dense_bias, norm_bias = ("d" in config.transform_bias), ("n" in config.transform_bias)
        self.dense = nn.Linear(config.dim, dim, dense_bias) if config.transform or config.inner else None
        self.norm = nn.LayerNorm(dim, eps=config.eps, bias=norm_bias) if config.transform else None
        self.weight = None if config.tied else nn.Parameter(torch.randn(config.vocabulary, dim) * 0.02)
        self.bias = nn.Parameter(torch.zeros(config.vocabulary)) if config.bias else None

    def forward(self, hidden: Tensor, embedding: Tensor | None = None) -> Tensor:
        """`[batch, tokens, vocabulary]`; `embedding [vocabulary, dim]` is the matrix when tied."""
        return self.padded_logits(hidden, embedding)[0]

    def padded_logits(self, hidden: Tensor, embedding: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The logits, and the logits with the columns that pad the vocabulary.

        A loss of the second has a gradient of its size, without cutting or copying.
        """
        x = hidden
        if self.dense is not None:
            x = ACTIVATIONS[self.config.transform or "none"](self.dense(x))
        x = x if self.norm is None else self.norm(x)
        weight = self.weight if self.weight is not None else embedding
        if weight is None:
            raise BadInput(
                "The head is tied to an embedding of tokens, and this model has none. Build it with tied=False."
            )
        x, words, bias = x * self.config.scale if self.config.scale != 1.0 else x, weight.shape[0], self.bias
        if extra := vocabulary_padding(x, words):
            weight = functional.pad(weight, (0, 0, 0, extra))
            bias = None if bias is None else functional.pad(bias, (0, extra))
        every = linear(x, weight, bias)
        if self.config.cap is not None:
            every = self.config.cap * torch.tanh(every / self.config.cap)
        return (every[..., :words] if extra else every), every


def vocabulary_padding(x: Tensor, words: int) -> int:
    """How many columns to pad the vocabulary by: on a GPU rows of logits should be aligned to 16 bytes."""
    many = x.numel() >= MANY_TOKENS * x.shape[-1]
    return -words % 8 if x.is_cuda and many and torch.is_grad_enabled() and not torch.compiler.is_compiling() else 0


@dataclass(frozen=True)
class ClassificationHeadConfig:
    """A logit for each class, of the whole input or (`per_token`) of each token.

    `pool` is the first token, the mean, the sum, the last token, the first token beside the mean of the others,
    attention pooling, or the model's own pooler. `hidden` puts a dense layer with that activation before the output,
    and a norm after it where its ε, `norm`, is given (`transform_bias` as in `LMHeadConfig`). One class is a
    regression.
    """

    classes: int
    dim: int
    per_token: bool = False
    pool: Literal["first", "mean", "sum", "last", "first and mean", "attention", "pooler"] = "first"
    hidden: str | None = None
    bias: bool = True
    dropout: float = 0.0
    norm: float | None = None
    transform_bias: str = "dn"

    def build(self) -> ClassificationHead:
        return ClassificationHead(self)


class ClassificationHead(nn.Module):
    def __init__(self, config: ClassificationHeadConfig) -> None:
        super().__init__()
        self.config = config
        dense_bias, norm_bias = ("d" in config.transform_bias), ("n" in config.transform_bias)
        self.dense = nn.Linear(config.dim, config.dim, dense_bias) if config.hidden else None
        self.norm = None if config.norm is None else nn.LayerNorm(config.dim, eps=config.norm, bias=norm_bias)
        self.attention = AttentionPooling(config.dim, score="additive") if config.pool == "attention" else None
        self.out = nn.Linear((1 + (config.pool == "first and mean")) * config.dim, config.classes, config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """`[…, classes]` of `[…, dim]`."""
        x = self.dropout(x)
        if self.dense is not None:
            x = ACTIVATIONS[self.config.hidden or "none"](self.dense(x))
            x = self.dropout(x if self.norm is None else self.norm(x))
        return self.out(x)

    def pool(self, hidden: Tensor, lengths: Tensor | None, pooled: Tensor | None) -> Tensor:
        """The vectors that the logits are computed from."""
        if self.config.per_token:
            return hidden
        if self.config.pool == "pooler":
            if pooled is None:
                raise BadInput("The head reads the pooler, and this model has none. Give it one, or pool='first'.")
            return pooled
        if self.config.pool == "first and mean":
            others = None if lengths is None else lengths - 1
            return torch.cat([pool(hidden, lengths, "first"), pool(hidden[:, 1:], others, "mean")], dim=-1)
        return pool(hidden, lengths, self.config.pool) if self.attention is None else self.attention(hidden, lengths)


@dataclass(frozen=True)
class SpanHeadConfig:
    """Two logits for each token: an answer starts there, and it ends there. Labels are `[batch, 2]` positions."""

    dim: int

    def build(self) -> ClassificationHead:
        return ClassificationHead(ClassificationHeadConfig(2, self.dim, per_token=True))


HeadConfig = LMHeadConfig | ClassificationHeadConfig | SpanHeadConfig


def is_tied(head: HeadConfig | None, default: bool) -> bool:
    """Whether a head shares the weights of the token embedding; `default` for one without a vocabulary."""
    return head.tied if isinstance(head, LMHeadConfig) else default


def pool(hidden: Tensor, lengths: Tensor | None, pooling: str) -> Tensor:
    """`[batch, dim]`: the first token, the last real one, or the mean of the real ones."""
    return {"first": First, "last": Last, "mean": Mean, "sum": Sum}[pooling]()(hidden, lengths)


def span_loss(logits: Tensor, labels: Tensor, lengths: Tensor | None) -> Tensor:
    """Mean cross-entropy of where the answer begins and ends, over the real tokens; `labels [batch, 2]`."""
    by_end = logits.mT  # [batch, 2, tokens]
    if lengths is not None:
        padded = torch.arange(by_end.shape[2], device=by_end.device) >= lengths[:, None, None]
        by_end = by_end.masked_fill(padded, -torch.inf)
    return supervised_loss(by_end, labels, shift=False)


def supervised_loss(logits: Tensor, labels: Tensor, shift: bool, words: int | None = None) -> Tensor:
    """Mean cross-entropy, with labels shifted to the next token when `shift`; mean squared error for floating labels.

    Labels of −100 are ignored; if all are, the loss is zero. Of the logits' columns the first `words` count, if given.
    """
    if labels.is_floating_point():
        return functional.mse_loss(logits.squeeze(-1).float(), labels.float())
    if labels.shape != logits.shape[:-1]:
        raise BadInput(f"labels has shape {list(labels.shape)}; for these logits it must be {list(logits.shape[:-1])}.")
    if shift:  # shift the labels: a slice of the logits would be a copy
        labels = functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
    total = cross_entropy(logits.flatten(0, -2), labels.flatten(), words)
    return total / (labels != IGNORED).sum().clamp(min=1)


def ctc_loss(logits: Tensor, labels: Tensor, lengths: Tensor | None, blank: int) -> Tensor:
    """CTC (Graves et al. 2006): −ln of the summed probability of all alignments of a row's labels to its positions.

    An alignment repeats labels and puts blanks between them. `labels [batch, most]` are padded with −100. The mean over
    rows of the loss per label; a row with fewer positions than its labels need counts as zero.
    """
    if labels.dim() != 2 or labels.shape[0] != logits.shape[0]:
        raise BadInput(f"labels has shape {list(labels.shape)}; it must be [{logits.shape[0]}, labels of a row].")
    counts = (labels != IGNORED).sum(1)
    positions = torch.full_like(counts, logits.shape[1]) if lengths is None else lengths
    log_probabilities = logits.float().log_softmax(-1).transpose(0, 1)  # [positions, batch, vocabulary]
    return functional.ctc_loss(log_probabilities, labels.clamp(min=0), positions, counts, blank, zero_infinity=True)
