"""Whatever a file holds, reading it ends in examples and faults: never in another error, never without a word."""

import io
import random

import numpy as np
import pytest
import soundfile
from PIL import Image

from regard.data import (
    read_boxes,
    read_captions,
    read_graphs,
    read_images,
    read_lines,
    read_nodes,
    read_parallel,
    read_sounds,
    read_spoken,
    read_tagged,
    read_texts,
)

TABLE = 'text,label,split\n"one, two",1,train\n三,2,test\n"four\nfive",1,dev\n'
JSON = '{"text": "一", "label": 1, "source": ["a", "b"], "target": "c", "words": ["x"], "tags": ["Y"]}\n' * 3
CONLLU = "# c\n1\ta\ta\tX\tx\t_\t0\troot\t_\t_\n2-3\tb\t_\t_\t_\t_\t_\t_\t_\t_\n2\t词\tb\tY\ty\t_\t1\tdep\t_\t_\n\n" * 3
XML = "<annotation><filename>a.png</filename><object><name>x</name></object></annotation>"
COCO = '{"images": [{"id": 1, "file_name": "a.png"}], "categories": [{"id": 1, "name": "x"}], "annotations": []}'


def npz():
    file = io.BytesIO()
    arrays = {
        "x": np.zeros((3, 4)),
        "y": np.arange(3),
        "edge_index": np.zeros((2, 2), int),
        "text": np.array(["a"] * 3),
    }
    np.savez(
        file, **arrays, mfcc=np.zeros((9, 2)), offsets=np.array([0, 3, 5, 9]), label=np.arange(3), rate=np.array(8)
    )
    return file.getvalue()


def png():
    file = io.BytesIO()
    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(file, "PNG")
    return file.getvalue()


def wav():
    file = io.BytesIO()
    soundfile.write(file, np.zeros(100), 8000, format="WAV")
    return file.getvalue()


def edges_as_labels(path):
    return read_graphs(path, labels=path)


def nodes_as_features(path):
    return read_nodes(path, features=path)


def folder(read):
    return lambda path: read(path.parent.parent)


CASES = [
    (
        "a.csv",
        TABLE,
        [read_texts, read_parallel, read_captions, read_sounds, edges_as_labels, nodes_as_features, read_boxes],
    ),
    ("a.tsv", TABLE.replace(",", "\t"), [read_texts, read_parallel, read_tagged, read_spoken, read_images]),
    ("a.jsonl", JSON, [read_texts, read_parallel, read_tagged]),
    ("a.conllu", CONLLU, [read_tagged]),
    ("a.txt", CONLLU, [read_tagged, read_lines, read_texts]),
    ("a.npz", npz(), [read_images, read_captions, read_sounds, read_spoken, read_nodes]),
    ("a.json", COCO, [read_boxes]),
    ("boxes/one/a.xml", XML, [lambda path: read_boxes(path.parent)]),
    ("pictures/one/a.png", png(), [folder(read_images)]),
    ("sounds/one/a.wav", wav(), [folder(read_sounds)]),
]


def damage(data, draw):
    """The bytes with some changed, some lost, or some twice."""
    data = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        place = draw.randrange(len(data) + 1)
        kind = draw.choice(["change", "lose", "double", "cut", "insert"])
        if kind == "change" and place < len(data):
            data[place] = draw.choice([0, 9, 10, 13, 34, 44, 91, 123, 128, 255, draw.randrange(256)])
        elif kind == "lose":
            del data[place : place + draw.randint(1, 9)]
        elif kind == "double":
            data[place:place] = data[place : place + draw.randint(1, 30)]
        elif kind == "insert":
            data[place:place] = draw.choice(
                [b"\x00", b'"', b"\n\n", b"\t", b"\xef\xbb\xbf", "词".encode(), b"1e999", b"NaN"]
            )
        elif draw.random() < 0.3:
            del data[place:]
    return bytes(data)


@pytest.mark.parametrize("name, content, readers", CASES, ids=[case[0] for case in CASES])
def test_damaged_files_end_in_examples_and_faults(write, name, content, readers):
    draw = random.Random(name)
    data = content.encode() if isinstance(content, str) else content
    for _ in range(120):
        path = write(name, damage(data, draw))
        for read in readers:
            reading = read(path)
            assert reading.examples or reading.faults
            assert all(str(fault) for fault in reading.faults)
