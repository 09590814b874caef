"""Several models as one: each learns by itself, and what they say together is the mean of what each would say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..attention.errors import BadInput
from .heads import loss_of
from .model import Model, Output


@dataclass(frozen=True)
class Committee:
    """`members` models of one configuration, whose weights begin and become different.

    What small models learn from little data differs by chance from one to the next, and the mean of several is right
    more often than each (Hansen and Salamon 1990).
    """

    member: Any
    members: int
    family: str | None = None

    def build(self) -> CommitteeModel:
        return CommitteeModel(self)


class CommitteeModel(Model):
    """Called as its members are; answers with `logits`, the logarithm of the mean of their probabilities.

    While it learns, the rows of a batch are dealt out: row r is member r mod `members`'s alone, and its logits are what
    that member says. A batch that has every row `members` times in succession shows each of them all.

    >>> from regard.models.config import Sequence
    >>> from regard.models.heads import Classes
    >>> from regard.nn.block import StackConfig
    >>> from regard.nn.embeddings import Text
    >>> member = Sequence(Text(10, 8, None), StackConfig(8, 1, 2), head=Classes(3, 8))
    >>> Committee(member, 5).build().eval()(tokens=torch.tensor([[1, 2, 3]])).logits.exp().sum().round(decimals=4)
    tensor(1., grad_fn=<RoundBackward1>)
    """

    config: Committee

    def __init__(self, config: Committee) -> None:
        super().__init__(config)
        if config.members < 1:
            raise BadInput(f"A committee has {config.members} members; it needs one at least.")
        self.members = nn.ModuleList(config.member.build() for _ in range(config.members))

    def forward(self, *, labels: Tensor | None = None, **given: Tensor) -> Output:
        logits = self.dealt(given) if self.training else self.together(given)
        return Output(logits=logits, loss=None if labels is None else loss_of(logits, labels, shift=False))

    def dealt(self, given: dict[str, Tensor]) -> Tensor:
        """`[batch, classes]`: what each row's own member says."""
        count, rows = len(self.members), len(next(iter(given.values())))
        if rows % count:
            raise BadInput(f"{rows} rows cannot be dealt out evenly among {count} members. Give a multiple.")
        own = ({name: x[n::count] for name, x in given.items()} for n in range(count))
        said = [member(**rows).logits for member, rows in zip(self.members, own, strict=True)]
        return torch.stack(said, dim=1).flatten(0, 1)

    def together(self, given: dict[str, Tensor]) -> Tensor:
        """`[batch, classes]`: ln of the mean over members of their probabilities."""
        said = torch.stack([member(**given).logits.float().log_softmax(-1) for member in self.members])
        return said.logsumexp(0) - torch.tensor(len(self.members), device=said.device).log()
