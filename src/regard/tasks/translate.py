"""Sequence to sequence: translation, or with ROUGE summarization."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from statistics import median
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..attention.tracing import in_cuda_graph
from ..data.batching import batch_by_size
from ..data.json_values import JsonObject, ParsedObject
from ..data.reading import Reading
from ..data.text import Parallel, read_parallel
from ..errors import BadInput
from ..models.config import EncoderDecoderConfig
from ..models.generation.rules import TokenRules, rules_from_dict
from ..models.heads import IGNORED, LMHeadConfig
from ..models.model import EncoderDecoderModel, Model
from ..models.tokenizers.tokenizer import Tokenizer, pad_rows
from ..models.tokenizers.training import Special
from ..nn.embeddings.text import TextEmbeddingConfig
from ..nn.packing import packing_positions
from ..settings import Settings, Training, setting
from .architecture import Architecture, stack_of
from .inputs.given import as_text
from .inputs.padding import pad_to_multiples
from .inputs.text import truncation_note
from .losses.r_drop import r_drop_loss, repeat_batch
from .metrics.bleu import Scoring, bleu
from .metrics.rouge import rouge
from .pretrained.pretrained import Pretrained, describe_model
from .results import GeneratedText
from .task import Scores, Task, require_tokenizer

SPECIAL = Special("<pad>", "<unk>", "<s>", "</s>", None)

CHINESE = "\u3000-\u303f\u3400-\u9fff\uf900-\ufaff\uff00-\uffef"
CONTRACTION = re.compile(r"(?<=[a-zA-Z]) ['’] (?=(?:t|s|m|d|re|ve|ll)\b)", re.IGNORECASE)
BLANKS = re.compile(f"(?<=[{CHINESE}]) +(?=[{CHINESE}])")

MAIN = {"bleu": "bleu", "chrf": "chrf", "rouge": "rouge1"}
"""The main score of each value of the setting `metric`."""


@dataclass(frozen=True)
class TranslateSettings(Settings):
    """Settings of the task `translate`.

    For Chinese take `unit` wordpiece, whose tokens are single characters, or bpe. `tokenize` is sacreBLEU's tokenizer;
    "none" is for files that are tokenized already, and "fr" is "13a" after a split behind apostrophes (l' homme), as
    Moses does for French and Italian.
    """

    source: str | None = setting(None, "Column of the source texts.")
    target: str | None = setting(None, "Column of the target texts.")
    unit: Literal["wordpiece", "bpe", "unigram", "characters", "words"] = setting(
        "bpe", "What a token is: subwords of a trained tokenizer, words or characters.", former="pieces"
    )
    vocab_size: int = setting(8000, "Size of the vocabulary.", ge=1, former="size")
    joint: bool = setting(True, "One vocabulary and one embedding for both languages.")
    lowercase: bool = setting(False, "Turn texts to lower case.", former="lower")
    max_length: int = setting(256, "Tokens of a text; the rest is cut off.", ge=3, former="longest")
    beams: int = setting(5, "Beams of the search that writes translations.", ge=1)
    training_beams: int = setting(1, "Beams of the evaluations during training.", ge=1)
    length_penalty: float = setting(1.0, "Exponent of the length that a beam's score is divided by.")
    metric: Literal["auto", "bleu", "chrf", "rouge"] = setting(
        "auto",
        "Metric that selects the best weights; auto is rouge where targets are summaries, otherwise bleu.",
        former_default="bleu",
    )
    tokenize: Literal["auto", "13a", "zh", "intl", "char", "none", "fr"] = setting(
        "auto",
        "Tokenizer of sacreBLEU; auto decides by the script of the targets.",
        former="tokenise",
        former_default="13a",
    )
    r_drop: float = setting(0.0, "Weight of R-Drop's consistency loss; 0 is off.", ge=0, former="agreement")
    prefix: str = setting("", "Text before every source, such as T5's 'translate English to German: '.")
    copy_source: bool = setting(
        False, "Pointer-generator: the model may copy tokens from the source. Needs joint.", former="copies"
    )


class Translate(Task[TranslateSettings, Parallel, Parallel]):
    """Text to text: `Parallel(source, target)` examples; BLEU and chrF, or ROUGE."""

    name = "translate"
    Settings = TranslateSettings
    ARCHITECTURE = Architecture(dim=256, layers=3, hidden=512, dropout=0.2)
    TRAINING = Training(epochs=30, learning_rate=1e-3, warmup=500, label_smoothing=0.1)

    def __init__(
        self,
        settings: TranslateSettings,
        tokenizer: Tokenizer,
        beams: int,
        max_target: int | None = None,
        scoring: Scoring | None = None,
        rules: TokenRules | None = None,
    ) -> None:
        """`max_target` is the length in tokens of the longest target in the training data.

        `scoring` is what its texts decide where the settings say auto. `rules` are those of a checkpoint, whose
        tokenizer does not write the start token of a target.
        """
        self.settings, self.beams, self.max_target = settings, beams, max_target or settings.max_length
        self.scoring = (scoring or Scoring()).update(settings.metric, settings.tokenize)
        self._tokenizer = tokenizer
        target = tokenizer.target
        self.own_tokens = rules is None
        self.pretrained: Pretrained | None = None
        if rules is None:
            start, end, unknown = (n for n in (target.start, target.end, target.unknown) if n is not None)
            rules = TokenRules(start=(start,), end=(end,), pad=target.pad, suppressed=(unknown,))
        self.max_length, self.input_column = settings.max_length, settings.source
        self._rules = rules
        self.encoded_pairs: dict[Parallel, tuple[list[int], list[int]]] = {}

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @property
    def rules(self) -> TokenRules:
        return self._rules

    @classmethod
    def read(cls, paths: Sequence[Path], settings: TranslateSettings) -> Reading[Parallel]:
        return read_parallel(paths, source=settings.source, target=settings.target)

    @classmethod
    def prepare(cls, examples: Sequence[Parallel], settings: TranslateSettings) -> Translate:
        """The task for these training examples: its vocabulary, or one for each language."""
        sources, targets = [e.source for e in examples], [e.target for e in examples]
        tokenizer = train_tokenizer(sources + targets if settings.joint else sources, settings)
        if not settings.joint:
            tokenizer.target = train_tokenizer(targets, settings)
        task = cls(settings, tokenizer, settings.training_beams, scoring=Scoring.from_texts(sources, targets))
        task.max_target = max(len(row) for row in task.rows(tokenizer.target, targets))
        return task

    @classmethod
    def prepare_from(
        cls, examples: Sequence[Parallel], settings: TranslateSettings, pretrained: Pretrained
    ) -> Translate:
        """The task with the tokenizer of an encoder–decoder such as T5 or Marian, whose weights are trained further."""
        model, rules = pretrained.model, pretrained.model.rules
        if not isinstance(model, EncoderDecoderModel) or model.config.embed.reads != "tokens":
            raise BadInput(
                f"{pretrained.name} ({describe_model(model)}) does not write texts from texts. Start from a T5 or a "
                "Marian, or from a run of this task."
            )
        sources, targets = [e.source for e in examples], [e.target for e in examples]
        scoring = Scoring.from_texts(sources, targets)
        if isinstance(pretrained.task, Translate) and pretrained.task.own_tokens:
            task = cls(settings, pretrained.tokenizer, settings.training_beams, scoring=scoring)
        else:
            if rules is None or not rules.start or not rules.end:
                raise BadInput(f"{pretrained.name} names no decoder_start_token_id or eos_token_id in its config.json.")
            task = cls(settings, pretrained.tokenizer, settings.training_beams, scoring=scoring, rules=rules)
        task.pretrained = pretrained
        task.max_target = max(len(row) for row in task.target_rows(targets))
        return task

    def initialize(self, model: nn.Module) -> None:
        if self.pretrained is not None:
            self.pretrained.initialize(model)

    def as_dict(self) -> JsonObject:
        target = self.tokenizer.target if self.own_tokens else self.tokenizer  # a checkpoint's files have both
        rules = {} if self.own_tokens else {"rules": asdict(self.rules)}
        chosen = {"scoring": asdict(self.scoring)} if "auto" in (self.settings.metric, self.settings.tokenize) else {}
        return {
            "target": None if target is self.tokenizer else target.backend.to_str(),
            "most": self.max_target,
            **chosen,
            **rules,
        }

    @classmethod
    def from_dict(
        cls, data: ParsedObject, settings: TranslateSettings, tokenizer: Tokenizer | None = None
    ) -> Translate:
        tokenizer = require_tokenizer(tokenizer)
        if data["target"] is not None:
            tokenizer.target = Tokenizer(type(tokenizer.backend).from_str(data["target"]), tokenizer.settings)
        saved = data.get("rules")
        rules = None if saved is None else rules_from_dict(saved)
        return cls(settings, tokenizer, settings.beams, data["most"], Scoring(**data.get("scoring", {})), rules)

    def config(self, a: Architecture) -> EncoderDecoderConfig:
        if self.pretrained is not None:
            return cast(EncoderDecoderConfig, self.pretrained.model.config)
        return EncoderDecoderConfig(
            self.embedding(self.tokenizer, a),
            stack_of(a),
            stack_of(a, causal=True, cross=True),
            decoder_embed=None if self.settings.joint else self.embedding(self.tokenizer.target, a),
            head=LMHeadConfig(self.tokenizer.target.size, a.dim),
            start=self.rules.start[0],
            copy=self.settings.copy_source,
        )

    def embedding(self, tokenizer: Tokenizer, a: Architecture) -> TextEmbeddingConfig:
        positions = a.position_embedding(self.settings.max_length)
        return TextEmbeddingConfig(
            tokenizer.size, a.dim, positions, scaled=True, padding=tokenizer.pad, dropout=a.dropout
        )

    def choices(self, examples: Sequence[Parallel]) -> list[str]:
        """The metric and its tokenizer where the data decided, and texts that are cut off."""
        sentences = []
        if self.settings.metric == "auto" and self.scoring.metric == "rouge":
            sentences.append(
                "The targets are summaries by their lengths and words: they are scored by ROUGE (metric=bleu for BLEU)."
            )
        elif self.settings.tokenize == "auto":
            sentences.append(
                f"BLEU is computed with the tokenizer {self.scoring.tokenize}, by the script of the targets."
            )
        sources, targets = [e.source for e in examples], [e.target for e in examples]
        for texts, tokenizer, noun in (
            (sources, self.tokenizer, "sources"),
            (targets, self.tokenizer.target, "targets"),
        ):
            lengths = [len(encoding.ids) for encoding in tokenizer.backend.encode_batch_fast(texts)]
            sentences += truncation_note(lengths, self.settings.max_length, noun)
        return sentences

    def sizes(self, examples: Sequence[Parallel]) -> list[int]:
        """Source and target tokens together. The encoded examples are cached for their batches."""
        pairs = self.pairs(examples)
        self.encoded_pairs = dict(zip(examples, pairs, strict=True))
        return [len(source) + len(target) for source, target in pairs]

    def training_length(self, examples: Sequence[Parallel]) -> int | None:
        return max((len(source) for source, _ in self.pairs(examples)), default=None)

    def pairs(self, examples: Sequence[Parallel]) -> list[tuple[list[int], list[int]]]:
        """Token numbers of source and target of each example."""
        if all(example in self.encoded_pairs for example in examples):
            return [self.encoded_pairs[example] for example in examples]
        sources = self.source_rows([example.source for example in examples])
        targets = self.target_rows([example.target for example in examples])
        return list(zip(sources, targets, strict=True))

    def source_rows(self, texts: Sequence[str]) -> list[list[int]]:
        """Token numbers of sources, with the prefix of the settings."""
        prefix = self.settings.prefix
        return self.rows(self.tokenizer, [prefix + text for text in texts] if prefix else texts)

    def target_rows(self, texts: Sequence[str]) -> list[list[int]]:
        """Token numbers of targets, from their start to their end token."""
        rows = self.rows(self.tokenizer.target, texts)
        return rows if self.own_tokens else [[*self.rules.start, *row] for row in rows]

    def rows(self, tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
        """Token numbers of texts between start and end, truncated to max_length."""
        limit, end = self.settings.max_length, self.rules.end[0]
        rows = [encoding.ids for encoding in tokenizer.backend.encode_batch_fast(list(texts))]
        return [row if len(row) <= limit else [*row[: limit - 1], end] for row in rows]

    def batch(self, examples: Sequence[Parallel], rng: Random | None = None) -> dict[str, Tensor]:
        sources, targets = zip(*self.pairs(examples), strict=True)
        whole = pad_rows(list(targets), self.tokenizer.target.pad or 0)  # [batch, 1 + target tokens]
        counts = torch.tensor([len(target) - 1 for target in targets])
        beyond = torch.arange(whole.shape[1] - 1) >= counts[:, None]
        return {
            "tokens": pad_rows(list(sources), self.tokenizer.pad or 0),
            "lengths": torch.tensor([len(source) for source in sources]),
            "targets": whole[:, :-1],
            "target_lengths": counts,
            "labels": whole[:, 1:].masked_fill(beyond, IGNORED),
        }

    def pad_for_cuda_graph(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """The batch padded to few shapes, with the positions of the real tokens."""
        fills = {"tokens": self.tokenizer.pad or 0, "targets": self.tokenizer.target.pad or 0, "labels": IGNORED}
        padded = pad_to_multiples(batch, fills, rows=64, tokens=16)
        return padded | {
            "places": token_positions(padded["lengths"], padded["tokens"].shape[1]),
            "target_places": token_positions(padded["target_lengths"], padded["targets"].shape[1]),
        }

    def count(self, batch: dict[str, Tensor]) -> int:
        return int(batch["target_lengths"].sum())

    def loss(self, model: nn.Module, batch: dict[str, Tensor], smoothing: float = 0.0) -> Tensor:
        return pair_loss(model, batch, smoothing, self.settings.r_drop if model.training else 0.0)

    def evaluate(self, model: Model, examples: Sequence[Parallel]) -> Scores:
        """Scores of the model's translations, and its perplexity on the references."""
        if not examples:
            raise BadInput("There is no pair of texts to evaluate on. Look at the file with `regard check`.")
        texts = self.translate(model, [example.source for example in examples])
        references = [self.references_of(example) for example in examples]
        metric, perplexity = self.scoring.metric, self.perplexity(model, examples)
        metrics, details = (
            (rouge(texts, references), {})
            if metric == "rouge"
            else bleu(texts, references, self.scoring.tokenize, self.settings.lowercase)
        )
        return Scores(metrics | {"perplexity": perplexity}, MAIN[metric], hypotheses=texts, details=details)

    def example_records(self, examples: Sequence[Parallel]) -> list[dict[str, str]]:
        return [{"input": example.source, "gold": example.target} for example in examples]

    def references_of(self, example: Parallel) -> list[str]:
        """The references, in lower case if the model writes lower case."""
        texts = example.references or (example.target,)
        return [text.lower() if self.settings.lowercase else text for text in texts]

    @torch.no_grad()
    def perplexity(self, model: nn.Module, examples: Sequence[Parallel]) -> float:
        """exp of the mean loss of a target token, the end token included."""
        device, total, count = next(model.parameters()).device, 0.0, 0
        pairs = self.pairs(examples)
        for numbers in batch_by_size([len(source) + len(target) for source, target in pairs], 8192):
            batch = self.batch([examples[n] for n in numbers])
            count += self.count(batch)
            total += float(self.loss(model, {name: x.to(device) for name, x in batch.items()}))
        return math.exp(min(total / max(count, 1), 100.0))

    @torch.no_grad()
    def translate(self, model: Model, texts: Sequence[str], tokens: int = 16384) -> list[str]:
        """The model's translation of each text; empty for an empty text."""
        translations = [""] * len(texts)
        filled = [n for n, text in enumerate(texts) if text.strip()]
        rows = self.source_rows([texts[n] for n in filled]) if filled else []
        for numbers in batch_by_size([len(row) for row in rows], tokens // self.beams):
            generated = self.generate(model, [rows[n] for n in numbers])
            for n, text in zip(numbers, self.tokenizer.target.decode(generated), strict=True):
                translations[filled[n]] = join_tokens(text)
        return translations

    def generate(self, model: Model, sources: list[list[int]]) -> Tensor:
        """The tokens of the translations. Each has at most 1.5 times the tokens of the longest training target, and at
        most twice the tokens of its source and 20."""
        device, rules = next(model.parameters()).device, self.rules
        lengths = torch.tensor([len(source) for source in sources])
        return model.generate(
            tokens=pad_rows(sources, self.tokenizer.pad or 0).to(device),
            lengths=lengths.to(device),
            max_new=min(self.settings.max_length, self.max_target + self.max_target // 2, 2 * int(lengths.max()) + 20),
            beams=self.beams,
            length_penalty=self.settings.length_penalty,
            start=rules.start,
            end=rules.end,
            pad=rules.pad,
        )

    def predict(self, model: Model, inputs: Sequence[object]) -> list[GeneratedText]:
        """The translation of each text."""
        texts = [as_text(given) for given in inputs]
        return [GeneratedText(*pair) for pair in zip(texts, self.translate(model, texts), strict=True)]

    def describe(self, examples: Sequence[Parallel]) -> JsonObject:
        """Facts that `check` shows: sizes, vocabulary, lengths, how many texts are truncated, examples."""
        pairs = self.pairs(examples)
        sizes = [[len(row) for row in side] for side in zip(*pairs, strict=True)]
        unknown = sum(
            row.count(-1 if self.tokenizer.unknown is None else self.tokenizer.unknown)
            for pair in pairs
            for row in pair
        )
        return {
            "pairs": len(examples),
            "source tokens": sum(sizes[0]),
            "target tokens": sum(sizes[1]),
            "median length": f"{median(sizes[0]):g} and {median(sizes[1]):g}",
            "cut": sum(max(len(source), len(target)) >= self.settings.max_length for source, target in pairs),
            "vocabulary": " and ".join(str(t.size) for t in dict.fromkeys((self.tokenizer, self.tokenizer.target))),
            "unknown": unknown / max(1, sum(map(sum, sizes))),
            "examples": [f"{e.source} → {e.target}" for e in examples[:3]],
        }


def pair_loss(model: nn.Module, batch: dict[str, Tensor], smoothing: float = 0.0, r_drop: float = 0.0) -> Tensor:
    """The sum of the losses of a batch; logits are computed for real targets only, if their positions are known.

    With `r_drop` every pair is computed twice with different dropout (see `r_drop_loss`).
    """
    if r_drop:
        batch = repeat_pairs(batch)
    inputs = {name: batch[name] for name in ("tokens", "lengths", "targets", "target_lengths")}
    if in_cuda_graph() and "places" in batch:  # the host may not read lengths: the batch has positions
        source, target = ((batch[f"{side}lengths"], batch[f"{side}places"]) for side in ("", "target_"))
        labels = functional.pad(batch["labels"].flatten(), (0, 1), value=IGNORED)[target[1]]
        with packing_positions(source, target):
            logits = model(**inputs, wanted=target[1].clamp(max=batch["labels"].numel() - 1)).logits
    elif in_cuda_graph():
        logits, labels = model(**inputs).logits.flatten(0, 1), batch["labels"].flatten()
    else:
        wanted = batch["labels"] != IGNORED
        logits, labels = model(**inputs, wanted=wanted).logits, batch["labels"][wanted]
    if r_drop:
        return r_drop_loss(logits, labels[: len(labels) // 2], smoothing, r_drop)
    return functional.cross_entropy(
        logits.float(), labels, ignore_index=IGNORED, label_smoothing=smoothing, reduction="sum"
    )


def repeat_pairs(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The batch with every pair repeated below; positions beyond the batch stay beyond it."""
    repeated = repeat_batch({name: x for name, x in batch.items() if not name.endswith("places")})
    for name, rows in (("places", "tokens"), ("target_places", "targets")):
        if name in batch:
            positions, size = batch[name], batch[rows].numel()
            inside, beyond = positions < size, 2 * size
            repeated[name] = torch.cat([positions.where(inside, beyond), (positions + size).where(inside, beyond)])
    return repeated


def token_positions(lengths: Tensor, tokens: int, multiple: int = 1024) -> Tensor:
    """Indices of the real tokens in the flattened batch, padded with an index beyond it to a multiple.

    >>> token_positions(torch.tensor([2, 1]), 3, multiple=4).tolist()
    [0, 1, 3, 6]
    """
    real = (torch.arange(tokens) < lengths[:, None]).flatten().nonzero().squeeze(1)
    return functional.pad(real, (0, -len(real) % multiple), value=len(lengths) * tokens)


def train_tokenizer(texts: list[str], settings: TranslateSettings) -> Tokenizer:
    """A tokenizer for these texts, without segment numbers."""
    tokenizer = Tokenizer.train(texts, settings.unit, settings.vocab_size, settings.lowercase, SPECIAL)
    tokenizer.settings["model_input_names"] = ["input_ids", "attention_mask"]
    return tokenizer


def join_tokens(text: str) -> str:
    """A text without the spaces that a word tokenizer puts between Chinese characters and into English contractions.

    >>> join_tokens("我 有 2 只 black cats 。"), join_tokens("I don ' t think it ' s Tom ' s .")
    ('我有 2 只 black cats 。', "I don't think it's Tom's .")
    """
    return CONTRACTION.sub("'", BLANKS.sub("", text.strip()))
