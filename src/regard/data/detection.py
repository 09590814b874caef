"""Images with bounding boxes: COCO's JSON, Pascal VOC's XML, or a table of boxes."""

from __future__ import annotations

import lzma
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple, NoReturn
from xml.etree import ElementTree

import torch
from torch import Tensor

from ..limits import ARCHIVE_MEMBERS, expansion_excess
from .files import Paths, file_format, is_file, read_text, resolve_paths
from .images import ENDINGS, IMAGE_NAMES, ImageBytes, ImageFile, check_size_of
from .json_values import ParsedObject
from .listing import file_extension
from .reading import FaultCollector, Reading, ReadingBuilder, raise_fault
from .tables import ColumnSpec, Row, Table, find_columns, find_split_column, read_table, split_in_row
from .tables.json_rows import json_document
from .text import LABEL_NAMES

CORNERS = ("xmin", "ymin", "xmax", "ymax")
CORNER_NAMES = (("xmin", "x1", "left"), ("ymin", "y1", "top"), ("xmax", "x2", "right"), ("ymax", "y2", "bottom"))
FOLDERS = ("", "images", "JPEGImages")
"""Folders beside a file of boxes in which images are searched."""


@dataclass(frozen=True, eq=False)
class Boxes:
    """An image and the objects on it.

    `boxes` float32 `[objects, 4]`: centre x, centre y, width and height, relative to the image; `labels` their classes;
    `size` the (height, width) of the image in pixels.
    """

    image: ImageFile | ImageBytes
    boxes: Tensor
    labels: tuple[str, ...]
    size: tuple[int, int]
    name: str
    split: str = ""


class Box(NamedTuple):
    """A box in pixels; `raise_fault` raises `MalformedData` for its place in the file."""

    corners: tuple[float, float, float, float]
    label: str
    raise_fault: Callable[[str], NoReturn]


Images = Callable[[str], ImageFile | ImageBytes | None]
"""A function that finds an image by its name in a file of boxes."""


def read_boxes(paths: Paths, *, images: str | Path | None = None, label: str | int | None = None) -> Reading[Boxes]:
    """Images with boxes.

    COCO: a JSON file of images, annotations and categories; crowd annotations are skipped. VOC: a folder of XML files,
    or a folder with `Annotations`. A table: image, label, xmin, ymin, xmax, ymax, and optionally split; a row with only
    the image is an image without objects. Images are in the folder or tar file `images`, in tar files among `paths`, or
    by default beside the file of boxes. Boxes are clipped to the image; a box without area is a fault.
    """
    builder = ReadingBuilder[Boxes]()
    given = resolve_paths(paths, folders=True)
    tars = [path for path in given if path.is_file() and file_format(path) in ("tar", "tgz")]
    for path in [path for path in given if path not in tars] or given:
        with builder.reading(path):
            if path in tars:
                raise_fault(path, "holds images and no boxes. Give the file of boxes beside it.")
            find = make_image_finder([*image_folders(path, images), *tars])
            if path.is_dir():
                read_voc_folder(path, find, builder)
            elif file_format(path) == "json":
                read_coco(path, find, builder)
            else:
                read_box_table(path, label, find, builder)
    return builder.build()


def image_folders(path: Path, images: str | Path | None) -> list[Path]:
    """Folders and tar files in which the images of a file of boxes are searched."""
    if images is not None:
        return resolve_paths(images, folders=True)
    folder = path if path.is_dir() else path.parent
    beside = [folder / name for name in FOLDERS if (folder / name).is_dir()]
    return beside + sorted(folder.glob("*.tar"))


def make_image_finder(sources: Iterable[Path]) -> Images:
    """A function that finds an image in folders and tar files, by its whole name or by its file name."""
    folders, members = [], {}
    for source in sources:
        if source.is_dir():
            folders.append(source)
        else:
            members.update(tar_members(source))

    def find(name: str) -> ImageFile | ImageBytes | None:
        last = PurePosixPath(name.replace("\\", "/")).name
        for folder in folders:
            for path in (folder / name, folder / last):
                if is_file(path):
                    return ImageFile(path)
        return members.get(name) or members.get(last)

    return find


