"""What experiments share that compare models: sizes, scores, ranks, and the lines and bars of their figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from .experiment import Both, Language, Size, Tell
from .learning import COLOURS, part, style

HATCHES = ("", "//", "..", "xx", "\\\\", "--", "++")


def by_size(size: Size, toy: Any, usual: Any, full: Any = None) -> Any:
    """What a size asks for; full is usual unless given."""
    return {"toy": toy, "usual": usual, "full": usual if full is None else full}[size]


def nth(tell: Tell, n: int, of: int, name: str) -> Tell:
    """A teller for the n-th of so many equal parts."""
    return part(tell, n / of, (n + 1) / of, name)


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """The share of rows whose largest logit is the label's."""
    return (logits.argmax(-1) == labels).float().mean().item()


def ranks(x: Tensor) -> Tensor:
    """The rank of every number of a vector, ties sharing their mean."""
    below = (x[None, :] < x[:, None]).double().sum(-1)
    same = (x[None, :] == x[:, None]).double().sum(-1)
    return below + (same + 1) / 2


def rank_correlation(x: Tensor, y: Tensor) -> float:
    """Spearman's correlation of two vectors; 0 where one of them is constant.

    >>> import torch
    >>> round(rank_correlation(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 4.0, 9.0])), 6)
    1.0
    """
    a, b = (r - r.mean() for r in (ranks(x), ranks(y)))
    size = (a.norm() * b.norm()).item()
    return (a @ b).item() / size if size else 0.0


def parameters(model: nn.Module) -> int:
    """How many numbers the model learns."""
    return sum(p.numel() for p in model.parameters())


def percent(share: float) -> str:
    """A share as text.

    >>> percent(0.123)
    '12.3 %'
    """
    return f"{100 * share:.1f} %"


def line(axes: Any, n: int, x: Sequence[float], found: Sequence[Mapping[str, Any]], label: str) -> None:
    """The n-th line of a panel through the means of `found`, with bars of one standard deviation."""
    y, deviation = [one["mean"] for one in found], [one["spread"] for one in found]
    axes.errorbar(x, y, yerr=deviation, label=label, capsize=2, **style(n))


def bars(axes: Any, groups: Sequence[str], series: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Bars side by side in each group: `series` has a name and a `spread` for every group."""
    width = 0.8 / len(series)
    for n, (name, found) in enumerate(series.items()):
        at = [g + (n - (len(series) - 1) / 2) * width for g in range(len(groups))]
        look = {"color": COLOURS[n % len(COLOURS)], "hatch": HATCHES[n % len(HATCHES)], "edgecolor": "white"}
        heights, deviation = [one["mean"] for one in found], [one["spread"] for one in found]
        axes.bar(at, heights, width, yerr=deviation, label=name, capsize=2, **look)
    axes.set_xticks(range(len(groups)), groups)
    axes.grid(False, axis="x")


def name_axes(axes: Any, title: str, x: str, y: str) -> None:
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def level(axes: Any, at: float, label: str) -> None:
    """A thin line that a reader compares with, such as chance."""
    axes.axhline(at, color="#666666", linewidth=0.9, linestyle=(0, (2, 2)), label=label)


def speaker(language: Language) -> Callable[[str, str], str]:
    """Takes the same text in English and in Chinese and gives the one that is read."""
    return lambda en, zh: Both(en, zh)(language)
