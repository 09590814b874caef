"""The weights of an attention and their statistics, as `look` returns them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from torch import Tensor

from ..errors import BadInput
from .parts.mask import Mask

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .plotting import Selection


@dataclass(frozen=True, eq=False)
class View:
    """Weights and their statistics; what was not requested is None.

    `lse`, `entropy` (nats), `distance` (mean |i − j| under the weights) and `peak` (largest weight) are
    `[batch, heads, queries]`, `received` (total weight a key gets) `[batch, heads, keys]`, `top_weights` and
    `top_keys` `[batch, heads, queries, top]` (key −1 where a query has fewer), `map` `[batch, heads, rows, columns]`:
    the mean, over a bucket of queries, of their weight on a bucket of keys; `weights` `[batch, heads, queries, keys]`.
    A query with no allowed key has entropy, distance and peak 0 and lse −∞. With a sink, `sink` is the weight that it
    takes, `[batch, heads, queries]`: the weights of a row sum to 1 − sink, and the lse has the sink in it.
    """

    lse: Tensor
    entropy: Tensor
    distance: Tensor
    peak: Tensor
    received: Tensor
    top_weights: Tensor | None
    top_keys: Tensor | None
    map: Tensor | None
    weights: Tensor | None
    mask: Mask
    queries: int
    keys: int
    description: str
    sink: Tensor | None = None

    def plot(self, *, title: str | None = None, **selection: Unpack[Selection]) -> Figure:
        """A figure of the weights, the map or the statistics; `queries` and `keys` are words for the axes."""
        from .plotting import plot_view

        return plot_view(self, title=title, **selection)

    def save(self, path: str | Path, *, title: str | None = None, **selection: Unpack[Selection]) -> Path:
        """Write the view to a file, `.html` (self-contained), `.png` or `.svg`; arguments as for `plot`."""
        path = Path(path)
        if path.suffix == ".html":
            from ..plots.page import heads_html
            from .plotting import view_arrays

            path.write_text(heads_html(view_arrays(self, **selection), title), encoding="utf-8")
        elif path.suffix in (".png", ".svg"):
            from ..plots.figures import save_figure

            save_figure(self.plot(title=title, **selection), path)
        else:
            raise BadInput(f"A view cannot be saved as {path.name!r}; name it .html, .png or .svg.")
        return path

    def _repr_html_(self) -> str:
        from ..plots.page import notebook_html
        from .plotting import view_arrays

        empty = not self.lse.numel() or not self.keys
        return notebook_html(None if empty else view_arrays(self), repr(self))

    def __repr__(self) -> str:
        batch, heads = self.lse.shape[:2]
        present = [name for name in ("top_weights", "map", "weights") if getattr(self, name) is not None]
        sizes = f"{batch} × {heads} heads, {self.queries} queries × {self.keys} keys"
        return f"View({self.description}: {sizes}; holds {present})"
