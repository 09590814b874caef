"""What experiments share: a short training loop, many seeds' results in few numbers, and figures in two languages."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..errors import Unsupported
from ..train.cuda_graph import Recorded
from .experiment import Language, Tell

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Okabe and Ito's colours, which a colour-blind reader can tell apart."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)), (0, (1, 1)))

SETTLED = 20
"""So many steps with a small loss say that a model has learned its task."""


def drawing(seed: int) -> torch.Generator:
    """A generator of random numbers where the experiment computes.

    On a GPU it is the GPU's own, which goes on drawing when a recorded step is repeated.
    """
    if torch.get_default_device().type == "cpu":
        return torch.Generator().manual_seed(seed)
    number = torch.cuda.current_device()
    return torch.cuda.default_generators[number].manual_seed(seed)


def silent(share: float, text: str) -> None:
    """A `Tell` that nobody hears."""


def part(tell: Tell, start: float, end: float, name: str = "") -> Tell:
    """A `Tell` for a part of the work: its 0 to 1 is the whole's `start` to `end`.

    >>> part(lambda share, text: print(share, text), 0.5, 1.0, "LSTM")(0.5, "loss 1.2")
    0.75 LSTM: loss 1.2
    """
    return lambda share, text: tell(start + (end - start) * share, f"{name}: {text}" if name else text)


def fit(
    model: nn.Module,
    loss: Callable[[], Tensor],
    steps: int,
    rate: float = 1e-3,
    tell: Tell = silent,
    enough: float = 0.0,
    repeats: bool = True,
) -> list[float]:
    """Train: at each step, one `loss()` of a fresh batch goes down by AdamW; the losses of all steps.

    The rate rises over the first twentieth and falls to nothing at the end; gradients longer than 1 are shortened.
    When the last `SETTLED` losses are all below `enough`, the rest of the steps is saved.

    `repeats`: the host does the same in every `loss()`, and all that is random is drawn where the model is. A GPU then
    repeats a recorded step by itself, many times faster than the host can start its kernels.
    """
    step = Step(model, loss, rate, repeats)
    losses = []
    model.train()
    for n in range(steps):
        losses.append(step(rise_and_fall(n, steps)))
        if n % 10 == 0:
            tell((n + 1) / steps, f"loss {losses[-1]:.3f}")
        if len(losses) >= SETTLED and max(losses[-SETTLED:]) < enough:
            break
    model.eval()
    return losses


class Step:
    """One update of a model, at a share of the rate; what it gives is the loss."""

    def __init__(self, model: nn.Module, loss: Callable[[], Tensor], rate: float, repeats: bool) -> None:
        self.model, self.loss, self.rate = model, loss, rate
        gpu = torch.get_default_device().type == "cuda"
        self.optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=torch.tensor(rate) if gpu else rate,
            weight_decay=0.0,
            fused=gpu or None,
            capturable=gpu,
        )
        self.recorded = Recorded(lambda _: self.update()) if gpu and repeats else None

    def __call__(self, share: float) -> float:
        for group in self.optimizer.param_groups:
            rate = self.rate * share
            group["lr"] = group["lr"].fill_(rate) if isinstance(group["lr"], Tensor) else rate
        if self.recorded is not None:
            try:
                return self.recorded({}).item()
            except Unsupported as error:
                warnings.warn(f"{error} The experiment goes on without recording.", stacklevel=3)
                self.recorded = None
        return self.update().item()

    def update(self) -> Tensor:
        loss = self.loss()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


def rise_and_fall(step: int, steps: int) -> float:
    """The rate at a step, of its largest: up over the first twentieth, then down in a straight line."""
    rise = max(steps // 20, 1)
    return min((step + 1) / rise, (steps - step) / max(steps - rise, 1))


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Mean, standard deviation and the values themselves.

    >>> spread([1.0, 2.0, 3.0])
    {'mean': 2.0, 'spread': 1.0, 'all': [1.0, 2.0, 3.0]}
    """
    held = [float(value) for value in values]
    return {"mean": statistics.fmean(held), "spread": statistics.stdev(held) if len(held) > 1 else 0.0, "all": held}


def smooth(values: Sequence[float], points: int = 60) -> list[float]:
    """The means of `points` equal runs, so that a curve of thousands of steps is few numbers."""
    run = max(len(values) // points, 1)
    return [statistics.fmean(values[at : at + run]) for at in range(0, len(values) - run + 1, run)]


def training_of(losses: Sequence[Sequence[float]]) -> dict[str, Any]:
    """How several seeds' training went: the mean loss of each, and the smoothed curve of their means."""
    curve = [statistics.fmean(at) for at in zip(*losses, strict=True)]
    return {"mean loss": spread([statistics.fmean(one) for one in losses]), "curve": smooth(curve)}


def processor_times(calls: Mapping[str, Callable[[], object]], budget: float, least: int = 3) -> dict[str, float]:
    """Median seconds of processor time of each call; they take turns until `budget` seconds are spent.

    An experiment has one thread, of which this is the time that it computes: what else the machine does adds nothing.
    On a GPU it is the time until that has done what it was given.

    >>> sorted(processor_times({"a": lambda: None, "b": lambda: None}, budget=0.0))
    ['a', 'b']
    """
    for call in calls.values():
        call()
    spent: dict[str, list[float]] = {name: [] for name in calls}
    start, rounds = now(), 0
    while rounds < least or now() - start < budget:
        for name, call in calls.items():
            began = now()
            call()
            spent[name].append(now() - began)
        rounds += 1
    return {name: statistics.median(values) for name, values in spent.items()}


def now() -> float:
    """Seconds of this process's computing so far, or by the clock once a GPU has no more to do."""
    if torch.get_default_device().type == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


@contextmanager
def panels(
    language: Language, columns: int = 1, rows: int = 1, *, width: float = 4.4, height: float = 3.6
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure and its axes, row by row, whose texts are drawn in the language's fonts; sizes in inches an axes."""
    from ..errors import Missing

    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError as error:
        raise Missing(
            'Figures are drawn with matplotlib, which is not installed: pip install "regard[figures]"'
        ) from error
    from ..plots.fonts import font_families

    look: dict[Any, Any] = {
        "font.family": font_families(["汉" if language == "zh" else ""]),
        "axes.unicode_minus": language == "en",
    }
    look |= {
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.alpha": 0.3,
        "axes.titlesize": 10,
        "legend.fontsize": 8,
        "figure.dpi": 120,
    }
    with rc_context(look):
        figure = Figure(
            figsize=(columns * width, rows * height), layout=ConstrainedLayoutEngine(wspace=0.06, hspace=0.06)
        )
        yield figure, [figure.add_subplot(rows, columns, n + 1) for n in range(rows * columns)]


def style(n: int) -> dict[str, Any]:
    """Colour, marker and line of the n-th curve of a figure: different in all three."""
    at = n % len(COLOURS)
    return {"color": COLOURS[at], "marker": MARKERS[at], "linestyle": LINES[at], "markersize": 4.5}
