"""Ensembles: several models that are trained by themselves and predict with the mean of their probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..errors import BadInput
from .heads import supervised_loss
from .interfaces import ModelConfig
from .model import Model, Output

MeanOf = Literal["softmax", "sigmoid", "identity"]
"""What a mean is taken of: the probabilities of classes or of labels, or the outputs themselves."""


@dataclass(frozen=True)
class EnsembleConfig:
    """`size` models of one configuration with different weights, and an `extra` model of another configuration.

    Small models trained on little data differ by chance, and the mean of several is right more often than each (Hansen
    and Salamon 1990). The extra model differs by more than chance; its weight in the mean is `extra_weight`. The `mean`
    is taken of the probabilities of classes (softmax), of those of labels (sigmoid), or of the outputs (identity). An
    extra model that is `fitted` is not trained: it has its weights before. It reads `extra_inputs` alone, which the
    others do not read; without any, it reads what they read.
    """

    model: ModelConfig
    size: int
    extra: ModelConfig | None = None
    extra_weight: float = 0.5
    family: str | None = None
    mean: MeanOf = "softmax"
    fitted: bool = False
    extra_inputs: tuple[str, ...] = ()

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
        if not 0 <= config.extra_weight <= 1:
            raise BadInput(f"extra_weight is {config.extra_weight}; it must be at least 0 and at most 1.")
        self.members = nn.ModuleList(config.model.build() for _ in range(config.size))
        self.beside = None if config.extra is None else config.extra.build()  # the names of saved weights
        if config.fitted and self.beside is not None:
            self.beside.requires_grad_(False)

    @property
    def models(self) -> list[nn.Module]:
        """The models of the ensemble, the extra one last."""
        return [*self.members, *([] if self.beside is None else [self.beside])]

    @property
    def trained_models(self) -> list[nn.Module]:
        """The models that are trained by steps."""
        return [*self.members] if self.config.fitted else self.models

    @property
    def count(self) -> int:
        """How many models are trained by steps."""
        return len(self.trained_models)

    def forward(self, *, labels: Tensor | None = None, **inputs: Tensor) -> Output:
        logits = self.split_logits(inputs) if self.training else self.mean_logits(inputs)
        return Output(logits=logits, loss=None if labels is None else supervised_loss(logits, labels, shift=False))

    def split_logits(self, inputs: dict[str, Tensor]) -> Tensor:
        """`[batch, classes]`: for each row the logits of its own model."""
        inputs = {name: x for name, x in inputs.items() if name not in self.config.extra_inputs}
        count, rows = self.count, len(next(iter(inputs.values())))
        if rows % count:
            raise BadInput(f"{rows} rows cannot be split evenly among {count} models. Give a multiple.")
        shares = ({name: x[n::count] for name, x in inputs.items()} for n in range(count))
        logits = [model(**share).logits for model, share in zip(self.trained_models, shares, strict=True)]
        return torch.stack(logits, dim=1).flatten(0, 1)

    def mean_logits(self, inputs: dict[str, Tensor]) -> Tensor:
        """`[batch, classes]`: the outputs of the models, combined."""
        return self.combine(self.model_logits(inputs))

    def model_logits(self, inputs: dict[str, Tensor]) -> Tensor:
        """`[models, batch, classes]`: the outputs of each model, the extra one last."""
        own = {name: x for name, x in inputs.items() if name not in self.config.extra_inputs}
        logits = [model(**own).logits.float() for model in self.members]
        if self.beside is not None:
            extra = {name: inputs[name] for name in self.config.extra_inputs} or inputs
            logits.append(self.beside(**extra).logits.float())
        return torch.stack(logits)

    def combine(self, logits: Tensor) -> Tensor:
        """`[batch, classes]`: logits of the weighted mean of the models' probabilities, or the mean of the outputs."""
        size, extra = len(self.members), len(self.models) - len(self.members)
        extra_weight = self.config.extra_weight if extra else 0.0
        shares = [(1 - extra_weight) / size] * size + [extra_weight] * extra
        return mean_logits(logits, shares, self.config.mean)


def mean_logits(logits: Tensor, weights: Sequence[float], mean: MeanOf) -> Tensor:
    """`[batch, classes]`: logits of the weighted mean of models' probabilities, or the mean of their outputs; logits
    `[models, batch, classes]`.

    >>> logits = torch.tensor([[[0.0, 0.0]], [[0.0, 50.0]]])
    >>> mean_logits(logits, [0.5, 0.5], "softmax").exp().tolist()
    [[0.25, 0.75]]
    """
    shares = torch.tensor(weights, device=logits.device)[:, None, None]
    if mean == "identity":
        return (shares * logits).sum(0)
    if mean == "softmax":
        return (logits.log_softmax(-1) + shares.log()).logsumexp(0)
    present, absent = ((functional.logsigmoid(sign * logits) + shares.log()).logsumexp(0) for sign in (1.0, -1.0))
    return present - absent
