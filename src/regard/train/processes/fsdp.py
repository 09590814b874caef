"""Fully sharded data parallel training (FSDP2), as `accelerate launch --use_fsdp --fsdp_version 2` starts it.

Parameters, gradients, optimizer states and moving averages are sharded tensors. Checkpoints and evaluations use full
tensors: a run's folder does not depend on the number of processes, and any number can resume it.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...errors import BadInput
from ...models.model import Model, Output

if TYPE_CHECKING:
    from accelerate import Accelerator
    from accelerate.utils import FullyShardedDataParallelPlugin


def full_tensor(x: Tensor) -> Tensor:
    """The full tensor, gathered if it is sharded; all processes must then call this in the same order."""
    return x.full_tensor() if is_sharded(x) else x  # type: ignore[attr-defined]


def shard_like(x: Tensor, like: Tensor) -> Tensor:
    """A full tensor, which every process has, on the device of `like` and sharded like it."""
    x = x.to(like.device)
    if not is_sharded(like):
        return x
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(x, like.device_mesh, like.placements, src_data_rank=None)  # type: ignore[attr-defined]


def local_shard(x: Tensor) -> Tensor:
    """This process's shard of a tensor, for element-wise changes in place."""
    return x.to_local() if is_sharded(x) else x  # type: ignore[attr-defined]


def is_sharded(x: Tensor) -> bool:
    """Whether a tensor is a `DTensor`."""
    return hasattr(x, "full_tensor")


def load_full_weights(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Load full tensors into a model whose weights may be sharded."""
    now = model.state_dict()
    model.load_state_dict({name: shard_like(x, now[name]) if name in now else x for name, x in weights.items()})


class UnshardedCopy:
    """A plain copy of a sharded model, which gets its weights when it is needed.

    Evaluations and checkpoints call and read single modules, which a sharded model does not allow.
    """

    def __init__(self, model: Model) -> None:
        """`model`: before it is sharded."""
        self.model = copy.deepcopy(model)
        register_output()

    @contextmanager
    def gather_from(self, sharded: nn.Module, device: torch.device) -> Iterator[Model]:
        """While open, the plain model with the weights of the sharded one; every process must open it."""
        own = self.model.to(device).state_dict()
        for name, x in sharded.state_dict().items():
            own[name].copy_(full_tensor(x))  # one by one: there is room for little more than the model
        try:
            yield self.model
        finally:
            self.model.cpu()


def register_output() -> None:
    """Register `Output` with torch's pytrees: FSDP attaches its backward hooks to the tensors that it finds there.

    Some of them are views, which is no problem, since nothing here changes a model's output in place.
    """
    from torch.utils._pytree import SUPPORTED_NODES

    if Output not in SUPPORTED_NODES:
        torch.export.register_dataclass(Output)
    warnings.filterwarnings("ignore", message=".*returned a view tensor")


def fsdp_plugin() -> FullyShardedDataParallelPlugin | None:
    """The FSDP plugin that the launch asks for; None where it does not ask for FSDP."""
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() != "true":
        return None
    from accelerate.utils import FullyShardedDataParallelPlugin
    from torch.distributed.fsdp import CPUOffloadPolicy

    if os.environ.get("FSDP_VERSION", "1") != "2":
        raise BadInput(
            "The launch asks for FSDP version 1, which is not supported. Add --fsdp_version 2 to accelerate launch."
        )
    # Every process makes the same model. Loading in one process for the others would separate tied weights.
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, cpu_ram_efficient_loading=False)
    unsupported = {
        "activation_checkpointing": plugin.activation_checkpointing,
        "offload_params": isinstance(plugin.cpu_offload, CPUOffloadPolicy),
    }
    for name, enabled in unsupported.items():
        if enabled:
            raise BadInput(f"Sharded weights do not support --fsdp_{name}. Leave it out of accelerate launch.")
    return plugin


def use_fsdp_on_cpu(accelerator: Accelerator, plugin: FullyShardedDataParallelPlugin | None) -> None:
    """Shard weights on CPUs too: torch supports it, but accelerate starts FSDP on accelerators only."""
    from accelerate.utils import DistributedType

    if plugin is None or accelerator.distributed_type != DistributedType.MULTI_CPU:
        return
    if accelerator.mixed_precision != "no":
        plugin.set_mixed_precision(accelerator.mixed_precision)
    accelerator.state.distributed_type, accelerator.state.fsdp_plugin = DistributedType.FSDP, plugin
