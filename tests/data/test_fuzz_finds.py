"""Inputs that mutated files led to: what they did once, and the errors of ours that they are now."""

from __future__ import annotations

import io
import os
import tarfile
import threading
from base64 import b64encode
from pathlib import Path

import pyarrow as pa
import pytest
from PIL import Image

import regard as rg
from regard.assets import resolve_folder
from regard.data import read_boxes
from regard.data.files import CHUNK, is_file, read_bytes, resolve_paths
from regard.data.graphs.edge_parts import find_ends
from regard.data.images import ImageBytes, decode_image
from regard.data.tables.arrow_sizes import CELL_BYTES, unpacked_size
from regard.data.tables.column_profiles import words_of_name
from regard.tasks.inputs.given import as_picture
from regard.tasks.inputs.words.features import WordFeatures


@pytest.mark.parametrize("size", ["max_affix", "char_ngrams", "max_word_length"])
def test_features_of_endless_words_are_refused_before_memory_is_filled(size: str) -> None:
    with pytest.raises(rg.RegardError, match="REGARD_MAX_WORD_LETTERS"):
        WordFeatures(["a"], ["a"], ["<a"], **{size: 10**9})


def test_a_name_that_is_too_long_for_a_file_is_an_error_of_ours() -> None:
    with pytest.raises(rg.RegardError, match="cannot be opened"):
        resolve_folder("~" * 5000)


def test_a_path_of_a_name_that_is_too_long_is_not_there(tmp_path: Path) -> None:
    name = "pairs" + "[" * 300
    assert not is_file(tmp_path / name) and not is_file(Path("a\0b"))
    with pytest.raises(rg.BadInput, match="is not there"):
        resolve_paths(tmp_path / name)


def test_a_small_image_as_text_is_no_path_whatever_its_length() -> None:
    """Up to 4,095 letters could be a path, but no file has a name of 256."""
    buffer = io.BytesIO()
    Image.effect_noise((20, 20), 40).save(buffer, "png")
    text = b64encode(buffer.getvalue()).decode().replace("/", "A")  # whatever it shows, it is one name
    assert 300 < len(text) < 4096
    assert isinstance(as_picture({"image": text}), ImageBytes)


def test_an_endless_name_of_a_column_has_no_more_parts_than_letters_times_a_few() -> None:
    """All parts of 2,500 letters are three million texts, of 4 GB."""
    words = words_of_name("微博内容" + "九" * 2500)
    assert "内容" in words and len(words) < 100


def test_columns_of_the_same_name_are_two_columns() -> None:
    assert find_ends(["", ""]) == (0, 1)
    assert find_ends(["target", "source", "target"]) == (1, 0)
    assert find_ends(["source", "source"]) == (0, 1)


def test_an_image_is_only_decoded_in_a_format_of_images() -> None:
    """For EPS pillow starts Ghostscript, whatever the file is named."""
    program = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n(run) print\nshowpage\n%%EOF\n"
    with pytest.raises(rg.BadInput, match="no format that is known"):
        decode_image(program, "a.png", 3)


def test_a_member_of_impossible_size_is_a_fault_of_the_archive(tmp_path: Path) -> None:
    header = bytearray(tarfile.TarInfo("a.png").tobuf())
    header[124:136], header[148:156] = b"\x80" + b"\x7f" * 11, b" " * 8
    header[148:156] = b"%06o\0 " % sum(header[:512])
    (tmp_path / "a.tar").write_bytes(bytes(header) + bytes(1024))
    (tmp_path / "a.csv").write_text("image,label,xmin,ymin,xmax,ymax\na.png,x,1,2,3,4\n")
    faults = read_boxes([tmp_path / "a.csv", tmp_path / "a.tar"]).faults
    assert "is no tar file that can be read" in str(faults[0]) and not faults[0].cause


def test_reading_asks_for_no_more_memory_than_the_file_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Watched(io.FileIO):
        def read(self, size: int = -1) -> bytes:
            asked.append(size)
            return super().read(size)

    (tmp_path / "a.txt").write_bytes(b"abc")
    monkeypatch.setattr(Path, "open", lambda path, mode: Watched(path, mode))
    assert read_bytes(tmp_path / "a.txt") == b"abc" and 0 < max(asked) <= CHUNK


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    data = b"a line\n" * 300_000
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_bytes(data))
    writer.start()
    found = read_bytes(tmp_path / "pipe")
    writer.join()
    assert found == data


@pytest.mark.parametrize(
    ("array", "size"),
    [
        (pa.array(["abc", "d"]), 2 * CELL_BYTES + 4),
        (pa.array(["abc", "d", "abc"]).dictionary_encode(), 3 * CELL_BYTES + 7),
        (pa.array([1.0, 2.0, 1.0]).dictionary_encode(), 3 * CELL_BYTES + 24),
        (pa.array([["abc", "d"], [], None]), 5 * CELL_BYTES + 4),
        (pa.array([{"a": "abc", "b": None}]), 3 * CELL_BYTES + 3),
    ],
)
def test_the_size_of_values_is_known_before_they_are_made(array: pa.Array, size: int) -> None:
    assert size <= unpacked_size(array) <= size + 40  # offsets and bits of validity


@pytest.mark.skipif(not hasattr(pa, "string_view"), reason="this pyarrow has no views")
def test_texts_in_views_count_as_often_as_they_are_seen() -> None:
    texts = pa.array(["abc", "a text of more than twelve letters"], pa.string_view())
    assert unpacked_size(texts) == 2 * CELL_BYTES + 37 and unpacked_size(texts[1:]) == CELL_BYTES + 34


@pytest.mark.skipif(not hasattr(pa, "list_view"), reason="this pyarrow has no views")
def test_types_that_repeat_values_without_end_are_refused() -> None:
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([3], pa.int32()), pa.array(["a"]))
    lists = pa.array([[1]], pa.list_view(pa.int64()))
    for array in (runs, lists):
        with pytest.raises(ValueError, match="which is not read"):
            unpacked_size(array)
