"""Bombs: small files that ask for much are refused with the limit's name, before memory is filled."""

import gzip
import io
import json
import os
import struct
import subprocess
import sys
import tarfile
import textwrap
import zipfile
import zlib

import numpy as np
import pyarrow as pa
import pytest
import soundfile
from pyarrow import parquet

from regard.errors import BadInput
from regard.limits import IMAGE_PIXELS, Limit

ZEROS = 2**28
"""Bytes that a bomb unpacks to."""


def gzip_of_zeros(size=ZEROS, letter=b"\0"):
    """A gzip file of so many equal bytes."""
    packer = zlib.compressobj(6, zlib.DEFLATED, 31)
    block = letter * (1 << 24)
    return b"".join([packer.compress(block) for _ in range(size >> 24)]) + packer.flush()


def png_chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_of_size(width, height):
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + png_chunk(b"IDAT", zlib.compress(b"\0" * 99)) + png_chunk(b"IEND", b"")


def wav_of_rate(rate):
    file = io.BytesIO()
    soundfile.write(file, np.zeros(900), 8000, format="WAV")
    data = bytearray(file.getvalue())
    data[24:28] = struct.pack("<I", rate)
    return bytes(data)


def flac_of_silence(samples=2**26 + 2**22):
    file = io.BytesIO()
    with soundfile.SoundFile(file, "w", 8000, 1, "PCM_16", format="FLAC") as stream:
        block = np.zeros(1 << 22, np.int16)
        for _ in range(samples >> 22):
            stream.write(block)
    return file.getvalue()


