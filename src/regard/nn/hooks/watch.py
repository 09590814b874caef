"""Watching: the views of every attention of a model, while the model runs unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...attention.look import map_size
from ...attention.parts.part import check_count
from ...attention.view import View
from ...errors import BadInput, RegardError
from ..attention import Attend
from .attentions import find_attentions, nearest_name, read_call
from .direct import follow_calls, without_interception
from .edit import ViewOptions, apply_edits, look_at
from .scope import Scope


@dataclass(eq=False)
class Record:
    """One call: its view and, with `weights`, the tensors for `regard.nn.explain`.

    `values [batch, kv_heads, keys, value dim]`; `gradient [batch, heads, queries, value dim]` is that of the output,
    set by backward; `dropout` is the share of weights that the call dropped.
    """

    view: View
    values: Tensor | None = None
    gradient: Tensor | None = None
    dropout: float = 0.0


class Views(dict[str, View]):
    """The last view of each attention under its module's name, in the order of their first calls.

    `calls(name)` has the views of all calls, such as the steps of a generation. It prints as a table.
    """

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.model, self.names = model, names
        self.records: dict[str, list[Record]] = {}

    def add(self, name: str, record: Record) -> None:
        self[name] = record.view
        self.records.setdefault(name, []).append(record)

    def calls(self, name: str) -> list[View]:
        """The views of every call, first to last."""
        self[name]  # raises for a name without calls
        return [record.view for record in self.records[name]]

    def __missing__(self, name: str) -> View:
        if name in self.names:
            raise BadInput(
                f"{name!r} was not called while the model was watched. Called: {', '.join(self) or 'nothing'}."
            )
        raise BadInput(f"There is no attention {name!r}. Did you mean {nearest_name(str(name), self.names)!r}?")

    def __repr__(self) -> str:
        rows: list[tuple[str, ...]]
        rows = [("attention", "calls", "heads", "queries × keys", "entropy", "peak", "distance")]
        for name, view in self.items():
            alive = view.lse > -torch.inf  # queries that attend to some key
            means = [x[alive].mean().item() if alive.any() else 0.0 for x in (view.entropy, view.peak, view.distance)]
            sizes = str(len(self.records[name])), str(view.lse.shape[1]), f"{view.queries} × {view.keys}"
            rows.append((name, *sizes, *(f"{mean:.3f}" for mean in means)))
        widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        return "\n".join(line.rstrip() for line in lines)


@contextmanager
def watch(
    model: nn.Module, *, top: int = 0, map: int | tuple[int, int] | None = None, weights: bool = False
) -> Iterator[Views]:
    """While open, every attention of the model leaves a `View` under its module's name.

    A module that calls `regard.attend` in its code leaves them under its own name. `top`, `map` and `weights` ask for
    more, as in `regard.look`. Outputs stay the same to the bit and no random number is drawn: views show the weights
    before dropout. Where heads are edited (`regard.edit`), views show the weights in effect. With `weights`, values and
    the gradients of outputs are recorded too, for `regard.nn.explain`. A forward pass that backward repeats (activation
    checkpointing) is not recorded, nor is one of another thread or task. Raises `BadInput` for a model without
    attention of Regard, `Unsupported` for a compiled one and for methods that never form weights.

    >>> import torch, regard as rg
    >>> model = rg.nn.Stack(rg.nn.StackConfig(dim=8, layers=2, heads=2, mask=rg.Causal()))
    >>> with watch(model) as views:
    ...     y = model(torch.randn(1, 5, 8))
    >>> list(views), views["blocks.1.attention"].entropy.shape
    (['blocks.0.attention', 'blocks.1.attention'], torch.Size([1, 2, 5]))
    """
    check_count(top, "top")
    options: ViewOptions = {"top": top, "map": map_size(map), "weights": weights}
    attends = find_attentions(model)
    views = Views(model, list(attends))
    scope, handles, known = Scope(), [], set(attends.values())

    def start_recording(name: str, attend: Attend) -> None:
        """Record a call that no code of the model shows."""
        if attend not in known:
            known.add(attend)
            views.names.append(name)
            hook = make_record_hook(views, name, options, scope)
            handles.append(attend.register_forward_hook(hook, with_kwargs=True))

    try:
        for name, attend in attends.items():
            hook = make_record_hook(views, name, options, scope)
            handles.append(attend.register_forward_hook(hook, with_kwargs=True))
        with follow_calls(model, start_recording), scope.open():
            yield views
    finally:
        for handle in handles:
            handle.remove()


def make_record_hook(views: Views, name: str, options: ViewOptions, scope: Scope) -> Callable[..., None]:
    """The hook that records the calls of one attention, within a scope."""

    def record_call(attend: Attend, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        if torch._C._current_graph_task_id() != -1 or not scope.is_open:  # inside backward, or of another thread
            return
        call = read_call(args, kwargs)
        with without_interception():
            try:
                view = look_at(call, options)
            except RegardError as error:
                raise type(error)(f"{name}: {error}") from None
            record = Record(apply_edits(attend, view, call, options))
        if options["weights"]:
            record.values, record.dropout = call.v.detach(), call.parts.dropout
            if output.requires_grad:
                output.register_hook(lambda gradient: setattr(record, "gradient", gradient.detach()))
        views.add(name, record)

    return record_call
