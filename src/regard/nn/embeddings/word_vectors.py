"""One-hot vectors, and pretrained word vectors from files."""

from __future__ import annotations

import codecs
import gzip
import io
import logging
import math
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ...attention.parts.part import check_count
from ...errors import BadInput, explain_damage
from ...limits import LINE_BYTES, NAME_LENGTH, VECTOR_NUMBERS, expansion_excess

log = logging.getLogger(__name__)

GZIP = b"\x1f\x8b"
FREE_BYTES = 2**22
"""Bytes that a gzipped file may grow to however small it is; each takes far longer to read than to unzip."""
LARGEST_DIM = 100_000  # two larger numbers are not a header
CONTROL = bytes({*range(32)} - {*b"\t\n\r"})


class OneHot(nn.Module):
    """Tokens as one-hot vectors of `size`, or with `dim` as these times a learned matrix.

        y = onehot(token) · weight = weight[token]

    `[batch, tokens]` whole numbers → `[batch, tokens, size]`, or `[batch, tokens, dim]`: a row of the matrix is looked
    up, and the one-hot vectors are never made.

    >>> OneHot(3)(torch.tensor([[2, 0]])).tolist()
    [[[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]]
    """

    def __init__(self, size: int, dim: int | None = None, generator: torch.Generator | None = None) -> None:
        super().__init__()
        check_count(size, "OneHot's size", 1)
        self.size, self.dim = size, size if dim is None else dim
        self.weight = None
        if dim is not None:
            check_count(dim, "OneHot's dim", 1)
            self.weight = nn.Parameter(torch.randn(size, dim, generator=generator) * dim**-0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        need_tokens(tokens, self.size)
        if self.weight is not None:
            return nn.functional.embedding(tokens, self.weight)
        return nn.functional.one_hot(tokens.long(), self.size).to(torch.get_default_dtype())

    def extra_repr(self) -> str:
        return f"{self.size}" if self.weight is None else f"{self.size}, dim={self.dim}"


def need_tokens(tokens: Tensor, size: int) -> None:
    """Raise unless these are whole numbers below `size`; on a GPU the range is left to the kernel's own check."""
    if tokens.dtype.is_floating_point or tokens.dtype == torch.bool:
        raise BadInput(f"tokens are {tokens.dtype}; they must be whole numbers from 0 to {size - 1}.")
    if tokens.device.type == "cpu" and tokens.numel() and not torch.compiler.is_compiling():
        least, most = int(tokens.min()), int(tokens.max())
        if least < 0 or most >= size:
            raise BadInput(f"tokens go from {least} to {most}; OneHot({size}) takes 0 … {size - 1}.")


@dataclass(frozen=True, eq=False)
class WordVectors:
    """Words and their vectors `[words, dim]`."""

    words: Sequence[str]
    vectors: Tensor

    def __post_init__(self) -> None:
        if self.vectors.dim() != 2 or len(self.words) != self.vectors.shape[0]:
            raise BadInput(
                f"There are {len(self.words)} words and vectors {list(self.vectors.shape)}; they must be [words, dim]."
            )

    def __repr__(self) -> str:
        return f"WordVectors({len(self.words)} words, dim={self.dim})"

    @property
    def dim(self) -> int:
        return self.vectors.shape[1]

    def rows(self, vocabulary: Sequence[str] | Mapping[str, int]) -> Tensor:
        """The row of the vector of each word of the vocabulary, −1 where there is none; `[vocabulary]`."""
        row = {word: index for index, word in enumerate(self.words)}
        ids = vocabulary if isinstance(vocabulary, Mapping) else {word: index for index, word in enumerate(vocabulary)}
        rows = torch.full((max(ids.values(), default=-1) + 1,), -1)
        for word, token in ids.items():
            rows[token] = row.get(word, -1)
        return rows

    def embedding(
        self, vocabulary: Sequence[str] | Mapping[str, int], generator: torch.Generator, frozen: bool = False
    ) -> nn.Embedding:
        """An embedding `[vocabulary, dim]` in which known words have their vectors.

        The others are drawn from a normal distribution with the mean and deviation that the vectors have in each
        dimension. The number of known words is logged; `rows(vocabulary) >= 0` marks them.

        >>> vectors = WordVectors(["cat", "dog"], torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        >>> embedding = vectors.embedding(["dog", "axolotl"], torch.Generator().manual_seed(0))
        >>> embedding.weight[0].tolist(), vectors.rows(["dog", "axolotl"]).tolist()
        ([3.0, 4.0], [1, -1])
        """
        rows = self.rows(vocabulary)
        known = rows >= 0
        log.info("%d of %d words have a vector of their own", int(known.sum()), len(rows))
        random = torch.randn(len(rows), self.dim, generator=generator)
        if len(self.words):
            random = self.vectors.mean(0) + self.vectors.std(0, correction=0) * random
        weight = torch.where(known[:, None], self.vectors[rows.clamp(min=0)], random) if len(self.words) else random
        return nn.Embedding.from_pretrained(weight, freeze=frozen)


Read = tuple[list[str], array, int]
"""Words, their numbers one after another, and how many each has."""


class Header(NamedTuple):
    """The first line of a word2vec file."""

    words: int
    dim: int


def read_vectors(path: str | Path) -> WordVectors:
    """The word vectors in a file: word2vec's text or binary form or GloVe's text, gzipped or not; its content decides.

    word2vec's files begin with `count dim`; then each word is followed by a space and its numbers, as text on a line or
    as `dim` little-endian float32 and a newline (or none). GloVe's have no first line. A word that comes again keeps
    its first vector. Raises `BadInput` with file and line for what cannot be read.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile("w", suffix=".txt", delete=False) as file:
    ...     _ = file.write("cat 1 2\\ndog 3 4\\n")
    >>> read_vectors(file.name)
    WordVectors(2 words, dim=2)
    """
    path = Path(path)
    with explain_damage(path):
        try:
            words, numbers, dim = read_file(path)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise BadInput(f"{path}: the gzipped data is cut or damaged ({error}). Get the file again.") from None
        vectors = torch.frombuffer(numbers, dtype=torch.float32).view(-1, dim) if words else torch.empty(0, dim)
        return drop_duplicates(path, words, vectors)


def read_file(path: Path) -> Read:
    """Words, numbers and their dim, in the form that the first line says."""
    with open_plain(path) as stream:
        first = next(read_lines(path, stream), b"")
        header = header_of(first)
        if header is None:
            return read_text(path, stream, None, first)
        if is_text(stream, header.dim):
            return read_text(path, stream, header, b"")
        return read_binary(path, stream, header)


def open_plain(path: Path) -> io.BufferedReader:
    """The file's bytes, unzipped where they are zipped."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}. Give the path of a file of word vectors.") from None
    if file.peek(2)[:2] != GZIP:
        return file
    file.close()
    return io.BufferedReader(gzip.open(path), 1 << 16)  # type: ignore[arg-type]


def read_lines(path: Path, stream: io.BufferedReader) -> Iterator[bytes]:
    """The lines; `BadInput` for one that is too long."""
    limit = LINE_BYTES.value
    while line := stream.readline(limit + 1):
        if len(line) > limit:
            raise BadInput(f"{path}: {LINE_BYTES.excess(len(line))}")
        yield line


def check_budget(path: Path, stream: io.BufferedReader, numbers: int) -> None:
    """Raise `BadInput` for a file with too many numbers, or that grows too much when it is unzipped."""
    if message := VECTOR_NUMBERS.excess(numbers):
        raise BadInput(f"{path}: {message}")
    if isinstance(stream.raw, gzip.GzipFile):
        unpacked = stream.tell()
        if message := expansion_excess(path.stat().st_size, unpacked, FREE_BYTES):
            raise BadInput(f"{path}: {message}")


def header_of(line: bytes) -> Header | None:
    """(count, dim) where the line is two whole numbers."""
    fields = line.split()
    if len(fields) != 2 or not all(field.isdigit() for field in fields):
        return None
    count, dim = (int(field) for field in fields)
    return Header(count, dim) if 0 < dim <= LARGEST_DIM else None


def is_text(stream: io.BufferedReader, dim: int) -> bool:
    """Whether the bytes after the first line are text; nothing is taken from the stream.

    A line of the right number of numbers is text in any encoding; so is UTF-8 without control characters.
    """
    chunk = stream.peek(1 << 14)
    line = chunk.partition(b"\n")[0]
    if numbers_of(line.split()[1:]) and len(line.split()) == dim + 1:
        return True
    if chunk.translate(None, CONTROL) != chunk:
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(chunk)
    except UnicodeDecodeError:
        return False
    return True


def read_text(path: Path, stream: io.BufferedReader, header: Header | None, first: bytes) -> Read:
    """Words, numbers and their dim, line by line; `first` is the first line where it is no header."""
    dim = header.dim if header else len(first.split()) - 1
    words, numbers = [], array("f")
    lines = chain([] if header else [first], read_lines(path, stream))
    for at, line in enumerate(lines, 2 if header else 1):
        if at % 1024 == 0:
            check_budget(path, stream, len(numbers))
        if line.strip():
            word, vector = read_line(line, dim, f"{path}, line {at}")
            words.append(word)
            numbers.extend(vector)
    if header and len(words) != header.words:
        raise BadInput(f"{path}, line 1 says {header.words} words and {len(words)} follow. Get the whole file.")
    if not words and not header:
        raise BadInput(f"{path} has no word vectors in it. Give a word2vec or GloVe file.")
    return words, numbers, dim


def read_line(line: bytes, dim: int, where: str) -> tuple[str, list[float]]:
    """A word, which may have spaces in it, and its numbers."""
    try:
        text = line.decode("utf-8").rstrip(" \t\r\n")
    except UnicodeDecodeError as error:
        raise BadInput(f"{where}: byte {error.start + 1} is not UTF-8. Convert the file (iconv -t UTF-8).") from None
    word, *fields = text.replace("\t", " ").rsplit(" ", dim) if dim > 0 else [text]
    vector = numbers_of(fields)
    if not vector or len(fields) != dim or not word or numbers_of(word.split(" ")[1:]):
        raise BadInput(
            f"{where}: {quote(text)} is not a word and {max(dim, 1)} numbers, as line 1 has. Correct or drop it."
        )
    return word, vector


def numbers_of(fields: Sequence[str | bytes]) -> list[float]:
    """The fields as numbers; empty when one of them is not a finite number."""
    try:
        numbers = [float(field) for field in fields]
    except ValueError:
        return []
    return numbers if all(map(math.isfinite, numbers)) else []


def read_binary(path: Path, stream: io.BufferedReader, header: Header) -> Read:
    """Words and numbers of word2vec's binary form."""
    words, numbers = [], array("f")
    for at in range(1, header.words + 1):
        where = f"{path}, word {at} of {header.words}"
        words.append(read_word(stream, where))
        data = stream.read(4 * header.dim)
        if len(data) < 4 * header.dim:
            raise BadInput(f"{where}: it has {len(data)} of {4 * header.dim} bytes. The file is cut; get it whole.")
        numbers.frombytes(data)
        if at % 1024 == 0:
            check_budget(path, stream, len(numbers))
        if not all(map(math.isfinite, numbers[-header.dim :])):
            raise BadInput(f"{where} ({quote(words[-1])}): a number is not finite. The file is damaged; get it again.")
    if stream.read(2).strip():
        raise BadInput(f"{path}: line 1 says {header.words} words of {header.dim} numbers, and more follows.")
    return words, numbers, header.dim


def read_word(stream: io.BufferedReader, where: str) -> str:
    """The bytes up to a space, less the newline that ends the vector before."""
    letters = []
    for letter in iter(partial(stream.read, 1), b" "):
        if not letter:
            raise BadInput(f"{where}: the file ends before it. It is cut; get it whole.")
        letters.append(letter)
        if message := NAME_LENGTH.excess(len(letters)):
            raise BadInput(f"{where}: {message}")
    try:
        return b"".join(letters).lstrip(b"\n").decode("utf-8")
    except UnicodeDecodeError:
        raise BadInput(f"{where}: its bytes are not UTF-8. The file is damaged, or another encoding's.") from None


def drop_duplicates(path: Path, words: list[str], vectors: Tensor) -> WordVectors:
    """The words with their first vectors."""
    first = {word: index for index, word in reversed(list(enumerate(words)))}
    if len(first) == len(words):
        return WordVectors(words, vectors)
    log.warning("%s: %d words come more than once; their first vector is kept", path, len(words) - len(first))
    kept = sorted(first.values())
    return WordVectors([words[index] for index in kept], vectors[kept])


def quote(text: str) -> str:
    """The beginning of a line, quoted."""
    return repr(text if len(text) <= 40 else text[:40] + "…")
