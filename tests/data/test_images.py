"""Images from folders, lists and arrays: lazily, with broken ones found before training."""

import gzip
import io
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from regard.data.images import Captioned, ImageBytes, ImageFile, load_image, read_captions, read_images
from regard.data.reading import split
from regard.errors import BadInput, Missing
from regard.tasks.classify import detect_modality


def noise(height=24, width=32, channels=3, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


def encode_image(array, form="PNG", **settings):
    file = io.BytesIO()
    Image.fromarray(array).save(file, form, **settings)
    return file.getvalue()


def labels(reading):
    return [one.label for one in reading.examples]


@pytest.fixture
def png():
    return encode_image(noise())


def test_a_folder_for_each_class(write, tmp_path, png):
    write("set/猫/1.png", png)
    write("set/猫/deeper/2.JPG", encode_image(noise(), "JPEG"))
    write("set/dog/1.png", encode_image(noise(seed=1)))
    write("set/dog/notes.txt", "x")
    write("set/dog/.hidden.png", "x")
    reading = read_images(tmp_path / "set").strict()
    assert labels(reading) == ["dog", "猫", "猫"]
    assert torch.equal(load_image(reading.examples[0].image), torch.from_numpy(noise(seed=1)).permute(2, 0, 1))
    assert reading.notes == (f"{tmp_path / 'set' / 'dog'}: 1 files named .txt left out",)


def test_folders_of_parts(write, tmp_path, png):
    for place in ("train/a", "train/b", "val/a"):
        write(f"set/{place}/1.png", png)
    reading = read_images(tmp_path / "set").strict()
    assert [(one.label, one.split) for one in reading.examples] == [("a", "train"), ("b", "train"), ("a", "dev")]


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a/bad.png", b"no image", "cannot be read as an image: it is in no format that is known."),
        ("a/empty.jpg", b"", "is empty. Get the image again"),
        ("a/cut.png", encode_image(noise())[:-200], "cannot be read as an image"),
        ("a/cut.jpg", encode_image(noise(), "JPEG")[:-200], "cannot be read as an image"),
        ("a/cut.gif", encode_image(noise(), "GIF")[:-400], "cannot be read as an image"),
        ("loose.png", encode_image(noise()), "lies in no class's folder under set."),
    ],
)
def test_what_is_wrong_in_a_folder(write, tmp_path, png, only_fault, name, content, message):
    write("set/a/good.png", png)
    path = write(f"set/{name}", content)
    reading = read_images(tmp_path / "set")
    line, column, found = only_fault(reading, path)
    assert line is None and column is None and message in found and len(reading) == 1
    assert str(path) not in found


def test_an_empty_class_and_an_empty_set(write, tmp_path, png, only_fault):
    write("set/a/good.png", png)
    (tmp_path / "set" / "b").mkdir()
    assert "the class 'b' has no files" in only_fault(read_images(tmp_path / "set"), tmp_path / "set" / "b")[2]
    (tmp_path / "bare").mkdir()
    assert "has no folders in it" in only_fault(read_images(tmp_path / "bare"), tmp_path / "bare")[2]


def test_a_whole_jpeg_with_bytes_after_it_is_good(write, tmp_path):
    write("set/a/1.jpg", encode_image(noise(), "JPEG") + b"x" * 5000)
    assert len(read_images(tmp_path / "set").strict()) == 1


def test_a_list_of_paths(write, png, only_fault):
    write("pictures/一.png", png)
    write("pictures/bad.png", b"no")
    path = write("list.csv", "label,path\ncat,pictures/一.png\ndog,pictures/none.png\ndog,pictures/bad.png\n")
    reading = read_images(path)
    assert labels(reading) == ["cat"]
    first, second = reading.faults
    assert (first.line, first.column) == (3, 5) and "'pictures/none.png' is not there" in first.message
    assert (second.line, second.column) == (4, 5) and "bad.png cannot be read as an image" in second.message
    other = write("elsewhere/list.tsv", "一.png\tcat\n")
    assert labels(read_images(other, folder=path.parent / "pictures").strict()) == ["cat"]


@pytest.mark.parametrize("shape", [(5, 7, 6), (5, 7, 6, 3), (5, 4, 7, 6)])
def test_arrays_of_pixels(tmp_path, shape):
    x = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(5, dtype=np.uint8))
    reading = read_images(tmp_path / "a.npz").strict()
    wanted = x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2) if shape[-1] == 3 else x
    assert labels(reading) == list("01234")
    assert torch.equal(torch.stack([one.image for one in reading.examples]), torch.from_numpy(wanted.copy()))


def test_arrays_from_zero_to_one(tmp_path):
    x = np.array([0, 0.5, 1], dtype=np.float32).reshape(3, 1, 1)
    np.savez(tmp_path / "a.npz", images=x, label=np.array(["a", "b", "c"]))
    reading = read_images(tmp_path / "a.npz").strict()
    assert [one.image.item() for one in reading.examples] == [0, 128, 255] and labels(reading) == ["a", "b", "c"]


