"""The tokenizer that a checkpoint folder holds, in `tokenizer.json` or in the older files.

Older files leave half of the tokenizer to the program that reads them; the rules of each family of models are
here: BERT's `vocab.txt`; the byte-level `vocab.json` and `merges.txt` of GPT-2, RoBERTa, CLIP and Whisper; the
SentencePiece files of T5, BigBird, DeBERTa and Marian; the letters of wav2vec 2.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import BadInput, Missing, Unsupported, is_foreign
from ...limits import EXTRA_TOKENS, JSON_BYTES, VOCABULARY_BYTES
from ..checkpoint.files import JsonObject, read_json, refuse_pointer
from .growth import check_growth
from .letters import make_letters_backend
from .sentencepiece import Renumbered, make_unigram_backend, read_pieces

if TYPE_CHECKING:
    import tokenizers

ROLES = ("pad_token", "unk_token", "bos_token", "eos_token", "cls_token", "sep_token", "mask_token")

BERT = dict(pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]")
ROBERTA = dict(
    pad_token="<pad>",
    unk_token="<unk>",
    bos_token="<s>",
    eos_token="</s>",
    cls_token="<s>",
    sep_token="</s>",
    mask_token="<mask>",
)
BIG_BIRD = {**ROBERTA, "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
T5 = dict(pad_token="<pad>", unk_token="<unk>", eos_token="</s>")
CLIP = dict(
    pad_token="<|endoftext|>", unk_token="<|endoftext|>", bos_token="<|startoftext|>", eos_token="<|endoftext|>"
)
WAV2VEC2 = dict(pad_token="<pad>", unk_token="<unk>", bos_token="<s>", eos_token="</s>")
GPT2 = dict(unk_token="<|endoftext|>", bos_token="<|endoftext|>", eos_token="<|endoftext|>")

NAMES = {
    "bert": BERT,
    "roberta": ROBERTA,
    "big_bird": BIG_BIRD,
    "t5": T5,
    "marian": T5,
    "clip": CLIP,
    "whisper": GPT2,
    "gpt2": GPT2,
    "deberta-v2": BERT,
    "wav2vec2": WAV2VEC2,
}
"""The special tokens of a family, where the folder does not name them."""

FAMILIES = {
    "distilbert": "bert",
    "electra": "bert",
    "longformer": "roberta",
    "bart": "roberta",
    "bigbird": "big_bird",
    "debertav2": "deberta-v2",
    "wav2vec2ctc": "wav2vec2",
    "clip_text_model": "clip",
    "mt5": "t5",
}

SEGMENTED = {"bert", "electra"}
GENERIC = {"pretrained", "pretrainedtokenizer", "tokenizersbackend", ""}
SOURCES = ("config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
WORDS_OF_CLIP = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+"


@dataclass(frozen=True)
class TokenizerFiles:
    """The settings of a folder's tokenizer: its family, its model, the settings, tokens added to the vocabulary."""

    path: Path
    family: str
    model: str
    settings: JsonObject
    added: dict[str, int]

    def has(self, name: str) -> bool:
        return (self.path / name).is_file()

    def names(self) -> dict[str, str]:
        """The special tokens by role."""
        given = {role: token_content(self.settings[role]) for role in ROLES if role in self.settings}
        return NAMES.get(self.family, {}) | given


@dataclass(frozen=True)
class LoadedTokenizer:
    """A tokenizer read from a folder; `target` is that of the target language, `source_files` the files to save."""

    backend: Any  # a `tokenizers.Tokenizer`, or `Renumbered`, which has some of its methods
    settings: JsonObject
    target: Any = None
    source_files: tuple[Path, ...] = ()


def read_folder(path: Path) -> LoadedTokenizer | None:
    """The folder's tokenizer; `None` where it holds no vocabulary."""
    files = read_settings(path)
    reader = next((reader for name, reader in READERS.items() if files.has(name)), None)
    if reader is None:
        return None
    need_tokenizers()
    loaded = reader(files)
    return loaded if isinstance(loaded, LoadedTokenizer) else finish(files, loaded)


def read_settings(path: Path) -> TokenizerFiles:
    """The settings of `tokenizer_config.json`, over those of `special_tokens_map.json`."""
    config, *given, added = (read_json(path / name) if (path / name).is_file() else {} for name in SOURCES)
    settings = {name: value for source in reversed(given) for name, value in source.items() if value is not None}
    made = str(settings.get("tokenizer_class", "")).removesuffix("Fast").removesuffix("Tokenizer").lower()
    model = str(config.get("model_type", ""))
    family = model if made in GENERIC else made
    return TokenizerFiles(path, FAMILIES.get(family, family), model or family, settings, added)


def token_content(token: JsonObject | str) -> str:
    """The text of a token, which settings have alone or with its flags."""
    return str(token["content"] if isinstance(token, dict) else token)


