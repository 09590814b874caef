"""Equality with what others wrote: outputs and every parameter's gradient, through the key tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.models.checkpoint.checkpoint import PREFIXES, find_family, load, own_tensors
from regard.models.checkpoint.key_table import make_table, read_tensors


def random_weights(model: nn.Module, seed: int = 0, size: float = 0.2) -> nn.Module:
    """The model in evaluation mode with every parameter drawn anew, so that no norm or bias is at rest.

    Norms stay near one: after many post-norms near zero nothing of the input would be left to compare.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * size)
        for module in model.modules():
            if "Norm" in type(module).__name__ and isinstance(getattr(module, "weight", None), nn.Parameter):
                module.weight += 1
    return model.eval()


def loaded(theirs: Any, folder: Path) -> Any:
    """Our model from the folder that theirs was saved into."""
    theirs.save_pretrained(folder)
    return load(folder)


def ragged(batch_lengths: list[int], vocabulary: int, seed: int = 1, low: int = 3) -> dict[str, Tensor]:
    """Padded tokens `[batch, tokens]`, `lengths`, and the attention mask that others take."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor(batch_lengths)
    tokens = torch.randint(low, vocabulary, (len(batch_lengths), max(batch_lengths)), generator=generator)
    return {"tokens": tokens, "lengths": lengths, "mask": (torch.arange(tokens.shape[1]) < lengths[:, None]).long()}


def assert_close(ours: Tensor, theirs: Tensor, label: str, tolerance: float = 1e-4) -> None:
    """Within `tolerance` of the largest of theirs."""
    assert ours.shape == theirs.shape, f"{label}: {list(ours.shape)} is not {list(theirs.shape)}"
    error = (ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-12) if ours.numel() else torch.tensor(0.0)
    assert torch.isfinite(ours).all() and error <= tolerance, f"{label}: relative error {error:.2e}"


def real(x: Tensor, lengths: Tensor | None) -> Tensor:
    """The real tokens of `[batch, tokens, …]`, one after the other."""
    return x.flatten(0, 1) if lengths is None else x[torch.arange(x.shape[1]) < lengths[:, None]]


class Gradients:
    """A model's gradients, read as a folder's weights are; a parameter that had no part has zero."""

    def __init__(self, model: nn.Module) -> None:
        self.tensors = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in model.named_parameters()}
        for name, buffer in model.state_dict().items():
            self.tensors.setdefault(name, buffer)
        self.tensors = named_as_saved(model, self.tensors)

    def names(self) -> list[str]:
        return list(self.tensors)

    def tensor(self, name: str) -> Tensor:
        return self.tensors[name]


def named_as_saved(model: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under the names of a saved folder, where transformers keeps those that were published."""
    from transformers.core_model_loading import revert_weight_conversion

    return revert_weight_conversion(model, tensors)


def assert_same_gradients(ours: Any, theirs: Any, tolerance: float = 1e-4) -> None:
    """Every gradient of ours equals theirs (after both had backward called)."""
    family = find_family(ours.config.family, "test")
    rows = make_table(family.keys(ours.config), list(own_tensors(ours)))
    prefix = PREFIXES.get(ours.config.family, family.PREFIX)
    wanted = read_tensors(rows, Gradients(theirs), prefix, family.IGNORED, "gradients")
    largest = max(float(x.abs().max()) for x in wanted.values() if x.is_floating_point())
    for name, parameter in ours.named_parameters():
        actual = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        scale = max(float(wanted[name].abs().max()), 1e-3 * largest)  # a gradient that is zero by symmetry is rounding
        error = float((actual - wanted[name]).abs().max()) / scale
        assert error <= tolerance, f"gradient of {name}: relative error {error:.2e}"


def assert_same(
    ours: Any, theirs: Any, our_output: Tensor, their_output: Tensor, lengths: Tensor | None = None, seed: int = 2
) -> None:
    """Outputs at real tokens and, after a random linear loss on them, all gradients."""
    a, b = (our_output, their_output) if lengths is None else (real(our_output, lengths), real(their_output, lengths))
    assert_close(a, b, "output")
    weight = torch.randn(b.shape, generator=torch.Generator().manual_seed(seed))
    ours.zero_grad()
    theirs.zero_grad()
    (a * weight).sum().backward()
    (b * weight).sum().backward()
    assert_same_gradients(ours, theirs)


def assert_writes_back(ours: Any, theirs: Any, folder: Path, **inputs: Any) -> None:
    """What `save(format="huggingface")` wrote, transformers reads as the same bits; ours loads ours.

    Outputs of the same weights may differ in the last bit: products depend on where tensors lie in memory.
    """
    ours.save(folder / "theirs", format="huggingface")
    again, information = type(theirs).from_pretrained(folder / "theirs", output_loading_info=True)
    assert not information["missing_keys"] and not information["unexpected_keys"], information
    for name, parameter in theirs.named_parameters():
        if parameter.requires_grad:  # others are computed, such as sinusoids
            assert torch.equal(again.state_dict()[name], parameter), name
    with torch.no_grad():
        for a, b in zip(again.eval()(**inputs).to_tuple(), theirs(**inputs).to_tuple(), strict=True):
            if isinstance(a, Tensor):
                assert_close(a, b, "output of what was written", 1e-6)
    ours.save(folder / "ours")
    copy = load(folder / "ours")
    assert copy.config == ours.config
    for name, tensor in ours.state_dict().items():
        assert torch.equal(copy.state_dict()[name], tensor), name
