"""Tagged sentences against the conllu package, and each thing that can be wrong with a line."""

import time

import conllu
import pytest

from regard.data.tagged import Tagged, read_tagged, read_words
from regard.errors import BadInput


def line(*cells):
    return "\t".join([*map(str, cells), *["_"] * (10 - len(cells))])


GOOD = "\n".join(
    [
        "# sent_id = 1",
        "# text = 我不去 don't",
        line(1, "我", "我", "PRON", "PRP", "Number=Sing", 3, "nsubj"),
        line(2, "不", "不", "ADV", "RB", "_", 3, "advmod"),
        line(3, "去", "去", "VERB", "VV", "_", 0, "root"),
        line("3.1", "去", "去", "VERB", "VV"),
        line("4-5", "don't"),
        line(4, "do", "do", "AUX", "VBP", "_", 3, "aux"),
        line(5, "n't", "not", "PART", "RB", "_", 3, "advmod"),
        "",
        line(1, "10 000", "10000", "NUM", "CD", "_", 0, "root"),
        "",
        "",
    ]
)


@pytest.mark.parametrize("column", ["upos", "xpos", "deprel", "lemma"])
def test_conllu_equals_the_package(write, column):
    wanted = [
        Tagged(*zip(*((word["form"], word[column]) for word in sentence if isinstance(word["id"], int)), strict=True))
        for sentence in conllu.parse(GOOD)
    ]
    assert list(read_tagged(write("a.conllu.gz", GOOD), column=column).strict().examples) == wanted


def test_upos_unless_asked_and_known_by_its_columns(write):
    reading = read_tagged(write("a.txt", GOOD)).strict()
    assert reading.examples[0].words == ("我", "不", "去", "do", "n't")
    assert reading.examples[0].tags == ("PRON", "ADV", "VERB", "AUX", "PART")


@pytest.mark.parametrize(
    "bad, line_number, column, message",
    [
        (line(1, "a", "a", "X")[:-2], 5, None, "has 9 columns; CoNLL-U has 10"),
        ("1 a a X _ _ _ _ _ _", 5, None, "has 1 columns"),
        (line("x", "a", "a", "X"), 5, 1, "the id is 'x'; wanted a number"),
        (line(2, "a", "a", "X"), 5, 1, "the id is 2; wanted 1. Is a line missing"),
        (line(1, "a", "a", "X") + "\n" + line(1, "b", "b", "X"), 6, 1, "Is a blank line missing before it?"),
        (line(1, "", "a", "X"), 5, 3, "the word (column 2) is empty."),
        (line(1, "词", "a"), 5, 7, "the word '词' has no upos."),
        ("# alone", 5, None, "is a sentence without words."),
    ],
)
def test_bad_lines_of_conllu(write, only_fault, bad, line_number, column, message):
    good = line(1, "good", "good", "ADJ")
    path = write("a.conllu", f"# comment\n{good}\n\n\n{bad}\n\n{good}\n")
    reading = read_tagged(path)
    found = only_fault(reading, path)
    assert found[:2] == (line_number, column) and message in found[2]
    assert reading.examples == (Tagged(("good",), ("ADJ",)),) * 2


def test_a_column_that_conllu_does_not_have(write):
    with pytest.raises(BadInput, match=r"no column 'pos' of tags\. Take one of lemma, upos"):
        read_tagged(write("a.conllu", GOOD), column="pos")


def test_comments_alone_are_a_fault(write, only_fault):
    assert only_fault(read_tagged(write("a.conllu", "# one\n# two\n"))) == (1, None, "has comments only.")


@pytest.mark.parametrize("between", ["\t", " ", "   "])
def test_two_columns(write, between):
    text = f"我{between}PRON\n去{between}VERB\n\n\nok{between}INTJ"
    reading = read_tagged(write("a.txt", text)).strict()
    assert reading.examples == (Tagged(("我", "去"), ("PRON", "VERB")), Tagged(("ok",), ("INTJ",)))
    assert "tag = column 2" in reading.notes[0]


def test_more_columns_have_the_tag_last_or_where_said(write):
    path = write("a.conll", "EU NNP B-NP B-ORG\nrejects VBZ B-VP O\n")
    assert read_tagged(path).strict().examples[0].tags == ("B-ORG", "O")
    assert read_tagged(path, column=2).strict().examples[0].tags == ("NNP", "VBZ")
    assert read_tagged(path, column="3").strict().examples[0].tags == ("B-NP", "B-VP")
    for column in (1, 5, "upos"):
        with pytest.raises(BadInput, match="4 columns without names"):
            read_tagged(path, column=column)


