"""Columns that are found by their values: headers without usual names, identifiers, texts, labels."""

import csv
import io

import pytest

from regard.data.text import read_parallel, read_texts

TEXTS = [f"this is the long text number {n} of the table" for n in range(12)]
SHORT = [f"what happened on day {n} of the year" for n in range(12)]
LABELS = ["ham", "spam", "ham"] * 4
DAYS = [f"2024-05-{n % 5 + 10}" for n in range(12)]
NAMES = ["red ball", "blue cup"] * 4 + [f"green hat {n}" for n in range(4)]
PRICES = [f"{n}.{n:02}" for n in range(12)]
PAGES = [f"https://example.com/{n}" for n in range(12)]


def table(write, names, *columns):
    file = io.StringIO()
    csv.writer(file).writerows([names, *zip(*columns, strict=True)] if names else zip(*columns, strict=True))
    return write("a.csv", file.getvalue())


@pytest.mark.parametrize(
    "names, columns, texts, labels",
    [
        (("v1", "v2"), (LABELS, TEXTS), TEXTS, LABELS),
        (("headline", "clickbait"), (TEXTS, ["0", "1"] * 6), TEXTS, ["0", "1"] * 6),
        (("id", "words", "verdict"), (range(12), TEXTS, LABELS), TEXTS, LABELS),
        (("PassengerId", "words", "verdict"), ([f"p-{n}" for n in range(12)], TEXTS, LABELS), TEXTS, LABELS),
        (("verdict", "stamp", "words"), (LABELS, [f"{n:08x}" for n in range(12)], TEXTS), TEXTS, LABELS),
        (("текст", "оценка"), (TEXTS, LABELS), TEXTS, LABELS),
        (("énoncé", "étiquette"), (TEXTS, LABELS), TEXTS, LABELS),
        (("What did you think?", "Rating: good or bad"), (TEXTS, LABELS), TEXTS, LABELS),
        (("", "words", "verdict"), (range(12), TEXTS, LABELS), TEXTS, LABELS),  # as pandas writes its index
        (("description", "price"), (NAMES, PRICES), NAMES, PRICES),  # more prices than descriptions
        (("when", "words", "verdict"), (DAYS, TEXTS, LABELS), TEXTS, LABELS),
        (("page", "words", "verdict", "licence"), (PAGES, TEXTS, LABELS, ["CC0"] * 12), TEXTS, LABELS),
        (
            ("product", "customer_review", "star_rating", "region"),
            (SHORT, TEXTS, LABELS, ["a", "b"] * 6),
            TEXTS,
            LABELS,
        ),
        (("微博标题", "微博中文内容", "情感倾向"), (SHORT, TEXTS, LABELS), TEXTS, LABELS),
        (None, (LABELS, TEXTS), TEXTS, LABELS),
        (None, (range(12), TEXTS, LABELS), TEXTS, LABELS),
    ],
)
def test_text_and_label_by_values(write, names, columns, texts, labels):
    reading = read_texts(table(write, names, *columns)).strict()
    assert [example.text for example in reading.examples] == texts
    assert [example.label for example in reading.examples] == labels
    assert len(reading.notes) == 1 and ("there is no header" in reading.notes[0]) == (names is None)


@pytest.mark.parametrize(
    "names, columns",
    [
        (("id", "document", "summary"), (range(12), TEXTS, SHORT)),
        (("article", "highlights"), (TEXTS, SHORT)),
        (("question", "answer"), (TEXTS, SHORT)),
        (("article", "highlights", "id"), (TEXTS, SHORT, [f"{n:040x}" for n in range(12)])),
        (("highlights", "article"), (SHORT, TEXTS)),
        (("date", "page", "headlines", "text"), (DAYS, PAGES, SHORT, TEXTS)),
        (None, (TEXTS, SHORT)),
    ],
)
def test_pairs_by_values(write, names, columns):
    reading = read_parallel(table(write, names, *columns)).strict()
    assert [(pair.source, pair.target) for pair in reading.examples] == list(zip(TEXTS, SHORT, strict=True))


def test_two_columns_of_labels_are_refused(write, only_fault):
    reading = read_texts(table(write, ("words", "mood", "topic"), TEXTS, LABELS, ["a", "b"] * 6))
    assert "which column is the label?" in only_fault(reading)[2]


def test_columns_of_zeros_and_ones_are_label_sets(write, only_fault):
    names, flags = ("id", "words", "toxic", "threat"), (["1", "0", "0"] * 4, ["1", "1", "0"] * 4)
    path = table(write, names, range(12), TEXTS, *flags)
    assert "label=toxic,threat" in only_fault(read_texts(path))[2]
    reading = read_texts(path, label="toxic, threat", target="auto").strict()
    assert [example.label for example in reading.examples[:3]] == ['["toxic", "threat"]', '["threat"]', "[]"]
    assert [example.text for example in reading.examples] == TEXTS
    damaged = table(write, names, range(12), TEXTS, flags[0], ["1", "maybe", *flags[1][2:]])
    reading = read_texts(damaged, label="toxic,threat", target="auto")
    assert len(reading) == 11 and "'threat') is 'maybe'; wanted 0 or 1" in only_fault(reading)[2]
    assert "has no column 'threats'" in only_fault(read_texts(path, label="toxic,threats"))[2]


def test_short_sentences_are_no_header(write):
    rows = [("Hi", "嗨"), ("Run", "跑"), ("Wait", "等等"), ("I see", "我明白"), ("Go on", "继续"), ("Come in", "进来")]
    assert len(read_parallel(table(write, None, *zip(*rows, strict=True)))) == len(rows)


def test_a_label_that_stands_below_is_no_header(write):
    reading = read_texts(table(write, None, ["spam", *LABELS], ["free money", *TEXTS]))
    assert len(reading) == 13
