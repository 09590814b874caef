"""Hierarchical attention: within blocks of tokens, such as sentences, and between the blocks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...attention.parts.masks import Documents
from ...attention.parts.part import check_count
from ...errors import BadInput
from ..attention import Attend, divide_heads, merge_heads, split_heads
from ..packing import real_tokens
from .longformer import visible_between


class Hierarchical(nn.Module):
    """Attention within blocks (sentences), between them, and back to their tokens.

        w_i = attend(q(x_i), k(x_j), v(x_j))     over the tokens j of i's block
        s_b = attend(seed, pool_k(w_j), w_j)     over the tokens j of block b
        c_b = attend(q'(s_b), k'(s_a), v'(s_a))  over the blocks a
        y_i = out(w_i + c_b)                     with b the block of i

    `[batch, tokens, dim]` in and out. Blocks are `block` tokens each unless `ids` name each token's.

    >>> layer = Hierarchical(dim=8, heads=2, block=4)
    >>> layer(torch.randn(2, 10, 8), lengths=torch.tensor([10, 3])).shape
    torch.Size([2, 10, 8])
    """

    def __init__(self, dim: int, heads: int, block: int = 64, *, dropout: float = 0.0) -> None:
        super().__init__()
        check_count(block, "Hierarchical's block", 1)
        self.heads, self.head_dim, self.block, self.dropout = heads, divide_heads(dim, heads), block, dropout
        self.within, self.across = nn.Linear(dim, 3 * dim), nn.Linear(dim, 3 * dim)
        self.seed = nn.Parameter(torch.randn(heads, self.head_dim) * self.head_dim**-0.5)
        self.pool_key, self.out = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.attend, self.attend_pool, self.attend_across = Attend(), Attend(), Attend()

    def forward(self, x: Tensor, *, lengths: Tensor | None = None, ids: Tensor | None = None) -> Tensor:
        """`[batch, tokens, dim]`; `ids [batch, tokens]` numbers each row's blocks from 0, negative for no block."""
        ids, count = self.blocks(x, lengths, ids)
        present = torch.arange(count, device=x.device).expand(x.shape[0], -1)  # [batch, blocks]
        dropout = self.dropout if self.training else 0.0
        q, k, v = (split_heads(part, self.heads) for part in self.within(x).chunk(3, -1))
        tokens = merge_heads(self.attend(q, k, v, mask=Documents(ids), dropout=dropout))
        pooled = self.pool_blocks(tokens, ids, present)
        q, k, v = (split_heads(part, self.heads) for part in self.across(pooled).chunk(3, -1))
        filled = ids.new_zeros(x.shape[0], count + 1).scatter(1, ids + 1, 1)[:, 1:] > 0  # [batch, blocks]
        blocks = merge_heads(self.attend_across(q, k, v, mask=visible_between(filled, filled), dropout=dropout))
        return self.out(tokens + broadcast_blocks(blocks, ids))

    def blocks(self, x: Tensor, lengths: Tensor | None, ids: Tensor | None) -> tuple[Tensor, int]:
        """Each token's block, `[batch, tokens]`, −1 for padding; and how many there are at most in a row."""
        batch, tokens = x.shape[:2]
        if ids is None:
            own = (torch.arange(tokens, device=x.device) // self.block).expand(batch, -1)
            return torch.where(real_tokens(x, lengths), own, -1), -(-tokens // self.block)
        if ids.shape != x.shape[:2] or ids.dtype.is_floating_point or ids.dtype == torch.bool:
            raise BadInput(
                f"ids are {ids.dtype} {list(ids.shape)}; they must be whole numbers [batch, tokens] = "
                f"{[batch, tokens]}, the same for the tokens of one block."
            )
        ids = torch.where(real_tokens(x, lengths), ids.long(), -1).clamp(min=-1)
        return ids, int(ids.max()) + 1 if ids.numel() else 0

    def pool_blocks(self, x: Tensor, ids: Tensor, present: Tensor) -> Tensor:
        """A vector for each block, `[batch, blocks, dim]`; `present [batch, blocks]` numbers the blocks."""
        seed = self.seed[None, :, None].expand(x.shape[0], -1, present.shape[1], -1).to(x.dtype)
        keys, values = split_heads(self.pool_key(x), self.heads), split_heads(x, self.heads)
        return merge_heads(self.attend_pool(seed, keys, values, mask=Documents(ids, present)))


def broadcast_blocks(blocks: Tensor, ids: Tensor) -> Tensor:
    """The block of each token, `[batch, tokens, dim]` of `[batch, blocks, dim]`; zeros for tokens without one."""
    if not blocks.shape[1]:
        return blocks.new_zeros(*ids.shape, blocks.shape[2])
    gathered = blocks.gather(1, ids.clamp(min=0)[..., None].expand(-1, -1, blocks.shape[2]))
    return gathered * (ids >= 0)[..., None]