def need_files(files: TokenizerFiles, *names: str) -> list[Path]:
    lacking = [name for name in names if not files.has(name)]
    if lacking:
        raise BadInput(f"{files.path} lacks {', '.join(lacking)}, which goes with {', '.join(names)}. Fetch it.")
    return [files.path / name for name in names]


def need_tokenizers() -> None:
    try:
        import_module("tokenizers")
    except ImportError as error:
        message = 'Texts are tokenized with tokenizers, which is not installed: pip install "regard[train]"'
        raise Missing(message) from error


def read_tokenizer_json(files: TokenizerFiles) -> tokenizers.Tokenizer:
    """The whole tokenizer in `tokenizer.json`."""
    from tokenizers import Tokenizer

    path = files.path / "tokenizer.json"
    refuse_pointer(path)
    if message := JSON_BYTES.excess(path.stat().st_size):
        raise BadInput(f"{path}: {message}")
    try:
        backend = Tokenizer.from_file(str(path))
        check_growth(backend, path)
    except BaseException as error:  # the library raises nothing narrower, and panics
        if not is_foreign(error):
            raise
        raise BadInput(f"{path} is not a tokenizer that can be read: {error}. Fetch it again.") from error
    return backend


def finish(files: TokenizerFiles, backend: tokenizers.Tokenizer) -> LoadedTokenizer:
    """The backend without cutting and padding of its own, and the settings in full."""
    backend.no_truncation()
    backend.no_padding()
    restore_spaces(backend)
    complete = (  # families whose special tokens are all in the vocabulary
        names for names in NAMES.values() if all(backend.token_to_id(name) is not None for name in names.values())
    )
    names = files.names() or next(complete, {})
    names = {role: name for role, name in names.items() if backend.token_to_id(name) is not None}
    return LoadedTokenizer(backend, with_inputs(files, {**files.settings, **names}))


def restore_spaces(backend: tokenizers.Tokenizer) -> None:
    """Let a vocabulary that marks the ends of words (CLIP's `</w>`) decode them to spaces."""
    from tokenizers import Regex, decoders

    suffix = getattr(backend.model, "end_of_word_suffix", None)
    if suffix and isinstance(backend.decoder, decoders.ByteLevel):
        last = decoders.Replace(Regex(re.escape(suffix) + "$"), "")
        backend.decoder = decoders.Sequence([decoders.ByteLevel(), last, decoders.Replace(suffix, " ")])


def with_inputs(files: TokenizerFiles, settings: JsonObject) -> JsonObject:
    """The settings, which say in `model_input_names` whether the model takes segments."""
    like_bert = settings.get("cls_token") == "[CLS]" and settings.get("sep_token") == "[SEP]"
    segments = files.model in SEGMENTED if files.model else like_bert
    names = ["input_ids", *(["token_type_ids"] if segments else []), "attention_mask"]
    return {"model_input_names": names, **settings}


