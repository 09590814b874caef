"""LoRA (Hu et al. 2021): a product of two small matrices that is trained beside a frozen linear layer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ..errors import BadInput
from .linear import Linear, linear


class LoraLinear(Linear):
    """x Wᵀ + b + (alpha / rank) · (x Aᵀ) Bᵀ, of which only A `[rank, in]` and B `[out, rank]` are trained.

    B starts at zero, so that the layer starts as the layer that it was made of.

    >>> layer = nn.Linear(3, 2)
    >>> adapted, x = LoraLinear.from_linear(layer, rank=1, alpha=2.0), torch.ones(5, 3)
    >>> torch.equal(adapted(x), layer(x)), adapted.weight.requires_grad, adapted.lora_a.shape
    (True, False, torch.Size([1, 3]))
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, *, rank: int = 8, alpha: float = 16.0
    ) -> None:
        super().__init__(in_features, out_features, bias)
        self.rank, self.alpha = rank, alpha
        self.lora_a = nn.Parameter(torch.empty(rank, in_features))
        self.lora_b = nn.Parameter(torch.zeros(out_features, rank))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))

    @classmethod
    def from_linear(cls, layer: nn.Linear, rank: int, alpha: float) -> LoraLinear:
        """The layer with two new matrices beside its own, which is shared and frozen."""
        made = cls(layer.in_features, layer.out_features, layer.bias is not None, rank=rank, alpha=alpha)
        made.to(layer.weight)
        made.weight, made.bias = layer.weight, layer.bias
        made.weight.requires_grad_(False)
        if made.bias is not None:
            made.bias.requires_grad_(False)
        return made

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    def forward(self, input: Tensor) -> Tensor:
        update = linear(linear(input, self.lora_a), self.lora_b)
        return linear(input, self.weight, self.bias) + self.scale * update

    def merge(self) -> Linear:
        """The linear layer that computes the same: W + (alpha / rank) · B A."""
        layer = Linear(self.in_features, self.out_features, self.bias is not None, device="meta")
        with torch.no_grad():
            layer.weight = nn.Parameter(self.weight + self.scale * self.lora_b @ self.lora_a)
        layer.bias = self.bias
        return layer


def add_lora(model: nn.Module, rank: int, alpha: float | None, targets: Sequence[str]) -> list[str]:
    """Freeze a model except its head, and add LoRA to its linear layers with these names; returns the paths of those.

    `targets` are last parts of names (`q`, `v`, `up`), or `all` for every linear layer of the blocks.
    """
    inside = [
        (path, layer)
        for path, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and ".blocks." in f".{path}"
    ]
    chosen = [(path, layer) for path, layer in inside if "all" in targets or path.rpartition(".")[2] in targets]
    if not chosen:
        names = sorted({path.rpartition(".")[2] for path, _ in inside})
        raise BadInput(
            f"lora_targets is {', '.join(targets)}; the linear layers here are {', '.join(names) or 'none'}."
        )
    for name, parameter in model.named_parameters():
        if not is_head(name):
            parameter.requires_grad_(False)
    for path, layer in chosen:
        replace_module(model, path, LoraLinear.from_linear(layer, rank, 2.0 * rank if alpha is None else alpha))
    return [path for path, _ in chosen]


def is_head(name: str) -> bool:
    """Whether a parameter belongs to a head, which is new where a model starts from a checkpoint.

    >>> is_head("head.out.weight"), is_head("members.0.head.out.bias"), is_head("stack.norm.weight")
    (True, True, False)
    """
    return any(part in ("head", "word_embed") for part in name.split("."))


def lora_layers(model: nn.Module) -> dict[str, LoraLinear]:
    """The layers with LoRA by their paths."""
    return {path: layer for path, layer in model.named_modules() if isinstance(layer, LoraLinear)}


@contextmanager
def merged_lora(model: nn.Module) -> Iterator[nn.Module]:
    """While open, the model has plain linear layers with LoRA's products added to their weights."""
    layers = lora_layers(model)
    for path, layer in layers.items():
        replace_module(model, path, layer.merge())
    try:
        yield model
    finally:
        for path, layer in layers.items():
            replace_module(model, path, layer)


def replace_module(model: nn.Module, path: str, module: nn.Module) -> None:
    """Put another module at a path."""
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)
