"""What masks share: the states of tiles from counts and ranges, and checks of their tensors."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from ....errors import BadInput
from ..mask import ALL, MIXED, NONE, PairGrid, Tiling
from ..part import check_tensor


def states_from(full: Tensor, empty: Tensor) -> Tensor:
    """States of tiles that are full, empty or neither, with batch and heads in front."""
    return add_batch_heads(torch.where(full, ALL, torch.where(empty, NONE, MIXED)).to(torch.int8))


def add_batch_heads(x: Tensor) -> Tensor:
    """x with dimensions of size 1 for batch and heads in front, where they are missing."""
    return x.reshape(*(1,) * (4 - x.dim()), *x.shape)


def tile_counts(x: Tensor, size: int, dim: int = -1) -> Tensor:
    """Sums of x over consecutive runs of `size` along `dim`; the last run may be shorter."""
    moved = x.movedim(dim, -1)
    padded = pad(moved.to(torch.int32), (0, -moved.shape[-1] % size))
    return padded.unflatten(-1, (-1, size)).sum(-1).movedim(-1, dim)


def tile_sizes(tiling: Tiling) -> tuple[Tensor, Tensor]:
    """How many rows `[tile rows, 1]` and columns `[1, tile columns]` each tile has."""
    (r_first, r_last), (c_first, c_last) = tiling.row_numbers(), tiling.keys()
    return r_last - r_first + 1, c_last - c_first + 1


def check_boolean(value: Tensor, name: str, dims: tuple[int, ...], shape: str) -> None:
    check_tensor(value, name, dims, shape, False)
    if value.dtype != torch.bool:
        raise BadInput(
            f"{name} is {value.dtype}; it must be {shape}, True where attention is allowed. "
            "See regard.from_hugging_face, from_key_padding, from_attn_mask for other conventions."
        )


def check_batch_heads(name: str, value: Tensor, grid: PairGrid) -> None:
    front = add_batch_heads(value).shape[:2]
    if front[0] not in (1, grid.batch) or front[1] not in (1, grid.heads):
        raise BadInput(f"{name} is {list(value.shape)}; the batch is {grid.batch} and the heads are {grid.heads}.")


def check_batch_tokens(name: str, value: Tensor, shape: str, grid: PairGrid, tokens: int) -> None:
    if list(value.shape) != [grid.batch, tokens]:
        raise BadInput(f"{name} are {list(value.shape)}; they must be {shape} = {[grid.batch, tokens]}.")
