"""One-hot vectors against torch's, and word-vector files that the tests write byte by byte."""

import gzip
import logging
import struct

import pytest
import torch

from regard.errors import BadInput
from regard.nn.embeddings.word_vectors import OneHot, WordVectors, read_vectors

WORDS = ["the", "naïve", "猫", "e-mail", "</s>"]
DIM = 3


@pytest.fixture
def vectors(generator):
    return torch.randn(len(WORDS), DIM, generator=generator)


def as_text(vectors, header, ending="\n"):
    lines = [f"{len(vectors)} {vectors.shape[1]}"] if header else []
    lines += [" ".join([word, *(f"{x:.9g}" for x in row)]) for word, row in zip(WORDS, vectors.tolist(), strict=True)]
    return (ending.join(lines) + ending).encode()


def as_binary(vectors, newline=b"\n"):
    data = f"{len(vectors)} {vectors.shape[1]}\n".encode()
    for word, row in zip(WORDS, vectors.tolist(), strict=True):
        data += word.encode() + b" " + struct.pack(f"<{len(row)}f", *row) + newline
    return data


FORMS = {
    "word2vec text": lambda x: as_text(x, True),
    "word2vec text as word2vec.c writes it": lambda x: as_text(x, True, " \n"),
    "GloVe": lambda x: as_text(x, False),
    "GloVe from Windows": lambda x: as_text(x, False, "\r\n"),
    "binary": as_binary,
    "binary without newlines": lambda x: as_binary(x, b""),
}


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_back_what_was_written(form, zipped, vectors, tmp_path):
    path = tmp_path / "vectors"
    data = FORMS[form](vectors)
    path.write_bytes(gzip.compress(data) if zipped else data)
    read = read_vectors(path)
    assert list(read.words) == WORDS
    assert torch.equal(read.vectors, vectors)


def test_binary_with_many_words_and_large_dim(generator, tmp_path):
    vectors = torch.randn(len(WORDS), 700, generator=generator)
    (tmp_path / "v.bin").write_bytes(as_binary(vectors))
    assert torch.equal(read_vectors(tmp_path / "v.bin").vectors, vectors)


def test_binary_of_zeros_is_binary(tmp_path):
    (tmp_path / "v.bin").write_bytes(as_binary(torch.zeros(len(WORDS), DIM)))
    assert read_vectors(tmp_path / "v.bin").vectors.abs().sum() == 0


def test_a_word_of_glove_may_have_spaces(tmp_path):
    (tmp_path / "g.txt").write_text("the 1 2\n. . . 3 4\n")
    assert list(read_vectors(tmp_path / "g.txt").words) == ["the", ". . ."]


