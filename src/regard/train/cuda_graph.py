"""Training steps captured as CUDA graphs.

A step launches thousands of kernels, and the host takes longer to launch small ones than the GPU to run them. Captured
once as a CUDA graph, a step is a single launch.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..attention.tracing import cuda_graph_mode
from ..errors import Unsupported

if TYPE_CHECKING:
    from torch.cuda import _POOL_HANDLE

Batch = Mapping[str, Tensor]
Step = Callable[[dict[str, Tensor]], Tensor]


class CudaGraphStep:
    """`step(batch) -> loss`, captured for each shape of batch after a few eager calls, and replayed from then on.

    `step` computes a whole update: forward, backward, the optimizer (made with `capturable=True`), gradients set to
    None. Each call is one update, also the eager ones. Host code in `step` may depend on the shapes of tensors, not on
    their contents. A tensor whose contents decide what is computed (the global tokens of a Longformer) is named in
    `fixed`; each of its contents has a graph of its own. After `max_graphs` shapes, batches of new shapes run eagerly,
    so pad batches to few shapes.

    Raises `Unsupported` without a GPU, and where a step cannot be captured.
    """

    def __init__(self, step: Step, *, fixed: Sequence[str] = (), warmup: int = 3, max_graphs: int = 32) -> None:
        if not torch.cuda.is_available():
            raise Unsupported("CUDA graphs need a GPU, and torch finds no CUDA device. Call the step itself.")
        self.step, self.fixed, self.warmup, self.max_graphs = step, tuple(fixed), warmup, max_graphs
        self.graphs: dict[Hashable, ShapeGraph] = {}
        self.pool = torch.cuda.graph_pool_handle()

    def __call__(self, batch: Batch) -> Tensor:
        """The loss of the batch, after an update by it."""
        key = self.key(batch)
        graph = self.graphs.get(key)
        if graph is None:
            graph = ShapeGraph(self.step, self.fixed, self.warmup, self.pool)
            if len(self.graphs) < self.max_graphs:
                self.graphs[key] = graph
        return graph(batch)

    def key(self, batch: Batch) -> Hashable:
        """Shapes, dtypes and fixed contents, each of which has a graph of its own."""
        sizes = tuple((name, x.shape, x.dtype) for name, x in sorted(batch.items()))
        return sizes, *(batch[name].cpu().numpy().tobytes() for name in self.fixed)


class ShapeGraph:
    """The step for batches of one shape: their buffers on the GPU, and the graph that reads them."""

    def __init__(self, step: Step, fixed: tuple[str, ...], warmup: int, pool: _POOL_HANDLE) -> None:
        self.step, self.fixed, self.eager_calls, self.pool = step, fixed, warmup, pool
        self.inputs: dict[str, Tensor] = {}
        self.captured: tuple[torch.cuda.CUDAGraph, Tensor] | None = None

    def __call__(self, batch: Batch) -> Tensor:
        self.copy_in(batch)
        if self.captured is None and self.eager_calls > 0:
            self.eager_calls -= 1
            return self.run_eagerly()
        if self.captured is None:
            self.captured = self.capture()
        graph, loss = self.captured
        graph.replay()
        return loss.clone()

    def copy_in(self, batch: Batch) -> None:
        """Copy a batch to the buffers that the step reads; fixed tensors are there already."""
        for name, x in batch.items():
            if name not in self.inputs:
                self.inputs[name] = x.to("cuda", copy=True)
            elif name not in self.fixed:
                self.inputs[name].copy_(pin(x), non_blocking=True)

    def run_eagerly(self) -> Tensor:
        """The step as it will be captured, on a side stream: allocations and caches are made here."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), cuda_graph_mode():
            loss = self.step(self.inputs).detach()
        torch.cuda.current_stream().wait_stream(side)
        loss.record_stream(torch.cuda.current_stream())
        return loss

    def capture(self) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        """The graph of a step, and the tensor that it writes the loss to."""
        # New tensors, so that nothing cached for the earlier ones is used for later batches.
        self.inputs = {name: x if name in self.fixed else x.clone() for name, x in self.inputs.items()}
        graph, generator = torch.cuda.CUDAGraph(), torch.cuda.default_generators[torch.cuda.current_device()]
        before, collects = generator.clone_state(), gc.isenabled()
        gc.disable()  # a graph of an earlier run that is freed during a capture would end it
        try:
            with cuda_graph_mode(), torch.cuda.graph(graph, pool=self.pool):
                loss = self.step(self.inputs).detach()
        except RuntimeError as error:
            generator.graphsafe_set_state(before)  # after a failed capture it cannot draw numbers
            raise Unsupported(
                f"The step cannot be captured as a CUDA graph: {' '.join(str(error).split())[:300]} It must not "
                "synchronize with the GPU or read tensors on the host, and its optimizer must be "
                "capturable. Or call the step itself."
            ) from error
        finally:
            if collects:
                gc.enable()
        return graph, loss


def to_device(x: Tensor, device: torch.device) -> Tensor:
    """A tensor on the device, copied asynchronously to a GPU."""
    return (pin(x) if device.type == "cuda" else x).to(device, non_blocking=True)


def pin(x: Tensor) -> Tensor:
    """The tensor in pinned memory, unless it is on the GPU."""
    return x if x.is_cuda else x.pin_memory()
