"""Labelled texts and pairs from tables: columns found, guesses stated, every bad line a fault at its place."""

import csv
import gc
import io
import json
import time

import pytest

from regard.data.text import LabelledText, Parallel, join_sentences, read_lines, read_parallel, read_texts
from regard.errors import BadInput


def pairs(reading):
    return [(one.text, one.label) for one in reading.strict().examples]


@pytest.mark.parametrize(
    "name, content",
    [
        ("a.csv", 'label,review\n1,很好\n0,"太慢, 也凉了"\n'),
        ("a.tsv", "text_a\tlabel\n很好\t1\n太慢, 也凉了\t0\n"),
        ("a.csv.gz", "Text;Class\n很好;1\n太慢, 也凉了;0\n"),
        ("a.jsonl", '{"sentence": "很好", "label": 1}\n\n{"sentence": "太慢, 也凉了", "label": 0}\n'),
        ("a.txt", "1\t很好\n0\t太慢, 也凉了\n"),
        ("a.csv", '文本,标签\r\n很好,1\r\n"太慢, 也凉了",0\r\n'),
    ],
)
def test_texts_of_every_form(write, name, content):
    assert pairs(read_texts(write(name, content))) == [("很好", "1"), ("太慢, 也凉了", "0")]


def test_csv_reads_back_what_python_writes(write):
    rows = [('say "hi", twice', "a"), ("two\nlines\n\nfour", "b"), ("x" * 200_000, "a"), ("结束", "b")]
    file = io.StringIO()
    csv.writer(file).writerows([("text", "label"), *rows])
    assert pairs(read_texts(write("a.csv", file.getvalue()))) == rows


def test_quotes_of_tsv_are_text(write):
    path = write("a.tsv", 'label\tsentence\n1\t"open and never closed\n0\tan "inner" word\n')
    assert pairs(read_texts(path)) == [('"open and never closed', "1"), ('an "inner" word', "0")]


def test_columns_by_name_and_by_number(write):
    path = write("a.csv", "id,first,second,third\n1,one,x,p\n2,two,y,q\n")
    assert pairs(read_texts(path, text="first", label="third")) == [("one", "p"), ("two", "q")]
    assert pairs(read_texts(path, text=2, label="third")) == [("one", "p"), ("two", "q")]
    bare = write("b.csv", "1,one,x\n2,two,y\n")
    assert pairs(read_texts(bare, text="2", label=3)) == [("one", "x"), ("two", "y")]


def test_without_a_header_the_label_has_fewer_values(write):
    reading = read_texts(write("a.csv", "good,one\nbad,two\ngood,three\n"))
    assert pairs(reading) == [("one", "good"), ("two", "bad"), ("three", "good")]
    assert reading.notes == ("a.csv: label = column '1', text = column '2' (there is no header)",)
    assert pairs(read_texts(write("b.csv", "one,good\ntwo,bad\nthree,good\n")))[0] == ("one", "good")


def test_a_header_can_be_said(write):
    path = write("a.csv", "words,verdict\none,x\ntwo,y\nthree,x\n")
    assert len(read_texts(path)) == 4
    assert pairs(read_texts(path, header=True))[0] == ("one", "x")
    path = write("b.csv", "text,label\none,x\n")
    assert len(read_texts(path, header=False)) == 2


def test_guesses_are_stated(write):
    reading = read_texts(write("a.csv", "label,review\n1,good\n"))
    assert reading.notes == ("a.csv: label = column 'label', text = column 'review'",)
    assert read_texts(write("b.csv", "label,review\n1,good\n"), text="review", label="label").notes == ()


