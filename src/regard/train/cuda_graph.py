"""A step of training that a GPU repeats by itself.

A step of a model starts thousands of kernels, and the host needs longer to start small ones than the GPU to run them.
Recorded once as a CUDA graph, a step is started as one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..attention.tracing import cuda_graph_mode
from ..errors import Unsupported

Batch = Mapping[str, Tensor]
Step = Callable[[dict[str, Tensor]], Tensor]


def rounded_up(batch: Batch, fills: Mapping[str, int], rows: int = 32, places: int = 8) -> dict[str, Tensor]:
    """A batch with rows and places added until their numbers are multiples, so that few shapes occur.

    Tensors `[batch, places]` are filled with their number of `fills`, lengths and the like `[batch]` with 0.

    >>> batch = {"x": torch.ones(1, 1), "n": torch.tensor([1])}
    >>> {name: x.tolist() for name, x in rounded_up(batch, {"x": 7}, rows=2, places=2).items()}
    {'x': [[1.0, 7.0], [7.0, 7.0]], 'n': [1, 0]}
    """
    found = {}
    for name, x in batch.items():
        more = (0, -x.shape[0] % rows)
        found[name] = pad(x, (0, -x.shape[1] % places, *more) if x.dim() > 1 else more, value=fills.get(name, 0))
    return found


class Recorded:
    """`step(batch) -> loss`, recorded for each shape of batch after a few plain calls, and repeated from then on.

    `step` does everything of an update: forward, backward, the optimizer (made with `capturable=True`), gradients set
    to None. Each call is one update, also those that come before the recording. What the host does in `step` may depend
    on the sizes of tensors and not on what is in them; a tensor whose contents decide what is done (the global tokens
    of a Longformer) is named in `fixed`, and every contents of it has a recording of its own. Batches of a new shape
    beyond the first `most` are computed plainly, so round their sizes up: few shapes, few recordings.

    Raises `Unsupported` without a GPU, and where a step cannot be recorded.
    """

    def __init__(self, step: Step, *, fixed: Sequence[str] = (), plain: int = 3, most: int = 32) -> None:
        if not torch.cuda.is_available():
            raise Unsupported("A step is recorded for a GPU, and torch sees none here. Call the step itself.")
        self.step, self.fixed, self.plain, self.most = step, tuple(fixed), plain, most
        self.kept: dict[Any, Recording] = {}
        self.pool = torch.cuda.graph_pool_handle()

    def __call__(self, batch: Batch) -> Tensor:
        """The loss of the batch, after an update by it."""
        shape = self.shape(batch)
        known = self.kept.get(shape)
        if known is None:
            known = Recording(self.step, self.fixed, self.plain, self.pool)
            if len(self.kept) < self.most:
                self.kept[shape] = known
        return known(batch)

    def shape(self, batch: Batch) -> Any:
        """What tells the recordings apart."""
        sizes = tuple((name, x.shape, x.dtype) for name, x in sorted(batch.items()))
        return sizes, *(batch[name].cpu().numpy().tobytes() for name in self.fixed)


class Recording:
    """The step for batches of one shape: their place on the GPU, and what is repeated over it."""

    def __init__(self, step: Step, fixed: tuple[str, ...], plain: int, pool: Any) -> None:
        self.step, self.fixed, self.left, self.pool = step, fixed, plain, pool
        self.inputs: dict[str, Tensor] = {}
        self.graph: Any = None
        self.loss: Any = None

    def __call__(self, batch: Batch) -> Tensor:
        self.put(batch)
        if self.graph is None and self.left > 0:
            self.left -= 1
            return self.plainly()
        if self.graph is None:
            self.graph, self.loss = self.record()
        self.graph.replay()
        return self.loss.clone()

    def put(self, batch: Batch) -> None:
        """Copy a batch to where the step reads it; what is fixed is there already."""
        for name, x in batch.items():
            if name not in self.inputs:
                self.inputs[name] = x.to("cuda", copy=True)
            elif name not in self.fixed:
                self.inputs[name].copy_(pinned(x), non_blocking=True)

    def plainly(self) -> Tensor:
        """The step as it will be recorded, on a stream of its own: what is made once is made here."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), cuda_graph_mode():
            loss = self.step(self.inputs).detach()
        torch.cuda.current_stream().wait_stream(side)
        loss.record_stream(torch.cuda.current_stream())
        return loss

    def record(self) -> tuple[Any, Tensor]:
        """The graph of a step, and where it leaves the loss."""
        # In tensors of their own, so that nothing remembered of the earlier ones is taken for true of later batches.
        self.inputs = {name: x if name in self.fixed else x.clone() for name, x in self.inputs.items()}
        graph, generator = torch.cuda.CUDAGraph(), torch.cuda.default_generators[torch.cuda.current_device()]
        before = generator.clone_state()
        try:
            with cuda_graph_mode(), torch.cuda.graph(graph, pool=self.pool):
                loss = self.step(self.inputs).detach()
        except RuntimeError as error:
            generator.graphsafe_set_state(before)  # one that was broken off in a recording draws nothing any more
            raise Unsupported(
                f"The step cannot be recorded: {' '.join(str(error).split())[:300]} It may not wait for the GPU, copy "
                "from it or look into tensors; the optimizer must be capturable. Or call the step itself."
            ) from error
        return graph, loss


def sent(x: Tensor, device: torch.device) -> Tensor:
    """A tensor on the device; the host does not wait for what a GPU is still doing."""
    return (pinned(x) if device.type == "cuda" else x).to(device, non_blocking=True)


def pinned(x: Tensor) -> Tensor:
    """The tensor in memory that a GPU reads by itself, unless the GPU has it."""
    return x if x.is_cuda else x.pin_memory()
