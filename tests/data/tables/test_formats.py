"""The same rows from every format; faults with the place that the format has; folders of Hugging Face data sets."""

import datetime
import io
import json
from types import SimpleNamespace

import openpyxl
import pyarrow as pa
import pytest
from pyarrow import feather, parquet

from regard.data.listing import listed_files
from regard.data.reading import ReadingBuilder
from regard.data.tables import ColumnSpec, read_table, sample_rows
from regard.data.tagged import read_tagged
from regard.data.text import read_lines, read_parallel, read_texts
from regard.errors import BadInput, Missing

ROWS = [("very good, really", "pos"), ('he said "no"', "neg"), ("很好\n再来", "pos"), ("it's a | b; c", "neg")]
NAMES = ("text", "label")


def arrow_table():
    return pa.table({name: [row[n] for row in ROWS] for n, name in enumerate(NAMES)})


def arrow_stream(table):
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def write_bytes(write, table):
    file = io.BytesIO()
    write(table, file)
    return file.getvalue()


def workbook(*sheets):
    book = openpyxl.Workbook()
    book.remove(book.worksheets[0])
    for title, rows in sheets:
        sheet = book.create_sheet(title)
        for row in rows:
            sheet.append(row)
    file = io.BytesIO()
    book.save(file)
    return file.getvalue()


def objects():
    return [dict(zip(NAMES, row, strict=True)) for row in ROWS]


def quote_rows(delimiter, quote='"', escape=None):
    def cell(text):
        return quote + text.replace(quote, (escape or quote) + quote) + quote

    return "\n".join(delimiter.join(map(cell, row)) for row in [NAMES, *ROWS]) + "\n"


