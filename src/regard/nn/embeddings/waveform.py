"""Embeddings of recordings by their samples: convolutions with strides instead of a spectrogram."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...errors import BadInput
from ..activations import ACTIVATIONS, choose
from ..packing import real_tokens, zero_padding
from .embedding import Embedding, Input


@dataclass(frozen=True)
class Wav2VecEmbeddingConfig:
    """The embedding of wav2vec 2: convolutions, a projection to dim, and a convolution for positions.

    Samples `[batch, samples]` go through convolutions of `channels`, `kernels` and `strides`, each followed by GELU.
    Before it `conv_norm` "group" normalizes each channel over time after the first convolution, "layer" the channels of
    each frame after every one. The projection is of their norm. A convolution over `position_kernel` tokens in
    `position_groups`, whose output is added, takes the place of position embeddings; `norm` is the ε of a norm after
    it. `mask_token` stores the vector of a masked frame, which models trained on masked sound have.
    """

    reads: ClassVar[Input] = "sound"
    dim: int
    channels: tuple[int, ...] = (512,) * 7
    kernels: tuple[int, ...] = (10, 3, 3, 3, 3, 2, 2)
    strides: tuple[int, ...] = (5, 2, 2, 2, 2, 2, 2)
    conv_norm: Literal["group", "layer"] = "group"
    conv_bias: bool = False
    conv_activation: str = "gelu"
    position_kernel: int = 128
    position_groups: int = 16
    eps: float = 1e-5
    norm: float | None = None
    dropout: float = 0.0
    mask_token: bool = False

    def __post_init__(self) -> None:
        if not len(self.channels) == len(self.kernels) == len(self.strides) or not self.channels:
            sizes = f"{len(self.channels)} channels, {len(self.kernels)} kernels and {len(self.strides)} strides"
            raise BadInput(f"There are {sizes}. Give one of each for every convolution.")
        if self.conv_norm not in ("group", "layer"):
            raise BadInput(f"conv_norm is {self.conv_norm!r}; it must be 'group' or 'layer'.")

    def build(self) -> Wav2VecEmbedding:
        return Wav2VecEmbedding(self)


class Wav2VecEmbedding(Embedding):
    """See `Wav2VecEmbeddingConfig`. `(sound [batch, samples], lengths [batch] or None)` → `[batch, tokens, dim]`."""

    reads = "sound"

    def __init__(self, config: Wav2VecEmbeddingConfig) -> None:
        super().__init__()
        self.config = config
        sizes = zip((1, *config.channels[:-1]), config.channels, config.kernels, config.strides, strict=True)
        self.convolutions = nn.ModuleList(nn.Conv1d(*size, bias=config.conv_bias) for size in sizes)
        self.conv_norms = nn.ModuleList(self.make_conv_norms())
        self.activation = choose(config.conv_activation, ACTIVATIONS, "conv_activation")
        self.feature_norm = nn.LayerNorm(config.channels[-1], eps=config.eps)
        self.projection = nn.Linear(config.channels[-1], config.dim)
        self.mask = nn.Parameter(torch.zeros(config.dim)) if config.mask_token else None
        self.places = PositionConvolution(config)
        self.norm = nn.LayerNorm(config.dim, eps=config.norm) if config.norm is not None else None
        self.dropout = nn.Dropout(config.dropout)

    def make_conv_norms(self) -> list[nn.Module]:
        """The norms after the convolutions; in the form "group" the first alone has one."""
        channels = self.config.channels
        if self.config.conv_norm == "layer":
            return [nn.LayerNorm(size) for size in channels]
        return [nn.GroupNorm(channels[0], channels[0])]

    def forward(self, sound: Tensor, lengths: Tensor | None = None) -> Tensor:
        x = check_samples(sound, lengths, self.config.kernels, self.config.strides)
        sizes = zip(self.convolutions, self.config.kernels, self.config.strides, strict=True)
        for n, (convolution, kernel, stride) in enumerate(sizes):
            x = convolution(x)  # [batch, channels, frames]
            lengths = None if lengths is None else strided_count(lengths, kernel, stride)
            x = self.activation(self.normalize(n, x, lengths))
        x = self.projection(self.feature_norm(x.mT))
        real = None if lengths is None else real_tokens(x, lengths)
        x = zero_padding(self.dropout(x), real)  # as the end of a recording without padding
        x = x + self.activation(self.places(x))
        return self.dropout(x if self.norm is None else self.norm(x))

    def normalize(self, n: int, x: Tensor, lengths: Tensor | None) -> Tensor:
        """The output `[batch, channels, frames]` of convolution n after its norm."""
        if n >= len(self.conv_norms):
            return x
        norm = self.conv_norms[n]
        return normalize_groups(x, norm, lengths) if isinstance(norm, nn.GroupNorm) else norm(x.mT).mT

    def lengths_after(self, lengths: Tensor) -> Tensor:
        """The number of tokens that so many samples become."""
        return token_counts(lengths, self.config.kernels, self.config.strides)


class PositionConvolution(nn.Module):
    """A grouped convolution over tokens, whose weight is stored as lengths and directions, one length a kernel place.

    weight[…, k] = scale_k · direction[…, k] / ‖direction[…, k]‖
    """

    def __init__(self, config: Wav2VecEmbeddingConfig) -> None:
        super().__init__()
        dim, kernel, self.groups = config.dim, config.position_kernel, config.position_groups
        if dim % self.groups:
            raise BadInput(f"dim {dim} is not divisible by position_groups {self.groups}. Choose a divisor.")
        inner = dim // self.groups
        self.direction = nn.Parameter(torch.randn(dim, inner, kernel) * (4 / (kernel * dim)) ** 0.5)
        self.scale = nn.Parameter(self.direction.detach().norm(dim=(0, 1), keepdim=True))  # [1, 1, kernel]
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        """`[batch, tokens, dim]` → the same."""
        kernel = self.direction.shape[2]
        weight = self.scale * self.direction / self.direction.norm(dim=(0, 1), keepdim=True)
        y = functional.conv1d(x.mT, weight, self.bias, padding=kernel // 2, groups=self.groups)
        return y[..., : x.shape[1]].mT  # an even kernel has one more


@dataclass(frozen=True)
class MoonshineEmbeddingConfig:
    """The embedding of Moonshine: three convolutions of samples, which make a token of 384.

        x₁ = norm(tanh(conv₁(sound))),  x₂ = gelu(conv₂(x₁)),  x₃ = gelu(conv₃(x₂))

    The norm is of all channels and frames of a recording together.
    """

    reads: ClassVar[Input] = "sound"
    dim: int

    def build(self) -> MoonshineEmbedding:
        return MoonshineEmbedding(self)


class MoonshineEmbedding(Embedding):
    """See `MoonshineEmbeddingConfig`. `(sound [batch, samples], lengths [batch] or None)` → `[batch, tokens, dim]`."""

    reads = "sound"
    kernels, strides = (127, 7, 3), (64, 3, 2)

    def __init__(self, config: MoonshineEmbeddingConfig) -> None:
        super().__init__()
        dim = config.dim
        self.conv1 = nn.Conv1d(1, dim, 127, stride=64, bias=False)
        self.conv2 = nn.Conv1d(dim, 2 * dim, 7, stride=3)
        self.conv3 = nn.Conv1d(2 * dim, dim, 3, stride=2)
        self.norm = nn.GroupNorm(1, dim)

    def forward(self, sound: Tensor, lengths: Tensor | None = None) -> Tensor:
        x = torch.tanh(self.conv1(check_samples(sound, lengths, self.kernels, self.strides)))
        frames = None if lengths is None else strided_count(lengths, self.kernels[0], self.strides[0])
        x = normalize_groups(x, self.norm, frames)
        x = functional.gelu(self.conv3(functional.gelu(self.conv2(x)))).mT
        return zero_padding(x, None if lengths is None else real_tokens(x, self.lengths_after(lengths)))

    def lengths_after(self, lengths: Tensor) -> Tensor:
        """The number of tokens that so many samples become."""
        return token_counts(lengths, self.kernels, self.strides)


def normalize_groups(x: Tensor, norm: nn.GroupNorm, lengths: Tensor | None) -> Tensor:
    """The group norm of `x [batch, channels, frames]`, by the mean and variance of the real frames alone."""
    if lengths is None:
        return norm(x)
    grouped = x.unflatten(1, (norm.num_groups, -1))  # [batch, groups, channels, frames]
    real = (torch.arange(x.shape[2], device=x.device) < lengths[:, None])[:, None, None]
    count = (lengths * grouped.shape[2]).clamp(min=1).to(x.dtype)[:, None, None, None]
    mean = grouped.masked_fill(~real, 0.0).sum((2, 3), keepdim=True) / count
    centred = (grouped - mean).masked_fill(~real, 0.0)
    variance = centred.square().sum((2, 3), keepdim=True) / count
    y = (centred * torch.rsqrt(variance + norm.eps)).flatten(1, 2)
    return y * norm.weight[:, None] + norm.bias[:, None]


def strided_count(lengths: Tensor, kernel: int, stride: int) -> Tensor:
    """The number of windows of a convolution without padding."""
    return ((lengths - kernel) // stride + 1).clamp(min=0)


def token_counts(lengths: Tensor, kernels: Sequence[int], strides: Sequence[int]) -> Tensor:
    """The number of tokens after convolutions without padding.

    >>> token_counts(torch.tensor([16000]), (127, 7, 3), (64, 3, 2)).tolist()
    [40]
    """
    for kernel, stride in zip(kernels, strides, strict=True):
        lengths = strided_count(lengths, kernel, stride)
    return lengths


def check_samples(sound: Tensor, lengths: Tensor | None, kernels: Sequence[int], strides: Sequence[int]) -> Tensor:
    """The samples `[batch, 1, samples]`, zero in the padding; `BadInput` for other shapes and for too few."""
    least, step = 1, 1
    for kernel, stride in zip(kernels, strides, strict=True):
        least, step = least + (kernel - 1) * step, step * stride
    if sound.dim() != 2 or not sound.is_floating_point():
        raise BadInput(
            f"sound is {sound.dtype} {list(sound.shape)}; this model reads samples, floating point [batch, samples]."
        )
    if sound.shape[1] < least:
        raise BadInput(f"sound has {sound.shape[1]} samples; this model needs {least} at least. Pad it with zeros.")
    if lengths is not None:
        sound = sound.masked_fill(~real_tokens(sound, lengths), 0.0)
    return sound[:, None]


def normalize_samples(sound: Tensor, lengths: Tensor | None = None) -> Tensor:
    """Each recording of `sound [batch, samples]` with mean 0 and variance 1, zero in its padding.

    Checkpoints of which `preprocessor_config.json` has `do_normalize` were trained on such samples.

    >>> normalize_samples(torch.tensor([[1.0, 3.0, 9.0]]), torch.tensor([2])).round().tolist()
    [[-1.0, 1.0, 0.0]]
    """
    real = real_tokens(sound, lengths)
    count = real.sum(1, keepdim=True).clamp(min=1)
    mean = sound.masked_fill(~real, 0.0).sum(1, keepdim=True) / count
    centred = (sound - mean).masked_fill(~real, 0.0)
    return centred / torch.sqrt(centred.square().sum(1, keepdim=True) / count + 1e-7)