def test_a_word_that_comes_again_keeps_its_first_vector(tmp_path, caplog):
    (tmp_path / "g.txt").write_text("a 1 2\nb 3 4\na 5 6\n")
    with caplog.at_level(logging.WARNING):
        read = read_vectors(tmp_path / "g.txt")
    assert list(read.words) == ["a", "b"] and read.vectors.tolist() == [[1, 2], [3, 4]]
    assert "1 words come more than once" in caplog.text


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"2 3\na 1 2 3\nb 1 2\n", "line 3"),
        (b"2 3\na 1 2 3\nb 1 2 3 4\n", "line 3"),
        (b"2 3\na 1 2\nb 1 2 3\n", "line 2"),
        (b"a 1 2\nb 1 x\n", "line 2"),
        (b"a 1 2\nb 1 nan\n", "line 2"),
        (b"a 1 2\n 1 2\n", "line 2"),
        (b"3 2\na 1 2\nb 3 4\n", "says 3 words and 2 follow"),
        (b"1 2\na 1 2\nb 3 4\n", "says 1 words and 2 follow"),
        ("a 1 2\nnaïve 3 4\n".encode("latin-1"), "line 2: byte 3 is not UTF-8"),
        ("2 2\nnaïve 3 4\nb 1 2\n".encode("latin-1"), "line 2: byte 3 is not UTF-8"),
        (b"", "no word vectors"),
        (b"just some words\n", "line 1"),
        (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", "line 1"),
    ],
)
def test_bad_text_is_refused_with_its_line(data, says, tmp_path):
    path = tmp_path / "bad.txt"
    path.write_bytes(data)
    with pytest.raises(BadInput, match=says) as error:
        read_vectors(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("cut", [1, 5, 14, 20])
def test_cut_binary_is_refused(cut, vectors, tmp_path):
    (tmp_path / "cut.bin").write_bytes(as_binary(vectors, b"")[:-cut])
    with pytest.raises(BadInput, match=r"word (4|5) of 5"):
        read_vectors(tmp_path / "cut.bin")


def test_binary_with_more_than_it_says_is_refused(vectors, tmp_path):
    (tmp_path / "long.bin").write_bytes(as_binary(vectors) + b"more")
    with pytest.raises(BadInput, match="more follows"):
        read_vectors(tmp_path / "long.bin")


def test_binary_with_a_number_that_is_not_finite_is_refused(vectors, tmp_path):
    vectors[2, 1] = torch.inf
    (tmp_path / "inf.bin").write_bytes(as_binary(vectors))
    with pytest.raises(BadInput, match=r"word 3 of 5.*not finite"):
        read_vectors(tmp_path / "inf.bin")


def test_cut_gzip_is_refused(vectors, tmp_path):
    (tmp_path / "cut.gz").write_bytes(gzip.compress(as_text(vectors, True))[:-20])
    with pytest.raises(BadInput, match="gzipped data is cut"):
        read_vectors(tmp_path / "cut.gz")


def test_no_file_is_refused(tmp_path):
    with pytest.raises(BadInput, match="No such file"):
        read_vectors(tmp_path / "none")


@pytest.mark.parametrize("frozen", [False, True])
def test_embedding_has_known_words_and_draws_the_others(frozen, vectors, caplog):
    words = WordVectors(WORDS, vectors)
    with caplog.at_level(logging.INFO):
        embedding = words.embedding({"猫": 2, "[PAD]": 0, "the": 1}, torch.Generator().manual_seed(1), frozen)
    assert torch.equal(embedding.weight[1:].detach(), vectors[[0, 2]])
    assert embedding.weight.requires_grad is not frozen
    assert "2 of 3 words" in caplog.text
    again = words.embedding(["[PAD]", "the", "猫"], torch.Generator().manual_seed(1))
    assert torch.equal(again.weight, embedding.weight)
    other = words.embedding(["[PAD]", "the", "猫"], torch.Generator().manual_seed(2))
    assert not torch.equal(other.weight[0], embedding.weight[0])


def test_drawn_words_are_like_the_known_ones(generator):
    vectors = torch.randn(500, 2, generator=generator) * torch.tensor([0.1, 3.0]) + torch.tensor([5.0, 0.0])
    drawn = WordVectors([str(n) for n in range(500)], vectors).embedding([f"new {n}" for n in range(500)], generator)
    assert torch.allclose(drawn.weight.mean(0), vectors.mean(0), atol=0.5)
    assert torch.allclose(drawn.weight.std(0), vectors.std(0), rtol=0.2)


def test_vectors_that_do_not_fit_their_words_are_refused():
    with pytest.raises(BadInput, match="2 words and vectors \\[3, 4\\]"):
        WordVectors(["a", "b"], torch.zeros(3, 4))


def test_one_hot_equals_its_projection(generator):
    tokens = torch.randint(0, 7, (2, 5), generator=generator)
    plain, projected = OneHot(7), OneHot(7, 4, generator)
    assert plain(tokens).shape == (2, 5, 7)
    assert torch.equal(plain(tokens).argmax(-1), tokens) and torch.equal(plain(tokens).sum(-1), torch.ones(2, 5))
    by_hand = plain(tokens) @ projected.weight
    assert torch.equal(projected(tokens), by_hand)
    grad = torch.randn(2, 5, 4, generator=generator)
    (mine,) = torch.autograd.grad(projected(tokens), projected.weight, grad)
    (theirs,) = torch.autograd.grad(by_hand, projected.weight, grad)
    assert torch.allclose(mine, theirs)


@pytest.mark.parametrize("tokens", [torch.tensor([[7]]), torch.tensor([[-1]]), torch.tensor([[0.5]])])
def test_one_hot_refuses_tokens_it_does_not_know(tokens):
    with pytest.raises(BadInput, match="tokens"):
        OneHot(7)(tokens)
