"""Images with a label or a caption, as files that are decoded when they are needed or as arrays in memory."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Literal, cast

import torch
from torch import Tensor

from ..errors import BadInput, Missing
from ..limits import FILE_BYTES, IMAGE_PIXELS, PICTURE_BYTES, expansion_excess
from .arrays import Arrays
from .files import Paths, file_format, read_up_to, resolve_paths
from .listing import PATH_NAMES, ListedFile, class_folders, listed_files
from .reading import FaultCollector, MalformedData, Reading, ReadingBuilder, is_foreign, raise_fault, raise_fault_from
from .tables import ColumnSpec, Row, find_columns, find_split_column, read_table, split_in_row
from .tables.label_types import LabelType
from .text import LABEL_NAMES, TEXT_NAMES

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

ENDINGS = ("jpg", "jpeg", "png", "gif", "bmp", "webp", "tif", "tiff", "ppm", "pgm")
IMAGE_NAMES = ("image", "image_path", "image_id", "img", "picture", "photo", *PATH_NAMES, "图片", "图像")
CAPTION_NAMES = ("caption", "description", "name", *TEXT_NAMES, "描述", "说明")
PIXELS = ("x", "images", "image", "pixels", "data")
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM")
"""What is decoded, whatever a file is named: pillow has many formats, and starts a program for one of them (EPS)."""
MODES = {1: "L", 3: "RGB", 4: "RGBA"}
ENDS = {b"\xff\xd8": b"\xff\xd9", b"\x89P": b"IEND\xaeB`\x82"}
"""The first two bytes of JPEG and PNG files, and the marker near the end of a complete one."""


@dataclass(frozen=True)
class ImageFile:
    """An image in a file, or in the `length` bytes from `start` of an archive, decoded when `load` is called."""

    path: Path
    start: int = 0
    length: int | None = None
    name: str = ""

    def load(self, channels: int = 3) -> Tensor:
        """uint8 `[channels, height, width]`; `BadInput` with the file's name if it cannot be decoded."""
        return decode_image(self.bytes(), str(self), channels)

    def bytes(self) -> bytes:
        try:
            with self.path.open("rb") as file:
                file.seek(self.start)
                return read_up_to(file, FILE_BYTES.value if self.length is None else self.length)
        except (OSError, ValueError, OverflowError) as error:
            raise BadInput(f"{self} cannot be opened: {error}. Give a file that can be read.") from None

    def __str__(self) -> str:
        return f"{self.path}: {self.name}" if self.name else str(self.path)


@dataclass(frozen=True, eq=False)
class ImageBytes:
    """An encoded image (JPEG, PNG, …) in memory, uint8 `[bytes]`."""

    data: Tensor
    name: str

    def load(self, channels: int = 3) -> Tensor:
        """As `ImageFile.load`."""
        return decode_image(self.bytes(), self.name, channels)

    def bytes(self) -> bytes:
        return self.data.numpy().tobytes()

    def __str__(self) -> str:
        return self.name


Picture = Tensor | ImageFile | ImageBytes


@dataclass(frozen=True, eq=False)
class LabelledImage:
    """An image, uint8 `[channels, height, width]` or a file that `load_image` decodes, and its class."""

    image: Picture
    label: str
    split: str = ""


@dataclass(frozen=True, eq=False)
class Captioned:
    """An image and a caption. All captions of an image have the same `name`."""

    image: Picture
    text: str
    name: str
    split: str = ""


def load_image(image: Picture, channels: int | None = None) -> Tensor:
    """uint8 `[channels, height, width]`. By default files have 3 channels, and arrays keep their own.

    Grey is repeated over the channels, and transparent pixels become white.

    >>> load_image(torch.zeros(1, 2, 2, dtype=torch.uint8), 3).shape
    torch.Size([3, 2, 2])
    """
    if not isinstance(image, Tensor):
        return image.load(channels or 3)
    if channels is None or channels == image.shape[0]:
        return image
    if image.shape[0] not in MODES or channels not in MODES:
        raise BadInput(f"An image of {image.shape[0]} channels cannot be given {channels}. Take 1, 3 or 4.")
    from_array = import_pillow().fromarray
    array = image[0] if image.shape[0] == 1 else image.permute(1, 2, 0)
    return as_tensor(from_array(array.numpy()), channels)


def decode_image(data: bytes, name: str, channels: int) -> Tensor:
    """The pixels of an encoded image, rotated as its EXIF data says."""
    import_pillow()
    from PIL import ImageOps

    with explain_image_errors(name), open_image(data) as image:
        check_pixels(name, image.size, len(data))
        return as_tensor(ImageOps.exif_transpose(image), channels)


