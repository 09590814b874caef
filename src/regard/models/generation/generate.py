"""Generation: a model continues a text token by token, greedily, by sampling or with beam search."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Unpack

import torch
from torch import Tensor

from ...errors import BadInput, Unsupported
from ...nn.cache import Cache
from ...nn.embeddings.text import TextEmbedding
from ..heads import LMHead
from ..model import EncoderDecoderModel, Model, SequenceModel
from .beam import beam_search
from .decoder import CachedDecoder, Decoder, UncachedDecoder, make_cache
from .rules import TokenRules, as_tuple
from .sampling import GenerateArguments, GenerationConfig, GenerationSettings, read_config


@dataclass(frozen=True)
class GeneratedTokens:
    """`tokens [batch, tokens]`, of which row b has `lengths[b]`; with beams also the `scores [batch]`."""

    tokens: Tensor
    lengths: Tensor
    scores: Tensor | None = None


def generate(model: Model, **arguments: Unpack[GenerateArguments]) -> Tensor:
    """The tokens that a model generates, `[batch, tokens]`.

    They follow the prompt of a decoder, or the start tokens of an encoder–decoder; rows that end early are filled with
    the padding token. `generate_tokens` takes the same arguments and also returns each row's length; `stream` yields
    each token as it is generated.

    - `tokens`, `lengths`, `images`, `sound`: the inputs of the model. Prompts of different length are padded at the
      end, `lengths` counts their tokens, and the new tokens of each row follow its own last.
    - `max_new` (64): the most new tokens. `min_new` (0): how many before the text may end.
    - `temperature` (0.0): 0 takes the likeliest token; otherwise one is sampled from softmax(logits / temperature) of
      the `top_k` likeliest tokens, and of these the fewest whose probabilities sum to `top_p`. The same `generator`
      state gives the same text.
    - `beams` (1): beam search with so many beams; the best text by Σ log p / (new tokens)^`length_penalty` (1.0) is
      returned. A row stops when no running beam can be among the best; with `early`, once it has enough finished ones.
    - `end`: the token or tokens that end a text. `start`: those that an encoder–decoder begins with, for all rows or
      `[batch, tokens]`. `pad`: fills short rows. What is not given comes from the model's `rules`.
    - `cache` (True): cache keys and values; False computes all of them again for each token. A word is a kind of cache
      ("dynamic", "static", "paged", "int8", "fp8", "sliding"); `CacheConfig` has its settings. A `Cache` that holds a
      prefix, `model(tokens=prefix, cache=Cache(config="paged")).cache`, is continued: one row by every prompt.

    Raises `BadInput` for settings that do not fit and for a model that cannot generate.

    >>> from regard.models.families.gpt2 import gpt2
    >>> model = gpt2(layers=1, dim=8, heads=2, vocabulary=11, positions=16).build()
    >>> model.generate(tokens=torch.tensor([[1, 2, 3], [4, 0, 0]]), lengths=torch.tensor([3, 1]), max_new=4).shape
    torch.Size([2, 7])
    """
    return generate_tokens(model, **arguments).tokens


def generate_tokens(model: Model, **arguments: Unpack[GenerateArguments]) -> GeneratedTokens:
    """What `generate` returns, with the length of each row."""
    decoding = prepare_decoding(model, **arguments)
    if decoding.config.beams == 1:
        new = torch.stack(list(decode_steps(decoding)), dim=1)
        return append_tokens(decoding, new, decoding.rules.lengths(new))
    with torch.no_grad(), evaluation_mode(model):
        beams = beam_search(decoding.decoder, decoding.prompt, decoding.lengths, decoding.rules, decoding.config)
    return replace(append_tokens(decoding, beams.tokens[:, 0], beams.lengths[:, 0]), scores=beams.scores[:, 0])


def stream(model: Model, **arguments: Unpack[GenerateArguments]) -> Iterator[Tensor]:
    """Yields the new token of every row as it is generated, `[batch]`; the padding token where a row has ended.

    Takes the arguments of `generate` except beams, whose text is known at the end only.

    >>> from regard.models.families.gpt2 import gpt2
    >>> model = gpt2(layers=1, dim=8, heads=2, vocabulary=11, positions=16).build()
    >>> len(list(stream(model, tokens=torch.tensor([[1, 2, 3]]), max_new=4)))
    4
    """
    decoding = prepare_decoding(model, **arguments)
    if decoding.config.beams > 1:
        raise Unsupported("With beams the text is known at the end only. Leave them out, or call generate(...).")
    return decode_steps(decoding)


@dataclass(frozen=True)
class Decoding:
    """A model, a prompt `[batch, tokens]` that fits it, and how to continue the prompt."""

    model: Model
    decoder: Decoder
    prompt: Tensor
    lengths: Tensor | None
    rules: TokenRules
    config: GenerationConfig


def prepare_decoding(
    model: Model,
    *,
    tokens: Tensor | None = None,
    lengths: Tensor | None = None,
    images: Tensor | None = None,
    sound: Tensor | None = None,
    **settings: Unpack[GenerationSettings],
) -> Decoding:
    """The prompt and the decoder; `end` and `pad` replace those of the model's rules where they are given."""
    config = read_config(settings)
    check_generates(model)
    rules = model.rules or TokenRules()
    rules = rules if config.end is None else replace(rules, end=as_tuple(config.end))
    rules = rules if config.pad is None else replace(rules, pad=config.pad)
    inputs = {"tokens": tokens, "lengths": lengths, "images": images, "sound": sound}
    inputs = {name: value for name, value in inputs.items() if value is not None}
    if isinstance(model, EncoderDecoderModel):
        prompt, lengths = start_tokens(model, inputs, rules, config), None
    else:
        prompt, lengths = check_prompt(inputs)
        inputs = {}
    if config.cache is False:
        decoder: Decoder = UncachedDecoder(model, inputs)
    else:
        decoder = CachedDecoder(model, inputs, make_cache(config.cache, prompt, config.max_new))
    decoding = Decoding(model, decoder, prompt, lengths, rules, config)
    check_room(decoding)
    return decoding


