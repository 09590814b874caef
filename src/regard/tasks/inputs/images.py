"""Images as inputs: resized, and standardized with the mean and deviation of the training images."""

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
from .augment import cutout, jitter_images, rotate_images, shift_images
from .cache import TensorCache

if TYPE_CHECKING:
    from ..classify import ClassifySettings
    from ..match import MatchSettings

SAMPLE = 1000
"""Training images from which size, mean and deviation are computed."""

DEFAULT_SIZE = 64
"""Height and width for images of different sizes, unless image_size is set."""


class ImageInputs:
    """Images as patches, or through stages of convolutions."""

    tokenizer = None
    kind = "image"
    SETTINGS = ("image_size", "patch_size", "rotation", "shift", "flip", "jitter", "cutout", "mixup")

    def __init__(
        self,
        settings: ClassifySettings | MatchSettings,
        size: tuple[int, int],
        mean: Sequence[float],
        std: Sequence[float],
    ) -> None:
        self.settings, self.size, self.mean, self.std = settings, size, tuple(mean), tuple(std)
        self.pixel_cache = TensorCache(self.load)

    @staticmethod
    def read(paths: Paths, settings: ClassifySettings) -> Reading[LabelledImage]:
        return read_images(paths, image=settings.input, label=settings.label, folder=settings.folder)

    @classmethod
    def from_examples(
        cls, examples: Sequence[LabelledImage], settings: ClassifySettings | MatchSettings
    ) -> ImageInputs:
        """Size, channels, mean and deviation of these images."""
        sample = [load_image(example.image) for example in examples[:: -(-len(examples) // SAMPLE)]]
        channels = Counter(len(image) for image in sample).most_common(1)[0][0]
        size = choose_size(sample, settings)
        pixels = torch.stack([resize(load_image(image, channels), size) for image in sample]) / 255
        mean, std = pixels.mean((0, 2, 3)), pixels.std((0, 2, 3)).clamp(min=1e-3)
        return cls(settings, size, mean.tolist(), std.tolist())

    def as_dict(self) -> dict[str, Any]:
        return {"size": self.size, "mean": self.mean, "std": self.std}

    @classmethod
    def from_dict(cls, data: dict[str, Any], settings: ClassifySettings | MatchSettings, tokenizer: Any) -> ImageInputs:
        return cls(settings, (data["size"][0], data["size"][1]), data["mean"], data["std"])

    @property
    def tokens(self) -> int:
        """How many patches an image has."""
        return (self.size[0] // self.settings.patch_size) * (self.size[1] // self.settings.patch_size)

    def layer_configs(self, a: Architecture) -> tuple[Any, Any]:
        """(embedding, stack): a token per patch; for cnn the embedding has the layers, and the stack is empty."""
        channels, patch = len(self.mean), self.settings.patch_size
        if a.base != "cnn":
            embed, stack = ImageEmbeddingConfig(self.size, patch, a.dim, channels, dropout=a.dropout), stack_of(a)
            if isinstance(stack, FullyConnectedConfig) and not a.with_attention:
                stack = replace(stack, tokens=1 + self.tokens, position_wise=False)
            return embed, stack
        stages = ResidualEmbeddingConfig(
            channels,
            a.dim,
            stage_widths(a.dim, patch),
            1 if a.with_attention else a.layers,
            positions=a.with_attention,
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
        return {"images": images if rng is None else self.augment(images, rng)}

    def augment(self, images: Tensor, rng: Random) -> Tensor:
        """Images with random rotation, shift, jitter and cutout."""
        s = self.settings
        images = rotate_images(images, rng, s.rotation) if s.rotation else images
        images = shift_images(images, rng, s.shift, s.flip) if s.shift or s.flip else images
        images = jitter_images(images, rng, s.jitter) if s.jitter else images
        return cutout(images, rng, s.cutout) if s.cutout else images

    def pixels(self, image: Picture) -> Tensor:
        return self.load(image) if isinstance(image, Tensor) else self.pixel_cache(image)

    def load(self, image: Picture) -> Tensor:
        """uint8 `[channels, height, width]` of the size that the model reads."""
        return resize(load_image(image, len(self.mean)), self.size)

    def example_of(self, text: str) -> LabelledImage:
        """An example for a path that `predict` gets."""
        if not Path(text).is_file():
            raise BadInput(f"{text!r:.80} does not exist. This model reads images: give the path of an image.")
        return LabelledImage(ImageFile(Path(text)), "")

    def describe(self, examples: Sequence[LabelledImage]) -> dict[str, Any]:
        sizes = Counter(tuple(load_image(example.image).shape[1:]) for example in examples[:SAMPLE])
        return {
            "channels": len(self.mean),
            "sizes": {f"{height} × {width}": count for (height, width), count in sizes.most_common(5)},
            "read as": f"{self.size[0]} × {self.size[1]}, {self.tokens} patches",
            "mean": ", ".join(f"{value:.3f}" for value in self.mean),
        }


def choose_size(sample: Sequence[Tensor], settings: ClassifySettings | MatchSettings) -> tuple[int, int]:
    """The size that images are resized to: image_size, or their own if all agree, in whole patches."""
    own = {tuple(image.shape[1:]) for image in sample}
    height, width = own.pop() if len(own) == 1 else (DEFAULT_SIZE, DEFAULT_SIZE)
    if settings.image_size is not None:
        height = width = settings.image_size
    patch = settings.patch_size
    return max(1, round(height / patch)) * patch, max(1, round(width / patch)) * patch


def stage_widths(dim: int, patch: int) -> tuple[int, ...]:
    """Channels of the stages: doubling to `dim`, while each but the first halves the image until a patch is a pixel.

    >>> stage_widths(256, 4)
    (64, 128, 256)
    """
    halvings = patch.bit_length() - 1
    if patch != 1 << halvings or dim % (1 << halvings):
        raise BadInput(f"Stages halve the image, so patch must be 2, 4, 8, … that divides dim; got {patch} and {dim}.")
    return tuple(dim >> n for n in range(halvings, -1, -1))


def resize(image: Tensor, size: tuple[int, int]) -> Tensor:
    """uint8 `[channels, height, width]` of another size."""
    if tuple(image.shape[1:]) == size:
        return image
    smooth = functional.interpolate(image[None].float(), size, mode="bilinear", antialias=True)[0]
    return smooth.round().clamp(0, 255).to(torch.uint8)
