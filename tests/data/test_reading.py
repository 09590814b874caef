"""Faults print as an editor's places, strict readings refuse, and splits are the same every time."""

import pytest

from regard.data.reading import Fault, Reading, split
from regard.data.text import LabelledText, read_lines, read_texts
from regard.errors import BadInput


def test_a_fault_prints_its_place():
    assert str(Fault("a.tsv", 3, 7, "is empty.")) == "a.tsv:3:7: is empty."
    assert str(Fault("a.tsv", 3, None, "is empty.")) == "a.tsv:3: is empty."
    assert str(Fault("a.npz", None, None, "is empty.")) == "a.npz: is empty."


def test_strict_is_the_reading_itself_without_faults():
    reading = Reading((1, 2), files=("a",))
    assert reading.strict() is reading


def test_strict_names_the_first_faults_and_their_number():
    faults = tuple(Fault("a.tsv", line, 1, f"is wrong {line}.") for line in range(1, 13))
    with pytest.raises(BadInput) as raised:
        Reading((1,), faults, ("a.tsv",)).strict()
    message = str(raised.value)
    assert "12 faults" in message and "1 example read" in message and "… and 7 more" in message
    assert "a.tsv:5:1: is wrong 5." in message and "is wrong 6." not in message


def test_a_reading_prints_counts_notes_and_faults():
    text = str(Reading((1, 2), (Fault("a", 2, 1, "is odd."),), ("a",), ("guessed",)))
    assert text == "2 examples from a; 1 fault\n  guessed\n  a:2:1: is odd."


@pytest.mark.parametrize(
    "count, share, wanted", [(10, 0.2, 2), (7, 0.5, 4), (2, 0.01, 1), (2, 0.99, 1), (1000, 0.1, 100)]
)
def test_split_divides_everything_once_and_repeats(count, share, wanted):
    reading = Reading(tuple(range(count)), files=("a",), notes=("kept",))
    rest, held = split(reading, share, seed=3)
    assert len(held) == wanted
    assert sorted(rest.examples + held.examples) == list(range(count))
    assert list(rest.examples) == sorted(rest.examples) and rest.notes == ("kept",)
    assert split(reading, share, seed=3)[1].examples == held.examples


def test_split_depends_on_the_seed():
    reading = Reading(tuple(range(100)))
    assert split(reading, 0.3, seed=0)[1].examples != split(reading, 0.3, seed=1)[1].examples


def test_split_keeps_groups_together():
    reading = Reading(tuple((group, n) for group in "abcdefghij" for n in range(7)))
    rest, held = split(reading, 0.3, seed=1, by=lambda example: example[0])
    assert {group for group, _ in rest.examples}.isdisjoint({group for group, _ in held.examples})
    assert len(held) == 21


@pytest.mark.parametrize("share", [0, 1, -0.1, 1.5])
def test_split_refuses_a_share_that_leaves_nothing(share):
    with pytest.raises(BadInput, match="share is"):
        split(Reading((1, 2)), share)


def test_split_needs_two_groups():
    with pytest.raises(BadInput, match="1 groups; a split needs two"):
        split(Reading((1, 2)), 0.5, by=lambda _: "same")


def test_parts_come_from_the_file(write):
    reading = read_texts(write("a.csv", "text,label,split\na,1,train\nb,2,validation\nc,1,TEST\nd,2,train\n"))
    assert [one.text for one in reading.select("train").examples] == ["a", "d"]
    assert reading.select("dev").examples == (LabelledText("b", "2", "dev"),)
    assert reading.select("test").examples == (LabelledText("c", "1", "test"),)


def test_a_part_that_is_not_there_is_refused(write):
    with pytest.raises(BadInput, match=r"'dev'.*The splits are train"):
        read_texts(write("a.csv", "text,label,split\na,1,train\n")).select("dev")
    with pytest.raises(BadInput, match=r"take split\(\)"):
        read_texts(write("b.csv", "text,label\na,1\n")).select("dev")


def test_a_part_of_no_meaning_is_a_fault(write, only_fault):
    reading = read_texts(write("a.csv", "text,label,split\na,1,train\nb,2,tomorrow\n"))
    assert only_fault(reading) == (3, 5, "the split is 'tomorrow'; wanted train, dev or test.")


def test_files_are_read_on_after_one_is_refused(write):
    good, bad = write("good.csv", "text,label\na,1\n"), write("bad.csv", "")
    reading = read_texts([bad, good])
    assert len(reading) == 1 and reading.files == (str(bad), str(good))
    assert [str(fault) for fault in reading.faults] == [f"{bad}: the file is empty."]


