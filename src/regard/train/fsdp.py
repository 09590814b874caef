"""Weights of which every process holds a part (FSDP), as `accelerate launch --use_fsdp --fsdp_version 2` asks for.

Parameters, gradients, the optimizer's memory and a running mean are then tensors in parts. What is written, and what is
evaluated, is whole: a run's folder looks the same however many processes wrote it, and any number of them goes on.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import BadInput
from ..models.model import Output


def whole(x: Tensor) -> Tensor:
    """A tensor in full, gathered where processes hold parts of it; then all of them must ask, in the same order."""
    return x.full_tensor() if in_parts(x) else x  # type: ignore[attr-defined]


def part_of(x: Tensor, like: Tensor) -> Tensor:
    """A whole tensor, which every process has, as `like` is: where that is, and in parts if that is in parts."""
    x = x.to(like.device)
    if not in_parts(like):
        return x
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(x, like.device_mesh, like.placements, src_data_rank=None)  # type: ignore[attr-defined]


def own_part(x: Tensor) -> Tensor:
    """What of a tensor is here, to be changed in place; for what is done to each number by itself."""
    return x.to_local() if in_parts(x) else x  # type: ignore[attr-defined]


def in_parts(x: Tensor) -> bool:
    return hasattr(x, "full_tensor")


def load_weights(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Give a model, whose tensors may be in parts, these whole ones."""
    now = model.state_dict()
    model.load_state_dict({name: part_of(x, now[name]) if name in now else x for name, x in weights.items()})


class Twin:
    """A plain model beside one in parts, with the same weights when it is asked for.

    To evaluate and to save, parts of a model are called and read by themselves, which one in parts does not allow.
    """

    def __init__(self, model: nn.Module) -> None:
        """`model`: before it is parted."""
        self.model = copy.deepcopy(model)
        answer_in_fields()

    @contextmanager
    def of(self, parted: nn.Module, device: torch.device) -> Iterator[nn.Module]:
        """While open, the model with the weights of the one in parts; every process must open it."""
        own = self.model.to(device).state_dict()
        for name, x in parted.state_dict().items():
            own[name].copy_(whole(x))  # one by one: there is room for little more than the model
        try:
            yield self.model
        finally:
            self.model.cpu()


def answer_in_fields() -> None:
    """Tell torch that an `Output` has tensors inside: what a model in parts does in backward hangs on those it finds.

    That some of them are views is no matter, since nothing here changes a model's answer in place.
    """
    from torch.utils._pytree import SUPPORTED_NODES

    if Output not in SUPPORTED_NODES:
        torch.export.register_dataclass(Output)
    warnings.filterwarnings("ignore", message=".*returned a view tensor")


def plugin() -> Any:
    """How the launch wants a model parted, in accelerate's words; None where it does not."""
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() != "true":
        return None
    from accelerate.utils import FullyShardedDataParallelPlugin

    if os.environ.get("FSDP_VERSION", "1") != "2":
        raise BadInput(
            "The launch asks for FSDP's first version, which makes one flat tensor of a model's weights. "
            "Add --fsdp_version 2 to accelerate launch."
        )
    # Every process makes the same model: there is nothing to load by one for the others, which would part tied weights.
    made = FullyShardedDataParallelPlugin(fsdp_version=2, cpu_ram_efficient_loading=False)
    refused = {"activation_checkpointing": made.activation_checkpointing, "offload_params": offloads(made.cpu_offload)}
    for name, asked in refused.items():
        if asked:
            raise BadInput(f"Weights in parts do not go with --fsdp_{name} here: leave it out of accelerate launch.")
    return made


def offloads(policy: Any) -> bool:
    from torch.distributed.fsdp import CPUOffloadPolicy

    return isinstance(policy, CPUOffloadPolicy)


def part_on_processors(accelerator: Any, plugin: Any) -> None:
    """Let processes without GPUs hold parts too: torch can, while accelerate only asks it to on GPUs and the like."""
    from accelerate.utils import DistributedType

    if plugin is None or accelerator.distributed_type != DistributedType.MULTI_CPU:
        return
    if accelerator.mixed_precision != "no":
        plugin.set_mixed_precision(accelerator.mixed_precision)
    accelerator.state.distributed_type, accelerator.state.fsdp_plugin = DistributedType.FSDP, plugin
