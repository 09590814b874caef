"""Boxes from COCO, VOC and tables, with images in folders and archives; all of them give the same shares."""

import io
import json
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image

from regard.data.detection import read_boxes
from regard.data.images import ImageBytes, ImageFile, load_image

HEIGHT, WIDTH = 30, 40
CORNERS = {"a.png": [("cat", 4, 6, 20, 21), ("狗", 0, 0, 40, 30)], "b.png": [("cat", 10, 3, 11, 29)]}


def png(seed=0):
    file = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def table(rows, header="image,label,xmin,ymin,xmax,ymax"):
    return header + "\n" + "\n".join(",".join(map(str, row)) for row in rows) + "\n"


def rows():
    return [(name, *box) for name, boxes in CORNERS.items() for box in boxes]


def coco(**changes):
    names = list(CORNERS)
    boxes = [(names.index(name), "cat狗".find(label) > 0, x1, y1, x2, y2) for name, label, x1, y1, x2, y2 in rows()]
    data = {
        "images": [{"id": n, "file_name": name, "height": HEIGHT, "width": WIDTH} for n, name in enumerate(names)],
        "categories": [{"id": 1, "name": "cat"}, {"id": 7, "name": "狗"}],
        "annotations": [
            {"image_id": n, "category_id": 7 if dog else 1, "bbox": [x1, y1, x2 - x1, y2 - y1], "iscrowd": 0}
            for n, dog, x1, y1, x2, y2 in boxes
        ],
    }
    return data | changes


def voc(name, boxes, size=(HEIGHT, WIDTH)):
    objects = "".join(
        f"<object><name>{label}</name><bndbox><xmin>{x1}</xmin><ymin>{y1}</ymin><xmax>{x2}</xmax><ymax>{y2}</ymax>"
        "</bndbox></object>"
        for label, x1, y1, x2, y2 in boxes
    )
    sides = f"<size><width>{size[1]}</width><height>{size[0]}</height><depth>3</depth></size>"
    return f"<?xml version='1.0' encoding='utf-8'?><annotation><filename>{name}</filename>{sides}{objects}</annotation>"


@pytest.fixture
def images(write):
    return [write(f"images/{name}", png(n)) for n, name in enumerate(CORNERS)]


def check(reading):
    """The boxes are those of CORNERS as transformers turns them into centres, in shares of the image."""
    transforms = pytest.importorskip("transformers.image_transforms")
    assert [one.name for one in reading.strict().examples] == list(CORNERS)
    for n, one in enumerate(reading.examples):
        boxes = CORNERS[one.name]
        wanted = transforms.corners_to_center_format(torch.tensor([box[1:] for box in boxes], dtype=torch.float32))
        wanted = wanted / torch.tensor([WIDTH, HEIGHT, WIDTH, HEIGHT])
        assert torch.allclose(one.boxes, wanted, atol=1e-6)
        assert one.labels == tuple(box[0] for box in boxes) and one.size == (HEIGHT, WIDTH)
        pixels = np.asarray(Image.open(io.BytesIO(png(n))))
        assert torch.equal(load_image(one.image), torch.from_numpy(pixels.copy()).permute(2, 0, 1))


def test_a_table_with_a_folder(write, images):
    path = write("boxes.csv", table(rows()))
    check(read_boxes(path))
    check(read_boxes(path, images=images[0].parent))


def test_coco(write, images):
    check(read_boxes(write("set.json", json.dumps(coco()))))


def test_voc(write, images, tmp_path):
    for name, boxes in CORNERS.items():
        write(f"set/Annotations/{name[0]}.xml", voc(name, boxes))
    check(read_boxes(tmp_path / "set", images=tmp_path / "images"))
    (tmp_path / "images").rename(tmp_path / "set" / "JPEGImages")
    write("set/ImageSets/Main/train.txt", "a\n")
    write("set/ImageSets/Main/val.txt", "b\n")
    reading = read_boxes(tmp_path / "set")
    check(reading)
    assert [one.split for one in reading.examples] == ["train", "dev"]