def open_image(data: bytes) -> Image.Image:
    """An encoded image as pillow opens it: its header is read, its pixels are not yet decoded."""
    return import_pillow().open(io.BytesIO(data), formats=FORMATS)


@contextmanager
def explain_image_errors(name: str) -> Iterator[None]:
    """While open, whatever pillow raises for an image that it cannot decode becomes `BadInput` with its name."""
    import_pillow()
    from PIL import Image

    limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None  # sizes have a limit of ours
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of damaged metadata
        try:
            yield
        except Exception as error:
            if not is_foreign(error):
                raise
            raise image_error(name, error) from None
        finally:
            Image.MAX_IMAGE_PIXELS = limit


def check_pixels(name: str, size: tuple[int, int], packed: int) -> None:
    """`BadInput` for an image that is too large, also for the bytes of its file."""
    pixels = size[0] * size[1]
    if message := IMAGE_PIXELS.excess(pixels) or expansion_excess(packed, 4 * pixels, PICTURE_BYTES):
        raise BadInput(f"{name} is {size[0]} × {size[1]} large: {message}")


def image_error(name: str, error: Exception) -> BadInput:
    """The error for a file that pillow cannot decode."""
    reason = "it is in no format that is known" if "cannot identify" in str(error) else f"{error}"[:200].rstrip(".")
    return BadInput(f"{name} cannot be read as an image: {reason}. Give a whole JPEG or PNG file.")


def as_tensor(image: Image.Image, channels: int) -> Tensor:
    """The pixels of an image in 1, 3 or 4 channels; with less than 4, transparent pixels become white."""
    import numpy

    if channels not in MODES:
        raise BadInput(f"channels is {channels}; it must be 1 (grey), 3 (RGB) or 4 (with transparency).")
    if channels != 4 and (image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info):
        clear = image.convert("RGBA")
        image = import_pillow().new("RGBA", clear.size, "white")
        image.alpha_composite(clear)
    image = to_uint8(image).convert(MODES[channels])
    pixels = torch.from_numpy(numpy.array(image)).view(image.height, image.width, channels)
    return pixels.permute(2, 0, 1).contiguous()


def to_uint8(image: Image.Image) -> Image.Image:
    """An image of 16 bits or floats scaled to 8 bits; pillow would clip it at 255."""
    if image.mode.startswith("I;16") or (image.mode == "I" and value_range(image)[1] > 255):
        return image.convert("I").point(lambda value: value * (1 / 257) + 0.5).convert("L")
    if image.mode == "F":
        low, high = value_range(image)
        if not 0 <= low <= high <= 255:
            raise ValueError(f"its numbers run from {low:g} to {high:g}; wanted 0 to 1, or 0 to 255")
        return image.point(lambda value: value * (255 if high <= 1 else 1) + 0).convert("L")
    return image


def value_range(image: Image.Image) -> tuple[float, float]:
    """The lowest and the highest value of an image of one channel."""
    low, high = cast(tuple[float, float], image.getextrema())
    return low, high


def import_pillow() -> ModuleType:
    """pillow's module `Image`; `Missing` if it is not installed."""
    try:
        from PIL import Image
    except ImportError:
        raise Missing('Reading images needs pillow: pip install "regard[train]".') from None
    return Image


def check_image(image: ImageFile | ImageBytes) -> tuple[int, int]:
    """(height, width) from the header; the whole image is decoded only if its end marker is missing."""
    data = image.bytes()
    if not data:
        raise BadInput(f"{image} is empty. Get the image again, or leave it out.")
    with explain_image_errors(str(image)), open_image(data) as opened:
        width, height = opened.size
        check_pixels(str(image), opened.size, len(data))
        orientation = opened.getexif().get(0x0112, 1)
        rotated = isinstance(orientation, int) and orientation >= 5  # EXIF orientations that swap the sides
        if ENDS.get(data[:2], b"\0no") not in data[-1024:]:
            opened.load()
    return (width, height) if rotated else (height, width)


def check_size_of(image: ImageFile | ImageBytes, location: tuple[str, int | None, int | None]) -> tuple[int, int]:
    """(height, width); `MalformedData` at the location that names the image if it cannot be read."""
    try:
        return check_image(image)
    except BadInput as error:
        raise_fault_from(error, *location)


