"""The models: `embed → stack → head`, alone or as an encoder with a decoder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import Tensor, nn

from ..attention.parts.masks import Documents
from ..attention.parts.methods import Exact
from ..attention.sharding import SequenceLayout, check_tokens, current_layout, whole_tokens
from ..errors import BadInput, Unsupported
from ..nn.attention import Attend, EncoderOutput
from ..nn.block import Block, Stack, StackConfig, runs_on_sdpa
from ..nn.cache import Cache
from ..nn.embeddings.embedding import Embedding
from ..nn.embeddings.patch_embedding import ImageEmbedding
from ..nn.embeddings.text import TextEmbedding, TextEmbeddingConfig
from ..nn.embeddings.words import WordEmbedding
from ..nn.packing import real_tokens, zero_padding
from ..nn.pooling import pool_words
from .call_arguments import OTHER_NAMES, resolve_arguments
from .copy_mechanism import CopyMechanism, add_copy_logits
from .heads import (
    IGNORED,
    ClassificationHead,
    ClassificationHeadConfig,
    LMHead,
    LMHeadConfig,
    SpanHeadConfig,
    ctc_loss,
    span_loss,
    supervised_loss,
)

if TYPE_CHECKING:
    from .checkpoint.files import JsonObject
    from .config import EncoderDecoderConfig, SequenceConfig
    from .generation.rules import TokenRules
    from .generation.sampling import GenerateArguments
    from .interfaces import ModelConfig
    from .tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class Output:
    """The output of a model; fields that it does not have are None. Shapes are in the docstring of `Model`."""

    hidden: Tensor | None = None
    logits: Tensor | None = None
    pooled: Tensor | None = None
    text: Tensor | None = None
    image: Tensor | None = None
    boxes: Tensor | None = None
    cache: Cache | None = None
    loss: Tensor | None = None


class Model(nn.Module):
    """The base of all models: a configuration, a tokenizer where its folder had one, `save` and `generate`.

    A model is called with keyword arguments: `tokens [batch, tokens]`, `lengths [batch]` (padding comes at the end and
    does not change the output), `segments`, `global_tokens`, `images [batch, channels, height, width]`, `sound [batch,
    frames, bins]`, `targets [batch, tokens]` (of a decoder), `cache`, `labels`. It returns an `Output`: `hidden [batch,
    tokens, dim]`, `logits`, `pooled [batch, dim]`, `cache` (decoders, in evaluation), `loss` (when labels are given).
    """

    tokenizer: Tokenizer | None = None
    rules: TokenRules | None = None
    labels: list[str] | None
    """Names of the classes, where the checkpoint's configuration has them."""
    preprocessor: JsonObject
    """The checkpoint's `preprocessor_config.json`; empty where there is none."""
    base_family: str | None = None
    """The family of the checkpoint that the training of this model started from."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.labels, self.preprocessor = None, {}
        self.config: Any = config  # each model has a configuration of its own type

    def __call__(self, *inputs: Any, **arguments: Any) -> Any:
        """The output. One input may come without its name; names of other libraries are answered with ours."""
        if inputs or any(name in OTHER_NAMES for name in arguments):
            arguments = resolve_arguments(self, inputs, arguments)
        return super().__call__(**arguments)

    def save(self, folder: str | Path, format: str = "regard") -> None:
        """Write configuration, weights and tokenizer into a folder: ours, or one that transformers reads."""
        from .checkpoint.checkpoint import save

        save(self, folder, format)

    def generate(self, **arguments: Unpack[GenerateArguments]) -> Tensor:
        """The generated tokens, prompt included. See `regard.models.generation.generate.generate`."""
        from .generation.generate import generate

        return generate(self, **arguments)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device


class SequenceModel(Model):
    """An encoder, or with a causal stack a decoder: `embed → stack → head`."""

    config: SequenceConfig

    def __init__(self, config: SequenceConfig) -> None:
        super().__init__(config)
        self.embed = config.embed.build()
        self.stack = config.stack.build()
        self.pooler = None if config.pooler is None else config.pooler.build()
        self.head = None if config.head is None else config.head.build()
        self.word_embed = None if config.word_embed is None else config.word_embed.build()

    @property
    def causal(self) -> bool:
        return self.config.stack.causal

    @property
    def memory_length(self) -> int | None:
        """The number of earlier tokens that the stack attends to from a cache, as in Transformer-XL."""
        stack = self.config.stack
        return stack.memory_length if isinstance(stack, StackConfig) else None

    def forward(
        self,
        *,
        tokens: Tensor | None = None,
        lengths: Tensor | None = None,
        segments: Tensor | None = None,
        global_tokens: Tensor | None = None,
        images: Tensor | None = None,
        sound: Tensor | None = None,
        words: Tensor | None = None,
        features: Tensor | None = None,
        documents: Tensor | None = None,
        cache: Cache | None = None,
        labels: Tensor | None = None,
    ) -> Output:
        """See `Model`. `documents [batch, tokens]` numbers the texts that are packed into a row: a token attends to
        those of its own text. `words [batch, tokens]` is the word of each token (−1: none): heads then read the mean of
        each word's tokens, `[batch, words, dim]`, to which the embedding of `features [batch, words, …]` is added."""
        given = select_input(self.embed, tokens=tokens, images=images, sound=sound)
        layout = current_layout()
        if layout is not None:
            layout.check_ranks(lambda: self.check_sharded(layout, tokens, cache, labels))
        cache = (cache or Cache()).next() if self.returns_cache(cache, lengths, labels) else None
        if cache is not None and lengths is not None:
            return self.forward_left_padded(given, lengths, cache)
        x = embed_input(self.embed, given, segments, cache, lengths)
        lengths = embedded_lengths(self.embed, lengths)
        global_tokens = self.default_global_tokens(x) if global_tokens is None else global_tokens
        extra: dict[str, Any] = {} if global_tokens is None else {"global_tokens": global_tokens}
        extra |= {} if documents is None else {"mask": Documents(documents)}
        hidden = self.stack(x, lengths=lengths, cache=cache, **extra)
        if cache is not None:
            cache.length += x.shape[1]
        if words is not None:
            hidden = pool_words(hidden, words, int(words.max()) + 1 if features is None else features.shape[1])
        if self.word_embed is not None:
            hidden = hidden + self.word_embed(features)
        return self.apply_heads(hidden, lengths, cache, labels)

    def check_sharded(
        self, layout: SequenceLayout, tokens: Tensor | None, cache: Cache | None, labels: Tensor | None
    ) -> None:
        """Raise unless this model can run on one rank's tokens of a sequence, and these are its."""
        if cache is not None or self.memory_length is not None:
            raise Unsupported("A cache of earlier tokens does not run sharded. Call the model on the whole sequence.")
        if labels is not None:
            raise Unsupported("A model does not take labels inside `with layout:`. Compute the loss of its logits.")
        reason = reason_not_sharded(self)
        if reason is not None:
            raise Unsupported(reason)
        if tokens is not None:
            check_tokens(layout, tokens.shape[1])

    def returns_cache(self, cache: Cache | None, lengths: Tensor | None, labels: Tensor | None) -> bool:
        """Whether the output has a cache: a decoder's has, except in training on whole texts and sharded ones."""
        if current_layout() is not None:
            return False
        if lengths is None and self.memory_length is not None:
            return self.causal
        return self.causal and labels is None and (cache is not None or not self.training)

    def default_global_tokens(self, x: Tensor) -> Tensor | None:
        """The first token, where the head classifies the text by it and the stack has a window."""
        head, stack = self.config.head, self.config.stack
        windowed = isinstance(stack, StackConfig) and stack.window is not None
        if not windowed or not isinstance(head, ClassificationHeadConfig) or head.per_token:
            return None
        tokens = whole_tokens(x.shape[1])
        return (torch.arange(tokens, device=x.device) == 0).expand(x.shape[0], tokens)

    def forward_left_padded(self, tokens: Tensor, lengths: Tensor, cache: Cache) -> Output:
        """The output for prompts of different length, whose last tokens are aligned in the cache."""
        if cache.length:
            raise BadInput(
                "lengths belong to the first call with a cache; later tokens follow each row's last. Leave them out."
            )
        cache.padding = tokens.shape[1] - lengths
        x = embed_input(self.embed, roll(tokens, cache.padding), None, cache)
        hidden = self.stack(x, cache=cache)
        cache.length += x.shape[1]
        return self.apply_heads(zero_padding(roll(hidden, lengths), real_tokens(hidden, lengths)), lengths, cache, None)

    def apply_heads(self, hidden: Tensor, lengths: Tensor | None, cache: Cache | None, labels: Tensor | None) -> Output:
        """The output of pooler and head."""
        pooled = None if self.pooler is None else self.pooler(hidden)
        logits = padded = None
        if isinstance(self.head, LMHead):
            logits, padded = self.head.padded_logits(hidden, embedding_matrix(self.embed))
        elif isinstance(self.head, ClassificationHead):
            logits = self.head(self.head.pool(hidden, lengths, pooled))
        return Output(hidden, logits, pooled, cache=cache, loss=self.loss(logits, labels, lengths, padded))

    def loss(
        self, logits: Tensor | None, labels: Tensor | None, lengths: Tensor | None = None, padded: Tensor | None = None
    ) -> Tensor | None:
        """The loss; `padded` are the logits with the columns that round the vocabulary up."""
        if labels is None:
            return None
        if logits is None:
            raise BadInput("labels were given, and this model has no head to compare them with. Build it with one.")
        head = self.config.head
        if isinstance(head, LMHeadConfig) and head.blank is not None:
            return ctc_loss(logits, labels, lengths, head.blank)
        if isinstance(head, SpanHeadConfig):
            return span_loss(logits, labels, lengths)
        shift = self.causal and isinstance(self.head, LMHead)
        return supervised_loss(logits if padded is None else padded, labels, shift, logits.shape[-1])


