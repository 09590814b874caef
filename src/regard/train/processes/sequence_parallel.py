"""Sequence parallelism: the tokens of a batch shared out among several processes.

The processes of a run form a mesh of data × sequence. Those of one group get the same batches, and each computes its
own tokens of them. The loss of a process is its share of the update's: the sum over all processes, which DDP and FSDP
take for the gradients, is that of one process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from ...attention.parts.mask import Mask
from ...attention.parts.masks import Documents, Everything, Global, Lengths, Window
from ...distributed.exchange import tensor_bytes
from ...distributed.layout import Layout
from ...distributed.shard import make_layout
from ...errors import BadInput, Unsupported
from ...models.baselines.linear import NBLinearModel
from ...models.ensemble import EnsembleModel
from ...models.model import reason_not_sharded
from ...nn.block import Stack
from ...settings import Training
from ...tasks.task import AnyTask, Batch

if TYPE_CHECKING:
    from accelerate import Accelerator

LAYOUTS = 64
"""Layouts of lengths that are kept."""


class SequenceParallel:
    """The processes of a run in groups of `sequence_parallel`; a group is number `data_index` of `data_size`.

    Raises `BadInput` where the processes do not divide into such groups, `Unsupported` for a task or a model that
    cannot share out its tokens.
    """

    def __init__(self, task: AnyTask, model: nn.Module, training: Training, accelerator: Accelerator) -> None:
        self.size, processes = training.sequence_parallel, accelerator.num_processes
        check_processes(self.size, processes)
        check_support(task, model, training)
        self.task, self.model, self.device = task, model, accelerator.device
        mesh = init_device_mesh(
            accelerator.device.type, (processes // self.size, self.size), mesh_dim_names=("data", "sequence")
        )
        self.group = mesh["sequence"].get_group()
        self.data_index, self.data_size = mesh["data"].get_local_rank(), processes // self.size
        self.rank = mesh["sequence"].get_local_rank()
        self.layouts: dict[int, Layout] = {}

    @contextmanager
    def shard(self, batch: Batch) -> Iterator[tuple[Batch, float]]:
        """While open, this process's tokens of a batch, where they are, and the weight of its loss.

        Losses of tokens add up over the group. A loss of whole inputs is computed by every process, as is a batch with
        fewer tokens than processes, and each counts a part of it.
        """
        self.compare(batch)
        fields, tokens = self.task.token_inputs, batch["tokens"].shape[1]
        if tokens < self.size:
            yield batch, 1 / self.size
            return
        layout = self.make_layout(batch, tokens)
        local = {name: layout.split(x, 1) if name in fields else x for name, x in batch.items()}
        with layout:
            yield local, 1.0 if "labels" in fields else 1 / self.size

    def make_layout(self, batch: Batch, tokens: int) -> Layout:
        """The layout of a batch, chosen for all masks of the model."""
        masked = {name: batch[name].to(self.device) for name in ("documents", "lengths") if name in batch}
        given = batch_mask(masked, tokens)
        if given is not None or tokens not in self.layouts:
            masks = [mask if given is None else mask & given for mask in model_masks(self.model)]
            layout = make_layout(masks, tokens, self.group)
            if given is not None:
                return layout
            if len(self.layouts) == LAYOUTS:
                self.layouts.pop(next(iter(self.layouts)))
            self.layouts[tokens] = layout
        return self.layouts[tokens]

    def compare(self, batch: Batch) -> None:
        """Raise `BadInput` in every process of the group unless all have the same batch."""
        digest = hashlib.sha256()
        for name, x in sorted(batch.items()):
            digest.update(f"{name} {list(x.shape)} {x.dtype}".encode())
            digest.update(tensor_bytes(x))
        own = torch.tensor([int.from_bytes(digest.digest()[:8], "big") >> 2], device=self.device)
        every = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(every, own, group=self.group)
        different = [rank for rank, x in enumerate(every) if int(x) != int(every[0])]
        if different:
            raise BadInput(
                f"The processes of a sequence have different batches: {different} differ from the first of the group. "
                "Give all of them the same files, settings and version of Regard."
            )


def check_processes(size: int, processes: int) -> None:
    """Raise `BadInput` unless so many processes divide into groups of `size`."""
    if processes == 1:
        raise BadInput(
            f"sequence_parallel is {size}, and one process runs. Start {size} or a multiple of it: "
            f"torchrun --nproc-per-node {size} --no-python regard train …"
        )
    if processes % size:
        raise BadInput(
            f"sequence_parallel is {size}, which does not divide {processes} processes. Start a multiple of {size}, or "
            f"give a divisor of {processes}."
        )


def check_support(task: AnyTask, model: nn.Module, training: Training) -> None:
    """Raise `Unsupported` for a task, a model or a setting that cannot share out its tokens."""
    if not task.token_inputs:
        raise Unsupported(
            f"The task {task.name} does not share out its inputs along the sequence; lm, tag and classify (of texts) "
            "do. Leave sequence_parallel out."
        )
    if training.compile:
        raise Unsupported("compile and sequence_parallel do not go together yet. Leave one of them out.")
    for trained in model.trained_models if isinstance(model, EnsembleModel) else [model]:
        reason = None if isinstance(trained, NBLinearModel) else reason_not_sharded(trained)
        if reason is not None:
            raise Unsupported(f"{reason} Or leave sequence_parallel out.")


def batch_mask(batch: Batch, tokens: int) -> Mask | None:
    """The mask that a batch adds to those of the model; None where nothing is padded or packed."""
    if "documents" in batch:
        return Documents(batch["documents"])
    lengths = batch.get("lengths")
    return None if lengths is None or bool((lengths == tokens).all()) else Lengths(lengths)


def model_masks(model: nn.Module) -> list[Mask]:
    """The masks of all layers of a model, each once."""
    masks: dict[Mask, None] = {}
    for stack in (module for module in model.modules() if isinstance(module, Stack)):
        windows = stack.config.window
        for window in set() if windows is None else {windows} if isinstance(windows, int) else set(windows):
            masks[Window(window // 2, window // 2) | Global(1)] = None
        for mask in stack.masks[True] if windows is None else ():
            masks[Everything() if mask is None else mask] = None
    return list(masks) or [Everything()]
