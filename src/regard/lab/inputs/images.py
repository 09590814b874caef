"""Pictures for models that read patches, or the cells of a feature map."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...errors import BadInput, Unsupported
from ...models.detection import DetectionModel
from ..inspect.predictions import classes, objects
from .prepared import Prepared, Token

IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
"""Mean and deviation of brightness, where a checkpoint's folder does not say them."""
SHORTEST, LONGEST = 800, 1333
"""Pixels of a picture's sides for DETR, where its folder does not say."""
SURE = 0.5
"""From which probability an object counts as found, where a run does not say."""


def image_input(model: Any, task: Any, data: bytes) -> Prepared:
    """A picture, the tokens that it is cut into and, of a detector, the queries that look for objects."""
    from ...data.images import ImageBytes

    held = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.zeros(0, dtype=torch.uint8)
    inputs = pixels_for(model, task, ImageBytes(held, "The picture"))
    images = inputs["images"]
    embed: Any = getattr(getattr(model, "image", None) or model, "embed", None)
    grid, first = grid_of(embed, images), hasattr(embed, "patches") and hasattr(embed, "first")
    tokens = [Token("[CLS]", special=True)] if first else []
    tokens += [Token(f"{n // grid[1]},{n % grid[1]}", n, n + 1) for n in range(grid[0] * grid[1])]
    about: dict[str, Any] = {"grid": list(grid), "size": list(images.shape[2:]), "class_token": first}
    about["detects"] = isinstance(model, DetectionModel)
    about["cell"] = [
        getattr(embed, "stride", None) or -(-side // n) for side, n in zip(about["size"], grid, strict=True)
    ]
    sides = {"image": tokens}
    if isinstance(model, DetectionModel) and model.queries is not None:
        sides["target"] = [Token(str(n), n, n + 1) for n in range(len(model.queries))]
    return Prepared(inputs, sides, "image", about | {"pixels": shown_pixels(images[0])}, answer_of(model, task))


def answer_of(model: Any, task: Any) -> Callable[[Any], dict[str, Any]]:
    """How the answer is read: boxes with their classes, or the likeliest classes of the whole picture."""
    labels = names_of(model, task)

    def answer(output: Any) -> dict[str, Any]:
        if output.logits is None:
            return {"kind": "none", "items": []}
        if output.boxes is None:
            return classes(output.logits[0], labels)
        sure = getattr(getattr(task, "settings", None), "sure", SURE)
        return objects(output.logits[0], output.boxes[0], labels, sure)

    return answer


def names_of(model: Any, task: Any) -> list[str] | None:
    """The words for a model's classes, as its run or its checkpoint says them."""
    found = getattr(task, "labels", None) or getattr(task, "classes", None)
    return found or getattr(model, "labels", None)


def pixels_for(model: Any, task: Any, picture: Any) -> dict[str, Tensor]:
    """The arguments of the call: `images [1, channels, height, width]`, of a run's detector also their `sizes`."""
    from ...data.images import LabelledImage

    if hasattr(task, "stacked"):
        return task.stacked([task.load(picture)])
    reader = getattr(task, "inputs", None) or getattr(task, "pictures", None)
    if reader is not None:
        return {"images": reader.batch([LabelledImage(picture, "")], None)["images"]}
    return {"images": plain_image(model, picture)}


def grid_of(embed: Any, images: Tensor) -> tuple[int, int]:
    """Rows and columns of what an embedding cuts a picture into."""
    if hasattr(embed, "patches"):
        return embed.patches.grid(*images.shape[2:])
    if hasattr(embed, "stages"):
        with torch.no_grad():
            rows, columns = embed.stages(embed.norm(embed.first(images)).relu()).shape[2:]
        return rows, columns
    if hasattr(embed, "stride"):
        return -(-images.shape[2] // embed.stride), -(-images.shape[3] // embed.stride)
    raise Unsupported("This model cuts no picture into patches or cells, so there is no grid to draw on.")


def plain_image(model: Any, picture: Any) -> Tensor:
    """A picture in the size and the range of brightness that a checkpoint of others reads."""
    from ...data.images import load_image
    from ...tasks.inputs.images import resized

    config = getattr(model.config, "embed", None) or model.config.image.embed
    pixels = load_image(picture, config.channels)
    said = getattr(model, "preprocessor", {})
    whole = isinstance(model, DetectionModel)
    size = fitted((pixels.shape[1], pixels.shape[2]), said) if whole else own_size(config)
    told = (IMAGENET if whole else HALF) | {name: said[name] for name in HALF if name in said}
    try:
        mean, deviation = (torch.tensor(told[name], dtype=torch.float32)[:, None, None] for name in HALF)
        return ((resized(pixels, size).float() / 255 - mean[: len(pixels)]) / deviation[: len(pixels)])[None]
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        raise BadInput(
            f"preprocessor_config.json: image_mean and image_std cannot be used ({error}). Give a number a channel."
        ) from None


def own_size(config: Any) -> tuple[int, int]:
    """The size that a model has places for."""
    return (config.size, config.size) if isinstance(config.size, int) else tuple(config.size)


def fitted(size: tuple[int, int], said: dict[str, Any]) -> tuple[int, int]:
    """(height, width) of a picture for a detector: its shorter side as said, its longer one not beyond what is said.

    >>> fitted((480, 640), {}), fitted((10, 100), {"size": {"shortest_edge": 50, "longest_edge": 100}})
    ((800, 1066), (10, 100))
    """
    told: Any = said.get("size")
    told = told if isinstance(told, dict) else {"shortest_edge": told, "longest_edge": said.get("max_size")}
    if all(isinstance(told.get(side), int) and told[side] > 0 for side in ("height", "width")):
        return told["height"], told["width"]
    shortest, longest = (
        value if isinstance(value, int) and value > 0 else usual
        for value, usual in ((told.get("shortest_edge"), SHORTEST), (told.get("longest_edge"), LONGEST))
    )
    low, high = min(size), max(size)
    if high / low * shortest > longest:
        shortest = max(1, round(longest * low / high))
    other = max(1, int(shortest * high / low))
    return (shortest, other) if size[0] <= size[1] else (other, shortest)


def shown_pixels(image: Tensor) -> Tensor:
    """What the model sees, brightened to 0 … 255: uint8 `[channels, height, width]`."""
    low, high = image.min(), image.max()
    return ((image - low) / (high - low).clamp(min=1e-6) * 255).round().to(torch.uint8)