class EncoderDecoderModel(Model):
    """An encoder and a decoder that reads it."""

    config: EncoderDecoderConfig

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__(config)
        self.embed = config.embed.build()
        self.stack = config.stack.build()
        self.decoder_embed = None if config.decoder_embed is None else config.decoder_embed.build()
        if config.shared_tokens and self.decoder_embed is not None:
            self.decoder_embed.tokens = self.embed.tokens
        self.decoder = config.decoder.build()
        self.head = None if config.head is None else config.head.build()
        self.copying = CopyMechanism(check_copy(config)) if config.copy else None

    @property
    def target_embed(self) -> Embedding:
        """The decoder's embedding: its own, or the encoder's."""
        return self.embed if self.decoder_embed is None else self.decoder_embed

    def forward(
        self,
        *,
        tokens: Tensor | None = None,
        lengths: Tensor | None = None,
        images: Tensor | None = None,
        sound: Tensor | None = None,
        targets: Tensor | None = None,
        target_lengths: Tensor | None = None,
        wanted: Tensor | None = None,
        cache: Cache | None = None,
        labels: Tensor | None = None,
    ) -> Output:
        """See `Model`. `wanted` selects the targets that get logits, by booleans `[batch, tokens]` or by indices into
        the flattened batch: then logits are `[wanted, vocabulary]`."""
        if targets is None:
            targets = self.shift_right(labels)
        caches = labels is None and target_lengths is None and (cache is not None or not self.training)
        cache = (cache or Cache()).next() if caches else None
        memory = self.cached_encoder_output(cache)
        if memory is None:
            memory = self.encode(select_input(self.embed, tokens=tokens, images=images, sound=sound), lengths)
            if cache is not None:
                cache.put("source", (memory.x, memory.lengths))
            if cache is not None and self.copying is not None:
                cache.put("words", tokens)
        hidden = self.decode(targets, memory, target_lengths, cache)
        selected = hidden if wanted is None else select_tokens(hidden, wanted)
        logits = None if self.head is None else self.head(selected, embedding_matrix(self.target_embed))
        if self.copying is not None and logits is not None:
            source = select_input(self.embed, tokens=tokens if cache is None else cache.get("words", Tensor))
            copy_logits, words = self.copying.copy_logits(hidden, memory.x, memory.lengths, source)
            if wanted is not None:
                copy_logits, words = (select_tokens(x.expand(copy_logits.shape), wanted) for x in (copy_logits, words))
            logits = add_copy_logits(logits, copy_logits, words)
        return Output(hidden, logits, cache=cache, loss=self.loss(logits, labels))

    def encode(self, given: Tensor, lengths: Tensor | None = None) -> EncoderOutput:
        """The encoder's output."""
        x = embed_input(self.embed, given, None, None, lengths)
        lengths = embedded_lengths(self.embed, lengths)
        return EncoderOutput(self.stack(x, lengths=lengths), lengths)

    def cached_encoder_output(self, cache: Cache | None) -> EncoderOutput | None:
        """The encoder's output of an earlier call with this cache."""
        cached = None if cache is None else cache.get("source", tuple)
        return None if cached is None else EncoderOutput(*cached)

    def decode(self, targets: Tensor, memory: EncoderOutput, lengths: Tensor | None, cache: Cache | None) -> Tensor:
        """The decoder's last layer, `[batch, tokens, dim]`; adds the targets to the cache."""
        if targets.shape[0] != memory.x.shape[0]:
            raise BadInput(f"targets has {targets.shape[0]} rows, the source {memory.x.shape[0]}; give one for each.")
        x = embed_input(self.target_embed, targets, None, cache)
        hidden = self.decoder(x, lengths=lengths, memory=memory, cache=cache)
        if cache is not None:
            cache.length += targets.shape[1]
        return hidden

    def loss(self, logits: Tensor | None, labels: Tensor | None) -> Tensor | None:
        if labels is None:
            return None
        if logits is None:
            raise BadInput("labels were given, and this model has no head to compare them with. Build it with one.")
        return supervised_loss(logits, labels, shift=False)

    def shift_right(self, labels: Tensor | None) -> Tensor:
        """The decoder's tokens for these labels: the start token, then every label but the last."""
        if labels is None:
            raise BadInput("An encoder–decoder needs targets (or labels): the decoder's tokens, [batch, tokens].")
        padding = (self.config.decoder_embed or self.config.embed).padding
        fill = self.config.start if padding is None else padding
        start = torch.full_like(labels[:, :1], self.config.start)
        return torch.cat([start, labels[:, :-1].masked_fill(labels[:, :-1] == IGNORED, fill)], dim=1)