def add_tokens(files: TokenizerFiles, backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Add the tokens that the settings describe, each under the number that the files give it."""
    settings = files.settings
    described = {int(number): token for number, token in settings.get("added_tokens_decoder", {}).items()}
    numbered = described | {number: piece for piece, number in files.added.items() if number not in described}
    for number in sorted(numbered):
        backend.add_tokens([added_token(numbered[number], special=False)])
        need_number(files, backend, token_content(numbered[number]), number)
    extra = [*settings.get("additional_special_tokens", []), *settings.get("extra_special_tokens", [])]
    known = {token_content(token) for token in described.values()}
    named = [settings.get(role, name) for role, name in files.names().items()]
    backend.add_tokens(
        [added_token(token, special=True) for token in [*named, *extra] if token_content(token) not in known]
    )
    return backend


def added_token(token: JsonObject | str, special: bool) -> tokenizers.AddedToken:
    from tokenizers import AddedToken

    flags = token if isinstance(token, dict) else {}
    flags = {name: bool(flags[name]) for name in ("lstrip", "rstrip", "single_word", "normalized") if name in flags}
    special = special or (isinstance(token, dict) and bool(token.get("special")))
    return AddedToken(token_content(token), special=special, **flags)


def need_number(files: TokenizerFiles, backend: tokenizers.Tokenizer, piece: str, number: int) -> None:
    got = backend.token_to_id(piece)
    if got != number:
        raise BadInput(
            f"{files.path} gives the added token {piece!r} the number {number}, but its vocabulary has room for it at "
            f"{got}: the files are of different tokenizers. Fetch the folder again."
        )


def set_template(backend: tokenizers.Tokenizer, single: list[str], pair: list[str]) -> tokenizers.Tokenizer:
    """Put special tokens around texts; `$A` and `$B` stand for them, `name:1` is of the second segment."""
    from tokenizers.processors import TemplateProcessing

    names = {part.rpartition(":")[0] for part in [*single, *pair]} - {"$A", "$B"}
    tokens = [(name, backend.token_to_id(name)) for name in sorted(names)]
    backend.post_processor = TemplateProcessing(single=single, pair=pair, special_tokens=tokens)
    return backend


def set_bert_template(backend: tokenizers.Tokenizer, start: str | None, end: str | None) -> tokenizers.Tokenizer:
    """BERT's template: start, text, end, second text, end; a part that is `None` is left out."""
    before = [f"{start}:0"] if start else []
    first, second = ([f"{end}:0"], [f"{end}:1"]) if end else ([], [])
    single = [*before, "$A:0", *first]
    return set_template(backend, single, [*single, "$B:1", *second])


def read_wordpiece(files: TokenizerFiles) -> tokenizers.Tokenizer:
    """BERT's: words at spaces, punctuation and Chinese characters, then the longest pieces from the left."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    files = replace(files, family=files.family if files.family in NAMES else "bert")
    names, settings = files.names(), files.settings
    lines = read_lines(files.path / "vocab.txt")
    numbers = {piece: number for number, piece in enumerate(lines)}
    backend = Tokenizer(models.WordPiece(numbers, unk_token=names["unk_token"]))
    backend.normalizer = normalizers.BertNormalizer(
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=settings.get("do_lower_case", True),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return set_bert_template(add_tokens(files, backend), names["cls_token"], names["sep_token"])


def read_lines(path: Path) -> list[str]:
    refuse_pointer(path)
    if message := VOCABULARY_BYTES.excess(path.stat().st_size):
        raise BadInput(f"{path}: {message}")
    try:
        return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not a text in UTF-8: {error}. Fetch it again.") from error


def read_letters(files: TokenizerFiles) -> LoadedTokenizer:
    """The letters that wav2vec 2 transcribes to."""
    path, names = files.path / "vocab.json", files.names()
    settings = {"tokenizer_class": "Wav2Vec2CTCTokenizer", **files.settings, **names}
    return LoadedTokenizer(make_letters_backend(path, names, settings), with_inputs(files, settings), None, (path,))


def read_vocabulary(files: TokenizerFiles) -> LoadedTokenizer | tokenizers.Tokenizer:
    """What `vocab.json` holds: letters, or pieces that are merged from bytes."""
    return read_letters(files) if files.family == "wav2vec2" else read_byte_level(files)


def read_byte_level(files: TokenizerFiles) -> tokenizers.Tokenizer:
    """Pairs of bytes merged in a learned order: GPT-2's, and what RoBERTa, CLIP and Whisper put around it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    family = files.family if files.family in ("roberta", "clip", "whisper") else "gpt2"
    files = replace(files, family=family)
    numbers, merges = need_files(files, "vocab.json", "merges.txt")
    clip = {"end_of_word_suffix": "</w>", "unk_token": files.names()["unk_token"]} if family == "clip" else {}
    model = models.BPE(read_json(numbers), read_merges(merges), **clip)
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=files.settings.get("add_prefix_space", False))
    backend.decoder = decoders.ByteLevel()
    return FINISH[family](files, add_tokens(files, backend))


def read_merges(path: Path) -> list[tuple[str, str]]:
    lines = [line for line in read_lines(path) if line.strip() and not line.startswith("#version")]
    pairs = [line.split() for line in lines]
    wrong = next((line for line, pair in zip(lines, pairs, strict=True) if len(pair) != 2), None)
    if wrong is not None:
        raise BadInput(f"{path} has the line {wrong[:80]!r}, wanted two pieces to merge. Fetch it again.")
    return [(left, right) for left, right in pairs]


