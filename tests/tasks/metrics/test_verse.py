"""Rules of verse that are learned from poems, and scores of words in unsegmented text."""

from __future__ import annotations

from random import Random

import pytest

from regard.data import Tagged
from regard.tasks.metrics.segmentation import LongestMatch, segmentation_scores
from regard.tasks.metrics.verse import VerseRules, couplets, even_couplet_share, is_regular, rhyme_characters

FIRST, SECOND = "甲乙丙丁戊", "子丑寅卯辰"
"""Line ends of two rhymes."""


def make_poems(count: int) -> list[str]:
    """Poems of eight lines; one of two rhymes; a character at a position comes from the set of that position."""
    rng, poems = Random(0), []
    places = ["春夏秋冬", "山水风月", "来去行住", "高低远近"]
    for _ in range(count):
        ends = rng.sample(rng.choice((FIRST, SECOND)), 4)
        lines = ["".join(map(rng.choice, places)) + (ends[n // 2] if n % 2 else rng.choice("天地人")) for n in range(8)]
        poems.append("".join(line + "，。"[n % 2] for n, line in enumerate(lines)))
    return poems


def test_the_form_of_a_poem() -> None:
    poem = "白日依山尽，黄河入海流。欲穷千里目，更上一层楼。"
    assert is_regular(poem) and rhyme_characters(poem) == ["流", "楼"]
    assert couplets(poem)[1] == ("欲穷千里目", "更上一层楼")
    assert not is_regular(poem[:-7]) and not is_regular(poem.replace("更上", "更")) and not is_regular("")
    assert even_couplet_share([poem, poem.replace("更上", "更")]) == 0.75


def test_rhymes_and_likeness_are_learned_from_poems() -> None:
    poems = make_poems(60)
    rules = VerseRules.from_poems(poems, dim=8)
    assert rules.rhyme("甲", "乙") and rules.rhyme("子", "辰")
    assert not rules.rhyme("甲", "子") and not rules.rhyme("甲", "甲") and not rules.rhyme("甲", "天")
    assert not rules.rhyme("甲", "没")
    assert rules.rhyme_share(poems) == 1 and rules.rhyme_share([]) == 0
    broken = [poem.replace(rhyme_characters(poem)[0], "天") for poem in poems]
    assert rules.rhyme_share(broken) == pytest.approx(2 / 3)
    assert rules.parallel_share(poems) > 0.9
    assert rules.is_parallel("春山来高", "秋水去低") and not rules.is_parallel("春山来高", "高来山春")
    assert not rules.is_parallel("春山来高", "秋水去")


def test_words_count_where_both_ends_are_right() -> None:
    gold = [Tagged(("甲乙", "丙", "丁"), ("A", "B", "A"))]
    predicted = [Tagged(("甲乙", "丙丁"), ("B", "B"))]
    metrics, per_tag = segmentation_scores(gold, predicted)
    assert metrics == {"word_f1": pytest.approx(2 / 5), "tagged_f1": 0.0} and per_tag == {"A": 0.0, "B": 0.0}
    assert segmentation_scores(gold, gold)[0] == {"word_f1": 1.0, "tagged_f1": 1.0}


def test_the_longest_known_word_comes_first() -> None:
    words = LongestMatch([Tagged(("甲", "甲乙", "甲乙", "丙"), ("A", "B", "C", "C")), Tagged(("甲乙",), ("C",))])
    assert words("甲乙甲丙未") == Tagged(("甲乙", "甲", "丙", "未"), ("C", "A", "C", "C"))
