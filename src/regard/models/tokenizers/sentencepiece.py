"""SentencePiece vocabularies (`spiece.model`, `source.spm`), read from their own format into the `tokenizers` library.

The file is a protocol buffer of a few fields; read here directly, it needs no further package, and tokens keep the
places of their characters.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import BadInput, Unsupported
from ..checkpoint.files import refuse_pointer

UNIGRAM = 1
UNKNOWN, CONTROL, DEFINED, BYTE = 2, 3, 4, 6


@dataclass(frozen=True)
class Pieces:
    """A unigram vocabulary: pieces with their log probabilities and kinds, and how texts are normalised."""

    pieces: list[tuple[str, float]]
    kinds: list[int]
    charsmap: bytes

    def of_kind(self, kind: int) -> list[str]:
        return [piece for (piece, _), its in zip(self.pieces, self.kinds, strict=True) if its == kind]


def read_pieces(path: Path) -> Pieces:
    """The vocabulary in a SentencePiece file; `Unsupported` where it is of another kind than unigram."""
    refuse_pointer(path)
    try:
        return parse_pieces(path, list(fields(path.read_bytes())))
    except (IndexError, ValueError, struct.error, AttributeError, TypeError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{path} is not a SentencePiece model ({error}). Fetch it again.") from error


def parse_pieces(path: Path, message: list[tuple[int, Any]]) -> Pieces:
    trainer = {number: value for part in values(message, 2) for number, value in fields(part)}
    normalizer = {number: value for part in values(message, 3) for number, value in fields(part)}
    if trainer.get(3, UNIGRAM) != UNIGRAM:
        raise Unsupported(
            f"{path} is a SentencePiece model of kind {trainer[3]}; only unigram (1) is read. Save the tokenizer as "
            "tokenizer.json with the program that made it."
        )
    pieces = [dict(fields(part)) for part in values(message, 1)]
    if not pieces:
        raise BadInput(f"{path} has no pieces, so it is not a SentencePiece model. Fetch it again.")
    return Pieces(
        [(piece[1].decode(), struct.unpack("<f", piece.get(2, bytes(4)))[0]) for piece in pieces],
        [piece.get(3, 1) for piece in pieces],
        normalizer.get(2, b""),
    )


def values(message: list[tuple[int, Any]], number: int) -> list[Any]:
    return [value for its, value in message if its == number]


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a protocol buffer: number and value (an integer, or the bytes)."""
    place = 0
    while place < len(data):
        key, place = varint(data, place)
        kind = key & 7
        if kind == 0:
            value, place = varint(data, place)
        elif kind in (1, 2, 5):
            size, place = varint(data, place) if kind == 2 else ({1: 8, 5: 4}[kind], place)
            value, place = data[place : place + size], place + size
        else:
            raise ValueError(f"field of kind {kind} at byte {place}")
        if place > len(data):
            raise ValueError(f"cut off at byte {len(data)}")
        yield key >> 3, value


def varint(data: bytes, place: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[place]
        number |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return number, place


def unigram_backend(read: Pieces, extra: Sequence[str] = ()) -> Any:
    """A `tokenizers.Tokenizer` that parts texts as SentencePiece does; `extra` pieces follow the vocabulary."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = [*read.pieces, *((piece, 0.0) for piece in extra)]
    unknown = read.kinds.index(UNKNOWN) if UNKNOWN in read.kinds else None
    backend = Tokenizer(models.Unigram(vocabulary, unk_id=unknown, byte_fallback=BYTE in read.kinds))
    backend.normalizer = spaces_once(read.charsmap)
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens([*read.of_kind(UNKNOWN), *read.of_kind(CONTROL), *extra])
    backend.add_tokens([AddedToken(piece, normalized=False) for piece in read.of_kind(DEFINED)])
    return backend


def spaces_once(charsmap: bytes) -> Any:
    """SentencePiece's normalisation: its table of characters, then no space at the ends and one between words."""
    from tokenizers import Regex, normalizers

    table = [normalizers.Precompiled(charsmap)] if charsmap else []
    return normalizers.Sequence([*table, normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")])


@dataclass(frozen=True)
class Encoding:
    """The part of `tokenizers.Encoding` that is read here."""

    ids: list[int]
    type_ids: list[int]
    offsets: list[tuple[int, int]]
    word_ids: list[int | None]
    sequence_ids: list[int | None]


class Renumbered:
    """A backend whose pieces have the numbers of another vocabulary, as Marian's `vocab.json` gives them.

    A piece that this vocabulary lacks becomes the unknown one.
    """

    def __init__(self, backend: Any, numbers: dict[str, int], unknown: str, special: Sequence[str]) -> None:
        self.backend = backend
        self.numbers = numbers
        self.pieces = {number: piece for piece, number in numbers.items()}
        self.unknown = numbers[unknown]
        self.special = {*special, unknown}

    def encode_batch(self, inputs: list[Any]) -> list[Encoding]:
        return [self.renumber(encoding) for encoding in self.backend.encode_batch(inputs)]

    def renumber(self, found: Any) -> Encoding:
        ids = [self.numbers.get(piece, self.unknown) for piece in found.tokens]
        return Encoding(ids, found.type_ids, found.offsets, found.word_ids, found.sequence_ids)

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        pieces = [self.pieces[number] for number in ids if number in self.pieces]
        left_out = self.special if skip_special_tokens else ()
        return self.backend.decoder.decode([piece for piece in pieces if piece not in left_out]).strip()

    def id_to_token(self, number: int) -> str | None:
        return self.pieces.get(number)

    def token_to_id(self, piece: str) -> int | None:
        return self.numbers.get(piece)

    def get_vocab_size(self) -> int:
        return len(self.numbers)
