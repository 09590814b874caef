"""Masks from the conventions of other libraries.

Here True means *may attend*, a mask is never a number, and queries are the last of the keys. Elsewhere True may mean
*drop*, a mask may be added to the scores, 0 may mean padding, and causal may start at the first key.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import BadInput
from .parts.mask import Mask
from .parts.masks import Pairs
from .parts.part import check_count, check_tensor


def from_key_padding(key_padding_mask: Tensor) -> Mask:
    """From `nn.MultiheadAttention`'s `key_padding_mask [batch, keys]`: True (or −∞) drops a key.

    >>> from_key_padding(torch.tensor([[False, True]])).dense(1, 2).flatten().tolist()
    [True, False]
    """
    check_tensor(key_padding_mask, "key_padding_mask", (2,), "[batch, keys], True where a key is dropped", False)
    return Pairs(~find_dropped(key_padding_mask, "key_padding_mask")[:, None, None, :])


def from_attn_mask(attn_mask: Tensor, heads: int | None = None) -> Mask:
    """From `nn.MultiheadAttention`'s `attn_mask`: True (or −∞) drops a pair.

    It is `[queries, keys]`, or `[batch · heads, queries, keys]` where `heads` splits the first dimension.
    """
    check_tensor(attn_mask, "attn_mask", (2, 3), "[queries, keys] or [batch · heads, queries, keys]", False)
    drop = find_dropped(attn_mask, "attn_mask")
    if drop.dim() == 2:
        return Pairs(~drop)
    if heads is None or drop.shape[0] % heads:
        raise BadInput(f"attn_mask is {list(drop.shape)}; pass heads=… that divides its first size, batch · heads.")
    return Pairs(~drop.unflatten(0, (-1, heads)))


def from_additive(mask: Tensor) -> Mask:
    """From a mask that is added to the scores: 0 where a pair is allowed, −∞ (or the type's lowest number) where not.

    Raises `BadInput` for other numbers: a number that is added is a bias, never a mask.
    """
    check_tensor(mask, "mask", (2, 3, 4), "floating, broadcasting to [batch, heads, queries, keys]")
    return Pairs(~find_dropped(mask, "mask"))


def from_hugging_face(attention_mask: Tensor) -> Mask:
    """From Hugging Face's `attention_mask [batch, keys]`: 1 for a real token, 0 for padding.

    With four dimensions it is added to the scores, or has 0 or 1 for each pair.
    """
    if isinstance(attention_mask, Tensor) and attention_mask.dim() == 4 and attention_mask.dtype.is_floating_point:
        return from_additive(attention_mask)
    check_tensor(attention_mask, "attention_mask", (2, 4), "0 or 1, [batch, keys] or [batch, 1, queries, keys]", False)
    if bool(((attention_mask != 0) & (attention_mask != 1)).any()):
        raise BadInput(
            "attention_mask has numbers other than 0 and 1; for a mask that is added to scores use from_additive."
        )
    real = attention_mask != 0
    return Pairs(real[:, None, None, :] if real.dim() == 2 else real)


def causal_from_start(queries: int, keys: int) -> Mask:
    """Causal as torch's `is_causal` means it: query row r sees keys 0 … r, counted from the first key.

    >>> causal_from_start(2, 3).dense(2, 3)[0, 0].int().tolist()
    [[1, 0, 0], [1, 1, 0]]
    """
    check_count(queries, "queries")
    check_count(keys, "keys")
    row, j = torch.arange(queries)[:, None], torch.arange(keys)[None, :]
    return Pairs(j <= row)


def find_dropped(mask: Tensor, name: str) -> Tensor:
    """Where a mask drops pairs: True, or −∞ in a mask that is added to scores."""
    if mask.dtype == torch.bool:
        return mask
    if not mask.dtype.is_floating_point:
        raise BadInput(f"{name} is {mask.dtype}; it must be boolean (True drops) or floating (−∞ drops).")
    drop = mask <= torch.finfo(mask.dtype).min
    if bool(((mask != 0) & ~drop).any()):
        raise BadInput(
            f"{name} has numbers other than 0 and −∞: those are a bias, not a mask. Use a position such as Bias for "
            "what is added, and a mask for what is forbidden."
        )
    return drop
