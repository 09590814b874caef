"""Training of tokenizers on texts; each is a `tokenizers.Tokenizer` in one `tokenizer.json`.

The same texts give the same tokenizer. The library's trainers of WordPiece and of unigrams depend on the order of a
randomly seeded table; its trainers of byte pairs and of words do not, and all others are built on these.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from ...errors import BadInput
from ..checkpoint.files import JsonObject
from .files import need_tokenizers, set_bert_template

if TYPE_CHECKING:
    import tokenizers

Unit = Literal["wordpiece", "bpe", "unigram", "characters", "words"]


@dataclass(frozen=True)
class Special:
    """The special tokens of a vocabulary, in the order of their numbers; one that is `None` is left out."""

    pad: str | None = "[PAD]"
    unknown: str = "[UNK]"
    start: str | None = "[CLS]"
    end: str | None = "[SEP]"
    mask: str | None = "[MASK]"

    def tokens(self) -> list[str]:
        """The tokens, each once."""
        return list(dict.fromkeys(token for token in vars(self).values() if token))

    def settings(self) -> JsonObject:
        """The names under which other programs look for them."""
        roles = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
        named = {role: token for role, token in zip(roles, vars(self).values(), strict=True) if token}
        return {**named, "model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}


SPECIAL = Special()


def train_backend(texts: Iterable[str], unit: Unit, size: int, lower: bool, special: Special) -> tokenizers.Tokenizer:
    """The trained backend; `BadInput` for texts without characters and for a size that is too small."""
    need_tokenizers()
    if unit not in TRAINERS:
        raise BadInput(f"unit is {unit!r}, wanted one of {', '.join(map(repr, get_args(Unit)))}.")
    if isinstance(texts, str):
        raise BadInput("texts is one text, wanted a list of them: [text], or text.splitlines().")
    texts = list(texts)
    if not any(text.strip() for text in texts):
        raise BadInput(f"Got {len(texts)} texts with no character among them, so there is no vocabulary to learn.")
    return set_bert_template(TRAINERS[unit](texts, size, lower, special), special.start, special.end)


def need_size(size: int, least: int, content: str) -> None:
    if size < least:
        raise BadInput(f"size is {size}, but {content} and the special tokens need {least}. Raise it.")


def make_bert_backend(lower: bool, model: tokenizers.models.Model) -> tokenizers.Tokenizer:
    """A backend whose words are BERT's: split at spaces and punctuation, each Chinese character a word."""
    from tokenizers import Tokenizer, normalizers, pre_tokenizers

    backend = Tokenizer(model)
    backend.normalizer = normalizers.BertNormalizer(lowercase=lower)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return backend


def count_words(backend: tokenizers.Tokenizer, texts: list[str]) -> Counter[str]:
    normalized = (backend.normalizer.normalize_str(text) for text in texts)
    return Counter(word for text in normalized for word, _ in backend.pre_tokenizer.pre_tokenize_str(text))


def train_wordpiece(texts: list[str], size: int, lower: bool, special: Special) -> tokenizers.Tokenizer:
    from tokenizers import decoders, models, trainers

    backend = make_bert_backend(lower, models.WordPiece(unk_token=special.unknown))
    words = count_words(backend, texts)
    inner = sorted({f"##{character}" for word in words for character in word[1:]})
    characters = {character for word in words for character in word}
    # Given first, the characters inside words have their numbers before the trainer meets them in a random order.
    first = [*special.tokens(), *inner]
    need_size(size, len(first) + len(characters), f"{len(characters)} characters, alone and inside words,")
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=first, show_progress=False)
    backend.train_from_iterator(texts, trainer)
    trained = make_bert_backend(lower, models.WordPiece(backend.get_vocab(), unk_token=special.unknown))
    trained.decoder = decoders.WordPiece()
    trained.add_special_tokens(special.tokens())
    return trained