def check_copy(config: EncoderDecoderConfig) -> int:
    """The dim of the copy mechanism; `BadInput` where source and target do not share a vocabulary."""
    head = config.head
    if (
        config.decoder_embed is None
        and isinstance(config.embed, TextEmbeddingConfig)
        and isinstance(head, LMHeadConfig)
    ):
        return head.dim
    raise BadInput(
        "copy=True copies words of the source, so source and target must be texts of one vocabulary. Share one "
        "(joint=true; decoder_embed=None and head=LMHeadConfig(...)), or set copy=False."
    )


def reason_not_sharded(model: nn.Module) -> str | None:
    """Why a model cannot run on one rank's tokens of a sequence that is shared out; None if it can."""
    name = type(model).__name__
    if not isinstance(model, SequenceModel):
        return f"{name} does not run sharded along the sequence; models of one stack of attention over tokens do."
    if not isinstance(model.embed, TextEmbedding | WordEmbedding):
        return f"{type(model.embed).__name__} does not embed token by token, so it does not run sharded."
    if not isinstance(model.stack, Stack):
        return (
            f"{type(model.stack).__name__} mixes tokens without attention (recurrence, convolution or fixed weights), "
            "so it does not run sharded. Take a transformer, longformer or bigbird."
        )
    method = model.config.stack.parts.method
    if not isinstance(method, Exact):
        return f"{type(method).__name__} is not exact, and only Exact() runs sharded."
    return None


