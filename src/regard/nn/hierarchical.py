"""Attention on two levels: near by and far away, within sentences and between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..attention.cache import Memory
from ..attention.parts.mask import Mask
from ..attention.parts.masks import Documents, Global, Lengths, Window
from ..attention.parts.part import check_count
from ..errors import BadInput
from .attention import Attend, divide_heads, merge_heads, split_heads
from .linear import fused_linear
from .packing import real_tokens

MASKS = Memory(16)  # masks, by the tensors that they were made of


class LocalMasks(NamedTuple):
    """What a token sees: near ones and global ones; what a global token sees; which tokens are global.

    `few` is the same for as many queries as a row has global tokens at most: where they stand, `[batch, global tokens]`
    (where a row has fewer, also places that are not), and what they see, as a mask and as `[batch, global tokens,
    tokens]`.
    """

    near: Mask
    wide: Mask | None
    chosen: Tensor | None
    few: tuple[Tensor, Mask, Tensor] | None = None


class LocalGlobal(nn.Module):
    """Longformer's layer: every token looks at a window around it and at the global tokens; these look at all.

        y_i = attend(query(x_i), key(x_j), value(x_j))                        over |i − j| ≤ window / 2 and global j
        y_i = attend(query_global(x_i), key_global(x_j), value_global(x_j))   over all j, where i is global

    and `out(y)` comes back, `[batch, tokens, dim]`. Work and memory grow with tokens · (window + global tokens).

    >>> layer = LocalGlobal(dim=8, heads=2, window=4)
    >>> first = torch.zeros(1, 9, dtype=torch.bool).index_fill(1, torch.tensor([0]), True)
    >>> layer(torch.randn(1, 9, 8), global_tokens=first).shape
    torch.Size([1, 9, 8])
    """

    def __init__(self, dim: int, heads: int, window: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        check_count(window, "LocalGlobal's window", 2)
        if window % 2:
            raise BadInput(f"LocalGlobal's window is {window}; half of it stands on each side. Make it even.")
        self.heads, self.head_dim, self.window, self.dropout = heads, divide_heads(dim, heads), window, dropout
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))
        self.query_global, self.key_global, self.value_global = (nn.Linear(dim, dim) for _ in range(3))
        self.out = nn.Linear(dim, dim)
        self.attend, self.attend_global = Attend(), Attend()

    def forward(
        self,
        x: Tensor,
        *,
        lengths: Tensor | None = None,
        global_tokens: Tensor | None = None,
        masks: LocalMasks | None = None,
    ) -> Tensor:
        """`[batch, tokens, dim]`; `global_tokens` is boolean `[batch, tokens]`, those in the padding are ignored.

        `masks` is what `masks` made of the other two, for layers that share them.
        """
        near, wide, chosen, few = self.masks(x, lengths, global_tokens) if masks is None else masks
        projections = (self.query, self.key, self.value)
        if chosen is None or wide is None:
            return self.out(self.attend_heads(self.attend, fused_linear(x, *projections), near))
        if few is None or not self.training:  # at rest every token has its row, for those who look
            *own, k, v = fused_linear(x, *projections, self.key_global, self.value_global)
            local = self.attend_heads(self.attend, own, near)
            every = self.attend_heads(self.attend_global, (self.query_global(x), k, v), wide)
            return self.out(torch.where(chosen[..., None], every, local))
        places, wide, seen = few
        where = places[..., None].expand(-1, -1, x.shape[2])  # [batch, global tokens, dim]
        asking = self.query_global(x.gather(1, where))
        if 4 * self.heads * places.shape[1] <= x.shape[2] and not self.attend_global._forward_hooks:
            local = self.attend_heads(self.attend, fused_linear(x, *projections), near)
            found = self.attend_unprojected(asking, x, seen)
        else:
            *own, k, v = fused_linear(x, *projections, self.key_global, self.value_global)
            local = self.attend_heads(self.attend, own, near)
            found = self.attend_heads(self.attend_global, (asking, k, v), wide)
        found = torch.where(chosen.gather(1, places)[..., None], found, local.gather(1, where))
        return self.out(local.scatter(1, where, found))

    def attend_unprojected(self, asking: Tensor, x: Tensor, seen: Tensor) -> Tensor:
        """What few global tokens find, `[batch, global tokens, dim]`, without a key or a value of any token.

        q·(K x + b) = (Kᵀ q)·x + q·b and Σ p (V x + b) = V Σ p x + b Σ p: two products of dim × dim for each token
        become two of dim × global tokens · heads. Softmax and its sums are in float32.
        """
        heads, dim = self.heads, x.shape[2]
        with torch.autocast(x.device.type, enabled=False):
            wide = torch.promote_types(x.dtype, torch.float32)
            x, q = (
                x.to(wide),
                split_heads(asking.to(wide), heads) * self.head_dim**-0.5,
            )  # q [batch, heads, global, head_dim]
            by_key, by_value = (
                (one.weight.to(wide).view(heads, -1, dim), one.bias.to(wide).view(heads, -1, 1))
                for one in (self.key_global, self.value_global)
            )
            scores = ((q @ by_key[0]).flatten(1, 2) @ x.mT).unflatten(1, (heads, -1)) + q @ by_key[1]
            # A row that sees nothing is none of a global token, and is not used: it may be anything but not a number.
            weights = scores.masked_fill(~seen[:, None], torch.finfo(wide).min).softmax(-1)
            weights = nn.functional.dropout(weights, self.dropout, self.training)
            mixed = (weights.flatten(1, 2) @ x).unflatten(1, (heads, -1)) @ by_value[0].mT
            return merge_heads(mixed + weights.sum(-1, keepdim=True) * by_value[1].mT).to(asking.dtype)

    def masks(self, x: Tensor, lengths: Tensor | None, global_tokens: Tensor | None) -> LocalMasks:
        """Who may look at whom. What a backend finds out about them serves every layer, and every pass over the same
        global tokens and lengths."""
        near: Mask = Window(self.window // 2, self.window // 2)
        if lengths is not None:
            near = near & Lengths(lengths, lengths)
        if global_tokens is None:
            return LocalMasks(near, None, None)
        need_flags(global_tokens, x)

        def make() -> LocalMasks:
            with torch.inference_mode(False):  # they may be wanted again to learn
                real = real_tokens(x, lengths)
                chosen = global_tokens & real
                masks = LocalMasks(near | visible_between(real, chosen), visible_between(chosen, real), chosen)
                return masks if torch.compiler.is_compiling() else masks._replace(few=global_positions(chosen, real))

        if torch.compiler.is_compiling():
            return make()
        given = Global(global_tokens) if lengths is None else Global(global_tokens) & Lengths(lengths)
        return MASKS.find(given, self.window, make)

    def attend_heads(self, attend: nn.Module, projected: Sequence[Tensor], mask: Mask) -> Tensor:
        """What attention under the mask makes of queries, keys and values, `[batch, queries, dim]`."""
        q, k, v = (split_heads(x, self.heads) for x in projected)
        return merge_heads(attend(q, k, v, mask=mask, dropout=self.dropout if self.training else 0.0))


class Hierarchical(nn.Module):
    """Attention within blocks (sentences), between them, and back to their tokens.

        w_i = attend(q(x_i), k(x_j), v(x_j))     over the tokens j of i's block
        s_b = attend(seed, pool_k(w_j), w_j)     over the tokens j of block b: what the block says
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
        said = self.pool_blocks(tokens, Documents(ids, present))
        q, k, v = (split_heads(part, self.heads) for part in self.across(said).chunk(3, -1))
        filled = ids.new_zeros(x.shape[0], count + 1).scatter(1, ids + 1, 1)[:, 1:] > 0  # [batch, blocks]
        told = merge_heads(self.attend_across(q, k, v, mask=visible_between(filled, filled), dropout=dropout))
        return self.out(tokens + broadcast_blocks(told, ids))

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

    def pool_blocks(self, x: Tensor, mask: Documents) -> Tensor:
        """A vector for each block, `[batch, blocks, dim]`."""
        blocks = mask.query_ids.shape[1]  # type: ignore[union-attr]
        seed = self.seed[None, :, None].expand(x.shape[0], -1, blocks, -1).to(x.dtype)
        return merge_heads(
            self.attend_pool(seed, split_heads(self.pool_key(x), self.heads), split_heads(x, self.heads), mask=mask)
        )


