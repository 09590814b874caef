"""Copying: a decoder may say a word because the source has it (See et al. 2017, Gu et al. 2016)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class CopyMechanism(nn.Module):
    """Every word of the source votes for itself, beside what the head says of each word of the vocabulary.

        logit(w) = ln( exp(head's logit of w) + Σ over places i of the source that hold w of exp(score of i) )

    so that one softmax shares the chances out between words written and words copied. The score is a dot product of the
    decoder's state with a key for each place, which knows the place before it too: whoever has just copied a word finds
    the one that follows.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query = nn.Linear(dim, dim)
        self.key, self.before = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)

    def scores(self, hidden: Tensor, encoded: Tensor) -> Tensor:
        """`[batch, targets, places]` of the decoder's last layer and the encoder's."""
        keys = self.key(encoded) + self.before(functional.pad(encoded, (0, 0, 1, -1)))
        scores = self.query(hidden) @ keys.mT / keys.shape[-1] ** 0.5
        return scores.to(torch.promote_types(scores.dtype, torch.float32))

    def copy_logits(
        self, hidden: Tensor, encoded: Tensor, lengths: Tensor | None, source: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The log of each word's votes, `[batch, targets, places]`, and that word, `[batch, 1, places]`.

        A word that stands at several places has its votes at the first of them, and −1 for a word at the others: words
        differ then, and no two votes are written to one logit, whose sum would depend on their order.
        """
        places = torch.arange(source.shape[1], device=source.device)
        first = (source[:, :, None] == source[:, None, :]).int().argmax(-1)  # [batch, places]
        real = torch.ones_like(source, dtype=torch.bool) if lengths is None else places < lengths[:, None]
        scores = self.scores(hidden, encoded).masked_fill(~real[:, None], -torch.inf)
        most = scores.detach().amax(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).min)  # of an empty row too
        summed = (scores - most).exp() @ (first[:, :, None] == places).to(scores.dtype)
        words = source.masked_fill((first != places) | ~real, -1)
        return summed.clamp(min=torch.finfo(summed.dtype).tiny).log() + most, words[:, None]


def add_copy_logits(logits: Tensor, votes: Tensor, words: Tensor) -> Tensor:
    """The logits `[…, vocabulary]` with the votes `[…, places]` for those words in them, −1 being none.

    >>> with_votes(torch.zeros(1, 3), torch.tensor([[0.0, 5.0]]), torch.tensor([[2, -1]]))
    tensor([[0.0000, 0.0000, 0.6931]])
    """
    size = logits.shape[-1]
    roomy = functional.pad(logits.to(votes.dtype), (0, 1))
    columns = words.where(words >= 0, size).expand(votes.shape)
    return roomy.scatter(-1, columns, torch.logaddexp(roomy.gather(-1, columns), votes))[..., :size]
