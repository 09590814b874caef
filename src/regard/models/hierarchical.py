"""A document classifier in levels: words attend within their sentence, sentences to each other, and both are pooled."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..attention.parts.masks import Documents
from ..errors import BadInput
from ..nn.attention import Attend
from ..nn.block import FeedForward
from ..nn.embeddings.text import TextEmbeddingConfig
from ..nn.packing import real_tokens
from ..nn.pooling import AttentionPooling
from ..nn.sparse.hierarchical import Hierarchical
from .heads import ClassificationHeadConfig
from .model import Output, SequenceModel


@dataclass(frozen=True)
class HierarchicalLayersConfig:
    """Layers of `Hierarchical` attention and feed-forward networks, each after a norm and with a residual."""

    dim: int
    layers: int
    heads: int
    hidden: int | None = None
    dropout: float = 0.0

    @property
    def causal(self) -> bool:
        return False

    def build(self) -> HierarchicalLayers:
        return HierarchicalLayers(self)


class HierarchicalLayers(nn.Module):
    """`[batch, tokens, dim]` in and out; `ids [batch, tokens]` numbers the sentence of each token."""

    def __init__(self, config: HierarchicalLayersConfig) -> None:
        super().__init__()
        dim, hidden, dropout = config.dim, config.hidden or 4 * config.dim, config.dropout
        self.attention = nn.ModuleList(Hierarchical(dim, config.heads) for _ in range(config.layers))
        self.feed_forward = nn.ModuleList(FeedForward(dim, hidden, dropout=dropout) for _ in range(config.layers))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2 * config.layers + 1))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, *, lengths: Tensor | None = None, ids: Tensor | None = None) -> Tensor:
        norms = iter(self.norms)
        for attention, feed_forward in zip(self.attention, self.feed_forward, strict=True):
            x = x + self.dropout(attention(next(norms)(x), lengths=lengths, ids=ids))
            x = x + self.dropout(feed_forward(next(norms)(x)))
        return next(norms)(x)


class SentencePooling(nn.Module):
    """A vector for each sentence, `[batch, sentences, dim]`: attention of one learned query over its tokens."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query, self.key = nn.Parameter(torch.randn(dim) * dim**-0.5), nn.Linear(dim, dim)
        self.attend = Attend()

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        sentences = torch.arange(int(ids.max()) + 1, device=x.device).expand(x.shape[0], -1)
        query = self.query.to(x.dtype).expand(*sentences.shape, -1)[:, None]  # [batch, 1, sentences, dim]
        return self.attend(query, self.key(x)[:, None], x[:, None], mask=Documents(ids, sentences))[:, 0]


@dataclass(frozen=True)
class HierarchicalConfig:
    """Hierarchical attention over words, sentences and the document (Yang et al. 2016), with self-attention.

    A sentence ends with a token of `ends` (full stops and the like) or with the text. Without `ends` the whole text is
    one sentence.
    """

    embed: TextEmbeddingConfig
    stack: HierarchicalLayersConfig
    head: ClassificationHeadConfig
    ends: tuple[int, ...] = ()
    pooler: None = None
    family: str | None = None
    word_embed: None = None

    def build(self) -> HierarchicalModel:
        return HierarchicalModel(self)


class HierarchicalModel(SequenceModel):
    """Embedding, hierarchical layers, then attention pooling of words into sentences and sentences into the document.

    >>> embed, stack = TextEmbeddingConfig(9, 8), HierarchicalLayersConfig(dim=8, layers=1, heads=2)
    >>> model = HierarchicalConfig(embed, stack, ClassificationHeadConfig(3, 8), ends=(2,)).build()
    >>> model(tokens=torch.tensor([[5, 6, 2, 7, 8, 2]])).logits.shape
    torch.Size([1, 3])
    """

    def __init__(self, config: HierarchicalConfig) -> None:
        super().__init__(config)  # type: ignore[arg-type]
        self.ends = config.ends
        self.pool_words = SentencePooling(config.stack.dim)
        self.pool_sentences = AttentionPooling(config.stack.dim, score="additive")

    def forward(  # type: ignore[override]
        self, *, tokens: Tensor, lengths: Tensor | None = None, labels: Tensor | None = None
    ) -> Output:
        if tokens.dim() != 2:
            raise BadInput(f"tokens are {list(tokens.shape)}; a hierarchical model reads [batch, tokens].")
        ids = number_sentences(tokens, lengths, self.ends)
        hidden = self.stack(self.embed(tokens), lengths=lengths, ids=ids)
        document = self.pool_sentences(self.pool_words(hidden, ids), ids.amax(1) + 1)
        assert self.head is not None
        logits = self.head(document)
        return Output(hidden, logits, document, loss=self.loss(logits, labels, lengths))


def number_sentences(tokens: Tensor, lengths: Tensor | None, ends: tuple[int, ...]) -> Tensor:
    """The sentence of each token from 0, −1 for padding, `[batch, tokens]`; an end belongs to its sentence.

    >>> number_sentences(torch.tensor([[5, 2, 6, 7, 2]]), None, (2,)).tolist()
    [[0, 0, 1, 1, 1]]
    """
    is_end = torch.isin(tokens, torch.tensor(ends, dtype=tokens.dtype, device=tokens.device))
    ids = is_end.long().cumsum(1) - is_end.long()
    return torch.where(real_tokens(tokens[..., None], lengths), ids, -1)
