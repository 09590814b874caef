"""Texts as model inputs.

Tokens are drawn from character offsets, never from the vocabulary's own spelling: pieces of one character share a
group.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from ...errors import BadInput, Unsupported
from ...models.heads import LMHead
from ...models.model import Model, Output, SequenceModel
from ...models.tokenizers.tokenizer import Tokenizer
from ...tasks.inputs.words.features import WordFeatures, extract_features
from ...tasks.pretrained.texts import SubwordTexts
from ...tasks.task import AnyTask
from ...tasks.texts.token_tagger import AnyTagger
from ..inspect.predictions import PredictionFields, PredictionItem, class_prediction, tag_prediction, token_prediction
from ..protocol import Request
from .images import class_labels
from .model_input import SHORT, Limits, ModelInput, Token, check_token_count, limit_hint

SPECIAL_ROLES = ("pad_token", "cls_token", "bos_token", "sep_token", "eos_token")


def check_text(fields: Request, limits: Limits = SHORT) -> str:
    """The text of an input; raises `BadInput` where it is missing, empty or too long."""
    text = fields.get("text")
    if not isinstance(text, str):
        raise BadInput(f"This model reads a text; the input is {sorted(fields)}. Give it as input.text.")
    if not text.strip():
        raise BadInput("The text is empty. Enter a sentence, or choose an example.")
    if len(text) > limits.characters:
        raise BadInput(f"The text has {len(text):,} characters; {limit_hint(limits.characters, limits)}")
    if any(0xD800 <= ord(letter) <= 0xDFFF for letter in text):
        raise BadInput("The text contains an unpaired surrogate. Enter it again.")
    return text


def tokens_from_offsets(
    text: str, offsets: list[tuple[int, int]], pieces: list[str], special: list[bool], unknown: list[bool]
) -> list[Token]:
    """Tokens with the characters that they cover; pieces of one character get the group of the first of them."""
    tokens: list[Token] = []
    first = 0
    for n, (start, end) in enumerate(offsets):
        same = n > 0 and start < end and (start, end) == offsets[n - 1] and not special[n]
        first = first if same else n
        shown = text[start:end] if start < end and not special[n] else pieces[n]
        tokens.append(Token(shown, start, end, special[n], first if same else None, unknown[n]))
        if same:
            tokens[first] = replace(tokens[first], start=start, end=end, special=False, group=first)
    return tokens


def special_ids(tokenizer: Tokenizer) -> set[int | None]:
    return {tokenizer.number(role) for role in SPECIAL_ROLES}


def encode_text(tokenizer: Tokenizer, text: str) -> tuple[list[int], list[Token]]:
    """A text's token ids, and the tokens as they are drawn."""
    (row,) = tokenizer.backend.encode_batch([text])
    ends = special_ids(tokenizer)
    special = [n in ends for n in row.ids]
    unknown = [n == tokenizer.unknown for n in row.ids]
    return row.ids, tokens_from_offsets(text, row.offsets, tokenizer.pieces(row.ids), special, unknown)


def decode_tokens(tokenizer: Tokenizer, ids: list[int]) -> list[Token]:
    """The tokens of these ids, with their characters' offsets in the decoded text."""
    ends, pieces = special_ids(tokenizer), tokenizer.pieces(ids)
    tokens, text = [], ""
    for n, number in enumerate(ids):
        if number in ends:
            tokens.append(Token(pieces[n] or "", len(text), len(text), True))
            continue
        decoded = tokenizer.decode([before for before in ids[: n + 1] if before not in ends])
        shown = decoded[len(text) :] if decoded.startswith(text) else decoded
        unknown = number == tokenizer.unknown
        tokens.append(Token(shown or pieces[n] or "", len(text), max(len(text), len(decoded)), unknown=unknown))
        text = decoded if "\ufffd" not in decoded else text
    return tokens


def text_input(model: Model, task: AnyTask | None, text: str, limits: Limits) -> ModelInput:
    """A text for an encoder or a decoder."""
    if task is not None and task.word_features is not None:
        return word_input(task, text, limits)
    tokenizer = find_tokenizer(model, task)
    lm = task is not None and task.name == "lm"
    ids, tokens = encode_lines(tokenizer, text) if lm else encode_text(tokenizer, text)
    inputs = None
    if task is not None:
        if task.max_length is not None and not limits.whole:
            ids, tokens = truncate(ids, tokens, task.max_length)
        inputs = task.text_inputs(text)
    check_token_count(len(ids), limits=limits)
    arguments = {"tokens": torch.tensor([ids])}
    if inputs is not None and "lengths" in inputs:
        arguments["lengths"] = torch.tensor([len(ids)])
    arguments |= {name: x for name, x in (inputs or {}).items() if name.startswith("ngram")}  # of an n-gram model
    labels = class_labels(model, task)

    def read_output(output: Output) -> PredictionFields:
        if output.logits is None:
            return {"type": "vector", "items": []}
        if output.logits.dim() == 2:
            return class_prediction(output.logits[0], labels)
        if not isinstance(model, SequenceModel) or not isinstance(model.head, LMHead):
            return tag_prediction(output.logits[0], labels)
        if model.causal:
            return token_prediction(output.logits[0], tokenizer, [len(ids) - 1], "next")
        masked = [n for n, number in enumerate(ids) if number == tokenizer.mask]
        return token_prediction(output.logits[0], tokenizer, masked, "masked")

    return ModelInput(arguments, {"source": tokens}, "source", {}, read_output)