def test_what_is_not_there_is_refused_at_once(tmp_path):
    with pytest.raises(BadInput, match="is not there"):
        read_texts(tmp_path / "nothing.csv")
    with pytest.raises(BadInput, match="is a folder"):
        read_texts(tmp_path)
    with pytest.raises(BadInput, match="No file was given"):
        read_texts([])


def test_gzip_is_known_by_its_content(write, tmp_path):
    packed = write("a.txt.gz", "one\ntwo\n")
    bare = tmp_path / "a.txt"
    bare.write_bytes(packed.read_bytes())
    assert read_lines(bare).examples[0].lines == ["one", "two"]
    bare.write_bytes(b"plain\n")
    assert read_lines(bare).examples[0].lines == ["plain"]


def test_a_cut_gzip_is_a_fault(write, tmp_path, only_fault):
    whole = write("a.txt.gz", "word " * 5000).read_bytes()
    cut = tmp_path / "cut.gz"
    cut.write_bytes(whole[: len(whole) // 2])
    assert "broken gzip" in only_fault(read_lines(cut), cut)[2]


def test_a_mark_and_foreign_line_ends_are_tolerated(write):
    assert read_lines(write("a.txt", b"\xef\xbb\xbfone\r\ntwo\r\n")).examples[0].text == "one\ntwo\n"
    assert read_lines(write("b.txt", b"one\rtwo")).examples[0].lines == ["one", "two"]


def test_only_a_newline_ends_a_line(write):
    text = "one\u2028still one\x0bstill\x85one\ntwo\n"
    assert len(read_lines(write("a.txt", text)).examples[0].lines) == 2


@pytest.mark.parametrize(
    "data, line, column, byte",
    [
        ("中文\n好".encode() + b"\xff", 2, 2, "byte 10 (0xFF)"),
        (b"\xef\xbb\xbfab\xe9c", 1, 3, "byte 5 (0xE9)"),
        ("Un café très bien situé, déjà visité en été".encode() + b"\xe9", 1, 44, "byte 51 (0xE9)"),
        ("これは日本語の文章です。\n".encode("shift-jis"), 1, 1, "byte 0 (0x82)"),
        ("Съешь ещё этих мягких французских булок".encode("cp1251"), 1, 1, "byte 0 (0xD1)"),
        ("다람쥐 헌 쳇바퀴에 타고파 나는 오늘도 학교에 갑니다 그리고 집에".encode("euc-kr"), 1, 1, "byte 0 (0xB4)"),
        ("繁體中文的文章不是用國標碼寫成的".encode("big5"), 1, 1, "byte 0 (0xC1)"),
        (b"\x00\x01\x02" * 20, 1, 1, "byte 0 (0x00)"),
    ],
)
def test_an_unknown_encoding_names_the_byte_and_the_cure(write, only_fault, data, line, column, byte):
    path = write("a.txt", data)
    found = only_fault(read_lines(path), path)
    assert found[:2] == (line, column)
    assert byte in found[2] and "iconv" in found[2]


@pytest.mark.parametrize(
    "text, codec, name",
    [
        ("好酒店\n服务很好", "gb18030", "GB18030"),
        ("房间很干净，服务员也很热情 (5星)。\n下次还来！", "gbk", "GB18030"),
        ("很好的酒店 ok\n", "gbk", "GB18030"),
        ("one\ntwo café three\n", "latin-1", "Windows-1252"),
        ("“Größe” – für Übergrößen…\n", "cp1252", "Windows-1252"),
        ("Où est le garçon? À l’école, déjà été\n", "cp1252", "Windows-1252"),
        ("text\n很好\n", "utf-16", "UTF-16"),
        ("plain words\nand more", "utf-16-le", "UTF-16"),
        ("plain words\nand more", "utf-16-be", "UTF-16"),
        ("词语 words", "utf-32", "UTF-32"),
    ],
)
def test_other_encodings_are_read_with_a_note(write, text, codec, name):
    reading = read_lines(write("a.txt", text.encode(codec))).strict()
    assert reading.examples[0].text == text
    assert reading.notes == (f"a.txt: read as {name}; it is not UTF-8",)


def test_a_damaged_byte_in_another_encoding_has_its_place(write, only_fault):
    data = bytearray("房间很干净，服务员很热情\n下次还来".encode("gbk"))
    data[-1] = 0xFF
    line, column, message = only_fault(read_lines(write("a.txt", bytes(data))))
    assert (line, column) == (2, 4) and "no GB18030" in message


def test_a_zip_archive_is_named(write, only_fault):
    assert "name it .xlsx" in only_fault(read_texts(write("a.csv", b"PK\x03\x04\xff\xfe")))[2]


def test_blank_lines_alone_are_a_fault(write, only_fault):
    assert only_fault(read_lines(write("a.txt", "\n \n"))) == (1, None, "the file has blank lines only.")
