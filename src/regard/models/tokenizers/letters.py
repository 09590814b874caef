"""The vocabulary of letters of a CTC model (`vocab.json` of wav2vec 2), as a backend of the `tokenizers` library."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import Unsupported
from ..checkpoint.files import JsonObject, read_json

if TYPE_CHECKING:
    import tokenizers

WORD_END = "|"


def make_letters_backend(path: Path, names: dict[str, str], settings: JsonObject) -> tokenizers.Tokenizer:
    """A token for each letter, and one between words. Decoding merges repeated tokens, then removes blanks (padding).

    With `do_lower_case` texts are upper case inside and lower case outside.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    numbers = read_json(path)
    if not all(isinstance(number, int) for number in numbers.values()):
        raise Unsupported(
            f"{path} has a vocabulary for each of several languages, which is not read here. Save that of one language."
        )
    blank, delimiter = names["pad_token"], str(settings.get("word_delimiter_token") or WORD_END)
    cased = [letter for letter in numbers if len(letter) == 1 and letter.lower() != letter and len(letter.lower()) == 1]
    upper = cased if settings.get("do_lower_case") else []
    backend = Tokenizer(models.WordLevel(numbers, unk_token=names["unk_token"]))
    backend.normalizer = normalizers.Sequence(
        [normalizers.Replace(" ", delimiter), *(normalizers.Replace(letter.lower(), letter) for letter in upper)]
    )
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    backend.decoder = decoders.Sequence(
        [
            decoders.CTC(blank, delimiter, cleanup=False),
            decoders.Replace(delimiter, " "),
            *(decoders.Replace(letter, letter.lower()) for letter in upper),
            decoders.Fuse(),
            decoders.Replace(Regex("^ +| +$"), ""),
        ]
    )
    backend.add_special_tokens([name for name in dict.fromkeys(names.values()) if name != blank and name in numbers])
    return backend