def is_unknown_word(features: WordFeatures, word: str) -> bool:
    """Whether a model knows nothing of a word: not the word, none of its letters, affixes and character n-grams."""
    if {word, word.lower()} & features.word_number.keys():
        return False
    if not features.char_ngrams and any(letter in features.letter_number for letter in word):
        return False
    others = extract_features(word, features.max_affix, features.char_ngrams, features.max_word_length)
    return not any(feature in features.feature_number for feature in others if not feature.startswith("#"))


def word_input(task: AnyTask, text: str, limits: Limits) -> ModelInput:
    """A text for a classifier that reads words by their features: the words as its tokenizer splits them."""
    arguments = task.text_inputs(text)
    if task.tokenizer is None or arguments is None:
        raise Unsupported("This run reads words by their features and has no tokenizer. Train it again.")
    backend = task.tokenizer.backend
    normal = text if backend.normalizer is None else backend.normalizer.normalize_str(text)
    words = backend.pre_tokenizer.pre_tokenize_str(normal)[: task.max_length]
    if not words:
        raise BadInput("The text contains no words. Enter a sentence.")
    check_token_count(len(words), limits=limits)
    shown = text if len(text) == len(normal) else normal
    features = task.word_features
    assert features is not None
    tokens = [Token(shown[a:b], a, b, unknown=is_unknown_word(features, word)) for word, (a, b) in words]

    def read_output(output: Output) -> PredictionFields:
        assert output.logits is not None
        return class_prediction(output.logits[0], task.labels)

    return ModelInput(arguments, {"source": tokens}, "source", {}, read_output)


def find_tokenizer(model: Model, task: AnyTask | None) -> Tokenizer:
    tokenizer = (task.tokenizer if task is not None else None) or model.tokenizer
    if tokenizer is None:
        raise Unsupported("The folder of this model has no tokenizer. Add the tokenizer files.")
    return tokenizer


def encode_lines(tokenizer: Tokenizer, text: str) -> tuple[list[int], list[Token]]:
    """The token ids and tokens of a running text, encoded line by line as a language model reads it."""
    ids: list[int] = []
    tokens: list[Token] = []
    begin = 0
    lines = text.splitlines(keepends=True)
    for line, row in zip(lines, tokenizer.backend.encode_batch(lines), strict=True):
        base = len(tokens)
        unknown = [n == tokenizer.unknown for n in row.ids]
        for token in tokens_from_offsets(line, row.offsets, row.tokens, [False] * len(row.ids), unknown):
            group = None if token.group is None else token.group + base
            tokens.append(replace(token, start=token.start + begin, end=token.end + begin, group=group))
        ids += row.ids
        begin += len(line)
    return ids, tokens


def truncate(ids: list[int], tokens: list[Token], max_length: int) -> tuple[list[int], list[Token]]:
    """The beginning of a text that is too long for a model, with its end token."""
    if len(ids) <= max_length:
        return ids, tokens
    ended = tokens[-1].special
    keep = max_length - 1 if ended else max_length
    return ids[:keep] + ids[-1:] * ended, tokens[:keep] + tokens[-1:] * ended


def subword_input(
    task: AnyTagger, subwords: SubwordTexts, words: list[str], spans: list[tuple[int, int]]
) -> ModelInput:
    """A sentence for a tagger that starts from a checkpoint: subwords, and a tag at the first one of each word."""
    arguments, tokenizer = task.inputs([words]), subwords.tokenizer
    owners = arguments["words"][0].tolist()  # the word of each token, −1 for special ones
    pieces = tokenizer.pieces(arguments["tokens"][0])
    unknown = [number == tokenizer.unknown for number in arguments["tokens"][0].tolist()]
    tokens = [
        Token(piece or "", 0, 0, True) if owner < 0 else Token(piece or "", *spans[owner], unknown=new)
        for piece, owner, new in zip(pieces, owners, unknown, strict=True)
    ]
    first = {owner: place for place, owner in reversed(list(enumerate(owners))) if owner >= 0}

    def read_output(output: Output) -> PredictionFields:
        assert output.logits is not None
        prediction = tag_prediction(output.logits[0], task.labels)
        items: list[PredictionItem] = [
            {**item, "token": first[word]} for word, item in enumerate(prediction["items"]) if word in first
        ]
        return {**prediction, "items": items}

    return ModelInput(arguments, {"source": tokens}, "source", {"labels": task.labels}, read_output)


def tag_input(task: AnyTagger, text: str, limits: Limits) -> ModelInput:
    """A sentence for a tagger: words as its training data splits them, or the characters of unsegmented text."""
    spans, features = task.token_spans(text), task.features
    words = [text[start:end] for start, end in spans]
    if not words:
        raise BadInput("The text contains no words. Enter a sentence.")
    check_token_count(len(words), "The sentence", limits)
    if task.subwords is not None:
        return subword_input(task, task.subwords, words, spans)
    if isinstance(features, WordFeatures):
        unknown = [is_unknown_word(features, word) for word in words]
    else:
        unknown = [character not in features.number for character in words]
    tokens = [Token(text[a:b], a, b, unknown=new) for (a, b), new in zip(spans, unknown, strict=True)]

    def read_output(output: Output) -> PredictionFields:
        assert output.logits is not None
        return tag_prediction(output.logits[0], task.labels)

    arguments = {"tokens": task.inputs([words])["tokens"]}
    return ModelInput(arguments, {"source": tokens}, "source", {"labels": task.labels}, read_output)
