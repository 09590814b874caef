"""Inputs of `predict` as a user gives them: texts, paths, arrays, or dictionaries such as a row of JSON."""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

import torch
from torch import Tensor

from ...data.files import is_file
from ...data.images import MODES, ImageBytes, ImageFile, Picture, decode_image
from ...data.sound import Samples, SoundFile, decode_samples
from ...data.text import SOURCE_NAMES, TEXT_NAMES
from ...errors import BadInput

if TYPE_CHECKING:
    from PIL import Image

IMAGE_KEYS = ("image", "path", "file")
SOUND_KEYS = ("sound", "audio", "path", "file")


def name_of(given: object) -> str:
    """The text or path of an input; of data in memory its type.

    >>> name_of("a fine film"), name_of(Path("a.png")), name_of(torch.zeros(2, 3)), name_of({"text": "fine"})
    ('a fine film', 'a.png', 'array [2, 3]', 'fine')
    """
    if isinstance(given, str | Path):
        return str(given)
    if isinstance(given, Mapping):
        return name_of(next((value for value in given.values() if isinstance(value, str)), None) or "")
    shape = getattr(given, "shape", None)
    return f"array {list(shape)}" if shape is not None else type(given).__name__


def as_text(given: object, column: str | None = None) -> str:
    """A text, given as itself or in a dictionary under `column` or a name such as "text".

    >>> as_text("a fine film") == as_text({"text": "a fine film"}) == as_text({"review": "a fine film"}, "review")
    True
    """
    value = pick(given, (column,) if column else (*TEXT_NAMES, *SOURCE_NAMES), "text")
    if not isinstance(value, str):
        raise BadInput(f"An input is {describe(value)}. This model reads texts: give a str.")
    return value


def as_picture(given: object) -> Picture:
    """An image from a path, encoded bytes, a pillow image, or an array `[height, width]`, `[height, width, channels]`
    or `[channels, height, width]` of uint8 or of floats from 0 to 1; in a dictionary under "image", bytes as base64."""
    value = pick(given, IMAGE_KEYS, "image")
    if isinstance(given, Mapping) and isinstance(value, str):
        value = decode_base64(value)
    if isinstance(value, str | Path):
        if not is_file(Path(value)):
            raise BadInput(f"{value!s:.200} does not exist. This model reads images: give the path of an image.")
        return ImageFile(Path(value))
    if isinstance(value, bytes | bytearray):
        return ImageBytes(torch.frombuffer(bytearray(value), dtype=torch.uint8), "the image")
    if is_pillow(value):
        return encode_pillow(value)
    return channels_first(as_array(value, "images"))


def as_sound(given: object) -> SoundFile | Samples:
    """A recording from a path, from its encoded bytes, or from a dictionary with samples `[samples]` and their rate.

    >>> as_sound({"samples": [0.0, 0.5], "sample_rate": 8000}).rate
    8000
    """
    if isinstance(given, SoundFile | Samples):
        return given
    if isinstance(given, Mapping) and "samples" in given:
        rate = given.get("sample_rate")
        if not isinstance(rate, int) or rate < 1:
            raise BadInput(f"sample_rate is {rate!r}. Give the samples a second beside the samples, such as 16000.")
        samples = as_array(given["samples"], "recordings")
        if samples.dim() != 1 or not len(samples):
            raise BadInput(f"The samples have the shape {list(samples.shape)}. Give one row of samples, [samples].")
        return Samples(samples, rate)
    value = pick(given, SOUND_KEYS, "sound")
    if isinstance(value, bytes):
        return decode_samples(value, Path(name_of(given) if isinstance(given, Mapping) else "the recording"))
    if not isinstance(value, str | Path):
        raise BadInput(
            f"An input is {describe(value)}. This model reads recordings: give the path of an audio file, or "
            '{"samples": array, "sample_rate": 16000}.'
        )
    if not is_file(Path(value)):
        raise BadInput(f"{value!s:.200} does not exist. This model reads recordings: give the path of an audio file.")
    return SoundFile(Path(value))


def pick(given: object, names: tuple[str, ...], noun: str) -> object:
    """The value of a dictionary under one of these names, or its only value; anything else as it is."""
    if not isinstance(given, Mapping):
        return given
    name = next((name for name in names if name in given), None)
    if name is None and len(given) == 1:
        name = next(iter(given))
    if name is None:
        have = ", ".join(map(str, given)) or "nothing"
        raise BadInput(f"An input has the keys {have}; this model reads {noun}. Give it as {{{names[0]!r}: ...}}.")
    return given[name]


def decode_base64(text: str) -> bytes | str:
    """The bytes of base64 text, also in a data URL; a text that is none is a path."""
    encoded = text.partition("base64,")[2] if text.startswith("data:") else text
    if len(text) < 4096 and is_file(Path(text)):
        return text
    try:
        return b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise BadInput(f"{text!r:.60} is neither the path of an image nor base64. Give one of them.") from None


def is_pillow(value: object) -> TypeGuard[Image.Image]:
    return hasattr(value, "convert") and hasattr(value, "save")


def encode_pillow(image: Image.Image) -> Tensor:
    import io

    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return decode_image(buffer.getvalue(), "the image", 4 if image.mode in ("RGBA", "LA", "PA") else 3)


def as_array(value: object, noun: str) -> Tensor:
    """A tensor, array or nested list as a tensor on the CPU."""
    try:
        return value.detach().cpu() if isinstance(value, Tensor) else torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise BadInput(f"An input is {describe(value)}. This model reads {noun}: give a path or an array.") from None


def channels_first(pixels: Tensor) -> Tensor:
    """uint8 `[channels, height, width]` of an array of pixels."""
    if pixels.dim() == 2:
        pixels = pixels[None]
    elif pixels.dim() == 3 and pixels.shape[-1] in MODES and pixels.shape[0] not in MODES:
        pixels = pixels.permute(2, 0, 1)
    if pixels.dim() != 3 or pixels.shape[0] not in MODES or 0 in pixels.shape:
        raise BadInput(
            f"An image has the shape {list(pixels.shape)}. Give [height, width], [height, width, channels] or "
            "[channels, height, width], with 1, 3 or 4 channels."
        )
    if pixels.is_floating_point():
        if not (torch.isfinite(pixels).all() and float(pixels.min()) >= 0 and float(pixels.max()) <= 1):
            raise BadInput("The floats of an image are not all from 0 to 1. Divide by 255, or give uint8.")
        pixels = (pixels * 255).round()
    if pixels.dtype == torch.bool or int(pixels.min()) < 0 or int(pixels.max()) > 255:
        raise BadInput(f"The pixels of an image are {pixels.dtype}, not all from 0 to 255. Give uint8.")
    return pixels.to(torch.uint8).contiguous()


def describe(value: object) -> str:
    """The type of a value in words."""
    shape = getattr(value, "shape", None)
    return f"an array {list(shape)}" if shape is not None else f"{value!r:.60} ({type(value).__name__})"