@pytest.mark.parametrize(
    "content, line, column, message",
    [
        ("label,text\n1,a\n,b\n", 3, 1, "the label (column 'label') is empty."),
        ('text,label\na,1\n"b, ""c""",\n', 3, 12, "the label (column 'label') is empty."),
        ("label,text\n1,a\n0,  \n", 3, 3, "the text (column 'text') is empty."),
        ('label,text\n1,"a,b"\n0,"c,d",""\n', 3, None, "has 3 columns; wanted 2"),
        ("label,text\n1,a,b\n0,c\n", 2, None, 'Put text that has "," in it in quotes.'),
        ("label,text\n1\n0,c\n", 2, None, "has 1 column; wanted 2 (label, text)."),
        ('label,text\n1,"a"b\n0,c\n', 2, 3, "is badly quoted"),
        ('label,text\n1,a\n0,"c\nd,e\n', 3, 3, "never closed"),
        ('label,text\n1,a\n0,"c\n1,d\n0,"e"\n', 3, 3, "Lines 3 to 5 were left out."),
        ('text,label\n"one\ntwo",\n', 2, None, "the label (column 'label') is empty."),
    ],
)
def test_bad_lines_of_csv(write, only_fault, content, line, column, message):
    reading = read_texts(write("a.csv", content))
    found = only_fault(reading)
    assert found[:2] == (line, column) and message in found[2]


@pytest.mark.parametrize(
    "content, line, column, message",
    [
        ('{"text": "a", "label": 1}\n{"text": "b", "label" 1}\n', 2, 23, "is no JSON: Expecting ':' delimiter"),
        ('{"text": "a", "label": 1}\n["b", 1]\n', 2, 1, "wanted a JSON object"),
        ('{"text": "a", "label": 1}\n{"text": "b"}\n', 2, 1, "has no 'label'; wanted the label there."),
        ('{"text": "a", "label": 1}\n{"text": "b", "label": []}\n', 2, 15, "the label is []; wanted text or a number."),
        ('{"text": "a", "label": 1}\n{"label": "", "text": "b"}\n', 2, 2, "the label (column 'label') is empty."),
        ('{"text": "a", "label": 1}\n{"text": "b\\ud83d", "label": 1}\n', 2, 12, "has half a character, \\ud83d"),
        (f'{{"text": "a", "label": 1}}\n{{"text": {"[" * 99999}\n', 2, 1, "cannot be read"),
        (f'{{"text": "a", "label": 1}}\n{{"text": "b", "label": {"9" * 5000}}}\n', 2, 1, "cannot be read"),
    ],
)
def test_bad_lines_of_json(write, only_fault, content, line, column, message):
    reading = read_texts(write("a.jsonl", content))
    found = only_fault(reading)
    assert found[:2] == (line, column) and message in found[2]
    assert reading.examples == (LabelledText("a", "1"),)


def test_numbers_and_truth_values_are_labels(write):
    lines = [{"text": "a", "label": value} for value in (1.0, 2.5, True, 0)]
    reading = read_texts(write("a.jsonl", "\n".join(map(json.dumps, lines))))
    assert [one.label for one in reading.strict().examples] == ["1", "2.5", "true", "0"]


@pytest.mark.parametrize(
    "content, settings, message",
    [
        ("label,text\n", {}, "has a header (label, text) and no rows."),
        ("id,text,mark\n1,a,2\n", {}, "which column is the label? There are 'id', 'text', 'mark'."),
        ("label,text\n1,a\n", {"text": "txet"}, "has no column 'txet' for the text. Did you mean 'text'?"),
        ("label,text\n1,a\n", {"label": 3}, "has no column '3' for the label. There are 'label', 'text'."),
        ("text,label,text\na,1,b\n", {}, "the header names the column 'text' twice."),
        ("text\na\n", {}, "which column is the label? There are 'text'."),
        ("foo,bar,baz\na,b,c\n", {}, "(line 1 is 'foo,bar,baz'). Say it with input=, by name or number."),
    ],
)
def test_tables_refused_whole(write, only_fault, content, settings, message):
    reading = read_texts(write("a.csv", content), **settings)
    line, _, found = only_fault(reading)
    assert line == 1 and message in found and not reading.examples


def test_two_files_line_by_line(write):
    source, target = write("a.en.gz", "One.\nTwo.\n"), write("a.zh", "一。\n二。\n")
    reading = read_parallel([source, target]).strict()
    assert reading.examples == (Parallel("One.", "一。", ("一。",)), Parallel("Two.", "二。", ("二。",)))
    assert reading.notes == ("a.en.gz is the source, a.zh the target",)


