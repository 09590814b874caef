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

from .files import Paths, kind_of, paths_of, read_text
from .images import ENDINGS, IMAGE_NAMES, ImageBytes, ImageFile, checked
from .listing import ending
from .reading import Gathering, Reading, refuse
from .tables import Row, Table, Wanted, find_columns, part_column, part_in, read_table
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
    """A box in pixels, and what raises `Refused` at the place where it is written."""

    corners: tuple[float, float, float, float]
    label: str
    refuse: Callable[[str], Any]


Images = Callable[[str], ImageFile | ImageBytes | None]
"""What finds an image by the name that a file of boxes has for it."""


def read_boxes(paths: Paths, *, images: str | Path | None = None, label: str | int | None = None) -> Reading[Boxes]:
    """Images with boxes.

    COCO: a JSON file of images, annotations and categories; boxes of crowds are left out. VOC: a folder of XML files,
    or one that has `Annotations`. A table: image, label, xmin, ymin, xmax, ymax, perhaps split; a line with the image
    alone is an image without objects. Images are in the folder or the tar file `images`, or in tar files among
    `paths`; beside the file of boxes unless given. Boxes are cut at the image's edges; one without area is a fault.
    """
    gather = Gathering[Boxes]()
    given = paths_of(paths, folders=True)
    tars = [path for path in given if path.is_file() and kind_of(path) in ("tar", "tgz")]
    for path in [path for path in given if path not in tars] or given:
        with gather.reading(path):
            if path in tars:
                refuse(path, "holds images and no boxes. Give the file of boxes beside it.")
            find = images_in([*image_places(path, images), *tars])
            if path.is_dir():
                voc_folder(path, find, gather)
            elif kind_of(path) == "json":
                coco(path, find, gather)
            else:
                box_table(path, label, find, gather)
    return gather.done()


def image_places(path: Path, images: str | Path | None) -> list[Path]:
    """Where the images of a file of boxes may be."""
    if images is not None:
        return paths_of(images, folders=True)
    folder = path if path.is_dir() else path.parent
    beside = [folder / name for name in FOLDERS if (folder / name).is_dir()]
    return beside + sorted(folder.glob("*.tar"))


def images_in(places: Iterable[Path]) -> Images:
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
            plain = tarfile_is_plain(path)
            for member in archive:
                if not member.isfile() or ending(Path(member.name)) not in ENDINGS:
                    continue
                if plain:
                    image = ImageFile(path, member.offset_data, member.size, member.name)
                else:
                    image = ImageBytes(bytes_of(archive, member), f"{path}: {member.name}")
                found[PurePosixPath(member.name).name] = found[member.name.removeprefix("./")] = image
    except (tarfile.TarError, OSError, EOFError) as error:
        refuse(path, f"is no tar file that can be read: {error}.")
    return found


def tarfile_is_plain(path: Path) -> bool:
    try:
        tarfile.open(path, "r:").close()
    except tarfile.ReadError:
        return False
    return True