@torch.inference_mode()
def decode_steps(decoding: Decoding) -> Iterator[Tensor]:
    """Yields the columns of new tokens, each `[batch]`."""
    rules, config = decoding.rules, decoding.config
    with evaluation_mode(decoding.model):
        logits = decoding.decoder.begin(decoding.prompt, decoding.lengths)
        ended = None
        for step in range(config.max_new):
            column = config.choose(rules.apply(logits, step, config.min_new, config.max_new))
            if rules.end:
                column = column if ended is None else column.masked_fill(ended, rules.fill_token)
                ended = rules.ends(column) if ended is None else ended | rules.ends(column)
            yield column
            if step + 1 == config.max_new or (ended is not None and bool(ended.all())):
                return
            logits = decoding.decoder.next(column)


@contextmanager
def evaluation_mode(model: Model) -> Iterator[None]:
    """While open, the model is in evaluation mode."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def append_tokens(decoding: Decoding, new: Tensor, counts: Tensor) -> GeneratedTokens:
    """The rows of the prompt, each followed by its `counts[b]` new tokens."""
    batch, before = decoding.prompt.shape
    lengths = torch.full_like(counts, before) if decoding.lengths is None else decoding.lengths
    tokens = new.new_full((batch, before + new.shape[1]), decoding.rules.fill_token)
    position = torch.arange(before + new.shape[1], device=new.device)
    tokens[:, :before] = decoding.prompt
    index = (position - lengths[:, None]).clamp(0, new.shape[1] - 1)
    tokens = torch.where(position < lengths[:, None], tokens, new.gather(1, index))
    total = lengths + counts
    tokens = tokens.masked_fill(position >= total[:, None], decoding.rules.fill_token)
    return GeneratedTokens(tokens[:, : int(total.max())].clone(), total)


def start_tokens(
    model: EncoderDecoderModel, inputs: dict[str, Tensor], rules: TokenRules, config: GenerationConfig
) -> Tensor:
    """The first tokens of an encoder–decoder's text, `[batch, tokens]`."""
    sources = [value for name, value in inputs.items() if name != "lengths"]
    if not sources:
        raise BadInput("There is no input. Give tokens, images or sound, whichever the model reads.")
    batch = sources[0].shape[0]
    if isinstance(config.start, Tensor):
        return check_tokens(config.start, "start", batch)
    first = rules.start or (model.config.start,) if config.start is None else as_tuple(config.start)
    start = torch.tensor([first], dtype=torch.long, device=model.device)
    return check_tokens(start.expand(batch, -1), "start", batch)


def check_prompt(inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor | None]:
    """The prompt and, where rows differ, their lengths; `BadInput` unless each row has a token."""
    if "tokens" not in inputs:
        raise BadInput("A decoder continues a prompt, and none was given. Pass tokens=[batch, tokens].")
    prompt = check_tokens(inputs["tokens"], "tokens")
    lengths = inputs.get("lengths")
    if lengths is None:
        return prompt, None
    if lengths.shape != prompt.shape[:1] or int(lengths.min()) < 1 or int(lengths.max()) > prompt.shape[1]:
        raise BadInput(
            f"lengths is {lengths.tolist()} for tokens {list(prompt.shape)}; each row needs 1 to {prompt.shape[1]} "
            "tokens. Begin an empty prompt with the tokenizer's start token."
        )
    return prompt, None if bool((lengths == prompt.shape[1]).all()) else lengths


def check_tokens(tokens: Tensor, name: str, batch: int | None = None) -> Tensor:
    """The tokens; `BadInput` unless they are whole numbers `[batch, tokens]` with at least one for each row."""
    if tokens.dim() != 2 or tokens.is_floating_point() or (batch is not None and tokens.shape[0] != batch):
        raise BadInput(
            f"{name} is {tokens.dtype} {list(tokens.shape)}; it must be whole numbers [{batch or 'batch'}, tokens]."
        )
    if not tokens.numel():
        raise BadInput(
            f"{name} is {list(tokens.shape)}; each row needs at least one token. Begin it with the tokenizer's start "
            "token."
        )
    return tokens.long()


def check_generates(model: Model) -> None:
    """Raise for a model that cannot generate."""
    causal = isinstance(model, EncoderDecoderModel) or (isinstance(model, SequenceModel) and model.causal)
    if not causal:
        raise BadInput(
            "This model sees later tokens, so it cannot generate them. Use a causal stack or an encoder–decoder."
        )
    if not (isinstance(model, SequenceModel | EncoderDecoderModel) and isinstance(model.head, LMHead)):
        raise BadInput(
            "This model has no head over a vocabulary, so it cannot generate. Build it with head=LMHeadConfig(...)."
        )


def check_room(decoding: Decoding) -> None:
    """Raise when the text could become longer than the position embeddings of the model."""
    model, prompt, max_new = decoding.model, decoding.prompt.shape[1], decoding.config.max_new
    cache = decoding.config.cache
    prompt += cache.length if isinstance(cache, Cache) else 0
    embed = model.target_embed if isinstance(model, EncoderDecoderModel) else model.embed
    positions = embed.config.max_positions if isinstance(embed, TextEmbedding) else None
    room = max_new if positions is None else positions - prompt + 1
    if max_new > room:
        raise BadInput(
            f"{prompt} tokens and max_new={max_new} more exceed the {positions} position embeddings of this model. "
            f"Ask for max_new={max(room, 0)} at most, or cut the prompt."
        )
