"""The copy mechanism: a decoder may copy a word of the source (See et al. 2017, Gu et al. 2016)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class CopyMechanism(nn.Module):
    """Every source token adds to the probability of its own word, in addition to the head's logits.

        logit(w) = ln( exp(head's logit of w) + Σ over source positions i that hold w of exp(score of i) )

    so that one softmax is shared by generated and copied words. The score is a dot product of the decoder's state with
    a key of the position, which also depends on the position before it: after copying a word, the decoder finds the
    one that follows.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query = nn.Linear(dim, dim)
        self.key, self.before = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)

    def scores(self, hidden: Tensor, encoded: Tensor) -> Tensor:
        """`[batch, targets, sources]` of the decoder's last layer and the encoder's."""
        keys = self.key(encoded) + self.before(functional.pad(encoded, (0, 0, 1, -1)))
        scores = self.query(hidden) @ keys.mT / keys.shape[-1] ** 0.5
        return scores.to(torch.promote_types(scores.dtype, torch.float32))

    def copy_logits(
        self, hidden: Tensor, encoded: Tensor, lengths: Tensor | None, source: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The logit of copying each word, `[batch, targets, sources]`, and that word, `[batch, 1, sources]`.

        The logits of a word at several positions are summed at the first of them; the others have the word −1. Words
        are then distinct, and no two logits are added to one place in an order that could vary.
        """
        index = torch.arange(source.shape[1], device=source.device)
        first = (source[:, :, None] == source[:, None, :]).int().argmax(-1)  # [batch, sources]
        real = torch.ones_like(source, dtype=torch.bool) if lengths is None else index < lengths[:, None]
        scores = self.scores(hidden, encoded).masked_fill(~real[:, None], -torch.inf)
        most = scores.detach().amax(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).min)  # finite in empty rows
        summed = (scores - most).exp() @ (first[:, :, None] == index).to(scores.dtype)
        words = source.masked_fill((first != index) | ~real, -1)
        return summed.clamp(min=torch.finfo(summed.dtype).tiny).log() + most, words[:, None]


def add_copy_logits(logits: Tensor, copy_logits: Tensor, words: Tensor) -> Tensor:
    """The logits `[…, vocabulary]` with copy logits `[…, sources]` of those words added in; the word −1 is none.

    >>> add_copy_logits(torch.zeros(1, 3), torch.tensor([[0.0, 5.0]]), torch.tensor([[2, -1]]))
    tensor([[0.0000, 0.0000, 0.6931]])
    """
    size = logits.shape[-1]
    padded = functional.pad(logits.to(copy_logits.dtype), (0, 1))
    columns = words.where(words >= 0, size).expand(copy_logits.shape)
    return padded.scatter(-1, columns, torch.logaddexp(padded.gather(-1, columns), copy_logits))[..., :size]
