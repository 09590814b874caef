"""Gradient boosting on the same columns, the baseline that a model of tables has to be measured with."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from ..losses.targets import InputTarget, RegressionTarget
from ..task import Scores

NAME = "gradient boosting"
MAX_CELLS = 50_000_000
MAX_VALUES = 254
"""Values of a category that scikit-learn's histograms have room for."""


def score_boosting(
    train: tuple[Tensor, Sequence[str]], held: tuple[Tensor, Sequence[str]], sizes: Sequence[int], target: InputTarget
) -> Scores | None:
    """Scores of scikit-learn's histogram gradient boosting with its defaults on (columns, labels) of held-out rows.

    None where scikit-learn is not installed or the table is too large for it.
    """
    columns, labels = train
    if find_spec("sklearn") is None or columns.numel() > MAX_CELLS:
        return None
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    settings: dict[str, Any] = {  # scikit-learn's annotations know texts only
        "categorical_features": [0 < size <= MAX_VALUES for size in sizes],
        "random_state": 0,
    }
    if isinstance(target, RegressionTarget):
        regressor = HistGradientBoostingRegressor(**settings).fit(columns.numpy(), target.tensor(labels)[:, 0].numpy())
        values = torch.from_numpy(regressor.predict(held[0].numpy())).float()
        return target.scores((values[:, None] - torch.tensor(target.mean)) / torch.tensor(target.std), held[1])
    classifier = HistGradientBoostingClassifier(**settings).fit(columns.numpy(), list(labels))
    logits = torch.full((len(held[0]), target.outputs), -30.0)
    order = [target.labels.index(str(name)) for name in classifier.classes_]
    logits[:, order] = torch.from_numpy(classifier.predict_proba(held[0].numpy())).clamp(min=1e-12).log().float()
    return target.scores(logits, held[1])