def tar_members(path: Path) -> dict[str, ImageFile | ImageBytes]:
    """The images of a tar file by name: as ranges of the file, or in memory if it is compressed."""
    images: dict[str, ImageFile | ImageBytes] = {}
    packed = path.stat().st_size
    try:
        with tarfile.open(path) as archive:
            plain = is_uncompressed_tar(path)
            for count, member in enumerate(archive, 1):
                size = member.offset_data + member.size
                message = ARCHIVE_MEMBERS.excess(count) or expansion_excess(packed, size, rows=count)
                if message and not plain:
                    raise_fault(path, message)
                if not member.isfile() or file_extension(Path(member.name)) not in ENDINGS:
                    continue
                if plain:
                    image = ImageFile(path, member.offset_data, member.size, member.name)
                else:
                    file = archive.extractfile(member)
                    data = bytearray(file.read() if file else b"")
                    content = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
                    image = ImageBytes(content, f"{path}: {member.name}")
                images[PurePosixPath(member.name).name] = images[member.name.removeprefix("./")] = image
    except (tarfile.TarError, OSError, EOFError, ValueError, OverflowError, zlib.error, lzma.LZMAError) as error:
        raise_fault(path, f"is no tar file that can be read: {error}.")
    return images


def is_uncompressed_tar(path: Path) -> bool:
    try:
        tarfile.open(path, "r:").close()
    except tarfile.ReadError:
        return False
    return True


def make_boxes(
    image: ImageFile | ImageBytes,
    size: tuple[int, int],
    boxes: list[Box],
    name: str,
    split: str,
    builder: ReadingBuilder[Boxes],
) -> Boxes:
    """The image with its valid boxes; an invalid box is a fault."""
    rows, labels = [], []
    for box in boxes:
        with builder.catching():
            rows.append(relative_box(box, size, builder))
            labels.append(box.label)
    return Boxes(image, torch.tensor(rows).view(-1, 4), tuple(labels), size, name, split)


def relative_box(box: Box, size: tuple[int, int], builder: FaultCollector) -> tuple[float, float, float, float]:
    """(centre x, centre y, width, height) relative to the image, clipped to it."""
    height, width = size
    x1, y1, x2, y2 = box.corners
    description = f"the box runs from ({x1:g}, {y1:g}) to ({x2:g}, {y2:g})"
    if not (x2 > x1 and y2 > y1):
        box.raise_fault(f"{description} and has no area; wanted xmin < xmax and ymin < ymax.")
    if x1 >= width or y1 >= height or x2 <= 0 or y2 <= 0:
        box.raise_fault(f"{description}, outside of the image of {width} × {height} pixels.")
    if x1 < 0 or y1 < 0 or x2 > width or y2 > height:
        builder.note("boxes that reach over an image's edge are cut there")
    x1, y1, x2, y2 = max(0, x1), max(0, y1), min(width, x2), min(height, y2)
    return (x1 + x2) / 2 / width, (y1 + y2) / 2 / height, (x2 - x1) / width, (y2 - y1) / height


def read_box_table(path: Path, label: str | int | None, find: Images, builder: ReadingBuilder[Boxes]) -> None:
    """The boxes of a table, grouped by image."""
    sides = [ColumnSpec(name, None, names) for name, names in zip(CORNERS, CORNER_NAMES, strict=True)]
    wanted = [ColumnSpec("image", None, IMAGE_NAMES), ColumnSpec("label", label, LABEL_NAMES), *sides]
    table = read_table(path, wanted)
    builder.faults.extend(table.faults)
    columns = find_columns(table, wanted, builder)
    rows: dict[str, list[Row]] = {}
    for row in table.rows:
        with builder.catching():
            rows.setdefault(table.cell(row, columns["image"], "image"), []).append(row)
    builder.each(rows.items(), lambda item: table_image(table, columns, item[0], item[1], find, builder))


