"""Images: with a label or with a caption, as files that are opened when needed or as arrays that are there already."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from ..errors import BadInput, Missing
from .arrays import Arrays
from .files import Paths, file_format, resolve_paths
from .listing import PATH_NAMES, ListedFile, class_folders, listed_files
from .reading import MalformedData, Reading, ReadingBuilder, raise_fault, raise_fault_from
from .tables import ColumnSpec, find_columns, find_split_column, read_table, split_in_row
from .text import LABEL_NAMES, TEXT_NAMES

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

ENDINGS = ("jpg", "jpeg", "png", "gif", "bmp", "webp", "tif", "tiff", "ppm", "pgm")
IMAGE_NAMES = ("image", "image_path", "image_id", "img", "picture", "photo", *PATH_NAMES, "图片", "图像")
CAPTION_NAMES = ("caption", "description", "name", *TEXT_NAMES, "描述", "说明")
PIXELS = ("x", "images", "image", "pixels", "data")
MODES = {1: "L", 3: "RGB", 4: "RGBA"}
ENDS = {b"\xff\xd8": b"\xff\xd9", b"\x89P": b"IEND\xaeB`\x82"}
"""How JPEG and PNG files begin, and what stands near the end of a whole one."""


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
        with self.path.open("rb") as file:
            file.seek(self.start)
            return file.read() if self.length is None else file.read(self.length)

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
    """An image, uint8 `[channels, height, width]` or what `load_image` makes that of, and its class."""

    image: Picture
    label: str
    part: str = ""


@dataclass(frozen=True, eq=False)
class Captioned:
    """An image and a text about it. Captions of the same image share its `name`."""

    image: Picture
    text: str
    name: str
    part: str = ""


def load_image(image: Picture, channels: int | None = None) -> Tensor:
    """uint8 `[channels, height, width]`. Files become 3 channels unless asked otherwise; an array keeps its own.

    Grey is repeated, and what is transparent becomes white.

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
    """The pixels of an encoded image."""
    image = import_pillow()
    try:
        with image.open(io.BytesIO(data)) as opened:
            return as_tensor(apply_orientation(opened), channels)
    except (OSError, SyntaxError, ValueError, image.DecompressionBombError) as error:
        raise image_error(name, error) from None


def image_error(name: str, error: Exception) -> BadInput:
    why = "it is in no format that is known" if "cannot identify" in str(error) else str(error)
    return BadInput(f"{name} cannot be read as an image: {why}. Give a whole JPEG or PNG file.")


def apply_orientation(image: Image.Image) -> Image.Image:
    """The image turned as its camera says."""
    from PIL import ImageOps

    return ImageOps.exif_transpose(image)


def as_tensor(image: Image.Image, channels: int) -> Tensor:
    """Pixels in as many channels, what is transparent laid on white unless transparency is asked for."""
    if channels not in MODES:
        raise BadInput(f"channels is {channels}; it must be 1 (grey), 3 (RGB) or 4 (with transparency).")
    if channels != 4 and (image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info):
        clear = image.convert("RGBA")
        image = import_pillow().new("RGBA", clear.size, "white")
        image.alpha_composite(clear)
    image = to_uint8(image).convert(MODES[channels])
    flat = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return flat.view(image.height, image.width, channels).permute(2, 0, 1).contiguous()


def to_uint8(image: Image.Image) -> Image.Image:
    """The image in grey of 8 bits if it has more, which pillow would cut off at 255 instead of dividing."""
    if image.mode.startswith("I;16") or (image.mode == "I" and value_range(image)[1] > 255):
        return image.convert("I").point(lambda value: value * (1 / 257) + 0.5).convert("L")
    if image.mode == "F":
        low, high = value_range(image)
        if not 0 <= low <= high <= 255:
            raise ValueError(f"its numbers run from {low:g} to {high:g}; wanted 0 to 1, or 0 to 255")
        return image.point(lambda value: value * (255 if high <= 1 else 1) + 0).convert("L")
    return image