def visible_between(queries: Tensor, keys: Tensor) -> Documents:
    """The mask that lets those queries see those keys; both boolean `[batch, tokens]`."""
    return Documents(torch.where(keys, 0, -1), torch.where(queries, 0, -1))


def global_positions(chosen: Tensor, real: Tensor) -> tuple[Tensor, Mask, Tensor]:
    """The places of the chosen tokens of each row, filled up with others where a row has fewer; and what they see."""
    most = int(chosen.sum(1).max()) if chosen.numel() else 0
    places = torch.argsort(~chosen, dim=1, stable=True)[:, :most]
    asks = chosen.gather(1, places)
    return places, visible_between(asks, real), asks[..., None] & real[:, None]


def broadcast_blocks(blocks: Tensor, ids: Tensor) -> Tensor:
    """Each token's block of `[batch, blocks, dim]`, `[batch, tokens, dim]`; zeros for tokens of none."""
    if not blocks.shape[1]:
        return blocks.new_zeros(*ids.shape, blocks.shape[2])
    found = blocks.gather(1, ids.clamp(min=0)[..., None].expand(-1, -1, blocks.shape[2]))
    return found * (ids >= 0)[..., None]


def need_flags(flags: Tensor, x: Tensor) -> None:
    if flags.dtype != torch.bool or flags.shape != x.shape[:2]:
        raise BadInput(
            f"global_tokens is {flags.dtype} {list(flags.shape)}; it must be boolean [batch, tokens] = "
            f"{list(x.shape[:2])}, True for the tokens that see all and are seen by all."
        )