def read_images(
    paths: Paths,
    *,
    image: str | int | None = None,
    label: str | int | None = None,
    folder: str | Path | None = None,
    target: LabelType | Literal["auto"] = "class",
) -> Reading[LabelledImage]:
    """Labelled images: a folder with a folder for each class; a table of paths and labels; or NPZ.

    Paths in a table are relative to `folder`, by default the table's own; a label there that is no number is a fault
    where `target` says that labels are numbers. NPZ: pixels `x [n, height, width]` or with
    channels first or last, or concatenated JPEG files in `jpeg` with `offsets [n + 1]`; labels in `y` unless `label`
    names another array.
    """
    builder = ReadingBuilder[LabelledImage]()
    for path in resolve_paths(paths, folders=True):
        with builder.reading(path):
            if path.is_dir():
                builder.each(class_folders(path, ENDINGS, builder), labelled_file)
            elif file_format(path) == "npz":
                arrays = Arrays(path)
                labelled_arrays(
                    arrays, image, str(label or arrays.find(("y", *LABEL_NAMES, "labels"), "label", "label")), builder
                )
            else:
                roles = ColumnSpec("image", image, IMAGE_NAMES), ColumnSpec("label", label, LABEL_NAMES)
                files = listed_files(path, *roles, Path(folder) if folder else None, builder, target)
                builder.each(files, labelled_file)
    return builder.build()


def labelled_file(listed: ListedFile) -> LabelledImage:
    image = listed_image(listed)
    check_size_of(image, listed.location)
    return LabelledImage(image, listed.text, listed.split)


def listed_image(listed: ListedFile) -> ImageFile | ImageBytes:
    """The image of a file, or of the bytes that the table has."""
    if listed.data is None:
        return ImageFile(listed.path)
    return ImageBytes(torch.frombuffer(bytearray(listed.data), dtype=torch.uint8), str(listed.path))


def labelled_arrays(
    arrays: Arrays, image: str | int | None, label: str, builder: ReadingBuilder[LabelledImage]
) -> None:
    """The labelled images of an NPZ file."""
    pictures = images_in_arrays(arrays, image, builder)
    labels, splits = arrays.labels(label, len(pictures)), arrays.splits(len(pictures))
    builder.note(f"{arrays.path.name}: label = {label!r}")

    def make(n: int) -> LabelledImage:
        if not labels[n]:
            arrays.raise_fault(label, f"has no class's name at {n}.")
        return LabelledImage(pictures[n](), labels[n], splits[n])

    builder.each(range(len(pictures)), make)


def images_in_arrays(
    arrays: Arrays, image: str | int | None, builder: FaultCollector
) -> Sequence[Callable[[], Picture]]:
    """A function for each image of an NPZ file that checks and returns it."""
    encoded = next((name for name in ("jpeg", "png", "encoded") if name in arrays), None)
    if image is None and encoded is not None:
        return encoded_images(arrays, encoded)
    name = str(image) if image is not None else arrays.find(PIXELS, "image", "image")
    builder.note(f"{arrays.path.name}: image = {name!r}")
    pixels = pixels_of(arrays, name)
    return [lambda n=n: pixels[n] for n in range(len(pixels))]


def encoded_images(arrays: Arrays, name: str) -> Sequence[Callable[[], Picture]]:
    array = arrays.get(name, "images")
    if array.ndim != 1 or array.dtype != "uint8":
        arrays.raise_fault(name, f"is {array.dtype} {list(array.shape)}; wanted uint8 [bytes].")
    data, offsets = torch.from_numpy(array), arrays.offsets(len(array), name)

    def load(n: int) -> Picture:
        image = ImageBytes(data[offsets[n] : offsets[n + 1]], f"{arrays.path}: image {n}")
        check_size_of(image, (str(arrays.path), None, None))
        return image

    return [lambda n=n: load(n) for n in range(len(offsets) - 1)]


def pixels_of(arrays: Arrays, name: str) -> Tensor:
    """uint8 `[n, channels, height, width]`; values from 0 to 1 are scaled by 255."""
    array = arrays.get(name, "images", "image")
    if array.ndim not in (3, 4) or not array.size:
        wanted = "[n, height, width], [n, height, width, channels] or [n, channels, height, width]"
        arrays.raise_fault(name, f"has shape {list(array.shape)}; wanted images {wanted}.")
    arrays.check_count(name, len(array))
    array = array[:, None] if array.ndim == 3 else array
    if array.shape[1] not in MODES:
        if array.shape[3] not in MODES:
            arrays.raise_fault(name, f"has shape {list(array.shape)}; wanted 1, 3 or 4 channels, first or last.")
        array = array.transpose(0, 3, 1, 2)
    return torch.from_numpy(as_bytes(arrays, name, array))


