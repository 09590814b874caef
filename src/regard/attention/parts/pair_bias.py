"""Biases by pair: a number for each query and key that is added to their score."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ...errors import BadInput
from .mask import PairGrid
from .part import Part, check_tensor


@dataclass(frozen=True, eq=False, repr=False)
class PairBias(Part):
    """bias[batch, head, row(i), j], added to the score after its cap (AlphaFold, Graphormer, Doge).

    `bias` broadcasts to `[batch, heads, queries, keys]`; any of the four sizes may be 1. It may be of another floating
    type than q. Its gradient has its own shape and the same bits every time. Backends read it tile by tile and copy
    nothing of its size; where heads or rows of the batch share its numbers, the backward pass on a GPU takes scratch
    memory of 512 MiB at most, or of the gradient's size where that is more. A number that is added is a bias, never a
    mask: what may not be attended to belongs in `mask`.

    >>> import torch, regard as rg
    >>> x = torch.zeros(1, 1, 2, 2)
    >>> bias = torch.tensor([[0.0, 3.0], [1.0, 1.0]]).log()
    >>> rg.look(x, x, bias=rg.PairBias(bias), weights=True).weights[0, 0].tolist()
    [[0.0, 1.0], [0.5, 0.5]]
    """

    bias: Tensor
    formula = "bias[b, h, row(i), j]"

    def __post_init__(self) -> None:
        check_tensor(self.bias, "PairBias's bias", (2, 3, 4), "that broadcasts to [batch, heads, queries, keys]")

    def check(self, grid: PairGrid) -> None:
        """Raise `BadInput` unless the bias broadcasts to a call of these sizes."""
        sizes = (grid.batch, grid.heads, grid.queries, grid.keys)
        if any(size not in (1, full) for size, full in zip(self.four_dims().shape, sizes, strict=True)):
            raise BadInput(
                f"PairBias's bias is {list(self.bias.shape)}; it must broadcast to {list(sizes)} (batch, heads, "
                "queries, keys)."
            )

    def tensors(self) -> dict[str, Tensor]:
        """The part's tensors, by name."""
        return {"bias": self.bias}

    def four_dims(self) -> Tensor:
        """The bias as `[batch or 1, heads or 1, queries or 1, keys or 1]`, a view."""
        return self.bias[(None,) * (4 - self.bias.dim())]

    def __repr__(self) -> str:
        dtype = str(self.bias.dtype).removeprefix("torch.")
        return f"PairBias(<{dtype} {list(self.bias.shape)}>)"
