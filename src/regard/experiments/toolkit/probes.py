"""Linear probes: what can be read linearly from the vectors after each layer of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn


def layer_outputs(model: nn.Module, call: Callable[[], object]) -> list[Tensor]:
    """The vectors of all tokens before the first block of a model and after each, `[tokens, dim]`, of one call.

    The tokens of a batch follow one another, without padding, as the stack packs them.
    """
    outputs: list[Tensor] = []
    blocks = list(model.get_submodule("stack.blocks").children())
    handles = [blocks[0].register_forward_pre_hook(lambda block, args: outputs.append(args[0].flatten(0, -2)))]
    for block in blocks:
        handles.append(block.register_forward_hook(lambda block, args, out: outputs.append(out.flatten(0, -2))))
    try:
        with torch.no_grad():
            call()
    finally:
        for handle in handles:
            handle.remove()
    return outputs


def fit_ridge(x: Tensor, y: Tensor, l2: float = 0.01) -> Callable[[Tensor], Tensor]:
    """Linear regression with a penalty, in closed form: (XᵀX + l2·n·I)⁻¹XᵀY over standardized columns of X.

    >>> x = torch.arange(6.0, dtype=torch.float64)[:, None]
    >>> predict = fit_ridge(x, 2 * x + 1, l2=0.0)
    >>> round(predict(torch.tensor([[10.0]])).item(), 6)
    21.0
    """
    x, y = x.double(), y.double()
    mean, std, centre = x.mean(0), x.std(0).clamp(min=1e-9), y.mean(0)
    scaled = (x - mean) / std
    gram = scaled.mT @ scaled + l2 * len(x) * torch.eye(x.shape[1], dtype=x.dtype)
    weight = torch.linalg.solve(gram, scaled.mT @ (y - centre))
    return lambda rows: (rows.double() - mean) / std @ weight + centre


def probe_numbers(train: Sequence[Tensor], test: Sequence[Tensor], l2: float = 0.01) -> float:
    """The share R² of the variance of new targets that a probe explains; `train` and `test` are vectors and targets."""
    predicted, y = fit_ridge(train[0], train[1], l2)(test[0]), test[1].double()
    rest = ((y - predicted) ** 2).sum() / ((y - y.mean(0)) ** 2).sum()
    return 1 - rest.item()


def probe_classes(train: Sequence[Tensor], test: Sequence[Tensor], classes: int, l2: float = 0.01) -> float:
    """The accuracy on new vectors of a probe for classes: ridge regression on indicators, the largest wins."""
    indicators = torch.nn.functional.one_hot(train[1], classes)
    return (fit_ridge(train[0], indicators, l2)(test[0]).argmax(-1) == test[1]).double().mean().item()