@pytest.fixture
def archives(tmp_path):
    files = [encode_image(noise(seed=n), "JPEG") for n in range(3)]
    arrays = {
        "jpeg": np.frombuffer(b"".join(files), dtype=np.uint8),
        "offsets": np.cumsum([0, *map(len, files)]),
        "image_id": np.array(["a.jpg", "b.jpg", "图.jpg"]),
    }

    def save(**changes):
        np.savez(tmp_path / "a.npz", **{name: one for name, one in (arrays | changes).items() if one is not None})
        return tmp_path / "a.npz"

    return save, files


def test_encoded_images_with_names_of_classes(archives):
    save, files = archives
    reading = read_images(save(y=np.array([1, 0, 1]), classes=np.array(["cat", "狗"]))).strict()
    assert labels(reading) == ["狗", "cat", "狗"]
    image = reading.examples[1].image
    assert isinstance(image, ImageBytes)
    wanted = np.asarray(Image.open(io.BytesIO(files[1])))
    assert torch.equal(load_image(image), torch.from_numpy(wanted.copy()).permute(2, 0, 1))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"y": None}, "which array is the label? There are jpeg, offsets, image_id. Say it with label=."),
        ({"y": np.zeros(2)}, "the array 'y' has shape [2]; wanted [3], one label for each example."),
        ({"y": np.array([1, 0, 7]), "classes": np.array(["a", "b"])}, "the array 'y' has no class's name at 2."),
        ({"offsets": np.array([0, 5, 3, 9])}, "the array 'offsets' runs from 0 to 9"),
        ({"offsets": np.array([0.0, 1.0])}, "wanted whole numbers [examples + 1]"),
        ({"y": np.array([{}, {}, {}])}, "the array 'y' holds Python objects"),
    ],
)
def test_what_is_wrong_with_arrays(archives, only_fault, changes, message):
    path = archives[0](**({"y": np.zeros(3, dtype=np.int64)} | changes))
    assert message in only_fault(read_images(path), path)[2]


def test_a_broken_image_among_arrays(archives, only_fault):
    save, files = archives
    data = np.frombuffer(files[0] + b"x" * len(files[1]) + files[2], dtype=np.uint8)
    path = save(jpeg=data, y=np.arange(3))
    reading = read_images(path)
    assert only_fault(reading, path)[2].startswith("image 1 cannot be read as an image")
    assert labels(reading) == ["0", "2"]


def test_falling_offsets(archives, only_fault):
    save, files = archives
    length = sum(map(len, files))
    path = save(offsets=np.array([0, 500, 400, length]), y=np.zeros(3))
    assert "falls from 500 to 400 at 2; it must rise." in only_fault(read_images(path), path)[2]


@pytest.mark.parametrize(
    "x, message",
    [
        (np.zeros((2, 784), np.uint8), "wanted images [n, height, width]"),
        (np.zeros((2, 5, 5, 2), np.uint8), "wanted 1, 3 or 4 channels, first or last."),
        (np.full((2, 5, 5), -3.0), "holds float64 from -3.0 to -3.0; wanted 0 to 255, or 0 to 1."),
    ],
)
def test_arrays_that_are_no_images(tmp_path, only_fault, x, message):
    np.savez(tmp_path / "a.npz", x=x, y=np.zeros(2))
    assert message in only_fault(read_images(tmp_path / "a.npz"))[2]


def test_what_is_no_npz(write, only_fault):
    assert "is no NPZ file, or is cut" in only_fault(read_images(write("a.npz", b"hello")))[2]


def test_a_camera_turned_the_image(write):
    exif = Image.Exif()
    exif[0x0112] = 6
    path = write("a.jpg", encode_image(noise(24, 32), "JPEG", exif=exif))
    assert ImageFile(path).load().shape == (3, 32, 24)


def test_transparent_becomes_white(write):
    array = np.zeros((2, 2, 4), np.uint8)
    array[0, 0] = (10, 20, 30, 255)
    image = ImageFile(write("a.png", encode_image(array)))
    assert image.load()[:, 0, 0].tolist() == [10, 20, 30] and image.load()[:, 1, 1].tolist() == [255, 255, 255]
    assert torch.equal(image.load(4), torch.from_numpy(array).permute(2, 0, 1))
    assert torch.equal(load_image(image.load(4), 3), image.load())
    assert image.load(1).shape == (1, 2, 2)


def test_channels_are_one_three_or_four(write, png):
    with pytest.raises(BadInput, match="channels is 2"):
        ImageFile(write("a.png", png)).load(2)
    with pytest.raises(BadInput, match="An image of 2 channels"):
        load_image(torch.zeros(2, 3, 3, dtype=torch.uint8), 3)


def test_a_file_that_broke_since_names_itself(write, png):
    path = write("a.png", png[:-100])
    with pytest.raises(BadInput, match=r"a\.png cannot be read as an image"):
        ImageFile(path).load()