@pytest.mark.parametrize("short", [0, 1])
def test_unequal_files_are_refused_whole(write, only_fault, short):
    texts = ["one\ntwo\n", "eins\nzwei\ndrei\n"]
    paths = [write("a.x", texts[short]), write("a.y", texts[1 - short])]
    reading = read_parallel(paths)
    line, _, message = only_fault(reading, paths[short])
    assert line == 3 and "ends after 2 lines" in message and "has 3" in message and not reading.examples


def test_a_line_blank_on_one_side_is_a_fault(write, only_fault):
    source, target = write("a.en", "one\n\n\nfour\n"), write("a.de", "eins\n\ndrei\nvier\n")
    reading = read_parallel([source, target])
    assert only_fault(reading, source) == (3, 1, "is blank, but a.de says 'drei' there.")
    assert [one.source for one in reading.examples] == ["one", "four"]
    assert "1 lines are blank in both files, the first 2: left out" in reading.notes


@pytest.mark.parametrize(
    "content, settings, wanted",
    [
        ("en\tzh\tattribution\nHi.\t嗨。\tx\n", {}, ("Hi.", "嗨。")),
        ("en\tzh\tattribution\nHi.\t嗨。\tx\n", {"source": "zh", "target": "en"}, ("嗨。", "Hi.")),
        ("en\tzh\tattribution\nHi.\t嗨。\tx\n", {"source": "zh"}, ("嗨。", "Hi.")),
        ("en\tzh\tattribution\nHi.\t嗨。\tx\n", {"source": 2, "target": 1}, ("嗨。", "Hi.")),
        ("Hi.\t嗨。\tx\n", {}, ("Hi.", "嗨。")),
        ("id\ttarget\tsource\n1\t嗨。\tHi.\n", {"header": True}, ("Hi.", "嗨。")),
    ],
)
def test_pairs_of_a_table(write, content, settings, wanted):
    reading = read_parallel(write("a.tsv", content), **settings).strict()
    assert [(one.source, one.target) for one in reading.examples] == [wanted]


def test_lists_of_sentences_and_several_answers(write):
    lines = [
        {"source": ["One.", "Two."], "target": ["Short.", "Brief."]},
        {"source": ["一。", "二。"], "target": "短。"},
    ]
    reading = read_parallel(write("a.jsonl.gz", "\n".join(json.dumps(line, ensure_ascii=False) for line in lines)))
    assert reading.strict().examples == (
        Parallel("One. Two.", "Short.", ("Short.", "Brief.")),
        Parallel("一。二。", "短。", ("短。",)),
    )


@pytest.mark.parametrize("target", [[], ["a", ""], [1], {"a": 1}, "", None])
def test_targets_that_are_no_sentences(write, only_fault, target):
    path = write(
        "a.jsonl", json.dumps({"source": "a", "target": "b"}) + "\n" + json.dumps({"source": "a", "target": target})
    )
    reading = read_parallel(path)
    assert only_fault(reading, path)[0] == 2 and len(reading) == 1


def test_joined_puts_blanks_where_the_script_has_them():
    assert join_sentences(["a.", "b.", "好。", "c"]) == "a. b. 好。c"


def test_documents_keep_every_character(write):
    text = "第一行\n\n  third, indented \nlast"
    (document,) = read_lines(write("a.txt", text)).strict().examples
    assert document.text == text and document.lines == ["第一行", "", "  third, indented ", "last"]


def test_documents_are_plain_text(write):
    with pytest.raises(BadInput, match="no plain text"):
        read_lines(write("a.csv", "a,b\n"))


def test_thirty_thousand_pairs_in_a_second(write):
    path = write("a.tsv", "en\tde\n" + "\n".join(f"a sentence number {n}\tSatz Nummer {n}" for n in range(30_000)))
    gc.collect()
    gc.freeze()  # what other tests left in memory is not traversed while this one allocates
    try:
        start = time.process_time()
        assert len(read_parallel(path).strict()) == 30_000
        assert time.process_time() - start < 1
    finally:
        gc.unfreeze()