def value_range(image: Image.Image) -> tuple[float, float]:
    """The lowest and the highest number of an image of one channel."""
    low, high = cast(tuple[float, float], image.getextrema())
    return low, high


def import_pillow() -> Any:
    """The module that reads images."""
    try:
        from PIL import Image
    except ImportError:
        raise Missing('Reading images needs pillow: pip install "regard[train]".') from None
    return Image


def check_image(image: ImageFile | ImageBytes) -> tuple[int, int]:
    """(height, width) after a quick look: the head is read, and the whole decoded only if its end looks wrong."""
    data = image.bytes()
    if not data:
        raise BadInput(f"{image} is empty. Get the image again, or leave it out.")
    opener = import_pillow()
    try:
        with opener.open(io.BytesIO(data)) as opened:
            width, height = oriented_size(opened)
            if ENDS.get(data[:2], b"\0no") not in data[-1024:]:
                opened.load()
    except (OSError, SyntaxError, ValueError, opener.DecompressionBombError) as error:
        raise image_error(str(image), error) from None
    return height, width


def oriented_size(image: Image.Image) -> tuple[int, int]:
    """(width, height) once turned as the camera says."""
    width, height = image.size
    return (height, width) if image.getexif().get(0x0112, 1) >= 5 else (width, height)


def check_size_of(image: ImageFile | ImageBytes, place: tuple[str, int | None, int | None]) -> tuple[int, int]:
    """(height, width), or `MalformedData` at the place that named the image."""
    try:
        return check_image(image)
    except BadInput as error:
        raise_fault_from(error, *place)


def read_images(
    paths: Paths, *, image: str | int | None = None, label: str | int | None = None, folder: str | Path | None = None
) -> Reading[LabelledImage]:
    """Labelled images: a folder with a folder for each class; a table of paths and labels; or NPZ.

    Paths in a table are looked up from `folder`, the table's own unless given. NPZ: pixels `x [n, height, width]` or
    with channels first or last, or encoded files one after the other in `jpeg` with `offsets [n + 1]`; labels in `y`
    unless `label` names another array.
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
                builder.each(listed_files(path, *roles, Path(folder) if folder else None, builder), labelled_file)
    return builder.build()


def labelled_file(listed: ListedFile) -> LabelledImage:
    image = ImageFile(listed.path)
    check_size_of(image, listed.place)
    return LabelledImage(image, listed.text, listed.part)


def labelled_arrays(
    arrays: Arrays, image: str | int | None, label: str, builder: ReadingBuilder[LabelledImage]
) -> None:
    """The images of an NPZ with their labels."""
    pictures = images_in_arrays(arrays, image, builder)
    labels, parts = arrays.labels(label, len(pictures)), arrays.parts(len(pictures))
    builder.note(f"{arrays.path.name}: label = {label!r}")

    def make(n: int) -> LabelledImage:
        if not labels[n]:
            arrays.raise_fault(label, f"has no class's name at {n}.")
        return LabelledImage(pictures[n](), labels[n], parts[n])

    builder.each(range(len(pictures)), make)


def images_in_arrays(
    arrays: Arrays, image: str | int | None, builder: ReadingBuilder[Any]
) -> Sequence[Callable[[], Picture]]:
    """What gives each image of an NPZ, checked as it is given."""
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

    def picture(n: int) -> Picture:
        found = ImageBytes(data[offsets[n] : offsets[n + 1]], f"{arrays.path}: image {n}")
        check_size_of(found, (str(arrays.path), None, None))
        return found

    return [lambda n=n: picture(n) for n in range(len(offsets) - 1)]


def pixels_of(arrays: Arrays, name: str) -> Tensor:
    """uint8 `[n, channels, height, width]`; numbers from 0 to 1 are taken 255 times."""
    array = arrays.get(name, "images", "image")
    if array.ndim not in (3, 4) or not array.size:
        wanted = "[n, height, width], [n, height, width, channels] or [n, channels, height, width]"
        arrays.raise_fault(name, f"has shape {list(array.shape)}; wanted images {wanted}.")
    array = array[:, None] if array.ndim == 3 else array
    if array.shape[1] not in MODES:
        if array.shape[3] not in MODES:
            arrays.raise_fault(name, f"has shape {list(array.shape)}; wanted 1, 3 or 4 channels, first or last.")
        array = array.transpose(0, 3, 1, 2)
    return torch.from_numpy(as_bytes(arrays, name, array))


def as_bytes(arrays: Arrays, name: str, array: np.ndarray) -> np.ndarray:
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

    NPZ: images as for `read_images`, and a text for each in the array `text`; or, with `captions`, a table whose image
    column holds the names in the array `image_id`, any number of lines an image.
    """
    builder = ReadingBuilder[Captioned]()
    for path in resolve_paths(paths):
        with builder.reading(path):
            if file_format(path) != "npz":
                roles = ColumnSpec("image", image, IMAGE_NAMES), ColumnSpec("text", text, CAPTION_NAMES)
                checks: dict[Path, MalformedData | None] = {}
                files = listed_files(path, *roles, Path(folder) if folder else None, builder)
                builder.each(files, lambda one, checks=checks: captioned_file(one, checks))
            elif captions is None:
                captioned_arrays(Arrays(path), image, text, builder)
            else:
                captioned_by_name(Arrays(path), resolve_paths(captions)[0], image, text, builder)
    return builder.build()


