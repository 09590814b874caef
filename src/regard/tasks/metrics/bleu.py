"""BLEU and chrF by sacreBLEU, and the choice of metric and tokenizer by the texts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from ...data.json_values import JsonObject
from ...data.languages import count_scripts
from ...errors import Missing
from .rouge import words_of

SAMPLE = 1000
"""Texts that are looked at."""
LONG_SOURCE = 30
"""Words of a source from which a short target is a summary, whatever its words are."""
MIN_SOURCE = 10
"""Words of a source from which it can have a summary in its own words."""
UNSPACED = ("HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")
"""Scripts, besides Chinese characters, that write words without blanks."""

APOSTROPHE = re.compile(r"(?<=[^\W\d_])(['’])(?=[^\W\d_])")


@dataclass(frozen=True)
class Scoring:
    """How translations are scored: the metric (bleu, chrf, rouge), and sacreBLEU's tokenizer."""

    metric: str = "bleu"
    tokenize: str = "13a"

    @classmethod
    def from_texts(cls, sources: Sequence[str], targets: Sequence[str]) -> Scoring:
        """The scoring that fits these texts.

        Chinese is tokenized by zh, other scripts without blanks by char.

        >>> Scoring.from_texts(["I like cats."], ["我喜欢猫。"])
        Scoring(metric='bleu', tokenize='zh')
        """
        scripts = count_scripts("".join(targets[:SAMPLE]))
        unspaced = sum(scripts[name] for name in UNSPACED) > 0.1 * scripts.total()  # Japanese has Chinese ones too
        tokenize = "char" if unspaced else "zh" if scripts["CJK"] > 0.3 * scripts.total() else "13a"
        return cls("rouge" if are_summaries(sources[:SAMPLE], targets[:SAMPLE]) else "bleu", tokenize)

    def update(self, metric: str, tokenize: str) -> Scoring:
        """The scoring with what is not "auto" of a metric and a tokenizer."""
        return Scoring(self.metric if metric == "auto" else metric, self.tokenize if tokenize == "auto" else tokenize)


def are_summaries(sources: Sequence[str], targets: Sequence[str]) -> bool:
    """Whether targets summarize their sources: they have less than two fifths of the words of a long source, or they
    are shorter and half of their words or more stand in the source.

    >>> are_summaries(["the long story of a cat and of its many lives"], ["the story of a cat"])
    True
    """
    pairs = [(words_of(source), words_of(target)) for source, target in zip(sources, targets, strict=True)]
    source_length, target_length = (median(map(len, texts)) for texts in zip(*pairs, strict=True))
    if source_length >= LONG_SOURCE and target_length < 0.4 * source_length:
        return True
    if source_length < MIN_SOURCE or target_length > 0.75 * source_length:
        return False
    repeated = [sum(word in set(source) for word in target) / max(1, len(target)) for source, target in pairs]
    return median(repeated) >= 0.5


def bleu(
    texts: list[str], references: list[list[str]], tokenize: str = "13a", lowercase: bool = False
) -> tuple[dict[str, float], JsonObject]:
    """sacreBLEU's BLEU, as written and in lower case, and chrF; with their signatures."""
    try:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
    except ImportError:
        raise Missing('BLEU needs sacrebleu: pip install "regard[train]", or --set metric=rouge.') from None
    most = max(map(len, references))
    streams = [[several[n] if n < len(several) else None for several in references] for n in range(most)]
    french = tokenize == "fr"
    tokenize = "13a" if french else tokenize
    bleus = {
        "bleu": BLEU(tokenize=tokenize, lowercase=lowercase),
        "bleu_lower": BLEU(tokenize=tokenize, lowercase=True),
    }
    chrf, split_texts = CHRF(), ([split_elisions(text) for text in texts] if french else texts)
    split_streams = [[split_elisions(text) if french and text else text for text in stream] for stream in streams]
    metrics = {name: bleu.corpus_score(split_texts, split_streams).score for name, bleu in bleus.items()}  # type: ignore[arg-type]
    metrics["chrf"] = chrf.corpus_score(texts, streams).score  # type: ignore[arg-type]
    signatures = {name: str(bleu.get_signature()) + "|elided" * french for name, bleu in bleus.items()}
    return metrics, {"signatures": signatures | {"chrf": str(chrf.get_signature())}}


def split_elisions(text: str) -> str:
    """A text with its words split after apostrophes.

    >>> split_elisions("l'homme s'assied aujourd’hui, à 5'4")
    "l' homme s' assied aujourd’ hui, à 5'4"
    """
    return APOSTROPHE.sub(r"\1 ", text)