def zip_of(**members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            with archive.open(name, "w", force_zip64=True) as stream:
                for block in data if isinstance(data, list) else [data]:
                    stream.write(block)
    return file.getvalue()


def npy_header(shape, dtype="<f8"):
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"
    text = text.ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


def npz_of_zeros():
    edges = npy_header((2, 1), "<i8") + bytes(16)
    return zip_of(**{"x.npy": [npy_header((ZEROS // 8,)), *[bytes(1 << 24)] * (ZEROS >> 24)], "edge_index.npy": edges})


def npz_with_false_shape():
    arrays = {"x.npy": npy_header((10**6, 10**6)) + bytes(64), "y.npy": npy_header((3,), "<i8") + bytes(24)}
    return zip_of(**arrays, **{"edge_index.npy": npy_header((2, 1), "<i8") + bytes(16)})


def xlsx_of_rows():
    row = b"<row><c t='inlineStr'><is><t>a</t></is></c></row>" * 4000
    sheet = [b'<worksheet xmlns="x"><sheetData>', *[row] * 300, b"</sheetData></worksheet>"]
    return zip_of(**{"xl/worksheets/sheet1.xml": sheet, "[Content_Types].xml": b"<Types/>"})


def parquet_of_one_value():
    file = io.BytesIO()
    schema = pa.schema([("text", pa.dictionary(pa.int32(), pa.string())), ("label", pa.int64())])
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        count = 1 << 20
        indices = pa.array(np.zeros(count, np.int32))
        text = pa.DictionaryArray.from_arrays(indices, pa.array(["a" * 1000]))
        batch = pa.table([text, pa.array(np.zeros(count, np.int64))], schema=schema)
        for _ in range(8):
            writer.write_table(batch)
    return file.getvalue()


def parquet_with_false_count():
    file = io.BytesIO()
    parquet.write_table(pa.table({"text": ["a", "b"], "label": [1, 2]}), file)
    data = bytearray(file.getvalue())
    length = int.from_bytes(data[-8:-4], "little")
    footer = data[-8 - length : -8]
    place = footer.find(b"\x16\x04")  # num_rows 2 as a zigzag varint in a field of type i64
    footer[place : place + 2] = b"\x16" + b"\xfe\xff\xff\xff\xff\xff\xff\x7f"
    return bytes(data[: -8 - length] + footer + len(footer).to_bytes(4, "little") + b"PAR1")


def tgz_of_zeros():
    file = io.BytesIO()
    packer = gzip.GzipFile(fileobj=file, mode="wb", compresslevel=6)
    member = tarfile.TarInfo("a.png")
    member.size = ZEROS
    packer.write(member.tobuf())
    for _ in range(ZEROS >> 24):
        packer.write(bytes(1 << 24))
    packer.write(bytes(1024))
    packer.close()
    return file.getvalue()


def gzip_of(unit, size=2**27):
    """A gzip file of so many bytes of one unit over and over."""
    packer = zlib.compressobj(6, zlib.DEFLATED, 31)
    block = unit * ((1 << 22) // len(unit))
    return b"".join([packer.compress(block) for _ in range(size // len(block))]) + packer.flush()


def npz_of_small_images():
    images = [npy_header((2**25, 1, 1), "|u1"), *[bytes(1 << 22)] * 8]
    return zip_of(**{"x.npy": images, "y.npy": [npy_header((2**25,), "|u1"), *[bytes(1 << 22)] * 8]})


def npz_of_empty_recordings():
    offsets = [npy_header((2**23,), "<i8"), *[bytes(1 << 22)] * 16]
    audio, rate = npy_header((0,), "<f4"), npy_header((), "<i8") + struct.pack("<q", 8000)
    return zip_of(**{"audio.npy": audio, "offsets.npy": offsets, "rate.npy": rate, "label.npy": npy_header((0,))})


def npz_of_edges_to_nowhere():
    nodes = {"x.npy": npy_header((1, 1)) + bytes(8), "y.npy": npy_header((1,), "<i8") + bytes(8)}
    edges = [npy_header((2, 2**22), "<i8"), *[struct.pack("<q", 7) * 2**19] * 16]
    return zip_of(**nodes, **{"edge_index.npy": edges})


def parquet_of_rows(count, **columns):
    file = io.BytesIO()
    table = pa.table({name: pa.repeat(value, count) for name, value in columns.items()})
    parquet.write_table(table, file, compression="zstd")
    return file.getvalue()


def xlsx_of_short_rows():
    row = b"<row><c><v>1</v></c></row>" * 4000
    sheet = [b'<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData>', *[row] * 80]
    types = (
        b'<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"><Override PartName='
        b'"/xl/workbook.xml" ContentType="application/vnd.openxmlformats-officedocument.spreadsheetml.sheet.main+xml"/>'
        b"</Types>"
    )
    book = (
        b'<workbook xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main" xmlns:r='
        b'"http://schemas.openxmlformats.org/officeDocument/2006/relationships"><sheets><sheet name="a" sheetId="1" '
        b'r:id="rId1"/></sheets></workbook>'
    )
    relation = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    links = (
        '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships"><Relationship '
        f'Id="rId1" Type="{relation}/worksheet" Target="worksheets/sheet1.xml"/></Relationships>'
    ).encode()
    root = links.replace(b"/worksheet", b"/officeDocument").replace(b"worksheets/sheet1.xml", b"xl/workbook.xml")
    return zip_of(
        **{
            "[Content_Types].xml": types,
            "_rels/.rels": root,
            "xl/workbook.xml": book,
            "xl/_rels/workbook.xml.rels": links,
            "xl/worksheets/sheet1.xml": [*sheet, b"</sheetData></worksheet>"],
        }
    )


def arrow_of(text, count=4000):
    """An Arrow file of a column of texts, or of lists of numbers, and one of labels."""
    file = io.BytesIO()
    batch = pa.record_batch([text, pa.array(np.zeros(count))], ["text", "label"])
    with pa.ipc.new_file(file, batch.schema) as writer:
        writer.write(batch)
    return file.getvalue()


def dictionary_of_one_text(count, letters=10**6):
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array(["a" * letters]))


def arrow_of_views(count=4000, letters=10**6):
    views = struct.pack("<i4sii", letters, b"aaaa", 0, 0) * count
    buffers = [None, pa.py_buffer(views), pa.py_buffer(b"a" * letters)]
    return arrow_of(pa.Array.from_buffers(pa.string_view(), count, buffers))


def arrow_of_runs(count=4000):
    return arrow_of(pa.RunEndEncodedArray.from_arrays(pa.array([count], pa.int32()), pa.array(["a" * 10**6])))


def arrow_of_lists(count=4000):
    numbers = pa.array(np.zeros(10**5, np.int64))
    starts, sizes = np.zeros(count, np.int32), np.full(count, 10**5, np.int32)
    return arrow_of(pa.ListViewArray.from_arrays(pa.array(starts), pa.array(sizes), numbers))


def arrow_of_lists_of_one_text(count=4000):
    places = pa.array(np.arange(count + 1, dtype=np.int32))
    return arrow_of(pa.ListArray.from_arrays(places, dictionary_of_one_text(count)))


def parquet_of_one_long_text():
    file = io.BytesIO()
    parquet.write_table(pa.table({"text": dictionary_of_one_text(1024), "label": np.zeros(1024)}), file)
    return file.getvalue()


def png_of_one_color(side=7000):
    packer = zlib.compressobj(9)
    rows = b"".join(packer.compress(bytes(4 * side + 1)) for _ in range(side)) + packer.flush()
    header = b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 6, 0, 0, 0))
    return header + png_chunk(b"IDAT", rows) + png_chunk(b"IEND", b"")


def tgz_of_empty_members(count=200_000):
    header = tarfile.TarInfo("a.png").tobuf()
    return gzip.compress(header * count + bytes(1024), 6)


def coco_with_a_late_twin(count=150_000):
    images = [{"id": n, "file_name": "a.png"} for n in [*range(count), count - 1]]
    return json.dumps({"images": images, "annotations": [], "categories": []}).encode()


def squad_of_questions(count=20_000):
    asked = [{"question": f"q{n}", "answers": [{"text": "b", "answer_start": 0}]} for n in range(count)]
    return json.dumps({"data": [{"paragraphs": [{"context": "a", "qas": asked}]}]}).encode()


def deep(opening, count=200_000):
    return b'{"text": ' + opening * count + b"1"


BOMBS = {
    "gz": ("a.csv.gz", gzip_of_zeros, "read_texts(path)", "REGARD_MAX_EXPANSION"),
    "gz of text": ("a.txt.gz", lambda: gzip_of_zeros(letter=b"a"), "read_lines(path)", "REGARD_MAX_EXPANSION"),
    "PNG": (
        "c/one/a.png",
        lambda: png_of_size(30000, 30000),
        "read_images(path.parents[1])",
        "REGARD_MAX_IMAGE_PIXELS",
    ),
    "PNG of 2³¹": (
        "c/one/a.png",
        lambda: png_of_size(2**31 - 1, 2**31 - 1),
        "read_images(path.parents[1])",
        "REGARD_MAX_IMAGE_PIXELS",
    ),
    "PNG, decoded": (
        "a.png",
        lambda: png_of_size(30000, 30000),
        "Reading((load_image(ImageFile(path)),))",
        "REGARD_MAX_IMAGE_PIXELS=900000000",
    ),
    "WAV of a false rate": (
        *("c/one/a.wav", lambda: wav_of_rate(2**31 - 1)),
        *("read_sounds(path.parents[1])", "REGARD_MAX_SAMPLE_RATE"),
    ),
    "WAV of one sample a second": (
        *("c/one/a.wav", lambda: wav_of_rate(1)),
        *("Reading((SoundFile(path).load(768000),))", "900 samples|691,200,000 samples"),
    ),
    "FLAC of silence": ("c/one/a.flac", flac_of_silence, "read_sounds(path.parents[1])", "REGARD_MAX_SOUND_SAMPLES"),
    "NPZ": ("a.npz", npz_of_zeros, "read_nodes(path)", "REGARD_MAX_EXPANSION"),
    "NPZ of a false shape": ("a.npz", npz_with_false_shape, "read_nodes(path)", "bytes, and 192 are there"),
    "lists in lists": ("a.jsonl", lambda: deep(b"["), "read_texts(path)", "nest less"),
    "objects in objects": ("a.jsonl", lambda: deep(b'{"a":'), "read_texts(path)", "nest less"),
    "a deep array": ("a.json", lambda: b"[" * 200_000, "read_texts(path)", "nest less|is no JSON|no rows"),
    "levels": (
        *("a.jsonl", lambda: b'{"text": "a", "label": ' + b"[" * 99 + b"]" * 99 + b"}"),
        *("read_texts(path)", "REGARD_MAX_JSON_DEPTH"),
    ),
    "digits": (
        "a.jsonl",
        lambda: b'{"text": "a", "label": ' + b"9" * 10**6 + b"}",
        "read_texts(path)",
        "Shorten the number",
    ),
    "Excel": ("a.xlsx", xlsx_of_rows, "read_texts(path)", "REGARD_MAX_EXPANSION"),
    "Parquet": ("a.parquet", parquet_of_one_value, "read_texts(path)", "REGARD_MAX_EXPANSION"),
    "Parquet of a false count": (
        "a.parquet",
        parquet_with_false_count,
        "read_texts(path)",
        "REGARD_MAX_TABLE_CELLS|Parquet",
    ),
    "tgz": ("a.tgz", tgz_of_zeros, "read_boxes([path.with_name('a.csv'), path])", "REGARD_MAX_EXPANSION"),
    "COCO of levels": (
        *("a.json", lambda: b'{"images": ' + b"[" * 90 + b"]" * 90 + b', "annotations": [], "categories": []}'),
        *("read_boxes(path)", "REGARD_MAX_JSON_DEPTH"),
    ),
    "a long name": (
        *("a.csv", lambda: b"image,label\n" + b"a" * 5000 + b".png,x\n"),
        *("read_images(path)", "REGARD_MAX_PATH_LENGTH"),
    ),
    "a billion laughs": (
        *("boxes/a.xml", lambda: b'<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><annotation>&b;</annotation>'),
        *("read_boxes(path.parent)", "document type"),
    ),
    "gz of short rows": ("a.csv.gz", lambda: gzip_of(b"a,b\n"), "read_texts(path)", "REGARD_MAX_EXPANSION"),
    "gz of short lines": ("a.conllu.gz", lambda: gzip_of(b"a\tb\n"), "read_tagged(path)", "REGARD_MAX_EXPANSION"),
    "gz of empty objects": ("a.json.gz", lambda: gzip_of(b"[{}," * 2), "read_texts(path)", "REGARD_MAX_EXPANSION"),
    "gz of words": ("a.jsonl.gz", lambda: gzip_of(b'"ab",'), "read_tagged(path)", "REGARD_MAX_EXPANSION"),
    "NPZ of small images": ("a.npz", npz_of_small_images, "read_images(path)", "REGARD_MAX_EXPANSION"),
    "NPZ of empty recordings": ("a.npz", npz_of_empty_recordings, "read_sounds(path)", "REGARD_MAX_EXPANSION"),
    "NPZ of edges to nowhere": ("a.npz", npz_of_edges_to_nowhere, "read_nodes(path)", "4,194,204 more edges"),
    "Parquet of small rows": (
        *("a.parquet", lambda: parquet_of_rows(2**21, text="a", label=1)),
        *("read_texts(path)", "REGARD_MAX_EXPANSION"),
    ),
    "Excel of small rows": ("a.xlsx", xlsx_of_short_rows, "read_texts(path)", "REGARD_MAX_EXPANSION"),
    "gz of edges": ("g/edges-0.csv.gz", lambda: gzip_of(b"0,0\n"), "read_graph(path)", "REGARD_MAX_EXPANSION"),
    "Parquet of edges": (
        *("g/edges-0.parquet", lambda: parquet_of_rows(2**24, source=0, target=0)),
        *("read_graph(path)", "REGARD_MAX_EXPANSION"),
    ),
    "Parquet of edges that are texts": (
        *("g/edges-0.parquet", lambda: parquet_of_rows(2**17, source="a" * 5000, target=0)),
        *("read_graph(path)", "wanted whole numbers"),
    ),
    "NPY of a false shape": (
        *("g/edges.npy", lambda: npy_header((2, 10**12), "<i8") + bytes(64)),
        *("read_graph(path)", "is broken"),
    ),
    "NPY header that is code": (
        *("g/edges.npy", lambda: npy_header("().__class__" + "(" * 3000)),
        *("read_graph(path)", "is broken"),
    ),
    "COCO with a late twin": ("a.json", coco_with_a_late_twin, "read_boxes(path)", "two images with the id 149999"),
    "SQuAD of wrong answers": ("a.json", squad_of_questions, "read_answers(path)", "but the context has"),
    "SQuAD of levels": ("a.json", lambda: b'{"data": ' + b"[" * 9000, "read_answers(path)", "nest less|is no JSON"),
    "heads of levels": ("a.toml", lambda: b"a = " + b"[" * 9000, "read_heads(path)", "cannot be read as TOML"),
    "Parquet of one long text": (
        *("a.parquet", parquet_of_one_long_text),
        *("read_texts(path)", "REGARD_MAX_EXPANSION"),
    ),
    "Arrow of one long text": (
        *("a.arrow", lambda: arrow_of(dictionary_of_one_text(4000))),
        *("read_texts(path)", "REGARD_MAX_EXPANSION"),
    ),
    "Arrow of lists of one text": (
        *("a.arrow", arrow_of_lists_of_one_text),
        *("read_texts(path)", "REGARD_MAX_EXPANSION"),
    ),
    "Arrow of views of one text": ("a.arrow", arrow_of_views, "read_texts(path)", "REGARD_MAX_EXPANSION"),
    "Arrow of one run": ("a.arrow", arrow_of_runs, "read_texts(path)", "which is not read"),
    "Arrow of views of one list": ("a.arrow", arrow_of_lists, "read_texts(path)", "which is not read"),
    "PNG of one color": ("c/one/a.png", png_of_one_color, "read_images(path.parents[1])", "REGARD_MAX_EXPANSION"),
    "tgz of empty images": (
        *("a.tgz", tgz_of_empty_members),
        *("read_boxes([path.with_name('a.csv'), path])", "REGARD_MAX_EXPANSION"),
    ),
    "a long line": (
        *("a.csv", lambda: b"text,label\n" + b"a" * 2**25 + b",1\n"),
        *("read_texts(path)", "REGARD_MAX_CELL_LETTERS=33554434"),
    ),
    "a long cell": (
        *("a.csv", lambda: b'text,label\n"' + b"aaaaaaa\n" * 2**22 + b'",1\n'),
        *("read_texts(path)", "REGARD_MAX_CELL_LETTERS"),
    ),
    "columns": ("a.csv", lambda: b"a," * 200_000 + b"b\n1\n", "read_texts(path)", "REGARD_MAX_TABLE_COLUMNS"),
}

NEW_TYPES = ("Arrow of views of one text", "Arrow of views of one list", "Arrow of one run")

SCRIPT = r"""
import json, re, sys, time
from pathlib import Path
from regard.data import *
from regard.data.reading import Reading
from regard.data.annotations.answers import read_answers
from regard.tasks.texts.heads import read_heads
import regard.data.tables.columnar, scipy.signal, soundfile, PIL.Image, openpyxl, pyarrow.parquet, numpy


def peak():  # the most memory since the last reset, in KiB
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])


def read_graph(path):
    numpy.save(path.with_name("features.npy"), numpy.eye(2))
    numpy.save(path.with_name("labels.npy"), numpy.arange(2))
    return read_nodes(path.parent)


for line in sys.stdin:
    path, call = json.loads(line)
    Path("/proc/self/clear_refs").write_text("5")  # the peak of memory counts from here
    path, before, start = Path(path), peak(), time.process_time()
    try:
        message = " ".join(map(str, eval(call).faults))
    except RegardError as error:
        message = str(error)
    seconds = time.process_time() - start
    grown = peak() - before
    print(json.dumps([message, seconds, grown / 1024]), flush=True)
""".replace("from regard.data import *", "from regard.data import *\nfrom regard.errors import RegardError")


@pytest.fixture(scope="module")
def reader():
    """A process that reads files and says what came of them, in how much time and memory."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )

    def read(path, call):
        process.stdin.write(json.dumps([str(path), call]) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    yield read
    process.stdin.close()
    process.wait(30)


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused(write, tmp_path, reader, record_property, name):
    file, make, call, message = BOMBS[name]
    if name in NEW_TYPES and not hasattr(pa, "list_view"):
        pytest.skip("this pyarrow cannot write such columns")
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(make())
    write("a.csv", "image,label,xmin,ymin,xmax,ymax\na.png,x,1,2,3,4\n") if file.endswith(".tgz") else None
    said, seconds, mib = reader(path, call)
    record_property("seconds", seconds), record_property("mib", mib)  # for benchmarks/hostile.py
    assert any(part in said for part in message.split("|")), said[:500]
    assert seconds < 5 and mib < 500, (seconds, mib)


def test_limits_are_raised_by_their_variable(monkeypatch):
    limit = Limit("image_pixels", 100, "pixels")
    assert limit.excess(100) == ""
    assert "set REGARD_MAX_IMAGE_PIXELS=101" in limit.excess(101)
    monkeypatch.setenv("REGARD_MAX_IMAGE_PIXELS", "200")
    assert limit.excess(101) == "" and IMAGE_PIXELS.value == 200
    monkeypatch.setenv("REGARD_MAX_IMAGE_PIXELS", "many")
    with pytest.raises(BadInput, match="must be a whole number of pixels"):
        limit.excess(1)
