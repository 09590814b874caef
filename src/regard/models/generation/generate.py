"""Generation: a model writes on, one token after another, greedily, by chance or with several beams."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ...errors import BadInput, Unsupported
from ..heads import LMHead
from ..model import EncoderDecoderModel, Model, SequenceModel
from .beam import beam_search
from .next_token import CachedDecoder, Decoder, UncachedDecoder
from .rules import TokenRules, as_tuple
from .sampling import GenerationConfig, read_config


@dataclass(frozen=True)
class GeneratedTokens:
    """What a model wrote: `tokens [batch, tokens]`, of which row b has `lengths[b]`; with beams also their scores."""

    tokens: Tensor
    lengths: Tensor
    scores: Tensor | None = None


def generate(model: Model, **arguments: Any) -> Tensor:
    """The tokens that a model writes, `[batch, tokens]`.

    A decoder's stand after the prompt, an encoder–decoder's after its start tokens; rows that end early are filled with
    the padding token. `write` takes the same arguments and also tells each row's length; `stream` gives each token
    when it is there.

    - `tokens`, `lengths`, `images`, `sound`: what the model is called with. Prompts of different length are padded at
      the end, `lengths` says where, and the new tokens of each row follow its own last.
    - `max_new` (64): the most tokens to write. `min_new` (0): how many before the text may end.
    - `temperature` (0.0): 0 takes the likeliest token; otherwise one is drawn from softmax(logits / temperature) among
      the `top_k` likeliest and of these the fewest whose chances sum up to `top_p`. `generator` draws: the same seed,
      the same text.
    - `beams` (1): so many texts are written at once, and the best by Σ log p / (new tokens)^`length_penalty` (1.0) is
      the answer. A row stops when its running texts would not be among the best; with `early`, once it has enough.
    - `end`: the token or tokens that end a text. `start`: those that an encoder–decoder begins with, for all rows or
      `[batch, tokens]`. `pad`: what fills short rows. The model's `rules`, from its folder, say what is not given.
    - `cache` (True): remember keys and values; without, all is computed anew for each token, to the same end.

    Raises `BadInput` for settings that do not fit and for a model that does not write.

    >>> from regard.models.families.gpt2 import gpt2
    >>> model = gpt2(layers=1, dim=8, heads=2, vocabulary=11, places=16).build()
    >>> model.generate(tokens=torch.tensor([[1, 2, 3], [4, 0, 0]]), lengths=torch.tensor([3, 1]), max_new=4).shape
    torch.Size([2, 7])
    """
    return generate_tokens(model, **arguments).tokens


def generate_tokens(model: Model, **arguments: Any) -> GeneratedTokens:
    """What `generate` writes, and how long each row is."""
    task = prepare_decoding(model, **arguments)
    if task.way.beams == 1:
        new = torch.stack(list(decode_steps(task)), dim=1)
        return append_tokens(task, new, task.rules.lengths(new))
    with torch.no_grad(), evaluation_mode(model):
        found = beam_search(task.decoder, task.prompt, task.lengths, task.rules, task.way)
    return replace(append_tokens(task, found.tokens[:, 0], found.lengths[:, 0]), scores=found.scores[:, 0])


def stream(model: Model, **arguments: Any) -> Iterator[Tensor]:
    """Each new token of all rows when it is there, `[batch]`; the padding token where a row has ended.

    Takes what `generate` takes, except beams, whose text is known at the end only.

    >>> from regard.models.families.gpt2 import gpt2
    >>> model = gpt2(layers=1, dim=8, heads=2, vocabulary=11, places=16).build()
    >>> len(list(stream(model, tokens=torch.tensor([[1, 2, 3]]), max_new=4)))
    4
    """
    task = prepare_decoding(model, **arguments)
    if task.way.beams > 1:
        raise Unsupported("With beams the text is known at the end only. Leave them out, or call generate(...).")
    return decode_steps(task)


@dataclass(frozen=True)
class Decoding:
    """A model and a prompt `[batch, tokens]` that fit together, and the way to write on."""

    model: Model
    decoder: Decoder
    prompt: Tensor
    lengths: Tensor | None
    rules: TokenRules
    way: GenerationConfig


def prepare_decoding(
    model: Model,
    *,
    tokens: Tensor | None = None,
    lengths: Tensor | None = None,
    images: Tensor | None = None,
    sound: Tensor | None = None,
    **settings: Any,
) -> Decoding:
    way = read_config(settings)
    need_writer(model)
    rules = rules_of(model, way)
    given = {"tokens": tokens, "lengths": lengths, "images": images, "sound": sound}
    given = {name: value for name, value in given.items() if value is not None}
    decoder = CachedDecoder if way.cache else UncachedDecoder
    if isinstance(model, EncoderDecoderModel):
        task = Decoding(model, decoder(model, given), start_tokens(model, given, rules, way), None, rules, way)
    else:
        prompt, lengths = need_prompt(given)
        task = Decoding(model, decoder(model, {}), prompt, lengths, rules, way)
    need_places(task)
    return task


@torch.inference_mode()
def decode_steps(task: Decoding) -> Iterator[Tensor]:
    """The columns of new tokens, each `[batch]`."""
    rules, way = task.rules, task.way
    with evaluation_mode(task.model):
        logits = task.decoder.begin(task.prompt, task.lengths)
        ended = None
        for new in range(way.max_new):
            column = way.choose(rules.apply(logits, new, way.min_new, way.max_new))
            if rules.end:
                column = column if ended is None else column.masked_fill(ended, rules.fill_token)
                ended = rules.ends(column) if ended is None else ended | rules.ends(column)
            yield column
            if new + 1 == way.max_new or (ended is not None and bool(ended.all())):
                return
            logits = task.decoder.next(column)


@contextmanager
def evaluation_mode(model: Model) -> Iterator[None]:
    """The model in evaluation mode, and afterwards as it was."""
    was = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was)


def append_tokens(task: Decoding, new: Tensor, counts: Tensor) -> GeneratedTokens:
    """The prompt's rows, each with its `counts[b]` new tokens after it."""
    batch, before = task.prompt.shape
    lengths = torch.full_like(counts, before) if task.lengths is None else task.lengths
    whole = new.new_full((batch, before + new.shape[1]), task.rules.fill_token)
    place = torch.arange(before + new.shape[1], device=new.device)
    whole[:, :before] = task.prompt
    index = (place - lengths[:, None]).clamp(0, new.shape[1] - 1)
    whole = torch.where(place < lengths[:, None], whole, new.gather(1, index))
    total = lengths + counts
    whole = whole.masked_fill(place >= total[:, None], task.rules.fill_token)
    return GeneratedTokens(whole[:, : int(total.max())].clone(), total)