def table_image(
    table: Table, columns: dict[str, str], name: str, rows: list[Row], find: Images, builder: ReadingBuilder[Boxes]
) -> Boxes:
    """An image of a table with its boxes."""
    location = (str(table.path), rows[0].line, table.column(rows[0], columns["image"]))
    image = find_image(find, name, location)
    size, boxes = check_size_of(image, location), []
    for row in rows:
        if any(str(table.value(row, columns[role]) or "").strip() for role in ("label", *CORNERS)):
            with builder.catching():
                x1, y1, x2, y2 = (table.number(row, columns[side], side) for side in CORNERS)
                label = table.cell(row, columns["label"], "label")
                raise_here = partial(table.raise_fault, row, columns["xmin"])
                boxes.append(Box((x1, y1, x2, y2), label, raise_here))
    return make_boxes(image, size, boxes, name, split_in_row(table, rows[0], find_split_column(table)), builder)


def find_image(find: Images, name: str, location: tuple[str, int | None, int | None]) -> ImageFile | ImageBytes:
    """The image of this name; `MalformedData` at the location that names it if it is not found."""
    image = find(name)
    if image is None:
        file, line, column = location
        raise_fault(file, f"the image {name!r} is not there. Say where the images are with images=.", line, column)
    return image


def read_coco(path: Path, find: Images, builder: ReadingBuilder[Boxes]) -> None:
    """The images of a COCO file, including those without objects."""
    data = load_coco(path)
    classes: dict[int | str, str] = {category["id"]: str(category.get("name")) for category in data["categories"]}
    boxes: dict[int | str, list[Box]] = {image["id"]: [] for image in data["images"]}
    crowds = 0
    for n, annotation in enumerate(data["annotations"]):
        with builder.catching():
            check_ids(path, f"annotation {n}", annotation, ("image_id", "category_id"))
            image = annotation["image_id"]
            if image not in boxes:
                raise_fault(path, f"annotation {n} is of the image {image!r}, which is not listed.")
            if annotation.get("iscrowd"):
                crowds += 1
            else:
                boxes[image].append(coco_box(path, n, annotation, classes))
    if crowds:
        builder.note(f"{path.name}: boxes of crowds left out: {crowds:,}")
    builder.each(data["images"], lambda image: coco_image(path, image, boxes[image["id"]], find, builder))


