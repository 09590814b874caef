"""Images with boxes around what is on them: COCO's JSON, VOC's XML, or a table of boxes."""

from __future__ import annotations

import json
import math
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from xml.etree import ElementTree

import torch
from torch import Tensor

from .files import Paths, file_format, read_text, resolve_paths
from .images import ENDINGS, IMAGE_NAMES, ImageBytes, ImageFile, check_size_of
from .listing import file_extension
from .reading import Reading, ReadingBuilder, raise_fault
from .tables import ColumnSpec, Row, Table, find_columns, find_split_column, read_table, split_in_row
from .text import LABEL_NAMES

CORNERS = ("xmin", "ymin", "xmax", "ymax")
CORNER_NAMES = (("xmin", "x1", "left"), ("ymin", "y1", "top"), ("xmax", "x2", "right"), ("ymax", "y2", "bottom"))
FOLDERS = ("", "images", "JPEGImages")
"""Where images are looked for beside a file of boxes."""


@dataclass(frozen=True, eq=False)
class Boxes:
    """An image and the objects on it.

    `boxes` float32 `[objects, 4]`: centre x, centre y, width, height, as shares of the image; `labels` a class for
    each; `size` the image's (height, width) in pixels.
    """

    image: ImageFile | ImageBytes
    boxes: Tensor
    labels: tuple[str, ...]
    size: tuple[int, int]
    name: str
    part: str = ""


class Box(NamedTuple):
    """A box in pixels, and what raises `MalformedData` at the place where it is written."""

    corners: tuple[float, float, float, float]
    label: str
    raise_fault: Callable[[str], Any]


Images = Callable[[str], ImageFile | ImageBytes | None]
"""What finds an image by the name that a file of boxes has for it."""


