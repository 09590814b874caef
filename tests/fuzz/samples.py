"""Valid files of every family that readers of data take, as bytes, and the calls that read them."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import openpyxl
import pyarrow as pa
import soundfile
from mutations import mutate_file
from PIL import Image
from pyarrow import feather, parquet

from regard.data import (
    load_image,
    read_boxes,
    read_captions,
    read_images,
    read_lines,
    read_nodes,
    read_parallel,
    read_sounds,
    read_spoken,
    read_tagged,
    read_texts,
)
from regard.data.tables.feature_rows import read_feature_rows

Read = Callable[[Path], Any]


@dataclass(frozen=True)
class Family:
    """Files by their names, the ones that are mutated, functions that read the folder they lie in, and the mutation.

    `separate` says that each folder in it is read alone: the one with the mutated file.
    """

    files: Mapping[str, bytes]
    mutated: tuple[str, ...]
    reads: tuple[Read, ...]
    mutate: Callable[[str, bytes, Random], bytes] = mutate_file
    separate: bool = False

    def folder(self, root: Path, chosen: str) -> Path:
        """What is read when the file `chosen` is mutated."""
        return root / Path(chosen).parts[0] if self.separate else root


TABLE = 'text,label,size,split\n"one, two",1,2.5,train\n三,2,1e3,test\n"four\nfive",1,-7,dev\nsix seven,2,,train\n'
OBJECTS = [
    {"text": "一 two", "label": 1, "source": ["a", "b"], "target": "c", "words": ["x", "y"], "tags": ["N", "V"]},
    {"text": "three", "label": ["p", "q"], "source": "s", "target": "t", "words": ["z"], "tags": ["N"]},
] * 3
CONLLU = "# c\n1\ta\ta\tX\tx\t_\t0\troot\t_\t_\n2-3\tb\t_\t_\t_\t_\t_\t_\t_\t_\n2\t词\tb\tY\ty\t_\t1\tdep\t_\t_\n\n" * 3
XML = (
    "<annotation><filename>a.png</filename><size><width>8</width><height>8</height></size><object><name>x</name>"
    "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>5</xmax><ymax>6</ymax></bndbox></object></annotation>"
)
COCO = {
    "images": [{"id": 1, "file_name": "a.png", "height": 8, "width": 8}],
    "categories": [{"id": 1, "name": "x"}],
    "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4]}],
}


def image(form: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(file, form)
    return file.getvalue()


def sound(form: str, subtype: str | None = None) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, np.sin(np.arange(400) / 9), 8000, subtype, format=form)
    return file.getvalue()


def archive(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def arrow_table() -> pa.Table:
    info = {"info": {"features": {"label": {"names": ["neg", "pos"], "_type": "ClassLabel"}}}}
    columns = {"text": ["one", "二 two", "three", None], "label": [0, 1, 0, 1], "words": [["a"], ["b", "c"], [], ["d"]]}
    return pa.table(columns).replace_schema_metadata({b"huggingface": json.dumps(info).encode()})


def columnar(write: Callable[[pa.Table, io.BytesIO], None]) -> bytes:
    file = io.BytesIO()
    write(arrow_table(), file)
    return file.getvalue()


def write_stream(table: pa.Table, file: io.BytesIO) -> None:
    with pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)


def workbook() -> bytes:
    book = openpyxl.Workbook()
    for row in [("text", "label"), ("one two", 1), ("三", 2), ("four", 1.5)]:
        book.worksheets[0].append(row)
    file = io.BytesIO()
    book.save(file)
    return file.getvalue()


def tar(*members: tuple[str, bytes], mode: str = "w:gz") -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as stream:  # type: ignore[call-overload]
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            stream.addfile(member, io.BytesIO(data))
    return file.getvalue()


def decode_images(folder: Path) -> Any:
    reading = read_images(folder / "images")
    for example in reading.examples:
        load_image(example.image)
    return reading


def decode_sounds(folder: Path) -> Any:
    reading = read_sounds(folder / "sounds")
    for example in reading.examples:
        example.sound.load(16000)
    return reading


def at(name: str, *reads: Callable[..., Any], **settings: Any) -> tuple[Read, ...]:
    """The readers as functions of the folder."""
    return tuple(lambda folder, read=read: read(folder / name, **settings) for read in reads)


def families() -> dict[str, Family]:
    """Every family by its name."""
    jsonl = "\n".join(json.dumps(item, ensure_ascii=False) for item in OBJECTS).encode()
    array = json.dumps(OBJECTS, indent=1).encode()
    png, every = image("PNG"), (read_texts, read_parallel, read_feature_rows)
    graph = archive(
        **{"x": np.eye(4), "y": np.arange(4) % 2, "edge_index": np.array([[0, 1, 2], [1, 2, 3]])},
        edge_attr=np.ones((3, 2)),
        train_mask=np.array([True, False, False, True]),
        val_mask=np.array([False, True, True, False]),
    )
    spoken = archive(mfcc=np.zeros((9, 2)), offsets=np.array([0, 3, 5, 9]), text=np.array(["a", "b", "c"]))
    pixels = archive(x=np.zeros((3, 4, 4, 3), np.uint8), y=np.arange(3), label=np.array(["a", "b", "a"]))
    audio = archive(
        audio=np.zeros(30, np.int16), offsets=np.array([0, 10, 20, 30]), rate=np.array(8000), label=np.arange(3)
    )
    made = {
        "csv": Family({"a.csv": TABLE.encode()}, ("a.csv",), at("a.csv", *every)),
        "csv, GBK": Family({"a.csv": TABLE.encode("gbk")}, ("a.csv",), at("a.csv", *every)),
        "csv, UTF-16": Family({"a.csv": TABLE.encode("utf-16")}, ("a.csv",), at("a.csv", read_texts)),
        "csv, gzip": Family({"a.csv.gz": gzip.compress(TABLE.encode())}, ("a.csv.gz",), at("a.csv.gz", read_texts)),
        "tsv": Family(
            {"a.tsv": TABLE.replace(",", "\t").encode()}, ("a.tsv",), at("a.tsv", *every, read_tagged, read_spoken)
        ),
        "json lines": Family({"a.jsonl": jsonl}, ("a.jsonl",), at("a.jsonl", read_texts, read_parallel, read_tagged)),
        "json array": Family({"a.json": array}, ("a.json",), at("a.json", read_texts, read_parallel, read_tagged)),
        "fastText": Family(
            {"a.txt": "__label__a one\n__label__b __label__a 二\n".encode() * 3}, ("a.txt",), at("a.txt", read_texts)
        ),
        "CoNLL-U": Family({"a.conllu": CONLLU.encode()}, ("a.conllu",), at("a.conllu", read_tagged, read_lines)),
        "text pairs": Family(
            {"a.en": b"one\ntwo\nthree\n", "a.zh": "一\n二\n三\n".encode()},
            ("a.en", "a.zh"),
            (lambda folder: read_parallel([folder / "a.en", folder / "a.zh"]),),
        ),
        "NPZ": Family(
            {"graph.npz": graph, "spoken.npz": spoken, "pixels.npz": pixels, "audio.npz": audio},
            ("graph.npz", "spoken.npz", "pixels.npz", "audio.npz"),
            (
                *at("graph.npz", read_nodes),
                *at("spoken.npz", read_spoken),
                *at("pixels.npz", read_images, read_captions),
                *at("audio.npz", read_sounds),
            ),
        ),
        "COCO": Family(
            {"a.json": json.dumps(COCO).encode(), "a.png": png}, ("a.json", "a.png"), at("a.json", read_boxes)
        ),
        "VOC": Family(
            {"boxes/a.xml": XML.encode(), "boxes/a.png": png},
            ("boxes/a.xml", "boxes/a.png"),
            (lambda folder: read_boxes(folder / "boxes"),),
        ),
        "boxes in a table, tar": Family(
            {
                "a.csv": b"image,label,xmin,ymin,xmax,ymax\na.png,x,1,1,5,5\nb.png,,,,,\n",
                "a.tgz": tar(("a.png", png), ("b.png", png)),
            },
            ("a.csv", "a.tgz"),
            (lambda folder: read_boxes([folder / "a.csv", folder / "a.tgz"]),),
        ),
        "Parquet": Family(
            {"a.parquet": columnar(parquet.write_table)}, ("a.parquet",), at("a.parquet", read_texts, read_tagged)
        ),
        "Arrow": Family(
            {"a.arrow": columnar(write_stream), "a.feather": columnar(feather.write_feather)},
            ("a.arrow", "a.feather"),
            (*at("a.arrow", read_texts), *at("a.feather", read_texts)),
        ),
        "Excel": Family({"a.xlsx": workbook()}, ("a.xlsx",), at("a.xlsx", read_texts)),
    }
    for form in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"):
        name = f"images/one/a.{form.lower()}"
        made[form] = Family({name: image(form), "images/two/b.png": png}, (name,), (decode_images,))
    for form in ("WAV", "FLAC", "OGG", "AIFF"):
        name = f"sounds/one/a.{form.lower()}"
        made[form] = Family({name: sound(form), "sounds/two/b.wav": sound("WAV")}, (name,), (decode_sounds,))
    made["WAV, floats"] = Family({"sounds/one/a.wav": sound("WAV", "FLOAT")}, ("sounds/one/a.wav",), (decode_sounds,))
    return made