def rules_of(model: Model, way: GenerationConfig) -> TokenRules:
    """The model's rules, with what was given in their place."""
    rules = model.rules or TokenRules()
    if way.end is not None:
        rules = replace(rules, end=as_tuple(way.end))
    return rules if way.pad is None else replace(rules, pad=way.pad)


def start_tokens(
    model: EncoderDecoderModel, given: dict[str, Tensor], rules: TokenRules, way: GenerationConfig
) -> Tensor:
    """What an encoder–decoder's text begins with, `[batch, tokens]`."""
    inputs = [value for name, value in given.items() if name != "lengths"]
    if not inputs:
        raise BadInput("There is nothing to read. Give tokens, images or sound, as the model reads.")
    if isinstance(way.start, Tensor):
        return need_tokens(way.start, "start", inputs[0].shape[0])
    first = rules.start or (model.config.start,) if way.start is None else as_tuple(way.start)
    start = torch.tensor([first], dtype=torch.long, device=model.device)
    return need_tokens(start.expand(inputs[0].shape[0], -1), "start", inputs[0].shape[0])


def need_prompt(given: dict[str, Tensor]) -> tuple[Tensor, Tensor | None]:
    """The prompt and, where rows differ, their lengths; `BadInput` unless each has a token."""
    if "tokens" not in given:
        raise BadInput("A decoder writes on from a prompt, and none was given. Pass tokens=[batch, tokens].")
    prompt = need_tokens(given["tokens"], "tokens")
    lengths = given.get("lengths")
    if lengths is None:
        return prompt, None
    if lengths.shape != prompt.shape[:1] or int(lengths.min()) < 1 or int(lengths.max()) > prompt.shape[1]:
        raise BadInput(
            f"lengths is {lengths.tolist()} for tokens {list(prompt.shape)}; each row needs 1 to {prompt.shape[1]} "
            "tokens. Begin an empty prompt with the tokenizer's first token."
        )
    return prompt, None if bool((lengths == prompt.shape[1]).all()) else lengths


def need_tokens(tokens: Tensor, name: str, batch: int | None = None) -> Tensor:
    """The tokens, or `BadInput` unless they are whole numbers `[batch, tokens]` and there is one at least."""
    if tokens.dim() != 2 or tokens.is_floating_point() or (batch is not None and tokens.shape[0] != batch):
        raise BadInput(
            f"{name} is {tokens.dtype} {list(tokens.shape)}; it must be whole numbers [{batch or 'batch'}, tokens]."
        )
    if not tokens.numel():
        raise BadInput(
            f"{name} is {list(tokens.shape)}: a text must begin with something. Give at least one token a row, such as "
            "the one that texts begin with."
        )
    return tokens.long()


def need_writer(model: Model) -> None:
    """Raise for a model that cannot write."""
    causal = isinstance(model, EncoderDecoderModel) or (isinstance(model, SequenceModel) and model.causal)
    if not causal:
        raise BadInput(
            "This model sees later tokens, so it cannot generate them. Use a causal stack or an encoder–decoder."
        )
    if not isinstance(getattr(model, "head", None), LMHead):
        raise BadInput(
            "This model has no head over a vocabulary, so it cannot generate. Build it with head=LMHeadConfig(...)."
        )


def need_places(task: Decoding) -> None:
    """Raise when the text could become longer than the places that the model has learned."""
    embed = (
        task.model.target_embed if isinstance(task.model, EncoderDecoderModel) else getattr(task.model, "embed", None)
    )
    places = getattr(getattr(embed, "config", None), "places", None)
    room = places - task.prompt.shape[1] + 1 if isinstance(places, int) else task.way.max_new
    if task.way.max_new > room:
        raise BadInput(
            f"{task.prompt.shape[1]} tokens and max_new={task.way.max_new} more are beyond the {places} places that "
            f"this model has learned. Ask for max_new={max(room, 0)} at most, or cut the prompt."
        )