def test_without_pillow(monkeypatch, write, tmp_path, png):
    write("set/a/1.png", png)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(Missing, match="regard\\[train\\]"):
        read_images(tmp_path / "set")


def test_captions_of_files(write, png):
    write("1.png", png)
    write("bad.png", b"x")
    path = write("a.tsv", "image\tcaption\n1.png\ta cat\n1.png\t一只猫\nbad.png\tone\nbad.png\ttwo\n1.png\t\n")
    reading = read_captions(path)
    assert [(one.text, one.name) for one in reading.examples] == [
        (text, str(path.parent / "1.png")) for text in ("a cat", "一只猫")
    ]
    assert [(fault.line, fault.column) for fault in reading.faults] == [(4, 1), (5, 1), (6, 7)]
    assert "the text (column 'caption') is empty" in reading.faults[2].message


def test_captions_of_arrays(tmp_path, only_fault):
    styles = {name: np.full((3, 2, 2, 4), n, np.uint8) for n, name in enumerate(("noto", "other"))}
    path = tmp_path / "a.npz"
    np.savez(path, **styles, name=np.array(["smile", "", "山"]), is_test=np.array([True, False, False]))
    reading = read_captions(path, image="other")
    assert [(one.text, one.split, one.image.unique().tolist()) for one in reading.examples] == [
        ("smile", "test", [1]),
        ("山", "train", [1]),
    ]
    assert only_fault(reading)[2] == "the array 'name' is empty at 1."
    assert "which array is the image?" in only_fault(read_captions(path))[2]


def test_captions_by_name(archives, write):
    captions = write("a.tsv.gz", "image_id\tcaption\na.jpg\tone\na.jpg\ttwo\nnone.jpg\tthree\n图.jpg\t四\n")
    reading = read_captions(archives[0](), captions=captions)
    assert [(one.text, one.name) for one in reading.examples] == [("one", "a.jpg"), ("two", "a.jpg"), ("四", "图.jpg")]
    (fault,) = reading.faults
    assert (fault.file, fault.line, fault.column) == (
        str(captions),
        4,
        1,
    ) and "has no image 'none.jpg'" in fault.message
    assert "a.npz: 1 images have no caption, such as 'b.jpg'" in reading.notes
    rest, held = split(reading, 0.3, by=lambda one: one.name)
    assert isinstance(held.examples[0], Captioned)
    assert {one.name for one in rest.examples}.isdisjoint({one.name for one in held.examples})


def test_an_image_of_sixteen_bits_is_divided_not_cut(tmp_path):
    ramp = np.arange(256).reshape(16, 16)
    Image.fromarray((ramp * 257).astype("uint16")).save(tmp_path / "a.png")
    assert (ImageFile(tmp_path / "a.png").load(1)[0].numpy() == ramp).all()
    Image.fromarray((ramp / 255).astype("float32")).save(tmp_path / "a.tif")
    assert abs(ImageFile(tmp_path / "a.tif").load(1)[0].numpy().astype(int) - ramp).max() <= 1
    Image.fromarray(ramp.astype("int32")).save(tmp_path / "b.tif")
    assert (ImageFile(tmp_path / "b.tif").load(1)[0].numpy() == ramp).all(), "of 32 bits, but not more than 255"


def test_arrays_may_be_gzipped(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.arange(48).reshape(3, 4, 4).astype("uint8"), y=[0, 1, 0])
    (tmp_path / "b.npz.gz").write_bytes(gzip.compress((tmp_path / "a.npz").read_bytes()))
    plain, packed = (read_images(tmp_path / name) for name in ("a.npz", "b.npz.gz"))
    assert len(packed.examples) == 3 and not packed.faults
    assert all(torch.equal(a.image, b.image) for a, b in zip(plain.examples, packed.examples, strict=True))


def test_images_in_the_rows_of_a_data_set(tmp_path, only_fault):
    """As Hugging Face's data sets have them: bytes with a name, bytes alone, or a name alone."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    buffer = io.BytesIO()
    Image.fromarray(np.full((4, 6), 200, np.uint8)).save(buffer, "PNG")
    (tmp_path / "there.png").write_bytes(buffer.getvalue())
    cells = [
        {"bytes": buffer.getvalue(), "path": "a.png"},
        {"bytes": buffer.getvalue(), "path": None},
        {"bytes": None, "path": "there.png"},
        {"bytes": buffer.getvalue()[:30], "path": "cut.png"},
    ]
    path = tmp_path / "data.parquet"
    parquet.write_table(arrow.table({"image": cells, "label": ["x", "y", "x", "y"]}), path)
    reading = read_images(path)
    assert [example.label for example in reading.examples] == ["x", "y", "x"]
    assert all(load_image(example.image, 1).unique().tolist() == [200] for example in reading.examples)
    assert "cut.png" in only_fault(reading)[2] and detect_modality(path) == "image"