def select_tokens(hidden: Tensor, wanted: Tensor) -> Tensor:
    """The selected tokens, `[wanted, dim]`."""
    return hidden[wanted] if wanted.dtype == torch.bool else hidden.flatten(0, 1).index_select(0, wanted)


def compile_blocks(model: nn.Module) -> None:
    """Compile a model's embeddings and blocks, each by itself and in place.

    Blocks share one graph, so this takes seconds where compiling the whole model takes a minute. Attention that runs on
    Regard's own kernels stays outside: there is nothing to fuse, and caches of masks are looked up by the mask object.
    """
    for module in model.modules():
        if isinstance(module, Stack) and not runs_on_sdpa(module.config):
            for attend in (inner for inner in module.modules() if isinstance(inner, Attend)):
                attend.forward = torch.compiler.disable(attend.forward)  # type: ignore[method-assign]
        if isinstance(module, Block | TextEmbedding | ImageEmbedding):
            module.compile()


def select_input(embed: Embedding, **given: Tensor | None) -> Tensor:
    """The input that an embedding reads."""
    value = given.get(embed.reads)
    if value is None:
        have = ", ".join(name for name, value in given.items() if value is not None) or "nothing"
        raise BadInput(f"This model reads {embed.reads}; it was given {have}. Call model({embed.reads}=...).")
    return value


def embed_input(
    embed: Embedding, given: Tensor, segments: Tensor | None, cache: Cache | None, lengths: Tensor | None = None
) -> Tensor:
    """The embedded input, `[batch, tokens, dim]`; embeddings of sound convolve frames and need the lengths."""
    if embed.reads != "tokens":
        return embed(given, lengths) if embed.reads == "sound" else embed(given)
    start, padding = (0, None) if cache is None else (cache.length, cache.padding)
    return embed(given, segments=segments, start=start, padding=padding)


def embedded_lengths(embed: Embedding, lengths: Tensor | None) -> Tensor | None:
    """The lengths after an embedding, which may change the number of tokens."""
    return None if lengths is None else embed.lengths_after(lengths)


def embedding_matrix(embed: Embedding) -> Tensor | None:
    """The token embedding `[vocabulary, dim]`, for a head that is tied to it."""
    return embed.tokens.weight if isinstance(embed, TextEmbedding) else None


def roll(x: Tensor, by: Tensor) -> Tensor:
    """Each row of `x [batch, tokens, …]` rolled `by [batch]` tokens to the right."""
    tokens = x.shape[1]
    index = (torch.arange(tokens, device=x.device) - by[:, None]) % tokens
    return x[torch.arange(x.shape[0], device=x.device)[:, None], index]