def read_boxes(paths: Paths, *, images: str | Path | None = None, label: str | int | None = None) -> Reading[Boxes]:
    """Images with boxes.

    COCO: a JSON file of images, annotations and categories; boxes of crowds are left out. VOC: a folder of XML files,
    or one that has `Annotations`. A table: image, label, xmin, ymin, xmax, ymax, perhaps split; a line with the image
    alone is an image without objects. Images are in the folder or the tar file `images`, or in tar files among
    `paths`; beside the file of boxes unless given. Boxes are cut at the image's edges; one without area is a fault.
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
    """Where the images of a file of boxes may be."""
    if images is not None:
        return resolve_paths(images, folders=True)
    folder = path if path.is_dir() else path.parent
    beside = [folder / name for name in FOLDERS if (folder / name).is_dir()]
    return beside + sorted(folder.glob("*.tar"))


def make_image_finder(places: Iterable[Path]) -> Images:
    """What finds an image in folders and tar files, by its whole name or by its last part."""
    folders, members = [], {}
    for place in places:
        if place.is_dir():
            folders.append(place)
        else:
            members.update(tar_members(place))

    def find(name: str) -> ImageFile | ImageBytes | None:
        last = PurePosixPath(name.replace("\\", "/")).name
        for folder in folders:
            for path in (folder / name, folder / last):
                if path.is_file():
                    return ImageFile(path)
        return members.get(name) or members.get(last)

    return find


def tar_members(path: Path) -> dict[str, ImageFile | ImageBytes]:
    """The images of a tar file by name, where they lie in it; those of a compressed one are held in memory."""
    found: dict[str, ImageFile | ImageBytes] = {}
    try:
        with tarfile.open(path) as archive:
            plain = is_uncompressed_tar(path)
            for member in archive:
                if not member.isfile() or file_extension(Path(member.name)) not in ENDINGS:
                    continue
                if plain:
                    image = ImageFile(path, member.offset_data, member.size, member.name)
                else:
                    image = ImageBytes(read_member(archive, member), f"{path}: {member.name}")
                found[PurePosixPath(member.name).name] = found[member.name.removeprefix("./")] = image
    except (tarfile.TarError, OSError, EOFError) as error:
        raise_fault(path, f"is no tar file that can be read: {error}.")
    return found


def is_uncompressed_tar(path: Path) -> bool:
    try:
        tarfile.open(path, "r:").close()
    except tarfile.ReadError:
        return False
    return True


def read_member(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Tensor:
    file = archive.extractfile(member)
    data = bytearray(file.read() if file else b"")
    return torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def make_boxes(
    image: ImageFile | ImageBytes,
    size: tuple[int, int],
    boxes: list[Box],
    name: str,
    part: str,
    builder: ReadingBuilder[Boxes],
) -> Boxes:
    """The image with its good boxes; each bad one is a fault."""
    kept, labels = [], []
    for box in boxes:
        with builder.catching():
            kept.append(relative_box(box, size, builder))
            labels.append(box.label)
    return Boxes(image, torch.tensor(kept).view(-1, 4), tuple(labels), size, name, part)


def relative_box(box: Box, size: tuple[int, int], builder: ReadingBuilder[Any]) -> tuple[float, float, float, float]:
    """(centre x, centre y, width, height) as shares of the image, cut at its edges."""
    height, width = size
    x1, y1, x2, y2 = box.corners
    found = f"the box runs from ({x1:g}, {y1:g}) to ({x2:g}, {y2:g})"
    if not (x2 > x1 and y2 > y1):
        box.raise_fault(f"{found} and has no area; wanted xmin < xmax and ymin < ymax.")
    if x1 >= width or y1 >= height or x2 <= 0 or y2 <= 0:
        box.raise_fault(f"{found}, outside of the image of {width} × {height} pixels.")
    if x1 < 0 or y1 < 0 or x2 > width or y2 > height:
        builder.note("boxes that reach over an image's edge are cut there")
    x1, y1, x2, y2 = max(0, x1), max(0, y1), min(width, x2), min(height, y2)
    return (x1 + x2) / 2 / width, (y1 + y2) / 2 / height, (x2 - x1) / width, (y2 - y1) / height


def read_box_table(path: Path, label: str | int | None, find: Images, builder: ReadingBuilder[Boxes]) -> None:
    """The boxes of a table, gathered by image."""
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
    """One image of a table."""
    place = (str(table.path), rows[0].line, table.column(rows[0], columns["image"]))
    image = find_image(find, name, place)
    size, boxes = check_size_of(image, place), []
    for row in rows:
        if any(str(table.value(row, columns[role]) or "").strip() for role in ("label", *CORNERS)):
            with builder.catching():
                boxes.append(table_box(table, columns, row))
    return make_boxes(image, size, boxes, name, split_in_row(table, rows[0], find_split_column(table)), builder)


def find_image(find: Images, name: str, place: tuple[str, int | None, int | None]) -> ImageFile | ImageBytes:
    image = find(name)
    if image is None:
        raise_fault(
            place[0], f"the image {name!r} is not there. Say where the images are with images=.", place[1], place[2]
        )
    return image


def table_box(table: Table, columns: dict[str, str], row: Row) -> Box:
    x1, y1, x2, y2 = (table.number(row, columns[side], side) for side in CORNERS)
    label = table.cell(row, columns["label"], "label")
    return Box((x1, y1, x2, y2), label, lambda message: table.raise_fault(row, columns["xmin"], message))


def read_coco(path: Path, find: Images, builder: ReadingBuilder[Boxes]) -> None:
    """The images of a COCO file, those without objects too."""
    data = load_coco(path)
    classes = {one.get("id"): str(one.get("name")) for one in data["categories"]}
    boxes: dict[Any, list[Box]] = {one.get("id"): [] for one in data["images"]}
    crowds = 0
    for n, one in enumerate(data["annotations"]):
        with builder.catching():
            check_fields(path, f"annotation {n}", one, ("image_id", "category_id"))
            if one.get("image_id") not in boxes:
                raise_fault(path, f"annotation {n} is of the image {one.get('image_id')!r}, which is not listed.")
            if one.get("iscrowd"):
                crowds += 1
            else:
                boxes[one["image_id"]].append(coco_box(path, n, one, classes))
    if crowds:
        builder.note(f"{path.name}: boxes of crowds left out: {crowds:,}")
    builder.each(data["images"], lambda one: coco_image(path, one, boxes[one.get("id")], find, builder))


def load_coco(path: Path) -> dict[str, list[dict[str, Any]]]:
    """The three lists of a COCO file."""
    try:
        data = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise_fault(path, f"is no JSON: {error.msg}.", error.lineno, error.colno)
    for name in ("images", "annotations", "categories"):
        rows = data.get(name) if isinstance(data, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise_fault(path, f"has no list {name!r} of objects; COCO has images, annotations and categories.")
    if not data["images"]:
        raise_fault(path, "lists no images.")
    for name in ("images", "categories"):
        for n, one in enumerate(data[name]):
            check_fields(path, f"number {n} of {name}", one, ("id",))
            if name == "categories" and not str(one.get("name") or "").strip():
                raise_fault(
                    path, f"number {n} of categories has no name. Give it one: that is what its objects are called."
                )
        ids = [one.get("id") for one in data[name]]
        if len(set(ids)) < len(ids):
            twice = next(one for n, one in enumerate(ids) if one in ids[:n])
            raise_fault(path, f"has two {name} with the id {twice!r}. Give each its own.")
    return data


def check_fields(path: Path, what: str, one: dict[str, Any], names: tuple[str, ...]) -> None:
    """Raise `MalformedData` for an id that is no number or text."""
    for name in names:
        if not isinstance(one.get(name), int | str):
            raise_fault(path, f"{what} has the {name} {one.get(name)!r:.40}; wanted a number.")


def coco_box(path: Path, n: int, one: dict[str, Any], classes: dict[Any, str]) -> Box:
    """A box (x, y, width, height in pixels) and its class."""
    if one.get("category_id") not in classes:
        raise_fault(path, f"annotation {n} has the category {one.get('category_id')!r}, which is not listed.")
    box = one.get("bbox")
    given = box if isinstance(box, list) else []
    sides = [side for side in given if isinstance(side, int | float) and math.isfinite(side)]
    if len(given) != 4 or len(sides) != 4:
        raise_fault(path, f"annotation {n} has the bbox {box!r:.60}; wanted [x, y, width, height].")
    x, y, width, height = sides
    where = f"annotation {n} (image {one['image_id']!r}): "
    return Box((x, y, x + width, y + height), classes[one["category_id"]], lambda text: raise_fault(path, where + text))


def coco_image(
    path: Path, one: dict[str, Any], boxes: list[Box], find: Images, builder: ReadingBuilder[Boxes]
) -> Boxes:
    name, place = str(one.get("file_name", "")), (str(path), None, None)
    image = find_image(find, name, place)
    size = check_size_of(image, place)
    check_size(path, name, (one.get("height"), one.get("width")), size)
    return make_boxes(image, size, boxes, name, "", builder)


def check_size(path: Path, name: str, said: tuple[Any, Any], size: tuple[int, int]) -> None:
    """Raise `MalformedData` if the boxes are for an image of another size."""
    if None not in said and said != size:
        message = f"{name!r} has {size[1]} × {size[0]} pixels, but its boxes are for {said[1]} × {said[0]}."
        raise_fault(path, f"{message} Is it another image, or was it turned or resized?")


def read_voc_folder(root: Path, find: Images, builder: ReadingBuilder[Boxes]) -> None:
    """The images of a folder of VOC's XML files."""
    folder = root / "Annotations" if (root / "Annotations").is_dir() else root
    files = sorted(folder.glob("*.xml"))
    if not files:
        raise_fault(root, "has no XML files of boxes, neither in it nor in Annotations.")
    parts = voc_splits(root)
    builder.each(files, lambda file: voc_image(file, find, parts.get(file.stem, ""), builder))


