"""Images to classify: of one size, with the training images' brightness taken out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...data.files import Paths
from ...data.images import ImageFile, LabelledImage, Picture, load_image, read_images
from ...data.reading import Reading
from ...errors import BadInput
from ...nn.baselines.fully_connected import FullyConnectedConfig
from ...nn.block import StackConfig
from ...nn.embeddings.patch_embedding import ImageEmbeddingConfig
from ...nn.embeddings.residual_embedding import ResidualEmbeddingConfig
from ..architecture import Architecture, stack_of
from .augment import cut_out, moved, tinted, turned
from .cache import Kept

if TYPE_CHECKING:
    from ..classify import ClassifySettings

SAMPLE = 1000
"""Training images that size, mean and deviation are taken from."""

OTHERWISE = 64
"""Pixels either way for images of different sizes, unless a size is given."""


class Pictures:
    """Images as patches, or through stages of convolutions."""

    tokenizer = None
    kind = "image"
    SETTINGS = ("image_size", "patch_size", "rotation", "shift", "flip", "jitter", "cutout", "mixup")

    def __init__(
        self, settings: ClassifySettings, size: tuple[int, int], mean: Sequence[float], std: Sequence[float]
    ) -> None:
        self.settings, self.size, self.mean, self.std = settings, size, tuple(mean), tuple(std)
        self.loaded = Kept(self.load)

    @staticmethod
    def read(paths: Paths, settings: ClassifySettings) -> Reading[LabelledImage]:
        return read_images(paths, image=settings.input, label=settings.label, folder=settings.folder)

    @classmethod
    def learn(cls, examples: Sequence[LabelledImage], settings: ClassifySettings) -> Pictures:
        """Size, channels, mean and deviation of these images."""
        sample = [load_image(example.image) for example in examples[:: -(-len(examples) // SAMPLE)]]
        channels = Counter(len(image) for image in sample).most_common(1)[0][0]
        size = whole_patches(sample, settings)
        pixels = torch.stack([resized(load_image(image, channels), size) for image in sample]) / 255
        mean, std = pixels.mean((0, 2, 3)), pixels.std((0, 2, 3)).clamp(min=1e-3)
        return cls(settings, size, mean.tolist(), std.tolist())

    def as_dict(self) -> dict[str, Any]:
        return {"size": self.size, "mean": self.mean, "std": self.std}

    @classmethod
    def from_dict(cls, data: dict[str, Any], settings: ClassifySettings, tokenizer: Any) -> Pictures:
        return cls(settings, (data["size"][0], data["size"][1]), data["mean"], data["std"])

    @property
    def tokens(self) -> int:
        """How many patches an image has."""
        return (self.size[0] // self.settings.patch_size) * (self.size[1] // self.settings.patch_size)

    def layers(self, a: Architecture) -> tuple[Any, Any]:
        """(embedding, stack): a token a patch; for cnn the stack is empty, its layers are those of the stages."""
        channels, patch = len(self.mean), self.settings.patch_size
        if a.base != "cnn":
            embed, stack = ImageEmbeddingConfig(self.size, patch, a.dim, channels, dropout=a.dropout), stack_of(a)
            if isinstance(stack, FullyConnectedConfig) and not a.with_attention:
                stack = replace(stack, tokens=1 + self.tokens, position_wise=False)
            return embed, stack
        stages = ResidualEmbeddingConfig(
            channels, a.dim, widths(a.dim, patch), 1 if a.with_attention else a.layers, positions=a.with_attention
        )
        blocks = replace(a, model="transformer", layers=a.layers if a.with_attention else 0)
        stack = stack_of(blocks)
        return stages, stack if a.with_attention else StackConfig(a.dim, 0, 1, final_norm=False)

    def initialize(self, model: nn.Module) -> None:
        """No weights are known before training."""

    def sizes(self, examples: Sequence[LabelledImage]) -> list[int]:
        return [1 + self.tokens] * len(examples)

    def batch(self, examples: Sequence[LabelledImage], rng: Random | None) -> dict[str, Tensor]:
        pixels = torch.stack([self.pixels(example.image) for example in examples])
        mean, std = (torch.tensor(values)[:, None, None] for values in (self.mean, self.std))
        images = (pixels / 255 - mean) / std
        return {"images": images if rng is None else self.changed(images, rng)}

    def changed(self, images: Tensor, rng: Random) -> Tensor:
        """Images as training sees them this time."""
        s = self.settings
        images = turned(images, rng, s.rotation) if s.rotation else images
        images = moved(images, rng, s.shift, s.flip) if s.shift or s.flip else images
        images = tinted(images, rng, s.jitter) if s.jitter else images
        return cut_out(images, rng, s.cutout) if s.cutout else images

    def pixels(self, image: Picture) -> Tensor:
        return self.load(image) if isinstance(image, Tensor) else self.loaded(image)

    def load(self, image: Picture) -> Tensor:
        """uint8 `[channels, height, width]` of the size that the model has learned."""
        return resized(load_image(image, len(self.mean)), self.size)

    def given(self, text: str) -> LabelledImage:
        """The image at a path that `predict` is given."""
        if not Path(text).is_file():
            raise BadInput(f"{text!r:.80} is not there. This model reads images: give the path of one.")
        return LabelledImage(ImageFile(Path(text)), "")

    def describe(self, examples: Sequence[LabelledImage]) -> dict[str, Any]:
        sizes = Counter(tuple(load_image(one.image).shape[1:]) for one in examples[:SAMPLE])
        return {
            "channels": len(self.mean),
            "sizes": {f"{height} × {width}": count for (height, width), count in sizes.most_common(5)},
            "read as": f"{self.size[0]} × {self.size[1]}, {self.tokens} patches",
            "mean": ", ".join(f"{one:.3f}" for one in self.mean),
        }


def whole_patches(sample: Sequence[Tensor], settings: ClassifySettings) -> tuple[int, int]:
    """The size that images are brought to: as given, or their own if they agree, in whole patches."""
    own = {tuple(image.shape[1:]) for image in sample}
    height, width = own.pop() if len(own) == 1 else (OTHERWISE, OTHERWISE)
    if settings.image_size is not None:
        height = width = settings.image_size
    patch = settings.patch_size
    return max(1, round(height / patch)) * patch, max(1, round(width / patch)) * patch


def widths(dim: int, patch: int) -> tuple[int, ...]:
    """Channels of the stages: doubling to `dim`, while each but the first halves the image until a patch is a pixel.

    >>> widths(256, 4)
    (64, 128, 256)
    """
    halvings = patch.bit_length() - 1
    if patch != 1 << halvings or dim % (1 << halvings):
        raise BadInput(f"Stages halve the image, so patch must be 2, 4, 8, … that divides dim; got {patch} and {dim}.")
    return tuple(dim >> n for n in range(halvings, -1, -1))


def resized(image: Tensor, size: tuple[int, int]) -> Tensor:
    """uint8 `[channels, height, width]` of another size."""
    if tuple(image.shape[1:]) == size:
        return image
    smooth = functional.interpolate(image[None].float(), size, mode="bilinear", antialias=True)[0]
    return smooth.round().clamp(0, 255).to(torch.uint8)