FORMATS = {
    "a.csv": quote_rows(","),
    "semicolon.csv": quote_rows(";"),
    "pipe.csv": quote_rows("|"),
    "a.psv": quote_rows("|"),
    "tab.csv": quote_rows("\t"),
    "backslash.csv": quote_rows(",", escape="\\"),
    "single.csv": quote_rows(",", quote="'"),
    "quoted.tsv": quote_rows("\t"),
    "a.jsonl": "\n".join(map(json.dumps, objects())),
    "array.json": json.dumps(objects()),
    "pretty.json": json.dumps(objects(), indent=2, ensure_ascii=False),
    "inside.json": json.dumps({"data": objects()}, indent=1),
    "after.json": json.dumps({"version": "1.0", "about": {"n": 4}, "data": objects()}),
    "columns.json": json.dumps({name: [row[n] for row in ROWS] for n, name in enumerate(NAMES)}),
    "pandas.json": json.dumps({name: {k: row[n] for k, row in enumerate(ROWS)} for n, name in enumerate(NAMES)}),
    "lines.json": "\n".join(map(json.dumps, objects())),
    "a.parquet": write_bytes(parquet.write_table, arrow_table()),
    "b.parquet": write_bytes(lambda t, f: parquet.write_table(t, f, row_group_size=2), arrow_table()),
    "a.feather": write_bytes(feather.write_feather, arrow_table()),
    "a.arrow": arrow_stream(arrow_table()),
    "a.xlsx": workbook(("only", [NAMES, *ROWS])),
    "gbk.csv": quote_rows(",").encode("gbk"),
    "utf16.csv": quote_rows("\t").encode("utf-16"),
    "misnamed.txt": write_bytes(parquet.write_table, arrow_table()),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_has_the_same_rows(write, name):
    reading = read_texts(write(name, FORMATS[name])).strict()
    assert [(example.text, example.label) for example in reading.examples] == ROWS


def test_rows_with_lists_of_objects_stay_rows(write):
    rows = [{"text": f"Ada {n}", "label": "a", "entities": [{"start": 0, "end": 3}]} for n in range(3)]
    for several in (rows, rows[:1]):
        reading = read_texts(write("a.json", "\n".join(map(json.dumps, several)))).strict()
        assert [example.text for example in reading.examples] == [row["text"] for row in several]


def test_cells_of_json_columns_have_their_place(write, only_fault):
    reading = read_texts(write("a.json", json.dumps({"text": ["a", "", "c"], "label": ["x", "y", "x"]})))
    assert str(reading.faults[0]).endswith("a.json: row 2, column 'text': the text (column 'text') is empty.")


def test_fasttext_lines(write):
    reading = read_texts(write("a.txt", "__label__pos good one\nwithout\n\n__label__neg __label__rude bad\n"))
    assert [(example.text, example.label) for example in reading.examples] == [
        ("good one", "pos"),
        ("bad", '["neg", "rude"]'),
    ]
    assert str(reading.faults[0]).endswith("a.txt:2:1: is 'without'; it has no label, such as __label__good.")
    assert "fastText" in reading.notes[0]


def test_translations(write):
    rows = [{"translation": {"en": "one", "zh": "一"}}, {"translation": {"en": "two", "zh": "二"}}]
    path = write("a.json", "\n".join(json.dumps(row) for row in rows))
    assert [(pair.source, pair.target) for pair in read_parallel(path).strict().examples] == [
        ("one", "一"),
        ("two", "二"),
    ]
    back = read_parallel(path, source="zh", target="en").strict()
    assert [(pair.source, pair.target) for pair in back.examples] == [("一", "one"), ("二", "two")]
    table = write("a.parquet", write_bytes(parquet.write_table, pa.Table.from_pylist(rows)))
    assert read_parallel(table).strict().examples == read_parallel(path).examples


def test_cells_of_a_workbook_have_their_place(write, only_fault):
    path = write("a.xlsx", workbook(("May", [NAMES, ("good", "pos"), (None, None), ("bad", None)])))
    reading = read_texts(path)
    assert len(reading) == 1
    assert str(reading.faults[0]) == f"{path}: sheet 'May', cell B4: has no 'label'; wanted the label there."
    wide = write("b.xlsx", workbook(("May", [NAMES, ("good", "pos", "more"), ("bad", "neg")])))
    assert str(read_texts(wide).faults[0]).startswith(f"{wide}: sheet 'May', row 2: has 3 columns; wanted 2")


def test_sheets_are_told_and_chosen(write, only_fault):
    path = write("a.xlsx", workbook(("Empty", []), ("One", [NAMES, ROWS[0]]), ("Two", [NAMES, ROWS[1]])))
    reading = read_texts(path)
    assert reading.examples[0].label == "pos"
    assert "the sheet 'One' of 3 is read; a.xlsx#Two names another" in reading.notes[0]
    assert read_texts(f"{path}#Two").strict().examples[0].label == "neg"
    assert "has no sheet 'Three'. There are 'Empty', 'One', 'Two'." in only_fault(read_texts(f"{path}#Three"))[2]


def test_numbers_and_dates_of_a_workbook(write):
    rows = [("when", "value", "flag"), (datetime.datetime(2024, 5, 1, 12), 3.0, True), (None, 2.5, False)]
    table = read_table(write("a.xlsx", workbook(("x", rows))), [])
    assert table.names == ("when", "value", "flag")
    assert [row.cells for row in table.rows] == [["2024-05-01T12:00:00", 3, True], [None, 2.5, False]]


def test_rows_of_parquet_have_their_place(write):
    data = pa.table({"text": ["a b", "", "c d"], "label": ["x", "y", None]})
    path = write("a.parquet", write_bytes(lambda t, f: parquet.write_table(t, f, row_group_size=2), data))
    assert [str(fault) for fault in read_texts(path).faults] == [
        f"{path}: row group 0, row 2, column 'text': the text (column 'text') is empty.",
        f"{path}: row group 1, row 3, column 'label': has no 'label'; wanted the label there.",
    ]


def test_a_broken_object_of_an_array_is_named_and_the_others_read(write):
    text = json.dumps(objects(), indent=2).replace('"label": "neg"', '"label": neg', 1)
    path = write("a.json", text)
    reading = read_texts(path)
    assert len(reading) == 3
    assert str(reading.faults[0]).startswith(f"{path}:8:14: is no JSON: Expecting value.")


def class_label_table():
    info = {"info": {"features": {"label": {"names": ["neg", "pos"], "_type": "ClassLabel"}}}}
    table = pa.table({"text": ["good", "bad", "none"], "label": [1, 0, -1], "__index_level_0__": [7, 8, 9]})
    return table.replace_schema_metadata({b"huggingface": json.dumps(info).encode()})


def test_numbers_of_classes_have_their_names(write):
    path = write("a.parquet", write_bytes(parquet.write_table, class_label_table()))
    assert [example.label for example in read_texts(path).strict().examples] == ["pos", "neg", "-1"]
    assert read_table(path, []).names == ("text", "label")


def test_tags_of_a_data_set_have_their_names(write):
    feature = {"feature": {"names": ["O", "B-PER"], "_type": "ClassLabel"}, "_type": "Sequence"}
    metadata = {b"huggingface": json.dumps({"info": {"features": {"ner_tags": feature}}}).encode()}
    table = pa.table({"tokens": [["Ada", "sang"]], "ner_tags": [[1, 0]]}).replace_schema_metadata(metadata)
    path = write("a.parquet", write_bytes(parquet.write_table, table))
    assert read_tagged(path).strict().examples[0].tags == ("B-PER", "O")


def test_a_folder_of_the_hub_has_splits(write, tmp_path):
    data = write_bytes(parquet.write_table, class_label_table())
    for split in ("train", "validation", "test", "unsupervised"):
        write(f"imdb/data/{split}-00000-of-00001.parquet", data)
    reading = read_texts(tmp_path / "imdb").strict()
    assert [example.split for example in reading.examples] == ["test"] * 3 + ["train"] * 3 + [""] * 3 + ["dev"] * 3
    assert any("its split 'unsupervised' is neither train, dev nor test" in note for note in reading.notes)
    assert len(reading.select("dev")) == 3


def test_a_folder_that_datasets_saved(write, tmp_path):
    write("saved/dataset_dict.json", '{"splits": ["train", "test"]}')
    for split in ("train", "test"):
        write(f"saved/{split}/state.json", "{}")
        write(
            f"saved/{split}/dataset_info.json", '{"features": {"label": {"names": ["a", "b"], "_type": "ClassLabel"}}}'
        )
        write(f"saved/{split}/data-00000-of-00001.arrow", arrow_stream(pa.table({"text": ["x y"], "label": [1]})))
        write(f"saved/{split}/cache-123.arrow", b"no arrow")
    reading = read_texts(tmp_path / "saved").strict()
    assert [(example.label, example.split) for example in reading.examples] == [("b", "test"), ("b", "train")]
    write("other/readme.md", "x")
    with pytest.raises(BadInput, match="is a folder without Parquet or Arrow files"):
        read_texts(tmp_path / "other")


def test_running_text_from_a_column(write):
    path = write("a.parquet", write_bytes(parquet.write_table, pa.table({"text": ["= Title =", "", "One line."]})))
    assert read_lines(path).strict().examples[0].lines == ["= Title =", "", "One line."]


@pytest.mark.parametrize("name, package", [("a.parquet", "pyarrow"), ("a.xlsx", "openpyxl")])
def test_a_missing_package_is_named(write, monkeypatch, name, package):
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(Missing, match=rf'needs {package}: pip install "regard\[files\]"'):
        read_texts(write(name, FORMATS[name]))


@pytest.mark.parametrize("target", ["auto", "labels"])
def test_examples_may_have_none_of_several_labels(write, target):
    path = write(
        "a.jsonl", '{"text": "a b", "label": []}\n{"text": "c", "label": ["x", "y"]}\n{"text": "d", "label": ""}'
    )
    reading = read_texts(path, target=target).strict()
    assert [example.label for example in reading.examples] == ["[]", '["x", "y"]', ""]
    assert any("2 rows have no label in 'label'" in note for note in reading.notes)
    assert len(read_texts(path, target="class").faults) == 2
    table = write("files.csv", "file,label\nfiles.csv,a|b\nfiles.csv,\nfiles.csv,b\n")
    builder = ReadingBuilder()
    file, label = ColumnSpec("file", None, ("file",)), ColumnSpec("label", None, ("label",))
    assert [item.text for item in listed_files(table, file, label, None, builder, target)] == ["a|b", "", "b"]
    assert any("1 rows have no label" in note for note in builder.notes)


def test_sample_rows(write):
    assert sample_rows(write("a.csv", quote_rows(",")))[0] == list(ROWS[0])
    assert sample_rows(write("b.parquet", b"PAR1")) == []


def test_unexpected_exceptions_are_faults_with_their_line(write):
    class PanicException(BaseException):
        __module__ = "pyo3_runtime"

    builder = ReadingBuilder[int]()

    def fail(error):
        raise error

    for error in (KeyError("x"), RecursionError("deep"), MemoryError(), PanicException("index out of bounds")):
        builder.files.append("a.csv")
        with builder.catching(SimpleNamespace(line=3)):
            fail(error)
        builder.each([SimpleNamespace(line=4)], lambda source, error=error: fail(error))
    causes = [fault.cause for fault in builder.faults]
    assert causes[::2] == causes[1::2] == ["KeyError", "RecursionError", "MemoryError", "PanicException"]
    assert {(fault.file, fault.line) for fault in builder.faults} == {("a.csv", 3), ("a.csv", 4)}
    for error in (KeyboardInterrupt(), SystemExit(), BadInput("ours")):
        with pytest.raises(type(error)), builder.catching():
            fail(error)


def test_columns_of_a_text_without_usual_names(write):
    table = read_table(write("a.csv", "x;y\n1,5;a\n2,5;b\n3,5;a\n4,0;b\n"), [ColumnSpec("x", None, ())])
    assert table.names == ("x", "y") and table.rows[0].cells == ["1,5", "a"]


def test_labels_that_are_no_numbers_are_faults_where_numbers_are_wanted(write, only_fault):
    rows = "".join(f"text {n},{n / 2}\n" for n in range(30))
    path = write("a.csv", f"text,label\n{rows}last,n/a\n")
    assert len(read_texts(path)) == 31
    for target in ("auto", "number"):
        reading = read_texts(path, target=target)
        assert len(reading) == 30
        assert only_fault(reading)[:2] == (32, 6) and "wanted a number" in only_fault(reading)[2]
