"""Images as model inputs: patches, or the cells of a feature map."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...errors import BadInput, Unsupported
from ...models.detection import DetectionModel, FeatureGridEmbedding
from ...models.dual_encoder import DualEncoderModel
from ...models.model import Model, Output
from ...nn.embeddings.patch_embedding import ImageEmbedding
from ...nn.embeddings.residual_embedding import ResidualEmbedding
from ...tasks.task import AnyTask
from ..inspect.predictions import PredictionFields, class_prediction, object_prediction
from ..protocol import Request
from .model_input import ImageMetadata, ModelInput, Token

if TYPE_CHECKING:
    from ...data.images import Picture

IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
"""Mean and standard deviation of pixels, where a checkpoint's folder does not have them."""
SHORTEST_EDGE, LONGEST_EDGE = 800, 1333
"""Pixels of an image's sides for DETR, where its folder does not have them."""
THRESHOLD = 0.5
"""The probability from which an object counts as detected, where there is no run."""


def image_input(model: Model, task: AnyTask | None, data: bytes) -> ModelInput:
    """An image, its tokens and, of a detector, the object queries."""
    from ...data.images import ImageBytes

    content = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.zeros(0, dtype=torch.uint8)
    inputs = image_arguments(model, task, ImageBytes(content, "The picture"))
    images = inputs["images"]
    tower = model.image if isinstance(model, DualEncoderModel) else model
    embed = None if tower is None else tower.embed
    grid, class_token = patch_grid(embed, images), isinstance(embed, ImageEmbedding)
    tokens = [Token("[CLS]", special=True)] if class_token else []
    tokens += [Token(f"{n // grid[1]},{n % grid[1]}", n, n + 1) for n in range(grid[0] * grid[1])]
    sides, size = {"image": tokens}, list(images.shape[2:])
    if isinstance(model, DetectionModel) and model.queries is not None:
        sides["target"] = [Token(str(n), n, n + 1) for n in range(len(model.queries))]
    if isinstance(embed, FeatureGridEmbedding):
        cell = [embed.stride, embed.stride]
    else:
        cell = [-(-pixels // cells) for pixels, cells in zip(size, grid, strict=True)]
    metadata: ImageMetadata = {
        "grid": list(grid),
        "size": size,
        "class_token": class_token,
        "detects": isinstance(model, DetectionModel),
        "cell": cell,
        "pixels": to_uint8(images[0]),
    }
    labels, threshold = class_labels(model, task), THRESHOLD if task is None else task.threshold

    def read_output(output: Output) -> PredictionFields:
        if output.logits is None:
            return {"type": "none", "items": []}
        if output.boxes is None:
            return class_prediction(output.logits[0], labels)
        return object_prediction(output.logits[0], output.boxes[0], labels, threshold)

    return ModelInput(inputs, sides, "image", metadata, read_output)


def class_labels(model: nn.Module, task: AnyTask | None) -> list[str] | None:
    """The labels of a model's classes, from its task or its checkpoint."""
    if task is not None and task.labels:
        return task.labels
    return model.labels if isinstance(model, Model) else None


def image_arguments(model: Model, task: AnyTask | None, image: Picture) -> dict[str, Tensor]:
    """The model's arguments: `images [1, channels, height, width]`, of a run's detector also their `sizes`."""
    inputs = None if task is None else task.image_inputs(image)
    if inputs is None:
        return {"images": preprocess(model, image)}
    return {name: inputs[name] for name in ("images", "sizes") if name in inputs}


def patch_grid(embed: object, images: Tensor) -> tuple[int, int]:
    """Rows and columns of the tokens that an embedding makes of images."""
    if isinstance(embed, ImageEmbedding):
        return embed.patches.grid(*images.shape[2:])
    if isinstance(embed, ResidualEmbedding):
        with torch.no_grad():
            rows, columns = embed.stages(embed.norm(embed.first(images)).relu()).shape[2:]
        return rows, columns
    if isinstance(embed, FeatureGridEmbedding):
        return -(-images.shape[2] // embed.stride), -(-images.shape[3] // embed.stride)
    raise Unsupported("This model does not divide images into patches or cells, so there is no grid to show.")


def preprocess(model: Model, image: Picture) -> Tensor:
    """An image in the size and the range that a checkpoint reads, `[1, channels, height, width]`."""
    from ...data.images import load_image
    from ...tasks.inputs.images import resize

    tower = model.config.image if isinstance(model, DualEncoderModel) else model.config
    if tower is None:
        raise Unsupported("This model reads texts alone. Choose one that reads images.")
    config = tower.embed
    pixels, detects = load_image(image, config.channels), isinstance(model, DetectionModel)
    if detects:
        size = resize_shape((pixels.shape[1], pixels.shape[2]), model.preprocessor)
    else:
        size = (config.size, config.size) if isinstance(config.size, int) else tuple(config.size)
    statistics = (IMAGENET if detects else HALF) | {
        name: model.preprocessor[name] for name in HALF if name in model.preprocessor
    }
    try:
        mean, std = (torch.tensor(statistics[name], dtype=torch.float32)[:, None, None] for name in HALF)
        return ((resize(pixels, size).float() / 255 - mean[: len(pixels)]) / std[: len(pixels)])[None]
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        raise BadInput(
            f"preprocessor_config.json: image_mean and image_std cannot be used ({error}). Give one number per channel."
        ) from None


def resize_shape(size: tuple[int, int], preprocessor: Request) -> tuple[int, int]:
    """(height, width) of an image for a detector: the shorter side as configured, the longer one up to its limit.

    >>> resize_shape((480, 640), {}), resize_shape((10, 100), {"size": {"shortest_edge": 50, "longest_edge": 100}})
    ((800, 1066), (10, 100))
    """
    edges = preprocessor.get("size")
    edges = edges if isinstance(edges, dict) else {"shortest_edge": edges, "longest_edge": preprocessor.get("max_size")}
    height, width = edges.get("height"), edges.get("width")
    if isinstance(height, int) and isinstance(width, int) and height > 0 and width > 0:
        return height, width
    shortest, longest = (
        value if isinstance(value, int) and value > 0 else default
        for value, default in ((edges.get("shortest_edge"), SHORTEST_EDGE), (edges.get("longest_edge"), LONGEST_EDGE))
    )
    low, high = min(size), max(size)
    if high / low * shortest > longest:
        shortest = max(1, round(longest * low / high))
    other = max(1, int(shortest * high / low))
    return (shortest, other) if size[0] <= size[1] else (other, shortest)


def to_uint8(image: Tensor) -> Tensor:
    """The model's image scaled to 0 … 255: uint8 `[channels, height, width]`."""
    low, high = image.min(), image.max()
    return ((image - low) / (high - low).clamp(min=1e-6) * 255).round().to(torch.uint8)