def voc_splits(root: Path) -> dict[str, str]:
    """The part of each image by `ImageSets/Main/train.txt`, val.txt and test.txt, where there are such lists."""
    lists = root / "ImageSets" / "Main"
    files = {"train": lists / "train.txt", "dev": lists / "val.txt", "test": lists / "test.txt"}
    return {name: part for part, file in files.items() if file.is_file() for name in read_text(file).split()}


def voc_image(file: Path, find: Images, part: str, builder: ReadingBuilder[Boxes]) -> Boxes:
    root = parse_xml(file)
    name = (root.findtext("filename") or "").strip()
    image = next((found for one in voc_names(file, name) if (found := find(one))), None)
    if image is None:
        raise_fault(file, f"the image {name!r} is not there. Say where the images are with images=.")
    size = check_size_of(image, (str(file), None, None))
    check_size(file, name, (read_side(root, "height"), read_side(root, "width")), size)
    boxes = []
    for n, one in enumerate(root.findall("object"), 1):
        with builder.catching():
            boxes.append(voc_box(file, n, one))
    return make_boxes(image, size, boxes, name or file.stem, part, builder)


def read_side(root: ElementTree.Element, side: str) -> int | None:
    """The image's height or width as the file says it; some tools write 0 for what they do not know."""
    text = root.findtext(f"size/{side}", "").strip()
    return int(text) or None if text.isdecimal() else None


def voc_names(file: Path, name: str) -> list[str]:
    """The names an XML file's image may have: the one it says, or its own with an image's ending."""
    return [one for one in (name, *(f"{file.stem}.{end}" for end in ENDINGS)) if one]


def parse_xml(file: Path) -> ElementTree.Element:
    """The XML of a file that declares nothing of its own: entities could fill the memory or read other files."""
    text = read_text(file)
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise_fault(file, "declares a document type, which is not read. Take the <!DOCTYPE …> out.")
    try:
        return ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        line, column = error.position
        raise_fault(file, f"is no XML: {error.msg.split(':')[0]}.", line, column + 1)


def voc_box(file: Path, n: int, one: ElementTree.Element) -> Box:
    label = (one.findtext("name") or "").strip()
    if not label:
        raise_fault(file, f"object {n} has no name.")
    values = []
    for side in CORNERS:
        text = one.findtext(f"bndbox/{side}")
        try:
            values.append(float(text or ""))
        except ValueError:
            raise_fault(file, f"object {n} ({label}) has {side} {text!r}; wanted a number of pixels.")
    return Box(tuple(values), label, lambda message: raise_fault(file, f"object {n} ({label}): {message}"))