@pytest.mark.parametrize("mode, kind", [("w", ImageFile), ("w:gz", ImageBytes)])
def test_images_in_an_archive(write, images, tmp_path, mode, kind):
    archive = tmp_path / "elsewhere.tar"
    with tarfile.open(archive, mode) as file:
        for path in images:
            file.add(path, f"./deep/{path.name}")
        link = tarfile.TarInfo("c.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        file.addfile(link)
    path = write("tables/boxes.csv", table(rows()))
    reading = read_boxes(path, images=archive)
    check(reading)
    assert all(isinstance(one.image, kind) for one in reading.examples)
    link = read_boxes(write("tables/link.csv", table([("c.png", "x", 1, 1, 2, 2)])), images=archive)
    assert "'c.png' is not there" in link.faults[0].message


def test_an_archive_beside_the_table_is_found(write, images, tmp_path):
    path = write("tables/boxes.csv", table(rows()))
    with tarfile.open(tmp_path / "tables" / "images.tar", "w") as file:
        for image in images:
            file.add(image, image.name)
    check(read_boxes(path))


def test_a_tar_file_among_the_paths_holds_images(write, images, only_fault, tmp_path):
    boxes, archive = write("tables/boxes.csv", table(rows())), tmp_path / "elsewhere.tar"
    with tarfile.open(archive, "w") as file:
        for image in images:
            file.add(image, image.name)
    check(read_boxes([boxes, archive]))
    check(read_boxes([archive, boxes]))
    assert "holds images and no boxes" in only_fault(read_boxes(archive), archive)[2]


def test_a_broken_archive(write, only_fault):
    tar = write("a.tar", b"no archive")
    assert "is no tar file" in only_fault(read_boxes(write("t.csv", table(rows())), images=tar), tar)[2]


def test_parts_and_images_without_objects(write, images):
    header = "image,split,label,xmin,ymin,xmax,ymax"
    path = write(
        "boxes.csv", table([("a.png", "train", "cat", 1, 2, 3, 4), ("b.png", "val", "", "", "", "", "")], header)
    )
    reading = read_boxes(path).strict()
    assert [(one.split, one.labels, one.boxes.shape) for one in reading.examples] == [
        ("train", ("cat",), (1, 4)),
        ("dev", (), (0, 4)),
    ]


@pytest.mark.parametrize(
    "row, column, message",
    [
        (("a.png", "cat", 5, 5, 5, 9), 11, "the box runs from (5, 5) to (5, 9) and has no area"),
        (("a.png", "cat", 9, 5, 5, 9), 11, "has no area; wanted xmin < xmax"),
        (("a.png", "cat", 40, 5, 50, 9), 11, "outside of the image of 40 × 30 pixels."),
        (("a.png", "cat", 1, "x", 5, 9), 13, "the ymin (column 'ymin') is 'x'; wanted a number."),
        (("a.png", "cat", 1, "", 5, 9), 13, "the ymin (column 'ymin') is empty."),
        (("a.png", "", 1, 2, 5, 9), 7, "the label (column 'label') is empty."),
        (("none.png", "cat", 1, 2, 5, 9), 1, "the image 'none.png' is not there."),
        (("", "cat", 1, 2, 5, 9), 1, "the image (column 'image') is empty."),
        (("bad.png", "cat", 1, 2, 5, 9), 1, "bad.png cannot be read as an image"),
    ],
)
def test_bad_rows_of_a_table(write, images, only_fault, row, column, message):
    write("images/bad.png", b"x")
    path = write("boxes.csv", table([*rows(), row]))
    reading = read_boxes(path)
    found = only_fault(reading, path)
    assert found[:2] == (5, column) and message in found[2]
    assert sum(len(one.labels) for one in reading.examples) == 3


@pytest.mark.parametrize(
    "corners, wanted",
    [((-10, 15, 20, 45), [0.25, 0.75, 0.5, 0.5]), ((20, -3, 60, 15), [0.75, 0.25, 0.5, 0.5])],
)
def test_boxes_are_cut_at_the_edge_and_that_is_noted(write, images, corners, wanted):
    reading = read_boxes(write("boxes.csv", table([("a.png", "cat", *corners)]))).strict()
    assert torch.allclose(reading.examples[0].boxes, torch.tensor([wanted]))
    assert "boxes that reach over an image's edge are cut there" in reading.notes


def test_a_table_without_a_corner(write, images, only_fault):
    path = write("boxes.csv", "image,label,xmin,ymin,xmax\na.png,cat,1,2,3\n")
    assert "which column is the ymax?" in only_fault(read_boxes(path), path)[2]


def bad_annotation(**changes):
    return coco(annotations=[{"image_id": 0, "category_id": 1, "bbox": [1, 2, 3, 4]} | changes])


@pytest.mark.parametrize(
    "data, message",
    [
        ({"images": []}, "has no list 'annotations' of objects"),
        ([], "has no list 'images' of objects"),
        (coco(images=[], annotations=[]), "lists no images."),
        (bad_annotation(category_id=9), "annotation 0 has the category 9, which is not listed."),
        (bad_annotation(image_id=9), "annotation 0 is of the image 9, which is not listed."),
        (bad_annotation(bbox=[1, 2]), "annotation 0 has the bbox [1, 2]; wanted [x, y, width, height]."),
        (bad_annotation(bbox=[1, 2, float("inf"), 4]), "annotation 0 has the bbox [1, 2, inf, 4]; wanted [x, y,"),
        (bad_annotation(image_id=[0]), "annotation 0 has the image_id [0]; wanted a number."),
        (coco(categories=[{"id": {}, "name": "a"}]), "number 0 of categories has the id {}; wanted a number."),
        (coco(categories=[{"id": 1}]), "number 0 of categories has no name. Give it one"),
        (
            coco(images=[{"id": 0, "file_name": "a.png"}] * 2, annotations=[]),
            "has two images with the id 0. Give each its own.",
        ),
        (
            bad_annotation(bbox=[1, 2, 0, 4]),
            "annotation 0 (image 0): the box runs from (1, 2) to (1, 6) and has no area",
        ),
        (
            coco(images=[{"id": 0, "file_name": "a.png", "height": 40, "width": 30}], annotations=[]),
            "'a.png' has 40 × 30 pixels, but its boxes are for 30 × 40.",
        ),
        (coco(images=[{"id": 0, "file_name": "z.png"}], annotations=[]), "the image 'z.png' is not there."),
    ],
)
def test_what_is_wrong_with_coco(write, images, only_fault, data, message):
    path = write("set.json", json.dumps(data))
    assert message in only_fault(read_boxes(path), path)[2]


def test_coco_that_is_no_json(write, images, only_fault):
    line, column, message = only_fault(read_boxes(write("set.json", '{"images": [\n  1,, 2]}')))
    assert (line, column) == (2, 5) and "is no JSON" in message


def test_crowds_are_left_out_and_noted(write, images):
    reading = read_boxes(write("set.json", json.dumps(bad_annotation(iscrowd=1)))).strict()
    assert [len(one.labels) for one in reading.examples] == [0, 0]
    assert "set.json: boxes of crowds left out: 1" in reading.notes


@pytest.mark.parametrize(
    "content, line, column, message",
    [
        ("<annotation>\n<object></annotation>", 2, 11, "is no XML: mismatched tag."),
        ("<!DOCTYPE a [<!ENTITY b 'c'>]><annotation/>", None, None, "declares a document type, which is not read."),
        ("<!DOCTYPE annotation SYSTEM 'x.dtd'><annotation/>", None, None, "declares a document type"),
        (voc("z.png", []), None, None, "the image 'z.png' is not there."),
        (voc("a.png", [], (99, 99)), None, None, "'a.png' has 40 × 30 pixels, but its boxes are for 99 × 99."),
        (voc("a.png", [("", 1, 2, 3, 4)]), None, None, "object 1 has no name."),
        (voc("a.png", [("cat", 1, "", 3, 4)]), None, None, "object 1 (cat) has ymin"),
        (voc("a.png", [("cat", 1, 4, 3, 4)]), None, None, "object 1 (cat): the box runs from (1, 4) to (3, 4)"),
    ],
)
def test_what_is_wrong_with_voc(write, images, tmp_path, only_fault, content, line, column, message):
    path = write("set/z.xml", content)
    found = only_fault(read_boxes(tmp_path / "set", images=tmp_path / "images"), path)
    assert found[:2] == (line, column) and message in found[2]


def test_a_voc_size_of_zero_is_no_size(write, images, tmp_path):
    write("set/a.xml", voc("a.png", [("cat", 1, 2, 3, 4)], (0, 0)))
    assert read_boxes(tmp_path / "set", images=tmp_path / "images").strict().examples[0].size == (HEIGHT, WIDTH)


def test_a_folder_without_boxes(images, tmp_path, only_fault):
    assert "has no XML files of boxes" in only_fault(read_boxes(tmp_path), tmp_path)[2]