def as_bytes(arrays: Arrays, name: str, array: np.ndarray) -> np.ndarray:
    """The array as uint8; `MalformedData` if its values are neither in 0 to 255 nor in 0 to 1."""
    if array.dtype == "uint8":
        return array
    low, high = array.min(), array.max()
    if array.dtype.kind == "f" and low >= 0 and high <= 1:
        return (array * 255).round().astype("uint8")
    if array.dtype.kind in "uif" and low >= 0 and high <= 255:
        return array.round().astype("uint8")
    arrays.raise_fault(name, f"holds {array.dtype} from {low} to {high}; wanted 0 to 255, or 0 to 1.")


def read_captions(
    paths: Paths,
    *,
    captions: str | Path | None = None,
    image: str | int | None = None,
    text: str | int | None = None,
    folder: str | Path | None = None,
) -> Reading[Captioned]:
    """Images with captions: a table of image paths and texts, or NPZ.

    NPZ: images as for `read_images`, and a caption for each in the array `text`. Or `captions` is a table whose image
    column has the names in the array `image_id`; an image can have any number of rows.
    """
    builder = ReadingBuilder[Captioned]()
    for path in resolve_paths(paths):
        with builder.reading(path):
            if file_format(path) != "npz":
                roles = ColumnSpec("image", image, IMAGE_NAMES), ColumnSpec("text", text, CAPTION_NAMES)
                checks: dict[Path, MalformedData | None] = {}
                files = listed_files(path, *roles, Path(folder) if folder else None, builder)
                builder.each(files, lambda listed, checks=checks: captioned_file(listed, checks))
            elif captions is None:
                captioned_arrays(Arrays(path), image, text, builder)
            else:
                captioned_by_name(Arrays(path), resolve_paths(captions)[0], image, text, builder)
    return builder.build()


def captioned_file(listed: ListedFile, checks: dict[Path, MalformedData | None]) -> Captioned:
    """An image with a caption. Each image is checked once, for all its captions."""
    image = listed_image(listed)
    if listed.path not in checks:
        checks[listed.path] = None
        try:
            check_size_of(image, listed.location)
        except MalformedData as refused:
            checks[listed.path] = refused
    if (broken := checks[listed.path]) is not None:
        raise_fault(listed.location[0], broken.faults[0].message, listed.location[1], listed.location[2])
    return Captioned(image, listed.text, str(listed.path), listed.split)


def captioned_arrays(
    arrays: Arrays, image: str | int | None, text: str | int | None, builder: ReadingBuilder[Captioned]
) -> None:
    """The images of an NPZ file with the caption of each in an array."""
    name = str(text) if text is not None else arrays.find((*CAPTION_NAMES, "captions", "texts"), "text", "text")
    pictures = images_in_arrays(arrays, image, builder)
    texts, splits = arrays.texts(name, len(pictures), "text", "text"), arrays.splits(len(pictures))
    builder.note(f"{arrays.path.name}: text = {name!r}")

    def make(n: int) -> Captioned:
        if not texts[n]:
            arrays.raise_fault(name, f"is empty at {n}.")
        return Captioned(pictures[n](), texts[n], str(n), splits[n])

    builder.each(range(len(pictures)), make)


def captioned_by_name(
    arrays: Arrays, captions: Path, image: str | int | None, text: str | int | None, builder: ReadingBuilder[Captioned]
) -> None:
    """The images of an NPZ file with the captions of a table that names them."""
    builder.files.append(str(captions))
    pictures = images_in_arrays(arrays, None, builder)
    names = arrays.texts("image_id", len(pictures), "name of the image")
    by_name: dict[str, Picture] = {}
    for name, load in zip(names, pictures, strict=True):
        with builder.catching():
            by_name[name] = load()
    wanted = [ColumnSpec("image", image, IMAGE_NAMES), ColumnSpec("text", text, CAPTION_NAMES)]
    table = read_table(captions, wanted)
    builder.faults.extend(table.faults)
    columns, split_column = find_columns(table, wanted, builder), find_split_column(table)

    def make(row: Row) -> Captioned:
        name = table.cell(row, columns["image"], "image")
        if name not in by_name:
            table.raise_fault(row, columns["image"], f"{arrays.path.name} has no image {name!r} that can be read.")
        text = table.cell(row, columns["text"], "text")
        return Captioned(by_name[name], text, name, split_in_row(table, row, split_column))

    builder.each(table.rows, make)
    unused = set(names) - {example.name for example in builder.examples}
    if unused:
        builder.note(f"{arrays.path.name}: {len(unused):,} images have no caption, such as {min(unused)!r}")
