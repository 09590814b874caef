"""SentencePiece vocabularies (`spiece.model`, `source.spm`), read from their own format into the `tokenizers` library.

The file is a protocol buffer of a few fields; read here directly, it needs no further package, and tokens keep the
offsets of their characters.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import BadInput, Unsupported
from ...limits import VOCABULARY_BYTES
from ..checkpoint.files import refuse_pointer

if TYPE_CHECKING:
    import tokenizers

UNIGRAM = 1
UNKNOWN, CONTROL, DEFINED, BYTE = 2, 3, 4, 6
Field = tuple[int, int | bytes]
"""A field of a protocol buffer: its number and its value."""


@dataclass(frozen=True)
class Pieces:
    """A unigram vocabulary: pieces with their log probabilities and types, and how texts are normalised."""

    pieces: list[tuple[str, float]]
    types: list[int]
    charsmap: bytes

    def of_type(self, piece_type: int) -> list[str]:
        return [piece for (piece, _), own in zip(self.pieces, self.types, strict=True) if own == piece_type]


def read_pieces(path: Path) -> Pieces:
    """The vocabulary in a SentencePiece file; `Unsupported` for a model type other than unigram."""
    refuse_pointer(path)
    if message := VOCABULARY_BYTES.excess(path.stat().st_size):
        raise BadInput(f"{path}: {message}")
    try:
        return parse_pieces(path, list(read_fields(path.read_bytes())))
    except (IndexError, ValueError, struct.error, AttributeError, TypeError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{path} is not a SentencePiece model ({error}). Fetch it again.") from error


def parse_pieces(path: Path, message: list[Field]) -> Pieces:
    trainer = {number: value for part in messages_inside(message, 2) for number, value in read_fields(part)}
    normalizer = {number: value for part in messages_inside(message, 3) for number, value in read_fields(part)}
    if trainer.get(3, UNIGRAM) != UNIGRAM:
        raise Unsupported(
            f"{path} is a SentencePiece model of type {trainer[3]}; only unigram (1) is read. Save the tokenizer as "
            "tokenizer.json with the program that made it."
        )
    pieces = [dict(read_fields(part)) for part in messages_inside(message, 1)]
    if not pieces:
        raise BadInput(f"{path} has no pieces, so it is not a SentencePiece model. Fetch it again.")
    return Pieces(
        [(as_bytes(piece[1]).decode(), struct.unpack("<f", as_bytes(piece.get(2, bytes(4))))[0]) for piece in pieces],
        [as_number(piece.get(3, 1)) for piece in pieces],
        checked_charsmap(as_bytes(normalizer.get(2, b""))),
    )


def checked_charsmap(charsmap: bytes) -> bytes:
    """The map of characters, whose first four bytes say how long its trie is: so much is asked for to read it."""
    if charsmap and int.from_bytes(charsmap[:4], "little") > len(charsmap) - 4:
        raise ValueError("its map of characters is cut off")
    return charsmap


def messages_inside(message: list[Field], number: int) -> list[bytes]:
    """The values of the fields of a number, which are messages themselves."""
    return [as_bytes(value) for own, value in message if own == number]


def as_bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError(f"the number {value} where bytes are expected")
    return value


def as_number(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise ValueError("bytes where a number is expected")
    return value


def read_fields(data: bytes) -> Iterator[Field]:
    """The fields of a protocol buffer: number and value (an integer, or the bytes)."""
    offset = 0
    while offset < len(data):
        key, offset = read_varint(data, offset)
        wire_type = key & 7
        if wire_type == 0:
            value, offset = read_varint(data, offset)
        elif wire_type in (1, 2, 5):
            size, offset = read_varint(data, offset) if wire_type == 2 else ({1: 8, 5: 4}[wire_type], offset)
            value, offset = data[offset : offset + size], offset + size
        else:
            raise ValueError(f"field of wire type {wire_type} at byte {offset}")
        if offset > len(data):
            raise ValueError(f"cut off at byte {len(data)}")
        yield key >> 3, value


def read_varint(data: bytes, offset: int) -> tuple[int, int]:
    """The number at a byte, and the offset after it."""
    number = shift = 0
    while True:
        byte = data[offset]
        number |= (byte & 127) << shift
        offset, shift = offset + 1, shift + 7
        if byte < 128:
            return number, offset
        if shift > 63:
            raise ValueError(f"number of more than 64 bits at byte {offset}")


def make_unigram_backend(pieces: Pieces, extra: Sequence[str] = ()) -> tokenizers.Tokenizer:
    """A `tokenizers.Tokenizer` that splits texts as SentencePiece does; `extra` pieces follow the vocabulary."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    vocabulary = [*pieces.pieces, *((piece, 0.0) for piece in extra)]
    unknown = pieces.types.index(UNKNOWN) if UNKNOWN in pieces.types else None
    backend = Tokenizer(models.Unigram(vocabulary, unk_id=unknown, byte_fallback=BYTE in pieces.types))
    charsmap = [normalizers.Precompiled(pieces.charsmap)] if pieces.charsmap else []
    single_spaces = normalizers.Replace(Regex(" {2,}"), " ")
    backend.normalizer = normalizers.Sequence([*charsmap, normalizers.Strip(), single_spaces])
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens([*pieces.of_type(UNKNOWN), *pieces.of_type(CONTROL), *extra])
    backend.add_tokens([AddedToken(piece, normalized=False) for piece in pieces.of_type(DEFINED)])
    return backend


@dataclass(frozen=True)
class RenumberedEncoding:
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

    def __init__(
        self, backend: tokenizers.Tokenizer, numbers: dict[str, int], unknown: str, special: Sequence[str]
    ) -> None:
        self.backend = backend
        self.numbers = numbers
        self.pieces = {number: piece for piece, number in numbers.items()}
        self.unknown = numbers[unknown]
        self.special = {*special, unknown}

    def encode_batch(self, inputs: list[str] | list[tuple[str, str]]) -> list[RenumberedEncoding]:
        return [self.renumber(encoding) for encoding in self.backend.encode_batch(inputs)]

    def renumber(self, encoding: tokenizers.Encoding) -> RenumberedEncoding:
        ids = [self.numbers.get(piece, self.unknown) for piece in encoding.tokens]
        return RenumberedEncoding(ids, encoding.type_ids, encoding.offsets, encoding.word_ids, encoding.sequence_ids)

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
