"""Scores of words in unsegmented text, and a dictionary to compare with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ...data.tagged import Tagged
from .classification import f1_score


def word_spans(sentence: Tagged) -> set[tuple[int, int, str]]:
    """(first character, character after the last, tag) of each word.

    >>> sorted(word_spans(Tagged(("猫", "垫子"), ("NOUN", "NOUN"))))
    [(0, 1, 'NOUN'), (1, 3, 'NOUN')]
    """
    spans, start = set(), 0
    for word, tag in zip(sentence.words, sentence.tags, strict=True):
        spans.add((start, start + len(word), tag))
        start += len(word)
    return spans


def segmentation_scores(
    gold: Sequence[Tagged], predicted: Sequence[Tagged]
) -> tuple[dict[str, float], dict[str, float]]:
    """({word F1, tagged word F1}, F1 of each tag). A word counts where both its ends are right.

    >>> gold, predicted = Tagged(("喜欢", "猫"), ("VERB", "NOUN")), Tagged(("喜欢", "猫"), ("VERB", "VERB"))
    >>> segmentation_scores([gold], [predicted])[0]
    {'word_f1': 1.0, 'tagged_f1': 0.5}
    """
    correct, counts, right, expected, given = 0, [0, 0], Counter[str](), Counter[str](), Counter[str]()
    for truth, guess in zip(gold, predicted, strict=True):
        a, b = word_spans(truth), word_spans(guess)
        correct += len({span[:2] for span in a} & {span[:2] for span in b})
        counts[0] += len(b)
        counts[1] += len(a)
        right.update(tag for _, _, tag in a & b)
        expected.update(tag for _, _, tag in a)
        given.update(tag for _, _, tag in b)
    metrics = {"word_f1": f1_score(correct, *counts), "tagged_f1": f1_score(right.total(), *counts)}
    return metrics, {tag: f1_score(right[tag], given[tag], expected[tag]) for tag in sorted(expected)}


class LongestMatch:
    """The baseline: the longest word of a dictionary at each place, with its most frequent tag.

    A character that begins no known word is a word by itself, with the most frequent tag of all.

    >>> LongestMatch([Tagged(("坐", "坐在"), ("VERB", "VERB"))])("坐在坐")
    Tagged(words=('坐在', '坐'), tags=('VERB', 'VERB'))
    """

    def __init__(self, sentences: Iterable[Tagged]) -> None:
        counts: dict[str, Counter[str]] = {}
        total = Counter[str]()
        for sentence in sentences:
            for word, tag in zip(sentence.words, sentence.tags, strict=True):
                counts.setdefault(word, Counter())[tag] += 1
                total[tag] += 1
        self.tags = {word: tags.most_common(1)[0][0] for word, tags in counts.items()}
        self.default = total.most_common(1)[0][0]
        self.longest = max(map(len, self.tags))

    def __call__(self, text: str) -> Tagged:
        words: list[str] = []
        start = 0
        while start < len(text):
            sizes = range(min(self.longest, len(text) - start), 0, -1)
            size = next((n for n in sizes if text[start : start + n] in self.tags), 1)
            words.append(text[start : start + size])
            start += size
        return Tagged(tuple(words), tuple(self.tags.get(word, self.default) for word in words))
