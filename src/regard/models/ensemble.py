"""Ensembles: several models that are trained by themselves and predict with the mean of their probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..errors import BadInput
from .heads import supervised_loss
from .interfaces import ModelConfig
from .model import Model, Output


@dataclass(frozen=True)
class EnsembleConfig:
    """`size` models of one configuration with different weights, and an `extra` model of another configuration.

    Small models trained on little data differ by chance, and the mean of several is right more often than each (Hansen
    and Salamon 1990). The extra model differs by more than chance; its weight in the mean is `extra_weight`.
    """

    model: ModelConfig
    size: int
    extra: ModelConfig | None = None
    extra_weight: float = 0.5
    family: str | None = None

    def build(self) -> EnsembleModel:
        return EnsembleModel(self)


class EnsembleModel(Model):
    """Called as its models are; returns `logits`, the logarithm of the weighted mean of their probabilities.

    In training the rows of a batch are split: row r goes to model r mod `count` alone (the extra one is the last), and
    its logits are that model's. A batch with every row `count` times in succession shows each row to all models.

    >>> from regard.models.config import SequenceConfig
    >>> from regard.models.heads import ClassificationHeadConfig
    >>> from regard.nn.block import StackConfig
    >>> from regard.nn.embeddings.text import TextEmbeddingConfig
    >>> head = ClassificationHeadConfig(3, 8)
    >>> config = SequenceConfig(TextEmbeddingConfig(10, 8, None), StackConfig(8, 1, 2), head=head)
    >>> logits = EnsembleConfig(config, size=5).build().eval()(tokens=torch.tensor([[1, 2, 3]])).logits
    >>> round(logits.exp().sum().item(), 4)
    1.0
    """

    config: EnsembleConfig

    def __init__(self, config: EnsembleConfig) -> None:
        super().__init__(config)
        if config.size < 1:
            raise BadInput(f"The ensemble has {config.size} models; it needs at least one.")
        if not 0 < config.extra_weight < 1:
            raise BadInput(f"extra_weight is {config.extra_weight}; it must be more than 0 and less than 1.")
        self.members = nn.ModuleList(config.model.build() for _ in range(config.size))
        self.beside = None if config.extra is None else config.extra.build()  # the names of saved weights

    @property
    def models(self) -> list[nn.Module]:
        """The models of the ensemble, the extra one last."""
        return [*self.members, *([] if self.beside is None else [self.beside])]

    @property
    def count(self) -> int:
        return len(self.models)

    def forward(self, *, labels: Tensor | None = None, **inputs: Tensor) -> Output:
        logits = self.split_logits(inputs) if self.training else self.mean_logits(inputs)
        return Output(logits=logits, loss=None if labels is None else supervised_loss(logits, labels, shift=False))

    def split_logits(self, inputs: dict[str, Tensor]) -> Tensor:
        """`[batch, classes]`: for each row the logits of its own model."""
        count, rows = self.count, len(next(iter(inputs.values())))
        if rows % count:
            raise BadInput(f"{rows} rows cannot be split evenly among {count} models. Give a multiple.")
        shares = ({name: x[n::count] for name, x in inputs.items()} for n in range(count))
        logits = [model(**share).logits for model, share in zip(self.models, shares, strict=True)]
        return torch.stack(logits, dim=1).flatten(0, 1)

    def mean_logits(self, inputs: dict[str, Tensor]) -> Tensor:
        """`[batch, classes]`: ln of the weighted mean of the models' probabilities."""
        logits = torch.stack([model(**inputs).logits.float().log_softmax(-1) for model in self.models])
        size, extra = len(self.members), self.count - len(self.members)
        extra_weight = self.config.extra_weight if extra else 0.0
        weights = [(1 - extra_weight) / size] * size + [extra_weight] * extra
        return (logits + torch.tensor(weights, device=logits.device).log()[:, None, None]).logsumexp(0)
