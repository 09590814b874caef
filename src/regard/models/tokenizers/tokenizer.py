"""Tokenizers: texts to tokens and back.

`Tokenizer` wraps the `tokenizers` library, whose `tokenizer.json` holds everything. `files` builds the same from the
older files of a checkpoint, `training` from texts.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from ...errors import BadInput, explain_damage, is_foreign
from ...nn.old_names import accept_old_names
from ..checkpoint.files import JsonObject, replace_files, text_writer
from .files import read_folder
from .training import SPECIAL, Special, Unit, train_backend

SETTINGS = "tokenizer_config.json"

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Encoded:
    """Texts as tokens, each row padded at its end.

    `tokens` and `segments` are `[batch, tokens]`, `lengths` `[batch]`. `offsets` and `words` say for every real token
    of a row the characters and the word of its text that it covers (`None` for special tokens).
    """

    tokens: Tensor
    lengths: Tensor
    segments: Tensor | None
    offsets: list[list[tuple[int, int]]]
    words: list[list[int | None]]

    @property
    def inputs(self) -> dict[str, Tensor]:
        """The arguments of a model: `model(**encoded.inputs)`."""
        inputs = {"tokens": self.tokens, "lengths": self.lengths}
        return inputs if self.segments is None else inputs | {"segments": self.segments}


@dataclass(frozen=True)
class EncodedText:
    """One encoded text or pair; `sides` is 0 or 1 by text, `None` for a token of the template."""

    tokens: list[int]
    segments: list[int]
    offsets: list[tuple[int, int]]
    words: list[int | None]
    sides: list[int | None]

    def select(self, indices: list[int]) -> EncodedText:
        return EncodedText(*([column[index] for index in indices] for column in vars(self).values()))


class Tokenizer:
    """Texts to tokens and back.

    >>> tokenizer = Tokenizer.train(["the cat sat", "the dog sat"], unit="words", size=20)
    >>> encoded = tokenizer(["the cat", "the dog sat"])
    >>> encoded.tokens.shape, encoded.lengths.tolist()
    (torch.Size([2, 5]), [4, 5])
    >>> tokenizer.pieces(encoded.tokens[0]), tokenizer.decode(encoded.tokens)
    (['[CLS]', 'the', 'cat', '[SEP]', '[PAD]'], ['the cat', 'the dog sat'])
    """

    def __init__(self, backend: Any, settings: JsonObject, source_files: dict[str, bytes] | None = None) -> None:
        self.backend = backend
        self.settings = settings
        self.source_files = source_files or {}
        self.target: Tokenizer = self
        """The tokenizer of the target language, where it differs from that of the source."""

    @classmethod
    def from_folder(cls, path: str | Path) -> Tokenizer | None:
        """The tokenizer of a checkpoint folder; `None` where the folder has no vocabulary."""
        with explain_damage(path):
            loaded = read_folder(Path(path))
        if loaded is None:
            return None
        contents = {file.name: file.read_bytes() for file in loaded.source_files}
        tokenizer = cls(loaded.backend, loaded.settings, contents)
        if loaded.target is not None:
            tokenizer.target = cls(loaded.target, loaded.settings, contents)
        return tokenizer

    @classmethod
    @accept_old_names(kind="unit")
    def train(
        cls,
        texts: Iterable[str],
        unit: Unit = "wordpiece",
        size: int = 8000,
        lower: bool = False,
        special: Special = SPECIAL,
    ) -> Tokenizer:
        """A tokenizer of at most `size` pieces, learned from the texts; the same texts give the same tokenizer.

        `wordpiece` (BERT's), `bpe` (over bytes, GPT-2's), `unigram` (T5's), `characters`, or `words` (split at spaces
        and punctuation). Texts are put between the special `start` and `end` tokens where these are not `None`.
        """
        return cls(train_backend(texts, unit, size, lower, special), special.settings())

    def __call__(
        self, texts: str | Sequence[str], pairs: str | Sequence[str] | None = None, max_length: int | None = None
    ) -> Encoded:
        """The texts, each with its second text where `pairs` are given, cut to `max_length` tokens where that is given.

        Cutting keeps the special tokens and takes from the end of the longer text of a pair.
        """
        firsts, seconds = need_texts(texts, "texts"), None if pairs is None else need_texts(pairs, "pairs")
        if seconds is not None and len(seconds) != len(firsts):
            raise BadInput(f"Got {len(firsts)} texts and {len(seconds)} pairs, wanted a pair for every text.")
        inputs = firsts if seconds is None else list(zip(firsts, seconds, strict=True))
        rows = [
            EncodedText(row.ids, row.type_ids, row.offsets, row.word_ids, row.sequence_ids)
            for row in call_backend(self.backend.encode_batch, inputs)
        ]
        return self.collate(rows if max_length is None else [shorten(row, max_length) for row in rows])

    def collate(self, rows: list[EncodedText]) -> Encoded:
        """Rows of different lengths as one batch."""
        fill = next((token for token in (self.pad, self.end) if token is not None), 0)
        return Encoded(
            tokens=pad_rows([row.tokens for row in rows], fill),
            lengths=torch.tensor([len(row.tokens) for row in rows]),
            segments=pad_rows([row.segments for row in rows], 0) if self.segments else None,
            offsets=[row.offsets for row in rows],
            words=[row.words for row in rows],
        )

    def decode(self, tokens: Tensor | Sequence[Any], skip_special: bool = True) -> Any:
        """The text of a row of tokens, or a list of the texts of a batch."""
        rows = need_tokens(tokens)
        if rows and isinstance(rows[0], list):
            return [call_backend(self.backend.decode, row, skip_special) for row in rows]
        return call_backend(self.backend.decode, rows, skip_special)

    def pieces(self, tokens: Tensor | Sequence[Any]) -> list[Any]:
        """The piece of the vocabulary for each token, in the shape of the tokens."""
        rows = need_tokens(tokens)
        return [self.pieces(row) if isinstance(row, list) else self.backend.id_to_token(row) for row in rows]

    def save(self, path: str | Path) -> None:
        """Write the tokenizer into a folder, where `from_folder` and other programs find it."""
        replace_files(Path(path), self.file_writers())

    def file_writers(self) -> dict[str, Callable[[Path], object]]:
        """Functions that write the files of the tokenizer, by name."""
        writers: dict[str, Callable[[Path], object]]
        writers = {name: partial(Path.write_bytes, data=data) for name, data in self.source_files.items()}
        if not self.source_files:
            writers["tokenizer.json"] = lambda file: self.backend.save(str(file))
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", **self.settings}
        writers[SETTINGS] = text_writer(json.dumps(settings, indent=2, ensure_ascii=False) + "\n")
        return writers

    @property
    def segments(self) -> bool:
        """Whether the model takes segments: which of two texts each token belongs to."""
        names = self.settings.get("model_input_names")
        return isinstance(names, list) and "token_type_ids" in names

    @property
    def size(self) -> int:
        """How many pieces the vocabulary has, special ones included."""
        return self.backend.get_vocab_size()

    @property
    def pad(self) -> int | None:
        """The token that fills rows."""
        return self.number("pad_token")

    @property
    def start(self) -> int | None:
        """The token at the beginning of a text (`bos` or `cls` in other programs)."""
        return self.number("cls_token", "bos_token")

    @property
    def end(self) -> int | None:
        """The token at the end of a text (`eos` or `sep`)."""
        return self.number("sep_token", "eos_token")

    @property
    def mask(self) -> int | None:
        """The token that hides another."""
        return self.number("mask_token")

    @property
    def unknown(self) -> int | None:
        """The token for text that is not in the vocabulary."""
        return self.number("unk_token")

    def number(self, *roles: str) -> int | None:
        """The token of the first of the roles that the settings name, `None` where there is none."""
        piece = next((self.settings[role] for role in roles if role in self.settings), None)
        return self.backend.token_to_id(piece) if isinstance(piece, str) else None


def call_backend(method: Callable[..., T], *arguments: object) -> T:
    """The result of a method of the `tokenizers` library; its errors and its panics become `BadInput`."""
    try:
        return method(*arguments)
    except BaseException as error:
        if not is_foreign(error):
            raise
        reason = " ".join(str(error).split())[:200]
        raise BadInput(
            f"The tokenizer failed on this input ({reason}). Its files are damaged, or a regular expression in its "
            "tokenizer.json takes too long. Get the files again."
        ) from error


def need_texts(texts: str | Iterable[object], name: str) -> list[str]:
    """The texts as a list; `BadInput` for an empty list, and for items that are not texts."""
    listed: list[str] = []
    for index, text in enumerate([texts] if isinstance(texts, str) else texts):
        if not isinstance(text, str):
            raise BadInput(f"{name}[{index}] is a {type(text).__name__}, wanted a text. Join words with spaces first.")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BadInput(f"{name}[{index}] has half a character at {error.start}: read the file as UTF-8.") from error
        listed.append(text)
    if not listed:
        raise BadInput(f"{name} is empty, so there is no batch to make. Give at least one text; it may be ''.")
    return listed


def need_tokens(tokens: Any) -> list[Any]:
    """One row of tokens or a batch of rows, as lists; `BadInput` for another shape or a negative token."""
    tensor = torch.as_tensor(tokens)
    if tensor.ndim not in (1, 2) or (tensor.numel() and (tensor.is_floating_point() or tensor.min() < 0)):
        raise BadInput(
            f"Got tokens of shape {list(tensor.shape)} and dtype {tensor.dtype}, wanted whole numbers of at least 0 in "
            "[tokens] or [batch, tokens]. Replace negative labels before decoding."
        )
    return tensor.tolist()


def shorten(row: EncodedText, max_length: int) -> EncodedText:
    """The row with the ends of its texts cut off until it fits; special tokens stay.

    Of a pair the shorter text keeps all its tokens, up to half of the room.
    """
    if len(row.tokens) <= max_length:
        return row
    first, second, special = (row.sides.count(side) for side in (0, 1, None))
    room = max_length - special
    if room < 0:
        raise BadInput(f"max_length is {max_length}, but the template alone has {special} special tokens. Raise it.")
    short = min(first, second, room // 2)
    limits = (room - short, short) if first > second else (short, room - short)
    indices: list[int] = []
    seen: Counter[int] = Counter()
    for index, side in enumerate(row.sides):
        if side is None:
            indices.append(index)
            continue
        if seen[side] < limits[side]:
            indices.append(index)
        seen[side] += 1
    return row.select(indices)


def pad_rows(rows: list[list[int]], fill: int) -> Tensor:
    """Rows of different lengths as one `[batch, tokens]`, filled at the end."""
    longest = max(len(row) for row in rows)
    return torch.tensor([row + [fill] * (longest - len(row)) for row in rows], dtype=torch.int64)
