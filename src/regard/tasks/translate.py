"""N → M: a text for a text. Translation, and with other files and ROUGE summarisation."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..attention.tracing import in_cuda_graph
from ..data.order import Order
from ..data.reading import Reading
from ..data.text import Parallel, read_parallel
from ..errors import BadInput, Missing
from ..models.config import EncoderDecoderConfig
from ..models.generation.rules import TokenRules
from ..models.heads import IGNORED, LMHeadConfig
from ..models.tokenizers.tokenizer import Tokenizer, stack
from ..models.tokenizers.training import Special
from ..nn.embeddings.text import TextEmbeddingConfig
from ..nn.packing import packing_positions
from ..settings import Settings, Training, setting
from .architecture import Architecture, stack_of
from .inputs.padding import pad_to_multiples
from .losses.r_drop import agreement_loss, twice
from .metrics.rouge import rouge
from .task import Scores, Task

SPECIAL = Special("<pad>", "<unk>", "<s>", "</s>", None)

CHINESE = "\u3000-\u303f\u3400-\u9fff\uf900-\ufaff\uff00-\uffef"
APOSTROPHE = re.compile(r"(?<=[^\W\d_])(['’])(?=[^\W\d_])")
BLANKS = re.compile(f"(?<=[{CHINESE}]) +(?=[{CHINESE}])")

MAIN = {"bleu": "bleu", "chrf": "chrf", "rouge": "rouge1"}
"""Of each setting `metric`, the score that decides."""


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
    metric: Literal["bleu", "chrf", "rouge"] = setting("bleu", "Metric that selects the best weights.")
    tokenize: Literal["13a", "zh", "intl", "char", "none", "fr"] = setting(
        "13a", "Tokenizer of sacreBLEU.", former="tokenise"
    )
    r_drop: float = setting(0.0, "Weight of R-Drop's consistency loss; 0 is off.", ge=0, former="agreement")
    copy_source: bool = setting(
        False, "Pointer-generator: the model may copy tokens from the source. Needs joint.", former="copies"
    )


class Translate(Task[TranslateSettings]):
    """A text for a text: `Parallel(source, target)` examples; BLEU and chrF, or ROUGE."""

    name = "translate"
    Settings = TranslateSettings
    ARCHITECTURE = Architecture(dim=256, layers=3, hidden=512, dropout=0.2)
    TRAINING = Training(epochs=30, learning_rate=1e-3, warmup=500, label_smoothing=0.1)
    tokenizer: Tokenizer  # pyright: ignore[reportIncompatibleVariableOverride]
    rules: TokenRules  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, settings: TranslateSettings, tokenizer: Tokenizer, beams: int, most: int | None = None) -> None:
        """`most` is how many tokens the longest target had that was learned from."""
        self.settings, self.beams, self.most = settings, beams, most or settings.max_length
        self.tokenizer = tokenizer
        target = tokenizer.target
        start, end, unknown = (number for number in (target.start, target.end, target.unknown) if number is not None)
        self.max_length = settings.max_length
        self.rules = TokenRules(start=(start,), end=(end,), pad=target.pad, suppressed=(unknown,))
        self.known: dict[Parallel, tuple[list[int], list[int]]] = {}

    @classmethod
    def read(cls, paths: Sequence[Path], settings: TranslateSettings) -> Reading[Parallel]:
        return read_parallel(paths, source=settings.source, target=settings.target)

    @classmethod
    def prepare(cls, examples: Sequence[Parallel], settings: TranslateSettings) -> Translate:
        """The task for these training examples: its vocabulary, or one for each language."""
        sources, targets = [e.source for e in examples], [e.target for e in examples]
        tokenizer = trained(sources + targets if settings.joint else sources, settings)
        if not settings.joint:
            tokenizer.target = trained(targets, settings)
        task = cls(settings, tokenizer, settings.training_beams)
        task.most = max(len(row) for row in task.rows(tokenizer.target, targets))
        return task

    def as_dict(self) -> dict[str, Any]:
        target = self.tokenizer.target
        return {"target": None if target is self.tokenizer else target.backend.to_str(), "most": self.most}

    @classmethod
    def from_dict(cls, data: dict[str, Any], settings: TranslateSettings, tokenizer: Any = None) -> Translate:
        if data["target"] is not None:
            tokenizer.target = Tokenizer(type(tokenizer.backend).from_str(data["target"]), tokenizer.settings)
        return cls(settings, tokenizer, settings.beams, data["most"])

    def config(self, a: Architecture) -> EncoderDecoderConfig:
        embed, own = (self.embedding(one, a) for one in (self.tokenizer, self.tokenizer.target))
        return EncoderDecoderConfig(
            embed,
            stack_of(a),
            stack_of(a, causal=True, cross=True),
            decoder_embed=None if self.settings.joint else own,
            head=LMHeadConfig(self.tokenizer.target.size, a.dim),
            start=self.rules.start[0],
            copy=self.settings.copy_source,
        )

    def embedding(self, tokenizer: Tokenizer, a: Architecture) -> TextEmbeddingConfig:
        places = {"sinusoidal": "sinusoidal", "learned": self.settings.max_length, "none": None}[a.positions]
        return TextEmbeddingConfig(tokenizer.size, a.dim, places, scaled=True, padding=tokenizer.pad, dropout=a.dropout)  # type: ignore[arg-type]

    def sizes(self, examples: Sequence[Parallel]) -> list[int]:
        """Source and target tokens together. The numbers of these examples are remembered for their batches."""
        pairs = self.pairs(examples)
        self.known = dict(zip(examples, pairs, strict=True))
        return [len(source) + len(target) for source, target in pairs]

    def pairs(self, examples: Sequence[Parallel]) -> list[tuple[list[int], list[int]]]:
        """Source and target of each example in numbers."""
        if all(example in self.known for example in examples):
            return [self.known[example] for example in examples]
        sources = self.rows(self.tokenizer, [example.source for example in examples])
        targets = self.rows(self.tokenizer.target, [example.target for example in examples])
        return list(zip(sources, targets, strict=True))

    def rows(self, tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
        """Texts in numbers between start and end, cut where they are too long."""
        longest, end = self.settings.max_length, self.rules.end[0]
        rows = [encoding.ids for encoding in tokenizer.backend.encode_batch_fast(list(texts))]
        return [row if len(row) <= longest else [*row[: longest - 1], end] for row in rows]

    def batch(self, examples: Sequence[Parallel], rng: Random | None = None) -> dict[str, Tensor]:
        sources, targets = zip(*self.pairs(examples), strict=True)
        whole = stack(list(targets), self.tokenizer.target.pad or 0)  # [batch, 1 + target tokens]
        counts = torch.tensor([len(target) - 1 for target in targets])
        beyond = torch.arange(whole.shape[1] - 1) >= counts[:, None]
        return {
            "tokens": stack(list(sources), self.tokenizer.pad or 0),
            "lengths": torch.tensor([len(source) for source in sources]),
            "targets": whole[:, :-1],
            "target_lengths": counts,
            "labels": whole[:, 1:].masked_fill(beyond, IGNORED),
        }

    def pad_for_cuda_graph(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """The batch with empty rows and places, so that few shapes of batches occur, and where the real tokens are."""
        fills = {"tokens": self.tokenizer.pad or 0, "targets": self.tokenizer.target.pad or 0, "labels": IGNORED}
        found = pad_to_multiples(batch, fills, rows=64, tokens=16)
        return found | {
            "places": real_places(found["lengths"], found["tokens"].shape[1]),
            "target_places": real_places(found["target_lengths"], found["targets"].shape[1]),
        }

    def count(self, batch: dict[str, Tensor]) -> int:
        return int(batch["target_lengths"].sum())

    def loss(self, model: nn.Module, batch: dict[str, Tensor], smoothing: float = 0.0) -> Tensor:
        return pair_loss(model, batch, smoothing, self.settings.r_drop if model.training else 0.0)

    def evaluate(self, model: nn.Module, examples: Sequence[Parallel]) -> Scores:
        """The scores of what the model writes, and its perplexity on what it should have written."""
        if not examples:
            raise BadInput("There is no pair of texts to score on. Look at the file with `regard check`.")
        said = self.translate(model, [example.source for example in examples])
        references = [self.right(example) for example in examples]
        metric, perplexity = self.settings.metric, self.perplexity(model, examples)
        found, details = (rouge(said, references), {}) if metric == "rouge" else self.bleu(said, references)
        return Scores(found | {"perplexity": perplexity}, MAIN[metric], hypotheses=said, details=details)

    def right(self, example: Parallel) -> list[str]:
        """The right answers, in lower case where the model writes that alone."""
        texts = example.references or (example.target,)
        return [text.lower() if self.settings.lowercase else text for text in texts]

    def bleu(self, said: list[str], references: list[list[str]]) -> tuple[dict[str, float], dict[str, Any]]:
        """sacreBLEU's BLEU, as written and in lower case, and chrF; with their signatures."""
        try:
            from sacrebleu.metrics.bleu import BLEU
            from sacrebleu.metrics.chrf import CHRF
        except ImportError:
            raise Missing('BLEU needs sacrebleu: pip install "regard[train]", or --set metric=rouge.') from None
        most = max(map(len, references))
        streams = [[several[n] if n < len(several) else None for several in references] for n in range(most)]
        french = self.settings.tokenize == "fr"
        tokenise = "13a" if french else self.settings.tokenize
        kinds = {
            "bleu": BLEU(tokenize=tokenise, lowercase=self.settings.lowercase),
            "bleu_lower": BLEU(tokenize=tokenise, lowercase=True),
        }
        chrf, written = CHRF(), ([elided(text) for text in said] if french else said)
        right = [[elided(text) if french and text else text for text in stream] for stream in streams]
        metrics = {name: kind.corpus_score(written, right).score for name, kind in kinds.items()}  # type: ignore[arg-type]
        metrics["chrf"] = chrf.corpus_score(said, streams).score  # type: ignore[arg-type]
        signatures = {name: str(kind.get_signature()) + "|elided" * french for name, kind in kinds.items()}
        return metrics, {"signatures": signatures | {"chrf": str(chrf.get_signature())}}

    @torch.no_grad()
    def perplexity(self, model: nn.Module, examples: Sequence[Parallel]) -> float:
        """exp of the mean loss of a target's token, its end included."""
        device, total, count = next(model.parameters()).device, 0.0, 0
        pairs = self.pairs(examples)
        for numbers in by_length([len(source) + len(target) for source, target in pairs], 8192):
            batch = self.batch([examples[n] for n in numbers])
            count += self.count(batch)
            total += float(self.loss(model, {name: x.to(device) for name, x in batch.items()}))
        return math.exp(min(total / max(count, 1), 100.0))

    @torch.no_grad()
    def translate(self, model: Any, texts: Sequence[str], tokens: int = 16384) -> list[str]:
        """What the model writes for each text; nothing for a blank one."""
        found = [""] * len(texts)
        filled = [n for n, text in enumerate(texts) if text.strip()]
        rows = self.rows(self.tokenizer, [texts[n] for n in filled]) if filled else []
        for places in by_length([len(row) for row in rows], tokens // self.beams):
            written = self.generate(model, [rows[place] for place in places])
            for place, text in zip(places, self.tokenizer.target.decode(written), strict=True):
                found[filled[place]] = closed(text)
        return found

    def generate(self, model: Any, sources: list[list[int]]) -> Tensor:
        """The tokens of the model's answers, each at most half as long again as the longest target it has learned from,
        and no longer than twice its source and 20 tokens."""
        device, rules = next(model.parameters()).device, self.rules
        lengths = torch.tensor([len(source) for source in sources])
        return model.generate(
            tokens=stack(sources, self.tokenizer.pad or 0).to(device),
            lengths=lengths.to(device),
            max_new=min(self.settings.max_length, self.most + self.most // 2, 2 * int(lengths.max()) + 20),
            beams=self.beams,
            length_penalty=self.settings.length_penalty,
            start=rules.start,
            end=rules.end,
            pad=rules.pad,
        )

    def predict(self, model: nn.Module, inputs: Sequence[str]) -> list[str]:
        """The translation of each text."""
        return self.translate(model, inputs)

    def describe(self, examples: Sequence[Parallel]) -> dict[str, Any]:
        """What `check` shows: sizes, vocabulary, how long the texts are, how many are cut, examples."""
        pairs = self.pairs(examples)
        sizes = [[len(row) for row in side] for side in zip(*pairs, strict=True)]
        unknown = sum(row.count(self.rules.suppressed[0]) for pair in pairs for row in pair)
        return {
            "pairs": len(examples),
            "source tokens": sum(sizes[0]),
            "target tokens": sum(sizes[1]),
            "median length": f"{median(sizes[0]):g} and {median(sizes[1]):g}",
            "cut": sum(max(len(source), len(target)) >= self.settings.max_length for source, target in pairs),
            "vocabulary": " and ".join(str(one.size) for one in dict.fromkeys((self.tokenizer, self.tokenizer.target))),
            "unknown": unknown / max(1, sum(map(sum, sizes))),
            "examples": [f"{e.source} → {e.target}" for e in examples[:3]],
        }


def pair_loss(model: nn.Module, batch: dict[str, Tensor], smoothing: float = 0.0, agreement: float = 0.0) -> Tensor:
    """The sum of a batch's losses; logits are computed for real targets alone, where it is known which they are.

    With `agreement` every pair is computed twice, each time with other dropout (see `agreement_loss`).
    """
    if agreement:
        batch = again(batch)
    inputs = {name: batch[name] for name in ("tokens", "lengths", "targets", "target_lengths")}
    if in_cuda_graph() and "places" in batch:  # which targets are real may not be looked at, and is packing_positions
        known = [(batch[f"{side}lengths"], batch[f"{side}places"]) for side in ("", "target_")]
        labels = functional.pad(batch["labels"].flatten(), (0, 1), value=IGNORED)[known[1][1]]
        with packing_positions(*known):
            logits = model(**inputs, wanted=known[1][1].clamp(max=batch["labels"].numel() - 1)).logits
    elif in_cuda_graph():
        logits, labels = model(**inputs).logits.flatten(0, 1), batch["labels"].flatten()
    else:
        wanted = batch["labels"] != IGNORED
        logits, labels = model(**inputs, wanted=wanted).logits, batch["labels"][wanted]
    if agreement:
        return agreement_loss(logits, labels[: len(labels) // 2], smoothing, agreement)
    how: dict[str, Any] = {"ignore_index": IGNORED, "label_smoothing": smoothing, "reduction": "sum"}
    return functional.cross_entropy(logits.float(), labels, **how)


def again(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The batch with every pair again below the others; places beyond it stay beyond it."""
    found = twice({name: x for name, x in batch.items() if not name.endswith("places")})
    for name, rows in (("places", "tokens"), ("target_places", "targets")):
        if name in batch:
            size, inside = batch[rows].numel(), batch[name] < batch[rows].numel()
            found[name] = torch.cat([batch[name].where(inside, 2 * size), (batch[name] + size).where(inside, 2 * size)])
    return found


def real_places(lengths: Tensor, tokens: int, multiple: int = 1024) -> Tensor:
    """The numbers of the real tokens in the flattened batch, and one beyond it until there are a multiple of them.

    >>> real_places(torch.tensor([2, 1]), 3, multiple=4).tolist()
    [0, 1, 3, 6]
    """
    real = (torch.arange(tokens) < lengths[:, None]).flatten().nonzero().squeeze(1)
    return functional.pad(real, (0, -len(real) % multiple), value=len(lengths) * tokens)


def trained(texts: list[str], settings: TranslateSettings) -> Tokenizer:
    """The vocabulary of these texts; a model that reads one text needs no segments."""
    tokenizer = Tokenizer.train(texts, settings.unit, settings.vocab_size, settings.lowercase, SPECIAL)
    tokenizer.settings["model_input_names"] = ["input_ids", "attention_mask"]
    return tokenizer


def closed(text: str) -> str:
    """A text without the blanks that a vocabulary of words puts between Chinese characters.

    >>> closed("我 有 2 只 black cats 。")
    '我有 2 只 black cats 。'
    """
    return BLANKS.sub("", text.strip())


def elided(text: str) -> str:
    """A text whose words are parted after an apostrophe.

    >>> elided("l'homme s'assied aujourd’hui, à 5'4")
    "l' homme s' assied aujourd’ hui, à 5'4"
    """
    return APOSTROPHE.sub(r"\1 ", text)


def by_length(sizes: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Batches of numbers, neighbours in size together, each of about so many tokens."""
    if sizes:
        yield from Order(sizes, tokens=max(1, tokens)).cut(sorted(range(len(sizes)), key=lambda n: sizes[n]))
