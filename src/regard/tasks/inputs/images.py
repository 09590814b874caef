"""Images as inputs: resized, and standardized with the mean and deviation of the training images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...data.files import Paths
from ...data.images import LabelledImage, Picture, load_image, read_images
from ...data.json_values import JsonObject, ParsedObject
from ...data.reading import Reading
from ...errors import BadInput
from ...models.interfaces import EmbeddingConfig, LayersConfig
from ...models.tokenizers.tokenizer import Tokenizer
from ...nn.baselines.fully_connected import FullyConnectedConfig
from ...nn.block import StackConfig
from ...nn.embeddings.patch_embedding import ImageEmbeddingConfig
from ...nn.embeddings.residual_embedding import ResidualEmbeddingConfig
from ..architecture import Architecture, stack_of
from .augment import cutout, jitter_images, rotate_images, shift_images
from .cache import TensorCache
from .given import as_picture

if TYPE_CHECKING:
    from ..classify import ClassifySettings
    from ..match import MatchSettings
    from ..pretrained.pixels import ImageProcessor
    from ..pretrained.pretrained import Encoder, Pretrained

SAMPLE = 1000
"""Training images from which size, mean and deviation are computed."""

DEFAULT_SIZE = 64
MAX_FEW = 10_000
"""Images up to which convolutions stand below attention by default."""
PATCHES, LARGEST_PATCH = ((16, 2), (64, 4), (128, 8)), 16
"""Sides of an image below which its patches have that side."""
IMAGE_PASSES = 30_000
"""Images that are read in all epochs."""
EPOCHS = (5, 30)
"""Fewest and most epochs of a run."""
FEW_IMAGES: dict[str, str | float] = {
    "model": "cnn+attention",
    "positions": "none",
    "dim": 64,
    "layers": 1,
    "shift": 1,
    "label_smoothing": 0.1,
    "ema": 0.99,
    "schedule": "cosine",
    "learning_rate": 2e-3,
    "warmup": 50,
    "batch_size": 32,
}
"""Settings of a model that is trained on few images."""
"""Height and width for images of different sizes, unless image_size is set."""


class WithImage(Protocol):
    """An example with an image, such as `LabelledImage` and `Captioned`."""

    @property
    def image(self) -> Picture: ...


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
        self.patch_size = settings.patch_size
        self.processor: ImageProcessor | None = None
        self.encoder: Encoder | None = None

    @staticmethod
    def read(paths: Paths, settings: ClassifySettings) -> Reading[LabelledImage]:
        s = settings
        return read_images(paths, image=s.input, label=s.label, folder=s.folder, target=s.target)

    @classmethod
    def from_examples(cls, examples: Sequence[WithImage], settings: ClassifySettings | MatchSettings) -> ImageInputs:
        """Size, channels, mean and deviation of these images."""
        sample = [load_image(example.image) for example in examples[:: -(-len(examples) // SAMPLE)]]
        channels = Counter(len(image) for image in sample).most_common(1)[0][0]
        size = choose_size(sample, settings)
        pixels = torch.stack([resize(load_image(image, channels), size) for image in sample]) / 255
        mean, std = pixels.mean((0, 2, 3)), pixels.std((0, 2, 3)).clamp(min=1e-3)
        return cls(settings, size, mean.tolist(), std.tolist())

    @classmethod
    def from_pretrained(cls, pretrained: Pretrained, settings: ClassifySettings | MatchSettings) -> ImageInputs:
        """Images as a checkpoint reads them: as its preprocessor says, or as the run did that it is."""
        from ..pretrained.pixels import ImageProcessor

        encoder, before = pretrained.encoder("images"), pretrained.inputs
        if isinstance(before, ImageInputs):
            inputs = cls(settings, before.size, before.mean, before.std)
            inputs.patch_size, inputs.processor = before.patch_size, before.processor
        else:
            embed = encoder.config.embed
            size = (embed.size, embed.size) if isinstance(embed.size, int) else tuple(embed.size)
            processor = ImageProcessor.from_config(pretrained.model.preprocessor, size, embed.channels)
            inputs = cls(settings, size, processor.mean, processor.std)
            inputs.patch_size, inputs.processor = embed.patch, processor
        inputs.encoder = encoder
        return inputs

    def as_dict(self) -> JsonObject:
        own = {} if self.patch_size == self.settings.patch_size else {"patch_size": self.patch_size}
        processor = {} if self.processor is None else {"processor": self.processor.as_dict()}
        return {"size": self.size, "mean": self.mean, "std": self.std, **own, **processor}

    @classmethod
    def from_dict(
        cls, data: ParsedObject, settings: ClassifySettings | MatchSettings, tokenizer: Tokenizer | None
    ) -> ImageInputs:
        inputs = cls(settings, (data["size"][0], data["size"][1]), data["mean"], data["std"])
        inputs.patch_size = data.get("patch_size", settings.patch_size)
        if "processor" in data:
            from ..pretrained.pixels import ImageProcessor

            inputs.processor = ImageProcessor.from_dict(data["processor"])
        return inputs

    @property
    def tokens(self) -> int:
        """How many patches an image has."""
        return (self.size[0] // self.patch_size) * (self.size[1] // self.patch_size)

    def layer_configs(self, a: Architecture) -> tuple[EmbeddingConfig, LayersConfig]:
        """(embedding, stack): a token per patch; for cnn the embedding has the layers, and the stack is empty."""
        if self.encoder is not None:
            return self.encoder.layer_configs(a)
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
        """Load the weights of a checkpoint."""
        if self.encoder is not None:
            self.encoder.initialize(model)

    def sizes(self, examples: Sequence[WithImage]) -> list[int]:
        return [1 + self.tokens] * len(examples)

    def batch(self, examples: Sequence[WithImage], rng: Random | None) -> dict[str, Tensor]:
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
        if self.processor is not None:
            return self.processor.pixels(image)
        return resize(load_image(image, len(self.mean)), self.size)

    def example_of(self, given: object) -> LabelledImage:
        """An example for an input of `predict`."""
        return LabelledImage(as_picture(given), "")

    def describe(self, examples: Sequence[WithImage]) -> JsonObject:
        sizes = Counter(tuple(load_image(example.image).shape[1:]) for example in examples[:SAMPLE])
        return {
            "channels": len(self.mean),
            "sizes": {f"{height} × {width}": count for (height, width), count in sizes.most_common(5)},
            "read as": f"{self.size[0]} × {self.size[1]}, {self.tokens} patches",
            "mean of pixels": ", ".join(f"{value:.3f}" for value in self.mean),
        }


def suggest_settings(examples: Sequence[LabelledImage], settings: ClassifySettings) -> dict[str, str | float]:
    """Settings of a model for few images, by name; none for many, or where patches or pooling are not the defaults.

    Convolutions that halve the image stand below attention: patches are too many things to learn from few images.
    """
    usual = type(settings)()
    chosen = (settings.patch_size, settings.pool) != (usual.patch_size, usual.pool)
    if chosen or len(examples) > MAX_FEW:
        return {}
    size = min(load_image(examples[0].image).shape[1:]) if settings.image_size is None else settings.image_size
    patch = next((patch for limit, patch in PATCHES if size < limit), LARGEST_PATCH)
    epochs = min(EPOCHS[1], max(EPOCHS[0], IMAGE_PASSES // len(examples)))
    return {**FEW_IMAGES, "patch_size": patch, "epochs": epochs}


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
