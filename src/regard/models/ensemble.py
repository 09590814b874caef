"""Several models as one: each learns by itself, and what they say together is the mean of what each would say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import BadInput
from .heads import loss_of
from .model import Model, Output


@dataclass(frozen=True)
class Committee:
    """`members` models of one configuration, whose weights begin and become different, and one `beside` them.

    What small models learn from little data differs by chance from one to the next, and the mean of several is right
    more often than each (Hansen and Salamon 1990). A model of another kind differs by more than chance: of what
    is said together its part is `share`.
    """

    member: Any
    members: int
    beside: Any = None
    share: float = 0.5
    family: str | None = None

    def build(self) -> CommitteeModel:
        return CommitteeModel(self)


class CommitteeModel(Model):
    """Called as its members are; answers with `logits`, the logarithm of the mean of their probabilities.

    While it learns, the rows of a batch are dealt out: row r is the model's alone that is number r mod `count`, the one
    beside being the last, and its logits are what that model says. A batch that has every row `count` times in
    succession shows each of them all.

    >>> from regard.models.config import Sequence
    >>> from regard.models.heads import Classes
    >>> from regard.nn.block import StackConfig
    >>> from regard.nn.embeddings.text import Text
    >>> member = Sequence(Text(10, 8, None), StackConfig(8, 1, 2), head=Classes(3, 8))
    >>> Committee(member, 5).build().eval()(tokens=torch.tensor([[1, 2, 3]])).logits.exp().sum().round(decimals=4)
    tensor(1., grad_fn=<RoundBackward1>)
    """

    config: Committee

    def __init__(self, config: Committee) -> None:
        super().__init__(config)
        if config.members < 1:
            raise BadInput(f"A committee has {config.members} members; it needs one at least.")
        if not 0 < config.share < 1:
            raise BadInput(f"The model beside a committee says {config.share} of all. Give more than 0, less than 1.")
        self.members = nn.ModuleList(config.member.build() for _ in range(config.members))
        self.beside = None if config.beside is None else config.beside.build()

    @property
    def every(self) -> list[nn.Module]:
        """The members, and the model beside them."""
        return [*self.members, *([] if self.beside is None else [self.beside])]

    @property
    def count(self) -> int:
        return len(self.every)

    def forward(self, *, labels: Tensor | None = None, **given: Tensor) -> Output:
        logits = self.dealt(given) if self.training else self.together(given)
        return Output(logits=logits, loss=None if labels is None else loss_of(logits, labels, shift=False))

    def dealt(self, given: dict[str, Tensor]) -> Tensor:
        """`[batch, classes]`: what each row's own model says."""
        count, rows = self.count, len(next(iter(given.values())))
        if rows % count:
            raise BadInput(f"{rows} rows cannot be dealt out evenly among {count} models. Give a multiple.")
        own = ({name: x[n::count] for name, x in given.items()} for n in range(count))
        said = [model(**rows).logits for model, rows in zip(self.every, own, strict=True)]
        return torch.stack(said, dim=1).flatten(0, 1)

    def together(self, given: dict[str, Tensor]) -> Tensor:
        """`[batch, classes]`: ln of the mean of the probabilities that each says, weighed by its share."""
        said = torch.stack([model(**given).logits.float().log_softmax(-1) for model in self.every])
        share = 0.0 if self.beside is None else self.config.share
        shares = [(1 - share) / len(self.members)] * len(self.members) + [share] * (self.count - len(self.members))
        return (said + torch.tensor(shares, device=said.device).log()[:, None, None]).logsumexp(0)