def finish_gpt2(files: TokenizerFiles, backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    start = files.names()["bos_token"]
    if files.settings.get("add_bos_token"):
        set_template(backend, [f"{start}:0", "$A:0"], [f"{start}:0", "$A:0", f"{start}:1", "$B:1"])
    return backend


def find_token(files: TokenizerFiles, backend: tokenizers.Tokenizer, role: str) -> tuple[str, int]:
    """The special token of a role with its number; `BadInput` where the vocabulary lacks it."""
    name = files.names()[role]
    number = backend.token_to_id(name)
    if number is None:
        raise BadInput(f"{files.path} names {name} in its settings, but its vocabulary lacks it. Fetch it again.")
    return name, number


def finish_roberta(files: TokenizerFiles, backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    from tokenizers.processors import RobertaProcessing

    start, end = (find_token(files, backend, role) for role in ("cls_token", "sep_token"))
    settings = files.settings
    backend.post_processor = RobertaProcessing(
        end, start, settings.get("trim_offsets", True), settings.get("add_prefix_space", False)
    )
    return backend


def finish_clip(files: TokenizerFiles, backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    from tokenizers import Regex, normalizers, pre_tokenizers
    from tokenizers.processors import RobertaProcessing

    single_spaces = normalizers.Replace(Regex(r"\s+"), " ")
    backend.normalizer = normalizers.Sequence([normalizers.NFC(), single_spaces, normalizers.Lowercase()])
    words = pre_tokenizers.Split(Regex(WORDS_OF_CLIP), behavior="removed", invert=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    start, end = (find_token(files, backend, role) for role in ("bos_token", "eos_token"))
    backend.post_processor = RobertaProcessing(end, start, trim_offsets=False, add_prefix_space=False)
    return backend


def finish_whisper(files: TokenizerFiles, backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    settings, end = files.settings, files.names()["eos_token"]
    wanted = ["startoftranscript", settings.get("language"), settings.get("task")]
    wanted += [] if settings.get("predict_timestamps") else ["notimestamps"]
    before = [f"<|{name}|>" for name in wanted if name]
    for name in before:
        if backend.token_to_id(name) is None:
            raise BadInput(f"{files.path} names {name} in its settings, but its vocabulary lacks it. Fetch it again.")
    before = [f"{name}:0" for name in before]
    return set_template(backend, [*before, "$A:0", f"{end}:0"], [*before, "$A:0", "$B:1", f"{end}:1"])


FINISH = {"gpt2": finish_gpt2, "roberta": finish_roberta, "clip": finish_clip, "whisper": finish_whisper}


def read_sentencepiece(files: TokenizerFiles) -> tokenizers.Tokenizer:
    """T5's, BigBird's and DeBERTa's: pieces of the highest joint probability, spaces written as ▁."""
    files = replace(files, family=files.family or "t5")
    name = "spiece.model" if files.has("spiece.model") else "spm.model"
    if files.family not in ("t5", "big_bird", "deberta-v2"):
        raise Unsupported(
            f"{files.path} has the {name} of {files.family!r}; only those of t5, big_bird and deberta-v2 are "
            "supported. Save the tokenizer as tokenizer.json with the program that made it."
        )
    extra = files.settings.get("extra_ids", 100) if files.family == "t5" else 0
    if not isinstance(extra, int):
        raise BadInput(f"{files.path} has extra_ids = {extra!r:.60}, wanted a whole number. Get the folder again.")
    if message := EXTRA_TOKENS.excess(extra):
        raise BadInput(f"{files.path}: {message}")
    pieces = read_pieces(files.path / name)
    backend = add_tokens(files, make_unigram_backend(pieces, [f"<extra_id_{extra - 1 - i}>" for i in range(extra)]))
    names = files.names()
    if files.family in ("big_bird", "deberta-v2"):
        return set_bert_template(backend, names["cls_token"], names["sep_token"])
    end = f"{names['eos_token']}:0"
    return set_template(backend, ["$A:0", end], ["$A:0", end, "$B:0", end])


def read_marian(files: TokenizerFiles) -> LoadedTokenizer:
    """Marian's: a SentencePiece model per language, numbered by `vocab.json`."""
    files = replace(files, family="marian", model=files.model or "marian")
    source_files = need_files(files, "source.spm", "target.spm", "vocab.json")
    if files.settings.get("separate_vocabs"):
        source_files += need_files(files, "target_vocab.json")
    source, target = (
        renumber(files, spm, numbers)
        for spm, numbers in zip(source_files[:2], (source_files[2], source_files[-1]), strict=True)
    )
    return LoadedTokenizer(source, with_inputs(files, {**files.settings, **files.names()}), target, tuple(source_files))


def renumber(files: TokenizerFiles, spm: Path, vocabulary: Path) -> Renumbered:
    from tokenizers import AddedToken

    names, numbers = files.names(), read_json(vocabulary)
    unknown, end = names["unk_token"], names["eos_token"]
    for name in (unknown, end):
        if not isinstance(numbers.get(name), int):
            raise BadInput(f"{vocabulary} gives {name!r} no number. Fetch it again.")
    backend = make_unigram_backend(read_pieces(spm))
    backend.add_special_tokens(sorted(set(names.values())))
    codes = [piece for piece in numbers if piece.startswith(">>") and piece.endswith("<<")]
    backend.add_tokens([AddedToken(code, normalized=False) for code in codes])
    set_template(backend, ["$A:0", f"{end}:0"], ["$A:0", "$B:0", f"{end}:0"])
    return Renumbered(backend, numbers, unknown, sorted(set(names.values())))


READERS = {
    "tokenizer.json": read_tokenizer_json,
    "vocab.txt": read_wordpiece,
    "source.spm": read_marian,
    "target.spm": read_marian,
    "spiece.model": read_sentencepiece,
    "spm.model": read_sentencepiece,
    "merges.txt": read_byte_level,
    "vocab.json": read_vocabulary,
}
"""The reader of each vocabulary file, in the order in which the files are looked for."""
