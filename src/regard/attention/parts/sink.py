"""Sinks: a logit of each head that joins the softmax and takes weight without a value."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import BadInput
from .part import Part, check_tensor


@dataclass(frozen=True, eq=False, repr=False)
class Sink(Part):
    """One more logit in each row's softmax, with no value: the weights of the keys sum to less than 1.

        weight(i, j) = exp(score(i, j)) / (exp(logit) + Σ_j exp(score(i, j)))

    `logits` is a number, or a tensor with one for each head, `[heads]`, which receives a gradient (gpt-oss). `Sink()`
    has the logit 0: "softmax plus one", 1 + Σ exp in the denominator. −∞ is no sink. A row with no allowed key gives
    zeros; its log-sum-exp is the logit.

    >>> import torch, regard as rg
    >>> q, v = torch.zeros(1, 1, 1, 2), torch.ones(1, 1, 3, 1)
    >>> rg.attend(q, torch.zeros(1, 1, 3, 2), v, sink=rg.Sink()).item()     # three keys and the sink: 1/4 each
    0.75
    """

    logits: Tensor | float = 0.0
    formula = "exp(logit) + Σ_j exp(score)"

    def __post_init__(self) -> None:
        if isinstance(self.logits, Tensor):
            check_tensor(self.logits, "Sink's logits", (1,), "[heads]")
        elif isinstance(self.logits, bool) or not isinstance(self.logits, int | float) or math.isnan(self.logits):
            raise BadInput(f"Sink's logits are {self.logits!r}; give a number, or a tensor with one for each head.")

    def check(self, q: Tensor, k: Tensor) -> None:
        """Raise `BadInput` unless there is a logit for each head of q."""
        if isinstance(self.logits, Tensor) and self.logits.shape[0] != q.shape[1]:
            raise BadInput(
                f"Sink's logits are {list(self.logits.shape)}; q {list(q.shape)} has {q.shape[1]} heads. Pass one "
                "logit for each head, or a number for all."
            )

    def tensors(self) -> dict[str, Tensor]:
        """The part's tensors, by name."""
        return {"logits": self.logits} if isinstance(self.logits, Tensor) else {}

    def head_logits(self, q: Tensor) -> Tensor:
        """A logit for each head, `[heads]`, in float32 at least."""
        exact = torch.promote_types(q.dtype, torch.float32)
        if isinstance(self.logits, Tensor):
            return self.logits.to(exact)
        return q.new_full((q.shape[1],), float(self.logits), dtype=exact)