def train_bpe(texts: list[str], size: int, lower: bool, special: Special) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    alphabet = pre_tokenizers.ByteLevel.alphabet()
    need_size(size, len(alphabet) + len(special.tokens()), "the 256 bytes")
    backend = Tokenizer(models.BPE())
    backend.normalizer = normalizers.Sequence([normalizers.Lowercase()] if lower else [])
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=special.tokens(), initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    return backend


def make_metaspace_backend(lower: bool, model: tokenizers.models.Model) -> tokenizers.Tokenizer:
    """A backend whose words begin with ▁ for the space before them."""
    from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers

    backend = Tokenizer(model)
    steps = [normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    backend.normalizer = normalizers.Sequence([*steps, *([normalizers.Lowercase()] if lower else [])])
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    return backend


def train_unigram(texts: list[str], size: int, lower: bool, special: Special) -> tokenizers.Tokenizer:
    """Pieces of the highest joint probability: merged pairs to begin with, the least used dropped in a few rounds.

    A round splits every word by the present probabilities and counts the pieces: sums of whole numbers, so that the
    order of the words does not matter.
    """
    from tokenizers import models, trainers

    seed = make_metaspace_backend(lower, models.BPE())
    words = count_words(seed, texts)
    characters = sorted({character for word in words for character in word})
    need_size(size, len(special.tokens()) + len(characters), f"{len(characters)} characters")
    seed.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=4 * size, show_progress=False))
    counts = count_pieces(seed, words) | Counter(dict.fromkeys(seed.get_vocab(), 1))
    room = size - len(special.tokens())
    while True:
        # The most used pieces stay, every single character among them.
        order = sorted(counts, key=lambda piece: (len(piece) > 1, -counts[piece], piece))
        counts = Counter({piece: counts[piece] for piece in order[: max(room, int(0.75 * len(counts)))]})
        backend = make_metaspace_backend(lower, make_unigram(counts, special))
        if len(counts) <= room:
            break
        counts = count_pieces(backend, words) | Counter(dict.fromkeys(characters, 1))
    backend.add_special_tokens(special.tokens())
    return backend


def count_pieces(backend: tokenizers.Tokenizer, words: Counter[str]) -> Counter[str]:
    """How often each piece is used when the model tokenizes the words."""
    counts: Counter[str] = Counter()
    for word, times in words.items():
        for token in backend.model.tokenize(word):
            counts[token.value] += times
    return counts


def make_unigram(counts: Counter[str], special: Special) -> tokenizers.models.Unigram:
    from tokenizers import models

    total = math.log(counts.total())
    order = sorted(counts, key=lambda piece: (-counts[piece], piece))
    scored = [(piece, math.log(counts[piece]) - total) for piece in order]
    tokens = special.tokens()
    return models.Unigram([*((token, 0.0) for token in tokens), *scored], unk_id=tokens.index(special.unknown))


def train_words(texts: list[str], size: int, lower: bool, special: Special) -> tokenizers.Tokenizer:
    from tokenizers import models

    return train_whole(make_bert_backend(lower, models.WordLevel(unk_token=special.unknown)), texts, size, special)


def train_characters(texts: list[str], size: int, lower: bool, special: Special) -> tokenizers.Tokenizer:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    backend = Tokenizer(models.WordLevel(unk_token=special.unknown))
    backend.normalizer = normalizers.Sequence([normalizers.Lowercase()] if lower else [])
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    backend.decoder = decoders.Fuse()
    return train_whole(backend, texts, size, special)


def train_whole(backend: tokenizers.Tokenizer, texts: list[str], size: int, special: Special) -> tokenizers.Tokenizer:
    """The most frequent words of the backend as its pieces."""
    from tokenizers import trainers

    need_size(size, len(special.tokens()) + 1, "one word")
    trainer = trainers.WordLevelTrainer(vocab_size=size, special_tokens=special.tokens(), show_progress=False)
    backend.train_from_iterator(texts, trainer)
    return backend


TRAINERS = {
    "wordpiece": train_wordpiece,
    "bpe": train_bpe,
    "unigram": train_unigram,
    "characters": train_characters,
    "words": train_words,
}