def captioned_file(listed: ListedFile, checks: dict[Path, MalformedData | None]) -> Captioned:
    """An image with one of its captions; an image is looked at once, however many there are."""
    image = ImageFile(listed.path)
    if listed.path not in checks:
        checks[listed.path] = None
        try:
            check_size_of(image, listed.place)
        except MalformedData as refused:
            checks[listed.path] = refused
    if (broken := checks[listed.path]) is not None:
        raise_fault(listed.place[0], broken.faults[0].message, listed.place[1], listed.place[2])
    return Captioned(image, listed.text, str(listed.path), listed.part)


def captioned_arrays(
    arrays: Arrays, image: str | int | None, text: str | int | None, builder: ReadingBuilder[Captioned]
) -> None:
    """The images of an NPZ with the text beside each."""
    name = str(text) if text is not None else arrays.find((*CAPTION_NAMES, "captions", "texts"), "text", "text")
    pictures = images_in_arrays(arrays, image, builder)
    texts, parts = arrays.texts(name, len(pictures), "text", "text"), arrays.parts(len(pictures))
    builder.note(f"{arrays.path.name}: text = {name!r}")

    def make(n: int) -> Captioned:
        if not texts[n]:
            arrays.raise_fault(name, f"is empty at {n}.")
        return Captioned(pictures[n](), texts[n], str(n), parts[n])

    builder.each(range(len(pictures)), make)


def captioned_by_name(
    arrays: Arrays, captions: Path, image: str | int | None, text: str | int | None, builder: ReadingBuilder[Captioned]
) -> None:
    """The images of an NPZ with the lines of a table that name them."""
    builder.files.append(str(captions))
    pictures = images_in_arrays(arrays, None, builder)
    names = arrays.texts("image_id", len(pictures), "name of the image")
    found: dict[str, Picture] = {}
    for name, picture in zip(names, pictures, strict=True):
        with builder.catching():
            found[name] = picture()
    wanted = [ColumnSpec("image", image, IMAGE_NAMES), ColumnSpec("text", text, CAPTION_NAMES)]
    table = read_table(captions, wanted)
    builder.faults.extend(table.faults)
    columns, part = find_columns(table, wanted, builder), find_split_column(table)

    def make(row: Any) -> Captioned:
        name = table.cell(row, columns["image"], "image")
        if name not in found:
            table.raise_fault(row, columns["image"], f"{arrays.path.name} has no image {name!r} that can be read.")
        return Captioned(found[name], table.cell(row, columns["text"], "text"), name, split_in_row(table, row, part))

    builder.each(table.rows, make)
    bare = set(names) - {one.name for one in builder.examples}
    if bare:
        builder.note(f"{arrays.path.name}: {len(bare):,} images have no caption, such as {min(bare)!r}")
