"""Longformer's attention (Beltagy et al. 2020): a window around each token, and global tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ...attention.execution import mask_cache
from ...attention.parts.mask import Mask
from ...attention.parts.masks import Documents, Global, Lengths, Window
from ...attention.parts.part import check_count
from ...attention.sharding import current_layout, whole_tokens
from ...errors import BadInput
from ..attention import Attend, divide_heads, merge_heads, split_heads
from ..linear import fused_linear


class GatheredGlobals(NamedTuple):
    """The global tokens of each row, gathered: as many queries as the row with most of them has.

    `positions [batch, global tokens]` are their indices (rows with fewer have other tokens too); `mask` and `visible
    [batch, global tokens, tokens]` are the keys that they attend to.
    """

    positions: Tensor
    mask: Mask
    visible: Tensor


class LocalMasks(NamedTuple):
    """The mask of local attention; that of global tokens, and which tokens are global, `[batch, tokens]`."""

    local: Mask
    wide: Mask | None = None
    is_global: Tensor | None = None
    gathered: GatheredGlobals | None = None


class LocalGlobal(nn.Module):
    """Every token attends to a window around it and to the global tokens; global tokens attend to all.

        y_i = attend(query(x_i), key(x_j), value(x_j))                        over |i − j| ≤ window / 2 and global j
        y_i = attend(query_global(x_i), key_global(x_j), value_global(x_j))   over all j, where i is global

    and `out(y)` is returned, `[batch, tokens, dim]`. Work and memory grow with tokens · (window + global tokens).

    >>> layer = LocalGlobal(dim=8, heads=2, window=4)
    >>> first = torch.zeros(1, 9, dtype=torch.bool).index_fill(1, torch.tensor([0]), True)
    >>> layer(torch.randn(1, 9, 8), global_tokens=first).shape
    torch.Size([1, 9, 8])
    """

    def __init__(self, dim: int, heads: int, window: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        check_count(window, "LocalGlobal's window", 2)
        if window % 2:
            raise BadInput(f"LocalGlobal's window is {window}; half of it is on each side. Make it even.")
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

        `masks` are those that `masks` makes of the other two, for layers that share them.
        """
        masks = self.masks(x, lengths, global_tokens) if masks is None else masks
        projections = (self.query, self.key, self.value)
        if masks.is_global is None or masks.wide is None:
            return self.out(self.attend_heads(self.attend, fused_linear(x, *projections), masks.local))
        layout = current_layout()
        # every token has a row: in evaluation for watch and edit, sharded because each rank has rows of its own
        if masks.gathered is None or not self.training or layout is not None:
            *own, k, v = fused_linear(x, *projections, self.key_global, self.value_global)
            local = self.attend_heads(self.attend, own, masks.local)
            wide = self.attend_heads(self.attend_global, (self.query_global(x), k, v), masks.wide)
            is_global = masks.is_global if layout is None else layout.split(masks.is_global, 1)
            return self.out(torch.where(is_global[..., None], wide, local))
        index, mask, visible = masks.gathered
        rows = index[..., None].expand(-1, -1, x.shape[2])  # [batch, global tokens, dim]
        queries = self.query_global(x.gather(1, rows))
        if 4 * self.heads * index.shape[1] <= x.shape[2] and not self.attend_global._forward_hooks:
            local = self.attend_heads(self.attend, fused_linear(x, *projections), masks.local)
            wide = self.attend_unprojected(queries, x, visible)
        else:
            *own, k, v = fused_linear(x, *projections, self.key_global, self.value_global)
            local = self.attend_heads(self.attend, own, masks.local)
            wide = self.attend_heads(self.attend_global, (queries, k, v), mask)
        wide = torch.where(masks.is_global.gather(1, index)[..., None], wide, local.gather(1, rows))
        return self.out(local.scatter(1, rows, wide))

    def attend_unprojected(self, queries: Tensor, x: Tensor, visible: Tensor) -> Tensor:
        """The attention of few global tokens, `[batch, global tokens, dim]`, without projecting keys and values.

        q·(K x + b) = (Kᵀ q)·x + q·b and Σ p (V x + b) = V Σ p x + b Σ p: two products of dim × dim for each token
        become two of dim × global tokens · heads. Softmax and its sums are in float32.
        """
        heads, dim = self.heads, x.shape[2]
        with torch.autocast(x.device.type, enabled=False):
            exact = torch.promote_types(x.dtype, torch.float32)
            x = x.to(exact)
            q = split_heads(queries.to(exact), heads) * self.head_dim**-0.5  # [batch, heads, global tokens, head_dim]
            by_key, by_value = (
                (layer.weight.to(exact).view(heads, -1, dim), layer.bias.to(exact).view(heads, -1, 1))
                for layer in (self.key_global, self.value_global)
            )
            scores = ((q @ by_key[0]).flatten(1, 2) @ x.mT).unflatten(1, (heads, -1)) + q @ by_key[1]
            # a row without visible keys belongs to no global token and is dropped later; it must only be finite
            weights = scores.masked_fill(~visible[:, None], torch.finfo(exact).min).softmax(-1)
            weights = nn.functional.dropout(weights, self.dropout, self.training)
            mixed = (weights.flatten(1, 2) @ x).unflatten(1, (heads, -1)) @ by_value[0].mT
            return merge_heads(mixed + weights.sum(-1, keepdim=True) * by_value[1].mT).to(queries.dtype)

    def masks(self, x: Tensor, lengths: Tensor | None, global_tokens: Tensor | None) -> LocalMasks:
        """The masks of the layer, cached: all layers and calls with the same global tokens and lengths share them."""
        local: Mask = Window(self.window // 2, self.window // 2)
        if lengths is not None:
            local = local & Lengths(lengths, lengths)
        if global_tokens is None:
            return LocalMasks(local)
        shape = x.shape[0], whole_tokens(x.shape[1])
        if global_tokens.dtype != torch.bool or global_tokens.shape != shape:
            raise BadInput(
                f"global_tokens is {global_tokens.dtype} {list(global_tokens.shape)}; it must be boolean [batch, "
                f"tokens] = {list(shape)}, True for the tokens that see all and are seen by all."
            )

        def make() -> LocalMasks:
            with torch.inference_mode(False):  # training may use them too
                index = torch.arange(shape[1], device=x.device)  # of the whole sequence, also where x is a part of it
                real = (index >= 0 if lengths is None else index < lengths[:, None]).expand(shape)
                is_global = global_tokens & real
                seen = local | visible_between(real, is_global)
                masks = LocalMasks(seen, visible_between(is_global, real), is_global)
                if torch.compiler.is_compiling():
                    return masks
                return masks._replace(gathered=gather_globals(is_global, real))

        if torch.compiler.is_compiling():
            return make()
        key = Global(global_tokens) if lengths is None else Global(global_tokens) & Lengths(lengths)
        return mask_cache(key).get(("local masks", self.window), make)

    def attend_heads(self, attend: nn.Module, projected: Sequence[Tensor], mask: Mask) -> Tensor:
        """Attention of projected queries, keys and values, `[batch, queries, dim]`."""
        q, k, v = (split_heads(x, self.heads) for x in projected)
        layout = current_layout()
        sharded = {} if layout is None else {"layout": layout}
        return merge_heads(attend(q, k, v, mask=mask, dropout=self.dropout if self.training else 0.0, **sharded))


def visible_between(queries: Tensor, keys: Tensor) -> Documents:
    """The mask that lets those queries attend to those keys; both boolean `[batch, tokens]`."""
    return Documents(torch.where(keys, 0, -1), torch.where(queries, 0, -1))


def gather_globals(is_global: Tensor, real: Tensor) -> GatheredGlobals:
    most = int(is_global.sum(1).max()) if is_global.numel() else 0
    index = torch.argsort(~is_global, dim=1, stable=True)[:, :most]
    queries = is_global.gather(1, index)
    return GatheredGlobals(index, visible_between(queries, real), queries[..., None] & real[:, None])
