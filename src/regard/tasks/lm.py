"""Language modelling: the next character, subword or word of running text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Literal, Protocol, cast, overload

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from ..data.json_values import JsonObject, ParsedObject
from ..data.reading import Reading
from ..data.text import Document, read_lines
from ..errors import BadInput
from ..models.baselines.ngram import NgramModel
from ..models.config import SequenceConfig
from ..models.families.transformer_xl import transformer_xl
from ..models.generation.sampling import GenerationConfig
from ..models.heads import IGNORED, LMHead, LMHeadConfig
from ..models.model import Model, SequenceModel
from ..models.tokenizers.tokenizer import Tokenizer
from ..models.tokenizers.training import Special
from ..nn.embeddings.text import TextEmbeddingConfig
from ..settings import Settings, Training, setting
from .architecture import ATTENTION, Architecture, stack_of
from .inputs.given import as_text
from .pretrained.pretrained import Pretrained, describe_model
from .results import GeneratedText
from .task import Scores, Task, require_tokenizer

END, UNKNOWN = "<|end|>", "<unk>"
SPECIAL = Special(END, UNKNOWN, None, None, None)
LINES = 10_000
"""Lines that are encoded at once."""


@dataclass(frozen=True)
class LmSettings(Settings):
    """Settings of the task `lm`.

    The model is trained on blocks of `context` tokens and scored in windows of the same size that move by `stride`: a
    smaller stride gives every token more context.
    """

    unit: Literal["characters", "bpe", "words"] = setting("characters", "What a token is.")
    vocab_size: int = setting(8000, "Size of the vocabulary of bpe or words.", ge=1, former="size")
    lowercase: bool = setting(False, "Turn texts to lower case.", former="lower")
    context: int = setting(256, "Tokens that the model sees at once.", ge=1)
    stride: int | None = setting(None, "Tokens between two windows of an evaluation; the context by default.", ge=1)
    memory: int = setting(0, "Tokens before a block that Transformer-XL attends to.", ge=0)
    order: int = setting(5, "Order of the n-gram model.", ge=1)
    document_mask: bool = setting(
        False, "Tokens attend to their own text only, where a block has the end of one and the beginning of another."
    )
    repeats: float = setting(0.0, "Share of training blocks that repeat a passage, which teaches copying.", ge=0, le=1)
    max_new: int = setting(300, "Tokens that predict writes after a prompt.", ge=1, former="new")
    temperature: float = setting(0.8, "Temperature of sampling; 0 takes the likeliest token.", ge=0)
    top_k: int | None = setting(None, "Sample from the k likeliest tokens; all by default.", ge=1)
    sampling_seed: int = setting(0, "Seed of sampling.", former="draw")
    stop: str | None = setting(
        None,
        "Text between two texts, such as a line break: a prompt begins after it, and a continuation ends before it.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stride is not None and self.stride > self.context:
            raise BadInput(
                f"stride is {self.stride}; it must be 1 to context ({self.context}), so that no token is left out."
            )
        if self.document_mask and self.memory:
            raise BadInput("document_mask hides other texts, and memory reads what came before. Leave one of them out.")


class Lm(Task[LmSettings, Document, Tensor]):
    """Next-token prediction: `Document` examples, cut into blocks; loss, perplexity and bits per character."""

    name = "lm"
    cuts_blocks = True
    Settings = LmSettings
    ARCHITECTURE = Architecture(dim=256, layers=4, activation="gelu", positions="learned")
    TRAINING = Training(epochs=10, schedule="cosine", min_lr_ratio=0.1, betas=(0.9, 0.99), weight_decay=0.1, warmup=100)

    def __init__(self, settings: LmSettings, tokenizer: Tokenizer) -> None:
        self.settings = settings
        self._tokenizer = tokenizer
        self.pretrained: Pretrained | None = None
        self.by_lines = True
        self.encoded_texts: dict[int, tuple[Sequence[Document], Tensor]] = {}

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @classmethod
    def read(cls, paths: Sequence[Path], settings: LmSettings) -> Reading[Document]:
        return read_lines(paths)

    @classmethod
    def split(cls, reading: Reading[Document], share: float, seed: int) -> tuple[Reading[Document], Reading[Document]]:
        """(each text without its end, the ends): about that share of each text is held out."""
        begins, ends = [], []
        for document in reading.examples:
            text = document.text
            cut = text.find("\n", int(len(text) * (1 - share))) + 1 or len(text)  # after the end of a line
            begins.append(replace(document, text=text[:cut]))
            ends += [replace(document, text=text[cut:])] if text[cut:] else []
        if not ends:
            raise BadInput(f"{', '.join(reading.files)} is too short to hold out its end. Give --dev FILE.")
        return replace(reading, examples=tuple(begins)), replace(reading, examples=tuple(ends))

    @classmethod
    def prepare(cls, examples: Sequence[Document], settings: LmSettings) -> Lm:
        """The task with a tokenizer for these texts."""
        lines = [line for document in examples for line in document.text.splitlines(keepends=True)]
        if settings.unit == "words":
            return cls(settings, word_tokenizer(lines, settings))
        tokenizer = Tokenizer.train(lines, settings.unit, settings.vocab_size, settings.lowercase, SPECIAL)
        return cls(settings, add_end_token(tokenizer))

    @classmethod
    def prepare_from(cls, examples: Sequence[Document], settings: LmSettings, pretrained: Pretrained) -> Lm:
        """The task with the tokenizer of a language model, all of whose weights are trained further."""
        model = pretrained.model
        if not isinstance(model, SequenceModel) or not model.causal or not isinstance(model.head, LMHead):
            raise BadInput(
                f"{pretrained.name} ({describe_model(model)}) is no language model that writes from left to right. "
                "Start from a GPT-2 or a Llama, or from a run of this task."
            )
        limit = pretrained.encoder("tokens").max_length
        if limit is not None and settings.context > limit:
            raise BadInput(
                f"context is {settings.context}; this checkpoint reads {limit} tokens. Give context={limit}."
            )
        task = cls(settings, pretrained.tokenizer)
        if task.tokenizer.end is None:
            raise BadInput(f"The tokenizer of {pretrained.name} names no eos_token, which ends a text. Add it.")
        task.pretrained, task.by_lines = pretrained, isinstance(pretrained.task, Lm) and pretrained.task.by_lines
        return task

    def initialize(self, model: nn.Module) -> None:
        if self.pretrained is not None:
            self.pretrained.initialize(model)

    def as_dict(self) -> JsonObject:
        return {} if self.by_lines else {"by_lines": False}

    @property
    def end(self) -> int:
        """The token that ends a text."""
        end = self.tokenizer.end
        return self.tokenizer.backend.token_to_id(END) if end is None else end

    @classmethod
    def from_dict(cls, data: ParsedObject, settings: LmSettings, tokenizer: Tokenizer | None = None) -> Lm:
        task = cls(settings, require_tokenizer(tokenizer))
        task.by_lines = data.get("by_lines", True)
        return task

    def config(self, a: Architecture) -> SequenceConfig:
        if self.pretrained is not None:
            return cast(SequenceConfig, self.pretrained.model.config)
        memory, size = self.settings.memory, self.tokenizer.size
        if (a.model == "transformer-xl") != bool(memory):
            raise BadInput(
                f"memory is {memory} for {a.model}; transformer-xl needs one, such as 256, and the others 0."
            )
        if self.settings.document_mask and a.model not in ATTENTION:
            raise BadInput(f"document_mask is for attention, and {a.model} has none of its kind. Leave it out.")
        if a.model == "transformer-xl":
            return self.transformer_xl_config(a)
        positions = a.position_embedding(self.settings.context)
        embed = TextEmbeddingConfig(size, a.dim, positions, scaled=a.positions == "sinusoidal", dropout=a.dropout)
        return SequenceConfig(embed, stack_of(a, causal=True), head=LMHeadConfig(size, a.dim))

    def transformer_xl_config(self, a: Architecture) -> SequenceConfig:
        return transformer_xl(
            layers=a.layers,
            dim=a.dim,
            heads=a.heads,
            hidden=a.hidden or 4 * a.dim,
            vocabulary=self.tokenizer.size,
            memory=self.settings.memory,
            activation=a.activation,
            dropout=a.dropout,
            attention_dropout=a.attention_dropout,
        )

    def training_length(self, examples: Sequence[Document]) -> int:
        return self.settings.context

    def fit(self, a: Architecture, examples: Sequence[Document]) -> NgramModel | None:
        """The n-gram model of the texts; None for other models."""
        if a.model != "ngram":
            return None
        return NgramModel.from_tokens(self.numbers(examples), self.tokenizer.size, self.settings.order)

    def numbers(self, examples: Sequence[Document]) -> Tensor:
        """Token numbers of all texts, an end token after each, `[tokens]`; cached for the same list of texts."""
        if id(examples) not in self.encoded_texts:
            numbers = [number for document in examples for number in (*self.encode(document.text), self.end)]
            # The list is referenced so that its id is not reused.
            self.encoded_texts[id(examples)] = (examples, torch.tensor(numbers))
        return self.encoded_texts[id(examples)][1]

    def encode(self, text: str) -> Iterator[int]:
        """The token numbers of a text; a tokenizer of ours reads line by line, that of a checkpoint as it was made."""
        lines = text.splitlines(keepends=True)
        for begin in range(0, len(lines), LINES):
            some = lines[begin : begin + LINES]
            given = some if self.by_lines else ["".join(some)]
            for encoding in self.tokenizer.backend.encode_batch_fast(given, add_special_tokens=self.by_lines):
                yield from encoding.ids

    def epoch_examples(self, examples: Sequence[Document], rng: Random) -> TextBlocks:
        """The blocks of an epoch."""
        numbers = self.numbers(examples)
        offset = rng.randrange(len(numbers))
        return TextBlocks(numbers, self.settings.context, self.settings.memory, offset, self.settings.repeats)

    def sizes(self, examples: Sequence[Tensor]) -> list[int]:
        return [len(block) - self.settings.memory - 1 for block in examples]

    def batch(self, examples: Sequence[Tensor], rng: Random | None = None) -> dict[str, Tensor]:
        memory = self.settings.memory
        labels = pad_sequence([block[memory + 1 :] for block in examples], True, IGNORED)
        whole = pad_sequence(list(examples), True)
        before = {"before": whole[:, :memory]} if memory else {}
        tokens = whole[:, memory:-1]
        return {**before, "tokens": tokens, "labels": labels, **self.documents(tokens)}

    @property
    def token_inputs(self) -> tuple[str, ...]:
        return ("tokens", "labels")

    def documents(self, tokens: Tensor) -> dict[str, Tensor]:
        """The number of each token's text, `[batch, tokens]`, where texts are masked from each other."""
        if not self.settings.document_mask:
            return {}
        ends = (tokens == self.end).long()
        return {"documents": ends.cumsum(1) - ends}

    def count(self, batch: dict[str, Tensor]) -> int:
        return int((batch["labels"] != IGNORED).sum())

    def loss(self, model: nn.Module, batch: dict[str, Tensor], smoothing: float = 0.0) -> Tensor:
        cache = {}
        if "before" in batch:
            with torch.no_grad():
                cache = {"cache": model(tokens=batch["before"]).cache}
        packed = {"documents": batch["documents"]} if "documents" in batch else {}
        logits = model(tokens=batch["tokens"], **packed, **cache).logits
        return functional.cross_entropy(
            logits.flatten(0, 1).float(),
            batch["labels"].flatten(),
            ignore_index=IGNORED,
            label_smoothing=smoothing,
            reduction="sum",
        )

    def evaluate(self, model: Model, examples: Sequence[Document]) -> Scores:
        """Loss in nats and perplexity of a token, and bits of a character, over the whole texts."""
        if not examples:
            raise BadInput("There is no text to evaluate on. Look at the file with `regard check`.")
        numbers = self.numbers(examples).roll(1)  # an end token before each text
        total, tokens = float(self.losses(model, numbers).double().sum()), len(numbers) - 1
        characters = sum(len(document.text) for document in examples)
        metrics = {
            "loss": total / tokens,
            "perplexity": math.exp(min(total / tokens, 100.0)),
            "bits_per_character": total / math.log(2) / characters,
        }
        details = {"tokens": tokens, "characters": characters, "unknown": self.unknown_share(numbers)}
        return Scores(metrics, "loss", higher=False, details=details)

    def unknown_share(self, numbers: Tensor) -> float:
        """The share of unknown tokens."""
        if self.tokenizer.unknown is None:
            return 0.0
        return float((numbers == self.tokenizer.unknown).double().mean())

    @torch.no_grad()
    def losses(self, model: Model, tokens: Tensor) -> Tensor:
        """−ln p of each token of a text but the first, `[tokens − 1]`, on the CPU."""
        if isinstance(model, NgramModel):
            return model.losses(tokens)
        tokens = tokens.to(model.device)
        if self.settings.memory:
            return self.losses_in_order(model, tokens)

        def predict(*, tokens: Tensor) -> NextTokenOutput:
            return model(tokens=tokens, **self.documents(tokens))

        return windowed_losses(predict, tokens, self.settings.context, self.settings.stride or self.settings.context)

    def losses_in_order(self, model: Model, tokens: Tensor) -> Tensor:
        """`losses` of a model with memory, segment by segment."""
        cache, losses = None, []
        for begin in range(0, len(tokens) - 1, self.settings.context):
            segment = tokens[begin : begin + self.settings.context + 1]
            output, labels = model(tokens=segment[None, :-1], cache=cache), segment[1:]
            cache = output.cache
            losses.append(functional.cross_entropy(output.logits[0].float(), labels, reduction="none").cpu())
        return torch.cat(losses)

    @torch.no_grad()
    def predict(self, model: Model, inputs: Sequence[object]) -> list[GeneratedText]:
        """Each prompt with its continuation."""
        return [GeneratedText(text, self.continue_prompt(model, text)) for text in map(as_text, inputs)]

    def continue_prompt(self, model: Model, prompt: str) -> str:
        """The prompt and its continuation; each new token sees at most `context` tokens."""
        tokens = list(self.encode((self.settings.stop or "") + prompt)) or [self.end]
        start, generator = len(tokens), torch.Generator(model.device).manual_seed(self.settings.sampling_seed)
        stop, written = self.settings.stop, ""
        while len(tokens) < start + self.settings.max_new and not (stop and stop in written):
            recent = tokens[-max(1, self.settings.context // 2) :]
            room = min(self.settings.context - len(recent) + 1, start + self.settings.max_new - len(tokens))
            tokens += self.sample(model, recent, room, generator)
            written = self.tokenizer.decode(tokens[start:])
        space = self.settings.unit == "words" and prompt and not prompt[-1].isspace()
        return prompt + " " * bool(space) + (written.split(stop)[0] if stop else written)

    def sample(self, model: Model, recent: list[int], new: int, generator: torch.Generator) -> list[int]:
        """`new` tokens that continue the recent ones."""
        s = self.settings
        sampling = {"temperature": s.temperature, "top_k": s.top_k if s.temperature else None, "generator": generator}
        prompt = torch.tensor([recent], device=model.device)
        if not isinstance(model, NgramModel):
            return model.generate(tokens=prompt, max_new=new, end=(), **sampling)[0, len(recent) :].tolist()
        config = GenerationConfig(**sampling)
        for _ in range(new):
            chosen = config.choose(model(tokens=prompt[:, -s.order :]).logits[:, -1])
            prompt = torch.cat([prompt, chosen[:, None]], 1)
        return prompt[0, len(recent) :].tolist()

    def describe(self, examples: Sequence[Document]) -> JsonObject:
        """Facts that `check` shows: sizes, vocabulary, share of unknown tokens, the first lines."""
        numbers = self.numbers(examples)
        return {
            "texts": len(examples),
            "characters": sum(len(document.text) for document in examples),
            "tokens": len(numbers),
            "vocabulary": self.tokenizer.size,
            "unknown": self.unknown_share(numbers),
            "blocks": math.ceil(len(numbers) / self.settings.context),
            "begins": [line for document in examples[:3] for line in document.lines[:3]],
        }


class TextBlocks(Sequence[Tensor]):
    """A text `[tokens]` cut into blocks: each token is predicted once, from those before it in its block.

    The text is circular, and the first block begins at `offset`. A block has `memory` tokens in front that are only
    read, and one more at the end, the last to be predicted. A share `repeats` of the blocks is one passage over and
    over, so that what comes again can be copied: the beginning of the block or, in half of them, tokens drawn at random
    from the text.

    >>> [block.tolist() for block in TextBlocks(torch.arange(5), context=3, memory=1, offset=4)]
    [[3, 4, 0, 1, 2], [1, 2, 3, 4]]
    """

    def __init__(self, numbers: Tensor, context: int, memory: int, offset: int, repeats: float = 0.0) -> None:
        self.numbers, self.context, self.memory, self.offset = numbers, context, memory, offset
        self.repeats = repeats

    def __len__(self) -> int:
        return math.ceil(len(self.numbers) / self.context)

    @overload
    def __getitem__(self, n: int) -> Tensor: ...

    @overload
    def __getitem__(self, n: slice) -> list[Tensor]: ...

    def __getitem__(self, n: int | slice) -> Tensor | list[Tensor]:
        if isinstance(n, slice):
            return [self[k] for k in range(*n.indices(len(self)))]
        if not 0 <= n < len(self):
            raise IndexError(n)
        begin = n * self.context
        end = min(begin + self.context, len(self.numbers))
        positions = torch.arange(begin - self.memory, end + 1)
        rng = Random(self.offset * len(self) + n)
        if rng.random() < self.repeats:
            period = rng.randint(self.context // 8 + 1, self.context // 2 + 1)
            passage = positions[:period]
            if rng.random() < 0.5:
                passage = torch.tensor([rng.randrange(len(self.numbers)) for _ in range(period)])
            positions = passage[torch.arange(len(positions)) % len(passage)]
        return self.numbers[positions.add(self.offset) % len(self.numbers)]


def windows(tokens: int, context: int, stride: int) -> Iterator[tuple[int, int]]:
    """The start of each window, and the first position in it that no earlier window has predicted.

    >>> list(windows(10, 4, 2))
    [(0, 0), (2, 2), (4, 2), (6, 2)]
    >>> list(windows(10, 4, 4))
    [(0, 0), (4, 0), (6, 2)]
    """
    done, size = 0, min(context, tokens)
    while done < tokens:
        end = min(done + (stride if done else size), tokens)
        yield end - size, done - (end - size)
        done = end


class NextTokenOutput(Protocol):
    """What a model answers: `logits [batch, tokens, vocabulary]`."""

    @property
    def logits(self) -> Tensor: ...


class NextTokenModel(Protocol):
    """A model that predicts next tokens, ours or one of another library behind the same call."""

    def __call__(self, *, tokens: Tensor) -> NextTokenOutput: ...


def windowed_losses(model: NextTokenModel, tokens: Tensor, context: int, stride: int, budget: int = 16384) -> Tensor:
    """−ln p of each token but the first by a model that sees `context` tokens at once."""
    starts, losses = list(windows(len(tokens) - 1, context, stride)), []
    size = min(context, len(tokens) - 1)
    offsets = torch.arange(size + 1, device=tokens.device)
    rows = max(1, budget // size)
    for batch in (starts[n : n + rows] for n in range(0, len(starts), rows)):
        begins, new = torch.tensor(batch, device=tokens.device).T
        window = tokens[begins[:, None] + offsets]  # [rows, size + 1]
        logits = model(tokens=window[:, :-1]).logits
        loss = functional.cross_entropy(logits.float().mT, window[:, 1:], reduction="none")
        losses.append(loss[offsets[:-1] >= new[:, None]].cpu())
    return torch.cat(losses)


def word_tokenizer(lines: list[str], settings: LmSettings) -> Tokenizer:
    """A tokenizer of the most frequent words, split at spaces; the end of a line is a word."""
    from tokenizers import Regex, models, normalizers, pre_tokenizers, trainers
    from tokenizers import Tokenizer as Backend

    backend = Backend(models.WordLevel(unk_token=UNKNOWN))
    backend.normalizer = normalizers.Sequence([normalizers.Lowercase()] if settings.lowercase else [])
    ends, blanks = ((Regex(r"\n"), "isolated"), (Regex(r"[^\S\n]+"), "removed"))
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(*ends), pre_tokenizers.Split(*blanks)])
    trainer = trainers.WordLevelTrainer(
        vocab_size=settings.vocab_size, special_tokens=SPECIAL.tokens(), show_progress=False
    )
    backend.train_from_iterator(lines, trainer)
    return add_end_token(Tokenizer(backend, SPECIAL.settings()))


def add_end_token(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer with an end token, which it does not add to texts."""
    tokenizer.settings |= {"eos_token": END, "model_input_names": ["input_ids", "attention_mask"]}
    return tokenizer
