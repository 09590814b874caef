"""Inputs of encoder–decoder models: a source, and the target that is given or generated."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ...errors import BadInput
from ...models.generation.rules import TokenRules
from ...models.heads import LMHead
from ...models.model import EncoderDecoderModel, Output
from ...models.tokenizers.tokenizer import Tokenizer
from ...nn.embeddings.text import TextEmbeddingConfig
from ...tasks.task import AnyTask
from ..inspect.predictions import PredictionFields, PredictionItem, text_prediction
from ..protocol import Json
from .model_input import SHORT, InputMetadata, ModelInput, Token, check_token_count
from .text import decode_tokens, encode_text, find_tokenizer, truncate

MAX_NEW = 256
"""The most tokens that are generated."""


@dataclass(frozen=True)
class Source:
    """The encoder's arguments, the tokens as they are drawn, and how many tokens may be generated for them."""

    arguments: dict[str, Tensor]
    tokens: list[Token]
    side: str
    max_new: int
    metadata: InputMetadata = field(default_factory=InputMetadata)


def text_source(model: EncoderDecoderModel, task: AnyTask | None, text: str) -> Source:
    """A text to be translated, summarized or answered."""
    ids, tokens = encode_text(find_tokenizer(model, task), text)
    if task is not None and task.max_length is not None:
        ids, tokens = truncate(ids, tokens, task.max_length)
    check_token_count(len(ids))
    return Source({"tokens": torch.tensor([ids])}, tokens, "source", 2 * len(ids) + 20)


def seq2seq_input(model: EncoderDecoderModel, task: AnyTask | None, text: str, target: Json) -> ModelInput:
    """A text and its target: the one that is given, or the one that the model generates."""
    return add_target(model, task, text_source(model, task, text), target)


def add_target(model: EncoderDecoderModel, task: AnyTask | None, source: Source, target: Json) -> ModelInput:
    """The source with its target.

    The decoder's query for a token is at the token before it, so the decoder is given the target without its last
    token. A model without a language-model head generates nothing: its target is the given text, or the start alone.
    """
    tokenizer = find_tokenizer(model, task).target
    generates = isinstance(model.head, LMHead)
    rules = generation_rules(model, task, tokenizer)
    ids = encode_target(rules, tokenizer, target, generates) if target else generate_target(model, task, source, rules)
    shown = [*decode_tokens(tokenizer, ids), *([] if generates else [Token("?", special=True)])]

    def read_output(output: Output) -> PredictionFields:
        if output.logits is not None:
            return text_prediction(output.logits[0], tokenizer, ids[1:])
        items: list[PredictionItem] = [
            {"place": n, "label": token.text, "class": None, "probability": None} for n, token in enumerate(shown[1:])
        ]
        return {"type": "vector", "items": items}

    return ModelInput(
        source.arguments | {"targets": torch.tensor([ids[:-1] if generates else ids])},
        {source.side: source.tokens, "target": shown[:-1]},
        source.side,
        source.metadata
        | {"target_tokens": [token.as_dict() for token in shown[1:]], "generated": not target, "numbers": ids},
        read_output,
    )


def generation_rules(model: EncoderDecoderModel, task: AnyTask | None, tokenizer: Tokenizer) -> TokenRules:
    """Start and end of generated texts: from the task, the checkpoint, or the tokenizer."""
    rules = (task.rules if task is not None else None) or model.rules or TokenRules()
    end = () if tokenizer.end is None else (tokenizer.end,)
    pad = tokenizer.pad if rules.pad is None else rules.pad
    return replace(rules, start=rules.start or (model.config.start,), end=rules.end or end, pad=pad)


def max_new_tokens(model: EncoderDecoderModel, most: int, start: int) -> int:
    """How many tokens can be generated, given the positions that the decoder has."""
    embed = model.config.decoder_embed or model.config.embed
    positions = embed.positions if isinstance(embed, TextEmbeddingConfig) else None
    return max(1, min(most, MAX_NEW, positions - start if isinstance(positions, int) else most))


@torch.no_grad()
def generate_target(model: EncoderDecoderModel, task: AnyTask | None, source: Source, rules: TokenRules) -> list[int]:
    """The tokens that the model generates, from the start to the first end; the start alone without a head."""
    if not isinstance(model.head, LMHead):
        return list(rules.start)
    own = None
    if task is not None and "tokens" in source.arguments:
        own = task.generate(model, source.arguments["tokens"].tolist())
    if own is None:
        most = max_new_tokens(model, source.max_new, len(rules.start))
        beams = 1 if task is None else task.beams
        own = model.generate(
            tokens=source.arguments.get("tokens"),
            lengths=source.arguments.get("lengths"),
            images=source.arguments.get("images"),
            sound=source.arguments.get("sound"),
            max_new=most,
            start=rules.start,
            end=rules.end or None,
            pad=rules.fill_token,
            beams=beams,
        )
    ids = own[0].tolist()
    first = max(1, len(rules.start))
    return next((ids[: n + 1] for n in range(first, len(ids)) if ids[n] in rules.end), ids)


def encode_target(rules: TokenRules, tokenizer: Tokenizer, target: Json, generates: bool) -> list[int]:
    """The decoder's start and the tokens of a given target, which is a text or a list of token ids."""
    if isinstance(target, list):
        given = [n for n in target if isinstance(n, int) and not isinstance(n, bool) and 0 <= n < tokenizer.size]
        if len(target) > SHORT.tokens or len(given) < len(target):
            raise BadInput(f"target is {target!r:.60}; it must be a text, or token ids below {tokenizer.size}.")
        return [*rules.start, *given]
    ids, tokens = encode_text(tokenizer, str(target))
    plain = [n for n, token in zip(ids, tokens, strict=True) if not token.special]
    return [*rules.start, *plain, *(rules.end[:1] if generates else ())]
