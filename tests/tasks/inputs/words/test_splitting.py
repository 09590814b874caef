"""Texts are split into words as the training data of a tagger has them."""

import pytest

from regard.tasks.inputs.words.splitting import WordSplitter
from regard.train.run import open_run

TREEBANK = {"Where", "'s", "the", "cat", "?", "do", "n't", "U.S.", ",", ".", "(", ")", "-", "!", "...", '"', "ca"}


def split(words, text):
    return [text[start:end] for start, end in WordSplitter(words).spans(text)]


@pytest.mark.parametrize(
    "text, words",
    [
        ("Where's the cat?", ["Where", "'s", "the", "cat", "?"]),
        ("Don't, U.S.", ["Do", "n't", ",", "U.S."]),
        ("can’t", ["ca", "n’t"]),
        ("(flibbet) 3.14 1,000!", ["(", "flibbet", ")", "3.14", "1,000", "!"]),
        ("wait... what", ["wait", "...", "what"]),
        ("already split , as is .", ["already", "split", ",", "as", "is", "."]),
        ("  two  blanks ", ["two", "blanks"]),
        ("", []),
    ],
)
def test_as_a_treebank_does(text, words):
    assert split(TREEBANK, text) == words


def test_data_that_does_not_split_is_not_split():
    assert split({"cat?", "don't", "the"}, "the cat? don't dog?") == ["the", "cat?", "don't", "dog?"]


def test_the_shipped_tagger_reads_a_sentence_as_people_type_it():
    task, model, _ = open_run("tagger")
    prediction = task.predict(model, ["Where's the cat?"])[0]
    assert prediction.words == ("Where", "'s", "the", "cat", "?")
    assert prediction.tags == ("ADV", "AUX", "DET", "NOUN", "PUNCT")