def bytes_of(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Tensor:
    file = archive.extractfile(member)
    data = bytearray(file.read() if file else b"")
    return torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def boxed(
    image: ImageFile | ImageBytes,
    size: tuple[int, int],
    boxes: list[Box],
    name: str,
    part: str,
    gather: Gathering[Boxes],
) -> Boxes:
    """The image with its good boxes; each bad one is a fault."""
    kept, labels = [], []
    for box in boxes:
        with gather.catching():
            kept.append(in_shares(box, size, gather))
            labels.append(box.label)
    return Boxes(image, torch.tensor(kept).view(-1, 4), tuple(labels), size, name, part)


def in_shares(box: Box, size: tuple[int, int], gather: Gathering[Any]) -> tuple[float, float, float, float]:
    """(centre x, centre y, width, height) as shares of the image, cut at its edges."""
    height, width = size
    x1, y1, x2, y2 = box.corners
    found = f"the box runs from ({x1:g}, {y1:g}) to ({x2:g}, {y2:g})"
    if not (x2 > x1 and y2 > y1):
        box.refuse(f"{found} and has no area; wanted xmin < xmax and ymin < ymax.")
    if x1 >= width or y1 >= height or x2 <= 0 or y2 <= 0:
        box.refuse(f"{found}, outside of the image of {width} × {height} pixels.")
    if x1 < 0 or y1 < 0 or x2 > width or y2 > height:
        gather.note("boxes that reach over an image's edge are cut there")
    x1, y1, x2, y2 = max(0, x1), max(0, y1), min(width, x2), min(height, y2)
    return (x1 + x2) / 2 / width, (y1 + y2) / 2 / height, (x2 - x1) / width, (y2 - y1) / height


def box_table(path: Path, label: str | int | None, find: Images, gather: Gathering[Boxes]) -> None:
    """The boxes of a table, gathered by image."""
    sides = [Wanted(name, None, names) for name, names in zip(CORNERS, CORNER_NAMES, strict=True)]
    wanted = [Wanted("image", None, IMAGE_NAMES), Wanted("label", label, LABEL_NAMES), *sides]
    table = read_table(path, wanted)
    gather.faults.extend(table.faults)
    columns = find_columns(table, wanted, gather)
    rows: dict[str, list[Row]] = {}
    for row in table.rows:
        with gather.catching():
            rows.setdefault(table.cell(row, columns["image"], "image"), []).append(row)
    gather.each(rows.items(), lambda item: table_image(table, columns, item[0], item[1], find, gather))


def table_image(
    table: Table, columns: dict[str, str], name: str, rows: list[Row], find: Images, gather: Gathering[Boxes]
) -> Boxes:
    """One image of a table."""
    place = (str(table.path), rows[0].line, table.column(rows[0], columns["image"]))
    image = found_image(find, name, place)
    size, boxes = checked(image, place), []
    for row in rows:
        if any(str(table.value(row, columns[role]) or "").strip() for role in ("label", *CORNERS)):
            with gather.catching():
                boxes.append(table_box(table, columns, row))
    return boxed(image, size, boxes, name, part_in(table, rows[0], part_column(table)), gather)


def found_image(find: Images, name: str, place: tuple[str, int | None, int | None]) -> ImageFile | ImageBytes:
    image = find(name)
    if image is None:
        refuse(place[0], f"the image {name!r} is not there. Say where the images are with images=.", place[1], place[2])
    return image


def table_box(table: Table, columns: dict[str, str], row: Row) -> Box:
    x1, y1, x2, y2 = (table.number(row, columns[side], side) for side in CORNERS)
    label = table.cell(row, columns["label"], "label")
    return Box((x1, y1, x2, y2), label, lambda message: table.refuse(row, columns["xmin"], message))


def coco(path: Path, find: Images, gather: Gathering[Boxes]) -> None:
    """The images of a COCO file, those without objects too."""
    data = coco_data(path)
    classes = {one.get("id"): str(one.get("name")) for one in data["categories"]}
    boxes: dict[Any, list[Box]] = {one.get("id"): [] for one in data["images"]}
    crowds = 0
    for n, one in enumerate(data["annotations"]):
        with gather.catching():
            need_plain(path, f"annotation {n}", one, ("image_id", "category_id"))
            if one.get("image_id") not in boxes:
                refuse(path, f"annotation {n} is of the image {one.get('image_id')!r}, which is not listed.")
            if one.get("iscrowd"):
                crowds += 1
            else:
                boxes[one["image_id"]].append(coco_box(path, n, one, classes))
    if crowds:
        gather.note(f"{path.name}: boxes of crowds left out: {crowds:,}")
    gather.each(data["images"], lambda one: coco_image(path, one, boxes[one.get("id")], find, gather))


def coco_data(path: Path) -> dict[str, list[dict[str, Any]]]:
    """The three lists of a COCO file."""
    try:
        data = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        refuse(path, f"is no JSON: {error.msg}.", error.lineno, error.colno)
    for name in ("images", "annotations", "categories"):
        rows = data.get(name) if isinstance(data, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            refuse(path, f"has no list {name!r} of objects; COCO has images, annotations and categories.")
    if not data["images"]:
        refuse(path, "lists no images.")
    for name in ("images", "categories"):
        for n, one in enumerate(data[name]):
            need_plain(path, f"number {n} of {name}", one, ("id",))
            if name == "categories" and not str(one.get("name") or "").strip():
                refuse(path, f"number {n} of categories has no name. Give it one: that is what its objects are called.")
        ids = [one.get("id") for one in data[name]]
        if len(set(ids)) < len(ids):
            twice = next(one for n, one in enumerate(ids) if one in ids[:n])
            refuse(path, f"has two {name} with the id {twice!r}. Give each its own.")
    return data


def need_plain(path: Path, what: str, one: dict[str, Any], names: tuple[str, ...]) -> None:
    """Raise `Refused` for an id that is no number or text."""
    for name in names:
        if not isinstance(one.get(name), int | str):
            refuse(path, f"{what} has the {name} {one.get(name)!r:.40}; wanted a number.")


def coco_box(path: Path, n: int, one: dict[str, Any], classes: dict[Any, str]) -> Box:
    """A box (x, y, width, height in pixels) and its class."""
    if one.get("category_id") not in classes:
        refuse(path, f"annotation {n} has the category {one.get('category_id')!r}, which is not listed.")
    box = one.get("bbox")
    given = box if isinstance(box, list) else []
    sides = [side for side in given if isinstance(side, int | float) and math.isfinite(side)]
    if len(given) != 4 or len(sides) != 4:
        refuse(path, f"annotation {n} has the bbox {box!r:.60}; wanted [x, y, width, height].")
    x, y, width, height = sides
    where = f"annotation {n} (image {one['image_id']!r}): "
    return Box((x, y, x + width, y + height), classes[one["category_id"]], lambda text: refuse(path, where + text))


def coco_image(path: Path, one: dict[str, Any], boxes: list[Box], find: Images, gather: Gathering[Boxes]) -> Boxes:
    name, place = str(one.get("file_name", "")), (str(path), None, None)
    image = found_image(find, name, place)
    size = checked(image, place)
    need_size(path, name, (one.get("height"), one.get("width")), size)
    return boxed(image, size, boxes, name, "", gather)


def need_size(path: Path, name: str, said: tuple[Any, Any], size: tuple[int, int]) -> None:
    """Raise `Refused` if the boxes are for an image of another size."""
    if None not in said and said != size:
        message = f"{name!r} has {size[1]} × {size[0]} pixels, but its boxes are for {said[1]} × {said[0]}."
        refuse(path, f"{message} Is it another image, or was it turned or resized?")


def voc_folder(root: Path, find: Images, gather: Gathering[Boxes]) -> None:
    """The images of a folder of VOC's XML files."""
    folder = root / "Annotations" if (root / "Annotations").is_dir() else root
    files = sorted(folder.glob("*.xml"))
    if not files:
        refuse(root, "has no XML files of boxes, neither in it nor in Annotations.")
    parts = voc_parts(root)
    gather.each(files, lambda file: voc_image(file, find, parts.get(file.stem, ""), gather))


def voc_parts(root: Path) -> dict[str, str]:
    """The part of each image by `ImageSets/Main/train.txt`, val.txt and test.txt, where there are such lists."""
    lists = root / "ImageSets" / "Main"
    files = {"train": lists / "train.txt", "dev": lists / "val.txt", "test": lists / "test.txt"}
    return {name: part for part, file in files.items() if file.is_file() for name in read_text(file).split()}


def voc_image(file: Path, find: Images, part: str, gather: Gathering[Boxes]) -> Boxes:
    root = parsed(file)
    name = (root.findtext("filename") or "").strip()
    image = next((found for one in voc_names(file, name) if (found := find(one))), None)
    if image is None:
        refuse(file, f"the image {name!r} is not there. Say where the images are with images=.")
    size = checked(image, (str(file), None, None))
    need_size(file, name, (side_in(root, "height"), side_in(root, "width")), size)
    boxes = []
    for n, one in enumerate(root.findall("object"), 1):
        with gather.catching():
            boxes.append(voc_box(file, n, one))
    return boxed(image, size, boxes, name or file.stem, part, gather)


def side_in(root: ElementTree.Element, side: str) -> int | None:
    """The image's height or width as the file says it; some tools write 0 for what they do not know."""
    text = root.findtext(f"size/{side}", "").strip()
    return int(text) or None if text.isdecimal() else None


def voc_names(file: Path, name: str) -> list[str]:
    """The names an XML file's image may have: the one it says, or its own with an image's ending."""
    return [one for one in (name, *(f"{file.stem}.{end}" for end in ENDINGS)) if one]


def parsed(file: Path) -> ElementTree.Element:
    """The XML of a file that declares nothing of its own: entities could fill the memory or read other files."""
    text = read_text(file)
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        refuse(file, "declares a document type, which is not read. Take the <!DOCTYPE …> out.")
    try:
        return ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        line, column = error.position
        refuse(file, f"is no XML: {error.msg.split(':')[0]}.", line, column + 1)


def voc_box(file: Path, n: int, one: ElementTree.Element) -> Box:
    label = (one.findtext("name") or "").strip()
    if not label:
        refuse(file, f"object {n} has no name.")
    values = []
    for side in CORNERS:
        text = one.findtext(f"bndbox/{side}")
        try:
            values.append(float(text or ""))
        except ValueError:
            refuse(file, f"object {n} ({label}) has {side} {text!r}; wanted a number of pixels.")
    return Box(tuple(values), label, lambda message: refuse(file, f"object {n} ({label}): {message}"))
