"""The linear layers around an attention: its input, x·W_q, x·W_k and x·W_v before it, and concat·W_o after it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...nn.attention import MultiHeadAttention
from ...nn.hooks.attentions import find_owner
from ..inputs.model_input import ModelInput

LAYERS = ("q", "k", "v", "out")


@dataclass(frozen=True)
class ProjectionCall:
    """One linear layer in a forward pass: its input `[tokens, dim]`, its output and its parameters."""

    x: Tensor
    y: Tensor
    weight: Tensor
    bias: Tensor | None

    def rows(self, head: int, head_dim: int) -> tuple[Tensor, Tensor | None]:
        """The weight `[head_dim, dim]` and bias of the outputs that are one head's."""
        part = slice(head * head_dim, (head + 1) * head_dim)
        return self.weight[part], None if self.bias is None else self.bias[part]


def run_projections(model: nn.Module, prepared: ModelInput, name: str) -> dict[str, ProjectionCall] | None:
    """The projections q, k, v and out of one attention in a forward pass; None where it has no such layers.

    The last call of each counts, as for a recorded attention.
    """
    owner = find_owner(model, name)
    if not isinstance(owner, MultiHeadAttention):
        return None
    calls: dict[str, ProjectionCall] = {}

    def recorder(layer: str) -> Callable[..., None]:
        def hook(linear: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            bias = linear.bias if isinstance(linear.bias, Tensor) else None
            x, y = (each.detach().flatten(0, -2).float() for each in (args[0], output))
            weight = linear.get_parameter("weight").detach().float()
            calls[layer] = ProjectionCall(x, y, weight, None if bias is None else bias.detach().float())

        return hook

    with ExitStack() as stack, torch.no_grad():
        for layer in LAYERS:
            handle = owner.get_submodule(layer).register_forward_hook(recorder(layer))
            stack.callback(handle.remove)
        model(**prepared.arguments)
    return calls if set(calls) == set(LAYERS) else None
