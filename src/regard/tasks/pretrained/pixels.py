"""Images as a checkpoint reads them: resized and cropped as its `preprocessor_config.json` says."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from ...data.images import Picture, load_image
from ...data.json_values import JsonObject, ParsedObject
from ...errors import BadInput

BILINEAR = 2
"""Pillow's number of bilinear resampling."""
HALF = (0.5, 0.5, 0.5)


@dataclass(frozen=True)
class ImageProcessor:
    """`resize` is (height, width), or the length of the shorter side; then the middle of size `crop` is cut out.

    `resample` is Pillow's number of a filter. Pixels are divided by 255, less `mean`, divided by `std`.
    """

    resize: tuple[int, int] | int
    crop: tuple[int, int]
    resample: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def from_config(cls, config: ParsedObject, size: tuple[int, int], channels: int) -> ImageProcessor:
        """The processor of a `preprocessor_config.json` (which may be empty) for a model that reads this size."""
        own = config.get("size")
        edges: ParsedObject = own if isinstance(own, dict) else {"shortest_edge": own} if isinstance(own, int) else {}
        crops = bool(config.get("do_center_crop"))
        shorter = edges.get("shortest_edge") if crops else None
        mean, std = (tuple(map(float, config.get(name, HALF)))[:channels] for name in ("image_mean", "image_std"))
        if len(mean) != channels or len(std) != channels:
            raise BadInput(f"preprocessor_config.json: image_mean has {len(mean)} numbers for {channels} channels.")
        return cls(shorter or size, size, int(config.get("resample", BILINEAR)), mean, std)

    def as_dict(self) -> JsonObject:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: ParsedObject) -> ImageProcessor:
        sizes = {name: data[name] if isinstance(data[name], int) else tuple(data[name]) for name in ("resize", "crop")}
        return cls(**sizes, resample=data["resample"], mean=tuple(data["mean"]), std=tuple(data["std"]))

    def pixels(self, image: Picture) -> Tensor:
        """uint8 `[channels, height, width]` of the size `crop`."""
        from PIL import Image

        pixels = load_image(image, len(self.mean))
        size = self.resize if isinstance(self.resize, tuple) else shorter_side(pixels.shape[1:], self.resize)
        if tuple(pixels.shape[1:]) != size:
            array = pixels.permute(1, 2, 0).squeeze(-1).contiguous().numpy()
            resized = Image.fromarray(array).resize((size[1], size[0]), resample=Image.Resampling(self.resample))
            flat = torch.frombuffer(bytearray(resized.tobytes()), dtype=torch.uint8)
            pixels = flat.view(*size, len(self.mean)).permute(2, 0, 1)
        top, left = ((have - want) // 2 for have, want in zip(size, self.crop, strict=True))
        return pixels[:, top : top + self.crop[0], left : left + self.crop[1]].contiguous()

    def batch(self, images: list[Picture]) -> Tensor:
        """Normalized images `[images, channels, height, width]`."""
        pixels = torch.stack([self.pixels(image) for image in images])
        mean, std = (torch.tensor(values)[:, None, None] for values in (self.mean, self.std))
        return (pixels / 255 - mean) / std


def shorter_side(size: torch.Size | tuple[int, ...], length: int) -> tuple[int, int]:
    """(height, width) of an image whose shorter side gets this length.

    >>> shorter_side((50, 100), 10)
    (10, 20)
    """
    low = min(size)
    height, width = (length if side == low else int(length * side / low) for side in size)
    return height, width