def test_beginnings_of_documents_are_no_sentences(write):
    text = "-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\nsleeps VBZ B-VP O\n\n-DOCSTART-\n\nhe PRP B-NP O\n"
    reading = read_tagged(write("a.conll", text)).strict()
    assert [example.words for example in reading.examples] == [("EU", "sleeps"), ("he",)]


@pytest.mark.parametrize(
    "name, text",
    [
        ("a.conllu", f"# text = a cat\n{line(1, 'a')}\n{line('2-3', 'cats')}\n{line(2, 'cat')}\n\n{line(1, 'ok')}\n"),
        ("a.txt", "a DET\ncat NOUN\n\nok INTJ\n"),
        ("a.tsv", "a\tx\tDET\ncat\tx\tNOUN\n\nok\tx\tINTJ\n"),
        ("a.jsonl", '{"id": 1, "tokens": ["a", "cat"]}\n{"id": 2, "tokens": ["ok"]}\n'),
    ],
)
def test_words_alone(write, name, text):
    assert read_words(write(name, text), {"DET", "NOUN", "INTJ"}.__contains__) == [("a", "cat"), ("ok",)]


def test_plain_texts_and_tables_have_no_words(write):
    for name, text in (
        ("a.txt", "a cat\nok\n"),
        ("a.csv", "text,tag\na cat,NOUN\n"),
        ("a.jsonl", '{"text": "a cat"}\n'),
    ):
        assert read_words(write(name, text), {"NOUN"}.__contains__) is None


@pytest.mark.parametrize(
    "bad, column, message",
    [
        ("word", None, "is 'word', 1 columns; wanted 2."),
        ("a\tb\tc", None, "3 columns; wanted 2."),
        ("\tNOUN", 1, "the word (column 1) is empty."),
        ("词语\t ", 4, "the tag (column 2) is empty."),
    ],
)
def test_bad_lines_of_columns(write, only_fault, bad, column, message):
    path = write("a.txt", f"one\tNUM\n\ntwo\tNUM\n{bad}\n\nthree\tNUM\n")
    reading = read_tagged(path)
    found = only_fault(reading, path)
    assert found[:2] == (4, column) and message in found[2]
    assert [one.words for one in reading.examples] == [("one",), ("three",)]


def test_plain_text_is_no_tagged_file(write, only_fault):
    assert "wanted a word and its tag" in only_fault(read_tagged(write("a.txt", "\nword\nword\n")))[2]


def test_json_lists(write):
    text = '{"tokens": ["我", "去"], "ner_tags": [0, 3]}\n{"tokens": ["a"], "ner_tags": ["X"]}\n'
    assert read_tagged(write("a.jsonl", text)).strict().examples == (
        Tagged(("我", "去"), ("0", "3")),
        Tagged(("a",), ("X",)),
    )
    both = '{"words": ["a"], "tags": ["X"], "other": ["Y"]}\n'
    assert read_tagged(write("b.jsonl", both), column="other").strict().examples == (Tagged(("a",), ("Y",)),)


@pytest.mark.parametrize(
    "bad, column, message",
    [
        ('{"words": ["a", "b"], "tags": ["X"]}', 23, "there are 2 words and 1 tags; wanted a tag for each word."),
        ('{"words": ["a", ""], "tags": ["X", "Y"]}', 2, "number 2 of the words is ''; wanted text."),
        ('{"words": [], "tags": []}', 2, "the words are []; wanted a list that is not empty."),
        ('{"words": "a b", "tags": ["X"]}', 2, "the words are 'a b'"),
        ('{"words": ["a"]}', 1, "the tags are None"),
        ('{"words": ["a", ', 17, "is no JSON"),
    ],
)
def test_bad_lines_of_json(write, only_fault, bad, column, message):
    path = write("a.jsonl", '{"words": ["a"], "tags": ["X"]}\n' + bad + "\n")
    reading = read_tagged(path)
    found = only_fault(reading, path)
    assert found[:2] == (2, column) and message in found[2] and len(reading) == 1


def test_two_hundred_thousand_words_in_three_seconds(write):
    sentence = "\n".join(line(n, f"word{n}", "word", "NOUN", "NN", "_", 0, "dep") for n in range(1, 21))
    path = write("a.conllu", f"{sentence}\n\n" * 10_000)
    start = time.process_time()
    assert sum(len(one.words) for one in read_tagged(path).strict().examples) == 200_000
    assert time.process_time() - start < 3


def test_json_of_bad_lines_alone_has_their_faults_alone(write):
    reading = read_tagged(write("a.jsonl", "{bad\n[1]\n"))
    assert [fault.line for fault in reading.faults] == [1, 2] and not reading.examples