def load_coco(path: Path) -> dict[str, list[ParsedObject]]:
    """The three lists of a COCO file."""
    data = json_document(path, read_text(path))
    for name in ("images", "annotations", "categories"):
        rows = data.get(name) if isinstance(data, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise_fault(path, f"has no list {name!r} of objects; COCO has images, annotations and categories.")
    if not data["images"]:
        raise_fault(path, "lists no images.")
    for name in ("images", "categories"):
        for n, item in enumerate(data[name]):
            check_ids(path, f"number {n} of {name}", item, ("id",))
            if name == "categories" and not str(item.get("name") or "").strip():
                raise_fault(
                    path, f"number {n} of categories has no name. Give it one: that is what its objects are called."
                )
        ids = [item.get("id") for item in data[name]]
        twice, count = Counter(ids).most_common(1)[0] if ids else (None, 0)
        if count > 1:
            raise_fault(path, f"has two {name} with the id {twice!r}. Give each its own.")
    return data


def check_ids(path: Path, description: str, item: ParsedObject, names: tuple[str, ...]) -> None:
    """Raise `MalformedData` if one of these ids is neither a number nor text."""
    for name in names:
        if not isinstance(item.get(name), int | str):
            raise_fault(path, f"{description} has the {name} {item.get(name)!r:.40}; wanted a number.")


def coco_box(path: Path, n: int, annotation: ParsedObject, classes: dict[int | str, str]) -> Box:
    """The box of an annotation, whose `bbox` is [x, y, width, height] in pixels."""
    category = annotation["category_id"]
    if category not in classes:
        raise_fault(path, f"annotation {n} has the category {category!r}, which is not listed.")
    box = annotation.get("bbox")
    given = box if isinstance(box, list) else []
    sides = [side for side in given if isinstance(side, int | float) and -1e18 < side < 1e18]
    if len(given) != 4 or len(sides) != 4:
        raise_fault(path, f"annotation {n} has the bbox {box!r:.60}; wanted [x, y, width, height].")
    x, y, width, height = sides
    where = f"annotation {n} (image {annotation['image_id']!r}): "
    return Box((x, y, x + width, y + height), classes[category], lambda text: raise_fault(path, where + text))


def coco_image(path: Path, item: ParsedObject, boxes: list[Box], find: Images, builder: ReadingBuilder[Boxes]) -> Boxes:
    """An image of a COCO file with its boxes."""
    name, location = str(item.get("file_name", "")), (str(path), None, None)
    image = find_image(find, name, location)
    size = check_size_of(image, location)
    check_size(path, name, (item.get("height"), item.get("width")), size)
    return make_boxes(image, size, boxes, name, "", builder)


def check_size(path: Path, name: str, expected: tuple[object, object], size: tuple[int, int]) -> None:
    """Raise `MalformedData` if the file of boxes expects another (height, width) than the image has."""
    if None not in expected and expected != size:
        message = f"{name!r} has {size[1]} × {size[0]} pixels, but its boxes are for {expected[1]} × {expected[0]}."
        raise_fault(path, f"{message} Is it another image, or was it turned or resized?")


def read_voc_folder(root: Path, find: Images, builder: ReadingBuilder[Boxes]) -> None:
    """The images of a folder of VOC's XML files; the lists in `ImageSets/Main` assign them to splits."""
    folder = root / "Annotations" if (root / "Annotations").is_dir() else root
    files = sorted(folder.glob("*.xml"))
    if not files:
        raise_fault(root, "has no XML files of boxes, neither in it nor in Annotations.")
    lists = {"train": "train.txt", "dev": "val.txt", "test": "test.txt"}
    paths = {split: root / "ImageSets" / "Main" / name for split, name in lists.items()}
    splits = {name: split for split, path in paths.items() if path.is_file() for name in read_text(path).split()}
    builder.each(files, lambda file: voc_image(file, find, splits.get(file.stem, ""), builder))


def voc_image(file: Path, find: Images, split: str, builder: ReadingBuilder[Boxes]) -> Boxes:
    """An image of an XML file, found by the `filename` there or by the name of the XML file, with its boxes."""
    root = parse_xml(file)
    name = (root.findtext("filename") or "").strip()
    candidates = [name] * bool(name) + [f"{file.stem}.{extension}" for extension in ENDINGS]
    image = next((match for candidate in candidates if (match := find(candidate))), None)
    if image is None:
        raise_fault(file, f"the image {name!r} is not there. Say where the images are with images=.")
    size = check_size_of(image, (str(file), None, None))
    check_size(file, name, (read_side(root, "height"), read_side(root, "width")), size)
    boxes = []
    for n, element in enumerate(root.findall("object"), 1):
        with builder.catching():
            boxes.append(voc_box(file, n, element))
    return make_boxes(image, size, boxes, name or file.stem, split, builder)


def read_side(root: ElementTree.Element, side: str) -> int | None:
    """The height or width of the image in the XML; None if it is missing or 0, which some tools write for unknown."""
    text = root.findtext(f"size/{side}", "").strip()
    return int(text) or None if text.isdecimal() and len(text) < 10 else None


def parse_xml(file: Path) -> ElementTree.Element:
    """The XML of a file. A document type is refused: its entities could fill the memory or read other files."""
    text = read_text(file)
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise_fault(file, "declares a document type, which is not read. Take the <!DOCTYPE …> out.")
    try:
        return ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        line, column = error.position
        raise_fault(file, f"is no XML: {error.msg.split(':')[0]}.", line, column + 1)


def voc_box(file: Path, n: int, element: ElementTree.Element) -> Box:
    """The box of an XML object."""
    label = (element.findtext("name") or "").strip()
    if not label:
        raise_fault(file, f"object {n} has no name.")
    values = []
    for side in CORNERS:
        text = element.findtext(f"bndbox/{side}")
        try:
            values.append(float(text or ""))
        except ValueError:
            raise_fault(file, f"object {n} ({label}) has {side} {text!r}; wanted a number of pixels.")
    return Box(tuple(values), label, lambda message: raise_fault(file, f"object {n} ({label}): {message}"))
